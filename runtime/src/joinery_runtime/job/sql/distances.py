"""Comparisons of times that call functions, as comparisons of sums: `TIMESTAMPDIFF(MINUTE, a.ts, b.ts) < 60` is true
where `b.ts - a.ts < INTERVAL '60' MINUTE` is.

* `TIMESTAMPADD(unit, n, time)`, also as DATEADD, is `time + INTERVAL`;
* `TIMESTAMPDIFF(unit, start, stop)` counts whole units, towards zero: it is 0 up to one millisecond before a unit, in
  both directions;
* `ABS(distance) <= limit` is a lower and an upper limit, `ABS(distance) >= limit` one OR the other, which is no range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import interval_ms
from joinery_runtime.job.sql.window_functions import function_name

MIRRORED: Mapping[type[exp.Expr], type[exp.Binary]] = {
    exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ, exp.GT: exp.LT, exp.GTE: exp.LTE
}  # fmt: skip
"""The comparison that is true for the two sides in the other order."""

_FORMS = {
    "ABS": "ABS(<distance>)",
    "TIMESTAMPADD": "TIMESTAMPADD(<unit>, <number>, <time>)",
    "TIMESTAMPDIFF": "TIMESTAMPDIFF(<unit>, <start>, <stop>)",
}


class NoBoundError(ValueError):
    """A comparison is not a bound; the text says why."""


def comparisons_of_sums(comparison: exp.Expr) -> Iterator[exp.Expr]:
    """Yield comparisons of sums of times, or an OR of two, that together say the same; one that calls none of the
    functions is its own.
    Raises NoBoundError and NotALengthError."""
    comparison = comparison.transform(_with_added_units)
    if isinstance(comparison, exp.Between) and _is_distance(comparison.this) and not comparison.args.get("symmetric"):
        yield from _limits_of_distance(exp.GTE, comparison.this.unnest(), comparison.args["low"])
        yield from _limits_of_distance(exp.LTE, comparison.this.unnest(), comparison.args["high"])
    elif type(comparison) in MIRRORED:
        kind, distance, limit = type(comparison), comparison.this, comparison.expression
        if _is_distance(limit):
            kind, distance, limit = MIRRORED[kind], limit, distance
        if _is_distance(distance) and limit.find(exp.Column) is None:
            yield from _limits_of_distance(kind, distance.unnest(), limit.unnest())
        else:
            yield comparison
    else:
        yield comparison


def _with_added_units(node: exp.Expr) -> exp.Expr:
    if function_name(node) != "TIMESTAMPADD":
        return node
    unit, count, time = _checked_arguments(node)
    ms = _whole_number(count) * _unit_ms(unit)
    inner = time.transform(_with_added_units)  # the caller's transform does not enter what replaces a node
    return exp.paren(exp.Add(this=exp.paren(inner), expression=_interval_of_ms(ms)), copy=False)


def _is_distance(node: exp.Expr) -> bool:
    return function_name(node.unnest()) in {"ABS", "TIMESTAMPDIFF"}


def _limits_of_distance(kind: type[exp.Expr], call: exp.Expr, limit: exp.Expr) -> Iterator[exp.Expr]:
    if function_name(call) == "ABS":
        if kind is exp.EQ:
            raise NoBoundError("times that are exactly so far apart are no range; write ABS(...) <= a constant")
        (distance,) = _checked_arguments(call)
        negative = exp.Neg(this=exp.paren(limit))
        (above,) = comparisons_of_sums(kind(this=distance, expression=limit))
        (below,) = comparisons_of_sums(MIRRORED[kind](this=distance.copy(), expression=negative))
        if kind in {exp.GT, exp.GTE}:
            yield exp.Or(this=above, expression=below)
        else:
            yield from (above, below)
        return
    unit, start, stop = _checked_arguments(call)
    unit_ms, number = _unit_ms(unit), _whole_number(limit)
    if kind in {exp.GTE, exp.GT, exp.EQ}:
        least = number + (kind is exp.GT)
        ms = least * unit_ms if least > 0 else (least - 1) * unit_ms + 1
        yield exp.GTE(this=_subtract(stop, start), expression=_interval_of_ms(ms))
    if kind in {exp.LTE, exp.LT, exp.EQ}:
        most = number - (kind is exp.LT)
        ms = most * unit_ms if most < 0 else (most + 1) * unit_ms - 1
        yield exp.LTE(this=_subtract(stop, start), expression=_interval_of_ms(ms))


def _checked_arguments(call: exp.Expr) -> list[exp.Expr]:
    name = function_name(call)
    if len(call.expressions) != _FORMS[name].count(",") + 1:
        raise NoBoundError(f"{name} has other arguments; write {_FORMS[name]}")
    return [*call.expressions]


def _subtract(stop: exp.Expr, start: exp.Expr) -> exp.Expr:
    return exp.Sub(this=exp.paren(stop), expression=exp.paren(start))


def _interval_of_ms(ms: int) -> exp.Interval:
    return exp.Interval(this=exp.Literal.string(str(ms)), unit=exp.var("MILLISECOND"))


def _unit_ms(unit: exp.Expr) -> int:
    """Return the length of a unit of time. Raises NoBoundError for what is no word, and NotALengthError for units that
    have no length, such as months."""
    if not isinstance(unit, exp.Literal):
        raise NoBoundError(f"{unit.sql(comments=False)} is no unit of time; write MINUTE, for example")
    return int(interval_ms(exp.Interval(this=exp.Literal.string("1"), unit=exp.var(unit.name))))


def _whole_number(node: exp.Expr) -> int:
    """Read an integer with its sign. Raises NoBoundError."""
    if isinstance(node, exp.Paren):
        return _whole_number(node.this)
    if isinstance(node, exp.Neg):
        return -_whole_number(node.this)
    if isinstance(node, exp.Literal) and node.is_int:
        return int(node.name)
    raise NoBoundError(f"{node.sql(comments=False)} is no whole number; write a number of units")
