"""The one mapping from a job's column types to Arrow types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

_SCALARS: dict[str, pa.DataType] = {
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
    """The Arrow type that holds values of a job's column type; timestamps are UTC milliseconds."""
    if column_type.name == "decimal":
        return pa.decimal128(column_type.precision, column_type.scale)
    return _SCALARS[column_type.name]


def type_name(kind: pa.DataType) -> str | None:
    """The name of the job's column type that has this Arrow type; None where none has."""
    if pa.types.is_decimal128(kind):
        return "decimal"
    return next((name for name, known in _SCALARS.items() if known == kind), None)


def arrow_schema(columns: Iterable[ColumnLike]) -> pa.Schema:
    """The Arrow schema of an input's declared columns, in their order; every column may be null."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
