"""Finds wrong syntax, names of columns and calls of functions in a job's conditions and computed columns, without
Arrow, so before a pod starts.

The runtime rejects everything that is rejected here, and more, such as types (core.pipeline.expression). The models
check `select` and `sql` themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.errors import Problem
from joinery_runtime.job.model.expression_tree import parse_tree, shown
from joinery_runtime.job.model.function_calls import declaring, wrong_calls
from joinery_runtime.job.model.resource import Job
from joinery_runtime.job.model.wording import listed, suggestion


def expression_problems(job: Job) -> list[Problem]:
    """A problem for each expression that does not parse, and for each column in it that no input has."""
    columns = {
        source.name: tuple(column.name for column in source.columns) for source in (*job.read_inputs, *job.inputs)
    }
    with declaring(job.function_names):
        return [
            Problem(unread.path, message)
            for unread in job.unread_expressions
            for message in _problems(unread.text, {name: columns[name] for name in unread.inputs}, unread.own)
        ]


def _problems(text: str, inputs: Mapping[str, tuple[str, ...]], own: str) -> Iterator[str]:
    try:
        node = parse_tree(text)
    except SqlglotError as error:
        yield f"{shown(text)} is not an SQL expression: {str(error).splitlines()[0]}; correct it (docs/expressions.md)"
        return
    for call, reason in wrong_calls(node):
        yield f"{text!r}: {call.sql()!r}: {reason}"
    for name, column in sorted({(ref.table or own, ref.name) for ref in node.find_all(exp.Column)}):
        if name not in inputs:
            written = f"{name}.{column}" if name else column
            hint = suggestion(name, inputs)
            yield f"{text!r} uses {written!r}{hint}: the inputs here are {listed(inputs)}; write <input>.<column>"
        elif column not in inputs[name]:
            hint = suggestion(column, inputs[name])
            yield f"{text!r} uses {f'{name}.{column}'!r}: {name!r} has no column {column!r}{hint}; its columns are " + (
                listed(inputs[name])
            )
