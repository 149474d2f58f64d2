"""Values of Debezium's rows that JSON has in another form: days, times in other units, decimals as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.formats.connect_types import decimal_in_base64, variable_decimal
from joinery_runtime.formats.convert import checked, convert, in_years
from joinery_runtime.formats.records import BoolArray, Fault, IntArray

_YEAR_1, _YEAR_9999 = -719_162, 2_932_896  # the first and the last day, since 1970
_EXPONENT = r"^[+-]?[0-9.]{1,100}[eE][+-]?[0-9]{1,2}$"
_PLAIN = r"^[+-]?[0-9]*\.?[0-9]*$"


def days(field: pa.Field, text: pl.Series) -> tuple[pa.Array, list[Fault]]:
    """Dates as numbers of days since 1970, or as text."""
    numbers = text.cast(pl.Int64, strict=False)
    days = numbers.to_frame("t").select(pl.when(pl.col("t").is_between(_YEAR_1, _YEAR_9999)).then("t"))["t"]
    if days.null_count() == text.null_count():
        return days.cast(pl.Int32).to_arrow().cast(field.type), []
    from_text, faults = convert(field.name, _where(days.is_null(), text), field.type)
    return pc.coalesce(days.cast(pl.Int32).to_arrow().cast(field.type), from_text), faults


def counted_times(field: pa.Field, text: pl.Series, factors: IntArray) -> tuple[pa.Array, list[Fault]]:
    """Converts times. Divides each number by its factor; a factor of 0 means that the unit is unknown."""
    numbers = text.cast(pl.Int64, strict=False)
    named = pl.Series(factors > 0) & numbers.is_not_null()
    if not named.any():
        return convert(field.name, text, field.type)
    times = in_years(numbers // pl.Series(np.maximum(factors, 1)))
    own, faults = checked(field.name, _where(named, text), _where(named, times), field.type)
    from_text, more = convert(field.name, _where(~named, text), field.type)
    return pc.coalesce(own, from_text), [*faults, *more]


def _where(chosen: pl.Series, values: pl.Series) -> pl.Series:
    return pl.DataFrame({"chosen": chosen, "t": values}).select(pl.when("chosen").then("t"))["t"]


def with_digits(text: pl.Series, scales: IntArray, in_bytes: BoolArray, is_number: Callable[[int], bool]) -> pl.Series:
    """The texts of decimals, as digits with a point. `in_bytes` says in which rows the schema names a decimal, whose
    text is then base64 with this scale; a converter may also write such a decimal as a number, which `is_number` tells
    of a row. What is no decimal stays as it is. Numbers may have an exponent."""
    bytes_there = pl.Series(in_bytes) & text.is_not_null() & ~(text.str.contains(r"[.-]") & text.str.contains(_PLAIN))
    strange = bytes_there | text.str.starts_with("{") | text.str.contains(_EXPONENT)
    rows = np.flatnonzero(strange.fill_null(False).to_numpy())
    if not len(rows):
        return text
    written = [_digits(text[row], int(scales[row]) if in_bytes[row] else None, row, is_number) for row in rows.tolist()]
    return text.scatter(rows, written)


def _digits(text: str, scale: int | None, row: int, is_number: Callable[[int], bool]) -> str:
    with suppress(ValueError, ArithmeticError, RecursionError):
        if text.startswith("{"):
            return format(variable_decimal(json.loads(text)), "f")
        if scale is not None and not is_number(row):
            return format(decimal_in_base64(text, scale), "f")
        return format(Decimal(text), "f")
    return text
