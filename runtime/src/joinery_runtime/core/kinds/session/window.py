"""Sessions of one shard in one epoch (rules S1-S7; docs/architecture.md, "Sessions").

First what the horizons complete goes out and what they end is forgotten, from what is kept; then the arrivals become
sessions together with those that are still there (T3). No I/O, no clock, no randomness: the same work gives the same
rows.
"""

# `survivors` takes all that the protocol gives, whether this kernel needs it or not.
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.session.arrivals import judge
from joinery_runtime.core.kinds.session.change import change, stays
from joinery_runtime.core.kinds.session.kept import KeptSessions
from joinery_runtime.core.kinds.session.out import Emitter
from joinery_runtime.core.pipeline.spec import SessionWindow, StepSpec
from joinery_runtime.core.pipeline.step import ARRIVAL, CLOSING, Horizon, KeptRun, StepResult, StepWork
from joinery_runtime.core.table.columns import EMITTED, FORCED, HASH, TS
from joinery_runtime.core.table.segment import Run


def run(step: StepSpec, work: StepWork) -> StepResult:
    epoch = _Epoch(step, work)
    epoch.complete()
    epoch.arrive()
    return epoch.result()


def survivors(step: StepSpec, side: int, runs: Sequence[KeptRun], horizon: Horizon) -> Sequence[KeptRun]:
    """A `Survivors`: what has not gone, nor ended."""
    return [kept.where(_there(kept, horizon.now)) for kept in runs]


def _there(kept: KeptRun, since: int | None) -> np.ndarray:
    assert kept.marked is not None, "rows of sessions have marks"
    return np.asarray(~kept.marked if since is None else ~kept.marked & (kept.run.ts >= since))


class _Epoch:
    def __init__(self, step: StepSpec, work: StepWork) -> None:
        (self._side,), (kept,), (self._horizon,), (self._rows,) = step.sides, work.kept, work.horizons, work.arrivals
        self._work, self._rule, self._complete = work, cast(SessionWindow, step.rule), work.complete
        self._kept = KeptSessions(kept, self._horizon.before, self._side.segment_schema())
        self._out = Emitter(step, ordered=work.ordered)
        self._stays: Run | None = None
        self._dropped: dict[str, int] = {}
        self._looked_up = 0

    def result(self) -> StepResult:
        return StepResult(
            output=self._out.batches,
            kept=(self._stays,),
            marks=(self._kept.marks(),),
            finished=self._kept.finished(),
            dropped=(self._dropped,),
            lookups=(self._looked_up,),
        )

    def complete(self) -> None:
        """What the horizons have passed since the last epoch goes out, unless it has (S4, S5), and is forgotten."""
        now = self._complete.now
        if now is not None and now != self._complete.before:
            self._out.emit(self._kept.where(self._completes), CLOSING)
        self._kept.forget(self._horizon.now)

    def _completes(self, rows: pa.RecordBatch) -> np.ndarray:
        last, before = rows.column(TS).to_numpy(), self._complete.before
        complete = last < cast(int, self._complete.now)
        if before is not None:
            complete &= last >= before
        return np.asarray(complete & ~_flags(rows, EMITTED) & ~_flags(rows, FORCED))

    def arrive(self) -> None:
        if self._rows is None:
            return
        # Unlike numpy's `unique`, Arrow's costs the same however often each hash is there.
        kept = self._kept.of(np.sort(pc.unique(self._rows.column(HASH)).to_numpy()))
        arrived = judge(self._side, self._rule, self._work, self._rows, kept.batch)
        self._dropped, self._looked_up = arrived.dropped, arrived.taken
        if not arrived.taken:
            return
        changed = change(self._side, self._rule, arrived, self._complete.now)
        if self._rule.retracts:
            self._out.emit(kept.batch.filter(pa.array(changed.retracted)), ARRIVAL, retracted=True)
        self._out.emit(changed.rows.filter(pa.array(changed.goes_out)), ARRIVAL)
        self._kept.leave(kept, changed.replaced)
        self._stays = stays(self._rule, changed.rows)


def _flags(rows: pa.RecordBatch, name: str) -> np.ndarray:
    return np.asarray(rows.column(name).to_numpy(zero_copy_only=False))
