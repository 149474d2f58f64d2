"""How long a row takes from its later input record to a `read_committed` reader of the output topic, at a steady rate,
under exactly-once delivery: Joinery, Flink SQL and Kafka Streams.

The first rows of a run are its warm-up and do not count. Sender, broker, engine and reader share the machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from bench import flink_peer, joinery_jobs, streams_peer
from bench.peer import Background, Peer, running
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.topics import ordered_producer

RATE = 2_000  # records per second and topic
WARM_UP_SECONDS = 15.0
_TICK_SECONDS = 0.01
_PAID_AFTER_TICKS = 5
_WINDOW_MS = 10_000
_PARTITIONS = 2
_START_SECONDS = 300.0
_BEHIND_SECONDS = 1.0
_WAITING_MOST = 50_000  # records that the broker has not taken yet; the client's queue holds twice as many


@dataclass(frozen=True, slots=True)
class Delays:
    """Milliseconds over `rows` rows. `problem`: why there are none."""

    name: str
    settings: str
    rows: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    problem: str | None = None


def run(work: Path, seconds: float, slugs: list[str] | None) -> list[Delays]:
    """`seconds`: for how long rows are counted; `slugs` names some of the peers, None all of them."""
    delays_by_peer = []
    for slug, candidate in PEERS.items():
        if slugs is None or slug in slugs:
            with KafkaBroker() as broker:  # a new one: no topic holds what the peer before has read
                for topic in ("orders", "payments", slug):
                    broker.create_topic(topic, _PARTITIONS)
                delays_by_peer.append(
                    measure(candidate(broker.bootstrap, slug, work / slug), broker.bootstrap, slug, seconds)
                )
                print(f"  {delays_line(delays_by_peer[-1])}", file=sys.stderr, flush=True)
    return delays_by_peer


def delays_line(delays: Delays) -> str:
    if delays.problem:
        return f"{delays.name}: {delays.problem}"
    return f"{delays.name}: p50 {delays.p50_ms:.0f} ms, p99 {delays.p99_ms:.0f} ms of {delays.rows:,} rows"


class Sender(Background):
    """Sends orders, and a payment for each a little later, RATE records a second of each, until it is stopped.
    `slips`: how often it fell behind by more than _BEHIND_SECONDS, and began its schedule again. Delays at another rate
    are not what was asked for."""

    slips = 0

    def __init__(self, bootstrap: str, partitions: int = _PARTITIONS, linger_ms: int = 0) -> None:
        super().__init__()
        self._produced, self._partitions = 0, partitions
        self._producer = ordered_producer(bootstrap, {"linger.ms": linger_ms})
        self._per_tick = int(RATE * _TICK_SECONDS)

    @property
    def sent(self) -> int:
        """Records of both topics that the broker has."""
        return self._produced - len(self._producer)

    def _run(self) -> None:
        started, tick = time.monotonic(), 0
        while not self._done.wait(max(0.0, started + tick * _TICK_SECONDS - time.monotonic())):
            while len(self._producer) > _WAITING_MOST:
                self._producer.poll(0.1)
            behind = time.monotonic() - started - tick * _TICK_SECONDS
            if behind > _BEHIND_SECONDS:
                started, self.slips = started + behind, self.slips + 1
            now = time.time()
            for number in range(tick * self._per_tick, (tick + 1) * self._per_tick):
                self._send_row("orders", number, {"id": str(number), "ts": int(now * 1000)})
                paid = number - _PAID_AFTER_TICKS * self._per_tick
                if paid >= 0:
                    self._send_row("payments", paid, {"order": str(paid), "sent": now, "ts": int(now * 1000)})
            self._producer.poll(0)
            tick += 1
        self._producer.flush(10)

    def _send_row(self, topic: str, number: int, row: dict[str, Any]) -> None:
        self._producer.produce(topic, json.dumps(row), str(number), number % self._partitions)
        self._produced += 1


def measure(peer: Peer, bootstrap: str, topic: str, seconds: float) -> Delays:
    with Sender(bootstrap) as sender, running(peer) as ended:
        return summary(peer, _read_delays(bootstrap, topic, seconds, ended, lambda: sender.slips))


def summary(peer: Peer, delays: list[float] | str) -> Delays:
    """Of delays in seconds, or of what went wrong."""
    if not delays or isinstance(delays, str):
        return Delays(peer.name, peer.settings_after_run(), problem=delays or "no row came after the warm-up")
    p50, p99 = np.percentile(delays, [50, 99]) * 1000
    return Delays(peer.name, peer.settings_after_run(), len(delays), float(p50), float(p99))


def _read_delays(
    bootstrap: str, topic: str, seconds: float, ended: Callable[[], str | None], slips: Callable[[], int]
) -> list[float] | str:
    """Return seconds from sending to reading, per joined row, after the warm-up that begins with the first row. A row
    may come once: one that comes twice, a peer that ends or never begins, or a sender that slips, is a problem."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency", "isolation.level": "read_committed",
                         "enable.auto.commit": False, "fetch.wait.max.ms": 5})  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(_PARTITIONS)])
    delays: list[float] = []
    seen: set[str] = set()
    began, first, slipped = time.monotonic(), None, 0
    try:
        while first is None or time.monotonic() < first + WARM_UP_SECONDS + seconds:
            if problem := ended() or (first is None and time.monotonic() > began + _START_SECONDS and "no row") or None:
                return problem
            for message in consumer.consume(1000, 0.01):
                now = time.time()
                first = first or time.monotonic()
                if message.error() is not None:
                    continue
                row = json.loads(message.value())
                if row["id"] in seen:
                    return f"row {row['id']} came twice"
                seen.add(row["id"])
                if time.monotonic() > first + WARM_UP_SECONDS:
                    slipped = slipped if delays else slips()
                    delays.append(now - row["sent"])
    finally:
        consumer.close()
    if delays and slips() > slipped:
        return f"the machine did not take {RATE:,} records per second and topic"
    return delays


def _joinery_peer(bootstrap: str, slug: str, folder: Path, *, setup: joinery_jobs.Setup) -> Peer:
    settings = (
        "2 shards, no trigger: an epoch follows the one before, each a transaction; state in an embedded Postgres"
    )
    job = joinery_jobs.document("StreamJoin", slug, spec(bootstrap, slug, "latest"))
    return joinery_jobs.peer(f"Joinery, exactly once{setup.name}", settings, job, folder, setup)


def spec(bootstrap: str, topic: str, start: str) -> dict[str, Any]:
    """Join what `Sender` sends, from the offsets `start` on, into a topic."""
    return {
        "inputs": [
            _kafka_input(bootstrap, "orders", start, {"id": "string", "ts": "timestamp"}),
            _kafka_input(bootstrap, "payments", start, {"order": "string", "sent": "double", "ts": "timestamp"}),
        ],
        "joins": [
            {
                "right": "payments",
                "keys": {"orders.id": "payments.order"},
                "interval": {"of": "orders", "lower": f"-{_WINDOW_MS}ms", "upper": f"{_WINDOW_MS}ms"},
            }
        ],
        "select": [{"column": "orders.id", "as": "id"}, {"column": "payments.sent", "as": "sent"}],
        "output": joinery_jobs.to_topic(bootstrap, topic),
        "shards": _PARTITIONS,
    }


def _kafka_input(bootstrap: str, topic: str, start: str, columns: dict[str, str]) -> dict[str, Any]:
    return {
        "name": topic,
        "kafka": {"bootstrapServers": bootstrap, "topic": topic, "startFrom": start},
        "format": "json",
        "schema": [{"name": column, "type": kind} for column, kind in columns.items()],
        "eventTime": "ts",
        "watermark": {"delay": "10s"},
    }


def _flink_candidate(bootstrap: str, slug: str, folder: Path) -> Peer:
    setup, seconds = flink_peer.EXACTLY_ONCE, _WINDOW_MS // 1000
    statements = [
        flink_peer.input_table("orders", bootstrap, "id STRING", start="latest-offset"),
        flink_peer.input_table("payments", bootstrap, "`order` STRING, sent DOUBLE", start="latest-offset"),
        flink_peer.output_table(slug, bootstrap, "id STRING, sent DOUBLE", setup),
        f"""INSERT INTO joined SELECT o.id, p.sent FROM orders o JOIN payments p ON o.id = p.`order`
            AND p.event_time BETWEEN o.event_time - INTERVAL '{seconds}' SECOND
            AND o.event_time + INTERVAL '{seconds}' SECOND""",
    ]
    return flink_peer.peer(setup, statements, folder)


def _streams_candidate(bootstrap: str, slug: str, folder: Path) -> Peer:
    setup = streams_peer.PROMPT
    return streams_peer.peer(setup, "latency", bootstrap, slug, _WINDOW_MS, folder)


_TWO_EXECUTORS = joinery_jobs.on_spark(joinery_jobs.local_cluster(2, 1), name=", on Spark with two executors")
PEERS: dict[str, Callable[[str, str, Path], Peer]] = {
    "joinery": partial(_joinery_peer, setup=joinery_jobs.BY_DEFAULT),
    "joinery-local": partial(_joinery_peer, setup=joinery_jobs.WITHOUT_SPARK),
    "joinery-cluster-2x1": partial(_joinery_peer, setup=_TWO_EXECUTORS),
    "flink": _flink_candidate,
    "streams": _streams_candidate,
}
