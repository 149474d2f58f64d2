"""What is said about joins over tumbling, hopping and session windows (rules W1-W4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from joinery_runtime.core.kinds.grouping import gaps
from joinery_runtime.core.kinds.session_join import SessionWindowJoin
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.core.pipeline.spec import AcceptedRow
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.inspect.kinds.base import EpochTimes, JoinDescription, RowStatus, StoredRow
from joinery_runtime.job.model.duration import format_duration, format_time


class WindowDescription(JoinDescription[WindowJoin]):
    """See W2: the slower watermark decides when a row's last window closes."""

    __slots__ = ()

    describes: ClassVar[type[WindowJoin]] = WindowJoin
    matches_by: ClassVar[str] = "w1"
    padded_by: ClassVar[tuple[str, str]] = ("w3", "w3")

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        return f"closes windows that end at {format_time(horizons[self.step.sides[side].part].current)} or before"

    @property
    def reach_text(self) -> str:
        windows = self.kind.windows
        return f"one window ({format_duration(windows.size)} long, every {format_duration(windows.every)})"

    def ms_out_of_reach(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return how far the later row is past the end of the earlier row's last window. A left row that is in one
        window has the start of it as time."""
        if self.step.sides[LEFT].one_window:
            end = self._last_ends(left)
            return np.asarray(np.maximum(np.maximum(left - right, right - end + 1), 0))
        earlier_one, later_one = np.minimum(left, right), np.maximum(left, right)
        return np.asarray(np.maximum(later_one - self._last_ends(earlier_one) + 1, 0))

    def _last_ends(self, ts: np.ndarray) -> np.ndarray:
        """int64[n]: the ends of the last windows that hold the times (int64[n])."""
        return self.kind.windows.ends(self.kind.windows.numbers_of(ts)[1])

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        end, slower = format_time(self.deciding_time(row)), self.slower_watermark(epoch_times)
        return f"{slower} is at {end}, the end of its last window, or above"

    def row_statuses(self, rows: Sequence[StoredRow], epoch_times: EpochTimes) -> Sequence[RowStatus]:
        return [self._row_status(row, epoch_times) for row in rows]

    def _row_status(self, row: StoredRow, epoch_times: EpochTimes) -> RowStatus:
        one_window = self.step.sides[row.side].one_window
        windows = self.kind.windows
        _, numbers = windows.expand(self.kind.windows_of(np.array([row.ts]), one_window=one_window))
        spans = list(zip(windows.starts(numbers).tolist(), windows.ends(numbers).tolist(), strict=True))
        closed_to = epoch_times.horizon(self.step.sides[row.side].part)
        open_ = [span for span in spans if closed_to is None or span[1] > closed_to]
        named = ", ".join(f"{format_time(start)} to {format_time(end)}" for start, end in open_)
        words = f"in the windows {named}; goes when {self.slower_watermark()} is at the end of the last one"
        return RowStatus(words if open_ else "its windows are closed", {"windows": [list(span) for span in open_]})


class SessionJoinDescription(JoinDescription[SessionWindowJoin]):
    """See W2: the slower watermark decides when the session of a row closes."""

    __slots__ = ()

    describes: ClassVar[type[SessionWindowJoin]] = SessionWindowJoin
    matches_by: ClassVar[str] = "w1"
    padded_by: ClassVar[tuple[str, str]] = ("w3", "w3")

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        before = self.kind.open_from(horizons[self.step.sides[side].part].current)
        return f"closes sessions whose last row is before {format_time(before)}"

    @property
    def reach_text(self) -> str:
        return f"the session gap ({format_duration(self.kind.gap)})"

    def ms_out_of_reach(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """See W1. A pair within the gap always shares a session; rows in between may bridge a wider gap."""
        return np.asarray(np.maximum(np.abs(right - left) - self.kind.gap, 0))

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        above, slower = format_time(self.deciding_time(row)), self.slower_watermark(epoch_times)
        return f"{slower} is above {above}, the last row of its session + {format_duration(self.kind.gap)}"

    def row_statuses(self, rows: Sequence[StoredRow], epoch_times: EpochTimes) -> Sequence[RowStatus]:
        times = np.sort(np.array([row.ts for row in rows], dtype=np.int64))
        sessions = np.split(times, np.flatnonzero(gaps(times, self.kind.gap)))
        spans = [(int(session[0]), int(session[-1])) for session in sessions if len(session)]
        return [
            self._row_status(row, next(span for span in spans if span[0] <= row.ts <= span[1]), epoch_times)
            for row in rows
        ]

    def _row_status(self, row: StoredRow, span: tuple[int, int], epoch_times: EpochTimes) -> RowStatus:
        open_from = self.kind.open_from(epoch_times.horizon(self.step.sides[row.side].part))
        fields = {"session": list(span), "closed": bool(row.flagged) or (open_from is not None and span[1] < open_from)}
        words = f"in the session {format_time(span[0])} to {format_time(span[1])}"
        if fields["closed"]:
            return RowStatus(f"{words}, which is closed", fields)
        slower, above = self.slower_watermark(), format_time(span[1] + self.kind.gap)
        return RowStatus(f"{words}; goes when {slower} is above {above}, unless it grows", fields)
