"""The task half of the Kafka source: exactly the records of planned ranges, with a client that reads ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from joinery_runtime.errors import DataLoss
from joinery_runtime.job.model.inputs import KafkaInput
from joinery_runtime.kafka_errors import is_away
from joinery_runtime.sources.base import PartitionRef, Range, RawBatch
from joinery_runtime.sources.kafka_client import Cluster, LoggedErrors, connect, consumer_settings

_SMALL_RECORD = 1_024  # bytes
_BATCH = 10_000  # records that one call takes from the client
_AHEAD_BYTES = 64 << 20  # of records that were taken from the client and are not asked for yet
_OUTGROWN = 4  # times more partitions than a consumer was made for need another one
_POLL_SECONDS = 0.05
_STALLED_SECONDS = 30.0  # a planned record that has not come by then is an error
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}

Planned = dict[PartitionRef, Range]  # what is still to be read


@dataclass(slots=True)
class _Partition:
    """What is known of a partition that this process reads: `seen`, offsets below it will not come any more;
    `position`, where the next range is expected to start, -1 while one is read; `assigned`, whether the consumer
    fetches it. `ahead` are batches that were fetched and are not asked for, with the bytes that each keeps in memory;
    `lost` counts offsets that were skipped and not yet told of."""

    seen: int
    position: int = -1
    assigned: bool = False
    ahead: list[tuple[RawBatch, int]] = field(default_factory=list)
    lost: int = 0

    @property
    def ahead_bytes(self) -> int:
        return sum(size for _, size in self.ahead)


class KafkaReader:
    """One consumer for all partitions of an input that this process reads. Records are handed out as they come, so that
    no partition waits for another one; what comes beyond the planned ranges is kept for the next call, up to
    `_AHEAD_BYTES`. `keyed`: batches have the records' keys too."""

    def __init__(self, name: str, kafka: KafkaInput, *, keyed: bool = False) -> None:
        self._cluster, self._keyed = Cluster.of(name, kafka), keyed
        self._skip = kafka.on_data_loss == "continue"
        self._errors = LoggedErrors()
        self._consumer: Any = None
        self._made_for = 0  # partitions
        self._partitions: dict[PartitionRef, _Partition] = {}

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        waiting = {each.partition: each for each in planned if each.start < each.end_exclusive}
        self._prepare(waiting)
        yield from self._hand_out(waiting, list(waiting))
        while waiting:
            yield from self._hand_out(waiting, self._fetch(waiting))
            self._limit_ahead(waiting, {each.partition for each in planned})

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._partitions = None, {}

    # --- which partitions are fetched ---------------------------------------------------------------------------------

    def _prepare(self, waiting: Planned) -> None:
        """Has the consumer fetch these from where they begin, or from where what is kept of them ends."""
        known = {ref: self._partitions[ref] for ref in waiting if ref in self._partitions}
        moved = [ref for ref, partition in known.items() if partition.position != waiting[ref].start]
        if moved:
            # Another process has read them meanwhile, and most likely the rest of what this one had too.
            self._forget([*moved, *(ref for ref in self._partitions if ref not in waiting)])
        for ref, planned in waiting.items():
            partition = self._partitions.setdefault(ref, _Partition(planned.start))
            # Until a range has been read whole, what was handed out of it cannot be read again without a seek.
            partition.position = -1
        if self._consumer is None or len(self._partitions) > _OUTGROWN * self._made_for:
            self._connect(len(self._partitions))
        self._assign(ref for ref, planned in waiting.items() if self._partitions[ref].seen < planned.end_exclusive)

    def _connect(self, partitions: int) -> None:
        if self._consumer is not None:
            self._consumer.close()
        for partition in self._partitions.values():
            partition.assigned = False
        self._consumer = connect(Consumer, consumer_settings(self._cluster, self._errors, partitions), self._cluster)
        self._made_for = partitions

    def _assign(self, refs: Iterable[PartitionRef]) -> None:
        """Those that are not assigned yet, from what has been seen of them."""
        added = [ref for ref in refs if not self._partitions[ref].assigned]
        if added:
            at = [TopicPartition(ref.topic, ref.partition, self._partitions[ref].seen) for ref in added]
            self._consumer.incremental_assign(at)
        for ref in added:
            self._partitions[ref].assigned = True

    def _unassign(self, refs: Iterable[PartitionRef]) -> None:
        removed = [ref for ref in refs if self._partitions[ref].assigned]
        if removed:
            self._consumer.incremental_unassign([TopicPartition(ref.topic, ref.partition) for ref in removed])
        for ref in removed:
            self._partitions[ref].assigned = False

    def _forget(self, refs: Collection[PartitionRef]) -> None:
        self._unassign(refs)
        for ref in refs:
            del self._partitions[ref]

    def _go_on(self, ref: PartitionRef, offset: int) -> None:
        self._unassign([ref])
        self._partitions[ref].seen = offset
        self._assign([ref])

    def _limit_ahead(self, waiting: Planned, planned: Collection[PartitionRef]) -> None:
        """When too much is kept: what was not asked for in this call goes, and what has been read is not fetched
        further before it is asked for."""
        if sum(partition.ahead_bytes for partition in self._partitions.values()) > _AHEAD_BYTES:
            self._forget([ref for ref in self._partitions if ref not in planned])
            self._unassign([ref for ref in self._partitions if ref not in waiting])

    # --- records ------------------------------------------------------------------------------------------------------

    def _hand_out(self, waiting: Planned, refs: Iterable[PartitionRef]) -> Iterator[RawBatch]:
        """What is there of the planned ranges of these partitions; those that have been read whole are not waited for
        any more."""
        for ref in refs:
            if ref not in waiting:
                continue
            partition, end = self._partitions[ref], waiting[ref].end_exclusive
            while partition.ahead:
                batch, size = partition.ahead.pop(0)
                wanted = int(np.searchsorted(batch.offsets, end))
                if wanted < len(batch.offsets):
                    partition.ahead.insert(0, (_without_messages(batch.part(wanted)), size))
                if wanted:
                    yield batch.part(0, wanted)
                if wanted < len(batch.offsets):
                    break
            if partition.lost:
                lost, partition.lost = partition.lost, 0
                yield RawBatch(ref, np.empty(0, np.int64), pa.array([], pa.binary()), self._keys([]), lost=lost)
            if partition.seen >= end:
                partition.position = end
                del waiting[ref]

    def _fetch(self, waiting: Planned) -> list[PartitionRef]:
        """Takes the next records, or the news that there are none up to an offset, from the client. Returns which of
        the waiting partitions got any."""
        deadline = time.monotonic() + _STALLED_SECONDS
        self._errors.forget()
        while time.monotonic() < deadline:
            # Asking for more than is planned would wait for it; offsets with no record still cost one poll.
            missing = sum(max(1, each.end_exclusive - self._partitions[ref].seen) for ref, each in waiting.items())
            messages = self._consumer.consume(min(_BATCH, missing), _POLL_SECONDS)
            if any(map(Message.error, messages)):
                events = [message for message in messages if message.error() is not None]
                messages = [message for message in messages if message.error() is None]
            else:
                events = []
            came = self._take(messages, waiting)
            for event in events:
                self._heed(event, waiting)
            told = [ref for ref, each in waiting.items() if ref in came or self._has_news(ref, each)]
            if told:
                return told
            if self._errors.denied is not None:
                raise self._cluster.failure(self._errors.denied, "reading")
        short = [ref for ref, each in waiting.items() if self._watermarks(ref)[1] < each.end_exclusive]
        for ref in short:
            self._skip_truncated(ref, waiting[ref])
        if short:
            return short
        ref, planned = next(iter(waiting.items()))
        others = f" and of {len(waiting) - 1} other partition(s)" if len(waiting) > 1 else ""
        raise self._cluster.away(
            f"reading partition {_name(ref)} has come to a halt",
            f"offsets {planned.start} to {planned.end_exclusive} (exclusive){others} are planned, no record has come "
            f"for {_STALLED_SECONDS:.0f} s at offset {self._partitions[ref].seen}; {self._errors}",
        )

    def _has_news(self, ref: PartitionRef, planned: Range) -> bool:
        return self._partitions[ref].lost > 0 or self._partitions[ref].seen >= planned.end_exclusive

    def _take(self, messages: Sequence[Message], waiting: Planned) -> set[PartitionRef]:
        """Puts records to what is ahead of their partitions."""
        came: set[PartitionRef] = set()
        for run in self._runs(messages):
            ref = PartitionRef(self._cluster.input, run[0].topic(), run[0].partition())
            partition = self._partitions.get(ref)
            if partition is not None and partition.assigned:  # else it was on its way when the partition was let go
                batch, size = self._batch(ref, run)
                partition.ahead.append((batch if ref in waiting else _without_messages(batch), size))
                partition.seen = run[-1].offset() + 1
                came.add(ref)
        return came

    def _runs(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """Pieces that are of one partition each. A record's topic is only asked for where there are several."""
        if not messages:
            return []
        if len(self._partitions) == 1:
            return [messages]
        changes = np.diff(np.fromiter(map(Message.partition, messages), np.int64, len(messages))) != 0
        if len({ref.topic for ref in self._partitions}) > 1:
            topics = list(map(Message.topic, messages))
            changes |= np.fromiter(map(str.__ne__, topics, topics[1:]), np.bool_, len(messages) - 1)
        cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(messages)]
        return [messages[start:end] for start, end in pairwise(cuts)]

    def _batch(self, ref: PartitionRef, messages: Sequence[Message]) -> tuple[RawBatch, int]:
        """With the bytes that it keeps in memory, also when most of it has been handed out."""
        offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
        values = pa.array(list(map(Message.value, messages)), pa.binary())
        batch = RawBatch(ref, offsets, values, self._keys(messages), _timestamps(messages, values.nbytes))
        return batch, values.nbytes + offsets.nbytes

    def _keys(self, messages: Sequence[Message]) -> pa.BinaryArray | None:
        return pa.array(list(map(Message.key, messages)), pa.binary()) if self._keyed else None

    # --- events -------------------------------------------------------------------------------------------------------

    def _heed(self, event: Message, waiting: Planned) -> None:
        """The news that an end was reached, or an error. An error of a partition that nobody waits for is found again
        when it is read."""
        error, topic = event.error(), event.topic()
        ref = None if topic is None else PartitionRef(self._cluster.input, topic, event.partition())
        if ref is not None and (ref not in self._partitions or not self._partitions[ref].assigned):
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if ref is not None:
                self._partitions[ref].seen = max(self._partitions[ref].seen, event.offset())
        elif is_away(error):
            self._errors(error)
        elif ref is None:
            raise self._cluster.failure(error, "reading")
        elif ref not in waiting:
            self._forget([ref])
        elif error.code() in _GONE:
            self._lose(error, ref, waiting[ref])
        else:
            raise self._cluster.at(ref.topic).failure(error, f"reading partition {_name(ref)}")

    def _lose(self, error: KafkaError, ref: PartitionRef, planned: Range) -> None:
        """Goes on at the earliest offset there is, or at the range's end if that comes first; DataLoss unless the job
        allows it.

        The news may be old, of an offset that was read before the last seek: then nothing of this range is gone.
        """
        partition, cluster = self._partitions[ref], self._cluster.at(ref.topic)
        earliest, latest = self._watermarks(ref)
        if earliest <= partition.seen <= latest:
            self._go_on(ref, partition.seen)
            return
        if not self._skip:
            raise DataLoss(
                f"Input {cluster.input}: records of partition {_name(ref)} are gone",
                facts=f"offsets {planned.start} to {planned.end_exclusive} (exclusive) are planned; {error.str()} "
                f"({cluster})",
                todo="Retention is shorter than the job's delay; set onDataLoss: continue to skip what is gone",
            )
        following = min(earliest, planned.end_exclusive) if earliest > partition.seen else planned.end_exclusive
        partition.lost += following - partition.seen
        self._go_on(ref, following)

    def _skip_truncated(self, ref: PartitionRef, planned: Range) -> None:
        """The log ends before the range does, which it did not when the range was planned."""
        if not self._skip:
            raise DataLoss(
                f"Input {self._cluster.input}: records of partition {_name(ref)} are gone",
                facts=f"offsets {planned.start} to {planned.end_exclusive} (exclusive) are planned, and the log ends "
                f"before that now: it was truncated ({self._cluster.at(ref.topic)})",
                todo="Set onDataLoss: continue to go on without them",
            )
        self._partitions[ref].lost += planned.end_exclusive - self._partitions[ref].seen
        self._go_on(ref, planned.end_exclusive)

    def _watermarks(self, ref: PartitionRef) -> tuple[int, int]:
        """The offsets of the earliest record there is and of the next one to come."""
        place = TopicPartition(ref.topic, ref.partition)
        try:
            earliest, latest = self._consumer.get_watermark_offsets(place, _STALLED_SECONDS, cached=False)
        except KafkaException as problem:
            cluster, doing, error = (
                self._cluster.at(ref.topic),
                f"asking for the offsets of {_name(ref)}",
                problem.args[0],
            )
            # A client that never met a broker knows no partition: whether the topic is gone is for the driver to judge.
            if error.code() in (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
                raise cluster.away(f"{doing} failed", f"{error.str()}; {self._errors}") from problem
            raise cluster.failure(problem, doing) from problem
        return int(earliest), int(latest)


def _timestamps(messages: Sequence[Message], size: int) -> Callable[[np.ndarray], np.ndarray]:
    """Asking each of small records for its timestamp would take a tenth of the time in which they are read: only those
    that somebody wants are asked. Large ones are asked at once, since messages that are kept hold their values."""
    if size > _SMALL_RECORD * len(messages):
        known = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
        return lambda at: np.asarray(known[at])
    return lambda at: np.fromiter((messages[i].timestamp()[1] for i in at.tolist()), np.int64, len(at))


def _without_messages(batch: RawBatch) -> RawBatch:
    """For a batch that is kept: its timestamps alone hold less than the messages that they would be asked of."""
    if batch.timestamps is None:
        return batch
    return replace(batch, timestamps=batch.timestamps(np.arange(len(batch.offsets))).__getitem__)


def _name(ref: PartitionRef) -> str:
    return f"{ref.topic}-{ref.partition}"
