"""What is found of SQL expressions before a pod starts, by syntax and columns alone."""

from __future__ import annotations

from typing import Any

import pytest
import sqlglot

from joinery_runtime.errors import JobError
from joinery_runtime.job import SessionWindow, StreamJoin, expression_problems
from joinery_runtime.job.model.expression_tree import parse_tree

STORE = {"postgres": {"dsn": "postgresql://db/state"}}
STEPS = [
    {"right": right, "keys": {"a.id": f"{right}.id"}, "interval": {"of": "a", "lower": "0s", "upper": "1h"}}
    for right in ("b", "c")
]


def side(name: str) -> dict[str, Any]:
    schema = [{"name": "id", "type": "string"}, {"name": "ts", "type": "timestamp"}]
    kafka = {"bootstrapServers": "kafka:9092", "topic": name}
    return {"name": name, "kafka": kafka, "format": "json", "schema": schema, "eventTime": "ts"}


def job(kind: type[StreamJoin | SessionWindow], **spec: Any) -> Any:
    common = {"output": {"postgres": {"table": "out"}}, "stateStore": STORE}
    resource = {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": kind.__name__,
        "metadata": {"name": "orders"},
        "spec": {**common, **spec},
    }
    return kind.model_validate(resource, by_alias=True, by_name=False)


def join(first: str | None = None, second: str | None = None, **spec: Any) -> Any:
    steps = [{**step, **({"where": text} if text else {})} for step, text in zip(STEPS, (first, second), strict=True)]
    return job(StreamJoin, inputs=[side("a"), side("b"), side("c")], joins=steps, **spec)


def sessions(**spec: Any) -> Any:
    count = {"function": "count", "as": "events"}
    fields = {"groupBy": ["id"], "gap": "30s", "maxDuration": "2h", "aggregates": [count], **spec}
    return job(SessionWindow, input=side("clicks"), **fields)


FINE = {
    "no expressions": join,
    "columns of both sides": lambda: join("a.id <> b.id", "a.id = c.id AND b.ts < c.ts"),
    "sessions": lambda: sessions(where="id <> 'x' AND clicks.ts IS NOT NULL"),
    "computed": lambda: sessions(compute=[{"expression": "UPPER(id)", "as": "name"}], groupBy=["name"]),
}


@pytest.mark.parametrize("build_job", FINE.values(), ids=FINE)
def test_what_can_be_read_has_no_problem(build_job: Any) -> None:
    assert expression_problems(build_job()) == []


BROKEN = {
    "unknown column": (
        lambda: join("a.nope > 1"),
        "spec.joins[0].where: 'a.nope > 1' uses 'a.nope': 'a' has no column 'nope'; its columns are id and ts",
    ),
    "joined later": (
        lambda: join("a.id = c.id"),
        "spec.joins[0].where: 'a.id = c.id' uses 'c.id': the inputs here are a and b; write <input>.<column>",
    ),
    "no input": (
        lambda: join(second="id = c.id"),
        "spec.joins[1].where: 'id = c.id' uses 'id': the inputs here are a, b and c; write <input>.<column>",
    ),
    "of a session": (
        lambda: sessions(where="idd = 'x'"),
        "spec.where: \"idd = 'x'\" uses 'clicks.idd': 'clicks' has no column 'idd' (did you mean 'id'?); "
        "its columns are id and ts",
    ),
    "computed": (
        lambda: sessions(compute=[{"expression": "UPPER(nam)", "as": "name"}], groupBy=["name"]),
        "spec.compute[0].expression: 'UPPER(nam)' uses 'clicks.nam': 'clicks' has no column 'nam'; "
        "its columns are id and ts",
    ),
}


@pytest.mark.parametrize(("build_job", "message"), BROKEN.values(), ids=BROKEN)
def test_a_problem_names_place_column_and_what_there_is(build_job: Any, message: str) -> None:
    assert [str(problem) for problem in expression_problems(build_job())] == [message]


@pytest.mark.parametrize("text", ["a.id >", "a.id = 'x", "(a.id"])
def test_what_is_no_sql_is_told_at_its_place(text: str) -> None:
    (problem,) = expression_problems(join(second=text))
    assert problem.path == "spec.joins[1].where"
    assert problem.message.startswith(f"{text!r} is not an SQL expression: ")


@pytest.mark.parametrize(("build_job", "_"), BROKEN.values(), ids=BROKEN)
def test_the_runtime_refuses_all_that_is_refused_here(build_job: Any, _: str) -> None:
    compiling = pytest.importorskip("joinery_runtime.core.compile.jobs")
    with pytest.raises(JobError):
        compiling.compile_job(build_job())


@pytest.mark.parametrize(
    "text",
    ["LCASE(a.x)", "UCASE(a.x)", "LEN(a.x)", "CHAR_LENGTH(a.x)", "SUBSTR(a.x, 2)",
     "SUBSTRING(a.x FROM 1 FOR 2)", "trim(a.x)", "abs(a.x)",
     "IFNULL(a.x, 1)", "nvl(a.x, 1)", "MOD(a.x, 2)", "IIF(a.x, 1, 2)", "LENGTH(LOWER(a.x)) + 1"],
)  # fmt: skip
def test_functions_of_earlier_releases_keep_the_text_that_is_stored(text: str) -> None:
    """Signatures and definitions of running jobs hold the text of the tree."""
    assert parse_tree(text).sql() == sqlglot.parse_one(text).sql()
