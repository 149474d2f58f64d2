from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from joinery_runtime.core.compile.jobs import compile_job, compile_join, stored_columns
from joinery_runtime.core.kinds.as_of import AsOfJoin
from joinery_runtime.core.kinds.interval import IntervalJoin
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, Placement
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputTime
from joinery_runtime.errors import JobError
from joinery_runtime.job import SessionWindow, StreamJoin

WHERE_PATH = "spec.joins[0].where"


def accept_from(pipeline: Pipeline, watermarks: dict[str, int | None]) -> tuple[int | None, ...]:
    return pipeline.last.kind.accept_from(pipeline.last, watermarks)


def columns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in pairs]


def source(name: str, event_time: str, *schema: tuple[str, str], **more: Any) -> dict[str, Any]:
    described = {"name": name, "file": {"path": name}, "format": "json", "eventTime": event_time}
    return {**described, "schema": columns(*schema), **more}


ORDERS = source("o", "ts", ("id", "int64"), ("amount", "double"), ("note", "string"), ("ts", "timestamp"))
PAYMENTS = source("p", "at", ("oid", "int32"), ("paid", "double"), ("at", "int64"))
SHIPMENTS = source("s", "sent", ("oid", "int32"), ("paid", "double"), ("sent", "timestamp"))
JOIN = {"right": "p", "keys": {"o.id": "p.oid"}, "interval": {"of": "o", "lower": "-1s", "upper": "5s"}}


def job(inputs: list[dict[str, Any]], joins: list[dict[str, Any]], select: list[dict[str, str]] | None) -> Pipeline:
    spec: dict[str, Any] = {"inputs": inputs, "joins": joins, "output": {"file": {"path": "out.jsonl"}}}
    if select is not None:
        spec["select"] = select
    return compile_join(StreamJoin.model_validate({"metadata": {"name": "job"}, "spec": spec}))


def compiled(select: list[dict[str, str]] | None = None, **step: Any) -> Pipeline:
    return job([ORDERS, PAYMENTS], [{**JOIN, **step}], select)


def horizons(pipeline: Pipeline, **watermarks: int | None) -> dict[str, Horizon]:
    return times.horizons(pipeline, {name: InputTime(value) for name, value in watermarks.items()}, {})


@pytest.mark.parametrize(
    ("join_type", "condition", "at_the_step"),
    [
        ("left", "o.amount > 1", None),
        ("left", "o.amount > 1 AND p.paid IS NULL", "p.paid IS NULL"),
        ("left", "o.amount > p.paid", "o.amount > p.paid"),
        ("left", "o.id * o.id > 1", "o.id * o.id > 1"),  # may fail, so it is not computed for other rows
        ("anti", "o.amount > 1", None),
        ("right", "p.paid > 1 AND o.note IS NULL", "o.note IS NULL"),
        ("full", "o.amount > 1", "o.amount > 1"),
        ("inner", "o.amount > p.paid", None),
    ],
)
def test_a_filter_is_checked_where_it_leaves_out_the_same_rows_earliest(
    join_type: str, condition: str, at_the_step: str | None
) -> None:
    (step,) = compiled([{"column": "o.id"}], type=join_type, filter=condition).steps
    assert (step.filter.text if step.filter is not None else None) == at_the_step
    assert (step.residual is not None) == (join_type == "inner")
    # What an input decides is not kept for the step.
    assert ("note" in step.sides[LEFT].stored) == ("o.note" in condition)


def test_a_filter_that_does_not_fit_names_its_place() -> None:
    with pytest.raises(JobError, match=r"spec\.joins\[0\]\.filter"):
        compiled(type="anti", filter="p.paid IS NULL")


def test_bounds_are_seen_from_each_side() -> None:
    (step,) = compiled().steps
    assert isinstance(step.kind, IntervalJoin)
    assert step.kind.partner_bounds(LEFT) == (-1_000, 5_000)
    assert step.kind.partner_bounds(RIGHT) == (-5_000, 1_000)
    assert [side.intake.keys for side in step.sides] == [("id",), ("oid",)]


def test_every_column_goes_out_without_a_prefix_where_no_other_input_has_its_name() -> None:
    assert compiled().output_schema() == pa.schema(
        [
            ("id", pa.int64()), ("amount", pa.float64()), ("note", pa.string()),
            ("ts", pa.timestamp("ms", "UTC")),
            ("oid", pa.int32()), ("paid", pa.float64()), ("at", pa.int64()),
        ]
    )  # fmt: skip


@pytest.mark.parametrize(("window_times", "kind"), [("int64", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC"))])
def test_window_times_have_the_type_that_the_output_asks_for(window_times: str, kind: pa.DataType) -> None:
    output = {"file": {"path": "out"}, "windowTimes": window_times}
    keyed = {"groupBy": ["id"], "gap": "1m", "maxDuration": "1h", "aggregates": [{"function": "count", "as": "rows"}]}
    windowed = {**{key: JOIN[key] for key in ("right", "keys")}, "window": {"tumbling": "1m"}}
    jobs = (
        StreamJoin.model_validate(
            {"metadata": {"name": "j"}, "spec": {"inputs": [ORDERS, PAYMENTS], "joins": [windowed], "output": output}}
        ),
        SessionWindow.model_validate({"metadata": {"name": "s"}, "spec": {"input": ORDERS, **keyed, "output": output}}),
    )
    for resource in jobs:
        schema = compile_job(resource).output_schema()
        assert [schema.field(name).type for name in ("window_start", "window_end")] == [kind, kind]


def test_only_keys_output_and_residual_columns_are_stored() -> None:
    select = [{"column": "o.note", "as": "text"}, {"column": "p.at"}]
    spec = compiled(select, where="o.amount > 10 AND p.paid < o.amount + 1")
    assert stored_columns(spec) == {"left": ("id", "amount", "note"), "right": ("oid", "paid")}
    assert spec.output_schema().names == ["text", "at"]
    # A one-sided predicate is decided before anything is stored.
    assert stored_columns(compiled(select, where="o.amount > 10")) == {"left": ("id", "note"), "right": ("oid",)}


def test_a_predicate_is_taken_apart_by_side() -> None:
    pipeline = compiled(
        where="o.amount > 10 AND (p.paid > 1 OR o.note = 'x') AND p.paid < 99 AND o.note LIKE 'a%' AND 1 = 1"
    )
    left, right = (side.intake.predicate for side in pipeline.last.sides)
    assert left is not None
    assert right is not None
    assert pipeline.last.residual is not None
    assert left.text == "o.amount > 10 AND o.note LIKE 'a%'"
    assert right.text == "p.paid < 99"
    assert pipeline.last.residual.text == "(p.paid > 1 OR o.note = 'x') AND 1 = 1"
    assert compiled().last.residual is None


@pytest.mark.parametrize("where", ["o.nope = 1", "q.id = 1", "o.id", "o.id +", "o.note > 1"])
def test_a_bad_predicate_is_a_job_error_that_names_its_place(where: str) -> None:
    with pytest.raises(JobError) as caught:
        compiled(where=where)
    assert [problem.path for problem in caught.value.problems] == [WHERE_PATH]
    assert where in str(caught.value)


def test_deadlines_and_lateness() -> None:
    pipeline = compiled(allowedLateness="2s")
    assert horizons(pipeline, o=None, p=100_000) == {"left": Horizon(None, 93_000), "right": Horizon()}
    assert horizons(pipeline, o=100_000, p=None) == {"left": Horizon(), "right": Horizon(None, 97_000)}
    assert [retention.kept_for_ms for retention in pipeline.last.kind.retention] == [7_000, 3_000]
    reach = 90_000 - 5_000 - 2_000
    assert accept_from(pipeline, {"o": 90_000, "p": 100_000}) == (reach, reach)
    assert accept_from(pipeline, {"o": None, "p": 100_000}) == (None, None)
    assert accept_from(compiled(lateData="reopen"), {"o": 90_000, "p": 100_000}) == (None, None)


def test_an_outer_join_judges_each_row_by_its_own_input() -> None:
    pipeline = compiled(type="left", allowedLateness="2s")
    assert accept_from(pipeline, {"o": 90_000, "p": 100_000}) == (88_000, 98_000)
    assert [(side.preserved, side.flags) for side in pipeline.last.sides] == [(True, True), (False, False)]


def test_horizons_stay_in_64_bits_at_the_end_of_time_and_never_fall() -> None:
    pipeline = compiled(interval={"of": "o", "lower": "-9s", "upper": "-5s"})
    ended = horizons(pipeline, o=END_OF_TIME, p=END_OF_TIME)
    assert ended == {"left": Horizon(None, END_OF_TIME), "right": Horizon(None, END_OF_TIME)}
    assert pipeline.last.kind.retention[LEFT].kept_for_ms == 0
    later = times.horizons(pipeline, {"o": InputTime(5), "p": InputTime(5)}, {"left": 10_000, "right": -50_000})
    assert later == {"left": Horizon(10_000, 10_000), "right": Horizon(-50_000, 5 - 9_000)}


# --- several steps, and other kinds -----------------------------------------------------------------------------------


def chain(*, where: str | None = None, kind: str = "inner", select: list[dict[str, str]] | None = None) -> Pipeline:
    second: dict[str, Any] = {
        "right": "s",
        "type": kind,
        "keys": {"p.oid": "s.oid"},
        "interval": {"of": "p", "lower": "-1s", "upper": "4s"},
    }
    if where is not None:
        second["where"] = where
    return job([ORDERS, PAYMENTS, SHIPMENTS], [JOIN, second], select)


def test_a_step_hands_on_what_later_steps_need_and_nothing_else() -> None:
    pipeline = chain(where="o.amount > 1 AND s.paid < p.paid", select=[{"column": "o.note"}, {"column": "s.paid"}])
    assert stored_columns(pipeline) == {
        "left": ("id", "amount", "note"),
        "right": ("oid", "paid"),
        "left.2": ("o.note", "p.oid", "p.paid"),
        "right.2": ("oid", "paid"),
    }
    left = pipeline.steps[1].sides[LEFT].intake
    assert (left.event_time, left.keys, left.chained) == ("p.at", ("p.oid",), True)
    assert left.predicate is not None
    assert left.predicate.text == "o.amount > 1"
    assert left.schema.names == ["o.amount", "o.note", "p.oid", "p.paid", "p.at"]
    assert pipeline.output_schema().names == ["note", "paid"]


def test_where_each_input_is_read() -> None:
    assert [(pipeline_input.name, pipeline_input.step, pipeline_input.side) for pipeline_input in chain().inputs] == [
        ("o", 0, LEFT),
        ("p", 0, RIGHT),
        ("s", 1, RIGHT),
    ]


def test_bounds_add_up_along_a_chain() -> None:
    """o.ts >= p.at - 5 s and p.at >= s.sent - 4 s give o.ts >= s.sent - 9 s (N2)."""
    input_times = {"o": InputTime(103_000), "p": InputTime(102_000), "s": InputTime(110_000)}
    first, second = times.watermarks_out(chain(), input_times, {})
    assert first == {"o": 97_000, "p": 102_000}
    assert second == {"o": 97_000, "p": 102_000, "s": 101_000}


def test_a_bad_predicate_of_a_later_step_names_that_step() -> None:
    with pytest.raises(JobError) as caught:
        chain(where="o.nope = 1")
    assert [problem.path for problem in caught.value.problems] == ["spec.joins[1].where"]


def test_a_predicate_on_a_table_is_a_condition_on_the_version() -> None:
    rates = source("p", "at", ("oid", "int32"), ("paid", "double"), ("at", "int64"), table={"key": ["oid"]})
    step = {"right": "p", "keys": {"o.id": "p.oid"}, "asOf": {"historyRetention": "1h", "grace": "1m"}}
    pipeline = job([ORDERS, rates], [{**step, "where": "p.paid > 0 AND o.amount > 1"}], None)
    assert pipeline.last.kind == AsOfJoin(3_600_000, 60_000)
    assert pipeline.last.residual is not None
    assert pipeline.last.residual.text == "p.paid > 0"
    assert pipeline.last.sides[RIGHT].intake.table


def test_the_sides_of_a_join_on_time_only() -> None:
    pipeline = compiled(keys={}, broadcast="p")
    assert [side.intake.placement for side in pipeline.last.sides] == [Placement.SPREAD, Placement.EVERYWHERE]


def test_window_columns_come_last_where_nothing_is_selected_else_where_they_are_named() -> None:
    step = {"right": "p", "keys": {"o.id": "p.oid"}, "window": {"tumbling": "1h"}}
    by_default = job([ORDERS, PAYMENTS], [step], None).output_schema()
    assert by_default.names[-3:] == ["at", "window_start", "window_end"]
    chosen = [{"column": "window_end"}, {"column": "o.note"}, {"column": "window_start", "as": "began"}]
    selected = job([ORDERS, PAYMENTS], [step], chosen).output_schema()
    assert selected.names == ["window_end", "note", "began"]
    assert selected.types == [pa.int64(), pa.string(), pa.int64()]
    assert job([ORDERS, PAYMENTS], [step], [{"column": "o.note"}]).output_schema().names == ["note"]


def test_a_computed_column_has_the_type_of_its_values() -> None:
    pipeline = compiled([{"expression": "o.amount * 2 > p.paid", "as": "paid"}, {"expression": "NULL", "as": "none"}])
    assert pipeline.output_schema() == pa.schema([("paid", pa.bool_()), ("none", pa.string())])


def test_a_bad_computed_column_names_its_place() -> None:
    with pytest.raises(JobError) as caught:
        compiled([{"column": "o.id"}, {"expression": "o.note + 1", "as": "sum"}])
    assert [problem.path for problem in caught.value.problems] == ["spec.select[1].expression"]


def test_an_interval_goes_out_as_milliseconds() -> None:
    pipeline = compiled([{"expression": "o.ts - TIMESTAMP '2024-01-01'", "as": "lag"}])
    assert pipeline.output_schema() == pa.schema([("lag", pa.int64())])


def test_a_type_that_no_column_can_hold_names_its_place() -> None:
    wide = "0.12345678901234567890 * 0.12345678901234567890"
    with pytest.raises(JobError) as caught:
        compiled([{"column": "o.id"}, {"expression": wide, "as": "wide"}])
    assert [problem.path for problem in caught.value.problems] == ["spec.select[1].expression"]
    assert "40 digits after the point" in caught.value.problems[0].message


def test_parts_of_one_input_that_can_fail_are_checked_where_it_is_read() -> None:
    expressions = ["o.id", "UPPER(o.note)", "CAST(o.note AS INT)", "o.amount * p.paid + CAST(p.oid AS INT)",
            "TRY_CAST(p.oid AS INT)", "CASE WHEN o.amount > 1 THEN CAST(p.oid AS INT) END",
            "COALESCE(CAST(p.oid AS BIGINT), CAST(o.note AS BIGINT))"]  # fmt: skip
    pipeline = compiled([{"expression": text, "as": f"c{n}"} for n, text in enumerate(expressions)])
    assert [[expression.text for expression in side.intake.checked] for side in pipeline.last.sides] == [
        ["CAST(o.note AS INT)"],
        ["CAST(p.oid AS INT)", "CAST(p.oid AS BIGINT)"],
    ]


@pytest.mark.parametrize(
    ("where", "left", "right"),
    [
        ("CAST(o.note AS INT) < CAST(p.oid AS INT)", ["CAST(o.note AS INT)"], ["CAST(p.oid AS INT)"]),
        ("CAST(o.note AS INT) < 5 AND CAST(p.oid AS INT) < 5", [], []),
        ("o.amount > 1 AND o.amount < CAST(p.oid AS INT)", [], []),
        ("p.paid > 1 AND o.amount < CAST(p.oid AS INT)", [], ["CAST(p.oid AS INT)"]),
        ("o.amount < p.paid AND o.amount < CAST(p.oid AS INT)", [], []),
        ("o.amount < p.paid OR o.amount < CAST(p.oid AS INT)", [], []),
    ],
)
def test_what_a_condition_needs_of_one_input_is_checked_unless_something_shields_it(
    where: str, left: list[str], right: list[str]
) -> None:
    pipeline = compiled([{"column": "o.id"}], where=where)
    assert [[expression.text for expression in side.intake.compared] for side in pipeline.last.sides] == [left, right]


def test_a_condition_of_a_later_step_is_checked_where_its_input_is_read() -> None:
    steps = [
        {"right": "p", "keys": {"o.id": "p.oid"}, "interval": {"of": "o", "lower": "0s", "upper": "5s"}},
        {"right": "r", "keys": {"o.id": "r.oid"}, "interval": {"of": "o", "lower": "0s", "upper": "5s"},
         "where": "CAST(o.note AS INT) < r.paid"},
    ]  # fmt: skip
    pipeline = job([ORDERS, PAYMENTS, {**PAYMENTS, "name": "r"}], steps, [{"column": "o.id"}])
    assert [[expression.text for expression in pipeline.intake(name).compared] for name in "opr"] == [
        ["CAST(o.note AS INT)"],
        [],
        [],
    ]


def test_a_computed_key_is_a_column_of_its_input_that_is_stored() -> None:
    pipeline = compiled(keys={"o.id % 7": "p.oid"})
    orders = pipeline.intake("o")
    assert orders.keys == ("id % 7",)
    assert orders.schema.field("id % 7").type == pa.int64()
    assert [name for name, _ in orders.computed_keys] == ["id % 7"]
    assert "id % 7" in stored_columns(pipeline)["left"]
    assert pipeline.intake("p").computed == ()


def test_a_computed_key_of_an_earlier_input_goes_through_the_steps() -> None:
    later = {"right": "s", "keys": {"abs(o.id)": "s.oid"}, "interval": {"of": "o", "lower": "0s", "upper": "1s"}}
    pipeline = job([ORDERS, PAYMENTS, SHIPMENTS], [JOIN, later], None)
    assert pipeline.intake("o").computed_keys == ()  # no key of its own step
    assert [name for name, _ in pipeline.intake("o").other_computed] == ["ABS(id)"]
    assert pipeline.steps[1].sides[LEFT].intake.keys == ("o.ABS(id)",)


def test_computed_keys_that_cannot_be_compared_are_rejected_at_once() -> None:
    later = {
        "right": "s",
        "keys": {"COALESCE(p.oid, 0)": "s.oid"},
        "interval": {"of": "o", "lower": "0s", "upper": "1s"},
    }
    with pytest.raises(JobError) as raised:
        job([ORDERS, PAYMENTS, SHIPMENTS], [{**JOIN, "type": "left", "keys": {"o.note || ''": "p.oid"}}, later], None)
    types, padded = raised.value.problems
    assert types.path == "spec.joins[0].keys[\"o.note || ''\"]"
    assert types.message.startswith("key types differ: o.note || '' is string, p.oid is int32. Write a CAST")
    assert padded.path == 'spec.joins[1].keys["COALESCE(p.oid, 0)"]'
    assert "gives a value where p.oid is NULL: a step before pads p with nulls" in padded.message


def test_conditions_cannot_name_the_column_of_a_computed_key() -> None:
    with pytest.raises(JobError, match="unknown column"):
        compiled(keys={"o.id % 7": "p.oid"}, where='o."id % 7" = 1')
