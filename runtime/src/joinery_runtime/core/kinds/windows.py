"""When windows close, and what that means for the rows in them (rule W2): arithmetic on times alone.

The horizon of a window step is `C = min wm - allowedLateness`, one number for both sides. A tumbling or hopping window
[n * slide, n * slide + size), slide <= size, is closed when its end is <= C; a session when `last + gap < C`. Times are
event-time milliseconds; bounds are Python ints, since what is taken off the ends of int64 must not wrap round.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from joinery_runtime.core.pipeline.spec import BEGIN_OF_TIME, END_OF_TIME, SessionGap, TumblingWindow, clamp, earlier
from joinery_runtime.core.pipeline.step import Horizon

Numbers = tuple[int, int]  # windows are numbered by n; first and last, both included


def keep_from(rule: TumblingWindow, closed: int) -> int:
    """The lowest event time of a row that is still in an open window under the horizon `closed`."""
    if closed == END_OF_TIME:
        return END_OF_TIME
    return clamp((last_closed(rule, closed) + 1) * rule.slide)


def last_closed(rule: TumblingWindow, closed: int) -> int:
    """The number of the last window that is closed under the horizon `closed`; END_OF_TIME: all are."""
    return END_OF_TIME if closed == END_OF_TIME else (closed - rule.size) // rule.slide


def closing(rule: TumblingWindow, horizon: Horizon) -> Numbers | None:
    """The windows that this epoch closes: `before < end <= now`. None: there are none."""
    if horizon.now is None:
        return None
    first = BEGIN_OF_TIME if horizon.before is None else last_closed(rule, horizon.before) + 1
    last = last_closed(rule, horizon.now)
    return (first, last) if first <= last else None


def windows_of(rule: TumblingWindow, ts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[n] each: the first and the last window that hold a row at `ts`."""
    return (ts - rule.size) // rule.slide + 1, ts // rule.slide


def open_from(rule: SessionGap, now: int | None) -> int | None:
    """Sessions whose last row is before this are closed under the horizon `now`. None: none is."""
    return earlier(now, rule.gap)


def closes(rule: TumblingWindow | SessionGap, ts_min: int, ts_max: int, horizon: Horizon) -> bool:
    """Whether rows with event times in [ts_min, ts_max], of a segment, may be in a window that this epoch closes."""
    if isinstance(rule, SessionGap):
        return _closes_session(rule, ts_min, horizon)
    span = closing(rule, horizon)
    if span is None:
        return False
    lowest, highest = (ts_min - rule.size) // rule.slide + 1, ts_max // rule.slide
    return max(lowest, span[0]) <= min(highest, span[1])


def _closes_session(rule: SessionGap, ts_min: int, horizon: Horizon) -> bool:
    if horizon.now is None or horizon.now == horizon.before:
        return False
    return ts_min < cast(int, open_from(rule, horizon.now))
