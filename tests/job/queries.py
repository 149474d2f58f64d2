"""What tests of whole queries share: the resource of a query, the rows of its job, and rows in a form that compares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Job
from joinery_runtime.state.memory import MemoryStore


def typed_columns(text: str) -> list[tuple[str, str]]:
    """Return columns with their types, as `id int64, ts timestamp` names them."""
    pairs = (column.split() for column in text.split(","))
    return [(column, kind) for column, kind in pairs]


def file_input(name: str, columns: Sequence[tuple[str, str]], key: str | None, **more: Any) -> dict[str, Any]:
    """Return an input of JSON lines, whose event time is the last of its columns; with a `key` it is a table."""
    return {
        "name": name,
        "file": {"path": f"{name}.jsonl"},
        "format": "json",
        "schema": [{"name": column, "type": kind} for column, kind in columns],
        "eventTime": columns[-1][0],
        **({"table": {"key": [key]}} if key else more),
    }


def resource_of(inputs: Sequence[Mapping[str, Any]], sql: str, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of a query, with the fields `beside` it."""
    output = {"output": {"file": {"path": "out.jsonl"}}, "stateStore": {"memory": {}}}
    spec = {"inputs": inputs, "sql": sql, **beside, **output}
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "q"}, "spec": spec}


def inputs_read(job: Job) -> Mapping[str, str]:
    """Return the names under which the job reads its inputs; the SQL may read one several times."""
    return {part.name: job.repeats.get(part.name, part.name) for part in job.read_inputs}


def emitted_rows(job: Job, steps: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Run the steps of a trace, and return all rows that the job emits until its inputs have ended. One shard, which
    takes half as long as eight: what a query means does not depend on shards, as searches of `tests/core` show."""
    lines = run_trace(job, [*steps, {"end": True}], MemoryStore(), 1)
    return [tuple(row.values()) for line in lines for row in line["output"]]


def moment(clock: str) -> datetime:
    return datetime.fromisoformat(f"2024-01-01T{clock}:00")


def comparable(rows: Sequence[Sequence[Any]], digits: int | None = None) -> list[str]:
    """Return the rows as texts in one order: times as milliseconds, numbers without the differences of their types, and
    rounded to `digits` behind the point."""
    return sorted(str([_comparable(value, digits) for value in row]) for row in rows)


def _comparable(value: Any, digits: int | None) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\d\d:\d\d", value):
        value = moment(value)
    elif isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?", value):
        value = datetime.fromisoformat(value.removesuffix("Z"))
    if isinstance(value, datetime):
        return float(round(value.replace(tzinfo=UTC).timestamp() * 1000))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    return float(value) if digits is None else round(float(value), digits)
