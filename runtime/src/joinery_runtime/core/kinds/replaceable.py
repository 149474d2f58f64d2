"""The stored rows of a shard whose rows replace each other: a replaced one is flagged, and has left the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.grouping import expand_ranges
from joinery_runtime.core.pipeline.step import StateRun
from joinery_runtime.core.table.segment import concat

# Looking hashes up in a run is cheaper than scanning its rows only if there are this many times fewer hashes.
_RATHER_LOOK_UP = 16


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """n live rows in one `batch`. `run` and `row` (int64[n] each) say where each is stored."""

    batch: pa.RecordBatch
    run: np.ndarray
    row: np.ndarray


class ReplaceableRows:
    """The live rows of a shard. Those before `since` were evicted in an earlier epoch (None: none was). The event time
    of a row is that in `$ts`."""

    def __init__(self, state_runs: Sequence[StateRun], since: int | None, schema: pa.Schema) -> None:
        self._state_runs, self._schema = state_runs, schema
        self._live = [~run.flags for run in state_runs]
        self._removed = [np.zeros(len(run.flags), dtype=bool) for run in state_runs]
        self.forget(since)

    def forget(self, before: int | None) -> None:
        """Drops the rows before this time."""
        if before is not None:
            self._live = [live & (run.run.ts >= before) for run, live in self._runs()]

    def where(self, chosen: Callable[[pa.RecordBatch], np.ndarray]) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Yields batches of n rows with bool[n]: which of them are live and chosen."""
        for run, live in self._runs():
            yield run.run.batch, live & chosen(run.run.batch)

    def with_hashes(self, hashes: np.ndarray, times: tuple[int, int] | None = None) -> GatheredRows:
        """The rows of keys with these hashes (uint64, sorted, distinct), from the first to the last of the times."""
        return self._gather([_rows_of(run, _within(run, live, times), hashes) for run, live in self._runs()])

    def remove(self, gathered: GatheredRows, chosen: np.ndarray) -> None:
        """Removes the chosen ones (bool[n])."""
        for number in range(len(self._state_runs)):
            rows = gathered.row[chosen & (gathered.run == number)]
            self._removed[number][rows] = True
            self._live[number][rows] = False

    def flags(self) -> dict[str, np.ndarray]:
        """By segment, the numbers of the rows removed in this epoch."""
        runs = zip(self._state_runs, self._removed, strict=True)
        return {run.segment: run.first + np.flatnonzero(removed) for run, removed in runs if removed.any()}

    def finished(self) -> frozenset[str]:
        return frozenset(run.segment for run, live in self._runs() if not live.any())

    def _runs(self) -> list[tuple[StateRun, np.ndarray]]:
        return list(zip(self._state_runs, self._live, strict=True))

    def _gather(self, rows: Sequence[np.ndarray]) -> GatheredRows:
        batches = [
            run.run.batch.take(pa.array(numbers))
            for run, numbers in zip(self._state_runs, rows, strict=True)
            if len(numbers)
        ]
        batch = concat(batches) if batches else pa.RecordBatch.from_pylist([], schema=self._schema)
        run = np.repeat(np.arange(len(rows)), [len(numbers) for numbers in rows])
        return GatheredRows(batch, run, np.concatenate([np.empty(0, dtype=np.int64), *rows]))


def _within(state_run: StateRun, live: np.ndarray, times: tuple[int, int] | None) -> np.ndarray:
    """bool[n]: the live rows from the first to the last of the times (None: all)."""
    if times is None:
        return live
    ts = state_run.run.ts
    return np.asarray(live & (ts >= times[0]) & (ts <= times[1]))


def _rows_of(state_run: StateRun, live: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    run = state_run.run
    if len(hashes) * _RATHER_LOOK_UP < len(run):
        first, stop = (np.searchsorted(run.hash, hashes, side=side) for side in ("left", "right"))
        rows = expand_ranges(first, stop)[1]
        return np.asarray(rows[live[rows]])
    rows = np.flatnonzero(live)
    nearest = np.minimum(np.searchsorted(hashes, run.hash[rows]), len(hashes) - 1)
    return np.asarray(rows[hashes[nearest] == run.hash[rows]])
