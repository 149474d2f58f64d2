"""When windows close: the arithmetic that the driver asks for without reading a row."""

from __future__ import annotations

import pytest

from core.kinds.window_steps import window_step
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.session_join import SessionWindowJoin
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME
from joinery_runtime.core.table.segment import SegmentMeta

HOUR = WindowJoin(Windows(60, 60))
HOPPING = WindowJoin(Windows(60, 20))
WINDOWS = [HOUR, HOPPING, WindowJoin(Windows(7, 3)), WindowJoin(Windows(1, 1))]


def closes(kind: WindowJoin | SessionWindowJoin, ts_min: int, ts_max: int, horizon: Horizon) -> bool:
    pipeline = Pipeline((), (window_step(kind, "inner"),))
    meta = SegmentMeta("s", "left", 0, 1, ts_min, ts_max, 5, 100, 1, 1)
    return times.closes(pipeline, meta, {"left": horizon, "right": horizon})


@pytest.mark.parametrize(
    ("rule", "closed", "expected"),
    [
        (HOUR, 59, 0),  # [0, 60) is open until the horizon reaches its end
        (HOUR, 60, 60),
        (HOUR, 61, 60),
        (HOUR, 0, 0),
        (HOUR, -1, -60),  # before 1970
        (HOPPING, 59, 0),
        (HOPPING, 60, 20),  # [0, 60) is closed, [20, 80) open
        (HOPPING, 79, 20),
        (HOPPING, 80, 40),
        (HOUR, END_OF_TIME, END_OF_TIME),
        (HOPPING, BEGIN_OF_TIME, BEGIN_OF_TIME),
    ],
)
def test_the_lowest_time_that_is_still_in_an_open_window(rule: WindowJoin, closed: int, expected: int) -> None:
    assert rule.windows.open_from(closed) == expected


def windows_at(rule: WindowJoin, ts: int) -> list[tuple[int, int]]:
    starts = [start for start in range(ts - rule.windows.size + 1, ts + 1) if start % rule.windows.every == 0]
    return [(start, start + rule.windows.size) for start in starts]


@pytest.mark.parametrize("rule", WINDOWS)
def test_below_it_every_window_is_closed_and_from_it_one_is_open(rule: WindowJoin) -> None:
    for closed in range(-70, 71):
        since = rule.windows.open_from(closed)
        assert max(end for _, end in windows_at(rule, since - 1)) <= closed
        assert max(end for _, end in windows_at(rule, since)) > closed


@pytest.mark.parametrize("rule", WINDOWS)
def test_a_segment_closes_when_a_window_of_its_times_ends_between_the_horizons(rule: WindowJoin) -> None:
    for ts in range(-65, 66, 5):
        for before in range(-130, 131, 9):
            for now in (before, before + 1, before + 25, before + 90):
                ends = [end for _, end in windows_at(rule, ts)]
                expected = any(before < end <= now for end in ends)
                assert closes(rule, ts, ts, Horizon(before, now)) == expected


def test_a_segment_of_several_windows_closes_with_each() -> None:
    assert closes(HOUR, 10, 130, Horizon(0, 60))
    assert closes(HOUR, 10, 130, Horizon(60, 120))
    assert closes(HOUR, 10, 130, Horizon(120, 180))
    assert not closes(HOUR, 10, 130, Horizon(180, 240))


@pytest.mark.parametrize("rule", [HOUR, HOPPING])
def test_the_ends_of_time(rule: WindowJoin) -> None:
    assert closes(rule, 5, 5, Horizon(None, END_OF_TIME))
    assert closes(rule, 5, 5, Horizon(3, END_OF_TIME))
    assert not closes(rule, 5, 5, Horizon(END_OF_TIME, END_OF_TIME)), "everything is closed already"
    assert not closes(rule, 5, 5, Horizon(None, BEGIN_OF_TIME))
    assert not closes(rule, 5, 5, Horizon(None, None))


def test_nothing_closes_while_no_end_is_reached() -> None:
    assert HOUR.windows.closing(Horizon(60, 119)) is None
    assert HOUR.windows.closing(Horizon(60, 120)) == (1, 1)
    assert HOUR.windows.closing(Horizon(None, None)) is None


def test_a_session_may_close_when_the_horizon_moves_past_the_gap_of_the_first_row() -> None:
    rule = SessionWindowJoin(10)
    assert not closes(rule, 5, 90, Horizon(None, 15)), "5 + 10 < 15 is false"
    assert closes(rule, 5, 90, Horizon(None, 16))
    assert closes(rule, 5, 90, Horizon(15, 16))
    assert not closes(rule, 5, 90, Horizon(16, 16)), "the horizon has not moved"
    assert not closes(rule, 5, 90, Horizon(None, None))
    assert closes(rule, 5, 90, Horizon(16, END_OF_TIME))
    assert not closes(rule, 5, 90, Horizon(END_OF_TIME, END_OF_TIME))
