"""Queries of the public documentation and tests of seven systems, and of jobs as people of some trades write them:
which work, with the rows that they give, and what a message says to write for the others.

public_queries.yaml and streaming_queries.yaml have them, and the inputs that they read. Of a query:

* `source` is the system and the page, or the trade; `sql` has its form, over our names and constants;
* `beside` is what stands beside `sql` in the job;
* `needs` is what a job must say beyond it: without it the query is rejected, with the words `rejected`;
* `truth` is a text that DuckDB runs over the same rows, `same` if it is the query itself; `rows` were reckoned by hand,
  with a time as "08:05";
* `rejected` alone: words of the message that say what to write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from job.queries import (
    comparable,
    emitted_rows,
    file_input,
    inputs_read,
    moment,
    resource_of,
    typed_columns,
)
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job, parse_job

DOCUMENTS = [
    yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text())
    for name in ("public_queries", "streaming_queries")
]
INPUTS: Mapping[str, Mapping[str, Any]] = {name: entry for it in DOCUMENTS for name, entry in it["inputs"].items()}
QUERIES: Sequence[Mapping[str, Any]] = [query for it in DOCUMENTS for query in it["queries"]]
WORKING = [query for query in QUERIES if "truth" in query or "rows" in query]
REJECTED = [query for query in QUERIES if "rejected" in query]
FIELDS = {"name", "source", "inputs", "sql", "needs", "beside", "truth", "rows", "rejected"}
LEAST_QUERIES, LEAST_WORKING = 140, 100
TYPES = {"int64": pa.int64(), "string": pa.string(), "double": pa.float64(), "timestamp": pa.timestamp("ms")}


def columns_of(name: str) -> list[tuple[str, str]]:
    """The columns of an input with their types; the last one is event time."""
    return typed_columns(INPUTS[name]["columns"])


def job_of(query: Mapping[str, Any], sql: str) -> Job:
    inputs = [file_input(name, columns_of(name), INPUTS[name].get("table")) for name in query["inputs"]]
    job = parse_job(json.dumps(resource_of(inputs, sql, query.get("beside", {}))), "q.yaml")
    compile_job(job)
    return job


def rows_of_job(query: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The rows that the job emits. It reads one input after the other, tables first, in the order of event time."""
    job = job_of(query, f"{query['sql']} {query.get('needs', '')}")
    steps: list[dict[str, Any]] = []
    for alias, name in sorted(inputs_read(job).items(), key=lambda names: "table" not in INPUTS[names[1]]):
        columns = columns_of(name)
        rows = [
            {
                column: f"{moment(value).isoformat()}Z" if kind == "timestamp" and value is not None else value
                for (column, kind), value in zip(columns, row, strict=True)
            }
            for row in INPUTS[name]["rows"]
        ]
        steps.append({"input": alias, "rows": sorted(rows, key=lambda row: str(row[columns[-1][0]]))})
    return emitted_rows(job, steps)


@cache
def database() -> duckdb.DuckDBPyConnection:
    """The inputs as tables."""
    connection = duckdb.connect()
    for name, entry in INPUTS.items():
        columns = columns_of(name)
        arrays = [
            pa.array(
                [moment(row[i]) if kind == "timestamp" and row[i] is not None else row[i] for row in entry["rows"]],
                TYPES[kind],
            )
            for i, (_, kind) in enumerate(columns)
        ]
        connection.register(name, pa.table(arrays, names=[column for column, _ in columns]))
    return connection


@pytest.mark.parametrize("query", WORKING, ids=lambda query: query["name"])
def test_a_query_gives_the_rows_of_duckdb_or_those_reckoned_by_hand(query: Mapping[str, Any]) -> None:
    expected = query.get("rows")
    if expected is None:
        truth = query["sql"] if query["truth"] == "same" else query["truth"]
        expected = database().execute(truth).fetchall()
    assert expected
    assert comparable(rows_of_job(query)) == comparable(expected)


@pytest.mark.parametrize("query", REJECTED, ids=lambda query: query["name"])
def test_a_rejected_query_says_where_and_what_to_write(query: Mapping[str, Any]) -> None:
    with pytest.raises(JobError) as error:
        job_of(query, query["sql"])
    assert any(query["rejected"] in problem.message for problem in error.value.problems), error.value
    for problem in error.value.problems:
        assert problem.path != "spec.sql" or re.match(r"line 1, column \d+, `", problem.message), problem


def test_the_table_is_complete() -> None:
    assert len(QUERIES) >= LEAST_QUERIES
    assert len(WORKING) >= LEAST_WORKING
    assert len({query["name"] for query in QUERIES}) == len(QUERIES)
    assert all({"name", "source", "inputs", "sql"} <= query.keys() <= FIELDS for query in QUERIES)
    assert all(query in WORKING or query in REJECTED for query in QUERIES)
    assert all("rejected" in query for query in QUERIES if "needs" in query)
