"""Finds the bound on time of an interval step: the input from which it counts, and the tightest ends.

A step counts from one input. Bounds that count from several inputs are converted to one, by what earlier steps say
about the distance between these inputs' times (N2): with d in [o, o + 3], d - 1 <= r means o - 1 <= r. This holds for
every row that has both times, and without them nothing matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from joinery_runtime.job.model.duration import MAX_MS, format_duration
from joinery_runtime.job.sql.chain import Link
from joinery_runtime.job.sql.matching import Matching, TimeBound
from joinery_runtime.job.sql.report import Report


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
        for named in link.earlier:
            before = self.between(interval.from_input, named.table.name)
            if before is not None:
                lowest, highest = interval.lower + before[0], interval.upper + before[1]
                self._ranges[right, named.table.name] = lowest, highest
                self._ranges[named.table.name, right] = -highest, -lowest


def interval_of(matching: Matching, link: Link, distances: Distances, report: Report) -> IntervalBounds | None:
    """The bound; None if there is none, which the report then says."""
    candidates = list(_candidates(matching.limits, distances))
    if not candidates:
        sides = {limit.bound.side for limit in matching.limits}
        if len(sides) < 2 and not matching.broken:
            report.add(link.joined.source.at, _missing(bool(sides), link))
        return None
    best = min(candidates, key=lambda interval: interval.upper - interval.lower)
    if best.lower > best.upper:
        ends = f"the lower bound is {format_duration(best.lower)}, the upper one {format_duration(best.upper)}"
        facts = f"{ends}, counted from {best.from_input!r}"
        report.add(link.joined.source.at, f"nothing can match: {facts}; check the signs")
    elif max(abs(best.lower), abs(best.upper)) > MAX_MS:
        report.add(link.joined.source.at, "a bound is over 292 years; write a shorter one")
    return best


def _candidates(limits: list[TimeBound], distances: Distances) -> Iterator[IntervalBounds]:
    for from_input in dict.fromkeys(limit.from_input for limit in limits):
        ends: dict[str, list[int]] = {"lower": [], "upper": []}
        for limit in limits:
            distance = distances.between(limit.from_input, from_input)
            if distance is not None:
                ends[limit.bound.side].append(limit.bound.ms + distance[limit.bound.side == "upper"])
        if ends["lower"] and ends["upper"]:
            yield IntervalBounds(from_input, max(ends["lower"]), min(ends["upper"]))


def _missing(one_side: bool, link: Link) -> str:
    first, second = (f"{named.source.alias}.{named.table.event_time}" for named in (link.earlier[-1], link.right))
    todo = f"write {second} BETWEEN {first} AND {first} + INTERVAL '1' HOUR"
    facts = "the bound on time has one side only" if one_side else f"the join has no bound on {first} and {second}"
    return f"{facts}, so its state would grow for ever (rule J8); {todo}"
