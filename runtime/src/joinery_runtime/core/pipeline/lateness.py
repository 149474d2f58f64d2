"""Judges event times: those that are implausibly far ahead (T11), late ones that go to the dead letters (`lateData:
dlq`, rules J6, W2, S4), and how far records are out of order.

A corrupt event time far ahead would move the watermark past every row that is still to come, for ever.

Where event times and the plan alone decide, late records are judged as they are read. Where other rows of the key also
decide, the reader only finds the few records that may be late. These go with the rows to the shard, whose step decides.

Each judgement uses only the record and the plan, never a clock of its own, so a replay finds the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME, Watermark, clamp
from joinery_runtime.job.model.duration import format_duration, format_time

Timestamps = Callable[[np.ndarray], np.ndarray]
"""Gives the Kafka timestamps (int64 milliseconds, negative: none) of the rows at these positions (int64)."""


class FutureCheck(Protocol):
    """Judges the rows of one range, batch by batch in order."""

    def find(self, times: np.ndarray, timestamps: Timestamps | None) -> dict[int, int]:
        """Return, by position, the time that each row which is too far ahead is ahead of. `times` are int64[n]."""
        ...

    def reason(self, event_time: str, ts: int, ahead_of: int) -> str:
        """Return the reason in the dead letter of a row at `ts`. `event_time` names its column."""
        ...


@dataclass(frozen=True, slots=True)
class FutureRows:
    """Compares each row with the clock in the plan, or with its record's Kafka timestamp if that is earlier. No other
    row counts, so the result depends neither on the order of rows nor on where ranges are cut. With `clock_ms` None, a
    row without a Kafka timestamp is compared with nothing."""

    max_future_ms: int
    clock_ms: int | None

    def find(self, times: np.ndarray, timestamps: Timestamps | None) -> dict[int, int]:
        clock = END_OF_TIME if self.clock_ms is None else self.clock_ms
        limits = np.full(len(times), clock, dtype=np.int64)
        if timestamps is not None:
            stamps = timestamps(np.arange(len(times)))
            np.minimum(limits, stamps, out=limits, where=stamps >= 0)
        ahead = np.flatnonzero(times - self.max_future_ms > limits)
        return dict(zip(ahead.tolist(), limits[ahead].tolist(), strict=True))

    def reason(self, event_time: str, ts: int, ahead_of: int) -> str:
        reference = "the driver's clock" if ahead_of == self.clock_ms else "its record's Kafka timestamp"
        return _reason(event_time, ts, self.max_future_ms, reference, ahead_of)


class FormerFutureRows:
    """The rule of plans without a clock.

    If the range's first usable row has a Kafka timestamp, a row is `future` when its event time is more than
    `max_future_ms` ahead of both its own record's timestamp and that of the first one. Otherwise a row is compared with
    the input's `watermark` in the plan and with the highest event time before it in the range. Without a watermark, no
    row is `future`.
    """

    def __init__(self, max_future_ms: int, watermark: Watermark) -> None:
        self._most, self._reached = max_future_ms, watermark
        self._first: int | None = None  # the first row's Kafka timestamp; negative: none; None: no row yet

    def find(self, times: np.ndarray, timestamps: Timestamps | None) -> dict[int, int]:
        if not len(times):
            return {}
        if self._first is None:
            self._first = -1 if timestamps is None else int(timestamps(np.zeros(1, dtype=np.int64))[0])
        if timestamps is not None and self._first >= 0:
            return self._by_timestamps(times, self._first, timestamps)
        return {} if self._reached is None else self._by_highest_time(times, self._reached)

    def reason(self, event_time: str, ts: int, ahead_of: int) -> str:
        by_kafka = self._first is not None and self._first >= 0
        reference = "its record's Kafka timestamp" if by_kafka else "what the input has reached"
        return _reason(event_time, ts, self._most, reference, ahead_of)

    def _by_timestamps(self, times: np.ndarray, first: int, timestamps: Timestamps) -> dict[int, int]:
        ahead = np.flatnonzero(times > first + self._most)
        if not len(ahead):
            return {}
        stamps = np.maximum(timestamps(ahead), first)
        too_far = times[ahead] - self._most > stamps
        return dict(zip(ahead[too_far].tolist(), stamps[too_far].tolist(), strict=True))

    def _by_highest_time(self, times: np.ndarray, reached: int) -> dict[int, int]:
        ahead = np.flatnonzero(times > clamp(reached + self._most))
        plausible_times = times.copy()
        plausible_times[ahead] = BEGIN_OF_TIME
        highest = np.maximum.accumulate(plausible_times)
        limits: dict[int, int] = {}
        for row in ahead.tolist():
            reached = max(reached, int(highest[row]))
            if times[row] > clamp(reached + self._most):
                limits[row] = reached
            else:
                reached = max(reached, int(times[row]))
        self._reached = max(reached, int(highest[-1]))
        return limits


def _reason(event_time: str, ts: int, most: int, reference: str, ahead_of: int) -> str:
    return (
        f"future: event time {event_time!r} is {format_time(ts)}, more than watermark.maxFuture "
        f"({format_duration(most)}) ahead of {reference}, {format_time(ahead_of)}"
    )


@dataclass(frozen=True, slots=True)
class LateRows:
    """Judges rows of an input: those with event times below `accept_from` (ms) are late or, unless `certain`, may be.
    `watermarks` are the current ones of the inputs that the step joins. `rule` is the kind's `late_rule`."""

    accept_from: int
    watermarks: Mapping[str, Watermark]
    rule: str
    certain: bool

    @classmethod
    def of(
        cls, pipeline: Pipeline, name: str, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> LateRows | None:
        """Return the judge of an input's rows. None: none of its rows is late, or late rows do not go to the dead
        letters."""
        input_spec = pipeline.input(name)
        step = pipeline.steps[input_spec.step]
        if not step.kind.late_to_dead_letters:
            return None
        lowest = step.kind.late_below(step, input_spec.side, watermarks, horizons)
        joined = {side.time: watermarks[side.time] for side in step.sides}
        return None if lowest is None else cls(lowest, joined, step.kind.late_rule, not step.kind.judges_late_records)

    def reason(self, event_time: str, ts: int) -> str:
        """Return the reason in the dead letter of a row at `ts`. `event_time` names its column."""
        watermarks = ", ".join(f"{name} {format_time(at)}" for name, at in self.watermarks.items())
        return (
            f"late: event time {event_time!r} is {format_time(ts)}, {self.rule.format(format_time(self.accept_from))} "
            f"(watermark: {watermarks})"
        )


def behind_highest(times: np.ndarray) -> np.ndarray:
    """Return how far each event time is behind the highest one up to it (int64[n], not negative), in order of arrival:
    by as much `watermark.delay` none of the records would be late."""
    return np.asarray(np.maximum.accumulate(times) - times)
