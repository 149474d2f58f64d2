"""`spec.topN` of a StreamJoin: good jobs load, each rule rejects at its place; its explanation, its signature and its
definition (rule M2)."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import DEAD, ORDERS, PAYMENTS, RATES, changed, document, load, messages_of, step, stream, window
from joinery_runtime.core.compile.jobs import compile_job, stored_columns
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.top_n import FirstRows
from joinery_runtime.errors import JobError
from joinery_runtime.job import Comparison, StreamJoin, definition, explain, signature, under_definition
from joinery_runtime.job.signature import NEWEST_VERSION

HOUR = {"tumbling": {"size": "1h"}}
HIGHEST = [{"expression": "orders.amount", "direction": "desc"}]
RULE = {"by": ["orders.currency"], "orderBy": HIGHEST, "rows": 3, "window": HOUR}


def rule(**fields: Any) -> dict[str, Any]:
    """The three highest orders of each currency and hour, unless the fields say otherwise; None leaves a field out."""
    return {name: value for name, value in (RULE | fields).items() if value is not None}


def job_of(*steps: dict[str, Any], inputs: Any = None, select: Any = None, **fields: Any) -> StreamJoin:
    more = {} if select is None else {"select": select}
    return load(*steps, inputs=inputs or (None if steps else [ORDERS]), topN=rule(**fields), **more)


def test_one_input_needs_no_join() -> None:
    job = job_of(window={"hopping": {"size": "1h", "slide": "10m", "offset": "1m"}}, allowedLateness="5s")
    (only,) = compile_job(job).steps
    assert [side.part for side in only.sides] == ["topN"]
    assert isinstance(only.kind, FirstRows)
    assert only.kind.windows == Windows(3_600_000, 600_000, 60_000)
    assert (only.kind.rows, only.kind.allowed_lateness, only.kind.late_to_dead_letters) == (3, 5_000, False)
    assert [(key.expression.text, key.descending, key.nulls_first) for key in only.kind.order] == [
        ("orders.amount", True, False)
    ]
    names = ["id", "currency", "amount", "ts", "window_start", "window_end", "row_number"]
    assert compile_job(job).output_schema().names == names
    assert [column.name for column in job.output_columns] == names


def test_behind_a_join_the_last_step_hands_on_what_it_needs() -> None:
    select = [{"column": "payments.method"}, {"column": "row_number", "as": "place"}]
    order = [{"expression": "LENGTH(orders.id) + orders.amount"}, {"expression": "payments.ts", "nulls": "last"}]
    first, last = compile_job(job_of(step(), select=select, of="payments", orderBy=order)).steps
    assert first.output_schema().names == [
        *("orders.id", "orders.currency", "orders.amount", "payments.method", "payments.ts")
    ]
    (side,) = last.sides
    assert (side.part, side.time, side.intake.event_time) == ("topN.2", "payments", "payments.ts")
    assert side.stored == ("orders.id", "orders.currency", "orders.amount", "payments.method")
    assert last.output_schema().names == ["method", "place"]


def test_times_of_windows_are_timestamps_if_the_output_says_so() -> None:
    output = {"file": {"path": "out"}, "windowTimes": "timestamp"}
    job = load(inputs=[ORDERS], topN=rule(), output=output)
    kinds = {field.name: str(field.type) for field in compile_job(job).output_schema()}
    assert kinds["window_end"].startswith("timestamp")
    assert kinds["row_number"] == "int64"


@pytest.mark.parametrize(
    ("order", "nulls_first"),
    [
        ({}, True),
        ({"direction": "desc"}, False),
        ({"nulls": "last"}, False),
        ({"direction": "desc", "nulls": "first"}, True),
    ],
)
def test_null_is_the_lowest_value_unless_nulls_says_otherwise(order: dict[str, str], nulls_first: bool) -> None:
    (only,) = compile_job(job_of(orderBy=[{"expression": "orders.amount", **order}])).steps
    assert isinstance(only.kind, FirstRows)
    assert only.kind.order[0].nulls_first == nulls_first


HOPPING = window(hopping={"size": "1h", "slide": "10m"})


def test_without_a_window_rows_are_ranked_in_those_of_the_joins() -> None:
    first, last = compile_job(job_of(HOPPING, window=None, select=[{"column": "orders.id"}])).steps
    assert first.output_schema().names == ["orders.id", "orders.currency", "orders.amount", "$window_time"]
    (side,) = last.sides
    assert (side.intake.event_time, side.one_window) == ("$window_time", True)
    assert isinstance(last.kind, FirstRows)
    assert last.kind.windows == Windows(3_600_000, 600_000, of_windows=True)
    text = str(explain(job_of(HOPPING, window=None)))
    for line in ("windows: those of the rows", "late rows: none: a window is emitted once"):
        assert line in text, line
    assert "event time: that of" not in text


BAD: list[tuple[dict[str, Any], str, str]] = [
    (document(inputs=[ORDERS], topN=rule(rows=None)), "spec.topN.rows", "write for example rows: 10"),
    (document(inputs=[ORDERS], topN=rule(rows=0)), "spec.topN.rows", "1"),
    (document(inputs=[ORDERS], topN=rule(rows=10_001)), "spec.topN.rows", "10000"),
    (document(inputs=[ORDERS], topN=rule(orderBy=None)), "spec.topN.orderBy", "which rows come first"),
    (document(inputs=[ORDERS], topN=rule(window=None)), "spec.topN.window", "window: {tumbling: {size: 1h}}"),
    (document(inputs=[ORDERS], topN=rule(window={})), "spec.topN.window", "none of them is named"),
    (
        document(inputs=[ORDERS], topN=rule(window={"hopping": {"size": "1m", "slide": "1h"}})),
        "spec.topN.window.hopping.slide",
        "is longer than size",
    ),
    (document(inputs=[ORDERS], topN=rule(by=["orders.currensy"])), "spec.topN.by[0]", "did you mean"),
    (
        document(inputs=[ORDERS], topN=rule(orderBy=[{"expression": "amount"}])),
        "spec.topN.orderBy[0].expression",
        "write <input>.amount",
    ),
    (
        document(inputs=[ORDERS], topN=rule(orderBy=[{"expression": "orders.amount +"}])),
        "spec.topN.orderBy[0].expression",
        "is not an SQL expression",
    ),
    (
        document(inputs=[ORDERS], topN=rule(orderBy=[{"expression": "payments.method"}])),
        "spec.topN.orderBy[0].expression",
        "'payments' is not an input",
    ),
    (
        document(step(type="left"), topN=rule(of="payments")),
        "spec.topN.of",
        "a row without an event time is in no order; write of: orders",
    ),
    (document(step(), topN=rule(lateData="dlq"), **DEAD), "spec.topN.lateData", "are no records"),
    (document(inputs=[ORDERS], topN=rule(lateData="dlq")), "spec.topN.lateData", "name `deadLetter`"),
    (document(inputs=[ORDERS, PAYMENTS], topN=rule()), "spec.joins", "there is no join step"),
    (
        document(inputs=[RATES], topN=rule(by=["rates.currency"], orderBy=[{"expression": "rates.rate"}])),
        "spec.inputs[0].table",
        "topN is for events; drop `table`",
    ),
    (
        document(inputs=[ORDERS], topN=rule(allowedLateness="1m"), deduplicate={"by": ["orders.id"], "within": "1h"}),
        "spec.topN.allowedLateness",
        "deduplicate lets no late row through to topN",
    ),
    (
        document(inputs=[ORDERS], topN=rule(lateData="dlq"), deduplicate={"by": ["orders.id"], "within": "1h"}),
        "spec.topN.lateData",
        "deduplicate lets no late row through to topN",
    ),
    (
        document(window(tumbling={"size": "1m"}), deduplicate={"by": ["orders.id"], "within": "1h"}, topN=rule()),
        "spec.joins[0].window",
        "no deduplicate follows window steps",
    ),
    (
        document(HOPPING, topN=rule(window=None, of="payments")),
        "spec.topN.of",
        "rows are ranked in those of the joins",
    ),
    (
        document(HOPPING, topN=rule(window=None, allowedLateness="1m")),
        "spec.topN.allowedLateness",
        "write it into the window step",
    ),
    (
        document(HOPPING, step("items", type="full"), topN=rule(window=None)),
        "spec.joins[1].type",
        "are in no window, in which topN would rank them",
    ),
    (document(window(session={"gap": "1m"}), topN=rule(window=None)), "spec.topN.window", "is missing"),
]


@pytest.mark.parametrize(("resource", "path", "words"), BAD, ids=[f"{path}: {words}" for _, path, words in BAD])
def test_a_bad_rule_is_rejected_at_its_place(resource: dict[str, Any], path: str, words: str) -> None:
    messages = messages_of(resource)
    assert words in messages.get(path, ""), messages


def test_top_n_beside_sql_ranks_the_rows_of_its_joins() -> None:
    sql = load(inputs=[ORDERS], topN=rule(), sql="SELECT id FROM orders WHERE amount > 1")
    yaml = load(inputs=[{**ORDERS, "where": "orders.amount > 1"}], topN=rule(), select=[{"column": "orders.id"}])
    assert compile_job(sql) == compile_job(yaml)
    assert definition(sql)["topN"] == definition(yaml)["topN"]


def test_sql_says_none_of_what_top_n_needs() -> None:
    messages = messages_of(document(inputs=[ORDERS], topN={}, sql="SELECT id FROM orders"))
    assert {"spec.topN.orderBy", "spec.topN.rows", "spec.topN.window"} <= messages.keys()


def test_row_number_is_a_column_of_top_n_alone() -> None:
    messages = messages_of(document(inputs=[ORDERS], select=[{"column": "row_number"}]))
    assert "does not name its input" in messages["spec.select[0].column"]


def test_an_expression_that_does_not_fit_its_columns_is_rejected_when_it_is_compiled() -> None:
    with pytest.raises(JobError, match=r"spec\.topN\.orderBy\[0\]\.expression"):
        compile_job(job_of(orderBy=[{"expression": "orders.id + orders.amount"}]))


def test_the_explanation_says_what_is_emitted_and_how_long_rows_stay() -> None:
    text = str(explain(job_of(step(), of="payments", allowedLateness="1m")))
    for line in (
        "top-N of orders + payments",
        "key: orders.currency",
        "event time: that of payments",
        "order: orders.amount DESC NULLS LAST",
        "emitted: the first 3 rows of each window, when wm(payments after step 1) >= its end + 1m [allowedLateness]",
        "counted when the end of their last window + 1m [allowedLateness] <= wm(payments after step 1)",
        "rows are kept until wm(payments after step 1) >= the end of their last window + 1m [allowedLateness]",
    ):
        assert line in text, line
    assert "key: none: all rows are of one key" in str(explain(job_of(by=None)))


# --- edits ------------------------------------------------------------------------------------------------------------


CONTINUES = [
    (job_of(), job_of()),
    (job_of(), job_of(rows=1)),
    (job_of(allowedLateness="1m"), job_of()),
    (job_of(), job_of(limits={"maxRecords": 5})),
    (job_of(), job_of(orderBy=[{**HIGHEST[0], "nulls": "last"}])),
    (job_of(lateData="drop"), load(inputs=[ORDERS], topN=rule(lateData="dlq"), **DEAD)),
]
REJECTED = [
    (load(step()), job_of(step()), "there is now a topN step; it is neither added to a state nor removed from"),
    (job_of(step()), load(step()), "there was a topN step; it is neither added"),
    (job_of(), job_of(by=["orders.id"]), "by was orders.currency (string), it is now orders.id (string)"),
    (job_of(), job_of(by=None), "topN.by was orders.currency (string), it is now (none)"),
    (
        job_of(),
        job_of(orderBy=[{"expression": "orders.id"}]),
        "the order of rows (orderBy) was orders.amount DESC NULLS LAST, it is now orders.id ASC NULLS FIRST",
    ),
    (
        job_of(),
        job_of(window={"tumbling": {"size": "2h"}}),
        "the window was tumbling size 1h, it is now tumbling size 2h",
    ),
    (job_of(step()), job_of(step(), of="payments"), "for topN was orders, it is now payments"),
    (job_of(HOPPING), job_of(HOPPING, window=None), "the window was tumbling size 1h, it is now none"),
    (
        job_of(),
        job_of(inputs=[stream("orders", "id", "currency", "amount:int64")]),
        "column amount is stored as double, the job now declares int64",
    ),
]
WARNS = [
    (job_of(), job_of(rows=5), "rows went from 3 to 5: rows that left the state before stay gone, so open windows may"),
    (job_of(), job_of(allowedLateness="1s"), "allowedLateness went from 0s to 1s"),
]


@pytest.mark.parametrize(("before", "after"), CONTINUES)
def test_the_state_continues(before: StreamJoin, after: StreamJoin) -> None:
    assert changed(before, after) == Comparison((), ())


@pytest.mark.parametrize(("before", "after", "words"), REJECTED)
def test_the_state_is_rejected(before: StreamJoin, after: StreamJoin, words: str) -> None:
    assert words in changed(before, after).refused[0]


@pytest.mark.parametrize(("before", "after", "words"), WARNS)
def test_the_state_continues_with_a_warning(before: StreamJoin, after: StreamJoin, words: str) -> None:
    compared = changed(before, after)
    assert compared.refused == ()
    assert words in compared.warnings[0]


def test_an_older_release_rejects_the_state() -> None:
    assert signature(job_of(), stored_columns(compile_job(job_of())))["version"] == NEWEST_VERSION


def test_a_plan_ends_under_the_rule_that_made_it_with_the_limits_of_now() -> None:
    before, now = job_of(rows=7, limits={"maxRecords": 5}), job_of(limits={"maxRecords": 9})
    then = under_definition(now, definition(before))
    (then_ranking,), (before_ranking,) = then.rankings, before.rankings
    assert then_ranking.limits is not None
    assert then_ranking.limits.max_records == 9
    assert then_ranking.signed() == before_ranking.signed()
