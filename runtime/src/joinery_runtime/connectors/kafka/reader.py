"""The task half of the Kafka source: reads exactly the records of planned ranges, with a client that reads ahead."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from joinery_runtime.connectors.kafka.errors import is_unavailable, watermarks
from joinery_runtime.connectors.kafka.record_clients import MOST_RECORDS, ConsumerEvent, RecordClient, open_client
from joinery_runtime.connectors.kafka.settings import Cluster, LoggedErrors, consumer_settings
from joinery_runtime.connectors.source import Range
from joinery_runtime.errors import DataLoss
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.job.model.inputs import KafkaInput
from joinery_runtime.job.model.wording import counted

_AHEAD_BYTES = 64 << 20  # of records that were fetched and are not asked for yet
# Of a partition that a call does not ask for. Another process most likely reads it: this one had it in a small epoch,
# of which each process reads all.
_UNASKED_BYTES = 1 << 20
# A batch of fewer records is handed out together with its neighbours, and waits for those that are planned: at a steady
# rate a fetch brings few records, and decoding and preparing takes a millisecond per batch. Many bytes do not wait.
_SMALL, _SMALL_BYTES = 256, 1 << 18
_OUTGROWN = 4  # this many times more partitions than a consumer was made for need a new consumer
_POLL_SECONDS = 0.05
_STALLED_SECONDS = 30.0  # if no planned record has come by then, that is an error
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}

Planned = dict[PartitionRef, Range]  # the ranges that are still to be read


@dataclass(slots=True)
class _Partition:
    """The state of a partition that this process reads. No offset below `seen` will come any more. `position` is where
    the next range is expected to start, or -1 while a range is read. `assigned`: the consumer fetches it. `ahead` holds
    batches that were fetched but not asked for, with the bytes that each keeps in memory, even once most of it has been
    handed out. `lost` counts offsets that were skipped but not yet reported."""

    seen: int
    position: int = -1
    assigned: bool = False
    ahead: list[tuple[RawBatch, int]] = field(default_factory=list)
    lost: int = 0

    def has_little_ahead(self) -> bool:
        """Whether what is ahead is less than a batch should have."""
        records = sum(len(batch.offsets) for batch, _ in self.ahead)
        return records < _SMALL and sum(size for _, size in self.ahead) < _SMALL_BYTES


class KafkaReader:
    """Reads all partitions of an input that belong to this process, with one consumer. Hands records out as they come,
    so that no partition waits for another. Keeps records beyond the planned ranges for the next call, up to
    `_AHEAD_BYTES`. `keyed`: batches also have the records' keys. `headers`: the headers that batches have. One thread
    uses it at a time."""

    def __init__(self, name: str, kafka: KafkaInput, *, keyed: bool = False, headers: Sequence[str] = ()) -> None:
        self._cluster, self._keyed, self._headers = Cluster.of(name, kafka), keyed, tuple(headers)
        self._skip = kafka.on_data_loss == "continue"
        self._errors = LoggedErrors()
        self._client: RecordClient | None = None
        self._expected_partitions = 0  # partitions
        self._partitions: dict[PartitionRef, _Partition] = {}

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        waiting = {
            planned_range.partition: planned_range
            for planned_range in planned
            if planned_range.start < planned_range.end_exclusive
        }
        self._prepare_ranges(waiting)
        yield from self._hand_out(waiting, list(waiting))
        while waiting:
            yield from self._hand_out(waiting, self._fetch_records(waiting))
            self._limit_ahead(waiting, {planned_range.partition for planned_range in planned})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._partitions = None, {}

    # --- which partitions are fetched ---------------------------------------------------------------------------------

    def _prepare_ranges(self, waiting: Planned) -> None:
        """Make the consumer fetch these ranges from their start, or from the end of what is buffered of them."""
        partitions = {ref: self._partitions[ref] for ref in waiting if ref in self._partitions}
        moved = [ref for ref, partition in partitions.items() if partition.position != waiting[ref].start]
        if moved:
            # Another process has read them meanwhile, and most likely also the other partitions that this one had.
            self._forget_partitions([*moved, *(ref for ref in self._partitions if ref not in waiting)])
        for ref, planned in waiting.items():
            partition = self._partitions.setdefault(ref, _Partition(planned.start))
            # Until a range has been read completely, the part already handed out cannot be read again without a seek.
            partition.position = -1
        if self._client is None or len(self._partitions) > _OUTGROWN * self._expected_partitions:
            if self._client is not None:
                self._client.close()
            for partition in self._partitions.values():
                partition.assigned = False
            settings = consumer_settings(self._cluster, self._errors, len(self._partitions))
            self._client = open_client(self._cluster, settings, keyed=self._keyed, headers=self._headers)
            self._expected_partitions = len(self._partitions)
        self._assign_partitions(
            ref for ref, planned in waiting.items() if self._partitions[ref].seen < planned.end_exclusive
        )

    @property
    def _connected_client(self) -> RecordClient:
        assert self._client is not None, "`read` connects first"
        return self._client

    def _assign_partitions(self, refs: Iterable[PartitionRef]) -> None:
        """Assign those that are not assigned yet, from the offset up to which they have been seen."""
        added = [ref for ref in refs if not self._partitions[ref].assigned]
        if added:
            self._connected_client.assign({ref: self._partitions[ref].seen for ref in added})
        for ref in added:
            self._partitions[ref].assigned = True

    def _unassign_partitions(self, refs: Iterable[PartitionRef]) -> None:
        removed = [ref for ref in refs if self._partitions[ref].assigned]
        if removed:
            self._connected_client.unassign(removed)
        for ref in removed:
            self._partitions[ref].assigned = False

    def _forget_partitions(self, refs: Collection[PartitionRef]) -> None:
        self._unassign_partitions(refs)
        for ref in refs:
            del self._partitions[ref]

    def _continue_at(self, ref: PartitionRef, offset: int) -> None:
        self._unassign_partitions([ref])
        self._partitions[ref].seen = offset
        self._assign_partitions([ref])

    def _limit_ahead(self, waiting: Planned, planned: Collection[PartitionRef]) -> None:
        """If too much is buffered, drops the partitions that this call did not ask for, and stops fetching those that
        have been read until they are asked for again. If too much is buffered of a partition that this call did not ask
        for, stops fetching that one."""
        buffered = {ref: sum(size for _, size in partition.ahead) for ref, partition in self._partitions.items()}
        if sum(buffered.values()) > _AHEAD_BYTES:
            self._forget_partitions([ref for ref in self._partitions if ref not in planned])
            self._unassign_partitions([ref for ref in self._partitions if ref not in waiting])
        else:
            self._unassign_partitions(
                [ref for ref, size in buffered.items() if ref not in planned and size > _UNASKED_BYTES]
            )

    # --- records ------------------------------------------------------------------------------------------------------

    def _hand_out(self, waiting: Planned, refs: Iterable[PartitionRef]) -> Iterator[RawBatch]:
        """Yield what has been fetched of the planned ranges of these partitions. Removes ranges that have been read
        completely from `waiting`."""
        for ref in refs:
            if ref not in waiting:
                continue
            partition, end = self._partitions[ref], waiting[ref].end_exclusive
            small: list[RawBatch] = []
            enough = partition.seen >= end or not partition.has_little_ahead()
            while enough and partition.ahead:
                batch, size = partition.ahead.pop(0)
                count = int(np.searchsorted(batch.offsets, end))
                if count < len(batch.offsets):
                    partition.ahead.insert(0, (batch.part(count), size))
                if 0 < count < _SMALL:
                    small.append(batch.part(0, count))
                if small and (count >= _SMALL or len(small) == _SMALL):
                    yield RawBatch.joined(small)
                    small = []
                if count >= _SMALL:
                    yield batch.part(0, count)
                if count < len(batch.offsets):
                    break
            if small:
                yield RawBatch.joined(small)
            if partition.lost:
                lost, partition.lost = partition.lost, 0
                none = pa.array([], pa.binary())
                headers = dict.fromkeys(self._headers, none)
                keys = none if self._keyed else None
                yield RawBatch(ref, np.empty(0, np.int64), none, keys, _no_times, lost=lost, headers=headers)
            if partition.seen >= end:
                partition.position = end
                del waiting[ref]

    def _fetch_records(self, waiting: Planned) -> list[PartitionRef]:
        """Take records from the client, or the news that there are none up to an offset. Returns the waiting
        partitions that got any."""
        deadline = time.monotonic() + _STALLED_SECONDS
        self._errors.forget()
        while time.monotonic() < deadline:
            # Asking for more than is planned would wait for it. Offsets without a record still cost one poll.
            missing = sum(
                max(1, planned_range.end_exclusive - self._partitions[ref].seen)
                for ref, planned_range in waiting.items()
            )
            batches, events = self._connected_client.fetch(min(MOST_RECORDS, missing), _POLL_SECONDS)
            fetched = {batch.partition for batch in batches if self._take_batch(batch)}
            for event in events:
                self._handle_event(event, waiting)
            advanced = [
                ref
                for ref, planned_range in waiting.items()
                if ref in fetched
                or self._partitions[ref].lost > 0
                or self._partitions[ref].seen >= planned_range.end_exclusive
            ]
            if advanced:
                return advanced
            if self._errors.denial is not None:
                raise self._cluster.failure(self._errors.denial, "reading")
        short = [
            ref for ref, planned_range in waiting.items() if self._read_watermarks(ref)[1] < planned_range.end_exclusive
        ]
        for ref in short:
            # When the range was planned, the log did not end before it.
            facts = ", and the log ends before that now: it was truncated"
            todo = "Set onDataLoss: continue if the job can do without them"
            self._skip_to(waiting[ref].end_exclusive, ref, waiting[ref], facts, todo)
        if short:
            return short
        ref, planned = next(iter(waiting.items()))
        other_partitions = f" and of {counted(len(waiting) - 1, 'other partition')}" if len(waiting) > 1 else ""
        raise self._cluster.outage(
            f"reading partition {_partition_name(ref)} has come to a halt",
            f"offsets {planned.start} to {planned.end_exclusive} (exclusive){other_partitions} are planned, "
            f"no record has come for {_STALLED_SECONDS:.0f} s at offset {self._partitions[ref].seen}; {self._errors}",
        )

    def _take_batch(self, batch: RawBatch) -> bool:
        """Add records to `ahead` of their partition. Returns False if the partition was dropped while they were on
        their way."""
        partition = self._partitions.get(batch.partition)
        if partition is None or not partition.assigned:
            return False
        # Every record also has an offset and a timestamp of eight bytes each.
        partition.ahead.append((batch, batch.bytes + 16 * len(batch.offsets)))
        partition.seen = int(batch.offsets[-1]) + 1
        return True

    # --- events -------------------------------------------------------------------------------------------------------

    def _handle_event(self, event: ConsumerEvent, waiting: Planned) -> None:
        """Handle an event: an end was reached, or an error occurred. An error of a partition that nobody waits for
        will show again when the partition is read."""
        error = event.error
        ref = None if event.topic is None else PartitionRef(self._cluster.input, event.topic, event.partition)
        if ref is not None and (ref not in self._partitions or not self._partitions[ref].assigned):
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if ref is not None:
                self._partitions[ref].seen = max(self._partitions[ref].seen, event.offset)
        elif is_unavailable(error):
            self._errors(error)
        elif ref is None:
            raise self._cluster.failure(error, "reading")
        elif ref not in waiting:
            self._forget_partitions([ref])
        elif error.code() in _GONE:
            self._skip_lost(error, ref, waiting[ref])
        else:
            doing = f"reading partition {_partition_name(ref)} from offset {self._partitions[ref].seen}"
            raise self._cluster.at(ref.topic).failure(error, doing)

    def _skip_lost(self, error: KafkaError, ref: PartitionRef, planned: Range) -> None:
        """Continue at the earliest existing offset, or at the range's end if that comes first.

        The error may be outdated, about an offset that was read before the last seek. Then nothing of this range is
        gone.
        """
        seen, (earliest, latest) = self._partitions[ref].seen, self._read_watermarks(ref)
        if earliest <= seen <= latest:
            self._continue_at(ref, seen)
            return
        following = min(earliest, planned.end_exclusive) if earliest > seen else planned.end_exclusive
        todo = "Retention is shorter than the job's delay; set onDataLoss: continue to skip what is gone"
        self._skip_to(following, ref, planned, f"; {error.str()}", todo)

    def _skip_to(self, offset: int, ref: PartitionRef, planned: Range, facts: str, todo: str) -> None:
        """Count the offsets before this one as lost and continue there. Raises DataLoss unless the job allows it."""
        if not self._skip:
            raise DataLoss(
                f"Input {self._cluster.input}: records of partition {_partition_name(ref)} are gone",
                facts=f"offsets {planned.start} to {planned.end_exclusive} (exclusive) are planned{facts} "
                f"({self._cluster.at(ref.topic)})",
                todo=todo,
            )
        self._partitions[ref].lost += offset - self._partitions[ref].seen
        self._continue_at(ref, offset)

    def _read_watermarks(self, ref: PartitionRef) -> tuple[int, int]:
        """Return the offsets of the earliest record and of the next one to come."""
        try:
            return watermarks(lambda: self._connected_client.watermarks(ref, _STALLED_SECONDS))
        except KafkaException as problem:
            cluster, error = self._cluster.at(ref.topic), problem.args[0]
            doing = f"asking for the offsets of {_partition_name(ref)}"
            # A client that never reached a broker knows no partitions. The driver judges whether the topic is gone.
            if error.code() in (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
                raise cluster.outage(f"{doing} failed", f"{error.str()}; {self._errors}") from problem
            raise cluster.failure(problem, doing) from problem


def _no_times(_: np.ndarray) -> np.ndarray:
    return np.empty(0, np.int64)


def _partition_name(ref: PartitionRef) -> str:
    return f"{ref.topic}-{ref.partition}"
