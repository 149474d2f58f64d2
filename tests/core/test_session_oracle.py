"""The oracle of sessions itself, against cases worked out by hand from docs/semantics.md and seed 003; and
against the plain meaning of sessions over all rows at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.cases import HISTORIES
from core.random_sessions import INPUT, SessionJob, punctual_sessions, session_cuts
from core.session_table import UpsertTable
from joinery_devkit.oracle import END, Row, SessionOracle, WatermarkOracle, multiset
from joinery_devkit.oracle.aggregates import aggregate
from joinery_runtime.job import Aggregate, SessionWindow, parse_type
from joinery_runtime.job.model.base import PLAIN_NUMBERS

INPUT_SPEC = {
    "name": INPUT,
    "file": {"path": "c.jsonl"},
    "format": "json",
    "schema": [{"name": "k", "type": "string"}, {"name": "v", "type": "int64"}, {"name": "ts", "type": "timestamp"}],
    "eventTime": "ts",
}


def sessions(gap: int = 5, cap: int = 100, **spec: Any) -> SessionOracle:
    """With the sum of v, which names the rows by powers of two."""
    document = {
        "input": INPUT_SPEC,
        "groupBy": ["k"],
        "gap": gap,
        "maxDuration": cap,
        "aggregates": [{"function": "sum", "column": "v", "as": "rows"}],
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
        **spec,
    }
    resource = {"metadata": {"name": "j"}, "spec": document}
    return SessionJob(SessionWindow.model_validate(resource, context=PLAIN_NUMBERS), {}).oracle()


class History:
    """Every row of a history has the next power of two for `v`."""

    def __init__(self, oracle: SessionOracle) -> None:
        self.oracle, self._rows, self.dropped = oracle, 0, {}

    def epoch(self, watermark: int | None, *times: int, key: str = "a") -> list[tuple[Any, ...]]:
        """(start, end, rows) of what goes out, and a minus sign before what is taken back."""
        first, self._rows = self._rows, self._rows + len(times)
        rows = [Row(0, n, ts, {"k": key, "v": 2**n}) for n, ts in enumerate(times, first)]
        outcome = self.oracle.epoch({INPUT: watermark}, {INPUT: rows})
        late = {"late": outcome.late[INPUT]} if outcome.late[INPUT] else {}
        self.dropped = {**late, **outcome.dropped[INPUT]}
        return [
            (*("-" for _ in range(row.get("retracted", False))), row["window_start"], row["window_end"], row["rows"])
            for row in outcome.rows
        ]


def history(**spec: Any) -> History:
    return History(sessions(**spec))


REOPEN = {"lateData": "reopen"}


def test_s1_a_distance_of_gap_is_one_session_and_more_is_two() -> None:
    clicks = history(gap=5)
    assert clicks.epoch(None, 0, 5, 11) == []
    assert clicks.epoch(END) == [(0, 5, 3), (11, 11, 4)]


def test_s1_keys_are_apart_and_null_and_nan_are_groups() -> None:
    oracle = sessions()
    keys = ["a", "b", None, None, math.nan, math.nan]
    oracle.epoch({INPUT: None}, {INPUT: [Row(0, n, n, {"k": key, "v": 2**n}) for n, key in enumerate(keys)]})
    outcome = oracle.epoch({INPUT: END}, {})
    assert [row["rows"] for row in outcome.rows] == [1, 2, 4 + 8, 16 + 32]


def test_s4_drop_a_session_goes_out_once_when_nothing_can_reach_it_any_more() -> None:
    clicks = history(gap=5, allowedLateness=3)
    clicks.epoch(None, 10)
    assert clicks.epoch(18) == []  # 18 - 5 - 3 is not beyond 10
    assert clicks.epoch(19) == [(10, 10, 1)]
    assert clicks.epoch(19, 16, 15) == []
    assert clicks.dropped == {"late": 1}  # 15 < 19 - 3
    assert clicks.epoch(END) == [(16, 16, 2)]


def test_s5_reopen_goes_out_early_and_again_whole_when_it_changes() -> None:
    clicks = history(gap=5, allowedLateness=10, **REOPEN)
    clicks.epoch(None, 10)
    assert clicks.epoch(15) == []
    assert clicks.epoch(16) == [(10, 10, 1)]
    assert clicks.epoch(16, 12) == [(10, 12, 3)]
    assert clicks.epoch(20) == []  # what has gone out as it is does not go out again
    assert clicks.epoch(20, 7) == [(7, 12, 7)]
    assert clicks.epoch(27) == []
    assert clicks.epoch(28, 12) == []
    assert clicks.dropped == {"late": 1}


def test_s5_a_row_that_is_over_is_late_unless_a_kept_session_can_take_it() -> None:
    clicks = history(gap=5, allowedLateness=1, **REOPEN)
    clicks.epoch(None, 10)
    assert clicks.epoch(16, 8, 3, 2) == [(10, 10, 1), (8, 10, 1 + 2)]
    assert clicks.dropped == {"late": 2}  # rows come in order of time: when 3 does, 8 is not there yet
    assert clicks.epoch(16, 3) == [(3, 10, 1 + 2 + 16)]


def test_s5_what_could_not_be_kept_is_not_let_in_by_a_session_that_is_full() -> None:
    clicks = history(gap=5, cap=10, allowedLateness=0, **REOPEN)
    clicks.epoch(None, 10, 15, 19)
    assert clicks.epoch(20, 9) == []
    assert clicks.dropped == {"late": 1}  # 9 would be a session of its own that is over, and gone in the next epoch
    assert clicks.epoch(END) == [(10, 19, 7)]


def test_s2_a_row_at_the_cap_sends_the_session_out_and_leaves_a_mark() -> None:
    clicks = history(gap=5, cap=10)
    assert clicks.epoch(None, 0, 5, 9) == []
    assert clicks.epoch(None, 10) == [(0, 9, 7)]
    assert clicks.epoch(None, 0, 4, 9, -1, 12) == []
    assert clicks.dropped == {"closed": 3}
    assert clicks.epoch(END) == [(10, 12, 8 + 256), (-1, -1, 128)]


def test_s2_a_row_that_is_far_away_forces_nothing() -> None:
    clicks = history(gap=5, cap=10)
    assert clicks.epoch(None, 0, 9, 20) == []
    assert clicks.epoch(END) == [(0, 0, 1), (9, 9, 2), (20, 20, 4)]


def test_s2_a_mark_goes_when_no_row_can_come_into_it() -> None:
    clicks = history(gap=5, cap=10)
    clicks.epoch(None, 0, 5, 9)
    assert clicks.epoch(None, 10) == [(0, 9, 7)]
    clicks.epoch(15, 9)
    assert clicks.dropped == {"late": 1}


def test_s2_what_has_gone_out_does_not_go_out_again_when_it_is_full() -> None:
    clicks = history(gap=5, cap=10, allowedLateness=20, **REOPEN)
    clicks.epoch(None, 0, 5, 9)
    assert clicks.epoch(16) == [(0, 9, 7)]
    assert clicks.epoch(16, 13) == []
    assert clicks.epoch(16, 9, 17) == []
    assert clicks.dropped == {"closed": 1}
    assert clicks.epoch(END) == [(13, 17, 8 + 32)]


@pytest.mark.parametrize(("cap", "ends"), [(17, [(0, 16, 1 + 2 + 4 + 8)]), (16, [(0, 8, 1 + 8), (12, 16, 2 + 4)])])
def test_s3_a_row_between_two_sessions_joins_them_if_they_stay_below_the_cap(cap: int, ends: Any) -> None:
    clicks = history(gap=8, cap=cap)
    clicks.epoch(None, 0, 12, 16)
    assert clicks.epoch(None, 8) == []
    assert clicks.epoch(END) == ends


def test_s3_where_the_union_is_too_long_the_earlier_one_grows_or_else_the_later() -> None:
    clicks = history(gap=4, cap=10)
    clicks.epoch(None, 0, 4, 12, 15)
    assert clicks.epoch(None, 8) == []
    assert clicks.epoch(None, 11) == []
    assert clicks.epoch(END) == [(0, 8, 1 + 2 + 16), (11, 15, 4 + 8 + 32)]


def test_s3_a_row_that_neither_takes_sends_the_earlier_out_and_stays_apart() -> None:
    clicks = history(gap=5, cap=10)
    clicks.epoch(None, 0, 5, 8)
    clicks.epoch(None, 14, 18, 22)
    assert clicks.epoch(None, 12) == [(0, 8, 7)]
    assert clicks.epoch(END) == [(14, 22, 8 + 16 + 32), (12, 12, 64)]


def test_s6_a_merge_and_an_earlier_start_take_back_what_they_replace() -> None:
    clicks = history(gap=5, allowedLateness=50, emitRetractions=True, **REOPEN)
    clicks.epoch(None, 10, 20)
    assert clicks.epoch(40) == [(10, 10, 1), (20, 20, 2)]
    assert clicks.epoch(40, 15) == [("-", 20, 20, 2), (10, 20, 7)]
    assert clicks.epoch(40, 6) == [("-", 10, 20, 7), (6, 20, 15)]
    assert clicks.epoch(40, 22) == [(6, 22, 31)]


def test_s6_ids_are_of_the_group_and_the_start() -> None:
    oracle = sessions()
    oracle.epoch({INPUT: None}, {INPUT: [Row(0, 0, 7, {"k": "a", "v": 1}), Row(0, 1, 7, {"k": "b", "v": 1})]})
    first, second = oracle.epoch({INPUT: END}, {}).rows
    assert first["session_id"] != second["session_id"]
    assert first["session_id"] == oracle.shape.identify(["a", 7])


# --- aggregates -------------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
DECIMAL = "decimal(3,1)"


@pytest.mark.parametrize(
    ("function", "kind", "values", "expected"),
    [
        ("count", "int64", [None, None], 2),
        ("count_col", "int64", [None, 3], 1),
        ("sum", "int64", [None, 2**62, 5], 2**62 + 5),
        ("sum", "int64", [None], None),
        ("sum", "double", [0.5, INF, 1.0], INF),
        ("sum", "double", [INF, -INF], NAN),
        ("sum", DECIMAL, [Decimal("0.1"), Decimal("99.9")], Decimal("100.0")),
        ("avg", "int64", [1, 2, None], 1.5),
        ("avg", DECIMAL, [Decimal("0.1"), Decimal("0.1"), Decimal("0.0")], Decimal("0.06667")),
        ("avg", "double", [None], None),
        ("min", "double", [NAN, 2.0, None], 2.0),
        ("min", "double", [NAN], NAN),
        ("max", "double", [NAN, INF], NAN),
        ("max", "string", ["\uffff", "\U0001f600", None], "\U0001f600"),
        ("first", "int64", [None, 4, 5], 4),
        ("last", "int64", [4, 5, None], 5),
        ("last", "int64", [], None),
        ("count_distinct", "double", [0.0, -0.0, NAN, NAN, None], 2),
    ],
)
def test_s7_aggregates(function: Any, kind: str, values: Sequence[Any], expected: Any) -> None:
    value = aggregate(Aggregate(function=function, column="v", as_="a"), values, parse_type(kind), len)
    assert multiset([{"a": value}]) == multiset([{"a": expected}])


# --- all rows at once -------------------------------------------------------------------------------------------------


@settings(HISTORIES, max_examples=examples(150))
@given(data=st.data(), punctual=punctual_sessions())
def test_where_epochs_are_cut_changes_nothing_in_the_end(data: Any, punctual: Any) -> None:
    case, arrivals = punctual
    oracle, table = case.job.oracle(), UpsertTable(case.job.job)
    marks = WatermarkOracle({INPUT: case.job.job.spec.input.watermark.delay}, case.partitions)
    for epoch in data.draw(session_cuts(arrivals)):
        outcome = oracle.epoch(marks.watermarks(ended=epoch.final), epoch.rows)
        table.apply(outcome.rows)
        assert not any(outcome.late.values())
        for row in epoch.rows.get(INPUT, ()):
            marks.saw(INPUT, row.partition, [row.ts])
    table.compare(case.job.shape, arrivals)
