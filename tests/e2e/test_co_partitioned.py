"""Co-partitioned topics on Spark: peers exchange no rows, pairs are complete, and a record that is in another partition
than its key's is told by its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Ended
from e2e.jobs import fresh_name, json_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.spark_cluster import StandaloneCluster
from joinery_devkit.topics import ordered_producer

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: "{name}"}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.orders, stopAt: latest}}
      format: json
      schema: [{{name: id, type: int64}}, {{name: note, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 1h}}
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.payments, stopAt: latest}}
      format: json
      schema: [{{name: order, type: int64}}, {{name: paid, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 1h}}
  joins:
    - right: payments
      keys: {{orders.id: payments.order}}
      interval: {{of: orders, lower: 0s, upper: 1h}}
      {flag}
  select: [{{column: orders.id}}, {{column: orders.note}}, {{column: payments.paid}}]
  output: {{file: {{path: {out}}}}}
  {dead}
  stateStore: {store}
  trigger: {{maxRecordsPerEpoch: {epoch}}}
  shards: {shards}
  spark: {{conf: {conf}}}
"""
PARTITIONS = {"orders": 4, "payments": 8}  # one is a multiple of the other
CO_PARTITIONED = "coPartitioned: true"
TWO_PEERS = "local[16,4]"


@dataclass(frozen=True)
class Topics:
    """`orders` of each number and a payment of it, keyed by the number's text; those of `misplaced` numbers are orders
    that stand in the partition after theirs."""

    name: str
    bootstrap: str
    positions: Mapping[int, tuple[int, int]]  # partition and offset of each order

    def job(
        self,
        folder: Path,
        flag: str,
        *,
        epoch: int = 100_000,
        dead: bool = True,
        shards: int = 8,
        store: str = "{memory: {}}",
        **conf: str,
    ) -> Path:
        log = folder / "events"
        log.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": log.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            **conf,
        }
        text = JOB.format(
            name=self.name, bootstrap=self.bootstrap, flag=flag, out=folder / "out", epoch=epoch, shards=shards,
            dead=f"deadLetter: {{file: {{path: {folder / 'dead'}}}}}" if dead else "", conf=json.dumps(settings),
            store=store,
        )  # fmt: skip
        path = folder / "job.yaml"
        path.write_text(text)
        return path


def produced(broker: KafkaAdmin, orders: int, misplaced: tuple[int, ...] = ()) -> Topics:
    """As a Java client would."""
    name, positions = fresh_name(), dict[int, tuple[int, int]]()
    for topic, count in PARTITIONS.items():
        broker.create_topic(f"{name}.{topic}", count)
    conf = {"partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000}
    producer = ordered_producer(broker.bootstrap, conf)

    def arrived(error: Any, message: Any) -> None:
        assert error is None
        if message.topic().endswith(".orders"):
            positions[int(message.key())] = (message.partition(), message.offset())

    def send(topic: str, key: int, row: dict[str, Any], **where: int) -> None:
        value = json.dumps({**row, "ts": 1_000 + key}).encode()
        producer.produce(f"{name}.{topic}", value, str(key).encode(), on_delivery=arrived, **where)
        producer.poll(0)

    for number in range(orders):
        send("orders", number, {"id": number, "note": f"note of order {number}"})
        send("payments", number, {"order": number, "paid": 10 * number})
    assert producer.flush(60) == 0
    right = dict(positions)
    for number in misplaced:
        row = {"id": number, "note": "misplaced"}
        send("orders", number, row, partition=(right[number][0] + 1) % PARTITIONS["orders"])
    assert producer.flush(60) == 0
    return Topics(name, broker.bootstrap, {number: positions[number] for number in misplaced})


def shuffled(folder: Path) -> int:
    """Bytes that tasks have written for tasks of other processes, without those of Spark's first epoch, in which
    executors exchange rows: its inputs are judged (`engine.null_keys`)."""
    (log,) = (folder / "events").iterdir()
    events = list(map(json.loads, log.read_text().splitlines()))
    epochs: dict[int, int] = {}  # by stage
    for event in events:
        if event["Event"] == "SparkListenerJobStart":
            named = re.search(r" epoch (\d+)$", event["Properties"]["spark.jobGroup.id"])
            epochs |= dict.fromkeys(event["Stage IDs"], int(named[1])) if named else {}
    later = {stage for stage, epoch in epochs.items() if epoch > min(epochs.values())}
    ended = [event for event in events if event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in later]
    assert ended
    return sum(event["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"] for event in ended)


def pairs(folder: Path) -> list[tuple[int, str, int]]:
    return sorted((row["id"], row["note"], row["paid"]) for row in json_rows(folder / "out"))


def expected(orders: int) -> list[tuple[int, str, int]]:
    return [(number, f"note of order {number}", 10 * number) for number in range(orders)]


def run(path: Path, master: str = TWO_PEERS, environment: Mapping[str, str] = os.environ) -> Ended:
    """`joinery run` on a job file."""
    command = [str(Path(sys.executable).with_name("joinery")), "run", str(path), "--master", master]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.services
def test_misplaced_records_are_told_by_their_places_and_all_other_pairs_are_complete(
    kafka_broker: KafkaAdmin, tmp_path: Path
) -> None:
    topics = produced(kafka_broker, 120, misplaced=(17, 93))
    ended = run(topics.job(tmp_path, CO_PARTITIONED, epoch=120))
    assert ended.code == 0, ended.err
    assert pairs(tmp_path) == expected(120)
    dead = {(row["topic"], row["partition"], row["offset"]): row["reason"] for row in json_rows(tmp_path / "dead")}
    assert dead.keys() == {(f"{topics.name}.orders", *position) for position in topics.positions.values()}
    assert all(
        "not in the partition of its key: coPartitioned and partitioner murmur2" in text for text in dead.values()
    )


@pytest.mark.services
def test_with_shards_that_do_not_fit_rows_are_exchanged_and_pairs_are_complete(
    kafka_broker: KafkaAdmin, tmp_path: Path
) -> None:
    count = 8_000  # three epochs: keys are judged in the first one, and a small one exchanges nothing
    topics = produced(kafka_broker, count)
    ended = run(topics.job(tmp_path, CO_PARTITIONED, epoch=6_000, shards=3))
    assert ended.code == 0, ended.err
    assert ended.out.count("executors exchange rows all the same. 3 shards and 4 partitions have 1 as their") == 1
    assert pairs(tmp_path) == expected(count)


@pytest.mark.services
def test_topics_that_another_partitioner_has_filled_are_refused(kafka_broker: KafkaAdmin, tmp_path: Path) -> None:
    topics = produced(kafka_broker, 20)
    ended = run(topics.job(tmp_path, f"{CO_PARTITIONED}\n      partitioner: crc32", dead=False))
    assert ended.code == 1
    assert re.search(rf"{topics.name}\.(orders|payments)/\d offset \d+: not in the partition of its key", ended.err)
    assert "partitioner crc32 put" in ended.err
    assert pairs(tmp_path) == []


@pytest.mark.services
@pytest.mark.slow
def test_two_executors_exchange_no_rows(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> None:
    """Of 48 bytes a record without the flag, nothing is left: reports go to the driver (decision 119)."""
    orders = 20_000
    topics = produced(kafka_broker, orders)
    with StandaloneCluster(workers=2) as cluster:
        conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        store = json.dumps({"postgres": {"dsn": postgres_dsn, "schema": topics.name.replace("-", "_")}})
        job = topics.job(tmp_path, CO_PARTITIONED, epoch=16_000, store=store, **conf)
        ended = run(job, cluster.master_url, cluster.environment)
    assert ended.code == 0, ended.err
    assert pairs(tmp_path) == expected(orders)
    assert shuffled(tmp_path) == 0
