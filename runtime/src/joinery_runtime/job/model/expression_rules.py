"""Checks SQL expressions without types, so without Arrow and before a pod starts: syntax, names of columns, calls of
functions. The runtime rejects everything that is rejected here, and more (core.pipeline.expression).

Columns that array_agg makes hold lists. A row has a list as its JSON text, whose order is not that of lists: "[10]"
precedes "[9]". So nothing may order a list, or read it as a text without saying so (rule S7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.errors import Problem
from joinery_runtime.job.model.draft import Finding, Loc, checked_tree
from joinery_runtime.job.model.expression_tree import parse_tree, shown
from joinery_runtime.job.model.function_calls import call_of, declared_names, declaring, wrong_calls
from joinery_runtime.job.model.resource import Job
from joinery_runtime.job.model.wording import listed, suggestion

LIST_MAKER = "array_agg"
COLUMN_READERS = frozenset({"min", "max", LIST_MAKER})
"""The functions that would take the text of a list: they order it, or make it an element of a list of texts."""
_JSON_READERS = frozenset({"JSON_VALUE", "JSON_VALID"})  # the parser has put them in place of their synonyms


def expression_of_windows(
    at: Loc,
    text: str,
    kind: str,
    columns: Collection[str] | None,
    row_words: str,
    own: str | None = None,
    *,
    lists: Collection[str] = (),
) -> Iterator[Finding]:
    """Check an SQL `kind` (condition or expression) over the `columns` of windows or sessions, which are called
    `row_words` (None: unknown): its syntax, its calls, its names, and how it reads `lists`. Columns of the input `own`
    may have its name before them."""
    tree = yield from checked_tree(at, text, kind)
    if tree is None:
        return
    for aggregate in tree.find_all(exp.AggFunc):
        yield at, f"{aggregate.sql()!r} is an aggregate; add it to `aggregates`, and write its `as` here"
    yield from lists_as_texts(at, tree, lists)
    if columns is None:
        return
    for node in tree.find_all(exp.Column):
        name = f"{node.table}.{node.name}" if node.table else node.name
        if name not in columns and not (own is not None and node.table == own and node.name in columns):
            facts = f"{name!r} is no column of these {row_words}{suggestion(name, columns)}"
            yield at, f"{facts}; columns are {listed(columns)}"


def list_facts(name: str) -> str:
    """Return what is wrong with reading this column, for messages."""
    return f"{name!r} is a list (array_agg), and a row has it as JSON text, whose order is not that of lists (rule S7)"


def lists_as_texts(at: Loc, tree: exp.Expr, lists: Collection[str]) -> Iterator[Finding]:
    """Reject an expression that reads a list other than by a function of JSON, a declared one, CAST and IS NULL."""
    readers = {*_JSON_READERS, *declared_names()}
    for name in dict.fromkeys(
        column.name for column in tree.find_all(exp.Column) if _reads_as_text(column, lists, readers)
    ):
        todo = (
            f"take an element with JSON_VALUE({name}, '$[0]'), or write CAST({name} AS STRING) where the text is meant"
        )
        yield at, f"{list_facts(name)}; {todo}"


def _reads_as_text(column: exp.Column, lists: Collection[str], readers: Collection[str]) -> bool:
    if column.table or column.name not in lists:
        return False
    reader = column.parent
    while isinstance(reader, exp.Paren):
        reader = reader.parent
    if reader is None or isinstance(reader, exp.Cast | exp.TryCast | exp.Is):
        return reader is None
    call = call_of(reader)
    return call is None or call[0] not in readers


def expression_problems(job: Job) -> list[Problem]:
    """Return a problem for each expression that does not parse, and for each column in it that no input has."""
    columns = {
        source.name: tuple(column.name for column in source.columns) for source in (*job.read_inputs, *job.inputs)
    }
    with declaring(job.function_names):
        return [
            Problem(unread.path, message)
            for unread in job.unread_expressions
            for message in _expression_problems(
                unread.text, {name: columns[name] for name in unread.inputs}, unread.own
            )
        ]


def _expression_problems(text: str, inputs: Mapping[str, tuple[str, ...]], own: str) -> Iterator[str]:
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
