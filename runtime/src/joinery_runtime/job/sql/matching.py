"""Sorts the conditions of one join into its keys, its bound on time, and the rest, which goes to `where`.

For a pair of inputs, an earlier one and the one that is joined to it, `d` is the second event time minus the first, in
milliseconds. A bound is a limit of `d`: a comparison with sums of the two event times and of constants on both sides.

A step counts from one input. Bounds that count from several inputs are converted to one, by what earlier steps say
about the distance between these inputs' times (N2): with d in [o, o + 3], d - 1 <= r means o - 1 <= r. This holds for
every row that has both times, and without them nothing matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Literal

from sqlglot import exp

from joinery_runtime.job.model.duration import MAX_MS, format_duration
from joinery_runtime.job.model.expression_tree import NotALengthError, interval_ms
from joinery_runtime.job.model.references import inputs_of
from joinery_runtime.job.sql.conditions import Link
from joinery_runtime.job.sql.dialects import window_of, with_local_times
from joinery_runtime.job.sql.distances import MIRRORED, NoBoundError, comparisons_of_sums
from joinery_runtime.job.sql.report import Report
from joinery_runtime.job.sql.scope import SqlInput
from joinery_runtime.job.sql.window_functions import is_text

_COMPARISONS = (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.EQ, exp.Between)
_INVERSE: dict[type[exp.Expr], type[exp.Binary]] = {exp.LT: exp.GTE, exp.LTE: exp.GT, exp.GT: exp.LTE, exp.GTE: exp.LT}
_Column = tuple[str, str]  # input and column
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Bound:
    side: Literal["lower", "upper"]
    ms: int


@dataclass(frozen=True, slots=True)
class TimeBound:
    """A bound of the right input's time, counted from the time of the input `from_input`. `source` is the condition
    that says the same; None: there is none, as for an option."""

    from_input: str
    bound: Bound
    source: exp.Expr | None = None


@dataclass(slots=True)
class Matching:
    """The sorted conditions. `keys` maps columns of earlier inputs to columns of the right one, or expressions over
    these. `conditions` are all conditions except keys, in order, including those behind `limits`. `broken` as in a
    Link."""

    keys: dict[str, str] = field(default_factory=dict)
    limits: list[TimeBound] = field(default_factory=list)
    conditions: list[exp.Expr] = field(default_factory=list)
    broken: bool = False

    def make_keys_of_expressions(self, link: Link) -> None:
        """Make keys of the equalities of expressions, for a join that has no equality of columns. Beside one they stay
        conditions: jobs of earlier releases have them so in their state."""
        for part in list(self.conditions):
            if not isinstance(part, exp.EQ) or _compares_times(part, link):
                continue
            # Each side has to read one input, one of them the right one.
            sides = {
                tables[0]: side.unnest() for side in (part.this, part.expression) if len(tables := inputs_of(side)) == 1
            }
            right = sides.pop(link.right.table.name, None)
            if right is None or not sides:
                continue
            left_text, right_text = _key_text(next(iter(sides.values()))), _key_text(right)
            if self.keys.setdefault(left_text, right_text) == right_text:
                self.conditions.remove(part)

    def where_text(self, from_input: str | None) -> str | None:
        """Write the conditions that a step with bounds from `from_input` does not already express."""
        expressed = {id(limit.source) for limit in self.limits if limit.from_input == from_input}
        rest = [part for part in self.conditions if id(part) not in expressed]
        return exp.and_(*rest, copy=False).sql(comments=False) if rest else None


def read_matching(link: Link, *, timed: bool, report: Report) -> Matching:
    """Read the conditions. `timed`: comparisons of event times are bounds; otherwise they are ordinary conditions."""
    matching = Matching(broken=link.broken)
    for predicate in link.predicates:
        try:
            _sort_condition(predicate.node, link, timed, matching)
        except (NoBoundError, NotALengthError) as error:
            matching.broken = True
            report.add(predicate.at, str(error))
    return matching


def _sort_condition(part: exp.Expr, link: Link, timed: bool, matching: Matching) -> None:
    pair = _key_pair(part, link)
    if timed and (limits := _limits_of_range(part, link)):
        matching.limits += limits
        matching.conditions.append(part)
    elif timed and _compares_times(part, link):
        inner = part.this.unnest() if isinstance(part, exp.Not) else part
        inverse = _INVERSE.get(type(inner))
        if isinstance(part, exp.Not) and inverse is not None:  # if a time is NULL, neither is true
            part = inverse(this=inner.this, expression=inner.expression)
        if isinstance(part, _COMPARISONS):
            comparisons = [part]
            if isinstance(part, exp.Between) and not part.args.get("symmetric") and len(inputs_of(part)) > 2:
                # `b.ts BETWEEN a.ts AND c.ts`: each limit counts from an input of its own
                comparisons = [
                    exp.GTE(this=part.this, expression=part.args["low"]),
                    exp.LTE(this=part.this.copy(), expression=part.args["high"]),
                ]
            for comparison in chain.from_iterable(map(comparisons_of_sums, comparisons)):
                if isinstance(comparison, exp.Or):  # a distance that is at least so long: no range
                    _read_limits(comparison.this, link)
                    _read_limits(comparison.expression, link)
                else:
                    matching.limits += _read_limits(comparison, link)
                matching.conditions.append(comparison)
            return
        if any(_compares_times(it, link) for branch in part.find_all(exp.Or) for it in branch.find_all(*_COMPARISONS)):
            facts = "an OR around a bound on time leaves rows without one (rule J8)"
            raise NoBoundError(f"{facts}; write a bound outside it")
        matching.conditions.append(part)
    elif pair is None or matching.keys.get(pair[0], pair[1]) != pair[1]:
        matching.conditions.append(part)
    else:
        matching.keys[pair[0]] = pair[1]


def _limits_of_range(part: exp.Expr, link: Link) -> list[TimeBound]:
    """Return the bounds of an equality that cuts both event times down to the start of a range, such as
    `DATE_TRUNC('day', a.ts) = DATE_TRUNC('day', b.ts)`; nothing for another condition. Times of one range are less than
    its length apart. A range of a zone's clocks may be longer by what clocks go back, at most a day. The right side is
    then written as the left one, as expressions have it: one side may be an instant, the other a local time."""
    sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
    windows = [window for side in sides if (window := window_of(side.unnest())) is not None]
    if len(windows) < 2 or windows[0].expressions[1:] != windows[1].expressions[1:]:
        return []
    left_time, right_time = (window.expressions[0] for window in windows)
    times = {(time.table, time.name) for time in (left_time, right_time)}
    right = link.right.table
    for relation in link.earlier:
        if times == {_event_time(relation.table), _event_time(right)} and not right.integer_time:
            _, length, *more = windows[0].expressions
            reach = int(interval_ms(length)) - 1 + (_DAY_MS if more and is_text(more[-1]) else 0)
            start = with_local_times(part.this)
            part.set("this", start)
            part.set("expression", start.transform(lambda node: right_time.copy() if node == left_time else node))
            bounds = Bound("lower", -reach), Bound("upper", reach)
            return [TimeBound(relation.table.name, bound) for bound in bounds]
    return []


def _read_limits(part: exp.Expr, link: Link) -> list[TimeBound]:
    """Return the bounds that a condition implies, and write its times as numbers if one of the two is. Raises
    NoBoundError and NotALengthError."""
    right = link.right.table
    columns = _columns_in(part)
    earlier = [relation.table for relation in link.earlier if _event_time(relation.table) in columns]
    if columns != {_event_time(right), _event_time(earlier[0])}:
        raise NoBoundError("a bound is constant, it cannot depend on a column (rule J8); write an INTERVAL")
    limits = [TimeBound(earlier[0].name, bound, part) for bound in _read_bounds(part, (earlier[0], right))]
    if right.integer_time or earlier[0].integer_time:
        # For `where`, as with an input from which the step does not count: all of it is milliseconds.
        timestamps = {_event_time(table) for table in (right, earlier[0]) if not table.integer_time}
        for interval in list(part.find_all(exp.Interval)):
            ms = interval_ms(interval)
            interval.replace(exp.Literal.number(int(ms) if ms.denominator == 1 else float(ms)))
        for column in list(part.find_all(exp.Column)):
            if (column.table, column.name) in timestamps:
                column.replace(exp.cast(column.copy(), exp.DType.BIGINT))
    return limits


def _key_pair(part: exp.Expr, link: Link) -> tuple[str, str] | None:
    if not isinstance(part, exp.EQ):
        return None
    sides = [side.unnest() for side in (part.this, part.expression)]
    columns = [side for side in sides if isinstance(side, exp.Column)]
    right = [column for column in columns if column.table == link.right.table.name]
    earlier = [column for column in columns if column.table != link.right.table.name]
    if len(right) != 1 or len(earlier) != 1 or _compares_times(part, link):
        return None
    return f"{earlier[0].table}.{earlier[0].name}", f"{right[0].table}.{right[0].name}"


def _key_text(side: exp.Expr) -> str:
    return f"{side.table}.{side.name}" if isinstance(side, exp.Column) else side.sql(comments=False)


def _compares_times(part: exp.Expr, link: Link) -> bool:
    """Say whether the condition reads the event times of both sides."""
    columns = _columns_in(part)
    return _event_time(link.right.table) in columns and any(
        _event_time(relation.table) in columns for relation in link.earlier
    )


def _event_time(table: SqlInput) -> _Column:
    return table.name, table.event_time


def _columns_in(part: exp.Expr) -> set[_Column]:
    return {(column.table, column.name) for column in part.find_all(exp.Column)}


# --- one comparison of event times --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sum:
    """`first * ts(first input) + second * ts(second input) + ms`."""

    first: int = 0
    second: int = 0
    ms: Fraction = Fraction(0)

    def add_sum(self, other: _Sum, sign: int = 1) -> _Sum:
        return _Sum(self.first + sign * other.first, self.second + sign * other.second, self.ms + sign * other.ms)


def _read_bounds(comparison: exp.Expr, tables: tuple[SqlInput, SqlInput]) -> Iterator[Bound]:
    """Yield the limits of `d` that a comparison of both times implies. Raises NoBoundError and NotALengthError."""
    if isinstance(comparison, exp.Between):
        if comparison.args.get("symmetric"):
            raise NoBoundError("BETWEEN SYMMETRIC is not supported; write the lower end first")
        yield from _bounds_of_comparison(exp.GTE, comparison.this, comparison.args["low"], tables)
        yield from _bounds_of_comparison(exp.LTE, comparison.this, comparison.args["high"], tables)
    else:
        yield from _bounds_of_comparison(type(comparison), comparison.this, comparison.expression, tables)


def _bounds_of_comparison(
    kind: type[exp.Expr], a: exp.Expr, b: exp.Expr, tables: tuple[SqlInput, SqlInput]
) -> Iterator[Bound]:
    total = _read_sum(a, tables).add_sum(_read_sum(b, tables), -1)
    if (total.first, total.second) not in {(-1, 1), (1, -1)}:
        raise NoBoundError("it does not compare the two event times with each other")
    if total.ms.denominator != 1 or abs(total.ms) > MAX_MS:
        raise NoBoundError("the distance must be whole milliseconds, at most 292 years")
    # `d + ms <kind> 0`, or `-d + ms <kind> 0`, which is `d <mirrored> ms`.
    limit, kind = (-int(total.ms), kind) if total.second == 1 else (int(total.ms), MIRRORED[kind])
    if kind in {exp.LTE, exp.LT, exp.EQ}:
        yield Bound("upper", limit - (kind is exp.LT))
    if kind in {exp.GTE, exp.GT, exp.EQ}:
        yield Bound("lower", limit + (kind is exp.GT))


def _read_sum(node: exp.Expr, tables: tuple[SqlInput, SqlInput]) -> _Sum:
    if isinstance(node, exp.Paren):
        return _read_sum(node.this, tables)
    if isinstance(node, exp.Neg):
        return _Sum().add_sum(_read_sum(node.this, tables), -1)
    if isinstance(node, exp.Add | exp.Sub):
        return _read_sum(node.this, tables).add_sum(
            _read_sum(node.expression, tables), 1 if isinstance(node, exp.Add) else -1
        )
    if isinstance(node, exp.Column):
        return _Sum(1, 0) if node.table == tables[0].name else _Sum(0, 1)
    if isinstance(node, exp.Interval):
        return _Sum(ms=interval_ms(node))
    if isinstance(node, exp.Literal) and not node.is_string:
        if all(table.integer_time for table in tables):
            return _Sum(ms=Fraction(node.name))
        raise NoBoundError(f"{node.name} has no unit; write INTERVAL '{node.name}' SECOND or another unit")
    raise NoBoundError(f"{node.sql(comments=False)} is no event time and no INTERVAL; write only sums of these")


# --- the bound of a step ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IntervalBounds:
    """The right input's time is in [lower, upper] from the time of `from_input`, in milliseconds."""

    from_input: str
    lower: int
    upper: int

    @property
    def reach(self) -> int:
        return max(self.upper, -self.lower)


@dataclass(slots=True)
class Distances:
    """The range of `time of one input - time of another` in a row that has both, as [lowest, highest]."""

    _ranges: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def between(self, first: str, other: str) -> tuple[int, int] | None:
        return (0, 0) if first == other else self._ranges.get((first, other))

    def add(self, link: Link, interval: IntervalBounds) -> None:
        right = link.right.table.name
        for relation in link.earlier:
            before = self.between(interval.from_input, relation.table.name)
            if before is not None:
                lowest, highest = interval.lower + before[0], interval.upper + before[1]
                self._ranges[right, relation.table.name] = lowest, highest
                self._ranges[relation.table.name, right] = -highest, -lowest


def interval_of(matching: Matching, link: Link, distances: Distances, report: Report) -> IntervalBounds | None:
    """Return the tightest bound; None if there is none, which the report then says."""
    candidates = list(_complete_bounds(matching.limits, distances))
    if not candidates:
        sides = {limit.bound.side for limit in matching.limits}
        if len(sides) < 2 and not matching.broken:
            earlier, right = (
                f"{relation.source.alias}.{relation.table.event_time}" for relation in (link.earlier[-1], link.right)
            )
            facts = (
                "the bound on time has one side only" if sides else f"the join has no bound on {earlier} and {right}"
            )
            todo = f"write {right} BETWEEN {earlier} AND {earlier} + INTERVAL '1' HOUR"
            if link.right.table.table:
                source = link.right.source
                alias = "" if source.alias == source.name else f" AS {source.alias}"
                todo = f"{source.name!r} is a table: write JOIN {source.name} FOR SYSTEM_TIME AS OF {earlier}{alias}"
            report.add(link.joined.source.at, f"{facts}, so its state would grow for ever (rule J8); {todo}")
        return None
    best = min(candidates, key=lambda interval: interval.upper - interval.lower)
    if best.lower > best.upper:
        ends = f"the lower bound is {format_duration(best.lower)}, the upper one {format_duration(best.upper)}"
        facts = f"{ends}, counted from {best.from_input!r}"
        report.add(link.joined.source.at, f"nothing can match: {facts}; check the signs")
    elif max(abs(best.lower), abs(best.upper)) > MAX_MS:
        report.add(link.joined.source.at, "a bound is over 292 years; write a shorter one")
    return best


def _complete_bounds(limits: list[TimeBound], distances: Distances) -> Iterator[IntervalBounds]:
    for from_input in dict.fromkeys(limit.from_input for limit in limits):
        ends: dict[str, list[int]] = {"lower": [], "upper": []}
        for limit in limits:
            distance = distances.between(limit.from_input, from_input)
            if distance is not None:
                ends[limit.bound.side].append(limit.bound.ms + distance[limit.bound.side == "upper"])
        if ends["lower"] and ends["upper"]:
            yield IntervalBounds(from_input, max(ends["lower"]), min(ends["upper"]))
