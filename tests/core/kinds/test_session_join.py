"""Joins of session windows worked by hand: sessions of both sides together, per key."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from core.kinds.window_steps import Joined, Row, Shard, in_trace_order, one_hash, window_step
from core.step_runs import ran
from joinery_runtime.core.kinds import cells
from joinery_runtime.core.kinds import rows as core_rows
from joinery_runtime.core.kinds.grouping import distinguish_keys
from joinery_runtime.core.kinds.session_join import SessionWindowJoin
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.watermark import END_OF_TIME

GAP = SessionWindowJoin(10)


def once(*rows: Joined) -> Counter[Joined]:
    return Counter(rows)


NOTHING = once()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("inner", []),
        ("left", [(3, None, 40, 40)]),
        ("right", [(None, 13, 7, 7)]),
        ("full", [(3, None, 40, 40), (None, 13, 7, 7)]),
    ],
)
def test_the_four_types(kind: str, expected: list[Joined]) -> None:
    shard = Shard(window_step(GAP, kind))
    left = [Row("a", 5, 1), Row("a", 15, 2), Row("a", 40, 3)]
    right = [Row("a", 25, 11), Row("c", 7, 13)]
    assert shard.epoch(None, left, right) == NOTHING
    pairs = [(1, 11, 5, 25), (2, 11, 5, 25)]
    assert shard.epoch(END_OF_TIME) == once(*pairs, *expected)


def test_rows_a_gap_apart_are_in_one_session_and_further_apart_are_not() -> None:
    shard = Shard(window_step(GAP, "left"))
    shard.epoch(None, [Row("a", 0, 1), Row("b", 0, 2)], [Row("a", 10, 11), Row("b", 11, 12)])
    assert shard.epoch(END_OF_TIME) == once((1, 11, 0, 10), (2, None, 0, 0))


def test_rows_of_the_other_side_hold_a_session_together() -> None:
    shard = Shard(window_step(GAP))
    shard.epoch(None, [Row("a", -9, 1), Row("a", 9, 2)], [Row("a", 0, 11)])
    assert shard.epoch(END_OF_TIME) == once((1, 11, -9, 9), (2, 11, -9, 9))


def test_a_session_closes_when_the_horizon_is_past_the_gap_after_its_last_row() -> None:
    shard = Shard(window_step(GAP))
    shard.epoch(None, [Row("a", 0, 1)], [Row("a", 5, 11)])
    assert shard.epoch(15) == NOTHING
    assert shard.epoch(16) == once((1, 11, 0, 5))
    assert shard.epoch(END_OF_TIME) == NOTHING


def test_a_row_that_comes_later_joins_two_open_sessions() -> None:
    shard = Shard(window_step(GAP))
    shard.epoch(None, [Row("a", 0, 1), Row("a", 18, 2)], [])
    assert shard.epoch(10, [], [Row("a", 9, 11)]) == NOTHING
    assert shard.epoch(28) == NOTHING
    assert shard.epoch(29) == once((1, 11, 0, 18), (2, 11, 0, 18))


def test_what_has_gone_out_is_flagged_by_its_row_in_the_segment_and_finished_when_it_is_all_of_it() -> None:
    shard = Shard(window_step(GAP, "left"))
    shard.epoch(None, [Row("a", 0, 1), Row("a", 50, 2), Row("a", 1, 3)], [Row("a", 2, 11)])
    (left_run,) = shard.state_runs(LEFT)
    (other,) = shard.state_runs(RIGHT)
    shard.epoch(20)
    assert {s: rows.tolist() for s, rows in shard.last.flags[LEFT].items()} == {
        left_run.segment: [left_run.first, left_run.first + 1]
    }
    assert {s: rows.tolist() for s, rows in shard.last.flags[RIGHT].items()} == {other.segment: [other.first]}
    assert shard.last.finished == {other.segment}
    assert shard.epoch(61) == once((2, None, 50, 50))
    assert shard.last.finished == {left_run.segment}


def test_a_segment_that_was_all_flagged_before_is_finished() -> None:
    shard = Shard(window_step(GAP))
    shard.epoch(None, [Row("a", 0, 1)])
    (segment,) = shard.segments[LEFT]
    segment.flagged[:] = True
    shard.epoch(5)
    assert shard.last.finished == {segment.key}
    assert shard.last.flags == ({}, {})


def test_rows_of_a_session_that_is_over_are_late_and_do_not_touch_it() -> None:
    shard = Shard(window_step(GAP, "full"))
    shard.epoch(None, [Row("a", 0, 1)], [Row("a", 5, 11)])
    assert shard.epoch(20, [Row("a", 3, 2), Row("a", 9, 3)], [Row("a", 0, 12)]) == once((1, 11, 0, 5))
    assert shard.late() == (2, 1), "9 + 10 < 20: none of them can be in an open session"
    assert shard.epoch(END_OF_TIME) == NOTHING


def test_an_old_row_that_touches_an_open_session_is_not_late() -> None:
    shard = Shard(window_step(GAP, "full"))
    shard.epoch(None, [Row("a", 15, 1)])
    assert shard.epoch(20, [], [Row("a", 5, 11), Row("b", 5, 12)]) == NOTHING
    assert shard.late() == (0, 1)
    assert shard.epoch(END_OF_TIME) == once((1, 11, 5, 15))


def test_an_old_row_that_touches_an_open_session_through_rows_of_its_epoch_is_not_late() -> None:
    shard = Shard(window_step(GAP, "full"))
    assert shard.epoch(20, [Row("a", 0, 1), Row("a", 8, 2)], [Row("a", 16, 11), Row("b", 0, 12)]) == NOTHING
    assert shard.late() == (0, 1)
    assert shard.epoch(END_OF_TIME) == once((1, 11, 0, 16), (2, 11, 0, 16))


def test_a_row_near_a_closed_session_opens_a_new_one() -> None:
    shard = Shard(window_step(GAP, "full"))
    shard.epoch(None, [Row("a", 0, 1)])
    assert shard.epoch(11, [], [Row("a", 5, 11)]) == once((1, None, 0, 0))
    assert shard.late() == (0, 0)
    assert shard.epoch(END_OF_TIME) == once((None, 11, 5, 5))


def test_rows_that_cannot_match_go_out_at_once_and_hold_no_session_together() -> None:
    shard = Shard(window_step(GAP, "full"))
    left, right = [Row("a", 0, 1), Row("a", 9, 2, good=False), Row(None, 9, 3)], [Row("a", 18, 11)]
    assert shard.epoch(None, left, right) == once((2, None, 9, 9), (3, None, 9, 9))
    assert shard.names(LEFT) == [1]
    assert shard.epoch(END_OF_TIME) == once((1, None, 0, 0), (None, 11, 18, 18))


def test_a_row_that_cannot_match_is_late_by_its_own_time() -> None:
    shard = Shard(window_step(GAP, "left"))
    assert shard.epoch(20, [Row(None, 9, 1), Row(None, 10, 2)], []) == once((2, None, 10, 10))
    assert shard.late() == (1, 0)


def test_a_false_residual_is_no_partner_and_yet_one_session() -> None:
    shard = Shard(window_step(GAP, "left", residual="l.v > 1"))
    shard.epoch(None, [Row("a", 0, 1), Row("a", 18, 2)], [Row("a", 9, 11)])
    assert shard.epoch(END_OF_TIME) == once((1, None, 0, 18), (2, 11, 0, 18))


def test_keys_with_one_hash_have_sessions_of_their_own() -> None:
    shard = Shard(window_step(GAP, "full"), one_hash)
    left, right = [Row("a", 0, 1), Row("a", 18, 2)], [Row("b", 9, 11), Row("b", 14, 12)]
    shard.epoch(None, left, right)
    assert shard.epoch(25) == once((None, 11, 9, 14), (None, 12, 9, 14), (1, None, 0, 0))
    # 9 is 9 before a's open session and within b's closed one.
    assert shard.epoch(25, [], [Row("a", 9, 13), Row("b", 9, 14)]) == NOTHING
    assert shard.late() == (0, 1)
    assert shard.epoch(END_OF_TIME) == once((2, 13, 9, 18))


def test_the_order_of_a_trace() -> None:
    shard = Shard(window_step(GAP, "full"))
    shard.epoch(None, [Row("a", 5, 1), Row("b", 1, 2)], [Row("a", 4, 11), Row("c", 3, 12)])
    work = shard.work(20, [Row(None, 50, 3)], ordered=True)
    rows = in_trace_order(ran(shard.step.kind.run(shard.step, work)))
    assert rows == [(2, None, 1), (None, 12, 3), (1, 11, 4), (3, None, 50)]


def test_a_hot_session_goes_out_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cells, core_rows):
        monkeypatch.setattr(module, "PROJECTED_ROWS", 1000)
    shard = Shard(window_step(GAP, "left"))
    left, right = ([Row("a", v % 1000, v) for v in range(first, first + 300)] for first in (0, 1000))
    shard.epoch(None, left, right)
    assert shard.epoch(END_OF_TIME) == once(*((a.v, b.v, 0, 299) for a in left for b in right))
    assert [batch.num_rows for batch in shard.last.output] == [1000] * 90


def test_only_what_has_not_gone_out_survives_a_compaction() -> None:
    shard = Shard(window_step(GAP))
    shard.epoch(None, [Row("a", 0, 1), Row("a", 50, 2)])
    shard.epoch(20)
    shard.compact()
    assert shard.names(LEFT) == [2]


def numbered(hashes: list[int], *keys: Any) -> list[int]:
    return distinguish_keys(np.array(hashes, dtype=np.uint64), [pa.array(key) for key in keys]).tolist()


def test_keys_are_numbered_only_where_a_hash_has_several() -> None:
    assert numbered([1, 1, 2, 2], ["a", "a", "b", "b"]) == [0, 0, 0, 0]
    first, second, alone, again = numbered([1, 1, 2, 1], ["a", "b", "c", "a"])
    assert (first, alone) == (again, 0)
    assert first != second


def test_keys_of_several_columns_are_told_apart_by_each() -> None:
    numbers = numbered([1] * 4, ["a", "a", "b", "a"], [1, 2, 1, 1])
    assert len(set(numbers)) == 3
    assert numbers[0] == numbers[3]


def test_zero_and_minus_zero_are_one_key() -> None:
    zero, minus_zero, _, one = numbered([1] * 4, [0.0, -0.0, 1.0, 1.0])
    assert zero == minus_zero != one
