"""`spec.topN` beside `spec.aggregate` of a StreamJoin, which ranks the rows of the aggregate (rule R6): good jobs load,
each rule rejects at its place; its explanation, its signature and its definition (rule M2)."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import DEAD, ORDERS, changed, document, load, messages_of, step
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.top_n import FirstRows
from joinery_runtime.errors import JobError
from joinery_runtime.job import Comparison, StreamJoin, definition, explain, under_definition
from joinery_runtime.job.key_order import order_warnings

HOUR = {"tumbling": {"size": "1h"}}
SPENT = {"function": "sum", "column": "orders.amount", "as": "spent"}
AGGREGATE = {"groupBy": ["orders.currency", "orders.id"], "window": HOUR, "aggregates": [SPENT]}
HIGHEST = [{"expression": "spent", "direction": "desc"}]
RULE = {"by": ["currency"], "orderBy": HIGHEST, "rows": 3}


def document_of(*steps: dict[str, Any], aggregate: Any = None, spec: Any = None, **fields: Any) -> dict[str, Any]:
    """The three orders of each currency and hour that cost most, unless the fields say otherwise; None leaves a field
    out."""
    rule = {name: value for name, value in (RULE | fields).items() if value is not None}
    inputs = None if steps else [ORDERS]
    return document(*steps, inputs=inputs, topN=rule, aggregate=AGGREGATE | (aggregate or {}), **(spec or {}))


def job_of(*steps: dict[str, Any], **fields: Any) -> StreamJoin:
    return StreamJoin.model_validate(document_of(*steps, **fields))


def test_the_aggregate_hands_on_what_is_ranked_and_emitted() -> None:
    pipeline = compile_job(job_of())
    first, last = pipeline.steps
    assert first.output_schema().names == ["currency", "id", "spent", "$window_time"]
    (side,) = last.sides
    assert (side.part, side.time, side.stored) == ("topN.2", "orders", ("currency", "id", "spent"))
    assert isinstance(last.kind, FirstRows)
    assert last.kind.windows == Windows(3_600_000, 3_600_000, of_windows=True)
    names = ["currency", "id", "window_start", "window_end", "spent", "row_number"]
    assert pipeline.output_schema().names == names
    assert [column.name for column in job_of().output_columns] == names


@pytest.mark.parametrize(("key", "warned"), [(["currency", "row_number"], False), (["id"], True)])
def test_a_topic_whose_key_lacks_what_is_ranked_by_is_warned_about(key: list[str], warned: bool) -> None:
    topic = {"output": {"kafka": {"bootstrapServers": "k:9092", "topic": "t", "key": key}}}
    warnings = list(order_warnings(job_of(spec=topic)))
    assert ["the key does not have currency, so several shards" in text for text in warnings] == [True] * warned


def test_behind_then_and_a_join_only_what_is_read_is_handed_on() -> None:
    then = {
        "groupBy": ["currency"],
        "window": {"tumbling": {"size": "24h"}},
        "aggregates": [{**SPENT, "column": "spent"}],
    }
    select = [{"column": "row_number", "as": "place"}, {"column": "spent"}]
    job = job_of(
        step(), aggregate={"then": then}, by=None, orderBy=[{"expression": "LENGTH(currency)"}], spec={"select": select}
    )
    *_, second, last = compile_job(job).steps
    assert second.output_schema().names == ["currency", "spent", "$window_time"]
    assert [side.part for side in last.sides] == ["topN.4"]
    assert isinstance(last.kind, FirstRows)
    assert last.kind.windows.size == 86_400_000
    assert last.output_schema().names == ["place", "spent"]


def test_times_of_windows_are_timestamps_if_the_output_says_so() -> None:
    job = job_of(by=["window_start"], spec={"output": {"file": {"path": "out"}, "windowTimes": "timestamp"}})
    kinds = {field.name: str(field.type) for field in compile_job(job).output_schema()}
    assert kinds["window_start"].startswith("timestamp")
    assert kinds["row_number"] == "int64"


def test_sql_says_what_is_aggregated() -> None:
    select = "SELECT currency, SUM(amount) AS spent, window_start, window_end"
    windows = "FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' HOUR))"
    sql = f"{select} {windows} GROUP BY currency, window_start, window_end"
    top = {"topN": {"orderBy": HIGHEST, "rows": 3}}
    columns = [{"column": name} for name in ("orders.currency", "spent", "window_start", "window_end")]
    yaml = load(inputs=[ORDERS], aggregate={**AGGREGATE, "groupBy": ["orders.currency"]}, select=columns, **top)
    assert compile_job(load(inputs=[ORDERS], sql=sql, **top)) == compile_job(yaml)


TOTALS = [{"function": "sum", "column": "spent", "as": "total"}]


def test_totals_are_columns_behind_the_number_and_need_neither_rows_nor_an_order() -> None:
    job = job_of(rows=None, orderBy=None, totals=[*TOTALS, {"function": "count", "as": "many"}])
    assert compile_job(job).output_schema().names[-3:] == ["row_number", "total", "many"]
    for line in ("total = sum(spent), many = count(*), over all rows", "emitted: all rows of each window", "kept: all"):
        assert line in str(explain(job)), line


def test_a_total_that_does_not_fit_its_column_is_rejected_when_it_is_compiled() -> None:
    with pytest.raises(JobError, match=r"spec\.topN\.totals\[0\]\.column: sum takes numbers"):
        compile_job(job_of(totals=[{"function": "sum", "column": "id", "as": "t"}]))
    with pytest.raises(JobError, match=r"spec\.topN\.totals\[0\]\.expression: sum takes numbers"):
        compile_job(job_of(totals=[{"function": "sum", "expression": "UPPER(id)", "as": "t"}]))


LISTS = {"aggregates": [SPENT, {"function": "array_agg", "column": "orders.amount", "as": "amounts"}]}
LIST = "'amounts' is a list (array_agg)"
SESSIONS = {"window": {"session": {"gap": "1m", "maxDuration": "1h"}}}


@pytest.mark.parametrize("text", ["JSON_VALUE(amounts, '$[0]')", "CAST((amounts) AS STRING)", "amounts IS NULL"])
def test_a_list_is_read_by_its_elements_or_as_the_text_that_it_is_cast_to(text: str) -> None:
    compile_job(job_of(aggregate=LISTS, orderBy=[{"expression": text}]))


BAD: list[tuple[dict[str, Any], str, str]] = [
    (document_of(orderBy=None), "spec.topN.orderBy", "which rows come first"),
    (document_of(window=HOUR), "spec.topN.window", "are in windows already"),
    (document_of(of="orders"), "spec.topN.of", "aggregate.window.of"),
    (document_of(of="drop"), "spec.topN.of", "aggregate.window.of"),
    (document_of(allowedLateness="1m"), "spec.topN.allowedLateness", "write aggregate.allowedLateness"),
    (document_of(lateData="dlq", spec=DEAD), "spec.topN.lateData", "lateData: dlq in aggregate"),
    (document_of(by=["currensy"]), "spec.topN.by[0]", "did you mean 'currency'"),
    (document_of(by=["orders.currency"]), "spec.topN.by[0]", "columns are currency, id, window_start"),
    (document_of(by=["currency", "currency"]), "spec.topN.by[1]", "twice"),
    (document_of(orderBy=[{"expression": "spend"}]), "spec.topN.orderBy[0].expression", "did you mean 'spent'"),
    (document_of(orderBy=[{"expression": "SUM(id)"}]), "spec.topN.orderBy[0].expression", "add it to `aggregates`"),
    (document_of(orderBy=[{"expression": "spent +"}]), "spec.topN.orderBy[0].expression", "is not an SQL expression"),
    (document_of(aggregate=LISTS, orderBy=[{"expression": "amounts"}]), "spec.topN.orderBy[0].expression", LIST),
    (
        document_of(
            aggregate={**LISTS, "then": {"aggregates": [{"function": "last", "column": "amounts", "as": "amounts"}]}},
            by=None,
            orderBy=[{"expression": "LENGTH((amounts))"}],
        ),
        "spec.topN.orderBy[0].expression",
        "CAST(amounts AS STRING) where the text is meant",
    ),
    (document_of(aggregate=SESSIONS), "spec.aggregate.window.session", "ranks windows that end together"),
    (document_of(aggregate={"lateData": "reopen"}), "spec.aggregate.lateData", "topN ranks rows that stay"),
    (document_of(aggregate={"emit": {"every": "1m"}}), "spec.aggregate.emit", "topN ranks rows that stay"),
    (
        document_of(
            aggregate={"aggregates": [{"function": "count", "as": "row_number"}]}, orderBy=[{"expression": "id"}]
        ),
        "spec.topN",
        "'row_number' is already a column of the aggregate",
    ),
    (
        document_of(step(), aggregate={"groupBy": ["orders.ts", "payments.ts"]}, by=None),
        "spec.aggregate.groupBy[1]",
        "topN would read two columns named 'ts'",
    ),
    (
        document_of(totals=[{"function": "sum", "column": "spend", "as": "t"}]),
        "spec.topN.totals[0].column",
        "did you mean 'spent'",
    ),
    (document_of(totals=[{"function": "sum", "as": "t"}]), "spec.topN.totals[0].column", "name the column"),
    (
        document_of(totals=[{"function": "count", "column": "spent", "as": "t"}]),
        "spec.topN.totals[0].column",
        "drop column",
    ),
    (document_of(totals=[{"function": "count", "as": "spent"}]), "spec.topN.totals[0].as", "is already a column"),
    (document_of(totals=[{"function": "count", "as": "t"}] * 2), "spec.topN.totals[1].as", "twice"),
    (
        document_of(aggregate=LISTS, totals=[{"function": "max", "column": "amounts", "as": "t"}]),
        "spec.topN.totals[0].column",
        LIST,
    ),
    (document_of(totals=[{"function": "count", "as": "t"}], having="tt > 1"), "spec.topN.having", "did you mean"),
    (
        document_of(orderBy=None, totals=[{"function": "lag", "column": "spent", "as": "t"}]),
        "spec.topN.totals[0].orderBy",
        "lag needs an order of the rows",
    ),
    (
        document_of(totals=[{**TOTALS[0], "expression": "spent * 2"}]),
        "spec.topN.totals[0].expression",
        "by column and expression",
    ),
    (
        document_of(totals=[{"function": "sum", "expression": "spend * 2", "as": "t"}]),
        "spec.topN.totals[0].expression",
        "did you mean 'spent'",
    ),
    (
        document_of(totals=[{"function": "count", "expression": "spent", "as": "t"}]),
        "spec.topN.totals[0].expression",
        "drop it",
    ),
    (document_of(totals=[{"function": "lead", "as": "t"}]), "spec.topN.totals[0].column", "name the column"),
    (document_of(totals=[{"function": "cume_dist", "column": "id", "as": "t"}]), "spec.topN.totals[0].column", "drop"),
    (document_of(totals=[{**TOTALS[0], "frame": "rows"}]), "spec.topN.totals[0].frame", "or write orderBy"),
    (document_of(totals=[{**TOTALS[0], "offset": 2}]), "spec.topN.totals[0].offset", "is for lag and lead"),
    (document_of(totals=[{"function": "ntile", "as": "t"}]), "spec.topN.totals[0].buckets", "buckets: 4"),
    (document_of(totals=[{"function": "rank", "buckets": 2, "as": "t"}]), "spec.topN.totals[0].buckets", "drop it"),
    (document(inputs=[ORDERS], topN=RULE | {"totals": TOTALS}), "spec.topN.totals", "are of the rows of an aggregate"),
    (document(inputs=[ORDERS], topN=RULE | {"having": "1 > 0"}), "spec.topN.having", "is on the rows of an aggregate"),
    (document_of(spec={"select": [{"column": "row_numbr"}]}), "spec.select[0].column", "did you mean 'row_number'"),
]


@pytest.mark.parametrize(("resource", "path", "words"), BAD, ids=[f"{path}: {words}" for _, path, words in BAD])
def test_a_bad_rule_is_rejected_at_its_place(resource: dict[str, Any], path: str, words: str) -> None:
    messages = messages_of(resource)
    assert words in messages.get(path, ""), messages


def test_all_faults_are_said_at_once() -> None:
    messages = messages_of(
        document_of(by=["x"], orderBy=[{"expression": "y"}], window=HOUR, aggregate={"lateData": "reopen"})
    )
    assert {"spec.topN.by[0]", "spec.topN.orderBy[0].expression", "spec.topN.window", "spec.aggregate.lateData"} <= (
        messages.keys()
    )


def test_an_expression_that_does_not_fit_its_columns_is_rejected_when_it_is_compiled() -> None:
    with pytest.raises(JobError, match=r"spec\.topN\.orderBy\[0\]\.expression"):
        compile_job(job_of(orderBy=[{"expression": "id + spent"}]))


def test_the_explanation_says_what_is_emitted_and_how_long_rows_stay() -> None:
    text = str(explain(job_of(step(), aggregate={"allowedLateness": "1m"})))
    for line in (
        "top-N of windows of step 2",
        "key: currency",
        "order: spent DESC NULLS LAST",
        "windows: those of the rows",
        "emitted: the first 3 rows of each window, when wm(orders after step 2) >= its end",
        "kept: 3 rows of each key and window; others leave",
        "late rows: none: a window is emitted once",
    ):
        assert line in text, line


# --- edits ------------------------------------------------------------------------------------------------------------


FEWER = [{"column": name} for name in ("orders.currency", "spent", "row_number")]
CONTINUES = [
    (job_of(), job_of()),
    (job_of(), job_of(rows=1)),
    (job_of(), job_of(limits={"maxRecords": 5})),
    (job_of(), job_of(spec={"select": FEWER})),
    (job_of(), job_of(aggregate={"having": "spent > 1"})),
    (job_of(), job_of(having="spent > 1")),
    (job_of(totals=TOTALS), job_of(totals=TOTALS, rows=None, having="spent = total")),
    (job_of(totals=TOTALS), job_of(totals=TOTALS, rows=9)),
]
ALONE = load(inputs=[ORDERS], aggregate=AGGREGATE)
REJECTED = [
    (ALONE, job_of(), "there is now a topN step; it is neither added to a state nor removed from"),
    (job_of(), ALONE, "there was a topN step; it is neither added"),
    (job_of(), job_of(by=["id"]), "by was currency (string), it is now id (string)"),
    (
        job_of(),
        job_of(orderBy=[{"expression": "id"}]),
        "orderBy) was spent DESC NULLS LAST, it is now id ASC NULLS FIRST",
    ),
    (job_of(), job_of(totals=TOTALS), "(totals) was none, it is now total = sum(spent)"),
    (
        job_of(totals=[{**TOTALS[0], "orderBy": HIGHEST}, {"function": "ntile", "buckets": 2, "as": "half"}]),
        job_of(totals=[{**TOTALS[0], "orderBy": HIGHEST, "frame": "rows"}]),
        "(totals) was total = sum(spent) by spent DESC NULLS LAST, half = ntile(2), it is now total = sum(spent) by "
        "spent DESC NULLS LAST in rows",
    ),
    (job_of(totals=TOTALS), job_of(), "(totals) was total = sum(spent), it is now none"),
    (job_of(), job_of(aggregate={"window": {"tumbling": {"size": "2h"}}}), "the windows' size was 1h, it is now 2h"),
]


@pytest.mark.parametrize(("before", "after"), CONTINUES)
def test_the_state_continues(before: StreamJoin, after: StreamJoin) -> None:
    assert changed(before, after) == Comparison((), ())


@pytest.mark.parametrize(("before", "after", "words"), REJECTED)
def test_the_state_is_rejected(before: StreamJoin, after: StreamJoin, words: str) -> None:
    assert words in changed(before, after).refused[0]


def test_the_state_continues_with_a_warning() -> None:
    (more,) = changed(job_of(), job_of(rows=5)).warnings
    assert "rows went from 3 to 5" in more
    (new,) = changed(job_of(spec={"select": FEWER}), job_of()).warnings
    assert new == "id is null in rows that were stored before"


def test_a_plan_ends_under_the_rule_that_made_it_with_the_limits_of_now() -> None:
    before, now = job_of(rows=7, limits={"maxRecords": 5}), job_of(limits={"maxRecords": 9})
    then = under_definition(now, definition(before)).top_of_windows
    assert then is not None
    assert then.limits is not None
    assert (then.limits.max_records, then.rows) == (9, 7)
