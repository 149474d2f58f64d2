"""Deduplicates the rows of one side: of each key, the first or the last row of a span of time (rules D1 to D4).

Rows wait until the horizon has passed their event time. Then no row can come any more that would precede them, so
which rows are repeats does not depend on how epochs were cut. No I/O, no clock, no randomness: the same work gives the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates import AggregateCall
from joinery_runtime.core.kinds.base import Ranking, lowest_of_left
from joinery_runtime.core.kinds.cells import cut_by_hash
from joinery_runtime.core.kinds.grouping import order_by_key, reachable_positions
from joinery_runtime.core.kinds.rows import (
    PairFailures,
    Pairs,
    ReplaceableRows,
    Selection,
    cut_pairs,
    gather,
    project,
    run_to_add,
    tie_breakers,
)
from joinery_runtime.core.pipeline.expression import Expression
from joinery_runtime.core.pipeline.sides import LEFT, SideSpec
from joinery_runtime.core.pipeline.spec import AcceptedRow, Distance, Retention, RowTime, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons, StateRun, StepResult, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import (
    BEGIN_OF_TIME,
    END_OF_TIME,
    OutputWatermarks,
    Watermark,
    clamp,
    earlier,
)
from joinery_runtime.core.table.columns import HASH, TS
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow
from joinery_runtime.job.kinds.ranking import Deduplication, RankingKind


@dataclass(frozen=True, slots=True)
class LatestSpanEnd(RowTime):
    """The end of a span that begins with the row decides: no span that holds the row ends later."""

    within: int

    def time_of(self, row: AcceptedRow) -> int | None:
        return row.ts + self.within

    def event_time_at(self, time: int) -> int:
        return END_OF_TIME if time > END_OF_TIME else clamp(time - self.within)


@dataclass(frozen=True, slots=True)
class Deduplicate(Ranking):
    """Emits the first or the last row of each span of a key. A row of the state is a row that waits or the first one of
    an open span; if the last one is emitted, also the last one so far. A flagged row is a repeat, or of a span that was
    emitted, and has left.

    The horizon is `wm - allowedLateness`, with the watermark that the step before hands on (N3), or the input's own.
    Rows before the horizon are decided: none can come any more that precedes them."""

    written_as: ClassVar[tuple[type[RankingKind], ...]] = (Deduplication,)

    within: int
    keep_last: bool = False
    allowed_lateness: int = 0
    late_to_dead_letters: bool = False
    retention: tuple[Retention, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept_for = self.within + self.allowed_lateness
        retention = Retention(LatestSpanEnd(self.within), "d3", kept_for_ms=kept_for, inclusive=True)
        object.__setattr__(self, "retention", (retention,))

    @classmethod
    def of(
        cls,
        ranking: RankingKind,
        _expressions: tuple[Expression, ...],
        _of_windows: AlignedWindow | None = None,
        _totals: tuple[AggregateCall, ...] = (),
        /,
    ) -> Self:
        written = cast(Deduplication, ranking)
        return cls(written.within, written.keep == "last", written.allowed_lateness, written.late_data == "dlq")

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        (side,), (state_runs,), (horizon,), (rows,) = step.sides, work.state_runs, work.horizons, work.arrivals
        stored = ReplaceableRows(state_runs, self._kept_from(horizon.previous), side.segment_schema())
        failures, late = PairFailures(), 0
        yield from self._decide(step, stored, horizon, failures, ordered=work.ordered)
        if horizon.current is not None:
            stored.forget(self._kept_from(horizon.current))
            if rows is not None:
                on_time = rows.filter(pa.array(rows.column(TS).to_numpy() >= horizon.current))
                late, rows = rows.num_rows - on_time.num_rows, on_time
        return StepResult(
            added=(None if rows is None else run_to_add(side, rows),),
            flags=(stored.flags(),),
            finished=stored.finished(),
            dropped=({"late": late} if late else {},),
            lookups=(0 if rows is None else rows.num_rows,),
            failed=failures.count,
        )

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return closing or (self.keep_last and arrived[side])

    # --- time ---------------------------------------------------------------------------------------------------------

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """See D3."""
        return horizons[step.sides[side].part].current

    def output_watermarks(
        self, step: StepSpec, lows: OutputWatermarks, horizons: Horizons, distance: Distance
    ) -> OutputWatermarks:
        """N3: a first row that was not emitted before this epoch is at the horizon of the epoch before, or later. A
        last row is not before its span, which begins less than `within` before that horizon."""
        previous = horizons[step.sides[LEFT].part].previous
        return lowest_of_left(step, lows, earlier(previous, self.within - 1) if self.keep_last else previous, distance)

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        if horizon.current is None:
            return False
        until, since = horizon.current, horizon.previous
        if self.keep_last:  # the first row of a span decides when the span is emitted
            until, since = clamp(until - self.within + 1), None if since is None else clamp(since - self.within + 1)
        return meta.ts_min < until and (since is None or meta.ts_max >= since)

    def without_emitted(
        self, step: StepSpec, side: int, state_run: StateRun, horizon: Horizon, complete: int | None
    ) -> StateRun:
        """Forget a first row that was emitted, so repeats that come again count as first ones."""
        live = self.live_rows(step, side, state_run, horizon, complete)
        undecided = self.keep_last or horizon.current is None
        return live if undecided else live.where(live.run.ts >= horizon.current)

    def _kept_from(self, horizon: int | None) -> int | None:
        return None if horizon is None else self.retention[0].keep_from(horizon)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(
        self, step: StepSpec, stored: ReplaceableRows, horizon: Horizon, failures: PairFailures, *, ordered: bool
    ) -> Iterator[pa.RecordBatch]:
        """Emit rows of keys of which the horizon has passed a row or the end of a span, and remove repeats."""
        current = horizon.current
        if current is None:
            return
        ended = clamp(current - self.within)  # a span that begins here or earlier is closed

        def may_decide(rows: pa.RecordBatch) -> np.ndarray:
            ts = rows.column(TS).to_numpy()
            return np.asarray(horizon.passes(ts) | (self.keep_last & (ts <= ended)))

        selections = [Selection(rows, np.flatnonzero(chosen)) for rows, chosen in stored.where(may_decide)]
        for piece, _ in cut_by_hash((selections, [])):
            hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *(rows.numbers(HASH) for rows in piece)]))
            if not len(hashes):
                continue
            gathered = stored.with_hashes(hashes, (BEGIN_OF_TIME, current - 1))
            rows = gathered.batch
            order, begins = spans(step.sides[0], rows, self.within)
            ts = rows.column(TS).to_numpy()[order]
            removed = np.zeros(rows.num_rows, dtype=bool)
            if self.keep_last:
                ends = np.append(begins[1:], True)
                closed = (ts[begins] <= ended)[np.cumsum(begins) - 1]
                emitted = order[ends & closed]
                removed[order] = closed | ~(begins | ends)
            else:
                emitted = order[begins & horizon.passes(ts)]
                removed[order] = ~begins
            stored.remove(gathered, removed)
            for chosen in cut_pairs(step, Pairs(Selection(rows, emitted), None)):
                yield project(step, chosen, failures, ordered=ordered, arrived=None)


def spans(side: SideSpec, rows: pa.RecordBatch, within: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an order (int64[n]) of n > 0 rows by key, event time and place (D1), and bool[n]: where spans begin in
    this order. A span ends before the first row that is `within` (ms) or more behind its first one."""
    everything = Selection(rows, np.arange(rows.num_rows))
    keys = [gather(side, everything, name) for name in side.intake.keys]
    ts = rows.column(TS).to_numpy()
    order, begins = order_by_key(rows.column(HASH).to_numpy(), keys, ts, *tie_breakers(side, rows))
    key = np.cumsum(begins) - 1
    # Times become ranks, so that a key and a time fit one number.
    ranks, rank = np.unique(np.concatenate([ts[order], ts[order] + within]), return_inverse=True)
    at, end = np.split(rank, 2)
    after = np.searchsorted(key * len(ranks) + at, key * len(ranks) + end)
    spans_begin = np.zeros(len(order), dtype=bool)
    spans_begin[reachable_positions(after, np.flatnonzero(begins))] = True
    return order, spans_begin
