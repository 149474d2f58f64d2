"""How low a time may still come, step by step along a chain: from watermarks and bounds alone (N2, N3).

Infinities stand for what is not known yet and for the end, so that no arithmetic needs a special case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joinery_devkit.oracle.model import LEFT, RIGHT, IntervalRule, Step
from joinery_devkit.oracle.rows import END

Time = float  # milliseconds, in practice int or an infinity
UNKNOWN = -math.inf


def as_time(watermark: int | None) -> Time:
    if watermark is None:
        return UNKNOWN
    return math.inf if watermark == END else watermark


@dataclass(frozen=True, slots=True)
class Horizons:
    """`accept_from`: a row of the input below it is late. `keep_from`: per step, a row below it is not kept; on the
    left side that is about the time of the input that the step's bound counts from."""

    accept_from: Mapping[str, Time]
    keep_from: Sequence[tuple[Time, Time]]


class ChainTimes:
    """The horizons of a chain of interval steps, epoch after epoch."""

    def __init__(self, first: str, steps: Sequence[Step]) -> None:
        self._first, self._steps = first, steps
        self._before: list[tuple[Time, Time]] = [(UNKNOWN, UNKNOWN)] * len(steps)

    def next(self, watermarks: Mapping[str, int | None]) -> Horizons:
        """Those of the next epoch, under its plan's watermarks."""
        accept = self._accept_from(watermarks)
        coming = {self._first: accept[self._first]}
        keep_from: list[tuple[Time, Time]] = []
        for number, step in enumerate(self._steps):
            lower, upper, of = bound(step, self._first)
            now = (accept[step.right] - upper, coming[of] + lower)
            keep_from.append(now)
            coming = self._handed_on(number, coming, accept[step.right], now)
        self._before = keep_from
        return Horizons(accept, keep_from)

    def _accept_from(self, watermarks: Mapping[str, int | None]) -> dict[str, Time]:
        """An input's watermark less the allowedLateness of the step that reads it."""
        lateness = {self._first: self._steps[0].allowed_lateness}
        lateness |= {step.right: step.allowed_lateness for step in self._steps}
        return {name: as_time(watermarks[name]) - allowed for name, allowed in lateness.items()}

    def _handed_on(
        self, number: int, coming: Mapping[str, Time], right: Time, now: tuple[Time, Time]
    ) -> dict[str, Time]:
        """Per time, min(what came in, what may still be kept) (N3). What a preserved side closes in this epoch goes
        out in this epoch, so that it counts with what it kept before."""
        step = self._steps[number]
        before = self._before[number]
        left_kept, right_kept = (before[side] if step.preserved(side) else now[side] for side in (LEFT, RIGHT))
        of = bound(step, self._first)[2]
        out = {name: min(low, left_kept + self._least(name, of)) for name, low in coming.items()}
        return {**out, step.right: min(right, right_kept)}

    def _least(self, name: str, of: str) -> int:
        """The least of (time of `name` - time of `of`) in rows that have both: bounds add up along the chain (N2)."""
        up, down = self._way(name), self._way(of)
        shared = {joint for joint, _, _ in up} & {joint for joint, _, _ in down}
        least_up = sum(lower for joint, lower, _ in up if joint not in shared)
        most_down = sum(upper for joint, _, upper in down if joint not in shared)
        return least_up - most_down

    def _way(self, name: str) -> list[tuple[str, int, int]]:
        """From an input to the first one: (input, bound of its time from that of the one that it was joined to)."""
        way: list[tuple[str, int, int]] = []
        while name != self._first:
            step = next(step for step in self._steps if step.right == name)
            lower, upper, of = bound(step, self._first)
            way.append((name, lower, upper))
            name = of
        return way


def bound(step: Step, first: str) -> tuple[int, int, str]:
    """(lower, upper, of) of an interval step."""
    assert isinstance(step.rule, IntervalRule), "only interval steps take part in chains (W4)"
    return step.rule.lower, step.rule.upper, step.rule.of or first
