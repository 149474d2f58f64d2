"""Aggregates of tumbling, hopping and cumulative windows of one shard in one epoch (rules G1 to G8).

The state has a row per group and pane (`Windows.pane`), so an arrival costs the same however many windows hold it. An
epoch first emits the windows that the horizon closes, each merged from its panes. Then arrivals are folded into their
panes (T3). No I/O, no clock, no randomness: the same work gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates import AggregateCall
from joinery_runtime.core.kinds.aligned import ByWindows, LastEnd, Windows
from joinery_runtime.core.kinds.base import Aggregating, less_allowed_lateness
from joinery_runtime.core.kinds.cells import Numbers, concat_selections, cut_by_hash, cut_by_window, within
from joinery_runtime.core.kinds.folding import with_order_columns
from joinery_runtime.core.kinds.group_rows import GroupOutput
from joinery_runtime.core.kinds.rows import ReplaceableRows, Selection
from joinery_runtime.core.kinds.windowed.panes import Panes, pane_schema
from joinery_runtime.core.pipeline.operators import EVENT_TIME_MAX, EVENT_TIME_MIN
from joinery_runtime.core.pipeline.sides import Intake
from joinery_runtime.core.pipeline.spec import Distance, Retention, StepSpec
from joinery_runtime.core.pipeline.step import (
    ARRIVAL,
    CLOSING,
    Horizon,
    Horizons,
    StepResult,
    StepRun,
    StepWork,
)
from joinery_runtime.core.pipeline.watermark import OutputWatermarks, Times, clamp, passed_multiple
from joinery_runtime.core.table.columns import EARLY, HASH, TS
from joinery_runtime.core.table.segment import Run
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.aggregate.windows import ALIGNED_WINDOWS, AlignedWindow
from joinery_runtime.job.kinds.base import WindowKind
from joinery_runtime.job.model.references import WINDOW_COLUMNS, WINDOW_TIME


@dataclass(frozen=True, slots=True)
class WindowAggregation(ByWindows, Aggregating):
    """Aggregates the rows of one side in windows. A row of the state is a pane of a group, flagged once another row has
    replaced it. Its event time is the start of the pane.

    The horizon is `wm - allowedLateness`, with the watermark that the step before hands on (N3), or the input's own. A
    window is emitted, once, by the epoch whose horizon reaches its end."""

    written_as: ClassVar[tuple[type[WindowKind], ...]] = ALIGNED_WINDOWS
    column_types: ClassVar[Mapping[str, pa.DataType]] = dict.fromkeys((*WINDOW_COLUMNS, WINDOW_TIME), pa.int64())
    windows: Windows
    aggregates: tuple[AggregateCall, ...]
    allowed_lateness: int = 0
    late_to_dead_letters: bool = False
    emit_every: int | None = None
    reopens: bool = False
    retention: tuple[Retention, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept_for = self.windows.size + self.allowed_lateness
        retention = Retention(LastEnd(self.windows), "g2", kept_for_ms=kept_for, inclusive=True)
        object.__setattr__(self, "retention", (retention,))

    @classmethod
    def of(cls, aggregation: Aggregation, aggregates: tuple[AggregateCall, ...], /) -> Self:
        return cls(
            Windows.of(cast(AlignedWindow, aggregation.form)),
            aggregates,
            allowed_lateness=aggregation.allowed_lateness,
            late_to_dead_letters=aggregation.late_data == "dlq",
            emit_every=aggregation.emit_every,
            reopens=aggregation.late_data == "reopen",
        )

    def of_same_windows(self) -> Self:
        """Return the kind for rows that an aggregate with these windows has made: each is in the window that it comes
        from."""
        return replace(self, windows=replace(self.windows, of_windows=True))

    def state_schema(self, intake: Intake) -> pa.Schema:
        return pane_schema(intake, self.aggregates, emits_early=self.emit_every is not None)

    def flagged_rows_leave(self, step: StepSpec) -> bool:
        return True

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        (side,), (state_runs,), (horizon,), (rows,) = step.sides, work.state_runs, work.horizons, work.arrivals
        since = None if horizon.previous is None else self.windows.open_from(horizon.previous)
        stored = ReplaceableRows(state_runs, since, side.segment_schema())
        panes = Panes(self.windows, self.aggregates, side, work.written_at)
        output = _WindowOutput(self, step, panes, ordered=work.ordered)
        ended = work.complete if self.reopens else horizon
        closing = self._closing(ended, horizon)
        if closing is not None:
            yield from output.emit(stored.where(partial(self._has_one_of, closing)), closing)
        if horizon.current is not None:
            stored.forget(self.windows.open_from(horizon.current))
        if work.early.current != work.early.previous:
            yield from self._emit_early(output, stored, ended, work.early)
        added, late, accepted, lost = None, 0, 0, None
        if horizon.current is not None and rows is not None:
            on_time = rows.filter(pa.array(rows.column(TS).to_numpy() >= self.windows.open_from(horizon.current)))
            late, rows = rows.num_rows - on_time.num_rows, on_time
        if rows is not None and rows.num_rows:
            accepted, added = rows.num_rows, Run.sort(panes.add(rows, stored))
            lost = output.rows.lost_values(added.batch, added.ts)
            if self.reopens:
                yield from self._emit_again(output, stored, added.batch, ended, horizon)
        return StepResult(
            added=(added,),
            flags=(stored.flags(),),
            finished=stored.finished(),
            dropped=({"late": late} if late else {},),
            lookups=(accepted,),
            failed=output.rows.failures.count,
            filtered=output.rows.failures.filtered,
            unfit=tuple(output.rows.unfit),
            lost=lost,
        )

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return True

    # --- time ---------------------------------------------------------------------------------------------------------

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        """See G2 and G8."""
        (side,) = step.sides
        watermark = lows[side.time] if side.intake.chained else times[side.time].watermark
        horizons = {side.part: less_allowed_lateness(side, lows, self.allowed_lateness)}
        if self.reopens:
            horizons[side.complete] = watermark
        if self.emit_every is not None:
            horizons[side.early] = passed_multiple(watermark, self.emit_every)
        return horizons

    def output_watermarks(
        self, step: StepSpec, lows: OutputWatermarks, horizons: Horizons, distance: Distance
    ) -> OutputWatermarks:
        """N3: a window that was not emitted before this epoch ends after the horizon of the epoch before, and the time
        of its row is the last millisecond of the window (G10)."""
        (side,) = step.sides
        return {**lows, side.time: horizons[side.part].previous}

    # --- what is emitted ----------------------------------------------------------------------------------------------

    def _has_one_of(self, windows: Numbers, rows: pa.RecordBatch) -> np.ndarray:
        """bool[n]: the panes that are in one of the windows."""
        first, last = within(self.windows.numbers_of(rows.column(TS).to_numpy()), windows)
        return np.asarray(first <= last)

    def _may_change(self, hashes: np.ndarray, windows: Numbers, rows: pa.RecordBatch) -> np.ndarray:
        """bool[n]: the panes of groups with these hashes that are in one of the windows."""
        return np.asarray(np.isin(rows.column(HASH).to_numpy(), hashes) & self._has_one_of(windows, rows))

    def _closing(self, ended: Horizon, closed: Horizon) -> Numbers | None:
        """Return the windows that end in this epoch, without those that were closed before the job reopened windows."""
        windows = self.windows.closing(ended)
        if windows is None or closed.previous is None:
            return windows
        first = max(windows[0], self.windows.open(closed.previous)[0])
        return (first, windows[1]) if first <= windows[1] else None

    def _emit_again(
        self, output: _WindowOutput, stored: ReplaceableRows, added: pa.RecordBatch, ended: Horizon, closed: Horizon
    ) -> Iterator[pa.RecordBatch]:
        """Emit the windows that have ended, are still kept, and have taken some of the `added` panes (G3)."""
        if ended.current is None:
            return
        windows = self.windows.open(closed.current)[0], clamp(self.windows.last_closed(ended.current))
        hashes = np.unique(added.column(HASH).to_numpy())

        def is_added(rows: pa.RecordBatch) -> np.ndarray:
            return np.full(rows.num_rows, rows is added)

        members = [*stored.where(partial(self._may_change, hashes, windows)), (added, self._has_one_of(windows, added))]
        yield from output.emit(members, windows, is_added, ARRIVAL)

    def _emit_early(
        self, output: _WindowOutput, stored: ReplaceableRows, ended: Horizon, early: Horizon
    ) -> Iterator[pa.RecordBatch]:
        """Emit the open windows that have changed since the last early results, as they are so far (G8)."""

        def is_changed(rows: pa.RecordBatch) -> np.ndarray:
            return early.passes(rows.column(EARLY).to_numpy())

        windows = self.windows.open(ended.current)
        changed = [rows.column(HASH).to_numpy()[chosen] for rows, chosen in stored.where(is_changed)]
        hashes = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *changed]))
        yield from output.emit(stored.where(partial(self._may_change, hashes, windows)), windows, is_changed)


class _WindowOutput:
    """Emits windows."""

    def __init__(self, kind: WindowAggregation, step: StepSpec, panes: Panes, *, ordered: bool) -> None:
        self._kind, self._step, self._panes, self._ordered = kind, step, panes, ordered
        self.rows = GroupOutput(step, kind.aggregates)

    def emit(
        self,
        stored: Iterable[tuple[pa.RecordBatch, np.ndarray]],
        windows: Numbers,
        changed: Callable[[pa.RecordBatch], np.ndarray] | None = None,
        phase: int = CLOSING,
    ) -> Iterator[pa.RecordBatch]:
        """Emit these windows, merged from the stored panes that bool[n] chooses: those with a `changed` pane (None:
        all of them). The windows of one group come in the order of their ends."""
        batches = list(stored)
        selections = [Selection(rows, np.flatnonzero(mask)) for rows, mask in batches]
        marks = [np.ones(rows.num_rows, dtype=bool) if changed is None else changed(rows) for rows, _ in batches]
        for piece, _ in cut_by_hash((selections, [])):
            rows = concat_selections(self._step.sides[0], piece)
            bounds = within(self._kind.windows.numbers_of(rows.column(TS).to_numpy()), windows)
            of_piece = [mark[selection.index] for mark, selection in zip(marks, piece, strict=True)]
            marked = np.concatenate([np.empty(0, dtype=bool), *of_piece])
            for numbers in cut_by_window([bounds]):
                merged = self._panes.merge_windows(rows, within(bounds, numbers), marked)
                emitted = self._make(merged, phase)
                if emitted.num_rows:
                    yield emitted

    def _make(self, merged: pa.RecordBatch, phase: int) -> pa.RecordBatch:
        """Return the output rows of windows, which are rows of the state with a window's number as event time."""
        numbers, windows = merged.column(TS).to_numpy(), self._kind.windows
        times = windows.starts(numbers), windows.ends(numbers)
        values = {
            **self.rows.group_values(merged),
            # A window may reach further than its rows, whose times are within the years of timestamps.
            **{
                name: pa.array(np.clip(time, EVENT_TIME_MIN, EVENT_TIME_MAX))
                for name, time in zip(WINDOW_COLUMNS, times, strict=True)
            },
            WINDOW_TIME: pa.array(times[1] - 1),
            **self.rows.aggregate_values(merged),
        }
        rows, passes = self.rows.make_rows(values, merged)
        if self._ordered:
            rows = with_order_columns(rows, merged, phase, times[0], times[1] - 1)
        return rows if passes.all() else rows.filter(pa.array(passes))
