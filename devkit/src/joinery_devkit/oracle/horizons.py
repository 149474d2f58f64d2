"""Computes which watermarks the plans must hold, from every event time read so far; and how low a time may still
arrive, step by step along a chain, from watermarks and bounds alone (N2, N3).

Infinities stand for unknown times and for the end, so that arithmetic needs no special cases.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from joinery_devkit.oracle.model import LEFT, RIGHT, AsOfRule, IntervalRule, Step, WindowRule
from joinery_devkit.oracle.rows import END

Time = float  # milliseconds, in practice int or an infinity
UNKNOWN = -math.inf
WINDOW = "the end of the window"  # that a row is in (W5), among the times of inputs


def as_time(watermark: int | None) -> Time:
    if watermark is None:
        return UNKNOWN
    return math.inf if watermark == END else watermark


def as_watermark(time: Time) -> int | None:
    """Return the watermark that stands for the time: the inverse of `as_time`."""
    if time == UNKNOWN:
        return None
    return END if time == math.inf else int(time)


@dataclass(frozen=True, slots=True)
class Horizons:
    """`accept_from`: a row of the input below this time is late. `keep_from`: per step and side, the time up to which
    rows are closed; on the left side it refers to the input from whose time the step counts. `handed_on`: by input,
    the time from which on the last step still makes rows (N3)."""

    accept_from: Mapping[str, Time]
    keep_from: Sequence[tuple[Time, Time]]
    handed_on: Mapping[str, Time]


class ChainTimes:
    """The horizons of a chain of steps of any kinds, epoch after epoch."""

    def __init__(self, first: str, steps: Sequence[Step]) -> None:
        self._first, self._steps = first, steps
        self._before: list[tuple[Time, Time]] = [(UNKNOWN, UNKNOWN)] * len(steps)

    def edit(self, steps: Sequence[Step]) -> None:
        """Continue the job with steps that have other bounds, types or lateness."""
        self._steps = steps

    def next(
        self,
        watermarks: Mapping[str, int | None],
        highest: Mapping[str, Time] = MappingProxyType({}),
        reached: Mapping[str, int] = MappingProxyType({}),
    ) -> Horizons:
        """Return the horizons of the next epoch, under its plan's watermarks. `highest` are the highest event times
        that earlier epochs have read. `reached` are the times up to which inputs were read that are behind (A4)."""
        # An input's watermark less the allowedLateness of the step that reads it.
        lateness = {self._first: self._steps[0].allowed_lateness}
        lateness |= {step.right: step.allowed_lateness for step in self._steps}
        accept = {name: as_time(watermarks[name]) - allowed for name, allowed in lateness.items()}
        coming = {self._first: accept[self._first]}
        keep_from: list[tuple[Time, Time]] = []
        for number, step in enumerate(self._steps):
            coming = {**coming, step.right: accept[step.right]}
            if isinstance(step.rule, AsOfRule):
                ended = watermarks[step.left_input or self._first] == END
                left, right = self._table_horizons(number, step.rule, coming, highest, reached, ended=ended)
            else:
                left, right = self._closed(step, coming)
            was = self._before[number]  # a horizon never goes back, also not after an edit
            keep_from.append((max(was[LEFT], left), max(was[RIGHT], right)))
            coming = self._handed_on(number, coming, keep_from[-1])
        self._before = keep_from
        return Horizons(accept, keep_from, coming)

    def _closed(self, step: Step, coming: Mapping[str, Time]) -> tuple[Time, Time]:
        """Up to where the sides of a step are closed: of an interval step by the other side, row by row (J3); of a
        window step by both (W2)."""
        left = coming[WINDOW] - 1 if step.one_window else coming[step.left_input or self._first]
        right = coming[step.right]
        if isinstance(step.rule, IntervalRule):
            return right - step.rule.upper, left + step.rule.lower
        return min(left, right), min(left, right)

    def _table_horizons(
        self,
        number: int,
        rule: AsOfRule,
        coming: Mapping[str, Time],
        highest: Mapping[str, Time],
        reached: Mapping[str, int],
        *,
        ended: bool,
    ) -> tuple[Time, Time]:
        """Up to where rows have waited (A3, A4), and from where on versions count (A2). In a chain, versions stay for
        the rows that the steps before may still hand on, once a row of their input was read."""
        step = self._steps[number]
        stream, table = step.left_input or self._first, step.right
        seen, table_reached = highest.get(stream, UNKNOWN), reached.get(table, math.inf)
        lowest_times = [highest.get(table, UNKNOWN), table_reached, reached.get(stream, math.inf)]
        if number > 0 and seen != UNKNOWN:
            lowest_times.append(coming[stream])
        return min(math.inf if ended else seen - rule.grace, table_reached), min(lowest_times) - rule.retention

    def _handed_on(self, number: int, coming: Mapping[str, Time], now: tuple[Time, Time]) -> dict[str, Time]:
        """For each input's time, the minimum of what came in and what may still be kept (N3). The time of a version is
        not handed on (N2)."""
        step, before = self._steps[number], self._before[number]
        # The lowest times of stored rows that this epoch or a later one may emit. Rows that this epoch closes and emits
        # count with what was stored before it.
        if isinstance(step.rule, AsOfRule):
            left_kept, right_kept = before[LEFT] + 1, UNKNOWN
        elif isinstance(step.rule, WindowRule):  # the windows that close now are emitted now
            left_kept = right_kept = _first_open(step.rule, before[LEFT])
        else:
            left_kept, right_kept = (before[side] if step.preserved(side) else now[side] for side in (LEFT, RIGHT))
        origin, names = self.counted_from(step), [name for name in coming if name != step.right]
        out = {name: min(coming[name], left_kept + self._least(name, origin)) for name in names}
        if isinstance(step.rule, WindowRule):
            out[WINDOW] = before[LEFT] + 1
        if isinstance(step.rule, AsOfRule) or not step.emits_right:
            return out
        return {**out, step.right: min(coming[step.right], right_kept)}

    def _least(self, name: str, base: str) -> int:
        """Return the least (time of `name` - time of `base`) in rows that have both: bounds add up along the chain
        (N2)."""
        up, down = self._way(name), self._way(base)
        shared = {joint for joint, _, _ in up} & {joint for joint, _, _ in down}
        least_up = sum(lower for joint, lower, _ in up if joint not in shared)
        most_down = sum(upper for joint, _, upper in down if joint not in shared)
        return least_up - most_down

    def counted_from(self, step: Step) -> str:
        """Return the input whose time left rows have: in windows that a step before has made, the one that counted
        there."""
        counting = next(
            (other for other in self._steps if isinstance(other.rule, WindowRule) and step.one_window), step
        )
        return counting.left_input or self._first

    def _way(self, name: str) -> list[tuple[str, int, int]]:
        """Return the joins from an input to the first one: (input, lower and upper bound of its time from that of the
        input to which it was joined)."""
        way: list[tuple[str, int, int]] = []
        if name == WINDOW:
            windows = next(step for step in self._steps if isinstance(step.rule, WindowRule))
            assert isinstance(windows.rule, WindowRule), "of a window step"
            way.append((name, 1, windows.rule.longest))
            name = windows.left_input or self._first
        while name != self._first:
            step = next(step for step in self._steps if step.right == name)
            lower, upper = bound(step)
            way.append((name, lower, upper))
            name = self.counted_from(step)
        return way


def bound(step: Step) -> tuple[int, int]:
    """Return the lowest and the highest distance of the right row's time from that of the step's left input."""
    if isinstance(step.rule, WindowRule):
        return 1 - step.rule.longest, step.rule.longest - 1
    assert isinstance(step.rule, IntervalRule), "other steps count only from times that are bounded (N2)"
    return step.rule.lower, step.rule.upper


@dataclass(slots=True)
class EarlyHorizon:
    """Up to which multiple of `emit.every` early results have been emitted (G8)."""

    now: Time = UNKNOWN

    def passes(self, watermark: Time, every: int | None) -> bool:
        """Raise it to the last multiple (ms) that the watermark has reached; whether it has risen. None: there are no
        early results."""
        if every is None or watermark == UNKNOWN:
            return False
        before, reached = self.now, watermark if watermark == math.inf else watermark // every * every
        self.now = max(before, reached)
        return self.now > before


def _first_open(rule: WindowRule, closed: Time) -> Time:
    """Return the start of the first window whose end is above the time."""
    if math.isinf(closed):
        return closed
    return min(start for start, _ in rule.spans(int(closed)))


class WatermarkOracle:
    """Rules T1, T5, T7 and A4, from every event time read so far. Times and delays are milliseconds; partitions are any
    names.

    Per epoch: `watermarks`, then `saw` with the epoch's rows (T3), dropped and late ones included, then `settle`.
    """

    def __init__(self, delays: Mapping[str, int], partitions: Mapping[str, Iterable[Hashable]] | None = None) -> None:
        self._delays = dict(delays)
        self._times: dict[str, dict[Hashable, list[int]]] = {name: {} for name in delays}
        self._emitted: dict[str, int | None] = dict.fromkeys(delays)
        for name, initial in (partitions or {}).items():
            for partition in initial:
                self.saw(name, partition, [])

    def edit(self, delays: Mapping[str, int]) -> None:
        """Continue the job with these delays."""
        self._delays = dict(delays)

    def saw(self, name: str, partition: Hashable, times: Iterable[int]) -> None:
        """Take an epoch's read of a partition; `times` are the event times of its readable rows, if there were any."""
        self._times[name].setdefault(partition, []).extend(times)

    def settle(self, idle: Mapping[str, Collection[Hashable]] | None = None) -> None:
        """Settle an epoch after `saw` has taken its rows. What they imply, with the partitions that were idle in that
        epoch, is not taken back by a partition that is new or no longer idle."""
        for name, emitted in self._emitted.items():
            self._emitted[name] = _highest(emitted, self._implied(name, (idle or {}).get(name, ())))

    def watermarks(
        self, idle: Mapping[str, Collection[Hashable]] | None = None, ended: Collection[str] = ()
    ) -> dict[str, int | None]:
        """Return the next plan's watermarks, given its idle partitions and the inputs that have been read to their
        ends."""
        idle = idle or {}
        own = {
            name: END if name in ended else _highest(emitted, self._implied(name, idle.get(name, ())))
            for name, emitted in self._emitted.items()
        }
        idle_inputs = {
            name
            for name, watermark in own.items()
            if watermark != END and self._times[name] and set(self._times[name]) <= set(idle.get(name, ()))
        }
        active = [watermark for name, watermark in own.items() if name not in idle_inputs and watermark != END]
        lowest = min((w for w in active if w is not None), default=None)
        if None in active:
            lowest = None
        for name, watermark in own.items():
            self._emitted[name] = _highest(watermark, lowest) if name in idle_inputs else watermark
        return dict(self._emitted)

    def reached(self, name: str, unread: Collection[Hashable]) -> int | None:
        """Return the last time that an input has reached whose `unread` partitions have more records (A4: rows from
        before *(highest event time - delay)* are read); None: one of them has shown no row."""
        implied = self._implied(name, self._times[name].keys() - set(unread))
        return None if implied is None else implied - 1

    def _implied(self, name: str, idle: Collection[Hashable]) -> int | None:
        """Return the watermark by T1; None while a partition that is not idle has shown no row."""
        times = [seen for partition, seen in self._times[name].items() if partition not in idle]
        if not times or not all(times):
            return None
        return min(max(seen) - self._delays[name] for seen in times)


def too_far_ahead(times: Sequence[int], stamps: Sequence[int], max_future: int | None, clock: int | None) -> set[int]:
    """T11: the positions of rows that are `future`. `stamps` are Kafka's timestamps (negative: none), `clock` is the
    plan's (None: unknown); `max_future` None: none is."""
    if max_future is None:
        return set()
    clocks = [] if clock is None else [clock]
    positions: set[int] = set()
    for position, (ts, stamp) in enumerate(zip(times, stamps, strict=True)):
        row_clocks = [*clocks, *([stamp] if stamp >= 0 else [])]
        if row_clocks and ts - max_future > min(row_clocks):
            positions.add(position)
    return positions


def _highest(a: int | None, b: int | None) -> int | None:
    watermarks = [w for w in (a, b) if w is not None]
    return max(watermarks) if watermarks else None
