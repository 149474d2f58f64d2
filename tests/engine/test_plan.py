from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.connectors.source import Range
from joinery_runtime.core.pipeline.lateness import FormerFutureRows, FutureRows
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputClock, InputProgress, InputTime
from joinery_runtime.engine.job_state import HORIZONS, JobState, stored_floors
from joinery_runtime.engine.plan import (
    PLAN_FORMAT,
    EpochPlan,
    InputState,
    partition_id,
)
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.state.store import JobRecord

P, Q = PartitionRef("orders", "t", 0), PartitionRef("orders", "t", 1)
R = PartitionRef("payments", "a/b.jsonl", 0)
PLAN = EpochPlan(
    epoch=7,
    shards=3,
    ranges=(Range(P, 5, 9), Range(R, 0, 0)),
    watermarks={"orders": 1_700_000_000_000, "payments": None},
    idle={"orders": ("t/1",)},
    ended=("payments",),
    checkpoint=True,
    fingerprint="abc",
    lost={"t/0": 4},
    stops={PartitionRef("orders", "t", 0): 99},
    topic_ids={"orders": {"t": "id-1"}},
    horizons={"left": Horizon(), "right": Horizon(None, 5), "left.2": Horizon(4, END_OF_TIME)},
    highest={"orders": 1_700_000_000_010, "payments": None},
    tables_read=("payments",),
    max_future={"orders": 86_400_000},
    pace={"orders": (1_700_000_000_000, 60_000)},
    clock=1_700_000_000_500,
)

watermarks = st.none() | st.integers(-(2**53), 2**53) | st.just(END_OF_TIME)
names = st.text(min_size=1, max_size=5)
refs = st.builds(PartitionRef, names, names, st.integers(0, 9))
plans = st.builds(
    EpochPlan,
    epoch=st.integers(1, 10**12),
    shards=st.integers(1, 4096),
    ranges=st.lists(st.builds(Range, refs, st.integers(0, 2**62), st.integers(0, 2**62)), max_size=3).map(tuple),
    watermarks=st.dictionaries(names, watermarks, max_size=2),
    idle=st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2),
    ended=st.lists(names, max_size=2).map(tuple),
    checkpoint=st.booleans(),
    fingerprint=names,
    lost=st.dictionaries(names, st.integers(1, 2**62), max_size=2),
    stops=st.dictionaries(refs, st.integers(0, 2**62), max_size=2),
    topic_ids=st.dictionaries(names, st.dictionaries(names, names, max_size=2), max_size=2),
    horizons=st.dictionaries(names, st.builds(Horizon, watermarks, watermarks), max_size=2),
    highest=st.dictionaries(names, watermarks, max_size=2),
    tables_read=st.lists(names, max_size=2).map(tuple),
    max_future=st.dictionaries(names, st.integers(0, 2**53), max_size=2),
    pace=st.dictionaries(names, st.tuples(st.integers(-(2**53), 2**53), st.integers(0, 2**53)), max_size=2),
    clock=st.none() | st.integers(0, 2**53),
    starts=st.dictionaries(refs, st.integers(0, 2**62), max_size=2),
    unplanned=st.lists(names, max_size=2).map(tuple),
)


@given(plan=plans)
def test_a_plan_survives_json(plan: EpochPlan) -> None:
    assert EpochPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


CLOCK = InputClock(delay_ms=10)


# What plans of the first format hold, and what each later format added to them. Plans outlive releases: a change here
# needs a new format number.
FIRST = {
    "epoch": 7,
    "shards": 3,
    "ranges": [["orders", "t", 0, 5, 9], ["payments", "a/b.jsonl", 0, 0, 0]],
    "watermarks": {"orders": 1_700_000_000_000, "payments": None},
    "idle": {"orders": ["t/1"]},
    "ended": ["payments"],
    "checkpoint": True,
    "fingerprint": "abc",
    "lost": {"t/0": 4},
}
SECOND = {"stops": [["orders", "t", 0, 99]], "topic_ids": {"orders": {"t": "id-1"}}}
THIRD = {
    "horizons": {"left": [None, None], "right": [None, 5], "left.2": [4, END_OF_TIME]},
    "highest": {"orders": 1_700_000_000_010, "payments": None},
    "tables_read": ["payments"],
}
# A plan without these takes any event time, and begins to count the time in which all inputs are idle.
SINCE_THIRD = {"max_future": {"orders": 86_400_000}, "pace": {"orders": [1_700_000_000_000, 60_000]}}
FIFTH = {"clock": 1_700_000_000_500}
BEFORE_FIFTH = replace(PLAN, clock=None)
BEFORE_THIRD = replace(BEFORE_FIFTH, horizons={}, highest={}, tables_read=(), max_future={}, pace={})


def test_the_stored_form_of_a_plan_is_fixed() -> None:
    assert PLAN.to_json() == {"format": 5, **FIRST, **SECOND, **THIRD, **SINCE_THIRD, **FIFTH}


def test_a_plan_says_what_the_consumer_group_has_not_given_to_the_job_only_where_there_is_any() -> None:
    """Releases before these fields read such a plan, and look the starts up again."""
    plan = replace(PLAN, starts={R: 3, P: 4}, unplanned=("orders",))
    shared = {"starts": [["orders", "t", 0, 4], ["payments", "a/b.jsonl", 0, 3]], "unplanned": ["orders"]}
    assert plan.to_json() == {**PLAN.to_json(), **shared}


@pytest.mark.parametrize(
    ("stored", "plan"),
    [
        ({"format": 1, **FIRST}, replace(BEFORE_THIRD, stops={}, topic_ids={})),
        ({"format": 2, **FIRST, **SECOND}, BEFORE_THIRD),
        ({"format": 3, **FIRST, **SECOND, **THIRD}, replace(BEFORE_FIFTH, max_future={}, pace={})),
        ({"format": 3, **FIRST, **SECOND, **THIRD, **SINCE_THIRD}, BEFORE_FIFTH),
        ({"format": 4, **FIRST, **SECOND, **THIRD, **SINCE_THIRD}, BEFORE_FIFTH),
        ({"format": 5, **FIRST, **SECOND, **THIRD, **SINCE_THIRD, **FIFTH}, PLAN),
    ],
    ids=["format-1", "format-2", "format-3", "format-3-with-maxFuture", "format-4", "format-5"],
)
def test_a_stored_plan_is_read(stored: dict[str, object], plan: EpochPlan) -> None:
    assert EpochPlan.from_json(json.loads(json.dumps(stored))) == replace(plan, format=stored["format"])


def test_a_plan_keeps_the_format_that_it_was_written_with() -> None:
    """An epoch of an earlier release is replayed under the names that both releases know."""
    earlier = EpochPlan.from_json({"format": 3, **FIRST, **SECOND, **THIRD, **SINCE_THIRD})
    again = replace(earlier, ranges=()).to_json()
    assert again["format"] == 3
    assert "clock" not in again


def test_a_plan_without_a_clock_judges_event_times_as_the_release_that_made_it() -> None:
    """Its rows may be visible already, and `joinery verify` computes them again."""
    earlier = EpochPlan.from_json({"format": 4, **FIRST, **SECOND, **THIRD, **SINCE_THIRD})
    assert isinstance(earlier.future_check("orders"), FormerFutureRows)
    assert PLAN.future_check("orders") == FutureRows(86_400_000, 1_700_000_000_500)
    assert PLAN.future_check("payments") is None


def test_the_times_of_a_plan() -> None:
    """A plan that holds no highest times is of an inner join, where they mean nothing."""
    assert PLAN.times == {"orders": InputTime(1_700_000_000_000, 1_700_000_000_010), "payments": InputTime(None, None)}
    assert BEFORE_THIRD.times == {"orders": InputTime(1_700_000_000_000, None), "payments": InputTime(None, None)}


@pytest.mark.parametrize("number", [PLAN_FORMAT + 1, 0, None])
def test_a_plan_of_another_format_is_refused(number: int | None) -> None:
    with pytest.raises(IncompatibleState, match=rf"epoch plan has format {number}: this release reads formats up to 5"):
        EpochPlan.from_json({**PLAN.to_json(), "format": number})


def test_its_partitions_are_those_of_its_ranges() -> None:
    assert PLAN.partitions == tuple(r.partition for r in PLAN.ranges)


@given(
    positions=st.dictionaries(
        st.builds(PartitionRef, st.just("orders"), names, st.integers(0, 9)), st.integers(0, 2**62)
    ),
    highest=st.dictionaries(names, watermarks),
    watermark=watermarks,
)
def test_an_input_state_survives_bytes(
    positions: dict[PartitionRef, int], highest: dict[str, int | None], watermark: int | None
) -> None:
    state = InputState(positions, InputProgress(highest, watermark), positions, {"t": "id-1"})
    assert InputState.from_bytes("orders", state.to_bytes()) == state


def test_the_stored_form_of_offsets_is_fixed() -> None:
    state = InputState({Q: 4, P: 9}, InputProgress({"t/0": 5, "t/1": None}, 3), {Q: 40}, {"t": "id-1"})
    first = {"positions": [["t", 0, 9], ["t", 1, 4]], "highest": {"t/0": 5, "t/1": None}, "watermark": 3}
    second = {"stops": [["t", 1, 40]], "topic_ids": {"t": "id-1"}}
    assert json.loads(state.to_bytes()) == {"format": 3, **first, **second, "first_read": False}
    for stored, read in (
        ({"format": 1, **first}, replace(state, stops={}, topic_ids={})),
        ({"format": 2, **first, **second}, state),
        ({"format": 3, **first, **second}, state),
        (
            {"format": 3, **first, **second, "pace": [2, 1_000]},
            replace(state, progress=replace(state.progress, idle_from=2, idle_ms=1_000)),
        ),
    ):
        assert InputState.from_bytes("orders", json.dumps(stored).encode()) == read
    with pytest.raises(IncompatibleState, match="offsets of input orders has format 4"):
        InputState.from_bytes("orders", b'{"format": 4}')


def record_with(offsets: dict[str, bytes]) -> JobRecord:
    return JobRecord(
        "job", generation=1, epoch=1, signature=None, definition=None, plan=None, planned_for_ms=0, offsets=offsets,
        segments=(), incarnation="life",
    )  # fmt: skip


def test_the_stored_form_of_horizons_is_fixed() -> None:
    floors = {"left": 5, "right.2": END_OF_TIME}
    data = JobState(Pipeline((), ()), {}, floors=floors).offsets()[HORIZONS]
    assert json.loads(data) == {"format": 3, "horizons": floors}
    assert stored_floors(record_with({HORIZONS: data})) == floors
    with pytest.raises(IncompatibleState, match="the stored horizons has format 4: this release reads formats up to 3"):
        stored_floors(record_with({HORIZONS: b'{"format": 4}'}))


def test_state_of_a_release_without_horizons_has_none() -> None:
    assert stored_floors(None) == {}
    assert stored_floors(record_with({"orders": b'{"format": 2}'})) == {}


def test_after_an_epoch_positions_watermark_and_highest_times_have_moved() -> None:
    before = InputState({P: 5, Q: 4}, InputProgress({"t/0": 50, "t/1": 40}, 30))
    after = before.after(replace(PLAN, watermarks={"orders": 45}), "orders", {"t/0": 48}, CLOCK)
    assert after.positions == {P: 9, Q: 4}
    assert after.progress == InputProgress({"t/0": 50, "t/1": 40}, 45)


def test_what_the_rows_of_an_epoch_imply_is_settled_with_its_own_idle_partitions() -> None:
    before = InputState({P: 5, Q: 4}, InputProgress({"t/0": 50, "t/1": 40}, 30))
    plan = replace(PLAN, watermarks={"orders": 30}, idle={"orders": ("t/1",)})
    assert before.after(plan, "orders", {"t/0": 80}, CLOCK).progress.watermark == 80 - CLOCK.delay_ms
    assert before.after(replace(plan, idle={}), "orders", {"t/0": 80}, CLOCK).progress.watermark == 30
    explicit_clock = replace(CLOCK, explicit=True)
    assert before.after(plan, "orders", {"t/0": 80}, explicit_clock).progress.watermark == 30


def test_a_partition_without_rows_is_known_from_its_first_plan_on() -> None:
    after = InputState().after(replace(PLAN, ranges=(Range(P, 0, 0), Range(R, 0, 8))), "orders", {}, CLOCK)
    assert after.positions == {P: 0}
    assert after.progress.highest == {partition_id(P): None}


def test_what_was_stored_of_a_topic_that_was_recreated_or_deleted_is_forgotten() -> None:
    other = PartitionRef("orders", "u", 0)
    before = InputState({P: 5, Q: 4, other: 3}, InputProgress({"t/0": 50}, 30), {Q: 9}, {"t": "id-1", "u": "id-u"})
    plan = replace(PLAN, ranges=(Range(P, 0, 2),), stops={P: 7}, topic_ids={"orders": {"t": "id-2"}})
    after = before.after(plan, "orders", {}, CLOCK)
    assert (after.positions, after.stops) == ({P: 2, other: 3}, {P: 7})
    assert after.topic_ids == {"t": "id-2", "u": "id-u"}
    deleted = before.after(replace(plan, ranges=(), stops={}, topic_ids={"orders": {"t": ""}}), "orders", {}, CLOCK)
    assert (deleted.positions, deleted.stops, deleted.topic_ids) == ({other: 3}, {}, {"u": "id-u"})
    assert deleted.progress.highest == {}
    assert deleted.progress.watermark is not None
    assert deleted.progress.watermark >= 30


def test_a_deleted_topic_whose_id_was_never_known_is_forgotten_too() -> None:
    before = InputState({P: 5, Q: 4}, InputProgress({"t/0": 50, "t/1": 40}, None))
    after = before.after(replace(PLAN, ranges=(), topic_ids={"orders": {"t": ""}}), "orders", {}, CLOCK)
    assert (after.positions, after.progress.highest) == ({}, {})


def test_a_topic_whose_id_becomes_known_is_the_same_topic() -> None:
    before = InputState({P: 5, Q: 4}, InputProgress({}, None))
    after = before.after(replace(PLAN, ranges=(), topic_ids={"orders": {"t": "id-1"}}), "orders", {}, CLOCK)
    assert after.positions == before.positions
