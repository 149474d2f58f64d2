"""Sessions of clicks (count and least page, 60 s gap), by Joinery and every peer.

Clicks are of any user at any time, so that there are very many short sessions: a user comes every 100 s on average. At
the end each partition has a click long after the others, of a user of its own, so that every engine closes all sessions
of the other users. Another such click follows every second: Kafka Streams looks for closed sessions once in a second,
and only when it reads a record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from bench import flink_peer, joinery_jobs, spark_peer, streams_peer
from bench.outputs import Schema
from bench.peer import Background, Figures, Peer, typical
from bench.raw_read import measure_raw
from bench.section import PARTITIONS, Candidates, Ground, only, run_all
from bench.topics import produce_records
from joinery_devkit import clicks
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.topics import ordered_producer

GAP_S = 60
CLICKS_PER_USER = 30
SPAN_S = 3_000  # of event time
ROW: Schema = {"user_id": pl.String, "events": pl.Int64, "page": pl.String}
_LAST_AFTER_MS = 3_600_000


def run(work: Path, records: int, slugs: list[str] | None, runs: int) -> list[Figures]:
    """Measure `records`, `runs` times; `slugs` names some of the peers, None all of them."""
    users, per_second = max(1, records // CLICKS_PER_USER), max(1, records // SPAN_S)
    drawn = scattered(clicks.ClickLoad(records, users, PARTITIONS, per_second=per_second))
    parts = clicks.by_partition(drawn, PARTITIONS)
    with KafkaBroker() as broker:
        broker.create_topic("clicks", PARTITIONS)
        produce_records(broker.bootstrap, "clicks", [keyed(part, number, drawn) for number, part in enumerate(parts)])
        ground = Ground(broker, work, records + PARTITIONS, ROW, runs)
        reads = [("clicks", [p], len(part) + 1) for p, part in enumerate(parts)]
        raw = typical(lambda _: measure_raw(broker.bootstrap, reads), runs)
        with _GoesOn(broker.bootstrap, int(drawn.ts.max()) + _LAST_AFTER_MS):
            return [raw, *run_all(ground, only(PEERS, slugs), expected_sessions(drawn))]


class _GoesOn(Background):
    """Sends a click of each partition's last user every second, a millisecond after the one before: a session that
    never closes."""

    def __init__(self, bootstrap: str, last_ms: int) -> None:
        super().__init__()
        self._producer, self._last_ms = ordered_producer(bootstrap), last_ms

    def _run(self) -> None:
        while not self._done.wait(1.0):
            self._last_ms += 1
            for number in range(PARTITIONS):
                key, value = last_click(number, self._last_ms)
                self._producer.produce("clicks", value, key, number)
            self._producer.flush(10)


def scattered(load: clicks.ClickLoad) -> clicks.Clicks:
    chance = np.random.default_rng(load.seed)
    users, pages = (chance.integers(0, most, load.clicks) for most in (load.users, clicks.PAGES))
    sent = clicks.FIRST_CLICK_MS + np.arange(load.clicks) * 1000 // load.per_second
    return clicks.Clicks(users, pages, sent - chance.integers(0, load.disorder_ms, load.clicks))


def keyed(part: clicks.Clicks, number: int, everything: clicks.Clicks) -> list[tuple[bytes, bytes]]:
    """Return the records of a partition by user, and the last one, which closes all sessions before it."""
    keys = [b"u%06d" % user for user in part.user.tolist()]
    last = last_click(number, everything.ts.max() + _LAST_AFTER_MS)
    return [*zip(keys, clicks.records(part), strict=True), last]


def last_click(partition: int, ts: int) -> tuple[bytes, bytes]:
    """Key and record."""
    return b"end%d" % partition, b'{"user_id":"end%d","page":"/","ts":%d}' % (partition, ts)


def expected_sessions(drawn: clicks.Clicks) -> pl.DataFrame:
    """Without the last click of each partition."""
    rows = pl.DataFrame({"user": drawn.user, "page": drawn.page, "ts": drawn.ts}).sort("user", "ts")
    begins = (pl.col("user").diff() != 0) | (pl.col("ts").diff() > GAP_S * 1000)
    names = rows.with_columns(session=begins.fill_null(True).cum_sum(), page="/p" + pl.col("page").cast(pl.String))
    sessions = names.group_by("session").agg(
        user_id="u" + pl.col("user").first().cast(pl.String).str.zfill(6),
        events=pl.len().cast(pl.Int64),
        page=pl.col("page").min(),
    )
    return sessions.select(*ROW)


def _joinery_peer(ground: Ground, slug: str, *, name: str, setup: joinery_jobs.Setup = joinery_jobs.BY_DEFAULT) -> Peer:
    spec = {
        "input": joinery_jobs.kafka_input("clicks", ground.bootstrap),
        "groupBy": ["user_id"],
        "gap": f"{GAP_S}s",
        "maxDuration": "24h",
        "aggregates": [{"function": "count", "as": "events"}, {"function": "min", "column": "page", "as": "page"}],
    }
    return joinery_jobs.compared("SessionWindow", name, spec, ground, slug, setup)


def _spark_candidate(ground: Ground, slug: str, *, release: Callable[[], spark_peer.Spark]) -> Peer:
    settings = {"bootstrap": ground.bootstrap, "topic": slug, "gap_s": GAP_S, "per_batch": ground.batch_rows(1)}
    return spark_peer.peer(release(), "sessions", settings, ground.folder(slug))


def _flink_candidate(ground: Ground, slug: str, *, setup: flink_peer.Setup) -> Peer:
    statements = [
        flink_peer.input_table("clicks", ground.bootstrap, "user_id STRING, page STRING"),
        flink_peer.output_table(slug, ground.bootstrap, "user_id STRING, events BIGINT, page STRING", setup),
        f"""INSERT INTO joined SELECT user_id, COUNT(*), MIN(page) FROM TABLE(
              SESSION(TABLE clicks PARTITION BY user_id, DESCRIPTOR(event_time), INTERVAL '{GAP_S}' SECOND))
            GROUP BY user_id, window_start, window_end""",
    ]
    return flink_peer.peer(setup, statements, ground.folder(slug))


def _streams_candidate(ground: Ground, slug: str, *, setup: streams_peer.Setup) -> Peer:
    window = GAP_S * 1000
    return streams_peer.peer(setup, "sessions", ground.bootstrap, slug, window, ground.folder(slug))


PEERS: Candidates = {
    **joinery_jobs.with_and_without_spark(
        {
            "files": partial(_joinery_peer, name="into files"),
            "exactly-once": partial(_joinery_peer, name="into Kafka exactly once"),
        }
    ),
    "spark": partial(_spark_candidate, release=spark_peer.current),
    "spark-previous": partial(_spark_candidate, release=spark_peer.previous),
    "flink-heap": partial(_flink_candidate, setup=flink_peer.HEAP),
    "flink-rocksdb": partial(_flink_candidate, setup=flink_peer.ROCKSDB),
    "streams-at-least-once": partial(_streams_candidate, setup=streams_peer.AT_LEAST_ONCE),
    "streams-exactly-once": partial(_streams_candidate, setup=streams_peer.EXACTLY_ONCE),
}
