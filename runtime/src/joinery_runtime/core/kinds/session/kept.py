"""The sessions and marks that a shard keeps, over all of its runs: which are there, and which leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.cells import spread
from joinery_runtime.core.pipeline.step import KeptRun
from joinery_runtime.core.table.segment import concat

# Looking hashes up in a run is dearer than going over its rows, unless there are so many fewer of them.
_RATHER_LOOK_UP = 16


@dataclass(frozen=True, slots=True)
class Found:
    """n kept rows: `batch` has them together; `run` and `row` (int64[n]) say where they are."""

    batch: pa.RecordBatch
    run: np.ndarray
    row: np.ndarray


class KeptSessions:
    """`since`: rows whose last row is before it have left in an earlier epoch (None: none has)."""

    def __init__(self, kept: Sequence[KeptRun], since: int | None, schema: pa.Schema) -> None:
        self._kept, self._schema = kept, schema
        self._marked = [_marked(run) for run in kept]
        self._there = [~marked for marked in self._marked]
        self._gone = [np.zeros(len(marked), dtype=bool) for marked in self._marked]
        self.forget(since)

    def forget(self, before: int | None) -> None:
        """Rows that end before this are not there any more."""
        if before is not None:
            self._there = [there & (run.run.ts >= before) for run, there in self._runs()]

    def where(self, chosen: Callable[[pa.RecordBatch], np.ndarray]) -> pa.RecordBatch:
        """What is there, of the rows that are chosen (bool per row of a batch)."""
        rows = [np.flatnonzero(there & chosen(run.run.batch)) for run, there in self._runs()]
        return self._found(rows).batch

    def of(self, hashes: np.ndarray) -> Found:
        """What is there of keys with these hashes (uint64, sorted, distinct)."""
        return self._found([_rows_of(run, there, hashes) for run, there in self._runs()])

    def leave(self, found: Found, chosen: np.ndarray) -> None:
        """The chosen ones (bool[n]) are gone."""
        for number in range(len(self._kept)):
            rows = found.row[chosen & (found.run == number)]
            self._gone[number][rows] = True
            self._there[number][rows] = False

    def marks(self) -> dict[str, np.ndarray]:
        """By segment, the row numbers of what has gone in this epoch."""
        runs = zip(self._kept, self._gone, strict=True)
        return {run.segment: run.first + np.flatnonzero(gone) for run, gone in runs if gone.any()}

    def finished(self) -> frozenset[str]:
        return frozenset(run.segment for run, there in self._runs() if not there.any())

    def _runs(self) -> list[tuple[KeptRun, np.ndarray]]:
        return list(zip(self._kept, self._there, strict=True))

    def _found(self, rows: Sequence[np.ndarray]) -> Found:
        taken = [run.run.batch.take(pa.array(of)) for run, of in zip(self._kept, rows, strict=True) if len(of)]
        batch = concat(taken) if taken else pa.RecordBatch.from_pylist([], schema=self._schema)
        run = np.repeat(np.arange(len(rows)), [len(of) for of in rows])
        return Found(batch, run, np.concatenate([np.empty(0, dtype=np.int64), *rows]))


def _marked(kept: KeptRun) -> np.ndarray:
    assert kept.marked is not None, "rows of sessions have marks"
    return kept.marked


def _rows_of(kept: KeptRun, there: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    run = kept.run
    if len(hashes) * _RATHER_LOOK_UP < len(run):
        first, stop = (np.searchsorted(run.hash, hashes, side=side) for side in ("left", "right"))
        rows = spread(first, stop)[1]
        return np.asarray(rows[there[rows]])
    rows = np.flatnonzero(there)
    place = np.minimum(np.searchsorted(hashes, run.hash[rows]), len(hashes) - 1)
    return np.asarray(rows[hashes[place] == run.hash[rows]])
