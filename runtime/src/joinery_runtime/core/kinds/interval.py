"""The interval join of one shard in one epoch (rules J1-J7, O1-O2), on sorted runs: inner, left, right and full.

No I/O, no clock, no randomness: the same work gives the same rows.
"""
# ruff: noqa: ARG001 - what a `Survivors` is given is the same for every kernel

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.arrivals import as_segment, split_joinable
from joinery_runtime.core.kinds.rows import (
    Pairs,
    Selection,
    bounded,
    confirm,
    in_arrival_order,
    in_closing_order,
    project,
)
from joinery_runtime.core.pipeline.spec import LEFT, RIGHT, SIDES, Interval, SideSpec, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, KeptRun, StepResult, StepWork
from joinery_runtime.core.table.columns import TS
from joinery_runtime.core.table.match import find_ranges, list_pairs
from joinery_runtime.core.table.segment import Run


def run(step: StepSpec, work: StepWork) -> StepResult:
    """Closes what lies behind the horizons, then takes the arrivals: left first, then right (J2)."""
    epoch = _Epoch(step, work)
    output = [*epoch.closings(), *epoch.arrive(LEFT), *epoch.arrive(RIGHT)]
    return StepResult(
        output=output,
        kept=(epoch.kept(LEFT), epoch.kept(RIGHT)),
        marks=(epoch.marks(LEFT), epoch.marks(RIGHT)),
        dropped=(epoch.dropped(LEFT), epoch.dropped(RIGHT)),
        lookups=(epoch.lookups(LEFT), epoch.lookups(RIGHT)),
        matches=epoch.matches,
    )


def survivors(step: StepSpec, side: int, runs: Sequence[KeptRun], horizon: Horizon) -> Sequence[KeptRun]:
    """The rows that are still kept (J3)."""
    since = horizon.now
    return runs if since is None else [kept.where(kept.run.ts >= since) for kept in runs]


@dataclass(slots=True)
class _Rows:
    """Rows that can be matched, and which of them have been: `matched` is what was known before, `found` what this
    epoch adds. `found` is None where nobody asks."""

    run: Run
    matched: np.ndarray | None
    found: np.ndarray | None
    kept: KeptRun | None = None

    @classmethod
    def of_segment(cls, kept: KeptRun) -> _Rows:
        return cls(
            kept.run, kept.marked, np.zeros(len(kept.run), dtype=bool) if kept.marked is not None else None, kept
        )

    @classmethod
    def arriving(cls, rows: pa.RecordBatch, *, marks: bool) -> _Rows:
        run = Run.sort(rows)
        return cls(run, None, np.zeros(len(run), dtype=bool) if marks else None)


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """What came on one side: rows that can match, rows that cannot (preserved sides only), and how many were late."""

    joinable: _Rows | None
    unjoinable: pa.RecordBatch | None
    late: int


class _Epoch:
    def __init__(self, step: StepSpec, work: StepWork) -> None:
        self._step, self._work = step, work
        self._rule = cast(Interval, step.rule)
        self._kept = tuple([_Rows.of_segment(kept) for kept in work.kept[side]] for side in SIDES)
        self._new = tuple(_arrivals(step.sides[side], work, side) for side in SIDES)
        self.matches = 0

    # --- what goes out ------------------------------------------------------------------------------------------------

    def closings(self) -> Iterator[pa.RecordBatch]:
        """O1: rows of preserved sides that leave without ever having matched."""
        for side in SIDES:
            if self._step.sides[side].preserved:
                for rows in self._kept[side]:
                    yield from self._close(side, rows)

    def _close(self, side: int, rows: _Rows) -> Iterator[pa.RecordBatch]:
        horizon = self._work.horizons[side]
        if horizon.now is None:
            return
        leaves = rows.run.ts < horizon.now
        if horizon.before is not None:
            leaves &= rows.run.ts >= horizon.before
        assert rows.matched is not None, "rows of preserved sides have marks"
        padded = Pairs.of(side, Selection(rows.run.batch, np.flatnonzero(leaves & ~rows.matched)), None)
        yield from self._emit(padded, None)

    def arrive(self, side: int) -> Iterator[pa.RecordBatch]:
        """Matches of one side's arrivals with what is kept of the other, and what is padded at once (O2)."""
        new = self._new[side]
        if new.joinable is not None:
            earlier = self._new[LEFT].joinable
            others = [*self._kept[1 - side], *([earlier] if side == RIGHT and earlier is not None else [])]
            for other in others:
                yield from self._probe(side, new.joinable, other)
        if self._step.sides[side].preserved:
            yield from self._pad_at_once(side, new)

    def _pad_at_once(self, side: int, new: _Arrivals) -> Iterator[pa.RecordBatch]:
        if new.unjoinable is not None:
            rows = Selection(new.unjoinable, np.arange(new.unjoinable.num_rows))
            yield from self._emit(Pairs.of(side, rows, None), side)
        if new.joinable is not None:
            alone = ~self._keepable(side) & ~_found(new.joinable)
            rows = Selection(new.joinable.run.batch, np.flatnonzero(alone))
            yield from self._emit(Pairs.of(side, rows, None), side)

    def _probe(self, side: int, new: _Rows, other: _Rows) -> Iterator[pa.RecordBatch]:
        for pairs in (piece for found in self._find(side, new, other) for piece in bounded(self._step, found)):
            found = pairs.where(confirm(self._step, pairs))
            self._note(side, new, found)
            self._note(1 - side, other, found)
            self.matches += len(found)
            yield from self._emit(found, side)

    def _emit(self, pairs: Pairs, arrived: int | None) -> Iterator[pa.RecordBatch]:
        if len(pairs):
            rows = project(self._step, pairs)
            if self._work.ordered:
                rows = in_closing_order(rows, pairs) if arrived is None else in_arrival_order(rows, arrived, pairs)
            yield rows

    def _note(self, side: int, rows: _Rows, pairs: Pairs) -> None:
        selected = pairs.side(side)
        if rows.found is not None and selected is not None:
            rows.found[selected.index] = True

    # --- candidates ---------------------------------------------------------------------------------------------------

    def _find(self, side: int, new: _Rows, other: _Rows) -> Iterator[Pairs]:
        """Pairs whose hashes and times fit, of rows that are still kept on the other side."""
        if self._step.sides[side].broadcast:
            # Runs of the broadcast side are sorted by time alone; the other side's are not. So that one asks.
            probes = self._near(1 - side, other.run, new.run)
            yield from self._candidates(1 - side, other.run, probes, new.run, None)
        else:
            keep_from = self._work.horizons[1 - side].now
            yield from self._candidates(side, new.run, np.arange(len(new.run)), other.run, keep_from)

    def _near(self, side: int, run: Run, new: Run) -> np.ndarray:
        """The rows of a kept run that are still kept and may be near enough to a few new ones."""
        first, last = self._rule.partner_bounds(1 - side)
        since = self._work.horizons[side].now
        near = (run.ts >= new.ts.min() + first) & (run.ts <= new.ts.max() + last)
        return np.flatnonzero(near if since is None else near & (run.ts >= since))

    def _candidates(
        self, side: int, run: Run, probes: np.ndarray, other: Run, keep_from: int | None
    ) -> Iterator[Pairs]:
        lower, upper = self._rule.partner_bounds(side)
        ts = run.ts[probes]
        first, last = ts + lower, ts + upper
        if keep_from is not None:
            first = np.maximum(first, keep_from)
        hashes = np.zeros(len(probes), dtype=np.uint64) if self._step.broadcast else run.hash[probes]
        for asked, answered in list_pairs(find_ranges(other.hash, other.ts, hashes, first, last)):
            yield Pairs.of(side, Selection(run.batch, probes[asked]), Selection(other.batch, answered))

    # --- what stays ---------------------------------------------------------------------------------------------------

    def _keepable(self, side: int) -> np.ndarray:
        """bool[n] of the arrivals that can match: whether a future row may match them (J3, J5)."""
        new, since = self._new[side].joinable, self._work.horizons[side].now
        assert new is not None, "only rows that are there are kept"
        return np.ones(len(new.run), dtype=bool) if since is None else new.run.ts >= since

    def kept(self, side: int) -> Run | None:
        new, spec = self._new[side].joinable, self._step.sides[side]
        if new is None:
            return None
        keepable = self._keepable(side)
        batch = as_segment(spec, new.run.batch, _found(new))
        kept = Run.view(batch if keepable.all() else batch.filter(pa.array(keepable)))
        return kept if len(kept) else None

    def marks(self, side: int) -> dict[str, np.ndarray]:
        newly = [(rows.kept, _newly(rows)) for rows in self._kept[side]]
        return {kept.segment: kept.first + numbers for kept, numbers in newly if kept is not None and len(numbers)}

    def dropped(self, side: int) -> dict[str, int]:
        late = self._new[side].late
        return {"late": late} if late else {}

    def lookups(self, side: int) -> int:
        new = self._new[side].joinable
        return len(new.run) if new is not None else 0


def _found(rows: _Rows) -> np.ndarray:
    return rows.found if rows.found is not None else np.zeros(len(rows.run), dtype=bool)


def _newly(rows: _Rows) -> np.ndarray:
    if rows.found is None or rows.matched is None:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(rows.found & ~rows.matched)


def _arrivals(side: SideSpec, work: StepWork, number: int) -> _Arrivals:
    rows, late = _judge(work.arrivals[number], work.accept_from[number])
    if rows is None:
        return _Arrivals(None, None, late)
    can, cannot = split_joinable(side, rows)
    return _Arrivals(_rows(can, marks=side.marks), cannot if cannot.num_rows else None, late)


def _rows(batch: pa.RecordBatch, *, marks: bool) -> _Rows | None:
    return _Rows.arriving(batch, marks=marks) if batch.num_rows else None


def _judge(batch: pa.RecordBatch | None, accept_from: int | None) -> tuple[pa.RecordBatch | None, int]:
    """The rows that are not late and how many were (J6)."""
    if batch is None or accept_from is None:
        return batch, 0
    accepted = batch.column(TS).to_numpy() >= accept_from
    late = len(accepted) - int(accepted.sum())
    if late == len(accepted):
        return None, late
    return (batch.filter(pa.array(accepted)) if late else batch), late
