"""Decodes columns with a `format`, and JSON columns: first as text, which is then read by the format or checked.

A format names the unit of numbers (`s`, `ms`, `us`, `ns`), or the usual forms of ISO 8601 (`iso`), or a pattern of
strptime. Digits below a millisecond are cut off. `text` also accepts numbers and booleans in quotes. A local time that
occurs twice in its zone is the first of the two. One that the zone skips is a fault.

The text of a JSON column is checked when it is read, so that every output can hold it. An object or an array in a
record is taken as its own text. Text in a record (a Debezium column, a CSV field) is taken as JSON. Faults are text
that is not JSON, and text that Postgres cannot store as jsonb: U+0000, half of a surrogate pair, numbers of thousands
of digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.zones import zone_to_utc
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.convert import convert, in_years, quote_value
from joinery_runtime.formats.json.texts import reject_constant
from joinery_runtime.formats.records import Decoded, Decoder, Fault, IntArray, with_rows
from joinery_runtime.job.model.inputs import Column
from joinery_runtime.job.model.time_formats import EPOCH_UNITS, ISO, MONTHS, TEXT, TimePattern, parse_pattern

_T = pl.col("t")
_MS_OF_A_DAY = 86_400_000
_MOST_DIGITS = 1_000  # of a number in JSON, written out or by its exponent
_OFFSET = r"(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"
_ISO = r"^(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2})(:\d{2})?(?:[.,](\d+))?)?\s?([Zz]|[+-]\d{2}(?::?\d{2})?)?$"


def as_text(schema: pa.Schema, columns: Sequence[Column]) -> pa.Schema:
    """Return the schema with text in place of the columns that have a format."""
    named = {column.name for column in columns}
    return pa.schema([pa.field(field.name, pa.string()) if field.name in named else field for field in schema])


class TextDecoder:
    """Reads `columns`, which have a format, into the types of `schema`. `texts` decodes them as text."""

    def __init__(self, schema: pa.Schema, columns: Sequence[Column], texts: Decoder) -> None:
        self._texts = texts
        self._columns = [(schema.field(column.name), column) for column in columns]

    def decode_batch(self, raw: RawBatch) -> Decoded:
        decoded = self._texts.decode_batch(raw)
        rows, faults = decoded.rows, list[Fault]()
        for field, column in self._columns:
            text = pl.Series(rows[field.name], dtype=pl.String)
            values, fault = read_texts(field, column, text)
            rows = rows.set_column(rows.schema.get_field_index(field.name), field, values)
            faults += fault
        return with_rows(decoded, rows, faults)


def read_texts(field: pa.Field, column: Column, text: pl.Series) -> tuple[pa.Array, list[Fault]]:
    """Read texts of a column as its format says. Returns the column, and at most one fault: those that do not fit."""
    written = column.format or ""
    if written == TEXT:
        return convert(field.name, text, field.type)
    if written in EPOCH_UNITS:
        times = _since_1970(text, EPOCH_UNITS[written])
    elif written == ISO:
        times = _read_iso(text, column.zone)
    else:
        try:
            pattern = parse_pattern(written, complete=False)
        except ValueError:  # of a plan of an earlier release
            times = _by_polars(text, written, column.zone)
        else:
            times = _read_pattern(text, pattern, column.zone)
    values = in_years(times)
    if pa.types.is_date(field.type):
        values = (values // _MS_OF_A_DAY).cast(pl.Int32)
    typed = values.to_arrow().cast(field.type)
    if typed.null_count == text.null_count():
        return typed, []
    failed = values.is_null() & text.is_not_null()
    reasons = []
    for value in text.filter(failed).to_list():
        lacks_zone = written == ISO and column.zone is None and not pl.Series([value]).str.contains(_OFFSET)[0]
        hint = " without a zone: name the column's `zone`" if lacks_zone else ""
        reasons.append(f"column {column.name}: {quote_value(value)} is no time of format {written}{hint}")
    return typed, [(failed.to_numpy(), reasons)]


def _since_1970(text: pl.Series, factor: int) -> pl.Series:
    integers = text.cast(pl.Int64, strict=False)
    if integers.null_count() == text.null_count():
        return _scale_numbers(integers, factor)
    # Numbers with a fraction, which counts only for seconds: for milliseconds and less it is cut off.
    parts = text.to_frame("t").select(
        whole=_T.str.extract(r"^([+-]?\d{1,18})(?:\.\d*)?$").cast(pl.Int64, strict=False),
        part=_T.str.extract(r"\.(\d{1,3})").str.pad_end(3, "0").cast(pl.Int64).fill_null(0),
        less=_T.str.starts_with("-"),
        number=pl.when(_T.str.contains(r"[eE]")).then(_T.cast(pl.Float64, strict=False)),
    )
    exact = _scale_numbers(parts["whole"], factor)
    if factor > 1:
        exact = exact + parts.select(pl.when("less").then(-pl.col("part")).otherwise("part"))["part"]
    scale = factor if factor > 0 else -1 / factor
    rough = (parts["number"] * scale).round().cast(pl.Int64, strict=False)
    return pl.DataFrame({"exact": exact, "rough": rough}).select(pl.coalesce("exact", "rough"))["exact"]


def _scale_numbers(numbers: pl.Series, factor: int) -> pl.Series:
    if factor < 0:
        return numbers // -factor
    # Numbers that would overflow are far outside the valid years.
    return pl.select(pl.when(numbers.abs() < 2**53).then(numbers)).to_series() * factor


def _read_iso(text: pl.Series, zone: str | None) -> pl.Series:
    parts = (
        text.str.strip_chars()
        .to_frame("t")
        .select(
            day=_T.str.extract(_ISO, 1),
            minute=_T.str.extract(_ISO, 2).fill_null("00:00"),
            second=_T.str.extract(_ISO, 3).fill_null(":00"),
            part=_T.str.extract(_ISO, 4).str.slice(0, 3).str.pad_end(3, "0").fill_null("000"),
            offset=_T.str.extract(_ISO, 5).str.to_uppercase().str.replace("Z", "+00:00", literal=True),
        )
    )
    local = pl.format("{}T{}{}.{}", "day", "minute", "second", "part")
    minutes = pl.col("offset").str.replace(r"^([+-]\d{2})$", "${1}:00").str.replace(r"^([+-]\d{2})(\d{2})$", "$1:$2")
    times = parts.select(
        zoned=pl.concat_str(local, minutes)
        .str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", strict=False, time_unit="ms")
        .dt.epoch("ms"),
        naive=pl.when(pl.col("offset").is_null())
        .then(local)
        .str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="ms")
        .dt.epoch("ms"),
    )
    if zone is None:
        return times["zoned"]
    return times.select(pl.coalesce("zoned", zone_to_utc(times["naive"], zone)))["zoned"]


def _read_pattern(text: pl.Series, pattern: TimePattern, zone: str | None) -> pl.Series:
    groups = text.str.extract_groups(f"^(?i:{pattern.expression})$").struct.unnest()
    fits = groups[min(pattern.parts - {"fraction"})].is_not_null()
    parts = {name: _read_numbers(name, groups[name]) for name in pattern.parts}
    zero = np.zeros(len(text), np.int64)
    fraction = parts.get("fraction", zero)
    if "epoch" in parts:
        before_1970 = groups["epoch"].str.starts_with("-").fill_null(False).to_numpy()
        times = parts["epoch"] * 1000 + fraction * np.where(before_1970, -1, 1)
    else:
        # What a pattern does not name is the first: the first month, the first day.
        first_of = np.ones(len(text), np.int64)
        years = parts.get("year", parts.get("year_of_century", first_of)) - 1970
        months = parts.get("month", parts.get("month_name"))
        if months is None and "day_of_year" in parts:
            first, day = years.astype("datetime64[Y]"), parts["day_of_year"]
        else:
            months = first_of if months is None else months
            first, day = (years * 12 + months - 1).astype("datetime64[M]"), parts.get("day", first_of)
        start, end = (edge.astype("datetime64[D]").astype(np.int64) for edge in (first, first + 1))
        days = start + day - 1
        hours = parts.get("hour", zero) + parts.get("hour_of_half", zero) % 12 + parts.get("half", zero)
        minutes = hours * 60 + parts.get("minute", zero)
        seconds = minutes * 60 + parts.get("second", zero) - parts.get("offset", zero)
        times = days * 86_400_000 + seconds * 1000 + fraction
        fits &= pl.Series(day <= end - start)  # whether the calendar has the day
    read = pl.select(pl.when(fits).then(pl.Series(times))).to_series()
    return read if zone is None or pattern.has_offset else zone_to_utc(read, zone)


def _by_polars(text: pl.Series, written: str, zone: str | None) -> pl.Series:
    """Read texts as earlier releases did, which left patterns to Polars: it knows more directives (`%C`, `%q`), and
    takes one twice."""
    has_offset = re.search(r"%:?z|%s", written) is not None
    pattern = written.replace(".%f", "%.f")  # a fraction in Python's patterns and in those of Polars
    utc = "UTC" if has_offset else None
    times = text.str.to_datetime(pattern, strict=False, time_unit="ms", time_zone=utc).dt.epoch("ms")
    return times if zone is None or has_offset else zone_to_utc(times, zone)


def _read_numbers(part: str, text: pl.Series) -> IntArray:
    """Read one part of each time as a number; 0 where the text does not fit the pattern."""
    match part:
        case "month_name":
            numbers = text.str.slice(0, 3).str.to_lowercase().replace_strict(MONTHS, range(1, 13), default=None)
        case "half":
            numbers = text.str.to_lowercase().replace_strict(["am", "pm"], [0, 12], default=None)
        case "fraction":
            numbers = text.str.slice(0, 3).str.pad_end(3, "0").cast(pl.Int64)
        case "offset":
            digits = text.str.to_uppercase().str.replace("Z", "+", literal=True).str.replace_all(":", "", literal=True)
            hours, minutes, seconds = (digits.str.pad_end(7, "0").str.slice(at, 2).cast(pl.Int64) for at in (1, 3, 5))
            numbers = (hours * 60 + minutes) * 60 + seconds
            numbers = numbers * pl.select(pl.when(digits.str.starts_with("-")).then(-1).otherwise(1)).to_series()
        case "year_of_century":
            numbers = text.cast(pl.Int64)
            numbers = numbers + pl.select(pl.when(numbers < 69).then(2000).otherwise(1900)).to_series()
        case _:
            numbers = text.str.strip_chars().cast(pl.Int64)
    return numbers.cast(pl.Int64).fill_null(0).to_numpy()


class JsonColumns:
    """Checks the columns with these names, which `values` decodes as text. Line breaks, which can only be between
    values, become blanks."""

    def __init__(self, names: Sequence[str], values: Decoder) -> None:
        self._names, self._values = names, values

    def decode_batch(self, raw: RawBatch) -> Decoded:
        decoded = self._values.decode_batch(raw)
        rows, faults = decoded.rows, list[Fault]()
        for name in self._names:
            reasons = [None if text is None else _find_fault(name, text) for text in rows[name].to_pylist()]
            if any(reasons):
                mask = np.array([reason is not None for reason in reasons])
                faults.append((mask, [reason for reason in reasons if reason is not None]))
            text = pc.replace_substring_regex(rows[name], r"[\r\n]", " ")
            rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, pa.string()), text)
        return with_rows(decoded, rows, faults)


def _find_fault(name: str, text: str) -> str | None:
    try:
        value = _JSON.decode(text)
    except (ValueError, RecursionError):
        return f"column {name}: {quote_value(text)} is not JSON"
    if "\\u" not in text:
        return None
    written = json.dumps(value, ensure_ascii=False)
    with suppress(UnicodeEncodeError):
        written.encode()
        if "\\u0000" not in written.replace("\\\\", ""):
            return None
    return f"column {name}: {quote_value(text)} has U+0000 or half of a surrogate pair, which jsonb has not"


def _check_digits(text: str) -> int:
    _, _, exponent = text.lower().partition("e")
    if len(text) > _MOST_DIGITS or abs(int(exponent or 0)) > _MOST_DIGITS:
        raise ValueError("too many digits")
    return 0


_JSON = json.JSONDecoder(parse_float=_check_digits, parse_int=_check_digits, parse_constant=reject_constant)
