"""The join of tumbling and hopping windows of one shard in one epoch (rules W1-W4).

First the windows that the horizon closes go out, from what is kept; then the arrivals are judged and kept (T3). A row
that arrives is in its open windows only. No I/O, no clock, no randomness: the same work gives the same rows.
"""

# `survivors` takes all that the protocol gives, whether this kernel needs it or not.
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds import windows
from joinery_runtime.core.kinds.arrivals import split_joinable, to_keep
from joinery_runtime.core.kinds.cells import (
    Emitter,
    Members,
    Sides,
    changes,
    cut_by_hash,
    number_cells,
    spread,
    together,
)
from joinery_runtime.core.kinds.rows import MAX_ROWS, Selection
from joinery_runtime.core.kinds.windows import Numbers
from joinery_runtime.core.pipeline.spec import BEGIN_OF_TIME, LEFT, RIGHT, SIDES, StepSpec, TumblingWindow, clamp
from joinery_runtime.core.pipeline.step import Horizon, KeptRun, StepResult, StepWork
from joinery_runtime.core.table.columns import HASH, TS
from joinery_runtime.core.table.match import list_pairs
from joinery_runtime.core.table.segment import Run
from joinery_runtime.core.table.sort import sort_order

Bounds = tuple[np.ndarray, np.ndarray]  # int64[n] each: the first and the last window of each row


def run(step: StepSpec, work: StepWork) -> StepResult:
    out = Emitter(step, ordered=work.ordered)
    _close(step, work, out)
    kept, dropped = zip(*(_arrive(step, work, side, out) for side in SIDES), strict=True)
    return StepResult(
        output=out.batches,
        kept=kept,
        dropped=dropped,
        lookups=(out.lookups[LEFT], out.lookups[RIGHT]),
        matches=out.matches,
    )


def survivors(step: StepSpec, side: int, runs: Sequence[KeptRun], horizon: Horizon) -> Sequence[KeptRun]:
    """A `Survivors`: the rows that are still in an open window."""
    if horizon.now is None:
        return runs
    since = windows.keep_from(_rule(step), horizon.now)
    return [kept.where(kept.run.ts >= since) for kept in runs]


def _rule(step: StepSpec) -> TumblingWindow:
    return cast(TumblingWindow, step.rule)


def _horizon(work: StepWork) -> Horizon:
    """Windows close by the lower of the two watermarks: both sides have one horizon."""
    return work.horizons[LEFT]


# --- closing ----------------------------------------------------------------------------------------------------------


def _close(step: StepSpec, work: StepWork, out: Emitter) -> None:
    rule, closing = _rule(step), windows.closing(_rule(step), _horizon(work))
    if closing is None:
        return
    left, right = ([_in_windows(rule, kept.run, closing) for kept in work.kept[side]] for side in SIDES)
    for piece in cut_by_hash((left, right)):
        for members in _members(step, piece, closing):
            out.close(members)


def _in_windows(rule: TumblingWindow, run: Run, numbers: Numbers) -> Selection:
    first, last = numbers
    chosen = (run.ts >= first * rule.slide) & (run.ts < last * rule.slide + rule.size)
    return Selection(run.batch, np.flatnonzero(chosen))


def _members(step: StepSpec, piece: Sides, closing: Numbers) -> Iterator[tuple[Members, Members]]:
    batches = [together(step.sides[side], piece[side]) for side in SIDES]
    bounds = [_bounds(_rule(step), batch, closing) for batch in batches]
    for numbers in _cut_by_window(bounds):
        yield _in_cells(_rule(step), batches, [_within(b, numbers) for b in bounds])


def _bounds(rule: TumblingWindow, batch: pa.RecordBatch, closing: Numbers) -> Bounds:
    every = windows.windows_of(rule, batch.column(TS).to_numpy())
    return _within(every, (clamp(closing[0]), clamp(closing[1])))


def _within(bounds: Bounds, numbers: Numbers) -> Bounds:
    return np.maximum(bounds[0], numbers[0]), np.minimum(bounds[1], numbers[1])


def _cut_by_window(bounds: Sequence[Bounds]) -> Iterator[Numbers]:
    """Consecutive windows that hold at most MAX_ROWS rows together, or single ones: a row is in size / slide windows,
    so a few rows can be very many members."""
    filled = [b for b in bounds if len(b[0])]
    if filled:
        whole = min(int(first.min()) for first, _ in filled), max(int(last.max()) for _, last in filled)
        yield from _halved(filled, whole)


def _halved(bounds: Sequence[Bounds], numbers: Numbers) -> Iterator[Numbers]:
    first, last = numbers
    members = sum(int(np.maximum(b[1] - b[0] + 1, 0).sum()) for b in (_within(b, numbers) for b in bounds))
    if members <= MAX_ROWS or first == last:
        yield numbers
        return
    middle = (first + last) // 2
    yield from _halved(bounds, (first, middle))
    yield from _halved(bounds, (middle + 1, last))


def _in_cells(
    rule: TumblingWindow, batches: Sequence[pa.RecordBatch], bounds: Sequence[Bounds]
) -> tuple[Members, Members]:
    spreads = [spread(first, last + 1) for first, last in bounds]
    hashes = np.concatenate([batches[side].column(HASH).to_numpy()[spreads[side][0]] for side in SIDES])
    numbers = np.concatenate([number for _, number in spreads])
    order = sort_order(hashes, numbers)
    cells = number_cells(order, changes(hashes[order]) | changes(numbers[order]))
    left, right = np.split(cells, [len(spreads[LEFT][0])])
    return _side(rule, batches[LEFT], spreads[LEFT], left), _side(rule, batches[RIGHT], spreads[RIGHT], right)


def _side(
    rule: TumblingWindow, batch: pa.RecordBatch, held: tuple[np.ndarray, np.ndarray], cells: np.ndarray
) -> Members:
    row, number = held
    start = number * rule.slide
    return Members(Selection(batch, row), cells, start, start + rule.size)


# --- arrivals ---------------------------------------------------------------------------------------------------------


def _arrive(step: StepSpec, work: StepWork, side: int, out: Emitter) -> tuple[Run | None, Mapping[str, int]]:
    """What is kept of a side's arrivals, and how many were dropped by reason."""
    rows, spec, closed = work.arrivals[side], step.sides[side], _horizon(work).now
    if rows is None:
        return None, {}
    late = _late(_rule(step), rows, closed)
    joinable, alone = split_joinable(spec, rows.filter(pa.array(~late)))
    _pad(_rule(step), side, alone, closed, out)
    return to_keep(spec, joinable), {"late": int(late.sum())} if late.any() else {}


def _late(rule: TumblingWindow, rows: pa.RecordBatch, closed: int | None) -> np.ndarray:
    """bool[n]: all windows of the row are closed (W2)."""
    ts = rows.column(TS).to_numpy()
    if closed is None:
        return np.zeros(len(ts), dtype=bool)
    return np.asarray(ts < windows.keep_from(rule, closed))


def _pad(rule: TumblingWindow, side: int, alone: pa.RecordBatch, closed: int | None, out: Emitter) -> None:
    """Rows that cannot match go out once per window that is still open (O2, W3)."""
    first, last = windows.windows_of(rule, alone.column(TS).to_numpy())
    open_from = BEGIN_OF_TIME if closed is None else windows.last_closed(rule, closed) + 1
    first = np.maximum(first, clamp(open_from))
    for row, number in list_pairs((np.arange(len(first)), first, last + 1), MAX_ROWS):
        start = number * rule.slide
        out.pad_arrivals(side, Selection(alone, row), start, start + rule.size)
