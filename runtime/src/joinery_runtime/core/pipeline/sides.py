"""The sides of a step: which rows come in, and which of their columns stay. Plain values, made by `core.compile`.

Durations and times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

import pyarrow as pa

from joinery_runtime.core.pipeline.expression import ColumnRef, Expression
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME
from joinery_runtime.core.table.columns import (
    DELETED_FIELD,
    EARLY,
    EARLY_FIELD,
    ENGINE_FIELDS,
    FLAG_FIELD,
    JOINABLE_FIELD,
    SESSION_FIELDS,
    SHOWN_FIELD,
    TS,
    UNAVAILABLE_FIELD,
)

LEFT: Final = 0
RIGHT: Final = 1
SIDES: Final = (LEFT, RIGHT)

FLAGS: Final = ".marks"  # suffix of the part that holds another part's flags
SESSIONS: Final = "sessions"  # the part of the state of a job of sessions
WINDOW_END: Final = "$window_end"
"""Among the times of inputs, the one that stands for the ends of the windows that rows of a chain carry (W5)."""
COMPLETE: Final = "sessions.complete"  # the horizon behind which sessions have been emitted (S5)


class Placement(Enum):
    """Which shard gets a row: the one that owns its key's hash, any one (time-only joins, the side that is not
    broadcast), every one, or one shard for all rows of a partition, in whose order they stay."""

    BY_KEY = "by key"
    SPREAD = "spread"
    EVERYWHERE = "everywhere"
    BY_PARTITION = "by partition"


ComputedColumns = tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Intake:
    """How decoded rows, or rows of the previous step, become prepared rows of a side.

    - `schema`: the incoming columns. `event_time`: the column that becomes `$ts`.
    - `keys`: the key columns in the step's order. `stored`: the user columns that are kept.
    - `predicate`: the part of the condition that this side alone decides.
    - `preserved`: rows that cannot match are kept, with `$joinable` false.
    - `table`: rows are versions and carry `$deleted`.
    - `chained`: the previous step made the rows; their columns are called `<input>.<column>`.
    - `computed`: the last columns of the schema, computed from the others by expressions.
    - `checked`: the parts of output expressions that read only this input. `compared`: the same of match conditions.
      A record for which one of them fails is reported here, where it is still a single record.
    - `grouped`: keys are groups, in which NULL and NaN are ordinary values.
    - `filter`: the input's own condition; rows for which it is not true are dropped, whatever the side preserves.
    - `partitioner`: the partitioner by which both this input and the other side's are partitioned by their only key.
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
    computed: ComputedColumns = ()
    checked: tuple[Expression, ...] = ()
    compared: tuple[Expression, ...] = ()
    grouped: bool = False
    partitioner: str | None = None
    filter: Expression | None = None

    @property
    def computed_keys(self) -> ComputedColumns:
        """The computed columns that decide whether a row can match (J12): keys of a join. Groups decide nothing."""
        return () if self.grouped else tuple(column for column in self.computed if column[0] in self.keys)

    @property
    def other_computed(self) -> ComputedColumns:
        """The computed columns that only rows which stay need."""
        return (
            self.computed if self.grouped else tuple(column for column in self.computed if column[0] not in self.keys)
        )

    def name_of(self, ref: ColumnRef) -> str:
        """Return the name in batches of this side of an input's column, or of an aggregate's, which has no input."""
        return str(ref) if self.chained and ref.input else ref.column

    def prepared_schema(self) -> pa.Schema:
        added = [JOINABLE_FIELD] * self.preserved + [DELETED_FIELD, UNAVAILABLE_FIELD] * self.table
        return pa.schema([*ENGINE_FIELDS, *added, *(self.schema.field(name) for name in self.stored)])


@dataclass(frozen=True, slots=True)
class SideSpec:
    """One side of a step. `part` names its rows in the state. `inputs` are the inputs whose columns they carry: one, or
    those of all previous steps. `time` is the input whose event time is `$ts`, from which the step's bound counts.
    `flags`: rows of this part have flags. `state`: the columns of its segments, where these are not prepared rows.
    `one_window`: a step before has put each row into one window, which starts at `$ts` (W5), or whose last millisecond
    `$ts` is (W7, R8)."""

    part: str
    inputs: tuple[str, ...]
    time: str
    intake: Intake
    flags: bool = False
    state: pa.Schema | None = None
    one_window: bool = False

    @property
    def preserved(self) -> bool:
        return self.intake.preserved

    @property
    def broadcast(self) -> bool:
        return self.intake.placement is Placement.EVERYWHERE

    @property
    def flags_part(self) -> str:
        return self.part + FLAGS

    @property
    def complete(self) -> str:
        """The name of the horizon behind which rows have been emitted, if it differs from that at which they leave."""
        return f"{self.part}.complete"

    @property
    def early(self) -> str:
        """The name of the horizon up to which early results have been emitted, if the step emits such (G8)."""
        return f"{self.part}.early"

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns of segments besides the engine's own: user columns, or groups and accumulators of sessions."""
        if self.state is None:
            return self.intake.stored
        own = {field.name for field in (*ENGINE_FIELDS, FLAG_FIELD, *SESSION_FIELDS, EARLY_FIELD, SHOWN_FIELD)}
        return tuple(name for name in self.state.names if name not in own)

    @property
    def hashed_by(self) -> tuple[str, ...]:
        """The stored columns from which `$hash` can be computed again. Empty where they do not suffice: rows are not
        placed by key, or the event time is a key."""
        stored = set(self.segment_schema().names)
        by_key = self.intake.placement is Placement.BY_KEY and stored.issuperset(self.intake.keys)
        return self.intake.keys if by_key else ()

    def segment_schema(self) -> pa.Schema:
        """Return the columns of this part's segments."""
        if self.state is not None:
            return self.state
        prepared = self.intake.prepared_schema()
        stored = [field for field in prepared if field not in (JOINABLE_FIELD, UNAVAILABLE_FIELD)]
        engine = len(ENGINE_FIELDS)
        return pa.schema([*stored[:engine], *([FLAG_FIELD] if self.flags else []), *stored[engine:]])


def stored_rows(spec: SideSpec, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a segment with the columns that the job stores now. A segment written before an edit of the job
    may hold more user columns or lack some. A column that is missing or had another type becomes null, except the event
    time, which comes from `$ts`. Rows from before the job emitted early results count as changed before all of these.
    Aggregates that an earlier release stored in a narrower type get the wider one."""
    schema, written_schema = spec.segment_schema(), batch.schema
    if EARLY in schema.names and EARLY not in written_schema.names:
        batch = batch.append_column(EARLY_FIELD, pa.repeat(pa.scalar(BEGIN_OF_TIME), batch.num_rows))
        batch = batch.append_column(SHOWN_FIELD, pa.repeat(pa.scalar(False), batch.num_rows))
    stored = spec.intake.stored if spec.state is None else ()
    missing = {
        name
        for name in stored
        if name not in written_schema.names or written_schema.field(name).type != schema.field(name).type
    }
    widened = {
        field.name
        for field in (schema if spec.state is not None else ())
        if pa.types.is_decimal(field.type) and batch.schema.field(field.name).type != field.type
    }
    if not missing | widened:
        return batch.select(schema.names)

    def column(field: pa.Field) -> pa.Array:
        if field.name in widened:
            return batch.column(field.name).cast(field.type)
        if field.name not in missing:
            return batch.column(field.name)
        if field.name == spec.intake.event_time:
            return batch.column(TS).cast(field.type)
        return pa.nulls(batch.num_rows, field.type)

    return pa.record_batch([column(field) for field in schema], schema=schema)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of a step's output. `name` holds one of three: `column` (its name in batches of `side`), an
    `expression` over input columns, or `step_column`, a column that the step itself makes (`window_start`, or any of a
    session)."""

    name: str
    type: pa.DataType
    side: int = LEFT
    column: str = ""
    expression: Expression | None = None
    step_column: str | None = None


def part_name(step: int, side: int) -> str:
    name: Literal["left", "right"] = "left" if side == LEFT else "right"
    return name if step == 0 else f"{name}.{step + 1}"
