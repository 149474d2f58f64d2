"""Rows of Parquet files, which come as columns: the value at a path, in the type of the schema (V3).

| column | from |
|---|---|
| boolean, binary | the same |
| date | a date of the years 1 to 9999 |
| int32, int64 | any integer, or a decimal without a fraction that fits |
| float, double | any number |
| decimal(p,s) | any decimal or integer that fits; never rounded |
| timestamp | a timestamp of any unit (without a zone: UTC), cut off below a millisecond; an integer of milliseconds |
| string | anything: nested values as JSON |

A value that its column cannot hold is a fault of its row. The planner rejects a type that cannot be read as the
column's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.convert import checked_column, convert, in_range, in_years, to_single_precision
from joinery_runtime.formats.records import (
    Decoded,
    Fault,
    FormatDecoder,
    GarbledText,
    drop_rows,
    json_text,
    not_utf8_faults,
    python_values,
    read_utf8,
)
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.references import Path


class ParquetDecoder(FormatDecoder):
    """Decodes batches of columns into rows of `schema`. `paths` maps columns to paths. Other columns are found by
    name."""

    columnar: ClassVar[bool] = True
    tells_deletions: ClassVar[bool] = True

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(schema, {column.name: column.steps for column in model.columns})

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._schema, self._paths = schema, paths

    def decode_batch(self, raw: RawBatch) -> Decoded:
        assert raw.columns is not None, "the reader of Parquet gives columns"
        columns: list[pa.Array] = []
        faults: list[Fault] = []
        for field in self._schema:
            values = column_at(raw.columns, self._paths.get(field.name, (field.name,)))
            column, fault = read_as(field.name, values, field.type)
            columns.append(column)
            faults += fault
        return drop_rows(pa.table(columns, schema=self._schema), np.arange(len(raw.offsets), dtype=np.int64), faults)


DECODER = ParquetDecoder


_PER_MS = {"us": 1_000, "ns": 1_000_000}
_MS_OF_A_DAY = 86_400_000


def type_at(schema: pa.Schema, path: Path) -> pa.DataType | None:
    """Return the type of the value at a path, with dictionaries decoded; None if the path leads nowhere."""
    if path[0] not in schema.names:
        return None
    value_type = schema.field(str(path[0])).type
    for step in path[1:]:
        if isinstance(step, str) and kinds.is_struct(value_type) and value_type.get_field_index(step) >= 0:
            value_type = value_type.field(step).type
        elif isinstance(step, int) and (kinds.is_list(value_type) or kinds.is_large_list(value_type)):
            value_type = value_type.value_type
        else:
            return None
    return value_type.value_type if kinds.is_dictionary(value_type) else value_type


def can_be(file_type: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of a file's type can be read as the column's type."""
    if kinds.is_null(file_type) or kinds.is_string(target):
        return True
    is_whole = kinds.is_integer(file_type) or (kinds.is_decimal(file_type) and file_type.scale == 0)
    return bool(
        file_type == target
        or (kinds.is_timestamp(target) and (kinds.is_timestamp(file_type) or kinds.is_integer(file_type)))
        or (kinds.is_floating(target) and (is_whole or kinds.is_decimal(file_type) or kinds.is_floating(file_type)))
        or (kinds.is_integer(target) and is_whole)
        or (kinds.is_decimal(target) and (is_whole or kinds.is_decimal(file_type)))
        or (kinds.is_date(target) and kinds.is_date(file_type))
        or (kinds.is_binary(target) and _is_bytes(file_type))
    )


def column_at(columns: pa.Table, path: Path) -> pa.Array:
    """Return the value at a path in each row; null where the path leads nowhere."""
    if type_at(columns.schema, path) is None:
        return pa.nulls(columns.num_rows)
    values = columns.column(str(path[0])).combine_chunks()
    for step in path[1:]:
        if isinstance(step, str):
            values = pc.struct_field(values, step)
        else:
            has_element = pc.greater(pc.list_value_length(values), step)
            positions = pc.if_else(has_element, pc.add(values.offsets[:-1], step), None)
            values = values.values.take(positions)
    return values.dictionary_decode() if kinds.is_dictionary(values.type) else values


def read_as(column: str, values: pa.Array, target: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    """Convert values to the column's type, for which `can_be` is true. Returns the column, and the rows whose values
    do not fit."""
    file_type = values.type
    if kinds.is_null(file_type):
        return values.cast(target), []
    if kinds.is_timestamp(target):
        return _convert_times(column, values, target)
    if kinds.is_date(target):
        # Arrow has days that nobody else can represent: of the year 10000, say.
        per_day = 1 if kinds.is_date32(file_type) else _MS_OF_A_DAY
        physical = pl.Series(values.cast(pa.int32() if per_day == 1 else pa.int64())).cast(pl.Int64)
        days = in_years(physical // per_day * _MS_OF_A_DAY) // _MS_OF_A_DAY
        return checked_column(column, physical.cast(pl.String), days.cast(pl.Int32), target)
    if kinds.is_string(target):
        return _convert_texts(column, values)
    if file_type == target:
        return values, []
    if kinds.is_decimal(target) or (kinds.is_decimal(file_type) and file_type.bit_width > 128):
        return convert(column, _plain_text(values), target)
    series = pl.Series(values)
    if kinds.is_integer(target):
        integers = series.cast(pl.Int32 if target == pa.int32() else pl.Int64, strict=False)
        return checked_column(column, series.cast(pl.String), integers, target)
    if target == pa.float32():
        return to_single_precision(column, series.cast(pl.Float64))
    return values.cast(target, safe=False), []


def _convert_times(column: str, values: pa.Array, target: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    if values.type == pa.uint64():
        return convert(column, _plain_text(values), target)
    if kinds.is_integer(values.type):
        return in_range(column, pl.Series(values).cast(pl.Int64))
    if values.type.unit == "s":
        values = values.cast(pa.timestamp("ms", values.type.tz))
    physical = pl.Series(values.cast(pa.int64()))
    times = physical // _PER_MS.get(values.type.unit, 1)
    return checked_column(column, physical.cast(pl.String), in_years(times), target)


def _convert_texts(column: str, values: pa.Array) -> tuple[pa.Array, list[Fault]]:
    file_type = values.type
    is_text = kinds.is_string(file_type) or kinds.is_large_string(file_type) or kinds.is_string_view(file_type)
    if is_text or _is_bytes(file_type):  # Arrow reads a text column's bytes unchecked
        return read_utf8(column, values.cast(pa.binary()))
    if not kinds.is_nested(file_type):
        return _plain_text(values).to_arrow().cast(pa.string()), []
    converted, garbled = python_values(values), np.zeros(len(values), dtype=np.bool_)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        garbled[:] = [_holds_garbled_text(value) for value in converted]
    pairs = zip(converted, garbled, strict=True)
    texts = [None if value is None or is_garbled else json_text(value) for value, is_garbled in pairs]
    return pa.array(texts, pa.string()), not_utf8_faults(column, garbled)


def _holds_garbled_text(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_garbled_text, value.values()))
    return any(map(_holds_garbled_text, value)) if isinstance(value, list) else isinstance(value, GarbledText)


def _plain_text(values: pa.Array) -> pl.Series:
    """Convert values that are not nested to text, as written in JSON or RFC 3339. A time or a day outside the years 1
    to 9999 is its number since 1970."""
    file_type = values.type
    if kinds.is_timestamp(file_type):
        if file_type.unit == "s":
            values, file_type = values.cast(pa.timestamp("ms", file_type.tz)), pa.timestamp("ms", file_type.tz)
        numbers = pl.Series(values.cast(pa.int64()))
        usable = in_years(numbers // _PER_MS.get(file_type.unit, 1)).is_not_null()
        usable_numbers = pl.select(pl.when(usable).then(numbers)).to_series().to_arrow()
        utc = pl.Series(usable_numbers.cast(pa.timestamp(file_type.unit, file_type.tz and "UTC"))).dt.to_string("iso")
        return pl.select(pl.coalesce(utc, numbers.cast(pl.String))).to_series()
    if kinds.is_decimal(file_type):
        return pl.Series(
            [None if value is None else format(value, "f") for value in values.to_pylist()], dtype=pl.String
        )
    if file_type == pa.time64("ns"):
        return pl.Series(values.cast(pa.string()))
    if kinds.is_temporal(file_type):
        return pl.Series([None if value is None else str(value) for value in python_values(values)], dtype=pl.String)
    return pl.Series(values).cast(pl.String)


def _is_bytes(file_type: pa.DataType) -> bool:
    views = kinds.is_binary_view(file_type)
    return bool(
        kinds.is_binary(file_type) or kinds.is_large_binary(file_type) or kinds.is_fixed_size_binary(file_type) or views
    )
