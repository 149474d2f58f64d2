"""The port between the engine and where records come from.

A source has two halves. The *planner* half lives in the driver and answers "which partitions are there, and how far
can each be read now". The *reader* half lives in a task and returns exactly the records of a planned range, however
often it is asked. What the driver plans is what the tasks read: nothing is decided in a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa


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
    offset (Kafka), the file's size in bytes (a file) or the job's `stopAt`. `final` says that nothing will ever follow
    `end_exclusive`: the partition is bounded. `lost` counts offsets that were skipped under `onDataLoss: continue`.
    """

    partition: PartitionRef
    start: int
    end_exclusive: int
    final: bool = False
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """A planned piece of a partition: every record with `start <= offset < end_exclusive`."""

    partition: PartitionRef
    start: int
    end_exclusive: int


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Undecoded records of one partition, in offset order.

    `values` and `keys` are binary arrays of n records (null where the record has none), `offsets` is int64[n].
    """

    partition: PartitionRef
    offsets: np.ndarray
    values: pa.BinaryArray
    keys: pa.BinaryArray | None = None


class SourcePlanner(Protocol):
    """Driver half. Not thread-safe; `close` ends its connections."""

    def bounds(self, positions: Mapping[PartitionRef, int]) -> list[Bounds]:
        """Bounds of every partition of this input, given the stored next offsets (missing: never read).

        Raises SourceError when the topic, file or broker is not there, DataLoss when a stored offset is gone and the
        job does not allow it.
        """
        ...

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        """A range from `bounds.start` of about `max_records` records that ends on a record boundary."""
        ...

    def close(self) -> None: ...


class SourceReader(Protocol):
    """Task half; kept alive between epochs, so that a client may prefetch."""

    def read(self, planned: Range) -> Iterator[RawBatch]:
        """Exactly the records of the range, in order. Ends when the position is at or past the end, also where
        offsets are missing (control records, compaction)."""
        ...

    def close(self) -> None: ...
