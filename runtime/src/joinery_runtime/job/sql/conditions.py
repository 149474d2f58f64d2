"""ON and WHERE taken apart: keys, bounds on time, and what is left for `where`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from joinery_runtime.job.sql.bounds import COMPARISONS, Bound, NoBoundError, bounds_of
from joinery_runtime.job.sql.names import Names, Table
from joinery_runtime.job.sql.report import Report, place_of

_INVERSE: dict[type[exp.Expr], type[exp.Binary]] = {exp.LT: exp.GTE, exp.LTE: exp.GT, exp.GT: exp.LTE, exp.GTE: exp.LT}


@dataclass(slots=True)
class Conditions:
    """`keys` maps input.column of the first input to that of the second. `broken` says that a condition was refused,
    so that what is missing may have been meant by it."""

    keys: dict[str, str] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)
    rest: list[exp.Expr] = field(default_factory=list)
    broken: bool = False


def read_conditions(
    conditions: Sequence[exp.Expr], names: Names, tables: tuple[Table, Table], report: Report
) -> Conditions:
    found = Conditions()
    for part in (part for condition in conditions for part in _parts(condition)):
        if part.find(exp.Query) is not None:
            found.broken = True
            continue
        at = place_of(part)
        if not names.qualify(part):
            found.broken = True
            continue
        try:
            _sort(_without_not(part, tables), tables, found)
        except NoBoundError as error:
            found.broken = True
            report.add(at, str(error))
    return found


def _parts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """The ANDed parts."""
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from _parts(condition.this)
        yield from _parts(condition.expression)
    else:
        yield condition.copy()


def _without_not(part: exp.Expr, tables: tuple[Table, Table]) -> exp.Expr:
    """NOT of an inequality of the event times, which are never NULL, as the inequality that it means."""
    inner = part.this.unnest() if isinstance(part, exp.Not) else part
    inverse = _INVERSE.get(type(inner))
    if isinstance(part, exp.Not) and inverse is not None and _relates(inner, tables):
        return inverse(this=inner.this, expression=inner.expression)
    return part


def _sort(part: exp.Expr, tables: tuple[Table, Table], found: Conditions) -> None:
    if isinstance(part, COMPARISONS) and _relates(part, tables):
        if _columns(part) != _times(tables):
            raise NoBoundError("a bound is constant, it cannot depend on a column (rule J8); write an INTERVAL")
        found.bounds += bounds_of(part, tables)
        return
    if any(_relates(inner, tables) for branch in part.find_all(exp.Or) for inner in branch.find_all(*COMPARISONS)):
        raise NoBoundError("an OR around a bound on time leaves rows without one (rule J8); write a bound outside it")
    pair = _key(part, tables)
    if pair is None or found.keys.get(pair[0], pair[1]) != pair[1]:
        found.rest.append(part)
    else:
        found.keys[pair[0]] = pair[1]


def _key(part: exp.Expr, tables: tuple[Table, Table]) -> tuple[str, str] | None:
    if not isinstance(part, exp.EQ):
        return None
    sides = {
        side.table: side for side in (part.this.unnest(), part.expression.unnest()) if isinstance(side, exp.Column)
    }
    first, second = (sides.get(table.name) for table in tables)
    if first is None or second is None:
        return None
    return f"{first.table}.{first.name}", f"{second.table}.{second.name}"


def _relates(part: exp.Expr, tables: tuple[Table, Table]) -> bool:
    return _times(tables) <= _columns(part)


def _times(tables: tuple[Table, Table]) -> set[tuple[str, str]]:
    return {(table.name, table.event_time) for table in tables}


def _columns(part: exp.Expr) -> set[tuple[str, str]]:
    return {(column.table, column.name) for column in part.find_all(exp.Column)}
