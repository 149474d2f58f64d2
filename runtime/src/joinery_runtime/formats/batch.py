"""Undecoded records: what readers return and decoders take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True, order=True)
class PartitionRef:
    """One partition of one input. `topic` is a Kafka topic or a file path; `partition` is 0 for a file."""

    input: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How a file is cut into records: one per line. A line break inside a pair of `quote` bytes (None: no quoting)
    belongs to the record. With `header`, the first record holds the column names, divided by `separator`; blanks may
    follow a separator if `blanks_after_separator`."""

    quote: int | None = None
    header: bool = False
    separator: str = ","
    blanks_after_separator: bool = False


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Undecoded records of one partition, in offset order.

    `values` and `keys` are binary arrays of n records (null where the record has none); `offsets` is int64[n].
    `timestamps` maps positions in the batch (int64) to the Kafka records' timestamps in milliseconds (int64, negative
    where a record has none); it is None for files. A columnar file gives `columns` (n rows, with the file's names and
    types) and empty `values`. Only Kafka gives keys and headers, and only where the input needs them; of several
    headers with one name, the last counts. `lost` counts offsets of the range that the broker had deleted
    (`onDataLoss: continue`); n is 0 then. With a `refusal`, nobody
    decodes the batch, and the text says why; its values may then be only the beginning of what there is. `origin` is
    the partition as the branch of a union knows it (None: the input is no union).
    """

    partition: PartitionRef
    offsets: np.ndarray
    values: pa.BinaryArray
    keys: pa.BinaryArray | None = None
    timestamps: Callable[[np.ndarray], np.ndarray] | None = None
    lost: int = 0
    headers: Mapping[str, pa.BinaryArray] = field(default_factory=dict)
    columns: pa.Table | None = None
    refusal: str | None = None
    origin: PartitionRef | None = None

    @classmethod
    def of_columns(cls, partition: PartitionRef, offsets: np.ndarray, columns: pa.Table) -> RawBatch:
        return cls(partition, offsets, pa.repeat(pa.scalar(b""), len(offsets)), columns=columns)

    @property
    def bytes(self) -> int:
        """The size of values or columns, keys and headers, including Arrow's offsets."""
        keys = 0 if self.keys is None else self.keys.nbytes
        values = self.values.nbytes if self.columns is None else self.columns.nbytes
        return int(values + keys + sum(header.nbytes for header in self.headers.values()))

    @classmethod
    def joined(cls, batches: Sequence[RawBatch]) -> RawBatch:
        """Concatenate batches of one Kafka partition, given in offset order. Copies the bytes."""
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
        """Return the records from position `start` up to `stop`, as in a slice."""
        first, last, _ = slice(start, stop).indices(len(self.offsets))
        return self._select(
            self.offsets[start:stop], lambda column: column.slice(first, max(0, last - first)), lambda at: at + start
        )

    def take(self, positions: np.ndarray) -> RawBatch:
        """Return the records at these positions (int64[n], ascending) of the batch."""
        chosen = pa.array(positions)
        return self._select(self.offsets[positions], lambda column: column.take(chosen), lambda at: positions[at])

    def _select(
        self, offsets: np.ndarray, select: Callable[[Any], Any], position: Callable[[np.ndarray], np.ndarray]
    ) -> RawBatch:
        """Return some records: `select` selects those of a column, and `position` gives their positions here by those
        in the result."""
        read = self.timestamps
        return replace(
            self,
            offsets=offsets,
            values=select(self.values),
            keys=None if self.keys is None else select(self.keys),
            timestamps=None if read is None else lambda at: read(position(at)),
            lost=0,
            headers={name: select(header) for name, header in self.headers.items()},
            columns=None if self.columns is None else select(self.columns),
        )
