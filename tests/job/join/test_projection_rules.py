"""A job of one input without joins and aggregate: what it may say, its SQL, its explanation and its signature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from job.chains import ORDERS, PAYMENTS, RATES, document, load, mistakes, step
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import compare, definition, explain, parse_job, signature

SELECT = [{"column": "orders.id"}, {"expression": "orders.amount * 2", "as": "twice"}]
FILTERED = {**ORDERS, "where": "orders.amount > 5"}


def in_sql(sql: str, *inputs: Any) -> dict[str, Any]:
    written = document(inputs=inputs or [ORDERS])
    return {**written, "spec": {**{k: v for k, v in written["spec"].items() if k != "joins"}, "sql": sql}}


def problem_of(written: dict[str, Any]) -> str:
    with pytest.raises(JobError) as raised:
        parse_job(json.dumps(written), "job.json")
    return str(raised.value)


@pytest.mark.parametrize("more", [{}, {"select": SELECT}, {"prefixes": "always"}])
def test_one_input_is_a_job(more: Any) -> None:
    assert mistakes(inputs=[ORDERS], **more) == {}


def test_without_select_columns_have_their_own_names() -> None:
    assert [column.name for column in load(inputs=[ORDERS]).output_columns] == ["id", "currency", "amount", "ts"]


@pytest.mark.parametrize(
    ("more", "path", "words"),
    [
        ({"inputs": [RATES]}, "inputs[0].table", "is a table, but not the right input of an asOf step"),
        ({"inputs": [ORDERS, PAYMENTS]}, "joins", "there is no join step"),
        ({"inputs": [ORDERS], "select": [{"column": "orders.idd"}]}, "select[0].column", "did you mean 'id'?"),
        ({"inputs": [ORDERS], "select": [{"column": "payments.x"}]}, "select[0].column", "is not an input"),
        ({"inputs": [ORDERS], "select": [{"column": "window_start"}]}, "select[0].column", "of window joins only"),
        (
            {"inputs": [ORDERS], "output": {"kafka": {"bootstrapServers": "k:9092", "topic": "t", "key": ["idd"]}}},
            "output.kafka.key[0]",
            "is not an output column",
        ),
    ],
)
def test_what_it_must_not_say(more: Any, path: str, words: str) -> None:
    assert words in mistakes(**more)[f"spec.{path}"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 5",
        "SELECT o.id, (o.amount * 2) AS twice FROM orders AS o WHERE 5 < o.amount EMIT CHANGES",
    ],
)
def test_sql_is_the_same_job(sql: str) -> None:
    job = parse_job(json.dumps(in_sql(sql)), "job.json")
    pipeline, same = compile_job(job), compile_job(load(inputs=[FILTERED], select=SELECT))
    assert pipeline.output_schema() == same.output_schema()
    assert definition(job)["select"] == definition(load(inputs=[ORDERS], select=SELECT))["select"]
    (side,), (same_side,) = pipeline.steps[0].sides, same.steps[0].sides
    assert side.intake.stored == same_side.intake.stored == ("id", "$select.1")
    assert side.intake.filter is not None


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT id", "no input is named; write FROM <input>"),
        ("SELECT COUNT(*) AS n FROM orders", "is computed over many rows"),
        ("SELECT id FROM orders WINDOW TUMBLING(INTERVAL '1' HOUR)", "a window is of a JOIN or of GROUP BY"),
        ("SELECT id FROM orders WITH ('join.upper_bound' = '1h')", "is an option of a JOIN, and there is none"),
        ("SELECT id FROM orders WITH ('aggregate.late_data' = 'drop')", "is an option of GROUP BY"),
        ("SELECT id, 1 + 1 FROM orders", "an expression has no name of its own"),
        ("SELECT id FROM orders o WHERE p.id > 5", "'p' is not an alias here"),
        ("SELECT id FROM orders WHERE amount = 'x'", "spec.sql"),
    ],
)
def test_sql_that_is_rejected(sql: str, words: str) -> None:
    with pytest.raises(JobError) as raised:
        compile_job(parse_job(json.dumps(in_sql(sql)), "job.json"))
    assert words in str(raised.value)


def test_an_input_that_the_select_does_not_read_is_named() -> None:
    words = "of the job's inputs, payments are not joined; JOIN them, or take them out of spec.inputs"
    assert words in problem_of(in_sql("SELECT id FROM orders", ORDERS, PAYMENTS))


def test_the_plan_says_that_nothing_is_kept_and_warns_of_no_state() -> None:
    topic = {"bootstrapServers": "kafka:9092", "topic": "orders"}
    source = {**{k: v for k, v in FILTERED.items() if k != "file"}, "kafka": topic, "watermark": {"idleTimeout": "0s"}}
    explained = explain(load(inputs=[source], select=SELECT))
    text = explained.render()
    assert "projection of orders" in text.splitlines()[0]
    assert "only rows with orders.amount > 5" in text
    assert "twice: orders.amount * 2" in text
    assert "no row waits for a watermark" in text
    assert "no rows are kept: each is emitted by the epoch that reads its record" in text
    assert explained.state_bytes == 0
    assert not any(warning.startswith(("NO DELAY", "IDLENESS", "LARGE")) for warning in explained.warnings)


def test_any_columns_and_condition_may_follow_and_no_step() -> None:
    signed = signature(load(inputs=[ORDERS], select=SELECT), {})
    assert signed["version"] == 4  # release 0.1.0 rejects such a job
    assert compare(signed, signature(load(inputs=[FILTERED]), {})).refused == ()
    stored = {"left": ["id"], "right": ["order_id"]}
    joined = signature(load(step(), inputs=[ORDERS, PAYMENTS]), stored)
    assert "the inputs were" in compare(signed, joined).refused[0]
