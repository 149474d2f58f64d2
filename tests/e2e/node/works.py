"""What a job on the cluster is about, by kind: its file, the records that arrive, and what must come out of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from ruamel.yaml import YAML

from e2e.kill_harness import INPUTS, Feeder, Job, dead_letter_rows, judge, topic_rows
from e2e.node import clicks
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer
from joinery_runtime.job import load_job

Manifest = dict[str, Any]
Log = list[dict[str, Any]]
STORE_SCHEMA = "joinery"


class Work(ABC):
    """`name` is the job's, and the beginning of its topics' names."""

    def __init__(self, name: str, broker: KafkaAdmin, dsn: str) -> None:
        self.name, self.bootstrap, self.dsn = name, broker.bootstrap, dsn
        for topic, partitions in {**self.inputs, **self.outputs}.items():
            broker.create_topic(topic, partitions)

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, int]:
        """Partitions by topic."""

    @property
    @abstractmethod
    def outputs(self) -> Mapping[str, int]:
        """Likewise."""

    @abstractmethod
    def feeder(self) -> Feeder: ...

    @abstractmethod
    def manifest(self, folder: Path) -> Manifest: ...

    @abstractmethod
    def judge(self, manifest: Manifest, log: Log, folder: Path) -> None:
        """Fails if what has come out is not what it must be. All records have been read."""

    def ends(self) -> dict[tuple[str, int], int]:
        """Last stable offsets of the inputs' partitions."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "ends", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        try:
            return {
                (topic, number): consumer.get_watermark_offsets(TopicPartition(topic, number), 60)[1]
                for topic, partitions in self.inputs.items()
                for number in range(partitions)
            }
        finally:
            consumer.close()


class Pairs(Work):
    """A StreamJoin of two topics into a third: every pair exactly once."""

    @property
    def _job(self) -> Job:
        return Job(self.name, self.bootstrap, self.dsn, STORE_SCHEMA)

    @property
    def inputs(self) -> Mapping[str, int]:
        return {f"{self.name}.{name}": partitions for name, partitions in INPUTS.items()}

    @property
    def outputs(self) -> Mapping[str, int]:
        return {topic: number for topic, number in self._job.topics().items() if topic not in self.inputs}

    def feeder(self) -> Feeder:
        return Feeder(self.bootstrap, self.name, seed=5)

    def manifest(self, folder: Path) -> Manifest:
        manifest: Manifest = YAML(typ="safe").load(self._job.write(folder / f"{self.name}.yaml").read_text())
        return manifest

    def judge(self, manifest: Manifest, log: Log, folder: Path) -> None:
        path = folder / f"{self.name}-now.yaml"
        text = StringIO()
        YAML().dump({**manifest, "metadata": {"name": self.name}}, text)
        path.write_text(text.getvalue())
        spec = manifest["spec"]
        out = topic_rows(self.bootstrap, spec["output"]["kafka"]["topic"])
        dead = dead_letter_rows(self.bootstrap, spec["deadLetter"]["kafka"]["topic"])
        assert judge(load_job(path), self.bootstrap, log, out, dead).ok


class MovingPairs(Pairs):
    """Pairs whose output and dead letters may go to two more topics."""

    @property
    def outputs(self) -> Mapping[str, int]:
        return {**super().outputs, f"{self.name}.out2": 2, f"{self.name}.dead2": 1}


class Backlog(Pairs):
    """Pairs that are there before the job runs, a millisecond of event time apart."""

    def fill(self, pairs: int) -> None:
        """Produces that many orders, each with a payment some seconds of event time later."""
        producer = ordered_producer(self.bootstrap, {"linger.ms": 50, "compression.type": "lz4"})
        first_ts = 1_760_000_000_000
        for number in range(pairs):
            order = f'{{"id": "o{number}", "amount": {number}, "ts": {first_ts + number}}}'
            paid_ts = first_ts + number + number % 5_000
            payment = f'{{"order": "o{number}", "paid": {number}, "ts": {paid_ts}}}'
            for topic, value in (("orders", order), ("payments", payment)):
                self._produce(producer, topic, value, number)
        producer.flush()

    def _produce(self, producer: Producer, topic: str, value: str, number: int) -> None:
        """Waits while the producer's queue is full."""
        while True:
            try:
                producer.produce(f"{self.name}.{topic}", value, partition=number % INPUTS[topic])
            except BufferError:
                producer.poll(0.1)
            else:
                return


class Sessions(Work):
    """A SessionWindow of one topic into a table of the store's database: each session once, as its rows make it."""

    @property
    def inputs(self) -> Mapping[str, int]:
        return {f"{self.name}.clicks": clicks.PARTITIONS}

    @property
    def outputs(self) -> Mapping[str, int]:
        return {f"{self.name}.broken": 1}

    @property
    def table(self) -> str:
        return f"{self.name}_sessions"

    def feeder(self) -> Feeder:
        return clicks.Clicks(self.bootstrap, self.name, seed=5)

    def manifest(self, folder: Path) -> Manifest:
        return clicks.manifest(self.name, self.bootstrap, self.dsn, STORE_SCHEMA, self.table)

    def judge(self, manifest: Manifest, log: Log, folder: Path) -> None:
        clicks.judge(self.bootstrap, self.name, self.dsn, self.table)
