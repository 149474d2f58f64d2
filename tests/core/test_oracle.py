"""The oracle itself, against cases worked out by hand from semantics.md and the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from joinery_devkit.oracle import (
    END,
    AsOfRule,
    ChainTimes,
    IntervalRule,
    Joined,
    Oracle,
    Predicates,
    Projection,
    Row,
    SessionRule,
    Step,
    WatermarkOracle,
    WindowRule,
    brute_force,
    differences,
    multiset,
)

NONE = {"l": None, "r": None}
KEYS = [("l", "k", "k")]


def row(ts: int, key: Any = "k", offset: int = 0, partition: int = 0, **values: Any) -> Row:
    return Row(partition, offset, ts, {"k": key, "ts": ts, **values})


def rows(*times: int, key: Any = "k") -> list[Row]:
    return [row(ts, key, offset) for offset, ts in enumerate(times)]


def job(rule: Any, kind: Any = "inner", **more: Any) -> Oracle:
    return Oracle(("l", "r"), [Step("r", rule, KEYS, kind, **more)])


def interval(lower: int, upper: int, kind: Any = "inner", **more: Any) -> Oracle:
    return job(IntervalRule(lower, upper), kind, **more)


def times(outcome: Any) -> list[tuple[Any, ...]]:
    """Event times of what went out, then the window if there is one."""
    return sorted((tuple(map(r.time, r.rows)) + (r.window or ()) for r in outcome.joined), key=str)


# --- interval ---------------------------------------------------------------------------------------------------------


def test_j1_bounds_include_both_ends() -> None:
    outcome = interval(-5, 2).epoch(NONE, {"l": [row(100)], "r": rows(94, 95, 102, 103)})
    assert times(outcome) == [(100, 102), (100, 95)]


@pytest.mark.parametrize("key", [None, math.nan])
def test_j1_j4_null_and_nan_equal_nothing(key: Any) -> None:
    outcome = interval(0, 0).epoch(NONE, {"l": [row(1, key)], "r": [row(1, key)]})
    assert times(outcome) == []
    assert outcome.dropped == {"l": {"null_key": 1}, "r": {"null_key": 1}}


def test_j2_a_pair_comes_out_when_its_later_row_arrives_and_once() -> None:
    join = interval(-9, 9)
    assert times(join.epoch(NONE, {"r": [row(3)]})) == []
    assert times(join.epoch(NONE, {"l": [row(1)]})) == [(1, 3)]
    again = join.epoch(NONE, {"l": [row(2, offset=1)], "r": [row(4, offset=1)]})
    assert times(again) == [(1, 4), (2, 3), (2, 4)]


@pytest.mark.parametrize(("watermark", "padded"), [(107, []), (108, [(100, None)])])
def test_j3_o1_a_left_row_is_kept_until_the_right_watermark_passes_its_deadline(watermark: int, padded: Any) -> None:
    join = interval(-3, 5, "left", allowed_lateness=2)
    join.epoch(NONE, {"l": [row(100)]})
    assert times(join.epoch({"l": None, "r": watermark}, {})) == padded


@pytest.mark.parametrize(("watermark", "padded"), [(105, []), (106, [(None, 100)])])
def test_j3_o1_a_right_row_is_kept_until_the_left_watermark_passes_its_deadline(watermark: int, padded: Any) -> None:
    join = interval(-3, 5, "right", allowed_lateness=2)
    join.epoch(NONE, {"r": [row(100)]})
    assert times(join.epoch({"l": watermark, "r": None}, {})) == padded


def test_o1_a_row_that_matched_is_not_padded() -> None:
    join = interval(0, 5, "full")
    join.epoch(NONE, {"l": [row(100), row(101, "other", 1)], "r": [row(102)]})
    assert times(join.epoch({"l": END, "r": END}, {})) == [(101, None)]


def test_j5_o2_a_row_past_its_deadline_joins_or_is_padded_and_is_not_kept() -> None:
    join = interval(-3, 5, "left")
    join.epoch(NONE, {"r": [row(98)]})
    marks = {"l": 90, "r": 106}
    outcome = join.epoch(marks, {"l": [row(100), row(99, "other", 1)]})
    assert times(outcome) == [(100, 98), (99, None)]
    assert times(join.epoch({"l": END, "r": END}, {})) == []


def test_j4_o2_a_preserved_row_that_cannot_match_is_padded_at_once() -> None:
    predicates = Predicates(left=lambda columns: columns["l"]["v"])
    join = interval(-9, 9, "left", predicates=predicates)
    lefts = [row(1, offset=i, v=v) for i, v in enumerate((True, False, None))]
    outcome = join.epoch(NONE, {"l": [*lefts, row(2, None, 3, v=True)], "r": [row(1)]})
    assert times(outcome) == [(1, 1), (1, None), (1, None), (2, None)]
    assert outcome.dropped == {"l": {}, "r": {}}


@pytest.mark.parametrize(("ts", "late"), [(95, 0), (94, 1)])
def test_j6_of_an_inner_join_late_when_nothing_in_reach_can_come(ts: int, late: int) -> None:
    marks = {"l": 110, "r": 105}
    outcome = interval(-3, 8, allowed_lateness=2).epoch(marks, {"l": [row(ts)], "r": [row(ts)]})
    assert outcome.late == {"l": late, "r": late}


@pytest.mark.parametrize(("ts", "late"), [(108, 0), (107, 1)])
def test_j6_of_an_outer_join_late_against_its_own_watermark(ts: int, late: int) -> None:
    marks = {"l": 110, "r": 105}
    outcome = interval(-3, 8, "left", allowed_lateness=2).epoch(marks, {"l": [row(ts)], "r": [row(ts)]})
    assert outcome.late == {"l": late, "r": 0}


def test_j7_reopen_joins_what_is_still_kept() -> None:
    join = interval(0, 0, reopen=True)
    join.epoch(NONE, {"l": [row(100)]})
    outcome = join.epoch({"l": 200, "r": 100}, {"r": [row(100)]})
    assert times(outcome) == [(100, 100)]
    assert outcome.late == {"l": 0, "r": 0}


def test_a_residual_counts_only_when_it_is_true() -> None:
    join = interval(-9, 9, predicates=Predicates(both=lambda columns: columns["r"]["v"]))
    rights = [row(1, offset=i, v=v) for i, v in enumerate((True, False, None))]
    assert times(join.epoch(NONE, {"l": [row(1)], "r": rights})) == [(1, 1)]


def test_j9_a_join_on_time_only_has_no_key_to_be_null() -> None:
    join = Oracle(("l", "r"), [Step("r", IntervalRule(0, 1), [])])
    assert times(join.epoch(NONE, {"l": [row(1, None)], "r": [row(2, "x"), row(3, "x", 1)]})) == [(1, 2)]


# --- chains -----------------------------------------------------------------------------------------------------------

# Seed 004: d BETWEEN o - 1 AND o + 3, r BETWEEN d - 1 AND d + 4.
SEED_004 = (Step("d", IntervalRule(-1, 3), []), Step("r", IntervalRule(-1, 4), [], left_input="d"))
ODR = ("o", "d", "r")


def test_n3_the_worked_trace_of_seed_004() -> None:
    """Rows and evictions of join2 as printed there."""
    marks: dict[str, int | None] = dict.fromkeys(ODR)
    chain = Oracle(ODR, SEED_004)
    chain.epoch(marks, {"o": [row(102)], "d": rows(101, 103)})
    assert times(chain.epoch(marks, {"r": [row(100)]})) == [(102, 101, 100)]
    keep = ChainTimes("o", SEED_004).next({"o": 103, "d": 102, "r": 110}).keep_from
    assert keep[1] == (106, 101), "d < 106 and r < 101 are gone"


def test_n2_bounds_add_up_along_the_chain() -> None:
    """o >= d - 3 and d >= r - 4 give o >= r - 7: what waits for x by o's time lives that long."""
    steps = (*SEED_004, Step("x", IntervalRule(0, 0), [], left_input="o"))
    keep = ChainTimes("o", steps).next({"o": 200, "d": 200, "r": 110, "x": 0}).keep_from
    assert keep[2][1] == 110 - 7


def test_n4_a_padded_time_matches_nothing_later() -> None:
    keys = [("l", "k", "k")]
    for kind, expected in (("left", [(1, None, None)]), ("inner", [])):
        chain = Oracle(
            ("l", "r", "x"),
            [Step("r", IntervalRule(0, 0), keys, "left"), Step("x", IntervalRule(-9, 9), keys, kind, left_input="r")],
        )
        chain.epoch(dict.fromkeys("lrx"), {"l": [row(1)], "x": [row(1)]})
        joined_times = [r for epoch in chain.end() for r in times(epoch)]
        assert joined_times == expected


def test_n3_what_an_outer_step_closes_still_meets_what_waits_for_it() -> None:
    keys = [("l", "k", "k")]
    steps = [Step("r", IntervalRule(0, 0), keys, "left"), Step("x", IntervalRule(0, 0), keys, "left")]
    chain = Oracle(("l", "r", "x"), steps)
    chain.epoch(dict.fromkeys("lrx"), {"l": [row(1)], "x": [row(1)]})
    assert times(chain.epoch({"l": 5, "r": 5, "x": 5}, {})) == [(1, None, 1)]


def test_n2_a_chain_judges_late_by_each_inputs_own_watermark() -> None:
    chain = Oracle(
        ODR,
        (Step("d", IntervalRule(-1, 3), [], allowed_lateness=2), Step("r", IntervalRule(-1, 4), [], left_input="d")),
    )
    outcome = chain.epoch({"o": 10, "d": 10, "r": 10}, {"o": rows(7, 8), "d": rows(7, 8), "r": rows(8, 9, 10)})
    assert outcome.late == {"o": 1, "d": 1, "r": 2}


# --- windows ----------------------------------------------------------------------------------------------------------


def closing(join: Oracle, watermark: int) -> list[tuple[Any, ...]]:
    return times(join.epoch({"l": watermark, "r": watermark}, {}))


def test_w1_w2_a_tumbling_window_goes_out_when_it_closes() -> None:
    join = job(WindowRule(10, 10), allowed_lateness=1)
    join.epoch(NONE, {"l": rows(-1, 0, 9), "r": rows(9, 10)})
    assert closing(join, 10) == []
    assert closing(join, 11) == [(0, 9, 0, 10), (9, 9, 0, 10)]
    assert closing(join, END) == []


def test_w1_a_pair_goes_out_once_per_hopping_window_that_holds_both() -> None:
    join = job(WindowRule(4, 2))
    join.epoch(NONE, {"l": [row(5)], "r": rows(4, 3)})
    assert closing(join, END) == [(5, 3, 2, 6), (5, 4, 2, 6), (5, 4, 4, 8)]


def test_w2_a_row_is_late_when_all_its_windows_closed() -> None:
    outcome = job(WindowRule(4, 2)).epoch({"l": 6, "r": 7}, {"l": rows(3, 4), "r": rows(3, 4)})
    assert outcome.late == {"l": 1, "r": 1}


def test_w3_padded_once_per_window_without_a_partner() -> None:
    join = job(WindowRule(4, 2), "left")
    join.epoch(NONE, {"l": [row(5)], "r": [row(3)]})
    assert closing(join, END) == [(5, 3, 2, 6), (5, None, 4, 8)]
    fresh = job(WindowRule(4, 2), "left")
    assert times(fresh.epoch({"l": 6, "r": 6}, {"l": [row(5, None)]})) == [(5, None, 4, 8)]


def test_w1_w2_both_sides_form_a_session_together() -> None:
    join = job(SessionRule(3), "full")
    join.epoch(NONE, {"l": rows(0, 6, 20), "r": [row(3), row(3, "other", 1)]})
    assert closing(join, 9) == [(None, 3, 3, 3)]
    assert closing(join, 10) == [(0, 3, 0, 6), (6, 3, 0, 6)]
    assert closing(join, END) == [(20, None, 20, 20)]


def test_w2_a_late_row_that_is_tied_to_an_open_session_counts() -> None:
    join = job(SessionRule(3))
    join.epoch(NONE, {"l": [row(10)]})
    outcome = join.epoch({"l": 12, "r": 12}, {"r": [row(7), row(1, offset=1)]})
    assert outcome.late == {"l": 0, "r": 1}
    assert closing(join, END) == [(10, 7, 7, 10)]


# --- as-of ------------------------------------------------------------------------------------------------------------


def versions(*changes: tuple[int, bool]) -> list[Row]:
    return [Row(0, offset, ts, {"k": "k", "ts": ts}, deleted) for offset, (ts, deleted) in enumerate(changes)]


def test_a1_the_version_valid_at_the_rows_time() -> None:
    table = versions((2, False), (3, False), (3, False), (5, True))
    outcome = job(AsOfRule(100), "left").epoch(NONE, {"l": rows(1, 2, 3, 4, 5), "r": table})
    version_offsets = {r.time("l"): r.rows["r"].offset if r.rows["r"] else None for r in outcome.joined}
    assert version_offsets == {1: None, 2: 0, 3: 2, 4: 2, 5: None}


def test_a2_only_superseded_versions_go() -> None:
    join = job(AsOfRule(10), "left")
    join.epoch(NONE, {"r": versions((1, False), (5, False), (30, False))})
    outcome = join.epoch(NONE, {"l": rows(4, 5, 20), "r": [Row(0, 3, 2, {"k": "k"})]})
    assert times(outcome) == [(20, 5), (4, None), (5, 5)]
    assert outcome.dropped["r"] == {"expired": 1}


def test_a2_versions_stay_for_rows_that_are_not_read_or_have_waited() -> None:
    join = job(AsOfRule(10, grace=5), "left")
    join.epoch(NONE, {"l": rows(12, 40), "r": versions((1, False), (15, False), (30, False))})
    assert join.asked_from(NONE, "l") == (-math.inf, 12)
    assert times(join.epoch(NONE, {}, {"l": 12})) == [(12, 1)], "a version goes when the next one is at 2 or before"
    assert join.asked_from(NONE, "l") == (35, math.inf)
    assert join.asked_from({"l": END, "r": None}, "l") == (35, 40)
    join.epoch(NONE, {})
    assert times(join.epoch({"l": END, "r": None}, {"l": [row(14, offset=2)]})) == [(14, None), (40, 30)]


def test_a4_a_row_waits_until_the_table_has_reached_its_time() -> None:
    join = job(AsOfRule(100))
    outcome = join.epoch(NONE, {"l": rows(10, 20), "r": versions((1, False))}, {"r": 10})
    assert times(outcome) == [(10, 1)]
    assert times(join.epoch(NONE, {"r": [Row(0, 1, 15, {"k": "k"})]}, {"r": 19})) == []
    assert times(join.epoch({"l": END, "r": None}, {}, {"r": 19})) == [], "the end of the stream changes nothing"
    assert times(join.epoch(NONE, {"r": [Row(0, 2, 18, {"k": "k"})]})) == [(20, 18)]


def test_a3_a_row_waits_for_stream_time_less_grace() -> None:
    join = job(AsOfRule(100, grace=5))
    assert times(join.epoch(NONE, {"l": rows(10, 12), "r": versions((1, False))})) == []
    late_version = {"l": [row(16, offset=2), row(3, offset=3)], "r": [Row(0, 1, 9, {"k": "k"})]}
    assert times(join.epoch(NONE, late_version)) == [(3, 1)]
    assert times(join.epoch(NONE, {})) == [(10, 9)]
    assert times(join.epoch({"l": END, "r": None}, {})) == [(12, 9), (16, 9)]


def test_a2_a_table_that_has_ended_forgets_nothing() -> None:
    join = job(AsOfRule(10))
    join.epoch(NONE, {"r": versions((10, False), (15, False))})
    assert times(join.epoch({"l": None, "r": END}, {"l": rows(12)})) == [(12, 10)]


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_brute_force_is_sqls_meaning_of_a_join() -> None:
    inputs: Mapping[str, Sequence[Row]] = {"l": rows(1, 9), "r": rows(2)}
    joined_rows = brute_force(("l", "r"), [Step("r", IntervalRule(0, 1), KEYS, "full")], inputs)
    assert [r.positions for r in joined_rows] == [((0, 0), (0, 0)), ((0, 1), None)]


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
    difference = differences([{"a": 1}, {"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}])
    assert difference.splitlines() == [
        "2 missing row(s):", "  1 x {'a': 1}", "  1 x {'a': 2}", "1 unexpected row(s):", "  1 x {'a': 3}",
    ]  # fmt: skip


def test_output_rows_take_their_columns_from_all_inputs_and_nulls_from_absent_ones() -> None:
    columns = [
        Projection("one", "l", "v"),
        Projection("two", "r", "w"),
        Projection("three", computed=lambda columns: columns["r"]["w"] is None),
        Projection("until", window=1),
    ]
    join = Oracle(("l", "r"), [Step("r", WindowRule(10, 10), KEYS, "left")], columns)
    join.epoch(NONE, {"l": [row(1, v="x")]})
    (output,) = join.epoch({"l": END, "r": END}, {}).rows
    assert output == {"one": "x", "two": None, "three": True, "until": 10}


def test_a_place_names_a_row_in_the_jobs_order_of_inputs() -> None:
    assert Joined({"l": row(1, offset=4, partition=2), "r": None}).positions == ((2, 4), None)
