"""ON and WHERE taken apart at their ANDs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from joinery_runtime.job.sql.names import Names
from joinery_runtime.job.sql.report import Place, place_of


@dataclass(frozen=True, slots=True)
class Part:
    """One condition. Columns of `node` have the inputs' own names before them, `inputs` are these names; `at` shows it
    as it was written."""

    node: exp.Expr
    inputs: frozenset[str]
    at: Place


@dataclass(frozen=True, slots=True)
class Parts:
    """The conditions of one clause; `broken` says that one was refused."""

    good: tuple[Part, ...] = ()
    broken: bool = False


def read_parts(condition: exp.Expr | None, names: Names) -> Parts:
    if condition is None:
        return Parts()
    parts = [_part(node, names) for node in _ands(condition)]
    return Parts(tuple(part for part in parts if part is not None), None in parts)


def _ands(condition: exp.Expr) -> Iterator[exp.Expr]:
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from _ands(condition.this)
        yield from _ands(condition.expression)
    else:
        yield condition.copy()


def _part(node: exp.Expr, names: Names) -> Part | None:
    """None for what is refused: a sub-query, which the shape's check has reported, or a name that is wrong."""
    at = place_of(node)
    if node.find(exp.Query) is not None or not names.qualify(node):
        return None
    return Part(node, frozenset(column.table for column in node.find_all(exp.Column)), at)
