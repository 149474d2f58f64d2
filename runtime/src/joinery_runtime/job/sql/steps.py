"""Translates the joins of a chain to entries of `spec.joins`: the rule of each step and its options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.sql.bounds import Bound
from joinery_runtime.job.sql.chain import Link
from joinery_runtime.job.sql.limits import Distances, IntervalBounds, interval_of
from joinery_runtime.job.sql.matching import Matching, TimeBound, read_matching
from joinery_runtime.job.sql.names import Named, Names
from joinery_runtime.job.sql.options import (
    BROADCAST,
    GRACE,
    HISTORY,
    LATENESS,
    LOWER,
    RETENTION,
    UPPER,
    Options,
)
from joinery_runtime.job.sql.report import Report
from joinery_runtime.job.sql.shape import Shape

Step = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Context:
    shape: Shape
    options: Options
    names: Names
    report: Report


def steps_of(links: Sequence[Link], shape: Shape, options: Options, names: Names, report: Report) -> tuple[Step, ...]:
    """One step per link. If the report has problems, the steps must not be used."""
    if len(links) > 1 and shape.kind != "interval":
        return ()  # refused by the shape's check
    context = _Context(shape, options, names, report)
    for name in (LOWER, UPPER):
        if len(links) > 1 and name in options.ms:
            todo = "write a bound on time into each ON"
            report.add(options.at[name], f"{name!r} does not say which JOIN is meant; {todo}")
    distances, sent = Distances(), set[str]()
    steps = tuple(_step(link, distances, sent, context) for link in links)
    for name in options.broadcast:
        named = names.by_input(name)
        if links and (named is None or named.table.name not in sent):
            report.add(options.at[BROADCAST], f"{name!r} is no input that is joined without an equality; leave it out")
    return steps


def _step(link: Link, distances: Distances, sent: set[str], context: _Context) -> Step:
    kind = context.shape.kind
    matching = read_matching(link, timed=kind == "interval", report=context.report)
    matching.broken = matching.broken or context.options.broken
    step: Step = {"right": link.right.table.name, "keys": matching.keys}
    if link.type != "inner":
        step["type"] = link.type
    from_input = None
    if kind == "interval":
        step |= _broadcast(link, matching, sent, context)
        from_input = _take_interval(step, link, matching, distances, context)
    else:
        _check_keys(link, matching, "", context)
        step |= _as_of(link, context) if kind == "asof" else _window(context)
    step |= {"lateData": context.options.late_data} if context.options.late_data != "drop" else {}
    where = matching.where(from_input)
    return step if where is None else {**step, "where": where}


def _check_keys(link: Link, matching: Matching, more: str, context: _Context) -> None:
    if matching.keys or matching.broken:
        return
    for part in matching.conditions:
        # Two columns that are equal and no key are event times: an equality of columns is what is missing.
        if (
            isinstance(part, exp.EQ)
            and not (isinstance(part.left, exp.Column) and isinstance(part.right, exp.Column))
            and len({column.table for column in part.find_all(exp.Column)}) > 1
        ):
            facts = f"{part.sql(comments=False)} compares expressions, and a key is a column of each input (rule J9)"
            todo = (
                "have the producers write the value into a column, or compare columns that are equal in any case and "
                "leave this as a further condition"
            )
            context.report.add(link.joined.source.at, f"{facts}; {todo}{more}")
            return
    first, second = link.earlier[-1].source.alias, link.right.source.alias
    todo = f"write ON {first}.<column> = {second}.<column>{more}"
    facts = "there is no equality of columns, so every row would meet every row (rule J9)"
    context.report.add(link.joined.source.at, f"{facts}; {todo}")


def _broadcast(link: Link, matching: Matching, sent: set[str], context: _Context) -> Step:
    if matching.keys:
        return {}
    sides = [link.right, *(link.earlier if len(link.earlier) == 1 else [])]
    chosen = [named for named in map(context.names.by_input, context.options.broadcast) if named in sides]
    if not chosen:
        example = link.right.source.alias
        _check_keys(link, matching, f", or WITH ('{BROADCAST}' = '{example}') to join on time only", context)
        return {}
    side = chosen[0]
    sent.add(side.table.name)
    if link.type in {"full", "right" if side is link.right else "left"}:
        facts = f"every row of {side.source.alias!r} goes out, so it cannot be sent to all shards (rule J9)"
        context.report.add(
            context.options.at[BROADCAST], f"{facts}; name the other side, or make the JOIN an inner one"
        )
    return {"broadcast": side.table.name}


def _take_interval(step: Step, link: Link, matching: Matching, distances: Distances, context: _Context) -> str | None:
    """Adds the step's bounds on time, and returns the input from which they count."""
    matching.limits += _option_limits(link, context)
    interval = interval_of(matching, link, distances, context.report)
    if interval is None:
        return None
    distances.add(link, interval)
    step["interval"] = {"of": interval.from_input, "lower": interval.lower, "upper": interval.upper}
    lateness = _lateness(interval, context)
    step |= {"allowedLateness": lateness} if lateness else {}
    return interval.from_input


def _option_limits(link: Link, context: _Context) -> Iterator[TimeBound]:
    """Yields the limits from options, which count from the first input of the SQL. If the step counts from the other
    input, bounds are negated and swapped."""
    from_input, ms, first = link.earlier[0].table.name, context.options.ms, context.shape.sources[0]
    from_first = first.name == from_input
    if LOWER in ms:
        yield TimeBound(from_input, Bound("lower", ms[LOWER]) if from_first else Bound("upper", -ms[LOWER]))
    if UPPER in ms:
        yield TimeBound(from_input, Bound("upper", ms[UPPER]) if from_first else Bound("lower", -ms[UPPER]))


def _lateness(interval: IntervalBounds, context: _Context) -> int:
    options = context.options
    if RETENTION not in options.ms:
        return options.ms.get(LATENESS, 0)
    retention = options.ms[RETENTION]
    if retention < interval.reach:
        needs = (
            f"is shorter than the wider bound, {format_duration(interval.reach)}: rows would go before their matches"
        )
        context.report.add(options.at[RETENTION], f"{needs}; keep them at least as long")
    return retention - interval.reach


def _window(context: _Context) -> Step:
    lateness = context.options.ms.get(LATENESS, 0)
    window = context.shape.window
    assert window is not None, "the kind of the shape says so"
    return {"window": window.as_field(), **({"allowedLateness": lateness} if lateness else {})}


def _as_of(link: Link, context: _Context) -> Step:
    source, stream = link.right.source, link.earlier[0]
    if source.as_of is None:
        todo = f"list {stream.table.name!r} behind {link.right.table.name!r} in spec.inputs"
        context.report.add(stream.source.at, f"a table is not the first input of a job; {todo}")
    elif not _is_time_of(source.as_of, stream, context.names):
        time = f"{stream.source.alias}.{stream.table.event_time}"
        text = f"the version is the one at the event time of the other input; write FOR SYSTEM_TIME AS OF {time}"
        context.report.add(source.at, text)
    if link.type not in {"inner", "left"}:
        context.report.add(source.at, "FOR SYSTEM_TIME goes with JOIN and LEFT JOIN only (rule A4); write one of these")
    ms = context.options.ms
    if HISTORY not in ms and not context.options.broken:
        todo = f"write WITH ('{HISTORY}' = '1h')"
        context.report.add(source.at, f"the SQL does not say how long old versions are kept (rule A2); {todo}")
    grace = ms.get(GRACE, 0)
    return {"asOf": {"historyRetention": ms.get(HISTORY), **({"grace": grace} if grace else {})}}


def _is_time_of(time: exp.Expr, stream: Named, names: Names) -> bool:
    if not isinstance(time, exp.Column) or (resolved := names.find(time)) is None:
        return False
    return resolved == (stream, stream.table.event_time)
