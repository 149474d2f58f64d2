"""What is nested too deep is a mistake like others: it has a path and a message, and no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from job import chains, sessions
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.expression import parse_expression
from joinery_runtime.errors import JobError
from joinery_runtime.job import expression_problems, job_from, load_stored, parse_job
from joinery_runtime.job.model.expression_tree import MAX_DEPTH, MAX_NESTING

DEPTHS = (100, 1_500)  # more frames than Python has by default
NESTED: dict[str, Callable[[int], str]] = {
    "brackets": lambda n: "(" * n + "orders.amount" + ")" * n + " > 1",
    "functions": lambda n: "COALESCE(" * n + "orders.amount" + ", 1)" * n + " > 1",
    "CASE": lambda n: "CASE WHEN TRUE THEN " * n + "1" + " END" * n + " > 1",
    "NOT": lambda n: "NOT " * n + "orders.amount > 1",
    "signs": lambda n: "- " * n + "orders.amount > 1",
    "both": lambda n: "NOT (" * n + "orders.amount > 1" + ")" * n,
}
WIDE: dict[str, Callable[[int], str]] = {
    "AND": lambda n: " AND ".join(["orders.amount > 1"] * n),
    "OR": lambda n: " OR ".join(["orders.amount > 1"] * n),
    "sum": lambda n: "orders.amount" + " + 1" * n + " > 1",
}
SAYS = "nested too deep"


def problems(resource: dict[str, Any]) -> dict[str, str]:
    """What `joinery validate` says of a job, by path."""
    try:
        job = parse_job(json.dumps(resource), "job.json")
        compile_job(job)
    except JobError as error:
        return {problem.path: problem.message for problem in error.problems}
    return {}


def joined(where: str) -> dict[str, Any]:
    return chains.document(chains.step(where=where))


def selected(expression: str) -> dict[str, Any]:
    return chains.document(chains.step(), select=[{"expression": expression, "as": "x"}])


def in_sql(condition: str) -> dict[str, Any]:
    bound = "payments.ts BETWEEN orders.ts AND orders.ts + INTERVAL '1' DAY"
    on = f"orders.id = payments.order_id AND {bound} AND ({condition})"
    sql = f"SELECT orders.id FROM orders JOIN payments ON {on}"
    return chains.document(inputs=[chains.ORDERS, chains.PAYMENTS], sql=sql)


def in_columns_of_sql(expression: str) -> dict[str, Any]:
    bound = "payments.ts BETWEEN orders.ts AND orders.ts + INTERVAL '1' DAY"
    sql = f"SELECT {expression} AS x FROM orders JOIN payments ON orders.id = payments.order_id AND {bound}"
    return chains.document(inputs=[chains.ORDERS, chains.PAYMENTS], sql=sql)


def in_groups_of_sql(expression: str) -> dict[str, Any]:
    text = expression.replace("orders.amount", "price")
    groups = f"{text}, SESSION(ts, INTERVAL '1' HOUR)"
    return sessions.in_sql(f"SELECT {text} AS x, COUNT(*) AS n FROM clicks GROUP BY {groups}")


def of_sessions(field: str) -> Callable[[str], dict[str, Any]]:
    def written(text: str) -> dict[str, Any]:
        text = text.replace("orders.amount", "price")
        return sessions.document(**{field: [{"expression": text, "as": "x"}] if field == "compute" else text})

    return written


PLACES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "where of a join": ("spec.joins[0].where", joined),
    "select of a join": ("spec.select[0].expression", selected),
    "SQL": ("spec.sql", in_sql),
    "columns of SQL": ("spec.sql", in_columns_of_sql),
    "groups of SQL": ("spec.sql", in_groups_of_sql),
    "where of sessions": ("spec.where", of_sessions("where")),
    "compute": ("spec.compute[0].expression", of_sessions("compute")),
}
every_location = pytest.mark.parametrize("location", PLACES)


@every_location
@pytest.mark.parametrize("form", NESTED)
@pytest.mark.parametrize("depth", DEPTHS)
def test_an_expression_that_is_nested_too_deep_is_refused_at_its_place(location: str, form: str, depth: int) -> None:
    path, written = PLACES[location]
    messages = problems(written(NESTED[form](depth)))
    assert list(messages) == [path]
    assert SAYS in messages[path]
    assert len(messages[path]) < 500


@every_location
@pytest.mark.parametrize("form", WIDE)
def test_so_is_one_with_too_many_operators(location: str, form: str) -> None:
    path, written = PLACES[location]
    messages = problems(written(WIDE[form](1_200)))
    assert SAYS in messages[path]


@every_location
@pytest.mark.parametrize(
    "text",
    [f"{'9' * 5_000} > orders.amount", f"orders.amount > 1.{'5' * 5_000}", f"CAST(1 AS DECIMAL({'9' * 5_000})) > 1"],
    ids=["a whole number", "a decimal", "a type"],
)
def test_so_is_a_number_that_python_does_not_read(location: str, text: str) -> None:
    path, written = PLACES[location]
    messages = problems(written(text))
    assert list(messages) == [path]
    assert "a number has 5,00" in messages[path]
    assert len(messages[path]) < 700


HOURS = "TUMBLE(ts, INTERVAL '1' HOUR)"
DOUBLED = {
    "aliases": lambda n: (
        f"SELECT currency, SUM(amount) AS x0, {', '.join(f'x{i} + x{i} AS x{i + 1}' for i in range(n))} "
        f"FROM orders GROUP BY currency, {HOURS}"
    ),
    "queries": lambda n: (
        "WITH x0 AS (SELECT currency, amount, ts FROM orders), "
        + ", ".join(f"x{i + 1} AS (SELECT currency, amount + amount AS amount, ts FROM x{i})" for i in range(n))
        + f" SELECT currency, SUM(amount) AS total FROM x{n} GROUP BY currency, {HOURS}"
    ),
}
"""Texts of n names, each of which stands for an expression with the one before twice: for 2 to the power of n."""


@pytest.mark.parametrize("form", DOUBLED)
def test_names_of_sql_do_not_double_an_expression_without_end(form: str) -> None:
    assert problems(chains.document(inputs=[chains.ORDERS], sql=DOUBLED[form](5))) == {}
    messages = problems(chains.document(inputs=[chains.ORDERS], sql=DOUBLED[form](40)))
    assert SAYS in messages["spec.sql"]


@pytest.mark.parametrize("form", NESTED)
def test_the_operator_refuses_it_before_a_pod_starts(form: str) -> None:
    job = load_stored(joined(NESTED[form](100))).job
    (problem,) = expression_problems(job)
    assert (problem.path, SAYS in problem.message) == ("spec.joins[0].where", True)


@every_location
def test_what_the_bound_allows_is_computed_far_down_the_stack(location: str) -> None:
    """A task starts deeper in the stack than the check does."""
    _, written = PLACES[location]
    for form in ("brackets", "both"):
        assert problems(written(NESTED[form](MAX_NESTING // 2 - 2))) == {}
    assert problems(written(WIDE["AND"](MAX_DEPTH // 2))) == {}


@pytest.mark.parametrize(
    "text", [NESTED["brackets"](MAX_NESTING), NESTED["CASE"](MAX_NESTING), WIDE["AND"](MAX_DEPTH - 5)]
)
def test_the_deepest_expression_has_room_below_it(text: str) -> None:
    def below(frames: int) -> None:
        if frames:
            below(frames - 1)
        else:
            expression = parse_expression(text, "orders")
            expression.evaluate(lambda _: pa.array([], pa.float64()), 0)

    below(100)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("opening", ["[", "{a: ", "- "], ids=["lists", "mappings", "blocks"])
def test_a_file_that_is_nested_too_deep_is_not_readable(opening: str, depth: int) -> None:
    closing = {"[": "]", "{a: ": "}", "- ": ""}[opening]
    with pytest.raises(JobError) as caught:
        parse_job(f"a: {opening * depth}{closing * depth}" if opening != "- " else opening * depth, "job.yaml")
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("depth", [80, 5_000])
def test_a_nested_value_of_a_resource_is_refused_at_its_place(depth: int) -> None:
    deep: Any = []
    for _ in range(depth):
        deep = [deep]
    for read in (job_from, load_stored):
        with pytest.raises(JobError) as caught:
            read(chains.document(chains.step(keys=deep)))
        assert len(str(caught.value)) < 1_000
