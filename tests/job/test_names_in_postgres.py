"""Postgres cuts a name after 63 bytes in silence: two columns become one, a table another one."""

from __future__ import annotations

import pytest

from joinery_runtime.errors import JobError
from joinery_runtime.job import definition, parse_job, under_definition

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: named}}
spec:
  inputs:
    - name: orders
      file: {{path: orders.jsonl}}
      format: json
      schema: [{{name: id, type: string}}, {{name: "{column}", type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      file: {{path: payments.jsonl}}
      format: json
      schema: [{{name: id, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  {joined}
  output: {output}
  stateStore: {{postgres: {{dsn: "postgresql://db/x", schema: "{schema}"}}}}
"""
BY_FIELDS = (
    """joins: [{right: payments, keys: {orders.id: payments.id}, interval: {of: orders, lower: 0s, upper: 1h}}]"""
)
SELECT = """
  select: [{column: orders.id}, {column: "orders.%s"}]"""
SQL = """sql: 'SELECT o.id, o."%s" FROM orders o JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND o.ts'"""
SESSIONS = """
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {{name: named}}
spec:
  input:
    name: clicks
    file: {{path: clicks.jsonl}}
    format: json
    schema: [{{name: user, type: string}}, {{name: ts, type: timestamp}}]
    eventTime: ts
  groupBy: [user]
  gap: 30s
  maxDuration: 1h
  aggregates: [{{function: count, as: "{column}"}}]
  output: {{postgres: {{table: sessions}}}}
"""
TABLE = "{postgres: {table: joined}}"


def job(column: str = "note", joined: str = BY_FIELDS, output: str = TABLE, schema: str = "joinery"):
    return parse_job(JOB.format(column=column, joined=joined, output=output, schema=schema), "job.yaml")


def problem(**edits: str) -> str:
    with pytest.raises(JobError) as refused:
        job(**edits)
    return str(refused.value)


@pytest.mark.parametrize("name", ["n" * 64, "ü" * 32, "\U0001f600" * 16])
def test_a_longer_column_is_named_with_its_place(name: str) -> None:
    words = f"the name {name!r} has 64 bytes, and Postgres cuts names after 63"
    assert words in problem(column=name, joined=BY_FIELDS + SELECT % name)
    assert "spec.select[1]" in problem(column=name, joined=BY_FIELDS + SELECT % name)
    assert words in problem(column=name, joined=SQL % name)
    with pytest.raises(JobError, match="has 64 bytes"):
        parse_job(SESSIONS.format(column=name), "job.yaml")


@pytest.mark.parametrize("name", ["n" * 63, "ü" * 31, "\U0001f600" * 15])
def test_a_shorter_one_is_taken(name: str) -> None:
    job(column=name, joined=BY_FIELDS + SELECT % name, output=f"{{postgres: {{table: '{name}.{name}'}}}}", schema=name)
    parse_job(SESSIONS.format(column=name), "job.yaml")


def test_a_prefix_counts() -> None:
    joined = BY_FIELDS + "\n  prefixes: {orders: o_of_, payments: p_}"
    assert "'o_of_" in problem(column="n" * 60, joined=joined)


@pytest.mark.parametrize("table", ["t" * 64, f"{'s' * 64}.t", f"s.{'t' * 64}"])
def test_tables_and_schemas_too(table: str) -> None:
    assert "spec.output.postgres.table" in problem(output=f"{{postgres: {{table: {table}}}}}")
    assert "spec.stateStore.postgres.schema" in problem(schema="s" * 64)


def test_other_outputs_have_other_limits() -> None:
    job(column="n" * 64, output="{file: {path: out}}")


def test_what_an_earlier_release_took_is_finished_under_its_name() -> None:
    name = "n" * 64
    stored = definition(job(column=name, joined=BY_FIELDS + SELECT % name, output="{file: {path: out}}"))
    stored["output"] = {"postgres": {"table": "joined"}}
    before = under_definition(job(), stored)
    assert [column.name for column in before.output_columns] == ["id", name]
