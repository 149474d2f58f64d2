"""What the core needs to know of a job: plain values, compiled once from the resource by `core.compile`.

A `Pipeline` is a chain of steps; docs/architecture.md tells the story. Durations and times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

import pyarrow as pa

from joinery_runtime.core.pipeline.expression import ColumnRef, Expression
from joinery_runtime.core.table.columns import DELETED_FIELD, ENGINE_FIELDS, JOINABLE_FIELD, MARK_FIELD, SESSION_FIELDS

LEFT: Final = 0
RIGHT: Final = 1
SIDES: Final = (LEFT, RIGHT)

# Watermark of an input that has ended (rule T7); printed as it is.
END_OF_TIME: Final = 2**63 - 1
BEGIN_OF_TIME: Final = -(2**63)

Watermark = int | None  # None: nothing known yet

MARKS: Final = ".marks"  # after a part's name: its marks
SESSIONS: Final = "sessions"  # the part of the state of a job of sessions
COMPLETE: Final = "sessions.complete"  # the horizon behind which sessions have gone out (S5)

WINDOW_COLUMNS: Final = ("window_start", "window_end")  # rule W4: after the user's columns, int64 milliseconds


def clamp(ts: int) -> int:
    """Arithmetic on watermarks stays in int64: the end of time stays the end, whatever is taken off it."""
    return END_OF_TIME if ts >= END_OF_TIME else max(BEGIN_OF_TIME, ts)


def earlier(watermark: Watermark, by_ms: int) -> Watermark:
    """`watermark - by_ms`; END_OF_TIME is infinite."""
    if watermark is None or watermark == END_OF_TIME:
        return watermark
    return clamp(watermark - by_ms)


class Placement(Enum):
    """Which shard gets a row: that of its key's hash; any (time-only joins, the side that is not broadcast); all."""

    BY_KEY = "by key"
    SPREAD = "spread"
    EVERYWHERE = "everywhere"


@dataclass(frozen=True, slots=True)
class Intake:
    """How decoded rows, or rows of the step before, become prepared rows of a side.

    `schema` is what comes in, `event_time` the column that becomes `$ts`, `keys` the key columns in the step's order,
    `stored` the user columns that go on, `predicate` what only this side can decide. `preserved`: rows that cannot
    match go on, with `$joinable` false. `table`: rows are versions and carry `$deleted`. `chained`: what comes in was
    made by the step before, with columns called `<input>.<column>`. `computed` are columns of the schema, its last
    ones, that expressions make of the others. `grouped`: keys are groups, where NULL and NaN are values like others.
    """

    schema: pa.Schema
    event_time: str
    keys: tuple[str, ...]
    stored: tuple[str, ...]
    predicate: Expression | None = None
    preserved: bool = False
    table: bool = False
    placement: Placement = Placement.BY_KEY
    chained: bool = False
    computed: tuple[tuple[str, Expression], ...] = ()
    grouped: bool = False

    def name_of(self, ref: ColumnRef) -> str:
        """How an input's column is called in batches of this side."""
        return str(ref) if self.chained else ref.column

    def prepared_schema(self) -> pa.Schema:
        added = [JOINABLE_FIELD] * self.preserved + [DELETED_FIELD] * self.table
        return pa.schema([*ENGINE_FIELDS, *added, *self._stored_fields()])

    def _stored_fields(self) -> list[pa.Field]:
        return [self.schema.field(name) for name in self.stored]


@dataclass(frozen=True, slots=True)
class SideSpec:
    """One side of a step. `part` names its rows in the state; `inputs` whose columns they carry (one, or those of all
    steps before); `time` is the input whose event time is `$ts`, which the step's bound counts from; `marks`: rows of
    this part have marks; `state` are the columns of its segments where they are no prepared rows."""

    part: str
    inputs: tuple[str, ...]
    time: str
    intake: Intake
    marks: bool = False
    state: pa.Schema | None = None

    @property
    def preserved(self) -> bool:
        return self.intake.preserved

    @property
    def broadcast(self) -> bool:
        return self.intake.placement is Placement.EVERYWHERE

    @property
    def marks_part(self) -> str:
        return self.part + MARKS

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns of segments beside the engine's own: a user's, or of sessions groups and accumulators."""
        if self.state is None:
            return self.intake.stored
        own = {field.name for field in (*ENGINE_FIELDS, MARK_FIELD, *SESSION_FIELDS)}
        return tuple(name for name in self.state.names if name not in own)

    def segment_schema(self) -> pa.Schema:
        """Columns of this part's segments."""
        if self.state is not None:
            return self.state
        prepared = self.intake.prepared_schema()
        kept = [prepared.field(i) for i in range(len(prepared)) if prepared.field(i) != JOINABLE_FIELD]
        engine = len(ENGINE_FIELDS)
        return pa.schema([*kept[:engine], *([MARK_FIELD] if self.marks else []), *kept[engine:]])


@dataclass(frozen=True, slots=True)
class Interval:
    """`right.ts - left.ts` in [lower, upper]. `drop_late` False is `lateData: reopen` (J7). `lenient`: the job is one
    inner interval step, whose lateness is J6's first formula."""

    lower: int
    upper: int
    allowed_lateness: int = 0
    drop_late: bool = True
    lenient: bool = True

    def partner_bounds(self, side: int) -> tuple[int, int]:
        """A row of `side` at ts matches rows of the other in [ts + first, ts + second]."""
        return (self.lower, self.upper) if side == LEFT else (-self.upper, -self.lower)


@dataclass(frozen=True, slots=True)
class TumblingWindow:
    """Windows [n * slide, n * slide + size) of event time; tumbling where slide is size."""

    size: int
    slide: int
    allowed_lateness: int = 0


@dataclass(frozen=True, slots=True)
class SessionGap:
    """Sessions formed by the rows of both sides together, per key: consecutive ones are <= gap apart (W1, S1)."""

    gap: int
    allowed_lateness: int = 0


@dataclass(frozen=True, slots=True)
class AsOf:
    """A stream row takes the table's version that is valid at its time (rules A1-A4)."""

    history_retention: int
    grace: int = 0


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a session (S7): `function` of `column` of type `type` (None: it counts rows), in the output as
    `name`. `limit`: `count_distinct` is exact up to so many values; None: it is a sketch."""

    function: str
    name: str
    column: str = ""
    type: pa.DataType | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Sessions of one input, aggregated (S1-S7). `drop_late` False is `lateData: reopen` (S5); `retracts`: an id that
    was replaced goes out once more, as a retraction."""

    gap: int
    max_duration: int
    aggregates: tuple[Aggregate, ...]
    allowed_lateness: int = 0
    drop_late: bool = True
    retracts: bool = False


Rule = Interval | TumblingWindow | SessionGap | AsOf | SessionWindow


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """`name` holds `column` (its name in the batches of `side`), or `expression` over input columns, of type `type`."""

    name: str
    type: pa.DataType
    side: int = LEFT
    column: str = ""
    expression: Expression | None = None


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One join, or the sessions of one input: then there is one side, and `output` only names columns.

    `residual` is what both sides decide together; of an as-of step it includes what only the table can decide, since
    that must not hide a version. `output` are the user's columns, or what the next step takes in."""

    number: int
    sides: tuple[SideSpec, ...]
    rule: Rule
    residual: Expression | None
    output: tuple[OutputColumn, ...]

    @property
    def windowed(self) -> bool:
        return isinstance(self.rule, TumblingWindow | SessionGap)

    def output_schema(self) -> pa.Schema:
        """The user's columns; a window step adds WINDOW_COLUMNS (W4)."""
        window = [pa.field(name, pa.int64()) for name in WINDOW_COLUMNS] if self.windowed else []
        return pa.schema([*(pa.field(c.name, c.type) for c in self.output), *window])

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


def part_name(step: int, side: int) -> str:
    name: Literal["left", "right"] = "left" if side == LEFT else "right"
    return name if step == 0 else f"{name}.{step + 1}"
