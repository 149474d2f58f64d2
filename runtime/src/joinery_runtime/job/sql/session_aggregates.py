"""Translates SQL's aggregates to those of sessions (rule S7)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Count: "count_col",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.First: "first",
    exp.FirstValue: "first",
    exp.Last: "last",
    exp.LastValue: "last",
    exp.ApproxDistinct: "count_distinct",
}
KNOWN = (
    "COUNT(*), COUNT(x), COUNT(DISTINCT x), APPROX_COUNT_DISTINCT(x), SUM, AVG, MIN, MAX, FIRST (FIRST_VALUE) and LAST "
    "(LAST_VALUE)"
)
_NO_MEANING = {"this", "big_int"}


class BadAggregateError(ValueError):
    """An aggregate is refused; the text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an aggregate. `argument` is None for a count of rows."""

    function: str
    argument: exp.Expr | None = None
    method: str | None = None


def is_aggregate(value: exp.Expr) -> bool:
    return isinstance(value, exp.AggFunc | exp.Filter | exp.Window | exp.IgnoreNulls | exp.RespectNulls)


def read_call(value: exp.Expr) -> Call:
    """Reads a call of an aggregate. Raises BadAggregateError."""
    value = _without_nulls(value)
    function = _FUNCTIONS.get(type(value))
    if function is None:
        raise BadAggregateError(f"is not an aggregate of sessions; these are {KNOWN}")
    more = [name for name, argument in value.args.items() if argument and name not in _NO_MEANING]
    if more:
        raise BadAggregateError("takes one value; write an expression if it is made of several columns")
    if value.args.get("this") is None:
        raise BadAggregateError("is of nothing; write COUNT(*), or name a column")
    if isinstance(value, exp.ApproxDistinct):
        return Call(function, _argument(value.this), "hll")
    return _count(value) if isinstance(value, exp.Count) else Call(function, _argument(value.this))


def _without_nulls(value: exp.Expr) -> exp.Expr:
    """The call without clauses about NULLs, which aggregates skip in any case."""
    if isinstance(value, exp.Filter):
        todo = "write CASE WHEN <condition> THEN <value> END as what is aggregated"
        raise BadAggregateError(f"FILTER is not supported; {todo}")
    if isinstance(value, exp.Window):
        raise BadAggregateError("OVER is not supported: the session is what is aggregated; leave it out")
    if isinstance(value, exp.RespectNulls):
        raise BadAggregateError("RESPECT NULLS is not supported: aggregates skip NULLs (rule S7); leave it out")
    return value.this if isinstance(value, exp.IgnoreNulls) else value


def _count(value: exp.Count) -> Call:
    counted = value.this
    if isinstance(counted, exp.Distinct):
        if len(counted.expressions) != 1 or counted.args.get("on"):
            raise BadAggregateError("COUNT(DISTINCT ...) takes one value; write an expression of the columns")
        return Call("count_distinct", _argument(counted.expressions[0]))
    if isinstance(counted, exp.Star | exp.Literal):
        return Call("count")
    return Call("count_col", _argument(counted))


def _argument(value: exp.Expr) -> exp.Expr:
    if isinstance(value, exp.Distinct):
        raise BadAggregateError("DISTINCT is for COUNT; leave it out")
    if value.find(exp.AggFunc, exp.Window) is not None:
        raise BadAggregateError("an aggregate of an aggregate has no meaning in one session; keep one of them")
    if value.find(exp.Star) is not None:
        raise BadAggregateError("takes a value, not a star; name a column")
    return value.unnest()
