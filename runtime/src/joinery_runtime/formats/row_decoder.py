"""The base of formats whose records are read one by one into Python values, and what makes columns of these.

A value means what it means as JSON (decisions 35 and 49): a `datetime` is a time, bytes are base64, objects and arrays
in string columns are their JSON. `ColumnBuilder` takes the values that certainly fit their columns. A record with any
other value is written as JSON, and the decoder of JSON says what it holds, or why it is bad. The result is the same as
if all records were written as JSON.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.convert import SECONDS_2000, SECONDS_2100, YEAR_1, YEAR_9999_END, convert, in_range
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.records import (
    NULL_VALUE,
    BadRecord,
    BoolArray,
    ByValue,
    Decoded,
    FormatDecoder,
    IntArray,
    json_text,
    merge_decoded,
    text_in_json,
    unreadable_reason,
    with_bad,
)
from joinery_runtime.job.model.references import Path

_MOST_DIGITS = 18  # of a decimal that is taken as it is
_MOST_LEVELS = 256  # of objects and arrays; deeper ones may be beyond the limits of a parser
_EXACT = 1 << 53  # up to here, whole numbers are doubles
_FLOAT_MAX = 3.4028235677973366e38  # from here on, a double becomes infinite as a float
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)

T = TypeVar("T")
R = TypeVar("R")


class RejectedRecord(Exception):
    """A record cannot be read. The text is the reason."""


class RowDecoder(ByValue, FormatDecoder):
    """Decodes records into rows of `schema`. `paths` maps columns to paths. Other columns are fields of the record."""

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._columns = [(name, paths.get(name, (name,))) for name in schema.names]
        self._builder = ColumnBuilder(schema)

    @abstractmethod
    def values_of(self, record: bytes) -> Mapping[str, Any]:
        """Read the record's values by column, as `json_text` takes them. Raises RejectedRecord."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        positions, rows, bad = _each_alone(self._values_of, values.to_pylist())
        return with_bad(self._builder.decode(rows).at(positions), bad)

    def _values_of(self, record: bytes | None) -> Mapping[str, Any]:
        if record is None:
            raise RejectedRecord(NULL_VALUE)
        return self.values_of(record)


class ColumnBuilder:
    """Builds the columns of `schema` from Python values by column."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._json = JsonDecoder(schema)

    def decode(self, rows: Sequence[Mapping[str, Any]]) -> Decoded:
        """Return rows and bad records by their positions in `rows`."""
        columns, unusual = [], np.zeros(len(rows), np.bool_)
        for field in self._schema:
            column, is_unusual = _build_column(field, [row[field.name] for row in rows])
            columns.append(column)
            unusual |= is_unusual
        table = pa.table(columns, schema=self._schema)
        if not unusual.any():
            return Decoded(table, np.arange(len(rows), dtype=np.int64), [])
        usual = Decoded(table.filter(pa.array(~unusual)), np.flatnonzero(~unusual), [])
        at = np.flatnonzero(unusual)
        positions, texts, bad = _each_alone(
            lambda row: json_text(row).encode("utf-8", "surrogatepass"), [rows[position] for position in at.tolist()]
        )
        decoded = with_bad(self._json.decode(pa.array(texts, pa.binary())).at(positions), bad)
        return merge_decoded(usual, decoded.at(at))


def _each_alone(read: Callable[[T], R], records: Sequence[T]) -> tuple[IntArray, list[R], list[BadRecord]]:
    """Read records one by one. Return the positions and values of those that can be read, and the others as bad."""
    positions: list[int] = []
    read_values: list[R] = []
    bad: list[BadRecord] = []
    for position, record in enumerate(records):
        try:
            try:
                value = read(record)
            except MemoryError:  # perhaps of another thread's doing
                value = read(record)
        except RejectedRecord as rejected:
            bad.append(BadRecord(position, str(rejected)))
        except (JoineryError, OSError):  # of a registry that does not answer, or of the machine
            raise
        except Exception as error:  # whatever a record does to a library, it concerns this record only
            bad.append(BadRecord(position, unreadable_reason(error)))
        else:
            positions.append(position)
            read_values.append(value)
    return np.array(positions, np.int64), read_values, bad


class _UnusualError(Exception):
    """Only the decoder of JSON can say what a value means to its column, if anything."""


@dataclass(frozen=True, slots=True)
class _ColumnRule:
    """How Arrow gets the values of one column type. `array` makes a column of values of the `usual_types` and of nulls,
    if all are usual. `convert` makes what Arrow takes of a single value. Both raise one of _REJECTIONS otherwise."""

    usual_types: frozenset[type]
    array: Callable[[list[Any]], pa.Array]
    convert: Callable[[Any], Any]


def _build_column(field: pa.Field, values: list[Any]) -> tuple[pa.Array, BoolArray]:
    """Return the column, and in which rows the value is unusual. The column has null there."""
    types = {*map(type, values)} - {type(None)}
    if str in types and field.type in _READ_AS_TEXT:
        return _with_texts(field, values)
    if pa.types.is_decimal(field.type):
        rule = _ColumnRule(_NO_TYPES, partial(pa.array, type=field.type), partial(_read_decimal, target=field.type))
    else:
        rule = _RULES[field.type]
    unusual = np.zeros(len(values), np.bool_)
    if types <= rule.usual_types:
        with suppress(*_REJECTIONS):
            return rule.array(values), unusual
    converted = [None] * len(values)
    for row, value in enumerate(values):
        try:
            converted[row] = None if value is None else rule.convert(value)
        except _REJECTIONS:
            unusual[row] = True
    return pa.array(converted, field.type), unusual


def _with_texts(field: pa.Field, values: list[Any]) -> tuple[pa.Array, BoolArray]:
    """Read values that are text as the decoder of JSON does, in whole columns."""
    is_text = np.array([type(value) is str for value in values], np.bool_)
    column, unusual = _build_column(
        field, [None if text else value for text, value in zip(is_text, values, strict=True)]
    )
    try:
        series = pl.Series(
            [value if text else None for text, value in zip(is_text, values, strict=True)], dtype=pl.String
        )
    except UnicodeEncodeError:  # half of a surrogate pair, in any of them
        return column, unusual | is_text
    texts, _ = convert(field.name, series, field.type)
    return pc.coalesce(column, texts), unusual | (is_text & texts.is_null().to_numpy(zero_copy_only=False))


def _require_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise _UnusualError
    return value


def _whole_number(value: Any, bits: int) -> int:
    if isinstance(value, int) and type(value) is not bool and -(1 << bits - 1) <= value < 1 << bits - 1:
        return int(value)
    raise _UnusualError


def _read_double(value: Any) -> float:
    if isinstance(value, float) and math.isfinite(value):
        return value
    if type(value) is int and -_EXACT <= value <= _EXACT:
        return float(value)
    raise _UnusualError


def _read_single(value: Any) -> float:
    number = _read_double(value)
    if abs(number) >= _FLOAT_MAX:
        raise _UnusualError
    return number


def _read_doubles(values: list[Any]) -> pa.Array:
    column = pa.array(values, pa.float64())
    if not pc.all(pc.is_finite(column)).as_py() and column.null_count < len(column):
        raise _UnusualError
    return column


def _read_singles(values: list[Any]) -> pa.Array:
    column = _read_doubles(values)
    if pc.any(pc.greater_equal(pc.abs(column), _FLOAT_MAX)).as_py():
        raise _UnusualError
    return column.cast(pa.float32())


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        text = value
    else:
        written = _STRICT_JSON.encode(value)
        if written.count("[") + written.count("{") > _MOST_LEVELS:  # so many may be one inside of the other
            raise _UnusualError
        text = json.loads(written) if written[0] == '"' else written
    text.encode()  # raises an error for half of a surrogate pair
    return text


def _read_decimal(value: Any, target: pa.Decimal128Type) -> Decimal:
    if (type(value) is str and _NUMBER.fullmatch(value)) or type(value) is int:
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise _UnusualError
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -target.scale <= exponent <= 0:
        raise _UnusualError
    if len(digits) + exponent + target.scale > min(target.precision, _MOST_DIGITS):
        raise _UnusualError
    return value


def _read_milliseconds(value: Any) -> int:
    if isinstance(value, datetime) and value.tzinfo in (None, UTC):
        return (value.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
    number = _whole_number(value, 64)
    if not YEAR_1 <= number <= YEAR_9999_END or SECONDS_2000 <= number < SECONDS_2100:
        raise _UnusualError
    return number


def _read_times(values: list[Any]) -> pa.Array:
    if datetime in {*map(type, values)}:
        if not {value.tzinfo for value in values if value is not None} <= {None, UTC}:
            raise _UnusualError
        times = pa.array(values, pa.timestamp("us", tz="UTC"))
        # Arrow would not round down before 1970.
        milliseconds = times.cast(pa.int64()).fill_null(0).to_numpy() // 1_000
        return pa.array(milliseconds, mask=times.is_null().to_numpy(zero_copy_only=False)).cast(_TIMESTAMP)
    column, faults = in_range("", pl.Series(values, dtype=pl.Int64))
    if faults:
        raise _UnusualError
    return column


_NO_TYPES: frozenset[type] = frozenset()
_REJECTIONS = (_UnusualError, ValueError, OverflowError, RecursionError, TypeError, AttributeError, pa.ArrowException)
_STRICT_JSON = json.JSONEncoder(default=text_in_json, ensure_ascii=False, allow_nan=False)
_TIMESTAMP = pa.timestamp("ms", tz="UTC")
_READ_AS_TEXT = {pa.date32(), _TIMESTAMP, pa.binary()}
_RULES: dict[pa.DataType, _ColumnRule] = {
    pa.bool_(): _ColumnRule(frozenset({bool}), partial(pa.array, type=pa.bool_()), partial(_require_type, kind=bool)),
    pa.int32(): _ColumnRule(frozenset({int}), partial(pa.array, type=pa.int32()), partial(_whole_number, bits=32)),
    pa.int64(): _ColumnRule(frozenset({int}), partial(pa.array, type=pa.int64()), partial(_whole_number, bits=64)),
    pa.float32(): _ColumnRule(frozenset({float}), _read_singles, _read_single),
    pa.float64(): _ColumnRule(frozenset({float}), _read_doubles, _read_double),
    pa.string(): _ColumnRule(frozenset({str}), partial(pa.array, type=pa.string()), _read_text),
    pa.binary(): _ColumnRule(
        frozenset({bytes}), partial(pa.array, type=pa.binary()), partial(_require_type, kind=bytes)
    ),
    pa.date32(): _ColumnRule(frozenset({date}), partial(pa.array, type=pa.date32()), partial(_require_type, kind=date)),
    _TIMESTAMP: _ColumnRule(frozenset({int, datetime}), _read_times, _read_milliseconds),
}


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path in Python dicts and lists; None if the path leads nowhere."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and step < len(value) else None
    return value
