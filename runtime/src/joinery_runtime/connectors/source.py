"""The port between the engine and the sources of records.

A source has two halves. The *planner* runs in the driver: it lists the partitions and says how far each can be read
now. The *reader* runs in a task and returns exactly the records of a planned range, however often the task asks. Tasks
read what the driver planned and decide nothing themselves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from joinery_runtime.errors import Unavailable
from joinery_runtime.formats.batch import PartitionRef, RawBatch


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The identity of a job's state store, by which two jobs of one name notice each other through Kafka. A job writes
    it into what it commits there: the offsets of its consumer groups, and those of a group of its own for the output
    topic. A job that finds another store there shares its name with another job.

    `id` is random, created with the store's tables or with a store in memory. `location` says in messages where the
    store is, and never contains a password."""

    id: str
    location: str

    def __str__(self) -> str:
        return f"{self.location} (store {self.id})"

    def metadata(self) -> str:
        """Return the metadata of a committed offset, for which Kafka allows 4,096 bytes."""
        return json.dumps({"store": self.id, "place": self.location})

    @classmethod
    def parse(cls, metadata: str | None) -> StoreIdentity | None:
        """Parse the metadata of an offset. None if it is empty or not ours."""
        try:
            fields = json.loads(metadata or "")
            return cls(str(fields["store"]), str(fields["place"]))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The part of a partition that can be read now: records with `start <= offset < end_exclusive`.

    - `start`: the stored position or, without one, the position that `startFrom` gives.
    - `end_exclusive`: the last stable offset (Kafka), the size in bytes (a file) or the job's `stopAt`.
    - `undecided`: how many offsets lie between `end_exclusive` and the high watermark (or `stopAt`, if lower). They
      belong to open transactions, whose records may still become readable.
    - `final`: the partition is bounded, and nothing will ever follow `end_exclusive`.
    - `lost`: how many offsets were skipped under `onDataLoss: continue`.
    - `is_assigned` False: another member of the consumer group owns the partition, or no member does yet. The partition
      is not read and does not count as idle.
    - `stop`: the offset at which a bounded partition ends. `topic_id`: the id of its topic, which tells topics of one
      name apart ("" if unknown). Both are stored with the plan made from these bounds.
    - `deleted`: the topic was deleted after it had been read to its end. Its stored progress is to be forgotten.
    - `record_bytes`: the approximate length of a record, where offsets count bytes (None: offsets count records).
    - `released`: the branch of the union that the partition belongs to has ended, so it holds the watermark of the
      union back no longer (U3).
    - `waits`: other partitions of the input are read to their ends first. Until then this one is not read, and neither
      it nor its absence moves the watermark.
    """

    partition: PartitionRef
    start: int
    end_exclusive: int
    final: bool = False
    lost: int = 0
    is_assigned: bool = True
    stop: int | None = None
    topic_id: str = ""
    deleted: bool = False
    undecided: int = 0
    record_bytes: float | None = None
    waits: bool = False
    released: bool = False

    @property
    def at_end(self) -> bool:
        """Whether the job has read everything written to the partition so far, as far as is known now (T4)."""
        return self.start >= self.end_exclusive and not self.undecided


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """Stored progress of one input: next offset and stop (first offset not to read) per partition, id per topic."""

    offsets: Mapping[PartitionRef, int] = field(default_factory=dict)
    stops: Mapping[PartitionRef, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Range:
    """A planned piece of a partition: every record with `start <= offset < end_exclusive`."""

    partition: PartitionRef
    start: int
    end_exclusive: int


class SourcePlanner(Protocol):
    """The driver half. One thread calls its methods; `close` ends its connections.

    A source that shares its partitions with others (a Kafka consumer group) may lose some at any time. The driver holds
    the partitions of an epoch from plan to commit: a rebalance waits for the commit, within limits.
    """

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        """Return the bounds of each partition of this input, given its stored progress (empty: it was never read).

        Raises SourceError if the topic, file or broker is missing. Raises DataLoss if a stored offset is gone or a
        topic was recreated, unless the job allows that. Raises Fenced if another driver of the job has joined its
        group. That driver may be an older one after a long pause: the state store knows which is the newest."""
        ...

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        """Return a range of about `max_records` records that begins at `bounds.start` and ends on a record boundary."""
        ...

    def records(self, planned: Range, record_bytes: float) -> int:
        """Return the approximate number of records in a range, at `record_bytes` each. 0 only if the range is empty."""
        ...

    def reads_file(self, partition: PartitionRef) -> bool:
        """Return whether the partition is a file, which costs more to read than the range's records: a packed one is
        unpacked from its start."""
        ...

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        """Which of these partitions, of a plan about to be replayed, belong to a topic that was deleted or recreated.
        Raises DataLoss for them unless the job allows it."""
        ...

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        """Pin the partitions before an epoch runs. Returns True if this driver owns all of them; it then keeps them
        until `unpin`."""
        ...

    def is_pinned(self) -> bool:
        """Return whether, before the epoch's commit, the driver still has all held partitions."""
        ...

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        """End the hold. `committed` holds the next offsets, for lag tools; it is empty if the epoch did not commit."""
        ...

    def rejoin(self) -> None:
        """Join the group again under the same name. Called after Fenced, by the driver that the state store says is
        the newest."""
        ...

    def committed_by(self) -> StoreIdentity | None:
        """Return the state store of the driver that last committed the group's offsets. None if no driver has, or if
        there is no group. Waits for the brokers' answer."""
        ...

    def unavailability(self) -> Unavailable | None:
        """Return what the source cannot reach right now; None also if the source cannot tell. Called from another
        thread while a task or another method waits."""
        ...

    def close(self) -> None: ...


class UnsharedSource:
    """The trivial part of `SourcePlanner`, for sources whose partitions nobody else can take and nobody recreates, and
    whose offsets count records."""

    def records(self, planned: Range, record_bytes: float) -> int:
        return planned.end_exclusive - planned.start

    def reads_file(self, partition: PartitionRef) -> bool:
        return False

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        return set()

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        return True

    def is_pinned(self) -> bool:
        return True

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        """Do nothing: nobody waits for the partitions."""

    def rejoin(self) -> None:
        """Do nothing: there is no group."""

    def committed_by(self) -> StoreIdentity | None:
        return None

    def unavailability(self) -> Unavailable | None:
        return None


class SourceReader(Protocol):
    """The task half. It lives on between epochs, so that a client may prefetch."""

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        """Yield exactly the records of these ranges, which belong to different partitions of the input. Batches of one
        partition come in offset order, interleaved with those of others. Stops when every position has reached the end
        of its range or passed it, which also covers missing offsets (control records, compaction)."""
        ...

    def close(self) -> None: ...
