"""A job as the engine runs it: a `Pipeline` of steps, compiled once from the resource by `core.compile`.

`Kind` is all that the engine and the command line ask of a kind of step; `core.kinds` has a module for each. Nothing
else may know which kinds there are. docs/architecture.md tells the story. Durations and times are milliseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline.describe import Outlook, Shown, Span, StoredRows, Summary, TakenRow, ToJson
from joinery_runtime.core.pipeline.expression import ColumnRef, Expression
from joinery_runtime.core.pipeline.sides import LEFT, MARKS, RIGHT, Intake, OutputColumn, SideSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons, KeptRun, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import Lows, Times, Watermark, earlier
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.job.model.wording import counted

Distance = Callable[[str, str], int]
"""The c of `name.ts >= other.ts + c`, of the inputs `name` and `other` of a row that was joined (N2)."""


class Kind(ABC):
    """A kind of step, with its durations. Methods are pure: no I/O, no clock, no randomness."""

    __slots__ = ()

    marked_rows_leave: ClassVar[bool] = False
    """Whether a row that is marked has left the state. Else its mark says that it has matched, and it stays."""
    summary_columns: ClassVar[tuple[str, ...]] = ()
    """The columns of all stored rows that `summary` wants; none: there is no summary."""
    judges_late_records: ClassVar[bool] = False
    """Whether only `run` can tell which of the records below `late_below` are late: other rows decide, too."""
    late_rule: ClassVar[str] = "rows are taken from {} on"
    """Why a record is late, for its dead letter; the braces stand for `late_below`."""

    @property
    @abstractmethod
    def allowed_lateness(self) -> int: ...

    # --- running ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        """The step of one shard in one epoch; the same arguments give the same rows, however often."""

    @abstractmethod
    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        """Whether `run` looks at what is kept of `side`: which sides have arrivals, and whether rows may leave."""

    def sorts_by_offset(self, side: int) -> bool:
        """Whether rows of one key and time must stand in the order of their offsets (A1)."""
        return False

    # --- which rows are late, and how far the state is closed ---------------------------------------------------------

    def accept_from(self, step: StepSpec, watermarks: Mapping[str, Watermark]) -> tuple[int | None, ...]:
        """Per side, the lowest event time of an arriving record that is not late; None where nothing is, or where `run`
        judges by the horizons. Rows of the step before never are late (N2)."""
        return (None,) * len(step.sides)

    def complete_from(self, step: StepSpec, side: int, horizons: Sequence[Horizon]) -> int | None:
        """An arriving row of the side from before this event time may come when partners of it have left the state
        already (T10); None: no row does. `horizons` are those of the sides."""
        return None

    @property
    def late_to_dead_letters(self) -> bool:
        """Whether late records go to the dead letters: they are judged by `late_below` as they are read."""
        return False

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """The lowest event time of a record of the side that is not late; None: none is."""
        return self.accept_from(step, watermarks)[side]

    def lowest_times(self, step: StepSpec, times: Times) -> Lows:
        """The lowest event time that may still come, late rows apart, of each input that this step reads."""
        read = [side.time for side in step.sides if not side.intake.chained]
        return {name: earlier(times[name].watermark, self.allowed_lateness) for name in read}

    @abstractmethod
    def horizons(self, step: StepSpec, times: Times, lows: Lows) -> Mapping[str, int | None]:
        """By part of the state: up to which event time it is closed, given `times` of the inputs and the lowest times
        that may still come."""

    @property
    def bounds(self) -> tuple[int, int] | None:
        """What `right.ts - left.ts` of a pair is at least and at most; None: nothing bounds it."""
        return None

    def handed_on(self, step: StepSpec, lows: Lows, found: Horizons, distance: Distance) -> Lows:
        """N3: for each time, the lower of what may still come in and what may still go out from the state."""
        return lows

    # --- how long rows are kept ---------------------------------------------------------------------------------------

    @abstractmethod
    def keep_from(self, side: int, horizon: int) -> int | None:
        """Rows with event times before this are let go under the horizon; None: no event time tells."""

    @abstractmethod
    def kept_for_ms(self, side: int) -> int | None:
        """For how long of event time a row is kept, apart from watermark delays; None: no event time ends it."""

    @abstractmethod
    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        """Whether an epoch that moves the horizon may emit rows of the segment although nothing arrives (T3)."""

    def needs(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        """Whether an epoch has to see the segment: it may hold a row that is kept, or one that is closed."""
        return not self.expires(side, meta, horizon.previous)

    def expires(self, side: int, meta: SegmentMeta, horizon: int | None) -> bool:
        """Whether no row of the segment is kept under the horizon."""
        since = None if horizon is None else self.keep_from(side, horizon)
        return since is not None and meta.ts_max < since

    def survivors(self, step: StepSpec, side: int, runs: Sequence[KeptRun], horizon: Horizon) -> Sequence[KeptRun]:
        """Which rows of runs of one side a compaction keeps, under the horizon that is in force: a run for each, sorted
        as it was; `marked` goes with them."""
        since = None if horizon.current is None else self.keep_from(side, horizon.current)
        return [kept.where(self._there(kept, since)) for kept in runs]

    def live_rows(self, step: StepSpec, side: int, kept: KeptRun, horizon: Horizon, complete: int | None) -> KeptRun:
        """The rows of a stored run that are not gone where all is closed up to this horizon, and sessions up to
        `complete`: rows that have gone out and stay say so themselves, however low the horizons are from then on."""
        (found,) = self.survivors(step, side, [kept], horizon)
        return found

    def half_closed(self, side: int, ts: np.ndarray, horizon: int) -> np.ndarray:
        """bool[n] of rows at these event times (int64[n]): whether what is closed under the horizon has let the row
        out, and something else will."""
        return np.zeros(len(ts), dtype=bool)

    def _there(self, kept: KeptRun, since: int | None) -> np.ndarray:
        there = np.ones(len(kept.run), dtype=bool) if since is None else kept.run.ts >= since
        if self.marked_rows_leave:
            there = there & ~kept.marks
        return there

    def released_by(self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark]) -> set[str]:
        """The inputs that have to go on so that rows of the side leave: here those with the lowest watermark."""
        known = {name: watermarks[name] for each in step.sides for name in each.inputs}
        lowest = min(known.values(), key=lambda at: (at is not None, at))
        return {name for name, at in known.items() if at == lowest}

    # --- for people ---------------------------------------------------------------------------------------------------

    merges_rows: ClassVar[bool] = False
    """Whether the state has no rows, but what was made of several: `spans`."""

    def spans(self, shown: Sequence[Shown]) -> Sequence[Span]:
        """Of all that is stored of a key."""
        return ()

    def side_text(self, step: StepSpec, side: int) -> str:
        """A side in words: `step 2, left side (orders, payments)`."""
        name = "left" if side == LEFT else "right"
        return f"step {step.number + 1}, {name} side ({', '.join(step.sides[side].inputs)})"

    def may_go_before(self, side: int, horizon: int) -> int | None:
        """Rows with event times before this may be let go; None: none is."""
        return self.keep_from(side, horizon)

    @abstractmethod
    def next_epoch_text(self, step: StepSpec, side: int, horizons: Horizons) -> str:
        """What an epoch with these horizons closes on a side, which has one: `closes windows that end at ...`."""

    @abstractmethod
    def shown(self, step: StepSpec, stored: Sequence[StoredRows], outlook: Outlook, to_json: ToJson) -> Sequence[Shown]:
        """What is stored of one key, each with what is still to come for it."""

    @abstractmethod
    def leaves_by(self, side: int) -> str:
        """The rule that says when a row of the side is gone, as docs/semantics.md names it."""

    @abstractmethod
    def has_left(self, step: StepSpec, row: TakenRow, horizon: int | None) -> bool:
        """Whether the row is gone in an epoch with this horizon of its part."""

    @abstractmethod
    def leaves_when(self, step: StepSpec, row: TakenRow, outlook: Outlook) -> str:
        """What has to be so before the row is gone: `the watermark of payments (...) is above ...`."""

    def count_text(self, shown: Sequence[Shown]) -> str:
        return counted(len(shown), "row")

    def summary(self, step: StepSpec, rows: pa.Table, outlook: Outlook) -> Summary | None:
        """`rows` are `summary_columns` of all rows that have not left."""
        return None


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One join, or the sessions of one input: then there is one side, and each column of `output` is `made`.

    `residual` is what both sides decide together; of an as-of step it includes what only the table can decide, since
    that must not hide a version. `output` are the user's columns, or what the next step takes in."""

    number: int
    sides: tuple[SideSpec, ...]
    kind: Kind
    residual: Expression | None
    output: tuple[OutputColumn, ...]

    def output_schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type) for c in self.output])

    def place_of(self, ref: ColumnRef) -> tuple[int, str]:
        """Which side holds an input's column, and its name in that side's batches."""
        side = RIGHT if ref.input in self.sides[RIGHT].inputs else LEFT
        return side, self.sides[side].intake.name_of(ref)

    @property
    def broadcast(self) -> bool:
        """A join on time only, without keys (J9)."""
        return any(side.broadcast for side in self.sides)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Which side of which step reads an input."""

    name: str
    step: int
    side: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A job: `steps[k]` takes the output of `steps[k - 1]` as its left side. `inputs` are in the job's order."""

    inputs: tuple[InputSpec, ...]
    steps: tuple[StepSpec, ...]

    @property
    def last(self) -> StepSpec:
        return self.steps[-1]

    @property
    def finds_late_records(self) -> bool:
        """Whether a step finds dead letters, after the records have been read."""
        return any(step.kind.late_to_dead_letters and step.kind.judges_late_records for step in self.steps)

    def input(self, name: str) -> InputSpec:
        return next(found for found in self.inputs if found.name == name)

    def intake(self, name: str) -> Intake:
        found = self.input(name)
        return self.steps[found.step].sides[found.side].intake

    def side(self, part: str) -> tuple[StepSpec, int]:
        """The step and side that a part of the state belongs to (also for its marks)."""
        wanted = part.removesuffix(MARKS)
        return next((step, i) for step in self.steps for i, side in enumerate(step.sides) if side.part == wanted)

    def parts(self) -> Mapping[str, SideSpec]:
        return {side.part: side for step in self.steps for side in step.sides}

    def output_schema(self) -> pa.Schema:
        return self.last.output_schema()
