"""A job as the engine runs it: a `Pipeline` of steps, compiled once from the resource by `core.compile`.

`StepOperator` is everything that the engine asks of a kind of step; `core.kinds` has a module for each, and
`inspect.kinds` has what people read about it. Nothing else may know which kinds exist. docs/architecture.md gives an
overview. Durations and times are milliseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline.expression import ColumnRef, Expression
from joinery_runtime.core.pipeline.sides import FLAGS, LEFT, RIGHT, SESSIONS, Intake, OutputColumn, SideSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons, StateRun, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import BRANCH_END, OutputWatermarks, Times, Watermark, earlier
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.job.kinds.aggregate.model import AGGREGATE

Emits = Literal["pairs", "matched", "unmatched"]
"""What a step emits: pairs and padded rows, or of its left side alone the rows with a match (semi join) or those
without one (anti join)."""
Distance = Callable[[str, str], int | None]
"""Gives the c of `name.ts >= other.ts + c` for the inputs `name` and `other` of a joined row (N2); None: unbounded."""


# --- when a stored row leaves the state: stated once per side of a step -----------------------------------------------


@dataclass(frozen=True, slots=True)
class AcceptedRow:
    """A row that the job has taken in. `times` (int64[n], ascending) are the event times of all rows of its key, on all
    sides. `newer` is the event time of the next row of its own side, if any."""

    side: int
    ts: int
    times: np.ndarray
    newer: int | None = None


class RowTime(ABC):
    """The time of a row that decides when the row leaves: its event time, the end of its last window, ..."""

    __slots__ = ()

    by_event_time: ClassVar[bool] = True
    """Whether it follows from the row's event time alone, without other rows of the key."""

    @abstractmethod
    def time_of(self, row: AcceptedRow) -> int | None:
        """Return this time of a row; None: not known yet."""

    @abstractmethod
    def event_time_at(self, time: int) -> int:
        """Return the event time before which rows have a time before `time`; may have, if other rows decide too."""


@dataclass(frozen=True, slots=True)
class EventTime(RowTime):
    """The event time of a row decides."""

    def time_of(self, row: AcceptedRow) -> int | None:
        return row.ts

    def event_time_at(self, time: int) -> int:
        return time


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a side keeps a row: until `time` of the row is before the horizon of the side's part or, if `inclusive`,
    at it. `rule` is the id of the rule in docs/semantics.md that says so. `kept_for_ms` is for how long in event time a
    row is kept, watermark delays aside (None: event time does not decide)."""

    time: RowTime
    rule: str
    kept_for_ms: int | None = None
    inclusive: bool = False

    def keep_from(self, horizon: int) -> int | None:
        """Return the event time before which rows leave under the horizon; None: other rows decide too."""
        return self.time.event_time_at(horizon + self.inclusive) if self.time.by_event_time else None

    def may_leave_before(self, horizon: int) -> int:
        """Return the event time before which rows may leave under the horizon."""
        return self.time.event_time_at(horizon + self.inclusive)

    def has_ended(self, row: AcceptedRow, horizon: int | None) -> bool:
        """Tell whether the row leaves under the horizon."""
        time = self.time.time_of(row)
        return horizon is not None and time is not None and time < horizon + self.inclusive


# --- steps ------------------------------------------------------------------------------------------------------------


class StepOperator(ABC):
    """A kind of step with its durations. Methods are pure: no I/O, no clock, no randomness."""

    __slots__ = ()

    stateless: ClassVar[bool] = False
    """Whether no row is ever kept: the step has no part of the state, and no horizon."""
    judges_late_records: ClassVar[bool] = False
    """Whether only `run` can tell which records below `late_below` are late, because other rows decide too."""
    late_rule: ClassVar[str] = "rows are taken from {} on"
    """Why a record is late, for its dead letter. The braces stand for `late_below`."""

    @property
    @abstractmethod
    def allowed_lateness(self) -> int:
        """How much longer state is kept for rows behind the watermark (ms)."""

    # --- running ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        """Run the step for one shard in one epoch. The same arguments always give the same rows."""

    @abstractmethod
    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        """Whether `run` reads the stored rows of `side`. `arrived` says which sides have arrivals, `closing` whether
        rows may leave the state."""

    def sorts_by_offset(self, side: int) -> bool:
        """Whether rows of one key and event time must be sorted by offset (A1)."""
        return False

    def flagged_rows_leave(self, step: StepSpec) -> bool:
        """Whether a flagged row has left the state. If False, a flag says that the row has matched; the row stays."""
        return False

    # --- which rows are late, and how far the state is closed ---------------------------------------------------------

    def accept_from(self, step: StepSpec, watermarks: Mapping[str, Watermark]) -> tuple[int | None, ...]:
        """Per side, the lowest event time of an arriving record that is not late. None where nothing is late, or where
        `run` judges by the horizons. Rows from the previous step are never late (N2)."""
        return (None,) * len(step.sides)

    def complete_from(self, step: StepSpec, side: int, horizons: Sequence[Horizon]) -> int | None:
        """Return the event time before which an arriving row of the side may have partners that were evicted already
        (T10). None: no row may. `horizons` has one horizon per side."""
        return None

    @property
    def late_to_dead_letters(self) -> bool:
        """Whether late records go to the dead letters. They are judged by `late_below` as they are read."""
        return False

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """Return the lowest event time of a record of the side that is not late; None: none is."""
        return self.accept_from(step, watermarks)[side]

    def lowest_times(self, step: StepSpec, times: Times) -> OutputWatermarks:
        """For each input that this step reads, the lowest event time that may still arrive, late rows aside."""
        read = [side.time for side in step.sides if not side.intake.chained]
        return {name: earlier(times[name].watermark, self.allowed_lateness) for name in read}

    @abstractmethod
    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        """For each part of the state, the event time up to which it is closed, given the `times` of the inputs and the
        lowest times that may still arrive."""

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The least and the greatest `right.ts - left.ts` of a pair; None: unbounded."""
        return None

    @property
    def window_ends(self) -> tuple[int, int] | None:
        """The least and the greatest `end of a row's window - left.ts`; None: the step makes no windows, or unbounded
        ones."""
        return None

    def output_watermarks(
        self, step: StepSpec, lows: OutputWatermarks, horizons: Horizons, distance: Distance
    ) -> OutputWatermarks:
        """N3: for each time, the lowest event time that may still arrive or be emitted from the state. A time that
        nothing bounds is left out: later steps cannot count from it."""
        return lows

    # --- how long rows are kept ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def retention(self) -> tuple[Retention, ...]:
        """Per side, when its rows leave the state."""

    @abstractmethod
    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        """Whether an epoch that moves the horizon may emit rows of the segment although nothing arrives (T3)."""

    def needs(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        """Whether an epoch has to read the segment: it may hold a row that is kept or that the epoch closes."""
        return not self.expires(side, meta, horizon.previous)

    def expires(self, side: int, meta: SegmentMeta, horizon: int | None) -> bool:
        """Whether no row of the segment is kept under the horizon."""
        since = None if horizon is None else self.retention[side].keep_from(horizon)
        return since is not None and meta.ts_max < since

    def survivors(self, step: StepSpec, side: int, runs: Sequence[StateRun], horizon: Horizon) -> Sequence[StateRun]:
        """Return the rows that a compaction of one side's runs keeps under the current horizon: one run for each, in
        the same order, with its `flagged`."""
        since = None if horizon.current is None else self.retention[side].keep_from(horizon.current)
        flagged_leave, live_runs = self.flagged_rows_leave(step), list[StateRun]()
        for state_run in runs:
            live = np.ones(len(state_run.run), dtype=bool) if since is None else state_run.run.ts >= since
            if flagged_leave and state_run.flagged is not None:
                live = live & ~state_run.flags
            live_runs.append(state_run.where(live))
        return live_runs

    def live_rows(
        self, step: StepSpec, side: int, state_run: StateRun, horizon: Horizon, complete: int | None
    ) -> StateRun:
        """Return the rows of a stored run that remain once everything is closed up to this horizon, and sessions up to
        `complete`. Emitted rows that stay record that themselves, so the horizons may be lower afterwards."""
        (live_run,) = self.survivors(step, side, [state_run], horizon)
        return live_run

    def without_emitted(
        self, step: StepSpec, side: int, state_run: StateRun, horizon: Horizon, complete: int | None
    ) -> StateRun:
        """Those of `live_rows` that are not emitted again when the horizon rises once more after it has gone down."""
        return self.live_rows(step, side, state_run, horizon, complete)

    def half_closed(self, side: int, ts: np.ndarray, horizon: int) -> np.ndarray:
        """For rows at these event times (int64[n]), bool[n]: whether the horizon has closed one window that holds the
        row while another one is still open."""
        return np.zeros(len(ts), dtype=bool)

    def released_by(self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark]) -> set[str]:
        """Return the inputs whose progress lets rows of the side leave: by default those with the lowest watermark."""
        input_watermarks = {name: watermarks[name] for side_spec in step.sides for name in side_spec.inputs}
        lowest = min(input_watermarks.values(), key=lambda at: (at is not None, at))
        return {name for name, at in input_watermarks.items() if at == lowest}


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One join, or an aggregate, which has one side; its `output` has `step_column`s and expressions over these.

    `residual` is the part of the condition that needs both sides. For an as-of step it includes conditions on the table
    alone, because those must not hide a version. `output` holds the user's columns, or the next step's input."""

    number: int
    sides: tuple[SideSpec, ...]
    kind: StepOperator
    residual: Expression | None
    output: tuple[OutputColumn, ...]
    emits: Emits = "pairs"
    filter: Expression | None = None
    """The condition on the rows that the step makes (J11). Of an aggregate `having`: on its groups, aggregates and
    columns of windows, by the names of its step columns (G7)."""
    changelog_key: tuple[str, ...] | None = None
    """The step columns by which a row replaces an earlier one (G9); None: rows are only appended."""
    window_times: pa.DataType = field(default_factory=pa.int64)
    """The type that the times of windows have in expressions, where they are columns without an input (W4, G11)."""

    def output_schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type) for c in self.output])

    def locate_column(self, ref: ColumnRef) -> tuple[int, str]:
        """Return the side that holds an input's column, and the column's name in that side's batches."""
        side = RIGHT if ref.input in self.sides[-1].inputs and len(self.sides) > 1 else LEFT
        return side, self.sides[side].intake.name_of(ref)

    def side_name(self, side: int) -> str:
        """Return the name of a side in messages: `step 2, left side (orders, payments)`."""
        if len(self.sides) == 1:
            sessions = f"the sessions of {self.sides[side].time}"
            part, _, _ = self.sides[side].part.partition(".")
            words = "the aggregate" if part == AGGREGATE else part
            return sessions if part == SESSIONS else f"step {self.number + 1}, {words}"
        name = "left" if side == LEFT else "right"
        return f"step {self.number + 1}, {name} side ({', '.join(self.sides[side].inputs)})"

    @property
    def stored_sides(self) -> Sequence[tuple[int, SideSpec]]:
        """The sides of which the state has a part, with their numbers."""
        return () if self.kind.stateless else tuple(enumerate(self.sides))

    @property
    def broadcast(self) -> bool:
        """Whether the step is a join on time only, without keys (J9)."""
        return any(side.broadcast for side in self.sides)


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """A branch of a union, an input that is read by itself. `event_time` is its own column. `columns` are the columns
    of the union that depend on its records, each with the name that messages give it: the branch's column, or the
    union's if it is computed."""

    name: str
    event_time: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The step and side that read an input. A union has `branches`."""

    name: str
    step: int
    side: int
    branches: tuple[BranchSpec, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of what is read: the input, or the branches of a union."""
        return tuple(branch.name for branch in self.branches) or (self.name,)

    def branch_of(self, topic: str) -> BranchSpec | None:
        """Return the branch that a topic or file belongs to, None if this is no union."""
        name = topic.partition(BRANCH_END)[0]
        return next((branch for branch in self.branches if branch.name == name), None)

    def source(self, topic: str) -> str:
        """Return the name of what is read: the input, or the branch of this union that has the topic or file."""
        branch = self.branch_of(topic)
        return self.name if branch is None else branch.name


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A job: `steps[k]` takes the output of `steps[k - 1]` as its left or only side. `inputs` are in the job's
    order."""

    inputs: tuple[InputSpec, ...]
    steps: tuple[StepSpec, ...]

    @property
    def last(self) -> StepSpec:
        return self.steps[-1]

    @property
    def finds_late_records(self) -> bool:
        """Whether a step finds late records for the dead letters after the records have been read."""
        return any(step.kind.late_to_dead_letters and step.kind.judges_late_records for step in self.steps)

    def input(self, name: str) -> InputSpec:
        return next(input_spec for input_spec in self.inputs if input_spec.name == name)

    def source(self, name: str, topic: str) -> str:
        """Return the name of what is read: the input `name`, or the branch of this union that has the topic or file."""
        return self.input(name).source(topic)

    def branch(self, source: str) -> BranchSpec | None:
        """Return the branch of this name, None if `source` is an input that is no branch."""
        return next((part for spec in self.inputs for part in spec.branches if part.name == source), None)

    def message_name(self, source: str, column: str) -> str:
        """Return how a message about `source` names a column of its input or union."""
        branch = self.branch(source)
        return column if branch is None else branch.columns.get(column, column)

    def intake(self, name: str) -> Intake:
        input_spec = self.input(name)
        return self.steps[input_spec.step].sides[input_spec.side].intake

    def side(self, part: str) -> tuple[StepSpec, int]:
        """Return the step and side that a part of the state, or a part of flags, belongs to."""
        rows_part = part.removesuffix(FLAGS)
        return next((step, i) for step in self.steps for i, side in enumerate(step.sides) if side.part == rows_part)

    def parts(self) -> Mapping[str, SideSpec]:
        """Return the sides by the part of the state that each keeps."""
        return {side.part: side for step in self.steps for _, side in step.stored_sides}

    def output_schema(self) -> pa.Schema:
        return self.last.output_schema()
