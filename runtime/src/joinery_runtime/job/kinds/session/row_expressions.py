"""Checks SQL expressions over the rows of windows and sessions, without types.

Columns that array_agg makes hold lists. A row has a list as its JSON text, whose order is not that of lists: "[10]"
precedes "[9]". So nothing may order a list, or read it as a text without saying so (rule S7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlglot import exp

from joinery_runtime.job.model.draft import Finding, Loc, checked_tree
from joinery_runtime.job.model.function_calls import call_of, declared_names
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
    """What is wrong with reading this column, for messages."""
    return f"{name!r} is a list (array_agg), and a row has it as JSON text, whose order is not that of lists (rule S7)"


def lists_as_texts(at: Loc, tree: exp.Expr, lists: Collection[str]) -> Iterator[Finding]:
    """Reject an expression that reads a list other than by a function of JSON, a declared one, CAST and IS NULL."""
    readers = {*_JSON_READERS, *declared_names()}
    for name in dict.fromkeys(column.name for column in tree.find_all(exp.Column) if _is_text(column, lists, readers)):
        todo = (
            f"take an element with JSON_VALUE({name}, '$[0]'), or write CAST({name} AS STRING) where the text is meant"
        )
        yield at, f"{list_facts(name)}; {todo}"


def _is_text(column: exp.Column, lists: Collection[str], readers: Collection[str]) -> bool:
    if column.table or column.name not in lists:
        return False
    reader = column.parent
    while isinstance(reader, exp.Paren):
        reader = reader.parent
    if reader is None or isinstance(reader, exp.Cast | exp.TryCast | exp.Is):
        return reader is None
    call = call_of(reader)
    return call is None or call[0] not in readers
