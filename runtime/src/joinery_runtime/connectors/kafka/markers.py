"""Markers say which epoch of a shard is in the output topic. A marker is written in one transaction with the rows.

A marker is an offset committed on the topic's partition 0 by a consumer group of its own. The offset is the epoch, and
the metadata names the job. Nobody ever joins these groups. Brokers drop committed offsets after
`offsets.retention.minutes` (7 days by default), and when the topic is deleted.

A driver signs the topic in the same way, with its generation and the job's state store. So jobs of one name with
different stores notice each other. Their markers are in groups of different names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource

from joinery_runtime.connectors.kafka.errors import LastError, is_unavailable
from joinery_runtime.connectors.kafka.target import ANSWER_SECONDS, KafkaTarget, repeat_call
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.errors import SinkError

_PARTITION = 0
_UNKNOWN_RETENTION_MS = 24 * 3_600_000  # assumed if the brokers do not say; Kafka's default until 2.0
_CALL_SECONDS = 5.0  # for one call, which is repeated until the time is up
_THREADS = 16
# By default the client looks for a group's coordinator twice a second. With these, a marker takes 5 to 30 ms, not 60.
_IMPATIENT = {"coordinator.query.interval.ms": 10, "reconnect.backoff.ms": 10, "retry.backoff.ms": 10}
# The broker answers only when no transaction that writes the offset is open or ending.
_STABLE = "read_committed"


@dataclass(frozen=True, slots=True)
class EpochMarker:
    """Says that the rows of `epoch` are in the topic. `incarnation` is that of the job, `generation` that of the
    driver that planned the attempt. `row_limit`: larger rows were left out, because the brokers rejected them (None:
    the job and the plan say which rows were too large)."""

    epoch: int
    incarnation: str
    generation: int
    row_limit: int | None = None

    def committed(self, topic: str) -> TopicPartition:
        """Return the marker as the offset to commit."""
        metadata: dict[str, str | int] = {"lineage": self.incarnation, "generation": self.generation}
        if self.row_limit is not None:
            metadata["row_limit"] = self.row_limit
        return TopicPartition(topic, _PARTITION, self.epoch, metadata=json.dumps(metadata))

    @classmethod
    def parse(cls, committed: TopicPartition) -> EpochMarker | None:
        """Parse a committed offset. None if there is no marker, or if somebody else used the group's name."""
        try:
            metadata = json.loads(committed.metadata or "")
            return cls(committed.offset, metadata["lineage"], metadata["generation"], metadata.get("row_limit"))
        except (ValueError, KeyError, TypeError):
            return None


class EpochMarkerReader:
    """Reads the markers of a topic. Keeps no connection, because only attempts that are not the first read a marker.

    The admin client could read all groups over one connection. But if a group's coordinator is moving or loading, the
    answer crashes the process with a null pointer (librdkafka 2.16, ListConsumerGroupOffsets).
    """

    def __init__(self, target: KafkaTarget) -> None:
        self._target, self._errors = target, LastError()

    def read(self, groups: Sequence[str]) -> list[EpochMarker | None]:
        """Read the newest marker of each group. Waits for the outcome of a transaction that is writing one. Raises
        SinkError."""
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(self.newest, groups))

    def newest(self, group: str) -> EpochMarker | None:
        """Read the newest marker of one group, as `read` does."""
        try:
            return EpochMarker.parse(self._ask_group(group, ANSWER_SECONDS))
        except KafkaException as error:
            raise self._sink_error(group, error.args[0]) from error

    def signed(self, group: str) -> StoreIdentity | None:
        """Return the store of the driver that last signed the topic in this group."""
        try:
            return StoreIdentity.parse(self._ask_group(group, ANSWER_SECONDS).metadata)
        except KafkaException as error:
            raise self._sink_error(group, error.args[0]) from error

    def sign(self, group: str, generation: int, store: StoreIdentity) -> None:
        """Sign the topic in this group."""
        signature = TopicPartition(self._target.topic, _PARTITION, generation, metadata=store.metadata())
        try:
            with self._open_consumer(group) as consumer:
                repeat_call(
                    lambda: consumer.commit(offsets=[signature], asynchronous=False), is_unavailable, ANSWER_SECONDS
                )
        except KafkaException as error:
            raise self._sink_error(group, error.args[0]) from error

    def may_read(self, group: str) -> None:
        """Raise SinkError if the group's marker cannot be read. Does not wait for transactions."""
        try:
            self._ask_group(group, ANSWER_SECONDS, isolation="read_uncommitted")
        except KafkaException as error:
            raise self._sink_error(group, error.args[0]) from error

    def newest_within(self, group: str, seconds: float) -> EpochMarker | None:
        """Read the newest marker of one group. None also if a transaction that writes one is still open when the time
        is up."""
        try:
            return EpochMarker.parse(self._ask_group(group, seconds))
        except KafkaException as error:
            if is_unavailable(error.args[0]):
                return None
            raise self._sink_error(group, error.args[0]) from error

    def _ask_group(self, group: str, seconds: float, isolation: str = _STABLE) -> TopicPartition:
        offsets: list[TopicPartition] = []
        with self._open_consumer(group, isolation) as consumer:
            call = min(_CALL_SECONDS, seconds)
            repeat_call(
                lambda: offsets.extend(_read_committed(consumer, self._target.topic, call)), is_unavailable, seconds
            )
        return offsets[0]

    @contextmanager
    def _open_consumer(self, group: str, isolation: str = _STABLE) -> Iterator[Consumer]:
        own = {"group.id": group, "isolation.level": isolation, "enable.auto.commit": False}
        settings = {**self._target.client_settings(_IMPATIENT), **own}
        consumer = self._target.connect(Consumer, settings, self._errors)
        try:
            yield consumer
        finally:
            consumer.close()

    def retention_ms(self) -> int:
        """For how long the brokers keep a marker at least. A cautious guess if they do not say."""
        try:
            admin: Any = self._target.admin(self._errors)
            brokers = admin.list_topics(timeout=ANSWER_SECONDS).brokers
            resources = [ConfigResource(ConfigResource.Type.BROKER, str(number)) for number in brokers]
            answers = admin.describe_configs(resources, request_timeout=ANSWER_SECONDS).values()
            return min(int(answer.result()["offsets.retention.minutes"].value) for answer in answers) * 60_000
        except (KafkaException, KeyError, ValueError):
            return _UNKNOWN_RETENTION_MS

    def require_topic(self, schema: pa.Schema) -> None:
        """Raise SinkError if the topic does not exist, or cannot take rows of the schema."""
        self._target.require(schema, self._target.admin(self._errors), self._errors)

    def _sink_error(self, group: str, error: KafkaError) -> SinkError:
        return self._target.failure(
            error,
            self._errors,
            "it is not known which epochs were written",
            f"reading the committed offset of group {group}: {error.str()}",
            "Check that this user may describe and read the group",
        )


def _read_committed(consumer: Consumer, topic: str, seconds: float) -> list[TopicPartition]:
    offsets: list[TopicPartition] = consumer.committed([TopicPartition(topic, _PARTITION)], timeout=seconds)
    if offsets[0].error is not None:
        raise KafkaException(offsets[0].error)
    return offsets
