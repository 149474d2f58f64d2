"""docs/sessions.md says what is so: its jobs load, its ids and the types of its aggregates are the product's."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from core.table.reference_keyhash import reference_hash
from joinery_runtime.core.aggregates import accumulator
from joinery_runtime.core.aggregates.base import AggregateCall
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.table.columns import arrow_type
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.job import SessionWindow, load_job, parse_job, parse_type

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sessions.md").read_text()
JOB, MORE, SQL = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def cells(heading: str) -> list[list[str]]:
    """Rows of the first table below a heading."""
    table = PAGE.partition(f"\n{heading}")[2]
    lines = table[table.index("|---") :].splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[:end]]


def test_its_job_is_that_of_the_example() -> None:
    job, example = parse_job(JOB, "page"), load_job(ROOT / "examples" / "session-window.yaml")
    assert isinstance(job, SessionWindow)
    assert isinstance(example, SessionWindow)
    assert job.sessions == example.sessions
    assert job.output_columns == example.output_columns


def test_its_further_aggregates_are_understood() -> None:
    resource, further = yaml.safe_load(JOB), yaml.safe_load(MORE)["aggregates"]
    resource["spec"]["input"]["schema"] += [{"name": "price", "type": "double"}, {"name": "latency", "type": "int32"}]
    resource["spec"]["aggregates"] = further
    job = parse_job(yaml.safe_dump(resource), "page")
    assert isinstance(job, SessionWindow)
    names = [call.name for call in compile_job(job).steps[0].kind.aggregates]
    assert names == [aggregate["as"] for aggregate in further]


def test_its_sql_is_understood() -> None:
    resource, documented = yaml.safe_load(JOB), yaml.safe_load(SQL.replace("{...}", ""))["spec"]
    fields = {name: value for name, value in resource["spec"].items() if name in {"input", "output"}}
    resource["spec"] = {**fields, "sql": documented["sql"], "maxDuration": documented["maxDuration"]}
    job = parse_job(yaml.safe_dump(resource), "page")
    assert isinstance(job, SessionWindow)
    assert (job.sessions.group_by, job.sessions.gap) == (("user_id",), 30_000)
    assert job.sessions.where is not None
    assert [column.name for column in compile_job(job).last.output] == [
        "user_id",
        "session_id",
        "events",
        "first_page",
        "pages",
    ]


def test_its_ids() -> None:
    rows = [[cell.strip("`") for cell in row] for row in cells("`session_id` is")]
    assert len(rows) == 4
    for group, start, expected in rows:
        key = [None] if group == "NULL" else list(ast.literal_eval(f"({group},)"))
        hashes = key_hash([pa.array([value]) for value in key] + [pa.array([int(start)], pa.int64())])
        assert int(hashes[0]) == reference_hash([*key, int(start)]) == int(expected)


@pytest.mark.parametrize("row", cells("## Aggregates"), ids=lambda row: f"{row[0]} {row[1]}")
def test_the_types_of_its_aggregates(row: list[str]) -> None:
    for function in row[0].replace("`", "").split(", "):
        for kind in kinds_of(row[1]):
            column = "" if function == "count" else "v"
            by = {"by": "b", "by_type": pa.int64()} if function in {"min_by", "max_by"} else {}
            call = AggregateCall(function, "a", column, None if function == "count" else kind, 10, **by)
            assert accumulator(call).result_type == named_type(row[2], kind)


def kinds_of(text: str) -> list[Any]:
    every = ("boolean", "int32", "int64", "float", "double", "string", "binary", "decimal(9,2)", "date", "timestamp")
    if text.startswith(("rows", "any type")):
        names = every
    elif text.startswith("all but"):
        names = tuple(name for name in every if name not in {"boolean", "binary"})
    else:
        names = tuple(text.replace("decimal(p,s)", "decimal(9,2)").split(", "))
        names = ("decimal(9,2)",) if "decimal" in text else names
    return [arrow_type(parse_type(name)) for name in names]


def named_type(text: str, kind: Any) -> Any:
    """The type that the page names; p and s are 9 and 2."""
    named = {
        "the column's type": kind,
        "decimal(38,s)": pa.decimal128(38, 2),
        "decimal(p+4,s+4), 38 digits at most": pa.decimal128(13, 6),
    }
    return named[text] if text in named else arrow_type(parse_type(text))
