"""`where` of an input, written or from SQL."""

from __future__ import annotations

import pytest

from job import chains, sessions
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import definition, explain, expression_problems, under_definition

BOUND = "p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' DAY"
INPUTS = [chains.ORDERS, chains.PAYMENTS]


def in_sql(join: str, where: str, more: str = "") -> dict[str, str]:
    on = "o.id = p.order_id" if more else f"o.id = p.order_id AND {BOUND}"
    sql = f"SELECT o.id FROM orders o {join} payments p ON {on} WHERE {where} {more}"
    return dict(chains.parsed(chains.document(inputs=INPUTS, sql=sql)).input_filters)


@pytest.mark.parametrize(
    ("join", "where", "filters"),
    [
        ("LEFT JOIN", "o.amount > 1", {"orders": "orders.amount > 1"}),
        ("LEFT JOIN", "o.amount > 1 AND o.id <> ''", {"orders": "orders.amount > 1 AND orders.id <> ''"}),
        ("RIGHT JOIN", "p.method = 'card'", {"payments": "payments.method = 'card'"}),
        ("JOIN", "o.amount > 1", {}),
    ],
)
def test_where_on_the_preserved_side_filters_its_input(join: str, where: str, filters: dict[str, str]) -> None:
    assert in_sql(join, where) == filters


@pytest.mark.parametrize(
    ("join", "where", "more"),
    [
        ("LEFT JOIN", "p.method = 'card'", ""),
        ("RIGHT JOIN", "o.amount > 1", ""),
        ("FULL JOIN", "o.amount > 1", ""),
        ("FULL JOIN", "p.method = 'card'", ""),
        ("LEFT JOIN", "o.id = p.method", ""),
        ("LEFT JOIN", "o.amount > 1", "WINDOW SESSION(INTERVAL '1' MINUTE)"),
    ],
)
def test_where_that_counts_after_the_padding_filters_no_input(join: str, where: str, more: str) -> None:
    """It is the filter of the last step (J11)."""
    assert in_sql(join, where, more) == {}


def test_a_tumbling_window_keeps_its_windows_without_a_row() -> None:
    filters = in_sql("LEFT JOIN", "o.amount > 1", "WINDOW TUMBLING(INTERVAL '1' MINUTE)")
    assert filters == {"orders": "orders.amount > 1"}


def test_a_stored_definition_has_the_condition_that_sql_said() -> None:
    sql = f"SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.order_id AND {BOUND} WHERE o.amount > 1"
    orders = {**chains.ORDERS, "where": "id <> ''"}
    job = chains.parsed(chains.document(inputs=[orders, chains.PAYMENTS], sql=sql))
    stored = definition(job)
    assert stored["inputs"][0]["where"] == "(id <> '') AND (orders.amount > 1)"
    assert definition(under_definition(job, stored)) == stored
    intake = compile_job(job).steps[0].sides[0].intake
    assert intake.filter is not None
    assert intake.predicate is None
    assert "only rows with (id <> '') AND (orders.amount > 1)" in explain(job).render()


def test_a_condition_of_sessions_input_is_checked_too() -> None:
    job = sessions.load(input={**sessions.CLICKS, "where": "price > 1"}, where="qty > 1")
    intake = compile_job(job).steps[0].sides[0].intake
    assert (str(intake.filter and intake.filter.text), str(intake.predicate and intake.predicate.text)) == (
        "price > 1",
        "qty > 1",
    )


@pytest.mark.parametrize("text", ["nope > 1", "payments.method = 'x'", "amount >"])
def test_it_reads_its_own_input_only(text: str) -> None:
    job = chains.load(chains.step(), inputs=[{**chains.ORDERS, "where": text}, chains.PAYMENTS])
    (problem,) = expression_problems(job)
    assert problem.path == "spec.inputs[0].where"
    with pytest.raises(JobError, match=r"spec\.inputs\[0\]\.where"):
        compile_job(job)


def test_it_is_a_condition() -> None:
    job = chains.load(chains.step(), inputs=[{**chains.ORDERS, "where": "amount"}, chains.PAYMENTS])
    with pytest.raises(JobError, match=r"spec\.inputs\[0\]\.where: 'amount' is not a condition"):
        compile_job(job)


def test_a_table_takes_none() -> None:
    rates = {**chains.RATES, "where": "rate > 1"}
    messages = chains.mistakes(chains.as_of(), inputs=[chains.ORDERS, rates])
    assert "write the condition into the step's `where`" in messages["spec.inputs[1].where"]
