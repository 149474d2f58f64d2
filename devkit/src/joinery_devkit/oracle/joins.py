"""The oracle of a job: which rows every epoch must emit, and which arrivals it must drop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from joinery_devkit.oracle.asof import AsOfStep
from joinery_devkit.oracle.horizons import UNKNOWN, ChainTimes, Horizons, Time, as_time
from joinery_devkit.oracle.interval import IntervalStep
from joinery_devkit.oracle.model import (
    LEFT,
    RIGHT,
    AsOfRule,
    ByInput,
    Check,
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
from joinery_devkit.oracle.rows import END, Forget, Joined, Row, Values
from joinery_devkit.oracle.windows import FixedWindows, SessionWindows, WindowStep, unmatched
from joinery_runtime.job import StreamJoin

Watermarks = Mapping[str, int | None]
SideBatches = Mapping[str, Iterable[Row]]
Dropped = dict[str, Counter[str]]
Drops = tuple[Counter[str], Counter[str]]  # by side
Sides = tuple[Sequence[Joined], Sequence[Joined]]
LATE = "late"


@dataclass(frozen=True, slots=True)
class EpochExpectation:
    """What one epoch must do. `joined` are the rows that it makes, `rows` the same rows as they are emitted. `late` and
    `dropped` (by reason: null_key, filtered, expired) count rows per input; late rows of a step, which are no records,
    are among `dropped`. `unfit` counts rows of an aggregate that are dead letters (S7)."""

    joined: tuple[Joined, ...]
    rows: tuple[dict[str, Any], ...]
    late: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]
    unfit: int = 0


class Oracle:
    """The oracle. `inputs` are those of the job, in its order; `steps` are its chain. `aggregated`: the job aggregates
    what they make, so that none is its only step (J6)."""

    def __init__(
        self,
        inputs: Sequence[str],
        steps: Sequence[Step],
        columns: Sequence[Projection] = (),
        *,
        aggregated: bool = False,
    ) -> None:
        self.inputs, self.steps, self._columns = tuple(inputs), tuple(steps), tuple(columns)
        self._chain = _Chain(self.inputs, self.steps, aggregated=aggregated)

    @property
    def depth(self) -> int:
        """How many epochs it takes until what the first one closes has passed through all steps."""
        return len(self.steps)

    @property
    def handed_on(self) -> Mapping[str, Time]:
        """By input, the time from which on the last step still makes rows, as of the newest epoch (N3)."""
        return self._chain.handed_on

    @classmethod
    def of_job(
        cls,
        job: StreamJoin,
        *,
        filters: Mapping[str, Filter] | None = None,
        residual: Residual | None = None,
        predicates: Mapping[int, Predicates] | None = None,
        keeps: Mapping[int, Check] | None = None,
        computed: Mapping[str, Callable[[ByInput], Any]] | None = None,
        key_values: Mapping[str, Callable[[Values], Any]] | None = None,
        aggregated: bool = False,
    ) -> Oracle:
        """Return the oracle of a job. Its `where` must be given in Python, split as in the job's plan: `predicates` by
        step or, for a job of two inputs, `filters` by input and a `residual` on the columns of a left and a right row.
        `keeps` are the filters of steps, by step, if no earlier place can check them. `key_values` as in `steps_of`."""
        names = [side.name for side in job.spec.inputs]
        if predicates is None:
            left, right = names[0], names[1]
            both = None if residual is None else (lambda columns: residual(columns[left], columns[right]))
            checks = filters or {}
            predicates = {0: Predicates(_on(left, checks.get(left)), _on(right, checks.get(right)), both)}
        steps = steps_of(job, predicates, keeps, key_values)
        return cls(names, steps, output_columns(job, computed), aggregated=aggregated)

    def edit(self, edited: Oracle, forgotten: Mapping[int, Sequence[Collection[tuple[str, str]]]]) -> None:
        """Continue the job as the job of `edited` (M2). By step, and by side, `forgotten` are the columns (by input)
        that rows in the state lack."""
        self.steps, self._columns = edited.steps, edited._columns
        self._chain.edit(self.steps, [_forgetting(forgotten[number]) for number in range(len(self.steps))])

    def epoch(
        self, watermarks: Watermarks, rows: SideBatches, reached: Mapping[str, int] = MappingProxyType({})
    ) -> EpochExpectation:
        """Replay one epoch. `watermarks` are its plan's (None: not known yet), `rows` the readable rows per input.
        `reached` are the times up to which its plan says that inputs of an as-of join were read, where they are
        behind (A4)."""
        dropped: Dropped = {name: Counter() for name in self.inputs}
        listed = {name: sorted(rows.get(name, ()), key=lambda row: (row.partition, row.offset)) for name in self.inputs}
        joined_rows = tuple(self._chain.epoch(watermarks, listed, dropped, reached))
        late = {name: counts.pop(LATE, 0) for name, counts in dropped.items()}
        for name, count in self._chain.late_rows.items():
            dropped[name][LATE] += count
        return EpochExpectation(
            joined_rows, tuple(output_row(row, self._columns) for row in joined_rows), late, dropped
        )

    def asked_from(self, watermarks: Watermarks, name: str) -> tuple[Time, Time]:
        """For which times of the input waiting rows of as-of steps ask in an epoch with these watermarks (A2): none up
        to the first of these times, and some from the second on."""
        return self._chain.asked_from(name, ended=watermarks[name] == END)

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epochs that end all inputs (T7): what each step closes passes to the next step."""
        for _ in range(len(self.steps) + 1):
            yield self.epoch(dict.fromkeys(self.inputs, END), {})


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


class _Step(Protocol):
    """One step of a chain."""

    def edit(self, step: Step, forget: Forget) -> None:
        """Continue the step as this one."""

    def epoch(self, rows: Sides, keep_from: tuple[Time, Time], reached: Time, dropped: Drops) -> list[Joined]:
        """Take an epoch's rows of both sides, and return the joined rows. `dropped` counts by side, where the rows
        are records."""


class _Chain:
    """A chain of steps of any kinds."""

    def __init__(self, inputs: Sequence[str], steps: Sequence[Step], *, aggregated: bool) -> None:
        self._first, self._inputs, self._steps = inputs[0], inputs, steps
        self._only_step = len(steps) == 1 and not aggregated
        self._times = ChainTimes(self._first, steps)
        self._highest: dict[str, Time] = {}
        self.handed_on: Mapping[str, Time] = {}
        self.late_rows: Counter[str] = Counter()
        left: list[str] = [self._first]
        self._run: list[_Step] = []
        for step in steps:
            self._run.append(_run(step, tuple(left), self._first))
            left += [step.right] if step.emits_right else []

    def edit(self, steps: Sequence[Step], forgets: Sequence[Forget]) -> None:
        self._steps = steps
        self._times.edit(steps)
        for run, step, forget in zip(self._run, steps, forgets, strict=True):
            run.edit(step, forget)

    def epoch(
        self, watermarks: Watermarks, rows: Mapping[str, Sequence[Row]], dropped: Dropped, reached: Mapping[str, int]
    ) -> list[Joined]:
        """Take the readable rows of every input, ordered by (partition, offset), and count what it drops. `reached`
        has the times up to which inputs were read that are behind (A4)."""
        horizons = self._times.next(watermarks, self._highest, reached)
        self.handed_on = horizons.handed_on
        late_below = self._late_below(watermarks, horizons)
        records = {
            name: [
                joined_row
                for joined_row in (Joined({name: row}) for row in rows[name])
                if self._takes(name, joined_row, late_below, dropped)
            ]
            for name in self._inputs
        }
        left, left_drops = records[self._first], dropped[self._first]
        self.late_rows.clear()
        for run, step, keep_from in zip(self._run, self._steps, horizons.keep_from, strict=True):
            drops = (left_drops, dropped[step.right])
            joined = run.epoch((left, records[step.right]), keep_from, reached.get(step.right, math.inf), drops)
            if step is not self._steps[0]:
                self.late_rows[self._times.counted_from(step)] += left_drops[LATE]
            left = step.filtered(joined, dropped)
            left_drops = Counter()
        for name in self._inputs:  # they count from the next epoch on (T3)
            self._highest[name] = max([self._highest.get(name, UNKNOWN), *(row.ts for row in rows[name])])
        return left

    def asked_from(self, name: str, *, ended: bool) -> tuple[Time, Time]:
        """See `Oracle.asked_from`."""
        asking = [run.run for run in self._run if isinstance(run, _Versions) and run.run.stream == name]
        highest = math.inf if ended else self._highest.get(name, UNKNOWN)
        waited = min((run.waited for run in asking), default=math.inf)
        return waited, min((run.asked_from(highest - run.rule.grace) for run in asking), default=math.inf)

    def _takes(self, name: str, row: Joined, late_below: Mapping[str, Time], dropped: Dropped) -> bool:
        """Whether a record is neither dropped first of all, as one that cannot match on a side that is not preserved
        (J4), nor late (J6)."""
        step, side = self._reading(name)
        reason = None if step.preserved(side) else step.why_unjoinable(side, row)
        ts = row.time(name)
        assert ts is not None, "a row of an input has a time"
        if reason is None and ts < late_below[name]:
            reason = LATE
        if reason is not None:
            dropped[name][reason] += 1
        return reason is None

    def _reading(self, name: str) -> tuple[Step, int]:
        return next(((step, RIGHT) for step in self._steps if step.right == name), (self._steps[0], LEFT))

    def _late_below(self, watermarks: Watermarks, horizons: Horizons) -> dict[str, Time]:
        """By input, the time before which a record is late (J6): with a single inner step by what can still match, else
        by its own input. Only interval steps judge records so."""
        below = dict.fromkeys(self._inputs, UNKNOWN)
        for name in self._inputs:
            step, _ = self._reading(name)
            if isinstance(step.rule, IntervalRule) and not step.reopen:
                below[name] = horizons.accept_from[name]
                if self._only_step and step.type in {"inner", "semi"}:
                    reach = max(step.rule.upper, -step.rule.lower)
                    below[name] = min(map(as_time, watermarks.values())) - reach - step.allowed_lateness
        return below


def _run(step: Step, left: Sequence[str], first: str) -> _Step:
    match step.rule:
        case IntervalRule():
            return _Interval(IntervalStep(step, left, first))
        case WindowRule():
            return _Windowed([*left, step.right], step, FixedWindows(step, [*left, step.right], step.rule))
        case SessionRule():
            return _Windowed([*left, step.right], step, SessionWindows(step, [*left, step.right], step.rule))
        case AsOfRule():
            return _Versions(AsOfStep(step, step.left_input or first, step.rule))


@dataclass(frozen=True, slots=True)
class _Interval:
    """An interval step."""

    run: IntervalStep

    def edit(self, step: Step, forget: Forget) -> None:
        self.run.edit(step, forget)

    def epoch(self, rows: Sides, keep_from: tuple[Time, Time], reached: Time, dropped: Drops) -> list[Joined]:
        closed = self.run.close(keep_from)
        arrived = self.run.arrive(LEFT, rows[LEFT], keep_from)
        return [*closed, *arrived, *self.run.arrive(RIGHT, rows[RIGHT], keep_from)]


class _Windowed:
    """A window step."""

    def __init__(self, inputs: Sequence[str], step: Step, windows: WindowStep) -> None:
        self._inputs, self._step, self._windows = inputs, step, windows

    def edit(self, step: Step, forget: Forget) -> None:
        self._step = step
        self._windows.edit(step, forget)

    def epoch(self, rows: Sides, keep_from: tuple[Time, Time], reached: Time, dropped: Drops) -> list[Joined]:
        closed, _ = keep_from
        out = self._windows.close(closed)
        coming: tuple[list[Joined], list[Joined]] = ([], [])
        for side in (LEFT, RIGHT):
            for row in rows[side]:
                if self._step.why_unjoinable(side, row) is None:
                    coming[side].append(row)
                elif self._step.preserved(side):  # of other sides, only rows of a step come as far as this
                    out += self._pad_at_once(side, row, closed, dropped[side])
        for side, late in enumerate(self._windows.arrive(coming, closed)):
            dropped[side][LATE] += late
        return out

    def _pad_at_once(self, side: int, row: Joined, closed: float, dropped: Counter[str]) -> list[Joined]:
        """Pad a row at once, per window that is open (O2, W3); the row is late if none is open (W2)."""
        windows = self._windows
        open_windows = [window for window in windows.windows_of(side, row) if not windows.is_closed(window, closed)]
        dropped[LATE] += not open_windows
        return [unmatched(self._step, self._inputs, side, row, window) for window in open_windows]


@dataclass(frozen=True, slots=True)
class _Versions:
    """An as-of step."""

    run: AsOfStep

    def edit(self, step: Step, forget: Forget) -> None:
        assert isinstance(step.rule, AsOfRule), "a step stays of its kind (M2)"
        self.run.edit(step, step.rule, forget)

    def epoch(self, rows: Sides, keep_from: tuple[Time, Time], reached: Time, dropped: Drops) -> list[Joined]:
        """Return the table's rows come before stream rows, even before those that have waited (A4)."""
        self.run.begin(*keep_from, reached)
        for row in rows[RIGHT]:
            dropped[RIGHT]["expired"] += not self.run.version_arrives(row)
        return [*self.run.close(), *self.run.arrive(rows[LEFT])]
