"""Windows of event time by number: which of them hold a row, where they begin and end, which a horizon closes (G1, G2).

All times are event-time milliseconds. Arithmetic on horizons uses Python ints, because it must not wrap around at the
ends of int64. Windows of a time zone are numbered by a local time that never goes back, so the same arithmetic
serves all windows (G12): event times are converted to local time first, and the bounds of windows back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Self

import numpy as np

from joinery_runtime.core.kinds.cells import Bounds, Numbers
from joinery_runtime.core.kinds.grouping import expand_ranges
from joinery_runtime.core.pipeline.spec import AcceptedRow, RowTime, StepOperator, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME, Watermark, clamp
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.core.table.zones import local_clock
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow, CumulativeOfGroup, HoppingOfGroup

_FARTHEST = 2**62  # milliseconds; sums with durations stay inside int64


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows [start, end), aligned to `offset` after 1970-01-01T00:00 UTC. Window n begins at n * every and is `size`
    long (tumbling: `every` is `size`; hopping: it is the slide, at most `size`). If the windows are `cumulative`, every
    is their step, which divides `size`: window n ends at (n + 1) * every, and begins at the last multiple of `size`
    before that.

    With `zone`, all of this is local time there (None: that of UTC). A window begins and ends when clocks first show
    its bounds, or later times. Where clocks skip the bounds between them, several windows would end at once: those
    behind the first one do not exist.

    `of_windows`: the rows are those of an aggregate with these very windows, each at the last millisecond of its
    window, which is the only window that holds the row (G10)."""

    size: int
    every: int
    offset: int = 0
    cumulative: bool = False
    of_windows: bool = False
    zone: str | None = None

    @classmethod
    def of(cls, window: AlignedWindow) -> Self:
        """Return the windows that a job writes."""
        match window:
            case HoppingOfGroup():
                return cls(window.size, window.slide, window.offset, zone=window.time_zone)
            case CumulativeOfGroup():
                return cls(window.size, window.step, window.offset, cumulative=True, zone=window.time_zone)
            case _:
                return cls(window.size, window.size, window.offset, zone=window.time_zone)

    @property
    def longest(self) -> int:
        """How long in event time a window is, at most: clocks that go back make those of a zone longer than `size`."""
        return self.size if self.zone is None else local_clock(self.zone).longest(self.size)

    @property
    def begin_together(self) -> bool:
        """Whether several windows may begin at once: hopping ones of a zone, where clocks skip their starts. No two end
        at once."""
        return self.zone is not None and self.every < self.size

    @property
    def pane(self) -> int:
        """The longest time such that a window holds all or none of [k * pane, (k + 1) * pane); `of_windows`: 1, because
        a pane holds one millisecond only."""
        if self.of_windows:
            return 1
        return self.every if self.cumulative else gcd(self.size, self.every)

    def pane_starts(self, ts: np.ndarray) -> np.ndarray:
        """int64[n]: the start of the pane of each row, by its `ts` (int64[n])."""
        if self.of_windows:
            return ts
        return self._event_times(self._local(ts) // self.pane * self.pane)

    def pane_ends(self, ts: np.ndarray) -> np.ndarray:
        """int64[n]: the end of the pane of each row, by its `ts` (int64[n])."""
        if self.of_windows:
            return ts + 1
        return self._event_times((self._local(ts) // self.pane + 1) * self.pane)

    def numbers_of(self, ts: np.ndarray) -> Bounds:
        """Return the first and the last window that hold each row, by its `ts` (int64[n]). Not all in between exist,
        see `expand`."""
        since = self._local(ts)
        if self.of_windows:
            number = (since - self._length) // self.every + 1
            return number, number
        if self.cumulative:
            return since // self.every, (since // self.size + 1) * (self.size // self.every) - 1
        return (since - self.size) // self.every + 1, since // self.every

    def expand(self, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
        """Every window from the first to the last one of each row (int64[n] each). Returns the rows' positions and the
        windows' numbers (int64[m] each)."""
        position, numbers = expand_ranges(bounds[0], bounds[1] + 1)
        if self.zone is None:
            return position, numbers
        exists = self.exist(numbers)
        return position[exists], numbers[exists]

    def exist(self, numbers: np.ndarray) -> np.ndarray:
        """bool[n]: whether there are windows with these numbers (int64[n])."""
        if self.zone is None:
            return np.ones(len(numbers), dtype=bool)
        return np.asarray(self.ends(numbers) > self.ends(numbers - 1))

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """int64[n]: the starts of the windows with these numbers (int64[n])."""
        begin = numbers * self.every
        return self._event_times(begin // self.size * self.size if self.cumulative else begin)

    def ends(self, numbers: np.ndarray) -> np.ndarray:
        """int64[n]: the ends of the windows with these numbers (int64[n])."""
        return self._event_times(numbers * self.every + self._length)

    # --- what a horizon closes ----------------------------------------------------------------------------------------

    def last_closed(self, horizon: int) -> int:
        """Return the number of the last window whose end is at the horizon or before; END_OF_TIME: all are closed."""
        if horizon == END_OF_TIME:
            return END_OF_TIME
        local = horizon if self.zone is None else int(local_clock(self.zone).local(_in_reach(horizon)))
        return (local - self.offset - self._length) // self.every

    def closing(self, horizon: Horizon) -> Numbers | None:
        """Return the windows that an epoch closes, `before < end <= now`. None: it closes none."""
        if horizon.current is None:
            return None
        first = BEGIN_OF_TIME if horizon.previous is None else self.last_closed(horizon.previous) + 1
        last = self.last_closed(horizon.current)
        return (clamp(first), clamp(last)) if first <= last else None

    def open(self, horizon: int | None) -> Numbers:
        """Return the windows that a horizon leaves open."""
        return (BEGIN_OF_TIME if horizon is None else clamp(self.last_closed(horizon) + 1)), END_OF_TIME

    def open_from(self, horizon: int) -> int:
        """Return the lowest event time that is still in an open window: the start of the first open one."""
        if horizon >= END_OF_TIME:
            return END_OF_TIME
        begin = (self.last_closed(horizon) + 1) * self.every
        if self.of_windows:
            return clamp(self._event_time(begin + self._length + self.offset) - 1)
        return clamp(self._event_time((begin // self.size * self.size if self.cumulative else begin) + self.offset))

    def whole_from(self, horizon: int) -> int:
        """Return the lowest event time of which every window is still open: the end of the last closed one."""
        if horizon >= END_OF_TIME:
            return END_OF_TIME
        if self.of_windows:
            return self.open_from(horizon)
        return clamp(self._event_time(self.last_closed(horizon) * self.every + self._length + self.offset))

    def half_closed(self, ts: np.ndarray, horizon: int) -> np.ndarray:
        """bool[n]: the rows or panes, by their `ts` (int64[n]), that are in a closed window and in an open one."""
        return np.asarray((ts >= self.open_from(horizon)) & (ts < self.whole_from(horizon)))

    def close_one_of(self, ts_min: int, ts_max: int, horizon: Horizon) -> bool:
        """Say whether an epoch may close a window of a row from `ts_min` to `ts_max`."""
        closing = self.closing(horizon)
        if closing is None:
            return False
        first, last = self.numbers_of(np.array([ts_min, ts_max]))
        return bool(max(first[0], closing[0]) <= min(last[1], closing[1]))

    @property
    def _length(self) -> int:
        """How long after n * every window n ends."""
        return self.every if self.cumulative else self.size

    # --- local time ---------------------------------------------------------------------------------------------------

    def _local(self, ts: np.ndarray) -> np.ndarray:
        """int64[n]: the local times since the offset, by `ts` (int64[n])."""
        return (ts if self.zone is None else local_clock(self.zone).local(ts)) - self.offset

    def _event_times(self, local: np.ndarray) -> np.ndarray:
        """int64[n]: when local times since the offset (int64[n]) begin."""
        return local + self.offset if self.zone is None else local_clock(self.zone).first_at(local + self.offset)

    def _event_time(self, local: int) -> int:
        """When a local time begins."""
        return local if self.zone is None else int(local_clock(self.zone).first_at(_in_reach(local)))


def _in_reach(time: int) -> np.ndarray:
    """Return the times, of which those far outside of the calendar count as the farthest one."""
    return np.array(min(max(time, -_FARTHEST), _FARTHEST))


@dataclass(frozen=True, slots=True)
class LastEnd(RowTime):
    """Decide by the end of the last window that holds the row."""

    windows: Windows

    def time_of(self, row: AcceptedRow) -> int | None:
        (last,) = self.windows.numbers_of(np.array([row.ts]))[1]
        return int(self.windows.ends(last))

    def event_time_at(self, time: int) -> int:
        return self.windows.open_from(time - 1)


class ByWindows(StepOperator):
    """A `StepOperator` of a step with one side, whose rows are in `windows` until the horizon closes the last one."""

    __slots__ = ()

    windows: Windows

    def complete_from(self, step: StepSpec, side: int, horizons: Sequence[Horizon]) -> int | None:
        """Return the first window of a row before this time has been emitted without the row."""
        closed = horizons[side].current
        return None if closed is None else self.windows.whole_from(closed)

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """See G3 and R4."""
        closed = horizons[step.sides[side].part].current
        return None if closed is None else self.windows.open_from(closed)

    def half_closed(self, side: int, ts: np.ndarray, horizon: int) -> np.ndarray:
        return self.windows.half_closed(ts, horizon)

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        return self.windows.close_one_of(meta.ts_min, meta.ts_max, horizon)
