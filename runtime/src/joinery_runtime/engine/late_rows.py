"""Warns about inputs of which many rows are dropped as late, with the `watermark.delay` that would have kept them.

One rule feeds the terminal, the job's page, `/status`, the metric behind the alert, the resource's condition and
`joinery verify`: `watermark.lateWarning` sets the share of an input's newest records that may be late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from joinery_runtime.engine.report import Totals
from joinery_runtime.job import Job
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.wording import agreeing, counted

LATE_RECORDS = 10_000
LATE_WINDOW_MS = 5 * 60_000
"""The newest records are the last LATE_RECORDS, or those of the last LATE_WINDOW_MS if these are more."""


@dataclass(frozen=True, slots=True)
class LateInput:
    """An input with `rows` that were dropped as late, of its newest `records` or (None) of all since the state began.
    The latest was `behind_ms` behind the watermark; with a `watermark.delay` of `delay_ms` none would have been
    dropped. Both are None if that is not known: a release without these figures counted the rows."""

    input: str
    rows: int
    behind_ms: int | None
    delay_ms: int | None
    records: int | None = None

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
            f"{format_duration(self.delay_ms)} of that input would have kept them all"
        )

    def document(self) -> dict[str, Any]:
        figures = {"input": self.input, "rows": self.rows, "behind_ms": self.behind_ms, "delay_ms": self.delay_ms}
        return figures if self.records is None else {**figures, "records": self.records}


def format_percent(share: float) -> str:
    """A share for people, with two digits: 0.52 %, 8.2 %, 82 %, 100 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def late_inputs(totals: Totals, delays: Mapping[str, int]) -> Iterator[LateInput]:
    """The inputs with late rows since the state began; `delays` are those of the job (ms)."""
    for name, delay in delays.items():
        if rows := totals.dropped.get(name, {}).get("late", 0):
            behind = totals.behind.get(name)
            yield LateInput(name, rows, behind, None if behind is None else delay + behind)


def delays_to_name(job: Job, totals: Totals, disorder: Mapping[str, int]) -> Iterator[str]:
    """Proposes a delay for inputs whose rows were out of order (`disorder`, ms) but for now not late, and that name no
    delay: with other epochs their rows may be."""
    for side in job.inputs:
        behind, late = disorder.get(side.name, 0), totals.dropped.get(side.name, {}).get("late", 0)
        if behind and not late and side.lacks_delay and side.name in job.inputs_without_lateness:
            yield (
                f"rows of {side.name} came up to {format_duration(behind)} out of order, and the job names no "
                "watermark.delay for them: with other epochs they may be late. watermark.delay: "
                f"{format_duration(behind)} of that input keeps them all"
            )


def closed_inputs(totals: Totals) -> Iterator[str]:
    """Words about the inputs with rows that fell inside sessions at their cap since the state began (S2)."""
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
    """Counts late rows of all inputs. `delays` are those of the job (ms); `shares` is `watermark.lateWarning` of each
    (None or missing: `off`)."""

    def __init__(self, delays: Mapping[str, int], shares: Mapping[str, float | None]) -> None:
        self._delays, self._shares = delays, shares
        self._windows: dict[str, _Window] = {}
        self.active: Mapping[str, LateInput] = {}
        """By input, what is warned about now."""

    @classmethod
    def of(cls, job: Job) -> LateCounts:
        delays = {side.name: side.watermark.delay for side in job.inputs}
        return cls(delays, {side.name: side.watermark.late_share for side in job.inputs})

    def learn(
        self, at_ms: int, records: Mapping[str, int], late: Mapping[str, int], behind: Mapping[str, int]
    ) -> tuple[LateInput, ...]:
        """Takes an epoch's figures by input: `records` read, how many were `late`, and by how much the latest of them
        (ms). Returns what the epoch has given reason to warn about. `at_ms` is of a clock that does not go back."""
        for name, count in records.items():
            if count:
                epoch = _Epoch(at_ms, count, late.get(name, 0), behind.get(name))
                self._windows.setdefault(name, _Window()).add(epoch)
        before, self.active = self.active, {warning.input: warning for warning in self._new_warnings()}
        return tuple(warning for name, warning in self.active.items() if name not in before)

    def _new_warnings(self) -> Iterator[LateInput]:
        for name, window in self._windows.items():
            share = self._shares.get(name)
            if share is not None and window.late and window.late >= share * window.records:
                behind = window.behind_ms
                delay = None if behind is None else self._delays[name] + behind
                yield LateInput(name, window.late, behind, delay, window.records)
