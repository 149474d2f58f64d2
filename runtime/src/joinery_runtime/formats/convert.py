"""Converts text columns to typed columns, vectorised (rule V3).

A value that its type cannot hold is a fault of its row. The accepted forms are:

* int32, int64: decimal digits with an optional sign, in range;
* float, double: decimal or scientific notation, `nan`, `inf`; no finite number that overflows the type;
* decimal(p,s): at most p-s digits before the point and s after it, not counting zeros at either end; never rounded;
* boolean: `true` or `false` in any case;
* date: `YYYY-MM-DD`; binary: base64 with padding;
* timestamp: an integer (milliseconds) or RFC 3339 with any offset, in any mix, in the years 1 to 9999; digits below a
  millisecond are cut off, however many there are. An integer that would be in the years 2000 to 2099 as seconds
  is a fault: as milliseconds it is in January or February 1970.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa

from joinery_runtime.formats.connect_types import decimal_hint
from joinery_runtime.formats.records import Fault

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,19}\Z", re.ASCII)
_RFC3339 = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$"
_LONGEST_OF_POLARS = len("2026-01-15T10:00:00.123456789+01:00")  # it reads nine digits of a fraction
# What `format: iso` reads. Unlike RFC 3339, it allows times without an offset or seconds, and days.
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?)?\s?([Zz]|[+-]\d{2}(:?\d{2})?)?\Z", re.ASCII)
# Milliseconds since the epoch. Every later reader of a timestamp can represent these years.
YEAR_1, YEAR_9999_END = -62_135_596_800_000, 253_402_300_799_999
# The years 2000 to 2099 in seconds, as sent by producers that count seconds.
SECONDS_2000, SECONDS_2100 = 946_684_800, 4_102_444_800
_SHOWN = 60  # characters of a bad value that a reason quotes


def convert(column: str, text: pl.Series, target: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    """Read a text column as `target`. Returns the column, and at most one fault: the rows that could not be read."""
    return checked_column(column, text, _reader_of(target)(text), target)


def convert_with_comma(column: str, text: pl.Series, target: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    """Read numbers with a decimal comma. A point is a fault: it may be one of thousands."""
    point = _apply_expression(
        text, pl.when(~_T.str.contains(".", literal=True)).then(_T.str.replace(",", ".", literal=True))
    )
    return checked_column(column, text, _reader_of(target)(point), target)


def to_single_precision(column: str, numbers: pl.Series) -> tuple[pa.Array, list[Fault]]:
    """Convert doubles to 32-bit floats. Returns the column, and at most one fault: finite numbers that overflow."""
    return checked_column(column, numbers, _to_float32(numbers), pa.float32())


def in_range(column: str, times: pl.Series) -> tuple[pa.Array, list[Fault]]:
    """Convert milliseconds since the epoch to timestamps. Returns the column, and at most one fault: times that
    probably count seconds, or outside the years 1 to 9999."""
    # Reasons quote numbers as text, as they do among RFC 3339 times: a reason does not depend on a record's neighbours.
    return checked_column(column, times.cast(pl.String), _drop_seconds(times), pa.timestamp("ms", tz="UTC"))


def checked_column(
    column: str, before: pl.Series, after: pl.Series, target: pa.DataType
) -> tuple[pa.Array, list[Fault]]:
    """Return the converted column, and at most one fault: the rows that have a value `before` and none `after`."""
    typed = after.to_arrow().cast(target)
    if typed.null_count == before.null_count():
        return typed, []
    failed = after.is_null() & before.is_not_null()
    return typed, [(failed.to_numpy(), [fault(column, value, target) for value in before.filter(failed).to_list()])]


def fault(column: str, value: object, target: pa.DataType) -> str:
    """Return the reason why a value does not fit a column."""
    number = int(value) if isinstance(value, str) and _INTEGER.match(value) else 0
    if pa.types.is_timestamp(target) and SECONDS_2000 <= number < SECONDS_2100:
        moment = datetime.fromtimestamp(number, UTC).date()
        return (
            f"column {column}: {value} is 1970 if it counts milliseconds, and {moment} if it counts seconds; write the "
            "column's format: s or ms"
        )
    for unit, factor in (("us", 10**6), ("ns", 10**9)):
        if pa.types.is_timestamp(target) and SECONDS_2000 * factor <= number < SECONDS_2100 * factor:
            moment = datetime.fromtimestamp(number // factor, UTC).date()
            return (
                f"column {column}: {value} is no time in milliseconds, and {moment} if it counts {unit}; write the "
                f"column's format: {unit}"
            )
    hint = ""
    # Another format would not read an RFC 3339 time either.
    is_rfc3339 = isinstance(value, str) and re.match(_RFC3339, value) is not None
    if pa.types.is_timestamp(target) and isinstance(value, str) and not is_rfc3339 and (written := _ISO.match(value)):
        hint = "; write the column's format: iso" + ("" if written.group(4) else " and its zone")
    if pa.types.is_decimal(target):
        hint = decimal_hint(value)
    if not hint and isinstance(value, str):
        if pa.types.is_boolean(target):
            is_text = value in {"true", "false"}
        elif pa.types.is_integer(target):
            most = 2 ** (target.bit_width - 1)
            is_text = _INTEGER.match(value) is not None and -most <= int(value) < most
        else:
            is_text = pa.types.is_floating(target) and bool(_NUMBER.fullmatch(value)) and math.isfinite(float(value))
        hint = "; it is text in the record: write the column's format: text" if is_text else ""
    return f"column {column}: {quote_value(value)} is not a valid {_type_text(target)}{hint}"


def quote_value(value: object) -> str:
    """Return a value as quoted in reasons."""
    text = repr(value)
    return text[:_SHOWN] + "..." if len(text) > _SHOWN else text


def _type_text(target: pa.DataType) -> str:
    if pa.types.is_timestamp(target):
        return "timestamp (integer milliseconds or RFC 3339 with an offset, years 1 to 9999)"
    if pa.types.is_binary(target):
        return "binary (base64)"
    if pa.types.is_date(target):
        return "date (YYYY-MM-DD)"
    if pa.types.is_decimal(target):
        return f"decimal({target.precision},{target.scale})"
    return {"bool": "boolean"}.get(str(target), str(target))


def _reader_of(target: pa.DataType) -> Callable[[pl.Series], pl.Series]:
    if pa.types.is_decimal(target):
        integer_digits, scale = target.precision - target.scale, target.scale
        fits = _T.str.contains(rf"^[+-]?0*\d{{0,{integer_digits}}}(\.\d{{0,{scale}}}0*)?$") & _T.str.contains(r"\d")
        decimals = pl.when(fits).then(_T).cast(pl.Decimal(38, scale), strict=False)
        return lambda text: _apply_expression(text, decimals)
    return _READERS[target]


def _apply_expression(series: pl.Series, expression: pl.Expr) -> pl.Series:
    return series.to_frame("t").select(expression.alias("t"))["t"]


_T = pl.col("t")


def _read_timestamps(text: pl.Series) -> pl.Series:
    """Read a mix of integer milliseconds and RFC 3339 text as milliseconds since the epoch; null for anything else."""
    numbers = text.cast(pl.Int64, strict=False)
    if numbers.null_count() == text.null_count():
        return _drop_seconds(numbers)
    upper = _T.str.to_uppercase()
    if (text.str.len_bytes() > _LONGEST_OF_POLARS).any():
        upper = upper.str.replace(r"(\.\d{3})\d+", "${1}")
    zoned = (
        pl.when(_T.str.contains(_RFC3339)).then(upper).str.replace(" ", "T", literal=True).str.replace("Z$", "+00:00")
    )
    parsed = zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", strict=False, time_unit="ms").dt.epoch("ms")
    return in_years(_apply_expression(text, pl.coalesce(_drop_seconds(numbers), parsed)))


def _drop_seconds(numbers: pl.Series) -> pl.Series:
    """Return numbers as milliseconds; null where they most likely count seconds, or are outside the years 1 to 9999."""
    if numbers.is_between(SECONDS_2000, SECONDS_2100, closed="left").any():
        seconds = _T.is_between(SECONDS_2000, SECONDS_2100, closed="left")
        numbers = _apply_expression(numbers, pl.when(~seconds).then(_T))
    return in_years(numbers)


def in_years(times: pl.Series) -> pl.Series:
    """Replace times outside the years 1 to 9999 by null."""
    if times.is_between(YEAR_1, YEAR_9999_END).all():
        return times
    return _apply_expression(times, pl.when(_T.is_between(YEAR_1, YEAR_9999_END)).then(_T))


def _read_doubles(text: pl.Series) -> pl.Series:
    number = _T.cast(pl.Float64, strict=False)
    overflowed = number.is_infinite() & _T.str.contains(r"\d")
    return _apply_expression(text, pl.when(~overflowed).then(number))


def _to_float32(numbers: pl.Series) -> pl.Series:
    """Convert doubles to 32-bit floats; null where a finite number overflows."""
    overflowed = _T.is_finite() & _T.cast(pl.Float32).is_infinite()
    return _apply_expression(numbers, pl.when(~overflowed).then(_T.cast(pl.Float32)))


_DATES = (
    pl.when(_T.str.contains(r"^\d{4}-\d{2}-\d{2}$") & ~_T.str.starts_with("0000"))
    .then(_T)
    .str.to_date("%Y-%m-%d", strict=False)
)
_READERS: dict[pa.DataType, Callable[[pl.Series], pl.Series]] = {
    pa.bool_(): lambda text: text.str.to_lowercase().replace_strict(
        ["true", "false"], [True, False], default=None, return_dtype=pl.Boolean
    ),
    pa.int32(): lambda text: text.cast(pl.Int32, strict=False),
    pa.int64(): lambda text: text.cast(pl.Int64, strict=False),
    pa.float32(): lambda text: _to_float32(_read_doubles(text)),
    pa.float64(): _read_doubles,
    pa.string(): lambda text: text,
    pa.binary(): lambda text: text.str.decode("base64", strict=False),
    pa.date32(): lambda text: _apply_expression(text, _DATES),
    pa.timestamp("ms", tz="UTC"): _read_timestamps,
}
