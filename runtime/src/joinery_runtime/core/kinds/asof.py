"""The stream-table as-of join of one shard in one epoch (rules A1-A4): inner and left. LEFT is the stream, RIGHT the
table.

The table's arrivals join the versions first. Then the waiting rows whose grace is over go out by time, then those
arrivals of the stream that need not wait, by (partition, offset). `core.kinds.versions` says which version a row takes.

No I/O, no clock, no randomness: the same work gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.arrivals import as_segment
from joinery_runtime.core.kinds.rows import (
    Pairs,
    Selection,
    in_arrival_order,
    in_closing_order,
    project,
    residual,
    rows_at_once,
)
from joinery_runtime.core.kinds.versions import still_there, superseded_on_arrival, valid_versions
from joinery_runtime.core.pipeline.spec import LEFT, RIGHT, AsOf, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, KeptRun, StepResult, StepWork
from joinery_runtime.core.table.columns import DELETED, JOINABLE, OFFSET, PARTITION, TS
from joinery_runtime.core.table.segment import Run, concat


def run(step: StepSpec, work: StepWork) -> StepResult:
    """Looks up every stream row that goes out in this epoch. Nothing of the stream is dropped as late (A3)."""
    taken, expired = _take_in(step, work)
    runs = [*(kept.run for kept in work.kept[RIGHT]), *([taken] if taken is not None else [])]
    at_once, held = _arriving(step, work)
    going = [(rows, closing) for rows, closing in ((_due(work), True), (at_once, False)) if rows is not None]
    joined = [_join(step, work, part, runs, closing=closing) for rows, closing in going for part in _cut(rows, runs)]
    return StepResult(
        output=[one.rows for one in joined if one.rows.num_rows],
        kept=(held, taken),
        dropped=({}, {"expired": expired} if expired else {}),
        lookups=(sum(one.lookups for one in joined), 0),
        matches=sum(one.matches for one in joined),
    )


def survivors(
    step: StepSpec,
    side: int,
    runs: Sequence[KeptRun],
    horizon: Horizon,
) -> Sequence[KeptRun]:
    """Stream: the rows that still wait. Table: the versions that are not superseded at the horizon.

    A deletion that is valid at the horizon stays even where it is a key's only version: without it, a version from
    before the deletion that arrives later would come back to life instead of being dropped (A2).
    """
    now = horizon.now
    if now is None or not runs:
        return runs
    if side == LEFT:
        return [kept.where(kept.run.ts > now) for kept in runs]
    there = still_there(step, [kept.run for kept in runs], now)
    return [kept.where(chosen) for kept, chosen in zip(runs, there, strict=True)]


# --- what goes out, what stays ----------------------------------------------------------------------------------------


def _take_in(step: StepSpec, work: StepWork) -> tuple[Run | None, int]:
    """The table's arrivals that join the versions, and how many were superseded beyond the horizon already (A2)."""
    arrivals, horizon = work.arrivals[RIGHT], work.horizons[RIGHT].now
    if arrivals is None or horizon is None:
        return _stored(step, RIGHT, arrivals), 0
    gone = superseded_on_arrival(step, arrivals, [kept.run for kept in work.kept[RIGHT]], horizon)
    return _stored(step, RIGHT, arrivals.filter(pa.array(~gone))), int(gone.sum())


def _arriving(step: StepSpec, work: StepWork) -> tuple[pa.RecordBatch | None, Run | None]:
    """The stream's arrivals, by (partition, offset), that go out at once, and those that wait (A3). A row that cannot
    match has nothing to wait for (O2)."""
    rows = work.arrivals[LEFT]
    if rows is None:
        return None, None
    waits = _joinable(rows) & ~_grace_is_over(step, rows.column(TS).to_numpy(), work.horizons[LEFT].now)
    at_once = _sorted(rows.filter(pa.array(~waits)), PARTITION, OFFSET)
    return at_once, _stored(step, LEFT, rows.filter(pa.array(waits)))


def _grace_is_over(step: StepSpec, ts: np.ndarray, now: int | None) -> np.ndarray:
    assert isinstance(step.rule, AsOf), "this kernel runs as-of steps"
    if step.rule.grace == 0:
        return np.ones(len(ts), dtype=bool)
    return np.zeros(len(ts), dtype=bool) if now is None else ts <= now


def _due(work: StepWork) -> pa.RecordBatch | None:
    """The kept rows that have waited until now, by time. What went out in an epoch before may still be there."""
    horizon = work.horizons[LEFT]
    if horizon.now is None:
        return None
    due = [_between(kept.run, horizon.before, horizon.now) for kept in work.kept[LEFT]]
    return _sorted(concat(due), TS, PARTITION, OFFSET) if due else None


def _between(run: Run, before: int | None, now: int) -> pa.RecordBatch:
    open_ = run.ts <= now if before is None else (run.ts > before) & (run.ts <= now)
    return run.batch.filter(pa.array(open_))


def _joinable(rows: pa.RecordBatch) -> np.ndarray:
    if JOINABLE not in rows.schema.names:
        return np.ones(rows.num_rows, dtype=bool)
    return np.asarray(rows.column(JOINABLE).to_numpy(zero_copy_only=False))


def _stored(step: StepSpec, side: int, rows: pa.RecordBatch | None) -> Run | None:
    if rows is None or not rows.num_rows:
        return None
    return Run.sort(as_segment(step.sides[side], rows), by_offset=side == RIGHT)


def _sorted(rows: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in names]))


def _cut(rows: pa.RecordBatch, runs: Sequence[Run]) -> Iterator[pa.RecordBatch]:
    at_once = rows_at_once([rows, *(run.batch for run in runs)])
    return (rows.slice(first, at_once) for first in range(0, rows.num_rows, at_once))


# --- joining ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Joined:
    """`rows` are in the order of the stream rows that they come from; `lookups` says how many of these could match."""

    rows: pa.RecordBatch
    lookups: int
    matches: int


def _join(step: StepSpec, work: StepWork, rows: pa.RecordBatch, runs: Sequence[Run], *, closing: bool) -> _Joined:
    asked = Selection(rows, np.flatnonzero(_joinable(rows)))
    pairs = _pairs(step, asked, runs, work.horizons[RIGHT].now)
    padded = Pairs(_without_partner(rows, pairs), None) if step.sides[LEFT].preserved else None
    parts = [part for part in (pairs, padded) if part is not None]
    made = [_made(step, part, ordered=work.ordered, closing=closing) for part in parts]
    output = _in_order_of(parts, made) if made else pa.RecordBatch.from_pylist([], step.output_schema())
    return _Joined(output, len(asked), len(pairs) if pairs is not None else 0)


def _pairs(step: StepSpec, asked: Selection, runs: Sequence[Run], horizon: int | None) -> Pairs | None:
    """Stream rows with the versions valid at their times, by the rows' positions; without deleted versions, and without
    pairs that the residual predicate refuses: it never makes an older version valid."""
    found = valid_versions(step, asked, runs, horizon)
    if found is None:
        return None
    deleted = found.versions.batch.column(DELETED).to_numpy(zero_copy_only=False)[found.versions.index]
    pairs = Pairs(asked.where(found.probes), found.versions).where(~deleted)
    return pairs.where(residual(step, pairs))


def _without_partner(rows: pa.RecordBatch, pairs: Pairs | None) -> Selection:
    alone = np.ones(rows.num_rows, dtype=bool)
    if pairs is not None and pairs.left is not None:
        alone[pairs.left.index] = False
    return Selection(rows, np.flatnonzero(alone))


def _made(step: StepSpec, pairs: Pairs, *, ordered: bool, closing: bool) -> pa.RecordBatch:
    rows = project(step, pairs)
    if not ordered:
        return rows
    return in_closing_order(rows, pairs) if closing else in_arrival_order(rows, LEFT, pairs)


def _in_order_of(parts: Sequence[Pairs], made: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Joined and padded rows side by side, as their stream rows stand."""
    if len(made) == 1:
        return made[0]
    positions = np.concatenate([part.left.index for part in parts if part.left is not None])
    return concat(made).take(pa.array(np.argsort(positions)))
