"""Passes rows on in chunks of bounded size, made on demand: a table of all rows of a shard is never in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

import pyarrow as pa

from joinery_runtime.core.table.segment import concat

# A chunk holds at most this many rows and bytes, unless a single batch has more: enough that a cost per chunk is small
# per row, and few enough that a task, which holds a few chunks, needs little memory.
CHUNK_ROWS = 65_536
CHUNK_BYTES = 16 << 20

T = TypeVar("T")


def in_chunks(batches: Generator[pa.RecordBatch, None, T]) -> Generator[pa.RecordBatch, None, T]:
    """Combines the batches into fewer, and returns the generator's result. A step makes a small batch per probed
    run."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            if waiting:
                yield concat(waiting)
            result: T = end.value
            return result
        if waiting and (rows + batch.num_rows > CHUNK_ROWS or size + batch.nbytes > CHUNK_BYTES):
            yield concat(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes


def sliced(batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    """Cuts the batches to about CHUNK_BYTES and at most CHUNK_ROWS, by the mean row size of each batch."""
    for batch in batches:
        size = max(1, batch.nbytes // max(1, batch.num_rows))
        at_once = max(1, min(CHUNK_ROWS, CHUNK_BYTES // size))
        for first in range(0, batch.num_rows, at_once):
            yield batch.slice(first, at_once)


class ReplayableBatches(Generic[T]):
    """Rows for a sink (`connectors.sink.Rows`), made on demand and made again for each new read. `make` yields the
    batches and then returns a result, which `result` hands out."""

    def __init__(self, make: Callable[[], Generator[pa.RecordBatch, None, T]]) -> None:
        self._make = make
        self._begun: Iterator[pa.RecordBatch] | None = None
        self._results: list[T] = []
        self.count = 0

    def any(self) -> bool:
        """Whether there is any row. The batch made to find out becomes the first one of `to_batches`."""
        batches = self._remaining_batches()
        first = next(batches, None)
        self._begun = None if first is None else chain([first], batches)
        return first is not None

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        begun, self._begun = self._begun, None
        return self._remaining_batches() if begun is None else begun

    def result(self) -> T:
        """Returns the result, after making the rest of the rows if no reader has. `count` is then the number of
        rows."""
        if not self._results:
            for _ in self.to_batches():
                """Only the result is wanted: a replayed epoch's rows may be in the output already."""
        return self._results[0]

    def _remaining_batches(self) -> Iterator[pa.RecordBatch]:
        self.count = 0
        chunks = in_chunks(self._make())
        while True:
            try:
                batch = next(chunks)
            except StopIteration as end:
                self._results.append(end.value)
                return
            self.count += batch.num_rows
            yield batch
