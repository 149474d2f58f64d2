"""Splits ON and WHERE at their ANDs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from joinery_runtime.job.sql.names import Names
from joinery_runtime.job.sql.report import TextPosition, place_of


@dataclass(frozen=True, slots=True)
class Predicate:
    """One condition. Columns of `node` are qualified with the inputs' own names; `inputs` are these names; `at` is the
    condition's place in the text."""

    node: exp.Expr
    inputs: frozenset[str]
    at: TextPosition


@dataclass(frozen=True, slots=True)
class ClauseConditions:
    """The conditions of one clause; `broken` says that one was refused."""

    good: tuple[Predicate, ...] = ()
    broken: bool = False


def read_predicates(condition: exp.Expr | None, names: Names) -> ClauseConditions:
    if condition is None:
        return ClauseConditions()
    predicates = [_predicate(node, names) for node in _ands(condition)]
    return ClauseConditions(tuple(predicate for predicate in predicates if predicate is not None), None in predicates)


def _ands(condition: exp.Expr) -> Iterator[exp.Expr]:
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from _ands(condition.this)
        yield from _ands(condition.expression)
    else:
        yield condition.copy()


def _predicate(node: exp.Expr, names: Names) -> Predicate | None:
    """The predicate; None if it is refused: a sub-query, which the shape's check has reported, or a wrong name."""
    at = place_of(node)
    if node.find(exp.Query) is not None or not names.qualify(node):
        return None
    return Predicate(node, frozenset(column.table for column in node.find_all(exp.Column)), at)
