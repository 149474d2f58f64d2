"""Warns about inputs of which many rows are dropped as late, with the `watermark.delay` that would have kept them.

One rule feeds the terminal, the job's page, `/status`, the metric behind the alert, the resource's condition and
`joinery verify`: `watermark.lateWarning` sets the share of an input's newest records that may be late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.report import Totals
from joinery_runtime.job import Job
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.wording import agreeing, counted, listed

LATE_RECORDS = 10_000
LATE_WINDOW_MS = 5 * 60_000
"""The newest records are the last LATE_RECORDS, or those of the last LATE_WINDOW_MS if these are more."""


@dataclass(frozen=True, slots=True)
class LateInput:
    """An input with `rows` that were dropped as late, of its newest `records` or (None) of all since the state began.
    The latest was `behind_ms` behind the watermark; with a `watermark.delay` of `delay_ms` none would have been
    dropped. Both are None if that is not known: a release without these figures counted the rows. The `branches` of a
    union have the setting."""

    input: str
    rows: int
    behind_ms: int | None
    delay_ms: int | None
    records: int | None = None
    branches: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, rows: int, behind_ms: int | None, clock: InputClock, records: int | None = None
    ) -> LateInput:
        """Return the late rows of an input, with the delay that would have kept them."""
        delay = None if behind_ms is None else clock.delay_ms + behind_ms
        return cls(name, rows, behind_ms, delay, records, tuple(clock.branch_delays))

    @property
    def share(self) -> float:
        return self.rows / self.records if self.records else 1.0

    @property
    def words(self) -> str:
        if self.records is None:
            subject = f"{counted(self.rows, 'row')} of {self.input}"
        else:
            percent = format_percent(self.share)
            subject = f"{self.rows:,} of the newest {counted(self.records, 'record')} of {self.input} ({percent})"
        text = f"{subject} {agreeing(self.rows, 'were')} dropped as late"
        if self.behind_ms is None or self.delay_ms is None:
            return text
        return (
            f"{text}, up to {format_duration(self.behind_ms)} behind its watermark; watermark.delay: "
            f"{format_duration(self.delay_ms)} of {_inputs_text(self.branches)} would have kept them all"
        )

    def document(self) -> dict[str, Any]:
        figures = {"input": self.input, "rows": self.rows, "behind_ms": self.behind_ms, "delay_ms": self.delay_ms}
        return figures if self.records is None else {**figures, "records": self.records}


def _inputs_text(branches: Sequence[str]) -> str:
    """Name the inputs that have the setting `watermark.delay`."""
    return f"the inputs {listed(branches)}" if branches else "that input"


def format_percent(share: float) -> str:
    """Return a share for people, with two digits: 0.52 %, 8.2 %, 82 %, 100 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def late_inputs(totals: Totals, clocks: Mapping[str, InputClock]) -> Iterator[LateInput]:
    """Yield the inputs with late rows since the state began; `clocks` are those of the job."""
    for name, clock in clocks.items():
        if rows := totals.dropped.get(name, {}).get("late", 0):
            yield LateInput.of(name, rows, totals.behind.get(name), clock)


def delays_to_name(job: Job, totals: Totals, disorder: Mapping[str, int]) -> Iterator[str]:
    """Propose a delay for inputs whose rows were out of order (`disorder`, ms) but for now not late, and that name no
    delay: with other epochs their rows may be."""
    for side in job.inputs:
        behind, late = disorder.get(side.name, 0), totals.dropped.get(side.name, {}).get("late", 0)
        branches = [part.name for part in side.parts if part is not side]
        if behind and not late and side.lacks_delay and side.name in job.inputs_without_lateness:
            yield (
                f"rows of {side.name} came up to {format_duration(behind)} out of order, and the job names no "
                "watermark.delay for them: with other epochs they may be late. watermark.delay: "
                f"{format_duration(behind)} of {_inputs_text(branches)} keeps them all"
            )


def closed_inputs(totals: Totals) -> Iterator[str]:
    """Yield words about the inputs with rows that fell inside sessions at their cap since the state began (S2)."""
    for name, counts in totals.dropped.items():
        if rows := counts.get("closed", 0):
            yield closed_words(name, rows)


def closed_words(name: str, rows: int) -> str:
    return (
        f"{counted(rows, 'row')} of {name} fell inside sessions that had reached maxDuration and were emitted, and "
        f"{agreeing(rows, 'were')} dropped as closed. Rows on time may be among them: that depends on where epochs end "
        "(docs/sessions.md). With a longer maxDuration fewer sessions reach it"
    )


class _Epoch(NamedTuple):
    at_ms: int
    records: int
    late: int
    behind_ms: int | None


@dataclass(slots=True)
class _Window:
    """The newest epochs of an input that read records of it, with the sums over them."""

    epochs: deque[_Epoch] = field(default_factory=deque)
    records: int = 0
    late: int = 0

    def add(self, epoch: _Epoch) -> None:
        self.epochs.append(epoch)
        self.records += epoch.records
        self.late += epoch.late
        oldest = self.epochs[0]
        while self.records - oldest.records >= LATE_RECORDS and oldest.at_ms < epoch.at_ms - LATE_WINDOW_MS:
            self.epochs.popleft()
            self.records -= oldest.records
            self.late -= oldest.late
            oldest = self.epochs[0]

    @property
    def behind_ms(self) -> int | None:
        return max((epoch.behind_ms for epoch in self.epochs if epoch.behind_ms is not None), default=None)


class LateCounts:
    """Counts late rows of all inputs. `clocks` are those of the job; `shares` is `watermark.lateWarning` of each (None
    or missing: `off`)."""

    def __init__(self, clocks: Mapping[str, InputClock], shares: Mapping[str, float | None]) -> None:
        self._clocks, self._shares = clocks, shares
        self._windows: dict[str, _Window] = {}
        self.active: Mapping[str, LateInput] = {}
        """By input, what is warned about now."""

    def learn(
        self, at_ms: int, records: Mapping[str, int], late: Mapping[str, int], behind: Mapping[str, int]
    ) -> tuple[LateInput, ...]:
        """Take an epoch's figures by input: `records` read, how many were `late`, and by how much the latest of them
        (ms). Returns what the epoch has given reason to warn about. `at_ms` is of a clock that does not go back. Late
        rows of a join count as records of the input, of which there may be fewer or none."""
        for name, read in records.items():
            count = max(read, late.get(name, 0))
            if count:
                epoch = _Epoch(at_ms, count, late.get(name, 0), behind.get(name))
                self._windows.setdefault(name, _Window()).add(epoch)
        before, warnings = self.active, dict[str, LateInput]()
        for name, window in self._windows.items():
            share = self._shares.get(name)
            if share is not None and window.late and window.late >= share * window.records:
                warnings[name] = LateInput.of(name, window.late, window.behind_ms, self._clocks[name], window.records)
        self.active = warnings
        return tuple(warning for name, warning in self.active.items() if name not in before)
