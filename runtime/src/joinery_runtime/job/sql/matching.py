"""Sorts the conditions of one join into its keys, its bounds on time, and the rest, which goes to `where`."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from joinery_runtime.job.sql.bounds import COMPARISONS, Bound, bounds_of
from joinery_runtime.job.sql.chain import Link
from joinery_runtime.job.sql.interval import NoBoundError, interval_ms
from joinery_runtime.job.sql.names import SqlInput
from joinery_runtime.job.sql.report import Report

_INVERSE: dict[type[exp.Expr], type[exp.Binary]] = {exp.LT: exp.GTE, exp.LTE: exp.GT, exp.GT: exp.LTE, exp.GTE: exp.LT}
_Column = tuple[str, str]  # input and column


@dataclass(frozen=True, slots=True)
class TimeBound:
    """A bound of the right input's time, counted from the time of the input `from_input`. `source` is the condition
    behind it; None for an option."""

    from_input: str
    bound: Bound
    source: exp.Expr | None = None


@dataclass(slots=True)
class Matching:
    """The sorted conditions. `keys` maps columns of earlier inputs to columns of the right one. `conditions` are all
    conditions except keys, in order, including those behind `limits`. `broken` as in a Link."""

    keys: dict[str, str] = field(default_factory=dict)
    limits: list[TimeBound] = field(default_factory=list)
    conditions: list[exp.Expr] = field(default_factory=list)
    broken: bool = False

    def where(self, from_input: str | None) -> str | None:
        """The conditions that a step with bounds from `from_input` does not already express."""
        expressed = {id(limit.source) for limit in self.limits if limit.from_input == from_input}
        rest = [part for part in self.conditions if id(part) not in expressed]
        return exp.and_(*rest, copy=False).sql(comments=False) if rest else None


def read_matching(link: Link, *, timed: bool, report: Report) -> Matching:
    """Reads the conditions. `timed`: comparisons of event times are bounds; otherwise they are ordinary conditions."""
    matching = Matching(broken=link.broken)
    for predicate in link.predicates:
        try:
            _sort(predicate.node, link, timed, matching)
        except NoBoundError as error:
            matching.broken = True
            report.add(predicate.at, str(error))
    return matching


def _sort(part: exp.Expr, link: Link, timed: bool, matching: Matching) -> None:
    pair = _key(part, link)
    if timed and _relates(part, link):
        part = _without_not(part)
        if isinstance(part, COMPARISONS):
            matching.limits += _limits(part, link)
        elif any(_relates(it, link) for branch in part.find_all(exp.Or) for it in branch.find_all(*COMPARISONS)):
            facts = "an OR around a bound on time leaves rows without one (rule J8)"
            raise NoBoundError(f"{facts}; write a bound outside it")
        matching.conditions.append(part)
    elif pair is None or matching.keys.get(pair[0], pair[1]) != pair[1]:
        matching.conditions.append(part)
    else:
        matching.keys[pair[0]] = pair[1]


def _limits(part: exp.Expr, link: Link) -> list[TimeBound]:
    """The limits that a condition implies. Raises NoBoundError."""
    right = link.right.table
    columns = _columns(part)
    earlier = [named.table for named in link.earlier if _time(named.table) in columns]
    if columns != {_time(right), _time(earlier[0])}:
        raise NoBoundError("a bound is constant, it cannot depend on a column (rule J8); write an INTERVAL")
    limits = [TimeBound(earlier[0].name, bound, part) for bound in bounds_of(part, (earlier[0], right))]
    if right.integer_time or earlier[0].integer_time:
        _as_numbers(part, {_time(table) for table in (right, earlier[0]) if not table.integer_time})
    return limits


def _as_numbers(part: exp.Expr, timestamps: set[_Column]) -> None:
    """Converts a comparison of an integer time with another one, for `where` (as with an input from which the step
    does not count): the other time, if it is among `timestamps`, and intervals become milliseconds too."""
    for interval in list(part.find_all(exp.Interval)):
        ms = interval_ms(interval)
        interval.replace(exp.Literal.number(int(ms) if ms.denominator == 1 else float(ms)))
    for column in list(part.find_all(exp.Column)):
        if (column.table, column.name) in timestamps:
            column.replace(exp.cast(column.copy(), exp.DType.BIGINT))


def _without_not(part: exp.Expr) -> exp.Expr:
    """Replaces NOT of an inequality by the opposite inequality; if a time is NULL, neither is true."""
    inner = part.this.unnest() if isinstance(part, exp.Not) else part
    inverse = _INVERSE.get(type(inner))
    if isinstance(part, exp.Not) and inverse is not None:
        return inverse(this=inner.this, expression=inner.expression)
    return part


def _key(part: exp.Expr, link: Link) -> tuple[str, str] | None:
    if not isinstance(part, exp.EQ):
        return None
    sides = [side.unnest() for side in (part.this, part.expression)]
    columns = [side for side in sides if isinstance(side, exp.Column)]
    right = [column for column in columns if column.table == link.right.table.name]
    earlier = [column for column in columns if column.table != link.right.table.name]
    if len(right) != 1 or len(earlier) != 1 or _relates(part, link):
        return None
    return f"{earlier[0].table}.{earlier[0].name}", f"{right[0].table}.{right[0].name}"


def _relates(part: exp.Expr, link: Link) -> bool:
    """Whether the condition reads the event times of both sides."""
    columns = _columns(part)
    return _time(link.right.table) in columns and any(_time(named.table) in columns for named in link.earlier)


def _time(table: SqlInput) -> _Column:
    return table.name, table.event_time


def _columns(part: exp.Expr) -> set[_Column]:
    return {(column.table, column.name) for column in part.find_all(exp.Column)}
