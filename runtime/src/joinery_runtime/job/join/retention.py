"""How long rows wait in a chain of steps, in steady flow: event time that comes in as fast as the clock goes."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_runtime.job.join.steps import Interval, JoinStep, Window
from joinery_runtime.job.join.stream_join import StreamJoin


def kept_for(job: StreamJoin) -> tuple[tuple[int, int], ...]:
    """Per step, for how many milliseconds of event time after their own the left and the right rows are kept."""
    return tuple(_Chain(job).steps())


def _window_length(window: Window) -> int:
    """How long after its own time a row's last window ends, at most; of a session that nothing extends."""
    if window.hopping is not None:
        return window.hopping.size
    return window.session.gap if window.session is not None else window.tumbling or 0


class _Chain:
    """`lag` is how far the watermark of an input's time trails what comes in: by the input's own delay and the
    allowedLateness of the step that reads it, and after a step by what that may still keep (rule N3). `apart` bounds
    `y.ts - x.ts` of rows that were joined (N2)."""

    def __init__(self, job: StreamJoin) -> None:
        self._job = job
        self._lag: dict[str, int] = {}
        first = job.spec.inputs[0].name
        self._apart: dict[tuple[str, str], tuple[int, int]] = {(first, first): (0, 0)}

    def steps(self) -> Iterator[tuple[int, int]]:
        for number, step in enumerate(self._job.joins):
            left = self._job.left_inputs(number)
            for name in (*(left if number == 0 else ()), step.right):
                self._lag[name] = self._job.input(name).watermark.delay + step.allowed_lateness
            yield self._kept(step, left)

    def _kept(self, step: JoinStep, left: tuple[str, ...]) -> tuple[int, int]:
        if step.interval is not None:
            return self._interval(step.right, step.interval, left)
        if step.as_of is not None:
            return step.as_of.grace, step.as_of.history_retention
        assert step.window is not None, "a step has an interval, a window or an asOf"
        waits = _window_length(step.window) + max(self._lag.values())
        return waits, waits

    def _interval(self, right: str, interval: Interval, left: tuple[str, ...]) -> tuple[int, int]:
        """Rule J3, with the other side's lag: its watermark trails the times that come in together with this row."""
        of = interval.of
        kept = max(0, interval.upper + self._lag[right]), max(0, -interval.lower + self._lag[of])
        self._lag[right] = max(self._lag[right], kept[1])
        for name in left:
            self._lag[name] = max(self._lag[name], kept[0] - self._apart[of, name][0])
        self._join(right, interval, left)
        return kept

    def _join(self, right: str, interval: Interval, left: tuple[str, ...]) -> None:
        self._apart[right, right] = (0, 0)
        for name in left:
            low, high = self._apart[name, interval.of]
            low, high = low + interval.lower, high + interval.upper
            self._apart[name, right], self._apart[right, name] = (low, high), (-high, -low)
