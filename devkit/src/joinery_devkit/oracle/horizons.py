"""Computes how low a time may still arrive, step by step along a chain, from watermarks and bounds alone (N2, N3).

Infinities stand for unknown times and for the end, so that arithmetic needs no special cases.
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
    """`accept_from`: a row of the input below this time is late. `keep_from`: per step and side, a row below this time
    is not kept; on the left side it refers to the input from whose time the step's bound counts."""

    accept_from: Mapping[str, Time]
    keep_from: Sequence[tuple[Time, Time]]


class ChainTimes:
    """The horizons of a chain of interval steps, epoch after epoch."""

    def __init__(self, first: str, steps: Sequence[Step]) -> None:
        self._first, self._steps = first, steps
        self._before: list[tuple[Time, Time]] = [(UNKNOWN, UNKNOWN)] * len(steps)

    def edit(self, steps: Sequence[Step]) -> None:
        """Continues the job with steps that have other bounds, types or lateness."""
        self._steps = steps

    def next(self, watermarks: Mapping[str, int | None]) -> Horizons:
        """The horizons of the next epoch, under its plan's watermarks."""
        accept = self._accept_from(watermarks)
        coming = {self._first: accept[self._first]}
        keep_from: list[tuple[Time, Time]] = []
        for number, step in enumerate(self._steps):
            lower, upper, left_input = bound(step, self._first)
            was = self._before[number]  # a horizon never goes back, also not after an edit
            now = (max(was[LEFT], accept[step.right] - upper), max(was[RIGHT], coming[left_input] + lower))
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
        """For each input's time, the minimum of what came in and what may still be kept (N3). Rows that a preserved
        side closes in this epoch are emitted in this epoch, so that side counts with what it kept before."""
        step = self._steps[number]
        before = self._before[number]
        left_kept, right_kept = (before[side] if step.preserved(side) else now[side] for side in (LEFT, RIGHT))
        left_input = bound(step, self._first)[2]
        out = {name: min(low, left_kept + self._least(name, left_input)) for name, low in coming.items()}
        return {**out, step.right: min(right, right_kept)} if step.emits_right else out

    def _least(self, name: str, base: str) -> int:
        """The least (time of `name` - time of `base`) in rows that have both: bounds add up along the chain (N2)."""
        up, down = self._way(name), self._way(base)
        shared = {joint for joint, _, _ in up} & {joint for joint, _, _ in down}
        least_up = sum(lower for joint, lower, _ in up if joint not in shared)
        most_down = sum(upper for joint, _, upper in down if joint not in shared)
        return least_up - most_down

    def _way(self, name: str) -> list[tuple[str, int, int]]:
        """The joins from an input to the first one: (input, lower and upper bound of its time from that of the input
        to which it was joined)."""
        way: list[tuple[str, int, int]] = []
        while name != self._first:
            step = next(step for step in self._steps if step.right == name)
            lower, upper, left_input = bound(step, self._first)
            way.append((name, lower, upper))
            name = left_input
        return way


def bound(step: Step, first: str) -> tuple[int, int, str]:
    """(lower, upper, of) of an interval step."""
    assert isinstance(step.rule, IntervalRule), "only interval steps take part in chains (W4)"
    return step.rule.lower, step.rule.upper, step.rule.left_input or first
