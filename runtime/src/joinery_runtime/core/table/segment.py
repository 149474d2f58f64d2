"""Runs and segments: sorted columnar rows in memory, and their immutable form in the state store.

A *run* is a record batch sorted by (key hash, event time). A *segment* is a run in the byte format of
`core.table.blob`, described by a `SegmentMeta`. `core.table.columns` has the layout. Because a run is sorted by hash,
the rows of a hash range are a slice: a change in the number of shards needs no repartitioning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from joinery_runtime.core.table.columns import HASH, OFFSET, PARTITION, TS
from joinery_runtime.core.table.keyhash import HashRange
from joinery_runtime.core.table.sort import HashFilter, by_hash_and_time

STATE_VERSION = 5
MIGRATED = "~"
"""Separates, in the key of a migrated segment, its original key from what the migration appended."""


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """The metadata of a segment, known without reading it. `key` is never reused within the job.

    The bounds of hashes (unsigned 64-bit) and of times (event-time milliseconds) are inclusive. `bytes` is the size of
    the stored blob. `part` is the part of the state that the segment belongs to (for a join: "left" or "right").
    """

    key: str
    part: str
    hash_min: int
    hash_max: int
    ts_min: int
    ts_max: int
    rows: int
    bytes: int
    epoch: int
    state_version: int


@dataclass(frozen=True, slots=True)
class Run:
    """Rows sorted by (hash, ts). `hash` (uint64[n]) and `ts` (int64[n]) are views of the batch's own columns. `filter`
    lets all of these hashes through."""

    batch: pa.RecordBatch
    hash: np.ndarray
    ts: np.ndarray
    filter: HashFilter = field(compare=False)

    @classmethod
    def view(cls, batch: pa.RecordBatch, source: Run | None = None) -> Run:
        """Wrap a sorted batch. If its rows all come from the run `source`, it shares that run's filter."""
        hashes = batch.column(HASH).to_numpy()
        return cls(batch, hashes, batch.column(TS).to_numpy(), HashFilter(hashes) if source is None else source.filter)

    @classmethod
    def sort(cls, batch: pa.RecordBatch, *, by_offset: bool = False) -> Run:
        """Sort a batch. `by_offset` also orders rows of one hash and time, by (offset, partition), as versions need
        (rule A1)."""
        ties = [OFFSET, PARTITION] if by_offset else []
        order = by_hash_and_time(*(batch.column(name).to_numpy() for name in (HASH, TS, *ties)))
        return cls.view(batch.take(pa.array(order)))

    def __len__(self) -> int:
        return len(self.hash)

    def rows_in(self, owned: HashRange) -> slice:
        """Return the positions of the rows whose hash is in the range; they are consecutive."""
        first = np.searchsorted(self.hash, np.uint64(owned.first), side="left")
        stop = np.searchsorted(self.hash, np.uint64(owned.last), side="right")
        return slice(int(first), int(stop))

    def within(self, owned: HashRange) -> Run:
        """Return the rows whose hash is in the range, as a slice without copying."""
        rows = self.rows_in(owned)
        return Run.view(self.batch.slice(rows.start, rows.stop - rows.start))


def first_key(key: str) -> str:
    """Return the key that a segment had when it was written. A migration changes the key, but not the row numbers, so
    existing flags still apply."""
    return key.partition(MIGRATED)[0]


def merge(runs: Sequence[Run], *, by_offset: bool = False) -> Run:
    return Run.sort(concat([run.batch for run in runs]), by_offset=by_offset)


def concat(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches, with the first one's columns in its order. Later batches must have all of these columns;
    others are skipped."""
    listed = list(batches)
    names = listed[0].schema.names
    aligned = [batch if batch.schema.names == names else batch.select(names) for batch in listed]
    return aligned[0] if len(aligned) == 1 else pa.concat_batches(aligned)


def describe(run: Run, *, key: str, part: str, epoch: int, blob: bytes) -> SegmentMeta:
    return SegmentMeta(
        key=key,
        part=part,
        hash_min=int(run.hash[0]),
        hash_max=int(run.hash[-1]),
        ts_min=int(run.ts.min()),
        ts_max=int(run.ts.max()),
        rows=len(run),
        bytes=len(blob),
        epoch=epoch,
        state_version=STATE_VERSION,
    )


def encode(batch: pa.RecordBatch, *, compression: str | None = "lz4") -> bytes:
    """Encode one batch as an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    # Single-threaded: there is little to compress, and waking other threads takes ten times as long.
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def decode(blob: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """Decode the batch of such a file, without copying if it is not compressed."""
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return pa.ipc.open_file(pa.BufferReader(blob), options=options).get_batch(0)
