"""What several epochs tell together: the warnings that they lead to, and rows per second.

Counts of one epoch are in `report`. The warnings are learned here, for as long as the driver lives: of hot keys, inputs
that look wrong, late rows, and sessions that were closed by their cap.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.hot_keys import HotKeyTracker
from joinery_runtime.engine.input_warnings import InputWarnings
from joinery_runtime.engine.late_rows import LateCounts, closed_words
from joinery_runtime.engine.messages import EpochOutcome
from joinery_runtime.engine.plan import EpochPlan, InputState
from joinery_runtime.engine.report import EpochReport, StateSize, Totals, behind_watermark, epoch_report


class EpochReporter:
    """`int64_times` has the event-time columns whose values are numbers, by input or branch; `hot_keys` the number of
    rows per key from which a step warns, `late_warnings` the share of late rows from which an input does. `now_ms` is
    the driver's clock."""

    def __init__(
        self,
        pipeline: Pipeline,
        int64_times: Mapping[str, str],
        hot_keys: Mapping[int, int],
        clocks: Mapping[str, InputClock],
        late_warnings: Mapping[str, float | None],
        now_ms: Callable[[], int],
    ) -> None:
        self._hot_keys = HotKeyTracker(hot_keys)
        self._inputs = InputWarnings(int64_times, pipeline)
        self._late_rows = LateCounts(clocks, late_warnings)
        self._warned_of_closed = frozenset[str]()  # inputs whose rows fell inside capped sessions
        self._now_ms = now_ms

    def report(
        self,
        plan: EpochPlan,
        outcome: EpochOutcome,
        inputs: Mapping[str, InputState],
        parts: Mapping[str, StateSize],
        totals: Totals,
        *,
        backlog: Mapping[str, int],
        unpublished_rows: int,
    ) -> EpochReport:
        """Report a committed epoch. `inputs` are as before it, `parts` and `totals` as after it. Each warning is in one
        report only."""
        hot_keys = self._hot_keys.learn(
            plan.shards, {task: summary.hottest for task, summary in outcome.shards.items()}
        )
        about_inputs = self._inputs.learn(outcome.read.partitions)
        report = epoch_report(plan, outcome, inputs, parts, totals)
        late = self._late_rows.learn(self._now_ms(), report.rows_in, report.late, behind_watermark(plan, outcome))
        closed = {name: counts["closed"] for name, counts in report.dropped.items() if counts.get("closed")}
        newly_closed = sorted(closed.keys() - self._warned_of_closed)
        self._warned_of_closed |= closed.keys()
        return replace(
            report,
            hottest=hot_keys.hottest,
            too_hot=hot_keys.too_hot,
            input_warnings=self._inputs.active,
            late_warnings={name: warning.words for name, warning in self._late_rows.active.items()},
            warnings=(
                *hot_keys.warnings,
                *about_inputs,
                *(warning.words for warning in late),
                *(closed_words(name, closed[name]) for name in newly_closed),
            ),
            backlog=backlog,
            unpublished_rows=unpublished_rows,
        )


class Rates:
    """Rows per second over the epochs that ended in the last `window_s` seconds, but not before `since`. Times are
    seconds of the caller's clock."""

    def __init__(self, since: float, window_s: float) -> None:
        self._since, self._window = since, window_s
        self._epochs: deque[tuple[float, float, Mapping[str, int]]] = deque()  # start, end, rows

    def add(self, now: float, seconds: float, rows: Mapping[str, int]) -> None:
        """Add an epoch that has just ended and took `seconds`."""
        self._epochs.append((now - seconds, now, rows))
        self._forget_old(now)

    def per_second(self, now: float) -> dict[str, float]:
        """Return the rates by the names that `add` was given; a missing name had no epoch."""
        self._forget_old(now)
        if not self._epochs:
            return {}
        # Waiting counts as time too, and an epoch that began before the window counts in full.
        span = now - min(self._epochs[0][0], max(now - self._window, self._since))
        totals: Counter[str] = Counter()
        for _, _, rows in self._epochs:
            totals.update(rows)
        return {name: count / max(span, 0.001) for name, count in totals.items()}

    def _forget_old(self, now: float) -> None:
        while self._epochs and self._epochs[0][1] < now - self._window:
            self._epochs.popleft()
