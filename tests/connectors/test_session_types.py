"""Whatever an aggregate makes of whatever column, the sinks write it as it is."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from connectors.postgres.committed import commit, content
from connectors.rows import FULL, attempt
from joinery_runtime.core.aggregates import accumulator
from joinery_runtime.core.aggregates.base import AggregateCall, Groups
from joinery_runtime.core.compile.aggregates import compile_session
from joinery_runtime.core.kinds.session.kind import SessionAggregation
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.job import SessionWindow as Job

ANY = ("count_col", "first", "last", "min", "max")
NUMBERS = (*ANY, "sum", "avg")
TYPES = {
    "boolean": ("flag", ("count_col", "first", "last")),
    "int32": ("small", NUMBERS),
    "int64": ("big", NUMBERS),
    "float": ("half", NUMBERS),
    "double": ("real", NUMBERS),
    "string": ("text", ANY),
    "binary": ("raw", ("count_col", "first", "last")),
    "decimal(38,4)": ("price", NUMBERS),
    "date": ("day", ANY),
    "timestamp": ("at", ANY),
}
# An average of decimals has four more digits behind the point: so many less are left before it.
VALUES = {**FULL, "price": Decimal("123456789012345678901234567890.5678")}


def rule_of(kind: str) -> tuple[pa.Schema, SessionAggregation]:
    """The output's columns, and the rule, of a job with every aggregate of a column of this type."""
    name, functions = TYPES[kind]
    aggregates = [{"function": function, "column": name, "as": function} for function in functions]
    distinct = {"function": "count_distinct", "column": name, "as": "distinct", "method": "exact"}
    spec = {
        "input": {
            "name": "a",
            "file": {"path": "in.jsonl"},
            "format": "json",
            "schema": [
                {"name": "k", "type": "string"},
                {"name": name, "type": kind},
                {"name": "t", "type": "timestamp"},
            ],
            "eventTime": "t",
        },
        "groupBy": ["k"],
        "gap": "30s",
        "maxDuration": "2h",
        "aggregates": [*aggregates, distinct, {**distinct, "as": "about", "method": "hll"}],
        "output": {"postgres": {"table": "t"}},
    }
    (step,) = compile_session(Job.model_validate({"metadata": {"name": "j"}, "spec": spec})).steps
    assert isinstance(step.kind, SessionAggregation)
    return step.output_schema(), step.kind


def value_of(call: AggregateCall, value: Any) -> pa.Array:
    """The aggregate of a session with one row that has this value."""
    implementation = accumulator(call)
    states = implementation.fold(pa.array([value], call.type), np.array([0]), Groups(np.array([0]), 1))
    return implementation.result(states)


def session_of(kind: str, value: Any) -> pa.Table:
    schema, rule = rule_of(kind)
    window = [
        pa.array(["a"]),
        *(pa.array([n], field.type) for n, field in zip((1, 2, 2**64 - 1), list(schema)[1:4], strict=True)),
    ]
    return pa.Table.from_arrays([*window, *(value_of(call, value) for call in rule.aggregates)], schema=schema)


@pytest.mark.parametrize("kind", TYPES)
def test_as_json(kind: str) -> None:
    full, empty = (json.loads(rows_to_json(session_of(kind, value))[0]) for value in (VALUES[TYPES[kind][0]], None))
    (alone,) = rows_to_json(pa.table({"value": session_of(kind, VALUES[TYPES[kind][0]])["first"]}))
    assert full["session_id"] == 2**64 - 1
    assert {full[name] for name in ("first", "last")} == {json.loads(alone)["value"]}
    assert (full["count_col"], full["distinct"], full["about"]) == (1, 1, 1)
    assert (empty["count_col"], empty["distinct"], empty["about"]) == (0, 0, 0)
    counts = {"count_col", "distinct", "about", "k", "window_start", "window_end", "session_id"}
    assert {value for name, value in empty.items() if name not in counts} == {None}


@pytest.mark.services
@pytest.mark.parametrize("kind", TYPES)
def test_in_a_table(kind: str, connection, make, table) -> None:
    value = VALUES[TYPES[kind][0]]
    for epoch, session_value in enumerate((value, None, value), 1):
        rows = session_of(kind, session_value)
        sink = make(rows.schema, "k", "session_id")
        commit(connection, sink, epoch, sink.writer().write(attempt(epoch=epoch), rows))
        assert content(connection, table) == [tuple(rows.to_pylist()[0].values())]
