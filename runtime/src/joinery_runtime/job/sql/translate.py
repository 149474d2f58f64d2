"""An SQL text and the inputs of its job, to what `spec.joins` and `spec.select` would say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlglot import exp

from joinery_runtime.job.duration import MAX_MS, format_duration
from joinery_runtime.job.sql.bounds import Bound
from joinery_runtime.job.sql.conditions import Conditions, read_conditions
from joinery_runtime.job.sql.names import Names, Table
from joinery_runtime.job.sql.options import Options, read_options
from joinery_runtime.job.sql.parse import Parsed, parse_select
from joinery_runtime.job.sql.report import Place, Report
from joinery_runtime.job.sql.selection import Item, selection
from joinery_runtime.job.sql.shape import Shape, shape_of

_TOO_DEEP = "is nested too deep, or has too many conditions, to be read; write fewer"


@dataclass(frozen=True, slots=True)
class Translation:
    """`steps` are the entries of `spec.joins`, `select` is `spec.select`, both as YAML would hold them. With `problems`
    they are not to be used."""

    steps: tuple[dict[str, Any], ...]
    select: list[dict[str, str]]
    problems: tuple[str, ...] = ()


def check_shape(sql: str) -> tuple[str, ...]:
    """What is wrong with the text whatever the inputs are."""
    report = Report(sql)
    try:
        _read(sql, report)
    except RecursionError:
        return (_TOO_DEEP,)
    return report.problems


@lru_cache(maxsize=64)
def translate(sql: str, tables: tuple[Table, ...]) -> Translation:
    """`tables` are the job's inputs in their order, which need not be that of the SQL: an inner join is the same from
    either side."""
    try:
        return _translate(sql, tables)
    except RecursionError:
        return Translation((), [], (_TOO_DEEP,))


def _translate(sql: str, tables: tuple[Table, ...]) -> Translation:
    report = Report(sql)
    read = _read(sql, report)
    if read is None:
        return Translation((), [], report.problems)
    shape, options = read
    names = Names(shape.sources, tables, report)
    items = selection(shape.items, names, report)
    conditions = read_conditions(shape.conditions, names, tables, report)
    if not names.complete:
        return Translation((), [], report.problems)
    second = shape.sources[1].at
    conditions.bounds += _option_bounds(options, swapped=shape.sources[0].name != tables[0].name)
    conditions.broken = conditions.broken or shape.broken or options.broken
    if not conditions.keys and not conditions.broken:
        todo = f"write ON {' = '.join(f'{alias}.<column>' for alias in names.named)}"
        report.add(second, f"there is no equality of columns, so every row would meet every row (rule J9); {todo}")
    bounds = _tightest(conditions, names, second, report)
    lateness = _lateness(options, bounds, report)
    steps = (_step(tables, conditions, bounds, lateness),)
    return Translation(steps, [_item(item) for item in items], report.problems)


def _read(sql: str, report: Report) -> tuple[Shape, Options] | None:
    parsed: Parsed | None = parse_select(sql, report)
    if parsed is None:
        return None
    return shape_of(parsed, report), read_options(parsed.options, report)


def _option_bounds(options: Options, *, swapped: bool) -> list[Bound]:
    """Options count from the first input of the SQL; from the other one, bounds are negated and change places."""
    lower, upper = options.lower, options.upper
    if swapped:
        lower, upper = (None if upper is None else -upper), (None if lower is None else -lower)
    found = [Bound("lower", lower)] if lower is not None else []
    return [*found, *([Bound("upper", upper)] if upper is not None else [])]


def _tightest(conditions: Conditions, names: Names, at: Place, report: Report) -> tuple[int, int]:
    """(0, 0) where there are no usable bounds, which the report then says."""
    lowers = [bound.ms for bound in conditions.bounds if bound.side == "lower"]
    uppers = [bound.ms for bound in conditions.bounds if bound.side == "upper"]
    if lowers and uppers:
        lower, upper = max(lowers), min(uppers)
        if lower > upper:
            facts = f"the lower bound is {format_duration(lower)}, the upper one {format_duration(upper)}"
            report.add(at, f"nothing can match: {facts}; check the signs")
        elif max(abs(lower), abs(upper)) > MAX_MS:
            report.add(at, "a bound is over 292 years; write a shorter one")
        return lower, upper
    if not conditions.broken:
        report.add(at, _missing(bool(lowers), bool(uppers), names))
    return 0, 0


def _missing(lower: bool, upper: bool, names: Names) -> str:
    first, second = (f"{alias}.{named.table.event_time}" for alias, named in names.named.items())
    todo = f"write {second} BETWEEN {first} AND {first} + INTERVAL '1' HOUR"
    if not lower and not upper:
        facts = f"the join has no bound on {first} and {second}"
    else:
        facts = "the bound on time has one side only"
    return f"{facts}, so its state would grow for ever (rule J8); {todo}"


def _lateness(options: Options, bounds: tuple[int, int], report: Report) -> int:
    if options.retention is None or options.retention_at is None:
        return 0
    reach = max(bounds[1], -bounds[0])
    if options.retention < reach:
        needs = f"is shorter than the wider bound, {format_duration(reach)}: rows would go before their matches"
        report.add(options.retention_at, f"{needs}; keep them at least as long")
    return options.retention - reach


def _step(
    tables: tuple[Table, Table], conditions: Conditions, bounds: tuple[int, int], lateness: int
) -> dict[str, Any]:
    step: dict[str, Any] = {
        "right": tables[1].name,
        "keys": conditions.keys,
        "interval": {"of": tables[0].name, "lower": bounds[0], "upper": bounds[1]},
    }
    if conditions.rest:
        step["where"] = exp.and_(*conditions.rest, copy=False).sql()
    if lateness:
        step["allowedLateness"] = lateness
    return step


def _item(item: Item) -> dict[str, str]:
    column, renamed = item
    return {"column": column, **({"as": renamed} if renamed is not None else {})}
