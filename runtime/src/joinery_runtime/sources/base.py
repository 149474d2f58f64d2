"""The port between the engine and where records come from.

A source has two halves. The *planner* half lives in the driver and answers "which partitions are there, and how far
can each be read now". The *reader* half lives in a task and returns exactly the records of a planned range, however
often it is asked. What the driver plans is what the tasks read: nothing is decided in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from joinery_runtime.store_identity import StoreIdentity


@dataclass(frozen=True, slots=True, order=True)
class PartitionRef:
    """One partition of one input. `topic` is a Kafka topic or a file path, `partition` is 0 for a file."""

    input: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What can be read of a partition now: records with `start <= offset < end_exclusive`.

    `start` is the stored position or, where none is stored, what `startFrom` says. `end_exclusive` is the last stable
    offset (Kafka), the file's size in bytes (a file) or the job's `stopAt`. `undecided` counts offsets from there up to
    the high watermark (or `stopAt`, if that is lower): a transaction is open, its records may still come. `final` says
    that nothing will ever follow `end_exclusive`: the partition is bounded. `lost` counts offsets that were skipped
    under `onDataLoss: continue`. `held` False: the partition is there, and another member of the consumer group has it,
    or nobody yet; it is not read, and it is not idle. `stop` is where a bounded partition ends, and `topic_id` which
    topic of this name it is of ("" where that is not known): both are stored with the plan that is made of these
    bounds. `deleted` says that the topic is no more and was read to its end: what is stored of it is to be forgotten.
    `record_bytes` is about how long a record is, where offsets count bytes (None: they count records). `waits`: other
    partitions of the input are read to their ends before it; until then it is not read, and neither it nor its absence
    moves the watermark.
    """

    partition: PartitionRef
    start: int
    end_exclusive: int
    final: bool = False
    lost: int = 0
    held: bool = True
    stop: int | None = None
    topic_id: str = ""
    deleted: bool = False
    undecided: int = 0
    record_bytes: float | None = None
    waits: bool = False

    @property
    def at_end(self) -> bool:
        """Whether the job has read all that was ever written to the partition, as far as that is known now (T4)."""
        return self.start >= self.end_exclusive and not self.undecided


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """What is stored of one input: next offset and stop (first offset not to be read) per partition, id per topic."""

    offsets: Mapping[PartitionRef, int] = field(default_factory=dict)
    stops: Mapping[PartitionRef, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Range:
    """A planned piece of a partition: every record with `start <= offset < end_exclusive`."""

    partition: PartitionRef
    start: int
    end_exclusive: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How a file is cut into records: each line is one. A line break between two of the bytes `quote` (None: there are
    no quotes) belongs to its record. With a `header` the first record names the columns, between `separator`s, after
    which there may be blanks."""

    quote: int | None = None
    header: bool = False
    separator: str = ","
    blanks_after_separator: bool = False


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Undecoded records of one partition, in offset order.

    `values` and `keys` are binary arrays of n records (null where the record has none), `offsets` is int64[n].
    `timestamps` gives those of the Kafka records at these positions (int64), in milliseconds (int64, negative where a
    record has none); from files there are none. Rows of a columnar file are `columns` (n rows, with the names and types
    of the file), and `values` holds nothing. Keys and headers (by name, of several of one name the last) are only there
    where the input needs them, and only from Kafka. `lost` counts offsets of the range that the broker had deleted
    (`onDataLoss: continue`); n is 0 then.
    """

    partition: PartitionRef
    offsets: np.ndarray
    values: pa.BinaryArray
    keys: pa.BinaryArray | None = None
    timestamps: Callable[[np.ndarray], np.ndarray] | None = None
    lost: int = 0
    headers: Mapping[str, pa.BinaryArray] = field(default_factory=dict)
    columns: pa.Table | None = None

    @classmethod
    def of_columns(cls, partition: PartitionRef, offsets: np.ndarray, columns: pa.Table) -> RawBatch:
        return cls(partition, offsets, pa.repeat(pa.scalar(b""), len(offsets)), columns=columns)

    @property
    def bytes(self) -> int:
        """The bytes of values or columns, keys and headers, with what Arrow needs to find them."""
        keys = 0 if self.keys is None else self.keys.nbytes
        values = self.values.nbytes if self.columns is None else self.columns.nbytes
        return int(values + keys + sum(each.nbytes for each in self.headers.values()))

    @classmethod
    def joined(cls, batches: Sequence[RawBatch]) -> RawBatch:
        """Batches of one partition from Kafka, in offset order, as one. Bytes are copied."""
        first = batches[0]
        if len(batches) == 1:
            return first
        stamps = [batch.timestamps(np.arange(len(batch.offsets))) for batch in batches if batch.timestamps is not None]
        return cls(
            first.partition,
            np.concatenate([batch.offsets for batch in batches]),
            pa.concat_arrays([batch.values for batch in batches]),
            None if first.keys is None else pa.concat_arrays([batch.keys for batch in batches]),
            np.concatenate(stamps).__getitem__,
            headers={name: pa.concat_arrays([batch.headers[name] for batch in batches]) for name in first.headers},
        )

    def part(self, start: int, stop: int | None = None) -> RawBatch:
        """The records at these positions of the batch (as of a slice)."""
        cut = slice(start, stop)
        keys = None if self.keys is None else self.keys[cut]
        of_all = self.timestamps
        timestamps = None if of_all is None else lambda at: of_all(at + start)
        headers = {name: each[cut] for name, each in self.headers.items()}
        offsets, values = self.offsets[cut], self.values[cut]
        columns = None if self.columns is None else self.columns.slice(start, len(offsets))
        return RawBatch(self.partition, offsets, values, keys, timestamps, headers=headers, columns=columns)

    def take(self, places: np.ndarray) -> RawBatch:
        """The records at these positions (int64[n], ascending) of the batch."""
        chosen = pa.array(places)
        keys = None if self.keys is None else self.keys.take(chosen)
        of_all = self.timestamps
        timestamps = None if of_all is None else lambda at: of_all(places[at])
        headers = {name: each.take(chosen) for name, each in self.headers.items()}
        values = self.values.take(chosen)
        columns = None if self.columns is None else self.columns.take(chosen)
        offsets = self.offsets[places]
        return RawBatch(self.partition, offsets, values, keys, timestamps, headers=headers, columns=columns)


class SourcePlanner(Protocol):
    """Driver half. Its methods are called by one thread; `close` ends its connections.

    A source whose partitions are shared out (a Kafka consumer group) may lose some at any time. What an epoch reads is
    held from its plan to its commit: a rebalance waits for that, within limits.
    """

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        """Bounds of every partition of this input, given what is stored of it (nothing: never read).

        Raises SourceError when the topic, file or broker is not there, DataLoss when a stored offset is gone or a
        topic was recreated and the job does not allow it, Fenced when another driver of the job has joined its group
        (an older one may have, after a long pause: the state store says which is the newest)."""
        ...

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        """A range from `bounds.start` of about `max_records` records that ends on a record boundary."""
        ...

    def records(self, planned: Range, record_bytes: float) -> int:
        """About how many records a range holds, if a record has so many bytes; none only where the range is empty."""
        ...

    def gone(self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]) -> set[PartitionRef]:
        """Which of these partitions of a plan that is replayed belong to a topic that is no more, or is another one of
        the same name. Raises DataLoss for them unless the job allows it."""
        ...

    def hold(self, partitions: Collection[PartitionRef]) -> bool:
        """Before an epoch runs: True if all are this driver's, which then keeps them until `release`."""
        ...

    def still_held(self) -> bool:
        """Before its commit: whether none of the held partitions was lost to another member meanwhile."""
        ...

    def release(self, committed: Mapping[PartitionRef, int]) -> None:
        """Ends the hold. `committed` are the next offsets if the epoch was committed, for lag tools (else empty)."""
        ...

    def rejoin(self) -> None:
        """After Fenced, by a driver that the state store says is the newest: joins anew, under the same name."""
        ...

    def committed_by(self) -> StoreIdentity | None:
        """The state store of the driver that committed the group's offsets last; None where no driver has, or there is
        no group. May take as long as the brokers' answer."""
        ...

    def close(self) -> None: ...


class UnsharedSource:
    """The part of `SourcePlanner` that is trivial where nobody else can take partitions, nothing is recreated, and
    offsets count records."""

    def records(self, planned: Range, record_bytes: float) -> int:
        return planned.end_exclusive - planned.start

    def gone(self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]) -> set[PartitionRef]:
        return set()

    def hold(self, partitions: Collection[PartitionRef]) -> bool:
        return True

    def still_held(self) -> bool:
        return True

    def release(self, committed: Mapping[PartitionRef, int]) -> None:
        """Nobody waits for it."""

    def rejoin(self) -> None:
        """There is no group."""

    def committed_by(self) -> StoreIdentity | None:
        return None


class SourceReader(Protocol):
    """Task half; kept alive between epochs, so that a client may prefetch."""

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        """Exactly the records of these ranges, which are of different partitions of the input. Batches of a partition
        come in its order, and between those of others. Ends when all positions are at or past the ends, also where
        offsets are missing (control records, compaction)."""
        ...

    def close(self) -> None: ...
