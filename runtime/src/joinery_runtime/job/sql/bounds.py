"""Bounds on time in conditions: sums of the two event times and constants on both sides of a comparison.

For a pair of inputs, an earlier one and the one that is joined to it, `d` is the second event time minus the first, in
milliseconds. A bound is a limit of `d`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sqlglot import exp

from joinery_runtime.job.model.duration import MAX_MS
from joinery_runtime.job.sql.interval import NoBoundError, interval_ms
from joinery_runtime.job.sql.names import SqlInput

COMPARISONS = (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.EQ, exp.Between)
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ,
                                                   exp.GT: exp.LT, exp.GTE: exp.LTE}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bound:
    side: Literal["lower", "upper"]
    ms: int


@dataclass(frozen=True, slots=True)
class _Sum:
    """`first * ts(first input) + second * ts(second input) + ms`."""

    first: int = 0
    second: int = 0
    ms: Fraction = Fraction(0)

    def plus(self, other: _Sum, sign: int = 1) -> _Sum:
        return _Sum(self.first + sign * other.first, self.second + sign * other.second, self.ms + sign * other.ms)


def bounds_of(comparison: exp.Expr, tables: tuple[SqlInput, SqlInput]) -> Iterator[Bound]:
    """The limits of `d` that a comparison of both event times implies. Raises NoBoundError."""
    if isinstance(comparison, exp.Between):
        if comparison.args.get("symmetric"):
            raise NoBoundError("BETWEEN SYMMETRIC is not supported; write the lower end first")
        yield from _limits(exp.GTE, comparison.this, comparison.args["low"], tables)
        yield from _limits(exp.LTE, comparison.this, comparison.args["high"], tables)
    else:
        yield from _limits(type(comparison), comparison.this, comparison.expression, tables)


def _limits(kind: type[exp.Expr], a: exp.Expr, b: exp.Expr, tables: tuple[SqlInput, SqlInput]) -> Iterator[Bound]:
    total = _sum(a, tables).plus(_sum(b, tables), -1)
    if (total.first, total.second) not in {(-1, 1), (1, -1)}:
        raise NoBoundError("it does not compare the two event times with each other")
    if total.ms.denominator != 1 or abs(total.ms) > MAX_MS:
        raise NoBoundError("the distance must be whole milliseconds, at most 292 years")
    # `d + ms <kind> 0`, or `-d + ms <kind> 0`, which is `d <mirrored> ms`.
    limit, kind = (-int(total.ms), kind) if total.second == 1 else (int(total.ms), _MIRRORED[kind])
    if kind in {exp.LTE, exp.LT, exp.EQ}:
        yield Bound("upper", limit - (kind is exp.LT))
    if kind in {exp.GTE, exp.GT, exp.EQ}:
        yield Bound("lower", limit + (kind is exp.GT))


def _sum(node: exp.Expr, tables: tuple[SqlInput, SqlInput]) -> _Sum:
    if isinstance(node, exp.Paren):
        return _sum(node.this, tables)
    if isinstance(node, exp.Neg):
        return _Sum().plus(_sum(node.this, tables), -1)
    if isinstance(node, exp.Add | exp.Sub):
        return _sum(node.this, tables).plus(_sum(node.expression, tables), 1 if isinstance(node, exp.Add) else -1)
    if isinstance(node, exp.Column):
        return _Sum(1, 0) if node.table == tables[0].name else _Sum(0, 1)
    if isinstance(node, exp.Interval):
        return _Sum(ms=interval_ms(node))
    if isinstance(node, exp.Literal) and not node.is_string:
        if all(table.integer_time for table in tables):
            return _Sum(ms=Fraction(node.name))
        raise NoBoundError(f"{node.name} has no unit; write INTERVAL '{node.name}' SECOND or another unit")
    raise NoBoundError(f"{node.sql(comments=False)} is no event time and no INTERVAL; write only sums of these")
