"""The sides of a step: which rows come in, and which columns of them stay. Plain values, made by `core.compile`.

Durations and times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

import pyarrow as pa

from joinery_runtime.core.pipeline.expression import ColumnRef, Expression
from joinery_runtime.core.table.columns import (
    DELETED_FIELD,
    ENGINE_FIELDS,
    JOINABLE_FIELD,
    MARK_FIELD,
    SESSION_FIELDS,
    TS,
)

LEFT: Final = 0
RIGHT: Final = 1
SIDES: Final = (LEFT, RIGHT)

MARKS: Final = ".marks"  # after a part's name: its marks
SESSIONS: Final = "sessions"  # the part of the state of a job of sessions
COMPLETE: Final = "sessions.complete"  # the horizon behind which sessions have gone out (S5)


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
    ones, that expressions make of the others. `checked` are parts of the output's expressions that read nothing but
    this input, `compared` likewise of the conditions of matches: a record for which one cannot be computed is told
    here, where it still is one record. `grouped`: keys are groups,
    where NULL and NaN are values like others. `partitioner`: the input is partitioned by its only key with this one,
    like the other side's.
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
    checked: tuple[Expression, ...] = ()
    compared: tuple[Expression, ...] = ()
    grouped: bool = False
    partitioner: str | None = None

    def name_of(self, ref: ColumnRef) -> str:
        """How an input's column is called in batches of this side."""
        return str(ref) if self.chained else ref.column

    def prepared_schema(self) -> pa.Schema:
        added = [JOINABLE_FIELD] * self.preserved + [DELETED_FIELD] * self.table
        return pa.schema([*ENGINE_FIELDS, *added, *(self.schema.field(name) for name in self.stored)])


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
    def complete(self) -> str:
        """The name of the horizon behind which rows have gone out, where that is not the one at which they leave."""
        return f"{self.part}.complete"

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns of segments beside the engine's own: a user's, or of sessions groups and accumulators."""
        if self.state is None:
            return self.intake.stored
        own = {field.name for field in (*ENGINE_FIELDS, MARK_FIELD, *SESSION_FIELDS)}
        return tuple(name for name in self.state.names if name not in own)

    @property
    def hashed_by(self) -> tuple[str, ...]:
        """The columns of its segments that their `$hash` follows from; none where it follows from no column that is
        stored: rows have places that are not their key's, or the event time is a key."""
        stored = set(self.segment_schema().names)
        by_key = self.intake.placement is Placement.BY_KEY and stored.issuperset(self.intake.keys)
        return self.intake.keys if by_key else ()

    def segment_schema(self) -> pa.Schema:
        """Columns of this part's segments."""
        if self.state is not None:
            return self.state
        prepared = self.intake.prepared_schema()
        kept = [prepared.field(i) for i in range(len(prepared)) if prepared.field(i) != JOINABLE_FIELD]
        engine = len(ENGINE_FIELDS)
        return pa.schema([*kept[:engine], *([MARK_FIELD] if self.marks else []), *kept[engine:]])


def stored_rows(spec: SideSpec, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a segment with the columns that the job stores now. A segment that was written before the job was edited
    may hold more of a user's columns, and may lack some: they are null then, as is one that had another type. The event
    time comes back from `$ts`."""
    schema, there = spec.segment_schema(), batch.schema
    stored = spec.intake.stored if spec.state is None else ()
    missing = {name for name in stored if name not in there.names or there.field(name).type != schema.field(name).type}
    if not missing:
        return batch.select(schema.names)

    def column(field: pa.Field) -> pa.Array:
        if field.name not in missing:
            return batch.column(field.name)
        if field.name == spec.intake.event_time:
            return batch.column(TS).cast(field.type)
        return pa.nulls(batch.num_rows, field.type)

    return pa.record_batch([column(field) for field in schema], schema=schema)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """`name` holds `column` (its name in the batches of `side`), `expression` over input columns, or `made`: a column
    that the step makes itself, by its name there (`window_start`, or any of a session)."""

    name: str
    type: pa.DataType
    side: int = LEFT
    column: str = ""
    expression: Expression | None = None
    made: str | None = None


def part_name(step: int, side: int) -> str:
    name: Literal["left", "right"] = "left" if side == LEFT else "right"
    return name if step == 0 else f"{name}.{step + 1}"
