"""Names and types of the columns that the engine adds to a user's rows.

A *prepared* batch and a segment share a layout: the four columns below, then the side's own engine columns, then the
stored user columns under their own names (a user column cannot begin with `$`). The event-time column of an input is
not stored twice: it is rebuilt from TS.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa

HASH = "$hash"  # uint64: the versioned key hash (rule V1)
TS = "$ts"  # int64: event time, milliseconds since the epoch
PARTITION = "$partition"  # int64: source partition, with the number of its topic or file (`numbered_partitions`)
OFFSET = "$offset"  # int64: record offset in its partition (bytes from the start for files)

ENGINE_FIELDS: tuple[pa.Field, ...] = (
    pa.field(HASH, pa.uint64(), nullable=False),
    pa.field(TS, pa.int64(), nullable=False),
    pa.field(PARTITION, pa.int64(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
)

_TOPIC_BITS = 32


def numbered_partition(partition: int, topic_number: int) -> int:
    """Return what PARTITION holds for a partition of the input's topic or file with this number (from 0). So rows of
    equal partition and offset in two topics have an order (rule J2)."""
    return topic_number << _TOPIC_BITS | partition


def partitions_of(numbered: np.ndarray) -> np.ndarray:
    """Return the source partitions (int64[n]) of values of PARTITION."""
    return numbered & ((1 << _TOPIC_BITS) - 1)


def split_partition(numbered: int) -> tuple[int, int]:
    """Return the number of the topic or file, and the source partition, of a value of PARTITION."""
    return numbered >> _TOPIC_BITS, numbered & ((1 << _TOPIC_BITS) - 1)


# Only in prepared batches of a preserved side: whether the row can match at all (J4, N4).
JOINABLE = "$joinable"
# Only in segments of a part that has flags: whether the row has matched (interval) or been emitted (session windows).
# The column's stored name is older than the word.
FLAG = "$mark"
# In batches and segments of an as-of step's table: whether this version is a deletion.
DELETED = "$deleted"
# Only in prepared batches of such a table: the columns, one a line, whose values the record does not have although the
# row does (null: none).
UNAVAILABLE = "$unavailable"

JOINABLE_FIELD = pa.field(JOINABLE, pa.bool_(), nullable=False)
FLAG_FIELD = pa.field(FLAG, pa.bool_(), nullable=False)
DELETED_FIELD = pa.field(DELETED, pa.bool_(), nullable=False)
UNAVAILABLE_FIELD = pa.field(UNAVAILABLE, pa.string())

# Only in segments of sessions (see `core.kinds.session.change`).
START, EMITTED, FORCED = "$start", "$emitted", "$forced"
SESSION_FIELDS: tuple[pa.Field, ...] = (
    pa.field(START, pa.int64(), nullable=False),
    pa.field(EMITTED, pa.bool_(), nullable=False),
    pa.field(FORCED, pa.bool_(), nullable=False),
)

# Only in segments of a part that emits early results (G8): the `early` horizon of the epoch that wrote the row, and for
# sessions whether a row with the session's id was in the output already.
EARLY, SHOWN = "$early", "$shown"
EARLY_FIELD = pa.field(EARLY, pa.int64(), nullable=False)
SHOWN_FIELD = pa.field(SHOWN, pa.bool_(), nullable=False)

# A segment of flags holds each flagged row's HASH and TS, so that it is cut and expires like the rows, and its place.
SEGMENT = "$segment"  # string: the segment's key
ROW = "$row"  # int64: the row's number in the segment
FLAGS_SCHEMA = pa.schema([*ENGINE_FIELDS[:2], pa.field(SEGMENT, pa.string(), False), pa.field(ROW, pa.int64(), False)])


# --- the types of users' columns --------------------------------------------------------------------------------------

SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}


class TypeLike(Protocol):
    """A job's column type: `name` as in the resource, `precision` and `scale` for decimals only."""

    @property
    def name(self) -> str: ...
    @property
    def precision(self) -> int | None: ...
    @property
    def scale(self) -> int | None: ...


class ColumnLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> TypeLike: ...


def arrow_type(column_type: TypeLike) -> pa.DataType:
    """Return the Arrow type for values of a job's column type. Timestamps are UTC milliseconds; JSON is text."""
    if column_type.name == "json":
        return pa.string()
    if column_type.name == "decimal":
        return pa.decimal128(column_type.precision, column_type.scale)
    return SCALARS[column_type.name]


def type_name(kind: pa.DataType) -> str | None:
    """Return the name of the job's column type that has this Arrow type; None without one."""
    if pa.types.is_decimal128(kind):
        return "decimal"
    return next((name for name, scalar in SCALARS.items() if scalar == kind), None)


def arrow_schema(columns: Iterable[ColumnLike]) -> pa.Schema:
    """Return the Arrow schema of an input's declared columns, in their order. Every column is nullable."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
