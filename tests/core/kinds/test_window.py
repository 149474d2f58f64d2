"""Tumbling and hopping window joins worked by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from core.kinds.window_steps import Joined, Row, Shard, in_trace_order, one_hash, outcome, window_step
from core.step_runs import ran
from joinery_runtime.core.kinds import cells, window
from joinery_runtime.core.kinds import rows as core_rows
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import END_OF_TIME

HOUR = WindowJoin(Windows(60, 60))
HOPPING = WindowJoin(Windows(60, 20))


def once(*rows: Joined) -> Counter[Joined]:
    return Counter(rows)


NOTHING = once()


def closed(rule: WindowJoin, kind: str, left: Iterable[Row], right: Iterable[Row], **step: Any) -> Counter[Joined]:
    """What goes out when rows came in an epoch and everything closes in the next."""
    shard = Shard(window_step(rule, kind, **step))
    assert shard.epoch(None, list(left), list(right)) == NOTHING
    return shard.epoch(END_OF_TIME)


LEFT_ROWS = [Row("a", 5, 1), Row("a", 65, 2), Row("b", 5, 3)]
RIGHT_ROWS = [Row("a", 50, 11), Row("a", 55, 12), Row("c", 7, 13)]
PAIRS = [(1, 11, 0, 60), (1, 12, 0, 60)]
LEFT_ALONE = [(2, None, 60, 120), (3, None, 0, 60)]
RIGHT_ALONE = [(None, 13, 0, 60)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("inner", PAIRS),
        ("left", PAIRS + LEFT_ALONE),
        ("right", PAIRS + RIGHT_ALONE),
        ("full", PAIRS + LEFT_ALONE + RIGHT_ALONE),
    ],
)
def test_the_four_types(kind: str, expected: list[Joined]) -> None:
    assert closed(HOUR, kind, LEFT_ROWS, RIGHT_ROWS) == once(*expected)


def test_a_window_holds_its_start_and_not_its_end() -> None:
    left = [Row("a", 0, 1), Row("a", 59, 2), Row("a", 60, 3)]
    right = [Row("a", 0, 11), Row("a", 60, 12)]
    assert closed(HOUR, "inner", left, right) == once((1, 11, 0, 60), (2, 11, 0, 60), (3, 12, 60, 120))


def test_times_before_1970_lie_in_windows_that_start_before_them() -> None:
    left = [Row("a", -1, 1), Row("a", -60, 2), Row("a", -61, 3)]
    expected = once((1, 11, -60, 0), (2, 11, -60, 0), (3, None, -120, -60))
    assert closed(HOUR, "left", left, [Row("a", -30, 11)]) == expected


def test_a_pair_goes_out_once_per_hopping_window_that_holds_both() -> None:
    # 45 is in [0, 60), [20, 80), [40, 100); 61 in [20, 80), [40, 100), [60, 120).
    pairs = once((1, 11, 20, 80), (1, 11, 40, 100))
    assert closed(HOPPING, "inner", [Row("a", 45, 1)], [Row("a", 61, 11)]) == pairs


def test_a_preserved_row_is_padded_once_per_window_without_a_partner() -> None:
    expected = once((1, 11, 20, 80), (1, 11, 40, 100), (1, None, 0, 60), (None, 11, 60, 120))
    assert closed(HOPPING, "full", [Row("a", 45, 1)], [Row("a", 61, 11)]) == expected


def test_a_size_that_is_no_multiple_of_the_slide() -> None:
    # Windows of 7 every 3: 7 is in [3, 10) and [6, 13); 5 in [0, 7) and [3, 10).
    rule = WindowJoin(Windows(7, 3))
    expected = once((1, 11, 3, 10), (1, None, 6, 13))
    assert closed(rule, "left", [Row("a", 7, 1)], [Row("a", 5, 11)]) == expected


def test_a_false_or_null_residual_is_no_partner() -> None:
    expected = once((1, None, 0, 60), (2, 11, 0, 60))
    rows = [Row("a", 5, 1), Row("a", 5, 2)]
    assert closed(HOUR, "left", rows, [Row("a", 5, 11)], residual="l.v > 1") == expected
    assert closed(HOUR, "left", rows, [Row("a", 5, 11)], residual="l.v > 1 OR NULL") == expected


def test_keys_with_one_hash_do_not_match() -> None:
    shard = Shard(window_step(HOUR, "full"), one_hash)
    shard.epoch(None, [Row("a", 5, 1), Row("b", 5, 2)], [Row("b", 5, 11), Row("c", 5, 12)])
    assert shard.epoch(60) == once((2, 11, 0, 60), (1, None, 0, 60), (None, 12, 0, 60))


def test_rows_that_cannot_match_go_out_at_once_in_every_open_window_and_are_not_kept() -> None:
    shard = Shard(window_step(HOPPING, "full"))
    left, right = [Row(None, 45, 1), Row("a", 45, 2, good=False)], [Row("a", 45, 11)]
    # [0, 60) is closed by the horizon.
    expected = [(v, None, start, start + 60) for v in (1, 2) for start in (20, 40)]
    assert shard.epoch(60, left, right) == once(*expected)
    assert shard.names(LEFT) == []
    assert shard.epoch(END_OF_TIME) == once((None, 11, 20, 80), (None, 11, 40, 100))


def test_a_window_goes_out_once_when_the_horizon_reaches_its_end() -> None:
    shard = Shard(window_step(HOPPING))
    shard.epoch(None, [Row("a", 45, 1)], [Row("a", 45, 11)])
    assert shard.epoch(59) == NOTHING
    assert shard.epoch(60) == once((1, 11, 0, 60))
    assert shard.epoch(60) == NOTHING
    assert shard.epoch(99) == once((1, 11, 20, 80))
    assert shard.epoch(END_OF_TIME) == once((1, 11, 40, 100))
    assert shard.epoch(END_OF_TIME) == NOTHING


def test_rows_at_the_very_start_and_end_of_a_window_go_out_with_it() -> None:
    shard = Shard(window_step(HOUR, "left"))
    shard.epoch(60, [Row("a", 60, 1), Row("a", 119, 2), Row("a", 120, 3)])
    assert shard.epoch(120) == once((1, None, 60, 120), (2, None, 60, 120))
    assert shard.epoch(180) == once((3, None, 120, 180))


def test_a_row_is_late_when_all_its_windows_are_closed() -> None:
    shard = Shard(window_step(HOPPING, "full"))
    shard.epoch(None, [Row("a", 45, 1)])
    # At 100 the last window of 45, [40, 100), is closed; that of 60, [60, 120), is not.
    out = shard.epoch(100, [Row("a", 59, 2), Row(None, 59, 3), Row("a", 60, 4)], [Row("a", 45, 11)])
    assert out == once(*((1, None, start, start + 60) for start in (0, 20, 40)))
    assert shard.late() == (2, 1)
    assert (shard.names(LEFT)[-1], shard.names(RIGHT)) == (4, [])


def test_a_row_that_is_late_for_some_windows_joins_in_the_others() -> None:
    shard = Shard(window_step(HOPPING, "left"))
    shard.epoch(None, [Row("a", 45, 1)])
    assert shard.epoch(60, [], [Row("a", 45, 11)]) == once((1, None, 0, 60))
    assert shard.late() == (0, 0)
    assert shard.epoch(END_OF_TIME) == once((1, 11, 20, 80), (1, 11, 40, 100))


def test_closing_comes_before_the_arrivals_of_the_epoch() -> None:
    shard = Shard(window_step(HOUR, "left"))
    shard.epoch(None, [Row("a", 45, 1)])
    assert shard.epoch(60, [], [Row("a", 45, 11)]) == once((1, None, 0, 60))
    assert shard.late() == (0, 1)


def test_a_compaction_drops_rows_whose_windows_are_all_closed() -> None:
    step = window_step(HOPPING)
    shard = Shard(step)
    shard.epoch(None, [Row("a", ts, ts) for ts in (39, 40, 59, 60)])
    assert len(step.kind.survivors(step, LEFT, shard.state_runs(LEFT), Horizon(None, None))[0].run) == 4
    shard.epoch(80)
    shard.compact()
    assert shard.names(LEFT) == [40, 59, 60]
    shard.epoch(END_OF_TIME)
    shard.compact()
    assert shard.names(LEFT) == []


def test_the_order_of_a_trace() -> None:
    shard = Shard(window_step(HOPPING, "full"))
    shard.epoch(None, [Row("a", 45, 1), Row("b", 41, 2)], [Row("a", 44, 11)])
    work = shard.work(60, [Row(None, 50, 3)], ordered=True)
    rows = in_trace_order(ran(shard.step.kind.run(shard.step, work)))
    # By the left row's time: of 41, then 45 with its partner; what was padded on arrival comes last, window by window.
    assert rows == [(2, None, 0), (1, 11, 0), (3, None, 20), (3, None, 40)]


def test_a_hot_key_goes_out_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cells, core_rows):
        monkeypatch.setattr(module, "PROJECTED_ROWS", 1000)
    shard = Shard(window_step(HOUR, "left"))
    left, right = ([Row("a", v % 60, v) for v in range(first, first + 300)] for first in (0, 1000))
    shard.epoch(None, left, right)
    out = shard.epoch(60)
    assert out == once(*((a.v, b.v, 0, 60) for a in left for b in right))
    assert [batch.num_rows for batch in shard.last.output] == [1000] * 90
    assert (shard.last.matches, shard.last.lookups) == (90_000, (300, 300))


def test_very_many_windows_of_a_row_go_out_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cells, window, core_rows):
        monkeypatch.setattr(module, "PROJECTED_ROWS", 100)
    shard = Shard(window_step(WindowJoin(Windows(1000, 1)), "full"))
    out = shard.epoch(None, [Row("a", 5, 1), Row(None, 5, 2)], [Row("a", 6, 11)])
    assert out == once(*((2, None, start, start + 1000) for start in range(-994, 6)))
    out = shard.epoch(END_OF_TIME)
    pairs = [(1, 11, start, start + 1000) for start in range(-993, 6)]
    assert out == once(*pairs, (1, None, -994, 6), (None, 11, 6, 1006))
    assert max(batch.num_rows for batch in shard.last.output) <= 100


def test_segments_of_one_side_are_joined_together() -> None:
    shard = Shard(window_step(HOUR, "full"))
    shard.epoch(None, [Row("a", 5, 1)], [Row("b", 5, 11)])
    shard.epoch(None, [Row("b", 6, 2)], [Row("a", 6, 12)])
    assert shard.epoch(60) == once((1, 12, 0, 60), (2, 11, 0, 60))


def test_an_epoch_without_anything() -> None:
    shard = Shard(window_step(HOUR, "full"))
    assert shard.epoch(None) == shard.epoch(60) == shard.epoch(END_OF_TIME) == NOTHING
    assert outcome(shard.step, shard.last) == NOTHING
    assert shard.last.added == (None, None)


def test_wide_rows_of_a_hot_key_go_out_in_batches_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_rows, "PROJECTED_BYTES", 2_000)
    shard = Shard(window_step(HOUR, "inner"))
    left, right = ([Row("a" * 10, v % 60, v) for v in range(first, first + 30)] for first in (0, 1000))
    shard.epoch(None, left, right)
    out = shard.epoch(60)
    assert out == once(*((a.v, b.v, 0, 60) for a in left for b in right))
    assert max(batch.num_rows for batch in shard.last.output) <= 2_000 // 20 + 1
