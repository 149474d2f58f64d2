"""`spec.aggregate.then`: an aggregate of an aggregate (rule G10). Columns, explanation, and what each rule rejects."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import document, load, messages_of, step
from job.kinds.test_aggregate_rules import COUNT, SESSION, aggregate, aggregate_call
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import explain

HOURS = {"tumbling": {"size": "1h"}}
MOST = aggregate_call("max", "n")


def twice(then: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return aggregate(**{"window": HOURS, "then": then, **fields})


def test_columns_are_those_of_the_second_aggregate() -> None:
    then = {"groupBy": ["currency"], "aggregates": [MOST, {**aggregate_call("min", "newest"), "as": "earliest"}]}
    rows = twice(then, aggregates=[COUNT, {**aggregate_call("max", "orders.ts"), "as": "newest"}])
    job = load(step(), aggregate=rows)
    assert [(column.name, str(column.type)) for column in job.output_columns] == [
        ("currency", "string"),
        ("window_start", "None"),
        ("window_end", "None"),
        ("max_", "None"),
        ("earliest", "timestamp"),
    ]
    assert compile_job(job).output_schema().names == [column.name for column in job.output_columns]


def test_a_table_is_told_by_groups_and_windows_of_the_second_aggregate() -> None:
    table = {"output": {"postgres": {"dsn": "postgresql://x", "table": "t"}}}
    job = load(step(), aggregate=twice({"aggregates": [MOST]}), **table)
    assert job.upsert_key(job.outputs[0]) == ("window_start", "window_end")


def test_both_aggregates_are_explained() -> None:
    first, second = explain(load(step(), aggregate=twice({"aggregates": [MOST]}))).steps[-2:]
    assert (first.title, second.title) == ("windows of orders + payments", "windows of windows of step 2")
    lines = dict(second.lines)
    assert (lines["windows"], lines["aggregates"]) == ("those of the rows", "max(n) as max_")
    assert lines["late rows"] == "none: a window is emitted once"
    own = {"window": {"tumbling": {"size": "24h"}}, "aggregates": [MOST]}
    *_, longer = explain(load(step(), aggregate=twice(own))).steps
    assert dict(longer.lines)["windows"] == "24h long, one after the other, aligned to midnight UTC"
    assert longer.sides[0].kept_for_ms == second.sides[0].kept_for_ms + 24 * 3_600_000


LISTS = [COUNT, {"function": "array_agg", "column": "orders.id", "as": "ids"}]
LIST = "'ids' is a list (array_agg), and a row has it as JSON text, whose order is not that of lists"
REJECTED: list[tuple[dict[str, Any], str, str]] = [
    (twice({}, window={"session": SESSION}), "window.session", "each session ends at a time of its own"),
    (twice({}, lateData="reopen"), "lateData", "then aggregates rows that stay; write drop"),
    (twice({}, emit={"every": "10s"}), "emit", "then aggregates rows that stay; leave it out"),
    (
        twice({"groupBy": ["orders.currency"]}),
        "then.groupBy[0]",
        "columns are currency, window_start, window_end and n",
    ),
    (twice({"groupBy": ["window_end"]}), "then.groupBy[0]", "windows have a column 'window_end' of their own"),
    (
        twice({"aggregates": [aggregate_call("max", "m")]}),
        "then.aggregates[0].column",
        "the first aggregate has no column 'm'",
    ),
    (
        twice({"aggregates": [aggregate_call("sum", "currency")]}, aggregates=None),
        "then.aggregates[0].column",
        "sum takes numbers",
    ),
    (twice({"aggregates": [{**MOST, "where": "n > 1"}]}), "then.aggregates[0].where", "write `having` of the first"),
    (twice({"aggregates": [aggregate_call("max", "ids")]}, aggregates=LISTS), "then.aggregates[0].column", LIST),
    (twice({"aggregates": [aggregate_call("array_agg", "ids")]}, aggregates=LISTS), "then.aggregates[0].column", LIST),
    (
        twice({"aggregates": [{**aggregate_call("min_by", "n"), "by": "ids"}]}, aggregates=LISTS),
        "then.aggregates[0].by",
        LIST,
    ),
    (twice({}, aggregates=LISTS, having="ids > '[2]'"), "having", LIST),
    (twice({"groupBy": ["ids"], "having": "UPPER(ids) = 'A'"}, aggregates=LISTS), "then.having", LIST),
    (twice({"having": "n > 1"}), "then.having", "'n' is no column of these windows"),
    (twice({"window": {}}), "then.window", "needs exactly one of tumbling, hopping and cumulative"),
    (
        twice({"window": {"hopping": {"size": "1h", "slide": "2h"}}}),
        "then.window.hopping.slide",
        "is longer than size",
    ),
    (
        twice({}, groupBy=["orders.ts", "payments.ts"]),
        "groupBy[1]",
        "then would read two columns named 'ts', of two inputs",
    ),
]


def test_an_output_takes_no_list_as_a_text() -> None:
    output = {"file": {"path": "out"}, "when": "seen BETWEEN '[1]' AND '[2]'"}
    select = [{"column": "ids", "as": "seen"}, {"column": "n"}]
    fields = {"output": None, "outputs": [{"name": "few", **output}]}
    messages = messages_of(document(step(), aggregate=aggregate(aggregates=LISTS), select=select, **fields))
    assert "'seen' is a list (array_agg)" in messages["spec.outputs[0].when"]


@pytest.mark.parametrize(("fields", "path", "words"), REJECTED)
def test_what_the_second_aggregate_cannot_read_is_rejected(fields: dict[str, Any], path: str, words: str) -> None:
    assert words in messages_of(document(step(), aggregate=fields))[f"spec.aggregate.{path}"]


def test_an_aggregate_of_a_wrong_type_is_rejected_by_the_core_at_its_place() -> None:
    joined = {"function": "string_agg", "column": "orders.id", "as": "ids"}
    job = load(step(), aggregate=twice({"aggregates": [aggregate_call("sum", "ids")]}, aggregates=[joined]))
    with pytest.raises(JobError, match=r"spec\.aggregate\.then\.aggregates\[0\]\.column.*sum takes numbers"):
        compile_job(job)
    job = load(step(), aggregate=twice({"aggregates": [MOST], "having": "max_"}))
    with pytest.raises(JobError, match=r"spec\.aggregate\.then\.having.*is not a condition"):
        compile_job(job)


def test_output_columns_are_selected_from_the_second_aggregate() -> None:
    fields = twice({"aggregates": [MOST]})
    job = load(step(), aggregate=fields, select=[{"column": "max_", "as": "most"}])
    assert compile_job(job).output_schema().names == ["most"]
    messages = messages_of(document(step(), aggregate=fields, select=[{"column": "n"}]))
    assert "'n' is no column of these windows" in messages["spec.select[0].column"]
