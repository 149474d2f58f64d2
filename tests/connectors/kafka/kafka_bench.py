"""What the tests of the Kafka source share: inputs, plain clients, and waiting for a group on conditions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from joinery_devkit.topics import ordered_producer
from joinery_runtime.connectors.inputs import planner_for
from joinery_runtime.connectors.source import Bounds, SourcePlanner, StoredOffsets
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job import Input
from stores import STORE

PATIENCE_SECONDS = 120.0
# Metadata is looked for often, so that tests need not wait for what a user would not mind waiting for.
EAGER = {"topic.metadata.refresh.interval.ms": "200", "heartbeat.interval.ms": "200"}
COOPERATIVE = {**EAGER, "partition.assignment.strategy": "cooperative-sticky"}

_numbers = (f"{os.getpid()}-{number}" for number in count())
Found = TypeVar("Found")


def unique(prefix: str) -> str:
    """A name that no other test of this run has."""
    return f"{prefix}-{next(_numbers)}"


def kafka_input(bootstrap: str, topic: str | None = None, **kafka: Any) -> Input:
    source = {"bootstrapServers": bootstrap, **({"topic": topic} if topic is not None else {}), **kafka}
    schema = [{"name": "ts", "type": "timestamp"}]
    return Input.model_validate({"name": "in", "kafka": source, "format": "json", "schema": schema, "eventTime": "ts"})


def ref(topic: str, partition: int = 0) -> PartitionRef:
    return PartitionRef("in", topic, partition)


def eventually(what: Callable[[], Found], *, seconds: float = PATIENCE_SECONDS) -> Found:
    """The first result that is true."""
    deadline = time.monotonic() + seconds
    while True:
        result = what()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


@contextmanager
def planning(model: Input, job: str | None = None) -> Iterator[SourcePlanner]:
    planner = planner_for(model, job or unique("job"), STORE)
    try:
        yield planner
    finally:
        planner.close()


def joined(planner: SourcePlanner, stored_offsets: StoredOffsets | None = None) -> list[Bounds]:
    """The planner's bounds as soon as it has all partitions."""

    def all_held() -> list[Bounds]:
        bounds = planner.bounds(stored_offsets or StoredOffsets())
        return bounds if all(bound.is_assigned for bound in bounds) else []

    return eventually(all_held)


def bounds_of(model: Input, offsets: dict[PartitionRef, int] | None = None) -> list[Bounds]:
    with planning(model) as planner:
        return plain(joined(planner, StoredOffsets(offsets or {})))


def plain(bounds: Sequence[Bounds]) -> list[Bounds]:
    """Without the topics' ids, which differ from run to run."""
    return [replace(bound, topic_id="") for bound in bounds]


def assigned_partitions(planner: SourcePlanner, stored_offsets: StoredOffsets | None = None) -> set[int]:
    """Numbers of the partitions that are the planner's now."""
    return {
        bound.partition.partition for bound in planner.bounds(stored_offsets or StoredOffsets()) if bound.is_assigned
    }


def send(bootstrap: str, topic: str, values: Sequence[bytes | None], partition: int = 0, timestamp: int = 1) -> None:
    producer, refused = ordered_producer(bootstrap, {"linger.ms": 0}), list[Any]()
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            timestamp=timestamp,
            on_delivery=lambda error, _: error and refused.append(error),
        )
    assert producer.flush(30) == 0
    assert refused == []


def published(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Offsets per partition that the group has been told, as lag tools read them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    topic_partitions = answer.result(PATIENCE_SECONDS).topic_partitions
    return {
        topic_partition.partition: topic_partition.offset
        for topic_partition in topic_partitions
        if topic_partition.topic == topic
    }


class PlainMember:
    """Somebody else's consumer in the group; it acts only while `until` polls it."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], **settings: str) -> None:
        base = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
        self.consumer: Any = Consumer({**base, "auto.offset.reset": "earliest", **settings})
        self.consumer.subscribe(list(topics))

    def until(self, condition: Callable[[], Found]) -> Found:
        def poll() -> Found:
            self.consumer.poll(0.02)
            return condition()

        return eventually(poll)

    @property
    def partitions(self) -> set[int]:
        return {topic_partition.partition for topic_partition in self.consumer.assignment()}

    def assigned_offsets(self) -> list[TopicPartition]:
        return list(self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()
