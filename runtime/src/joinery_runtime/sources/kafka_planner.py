"""The driver half of the Kafka source: which partitions a topic has and how far each can be read now."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec, TopicMetadata

from joinery_runtime.errors import DataLoss, SourceError
from joinery_runtime.job.inputs import AtOffsets, AtTimestamp, KafkaInput
from joinery_runtime.sources.base import Bounds, PartitionRef, Range
from joinery_runtime.sources.kafka_client import UNANSWERED, Cluster, LastError, callbacks, connect, consumer_settings

_ANSWER_SECONDS = 15.0  # how long a broker may take to answer
_METADATA_SECONDS = 30.0  # how often new partitions are looked for


@dataclass(frozen=True, slots=True)
class _Extent:
    """The offsets that the broker has of a partition: `earliest <= offset < stable`."""

    earliest: int
    stable: int


class KafkaPlanner:
    """Bounds are fresh at every call; what `latest` and a timestamp mean is fixed when a partition is first seen."""

    def __init__(self, name: str, kafka: KafkaInput) -> None:
        self._kafka = kafka
        self._cluster = Cluster(name, kafka.topic, kafka.bootstrap_servers, kafka.properties)
        self._errors = LastError()
        self._consumer = connect(Consumer, consumer_settings(self._cluster, self._errors), self._cluster)
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        self._admin = connect(AdminClient, {**kafka.properties, **servers, **callbacks(self._errors)}, self._cluster)
        self._partitions: list[int] = []
        self._looked_at = float("-inf")
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def bounds(self, positions: Mapping[PartitionRef, int]) -> list[Bounds]:
        known = [ref.partition for ref in positions if ref == self._ref(ref.partition)]
        partitions = sorted({*self._current_partitions(), *known})
        extents = self._extents(partitions)
        stored = {number: positions.get(self._ref(number)) for number in partitions}
        fresh = [number for number in partitions if stored[number] is None and number not in self._starts]
        # A partition that was added to a topic we read already holds records that nobody has seen.
        self._starts |= {n: extents[n].earliest for n in fresh} if known else self._first_offsets(fresh, extents)
        self._ends |= self._stops([number for number in partitions if number not in self._ends], extents)
        return [self._bounds(number, stored[number], extents[number]) for number in partitions]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def close(self) -> None:
        self._consumer.close()

    def _ref(self, number: int) -> PartitionRef:
        return PartitionRef(self._cluster.input, self._cluster.topic, number)

    def _bounds(self, number: int, stored: int | None, extent: _Extent) -> Bounds:
        start = stored if stored is not None else self._starts[number]
        lost = 0
        if not extent.earliest <= start <= extent.stable:
            start, lost = self._after_loss(number, start, extent)
        stop = self._ends.get(number)
        if stop is None:
            return Bounds(self._ref(number), start, extent.stable, lost=lost)
        end = max(start, min(stop, extent.stable))
        return Bounds(self._ref(number), start, end, final=stop <= max(extent.stable, start), lost=lost)

    def _after_loss(self, number: int, position: int, extent: _Extent) -> tuple[int, int]:
        lost = max(0, extent.earliest - position)
        if self._kafka.on_data_loss == "continue":
            return extent.earliest, lost
        gone = f"{lost} record(s) are gone" if lost else "it ends before that: the topic was recreated or truncated"
        raise DataLoss(
            f"Input {self._cluster.input}: {self._cluster.topic}-{number} cannot be read from offset {position}",
            facts=f"the broker has offsets {extent.earliest} to {extent.stable} (exclusive), {gone} ({self._cluster})",
            todo="Set onDataLoss: continue to go on at the earliest offset, or start the job with new state",
        )

    def _current_partitions(self) -> list[int]:
        if time.monotonic() - self._looked_at < _METADATA_SECONDS:
            return self._partitions
        topic = self._look_up()
        if topic.error is not None:
            raise self._cluster.failure(topic.error, "looking the topic up")
        self._partitions, self._looked_at = sorted(topic.partitions), time.monotonic()
        return self._partitions

    def _look_up(self) -> TopicMetadata:
        """Asks in short turns: a refused login is reported between them, and needs no patience."""
        self._errors.forget()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                found = self._consumer.list_topics(self._cluster.topic, timeout=min(1.0, _ANSWER_SECONDS))
                return found.topics[self._cluster.topic]
            except KafkaException as error:
                self._consumer.poll(0)
                if self._errors.denied is not None or time.monotonic() >= deadline:
                    raise self._unanswered(error) from error

    def _unanswered(self, error: KafkaException) -> SourceError:
        if self._errors.denied is not None:
            return self._cluster.failure(self._errors.denied, "connecting")
        if error.args[0].code() not in UNANSWERED:
            return self._cluster.failure(error, "asking for offsets")
        return self._cluster.problem(
            "the Kafka broker does not answer",
            f"waited {_ANSWER_SECONDS:.0f} s; {self._errors}",
            "Check bootstrapServers and that the broker runs and can be reached from here",
        )

    def _extents(self, partitions: Sequence[int]) -> dict[int, _Extent]:
        first, last = self._ask(partitions, OffsetSpec.earliest()), self._ask(partitions, OffsetSpec.latest())
        earliest, stable = self._answers(first), self._answers(last)
        return {number: _Extent(earliest[number], stable[number]) for number in partitions}

    def _first_offsets(self, partitions: Sequence[int], extents: Mapping[int, _Extent]) -> dict[int, int]:
        start = self._kafka.start_from
        if isinstance(start, AtTimestamp):
            found = self._answers(self._ask(partitions, OffsetSpec.for_timestamp(start.timestamp)))
            return {number: found[number] if found[number] >= 0 else extents[number].stable for number in partitions}
        if isinstance(start, AtOffsets):
            return {number: start.offsets.get(number, extents[number].earliest) for number in partitions}
        at_end = start == "latest"
        return {number: extents[number].stable if at_end else extents[number].earliest for number in partitions}

    def _stops(self, partitions: Sequence[int], extents: Mapping[int, _Extent]) -> dict[int, int]:
        stop = self._kafka.stop_at
        if stop is None:
            return {}
        if isinstance(stop, AtOffsets):
            return {number: stop.offsets.get(number, extents[number].stable) for number in partitions}
        if stop == "latest":
            return {number: extents[number].stable for number in partitions}
        found = self._answers(self._ask(partitions, OffsetSpec.for_timestamp(stop.timestamp)))
        # Without such a record the end is known only once that time has passed.
        passed = stop.timestamp <= time.time() * 1000
        known = [number for number in partitions if found[number] >= 0 or passed]
        return {number: found[number] if found[number] >= 0 else extents[number].stable for number in known}

    def _ask(self, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, Future[ListOffsetsResultInfo]]:
        """One request for all partitions (with none the client raises); offsets are those of committed records."""
        if not partitions:
            return {}
        wanted = {TopicPartition(self._cluster.topic, number): spec for number in partitions}
        asked = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_SECONDS
        )
        return {key.partition: answer for key, answer in asked.items()}

    def _answers(self, asked: Mapping[int, Future[ListOffsetsResultInfo]]) -> dict[int, int]:
        try:
            return {number: int(answer.result().offset) for number, answer in asked.items()}
        except KafkaException as error:
            raise self._unanswered(error) from error
