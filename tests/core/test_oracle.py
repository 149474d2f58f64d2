"""The oracle itself, against cases worked out by hand from semantics.md."""

from __future__ import annotations

import math
from typing import Any

import pytest

from joinery_devkit.oracle import END, Oracle, Row, WatermarkOracle, differences, multiset, output_row

NONE = {"left": None, "right": None}


def row(ts: int, key: Any = "k", offset: int = 0, partition: int = 0, **values: Any) -> Row:
    return Row(partition, offset, ts, {"k": key, "ts": ts, **values})


def oracle(lower: int, upper: int, **more: Any) -> Oracle:
    return Oracle(interval=(lower, upper), keys=[("k", "k")], **more)


def times(expectation: Any) -> list[tuple[int, int]]:
    return [(pair.left.ts, pair.right.ts) for pair in expectation.pairs]


def test_j1_bounds_include_both_ends() -> None:
    rights = [row(ts, offset=i) for i, ts in enumerate((94, 95, 102, 103))]
    found = oracle(-5, 2).epoch(NONE, {"left": [row(100)], "right": rights})
    assert times(found) == [(100, 95), (100, 102)]


@pytest.mark.parametrize("key", [None, math.nan])
def test_j1_j4_null_and_nan_equal_nothing(key: Any) -> None:
    found = oracle(0, 0).epoch(NONE, {"left": [row(1, key)], "right": [row(1, key)]})
    assert times(found) == []
    assert found.dropped == {"left": {"null_key": 1}, "right": {"null_key": 1}}


def test_j2_a_pair_comes_out_when_its_later_row_arrives_and_once() -> None:
    job = oracle(-9, 9)
    assert times(job.epoch(NONE, {"right": [row(3)]})) == []
    assert times(job.epoch(NONE, {"left": [row(1)]})) == [(1, 3)]
    assert times(job.epoch(NONE, {"left": [row(2, offset=1)], "right": [row(4, offset=1)]})) == [(2, 3), (1, 4), (2, 4)]


@pytest.mark.parametrize(("watermark", "kept"), [(107, 1), (108, 0)])
def test_j3_a_left_row_is_kept_until_the_right_watermark_passes_its_deadline(watermark: int, kept: int) -> None:
    job = oracle(-3, 5, allowed_lateness=2)
    job.epoch(NONE, {"left": [row(100)]})
    job.epoch({"left": None, "right": watermark}, {})
    assert job.kept("left") == kept


@pytest.mark.parametrize(("watermark", "kept"), [(105, 1), (106, 0)])
def test_j3_a_right_row_is_kept_until_the_left_watermark_passes_its_deadline(watermark: int, kept: int) -> None:
    job = oracle(-3, 5, allowed_lateness=2)
    job.epoch(NONE, {"right": [row(100)]})
    job.epoch({"left": watermark, "right": None}, {})
    assert job.kept("right") == kept


def test_j5_a_row_past_its_deadline_joins_but_is_not_kept() -> None:
    job = oracle(-3, 5)
    job.epoch(NONE, {"right": [row(98)]})
    marks = {"left": 90, "right": 106}
    found = job.epoch(marks, {"left": [row(100)], "right": [row(101, offset=1)]})
    assert times(found) == [(100, 98)]
    assert job.kept("left") == 0


@pytest.mark.parametrize(("ts", "late"), [(95, 0), (94, 1)])
def test_j6_late_when_nothing_in_reach_can_come(ts: int, late: int) -> None:
    marks = {"left": 110, "right": 105}
    found = oracle(-3, 8, allowed_lateness=2).epoch(marks, {"left": [row(ts)], "right": [row(ts)]})
    assert found.late == {"left": late, "right": late}


def test_j7_reopen_joins_what_is_still_kept() -> None:
    marks = {"left": 200, "right": 100}
    job = oracle(0, 0, reopen=True)
    job.epoch(NONE, {"left": [row(100)]})
    found = job.epoch(marks, {"right": [row(100)]})
    assert times(found) == [(100, 100)]
    assert found.late == {"left": 0, "right": 0}


def test_filters_and_residual_count_only_when_true() -> None:
    job = oracle(-9, 9, filters={"left": lambda r: r["v"]}, residual=lambda left, right: right["w"])
    lefts = [row(1, offset=i, v=v) for i, v in enumerate((True, False, None))]
    rights = [row(1, offset=i, w=w) for i, w in enumerate((True, False, None))]
    found = job.epoch(NONE, {"left": lefts, "right": rights})
    assert [pair.place for pair in found.pairs] == [(0, 0, 0, 0)]
    assert found.dropped["left"] == {"filtered": 2}


def test_watermarks_from_the_rows_of_earlier_epochs() -> None:
    marks = WatermarkOracle({"a": 10, "b": 0}, {"a": ["p", "q"], "b": ["p"]})
    marks.saw("a", "p", [100, 60])
    marks.saw("b", "p", [70])
    assert marks.watermarks() == {"a": None, "b": 70}
    marks.saw("a", "q", [80])
    assert marks.watermarks() == {"a": 70, "b": 70}
    marks.saw("a", "p", [200])
    marks.saw("a", "q", [85])
    assert marks.watermarks(idle={"b": ["p"]}) == {"a": 75, "b": 75}
    assert marks.watermarks(idle={"a": ["q"]}) == {"a": 190, "b": 75}
    assert marks.watermarks(ended=["a"]) == {"a": END, "b": 75}
    assert marks.watermarks(ended=["a"], idle={"b": ["p"]}) == {"a": END, "b": 75}


def test_multisets_and_their_differences() -> None:
    assert multiset([{"a": 1, "b": math.nan}]) == multiset([{"b": float("nan"), "a": 1}])
    assert multiset([{"a": -0.0}]) == multiset([{"a": 0.0}])
    assert differences([{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}]) == ""
    told = differences([{"a": 1}, {"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}])
    assert told.splitlines() == [
        "2 missing row(s):", "  1 x {'a': 1}", "  1 x {'a': 2}", "1 unexpected row(s):", "  1 x {'a': 3}",
    ]  # fmt: skip


def test_output_rows_take_their_columns_from_both_sides() -> None:
    found = oracle(0, 0).epoch(NONE, {"left": [row(1, v="x")], "right": [row(1, w="y")]})
    columns = [("one", 0, "v"), ("two", 1, "w"), ("left_ts", 0, "ts")]
    assert output_row(found.pairs[0], columns) == {"one": "x", "two": "y", "left_ts": 1}
