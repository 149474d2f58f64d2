"""The join over tumbling and hopping windows of one shard in one epoch (rules W1-W5 and W7).

First the windows that the horizon closes are emitted from the state. Then arrivals are judged and kept (T3). An
arriving row belongs to its open windows only; a row that a step before has put into a window belongs to that one. No
I/O, no clock, no randomness: the same work gives the same rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.aligned import LastEnd, Windows
from joinery_runtime.core.kinds.base import Join, lower_of, lower_of_both, lowest_of_left
from joinery_runtime.core.kinds.cells import (
    Bounds,
    Members,
    WindowOutput,
    concat_selections,
    cut_by_hash,
    cut_by_window,
    within,
)
from joinery_runtime.core.kinds.grouping import changes, number_groups
from joinery_runtime.core.kinds.rows import PROJECTED_ROWS, Selection, run_to_add, split_joinable
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SIDES, WINDOW_END
from joinery_runtime.core.pipeline.spec import Distance, Retention, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons, StepResult, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import (
    BEGIN_OF_TIME,
    OutputWatermarks,
    Times,
    Watermark,
    earlier,
)
from joinery_runtime.core.table.columns import HASH, TS
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.core.table.sort import list_pairs, sort_order
from joinery_runtime.job import Hopping, JoinStep
from joinery_runtime.job.kinds.base import StepKind
from joinery_runtime.job.kinds.window import Tumbling
from joinery_runtime.job.model.references import WINDOW_START, WINDOW_TIME


@dataclass(frozen=True, slots=True)
class WindowJoin(Join):
    """Joins rows that are in one of the `windows`, tumbling or hopping ones.

    The horizon is `C = min wm - allowedLateness`, one number for both sides. A window is closed when its end is <= C.
    If a step before has put left rows into windows, each has the start of its window as time, which is the last window
    that holds this time. Where several windows may begin at once, it has the last millisecond of its window."""

    written_as: ClassVar[tuple[type[StepKind], ...]] = (Tumbling, Hopping)

    windows: Windows
    allowed_lateness: int = 0
    late_to_dead_letters: bool = False
    retention: tuple[Retention, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept_for = self.windows.size + self.allowed_lateness
        retention = Retention(LastEnd(self.windows), "w2", kept_for_ms=kept_for, inclusive=True)
        object.__setattr__(self, "retention", (retention, retention))

    @classmethod
    def of(cls, step: JoinStep, _only: bool, /) -> Self:
        matching = cast(Tumbling | Hopping, step.matching)
        windows = Windows(matching.size, matching.slide, matching.offset, zone=matching.time_zone)
        return cls(windows, step.allowed_lateness, step.late_data == "dlq")

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        out = WindowOutput(step, ordered=work.ordered)
        yield from _close(self, step, work, out)
        left = yield from _arrive(self, step, work, LEFT, out)
        right = yield from _arrive(self, step, work, RIGHT, out)
        return StepResult(
            added=(left[0], right[0]),
            dropped=(left[1], right[1]),
            lookups=(out.lookups[LEFT], out.lookups[RIGHT]),
            matches=out.matches,
            failed=out.failures.count,
            filtered=out.failures.filtered,
        )

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return closing

    # --- time ---------------------------------------------------------------------------------------------------------

    def complete_from(self, step: StepSpec, side: int, horizons: Sequence[Horizon]) -> int | None:
        """Return the first window of a row before this time is closed already."""
        closed = horizons[side].current
        return None if closed is None else self.windows.whole_from(closed)

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        return lower_of_both(step, lows)

    @property
    def bounds(self) -> tuple[int, int]:
        return 1 - self.windows.longest, self.windows.longest - 1

    @property
    def window_ends(self) -> tuple[int, int]:
        return 1, self.windows.longest

    def output_watermarks(
        self, step: StepSpec, lows: OutputWatermarks, horizons: Horizons, distance: Distance
    ) -> OutputWatermarks:
        """Return the windows that this epoch closes are emitted in it, so what counts is where the epoch before
        stopped: no row of a window that was closed then is emitted any more."""
        left, right = step.sides
        previous = horizons[left.part].previous
        first_open = None if previous is None else self.windows.open_from(previous)
        out = {**lowest_of_left(step, lows, first_open, distance), WINDOW_END: earlier(previous, -1)}
        return out if step.emits != "pairs" else {**out, right.time: lower_of(lows[right.time], first_open)}

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """See W2."""
        closed = horizons[step.sides[side].part].current
        return None if closed is None else self.windows.open_from(closed)

    def half_closed(self, side: int, ts: np.ndarray, horizon: int) -> np.ndarray:
        """bool[n]: the rows that are in a closed hopping window and in an open one."""
        return self.windows.half_closed(ts, horizon)

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        closing = self.windows.closing(horizon)
        if closing is None:
            return False
        first, last = self.windows_of(np.array([meta.ts_min, meta.ts_max]), one_window=step.sides[side].one_window)
        return bool(max(first[0], closing[0]) <= min(last[1], closing[1]))

    def windows_of(self, ts: np.ndarray, *, one_window: bool = False) -> Bounds:
        """Return the first and the last window that hold each row, by its `ts` (int64[n]). With `one_window` a row is
        in the one whose `time_in_window` that is."""
        if one_window and self.windows.begin_together:
            return replace(self.windows, of_windows=True).numbers_of(ts)
        first, last = self.windows.numbers_of(ts)
        return (last if one_window else first), last

    @property
    def time_in_window(self) -> str:
        return WINDOW_TIME if self.windows.begin_together else WINDOW_START


# --- closing ----------------------------------------------------------------------------------------------------------


def _close(kind: WindowJoin, step: StepSpec, work: StepWork, out: WindowOutput) -> Iterator[pa.RecordBatch]:
    horizon, windows = work.horizons[LEFT], kind.windows
    closing = windows.closing(horizon)
    if closing is None or horizon.current is None:
        return
    first_start = BEGIN_OF_TIME if horizon.previous is None else windows.open_from(horizon.previous)
    last_end = windows.whole_from(horizon.current)
    left, right = (
        [
            Selection(run.batch, np.flatnonzero((run.ts >= first_start) & (run.ts < last_end)))
            for run in (state_run.run for state_run in work.state_runs[side])
        ]
        for side in SIDES
    )
    for piece in cut_by_hash((left, right)):
        batches = [concat_selections(step.sides[side], piece[side]) for side in SIDES]
        bounds = []
        for spec, batch in zip(step.sides, batches, strict=True):
            numbers_of_rows = kind.windows_of(batch.column(TS).to_numpy(), one_window=spec.one_window)
            bounds.append(within(numbers_of_rows, closing))
        for numbers in cut_by_window(bounds):
            yield from out.close(_in_cells(kind, batches, [within(b, numbers) for b in bounds]))


def _in_cells(kind: WindowJoin, batches: Sequence[pa.RecordBatch], bounds: Sequence[Bounds]) -> tuple[Members, Members]:
    spreads = [kind.windows.expand(numbers) for numbers in bounds]
    hashes = np.concatenate([batches[side].column(HASH).to_numpy()[spreads[side][0]] for side in SIDES])
    numbers = np.concatenate([number for _, number in spreads])
    order = sort_order(hashes, numbers)
    cells = number_groups(order, changes(hashes[order]) | changes(numbers[order]))
    left, right = np.split(cells, [len(spreads[LEFT][0])])
    return _side(kind, batches[LEFT], spreads[LEFT], left), _side(kind, batches[RIGHT], spreads[RIGHT], right)


def _side(kind: WindowJoin, batch: pa.RecordBatch, spread: tuple[np.ndarray, np.ndarray], cells: np.ndarray) -> Members:
    row, number = spread
    return Members(Selection(batch, row), cells, kind.windows.starts(number), kind.windows.ends(number))


# --- arrivals ---------------------------------------------------------------------------------------------------------


def _arrive(
    kind: WindowJoin, step: StepSpec, work: StepWork, side: int, out: WindowOutput
) -> Generator[pa.RecordBatch, None, tuple[Run | None, Mapping[str, int]]]:
    """Return the side's arrivals that are kept, and the number of dropped ones by reason."""
    rows, spec, closed = work.arrivals[side], step.sides[side], work.horizons[LEFT].current
    if rows is None:
        return None, {}
    ts = rows.column(TS).to_numpy()
    # A row is late if all of its windows are closed (W2).
    late = np.zeros(len(ts), dtype=bool) if closed is None else ts < kind.windows.open_from(closed)
    joinable, unjoinable = split_joinable(spec, rows.filter(pa.array(~late)))
    # A row that cannot match is emitted at once, in each window that is still open (O2, W3).
    first, last = kind.windows_of(unjoinable.column(TS).to_numpy(), one_window=spec.one_window)
    first = np.maximum(first, kind.windows.open(closed)[0])
    for row, number in list_pairs((np.arange(len(first)), first, last + 1), PROJECTED_ROWS):
        exists = kind.windows.exist(number)
        position, n = row[exists], number[exists]
        yield from out.pad_arrivals(side, Selection(unjoinable, position), kind.windows.starts(n), kind.windows.ends(n))
    return run_to_add(spec, joinable), {"late": int(late.sum())} if late.any() else {}
