"""The oracle of a job: which rows every epoch must emit, and which arrivals it must drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from joinery_devkit.oracle.asof import AsOfStep
from joinery_devkit.oracle.horizons import UNKNOWN, ChainTimes, Horizons, Time, as_time, bound
from joinery_devkit.oracle.interval import IntervalStep
from joinery_devkit.oracle.model import (
    LEFT,
    RIGHT,
    AsOfRule,
    ByInput,
    Filter,
    IntervalRule,
    Predicates,
    Projection,
    Residual,
    SessionRule,
    Step,
    WindowRule,
    output_columns,
    output_row,
    steps_of,
)
from joinery_devkit.oracle.rows import END, Forget, Joined, Row
from joinery_devkit.oracle.windows import FixedWindows, SessionWindows, WindowStep, unmatched
from joinery_runtime.job import StreamJoin

Watermarks = Mapping[str, int | None]
SideBatches = Mapping[str, Iterable[Row]]
Dropped = dict[str, Counter[str]]
LATE = "late"


@dataclass(frozen=True, slots=True)
class EpochExpectation:
    """What one epoch must do. `joined` are the rows that it makes, `rows` the same rows as they are emitted. `late` and
    `dropped` (by reason: null_key, filtered, expired) count rows per input."""

    joined: tuple[Joined, ...]
    rows: tuple[dict[str, Any], ...]
    late: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]


class _Rules(Protocol):
    """The rules of one kind of job. `epoch` takes the readable rows of every input, ordered by (partition, offset), and
    counts what it drops. `reached` has the times up to which inputs were read that are behind (A4)."""

    def epoch(
        self, watermarks: Watermarks, rows: Mapping[str, Sequence[Row]], dropped: Dropped, reached: Mapping[str, int]
    ) -> list[Joined]: ...

    def edit(self, steps: Sequence[Step], forgets: Sequence[Forget]) -> None:
        """Continues the job with these steps; `forgets` has one function for each."""


class Oracle:
    """The oracle. `inputs` are those of the job, in its order; `steps` are a chain of interval steps, or one step of
    another kind."""

    def __init__(self, inputs: Sequence[str], steps: Sequence[Step], columns: Sequence[Projection] = ()) -> None:
        self.inputs, self.steps, self._columns = tuple(inputs), tuple(steps), tuple(columns)
        self._rules = _rules(self.inputs, self.steps)

    @property
    def depth(self) -> int:
        """How many epochs it takes until what the first one closes has passed through all steps."""
        return len(self.steps)

    @classmethod
    def of_job(
        cls,
        job: StreamJoin,
        *,
        filters: Mapping[str, Filter] | None = None,
        residual: Residual | None = None,
        predicates: Mapping[int, Predicates] | None = None,
        computed: Mapping[str, Callable[[ByInput], Any]] | None = None,
    ) -> Oracle:
        """The oracle of a job. Its `where` must be given in Python, split as in the job's plan: `predicates` by step
        or, for a job of two inputs, `filters` by input and a `residual` on the columns of a left and a right row."""
        names = [side.name for side in job.spec.inputs]
        by_step = predicates if predicates is not None else {0: _predicates(names, filters or {}, residual)}
        return cls(names, steps_of(job, by_step), output_columns(job, computed))

    def edit(self, edited: Oracle, forgotten: Mapping[int, Sequence[Collection[tuple[str, str]]]]) -> None:
        """Continues the job as the job of `edited` (M2). By step, and by side, `forgotten` are the columns (by input)
        that rows in the state lack."""
        self.steps, self._columns = edited.steps, edited._columns
        self._rules.edit(self.steps, [_forgetting(forgotten[number]) for number in range(len(self.steps))])

    def epoch(
        self, watermarks: Watermarks, rows: SideBatches, reached: Mapping[str, int] = MappingProxyType({})
    ) -> EpochExpectation:
        """Replays one epoch. `watermarks` are its plan's (None: not known yet), `rows` the readable rows per input.
        `reached` are the times up to which its plan says that inputs of an as-of join were read, where they are
        behind (A4)."""
        dropped: Dropped = {name: Counter() for name in self.inputs}
        listed = {name: sorted(rows.get(name, ()), key=lambda row: (row.partition, row.offset)) for name in self.inputs}
        joined_rows = tuple(self._rules.epoch(watermarks, listed, dropped, reached))
        late = {name: counts.pop(LATE, 0) for name, counts in dropped.items()}
        return EpochExpectation(
            joined_rows, tuple(output_row(row, self._columns) for row in joined_rows), late, dropped
        )

    def asked_from(self, watermarks: Watermarks) -> tuple[Time, Time]:
        """For which times an as-of step's waiting rows ask in an epoch with these watermarks (A2): none up to the first
        of these times, and some from the second on."""
        assert isinstance(self._rules, _Versions), "only rows of an as-of step ask for versions"
        return self._rules.run.waited, self._rules.run.asked_from(ended=watermarks[self.inputs[0]] == END)

    def end(self) -> Iterator[EpochExpectation]:
        """Yields the epochs that end all inputs (T7): what each step closes passes to the next step."""
        for _ in range(len(self.steps) + 1):
            yield self.epoch(dict.fromkeys(self.inputs, END), {})


def _predicates(names: Sequence[str], filters: Mapping[str, Filter], residual: Residual | None) -> Predicates:
    left, right = names[0], names[1]
    both = None if residual is None else (lambda columns: residual(columns[left], columns[right]))
    return Predicates(_on(left, filters.get(left)), _on(right, filters.get(right)), both)


def _on(name: str, check: Filter | None) -> Callable[[ByInput], bool | None] | None:
    return None if check is None else lambda columns: check(columns[name])


def _forgetting(columns: Sequence[Collection[tuple[str, str]]]) -> Forget:
    def forget(side: int, joined_row: Joined) -> Joined:
        rows = dict(joined_row.rows)
        for name, column in columns[side]:
            row = rows[name]
            if row is not None:
                rows[name] = replace(row, values={**row.values, column: None})
        return replace(joined_row, rows=rows)

    return forget


def _rules(inputs: Sequence[str], steps: Sequence[Step]) -> _Rules:
    step = steps[0]
    match step.rule:
        case IntervalRule():
            return _Chain(inputs, steps)
        case WindowRule():
            return _Windowed(inputs, step, FixedWindows(step, inputs, step.rule))
        case SessionRule():
            return _Windowed(inputs, step, SessionWindows(step, inputs, step.rule))
        case AsOfRule():
            return _Versions(inputs, AsOfStep(step, inputs[0], step.rule))


def _joinable(step: Step, side: int, row: Joined, dropped: Counter[str]) -> bool:
    """Whether a row can be joined. On a side that is not preserved, a row that cannot match is dropped first of all
    (J4)."""
    reason = None if step.preserved(side) else step.why_unjoinable(side, row)
    if reason is not None:
        dropped[reason] += 1
    return reason is None


class _Chain:
    """A chain of interval steps, or a single one."""

    def __init__(self, inputs: Sequence[str], steps: Sequence[Step]) -> None:
        self._first, self._inputs, self._steps = inputs[0], inputs, steps
        self._times = ChainTimes(self._first, steps)
        left: list[str] = [self._first]
        self._run: list[IntervalStep] = []
        for step in steps:
            self._run.append(IntervalStep(step, tuple(left), self._first))
            left += [step.right] if step.emits_right else []

    def edit(self, steps: Sequence[Step], forgets: Sequence[Forget]) -> None:
        self._steps = steps
        self._times.edit(steps)
        for run, step, forget in zip(self._run, steps, forgets, strict=True):
            run.edit(step, forget)

    def epoch(
        self, watermarks: Watermarks, rows: Mapping[str, Sequence[Row]], dropped: Dropped, reached: Mapping[str, int]
    ) -> list[Joined]:
        horizons = self._times.next(watermarks)
        accepted = {
            name: [
                row
                for row in map(_to_joined(name), rows[name])
                if self._takes(name, row, watermarks, horizons, dropped)
            ]
            for name in self._inputs
        }
        left = accepted[self._first]
        for run, keep_from in zip(self._run, horizons.keep_from, strict=True):
            closed = run.close(keep_from)
            arrived = run.arrive(LEFT, left, keep_from)
            left = [*closed, *arrived, *run.arrive(RIGHT, accepted[run.step.right], keep_from)]
        return left

    def _takes(self, name: str, row: Joined, watermarks: Watermarks, horizons: Horizons, dropped: Dropped) -> bool:
        step, side = next(((s, RIGHT) for s in self._steps if s.right == name), (self._steps[0], LEFT))
        if not _joinable(step, side, row, dropped[name]):
            return False
        late = not step.reopen and self._is_late(name, row, watermarks, horizons)
        dropped[name][LATE] += late
        return not late

    def _is_late(self, name: str, row: Joined, watermarks: Watermarks, horizons: Horizons) -> bool:
        """Whether a row is late (J6): with a single inner step by what can still match, else by its own input."""
        ts, step = row.time(name), self._steps[0]
        assert ts is not None, "a row of an input has a time"
        if len(self._steps) > 1 or step.type not in {"inner", "semi"}:
            return ts < horizons.accept_from[name]
        lower, upper, _ = bound(step, self._first)
        lowest = min(as_time(watermark) for watermark in watermarks.values())
        return ts + max(upper, -lower) + step.allowed_lateness < lowest


class _Windowed:
    """One window step."""

    def __init__(self, inputs: Sequence[str], step: Step, windows: WindowStep) -> None:
        self._inputs, self._step, self._windows = inputs, step, windows
        self._closed = UNKNOWN

    def edit(self, steps: Sequence[Step], forgets: Sequence[Forget]) -> None:
        (self._step,), (forget,) = steps, forgets
        self._windows.edit(self._step, forget)

    def epoch(
        self, watermarks: Watermarks, rows: Mapping[str, Sequence[Row]], dropped: Dropped, reached: Mapping[str, int]
    ) -> list[Joined]:
        now = min(as_time(watermarks[name]) for name in self._inputs) - self._step.allowed_lateness
        closed = self._closed = max(self._closed, now)  # also after an edit
        out = self._windows.close(closed)
        coming: tuple[list[Joined], list[Joined]] = ([], [])
        for side, name in enumerate(self._inputs):
            for row in map(_to_joined(name), rows[name]):
                if not _joinable(self._step, side, row, dropped[name]):
                    continue
                if self._step.why_unjoinable(side, row) is None:
                    coming[side].append(row)
                else:
                    out += self._pad_at_once(side, row, closed, dropped[name])
        for name, late in zip(self._inputs, self._windows.arrive(coming, closed), strict=True):
            dropped[name][LATE] += late
        return out

    def _pad_at_once(self, side: int, row: Joined, closed: float, dropped: Counter[str]) -> list[Joined]:
        """Pads a row at once, per window that is open (O2, W3); the row is late if none is open (W2)."""
        windows = self._windows
        open_windows = [window for window in windows.windows_of(row) if not windows.is_closed(window, closed)]
        dropped[LATE] += not open_windows
        return [unmatched(self._step, self._inputs, side, row, window) for window in open_windows]


class _Versions:
    """One as-of step."""

    def __init__(self, inputs: Sequence[str], run: AsOfStep) -> None:
        self._inputs, self.run = inputs, run

    def edit(self, steps: Sequence[Step], forgets: Sequence[Forget]) -> None:
        (step,), (forget,) = steps, forgets
        assert isinstance(step.rule, AsOfRule), "a step stays of its kind (M2)"
        self.run.edit(step, step.rule, forget)

    def epoch(
        self, watermarks: Watermarks, rows: Mapping[str, Sequence[Row]], dropped: Dropped, reached: Mapping[str, int]
    ) -> list[Joined]:
        """Replays one epoch. The table's rows come before stream rows, even before those that have waited (A4)."""
        run, (stream, table) = self.run, self._inputs
        if watermarks[stream] == END:
            run.end_stream()
        run.begin(reached)
        for row in map(_to_joined(table), rows[table]):
            if _joinable(run.step, RIGHT, row, dropped[table]) and not run.version_arrives(row):
                dropped[table]["expired"] += 1
        coming = [
            row for row in map(_to_joined(stream), rows[stream]) if _joinable(run.step, LEFT, row, dropped[stream])
        ]
        out = [*run.close(), *run.arrive(coming)]
        run.settle(rows[stream], rows[table])
        return out


def _to_joined(name: str) -> Callable[[Row], Joined]:
    return lambda row: Joined({name: row})
