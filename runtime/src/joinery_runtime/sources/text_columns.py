"""Decodes columns with a `format`: first as text, which is then read by the format.

A format names the unit of numbers (`s`, `ms`, `us`, `ns`), or the usual forms of ISO 8601 (`iso`), or a pattern for
times. Digits below a millisecond are cut off. `text` also accepts numbers and booleans in quotes. A local time that
occurs twice in its zone is the first of the two. One that the zone skips is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa

from joinery_runtime.job.model.inputs import Column
from joinery_runtime.job.model.times import EPOCH_UNITS, ISO, TEXT, has_offset
from joinery_runtime.sources.base import RawBatch
from joinery_runtime.sources.convert import convert, in_years, shown
from joinery_runtime.sources.records import Decoded, Decoder, Fault, drop_rows, with_bad

_T = pl.col("t")
_OFFSET = r"(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"
_ISO = r"^(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2})(:\d{2})?(?:[.,](\d{1,9}))?)?\s?([Zz]|[+-]\d{2}(?::?\d{2})?)?$"


def as_text(schema: pa.Schema, columns: Sequence[Column]) -> pa.Schema:
    """The schema with text in place of the columns that have a format."""
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
            made, fault = _read(field, column, text)
            rows = rows.set_column(rows.schema.get_field_index(field.name), field, made)
            faults += fault
        return with_bad(
            replace(drop_rows(rows, decoded.index, faults), deleted=decoded.deleted, dropped=decoded.dropped),
            decoded.bad,
        )


def _read(field: pa.Field, column: Column, text: pl.Series) -> tuple[pa.Array, list[Fault]]:
    written = column.format or ""
    if written == TEXT:
        return convert(field.name, text, field.type)
    if pa.types.is_date(field.type):
        values = text.str.to_date(written, strict=False)
    else:
        values = in_years(_reader(written, column.zone)(text))
    typed = values.to_arrow().cast(field.type)
    if typed.null_count == text.null_count():
        return typed, []
    failed = values.is_null() & text.is_not_null()
    return typed, [(failed.to_numpy(), [_fault(column, value) for value in text.filter(failed).to_list()])]


def _fault(column: Column, value: str) -> str:
    lacks_zone = column.format == ISO and column.zone is None and not pl.Series([value]).str.contains(_OFFSET)[0]
    hint = " without a zone: name the column's `zone`" if lacks_zone else ""
    return f"column {column.name}: {shown(value)} is no time of format {column.format}{hint}"


def _reader(written: str, zone: str | None) -> Callable[[pl.Series], pl.Series]:
    """Makes a function that reads texts as milliseconds since 1970; null for texts that are not times."""
    if written in EPOCH_UNITS:
        return lambda text: _since_1970(text, EPOCH_UNITS[written])
    if written == ISO:
        return lambda text: _iso(text, zone)
    return lambda text: _pattern(text, written, zone)


def _since_1970(text: pl.Series, factor: int) -> pl.Series:
    whole = text.cast(pl.Int64, strict=False)
    if whole.null_count() == text.null_count():
        return _scaled(whole, factor)
    # Numbers with a fraction, which counts only for seconds: for milliseconds and less it is cut off.
    parts = text.to_frame("t").select(
        whole=_T.str.extract(r"^([+-]?\d{1,18})(?:\.\d*)?$").cast(pl.Int64, strict=False),
        part=_T.str.extract(r"\.(\d{1,3})").str.pad_end(3, "0").cast(pl.Int64).fill_null(0),
        less=_T.str.starts_with("-"),
        number=pl.when(_T.str.contains(r"[eE]")).then(_T.cast(pl.Float64, strict=False)),
    )
    exact = _scaled(parts["whole"], factor)
    if factor > 1:
        exact = exact + parts.select(pl.when("less").then(-pl.col("part")).otherwise("part"))["part"]
    scale = factor if factor > 0 else -1 / factor
    rough = (parts["number"] * scale).round().cast(pl.Int64, strict=False)
    return pl.DataFrame({"exact": exact, "rough": rough}).select(pl.coalesce("exact", "rough"))["exact"]


def _scaled(numbers: pl.Series, factor: int) -> pl.Series:
    if factor < 0:
        return numbers // -factor
    # Numbers that would overflow are far outside the valid years.
    return pl.select(pl.when(numbers.abs() < 2**53).then(numbers)).to_series() * factor


def _iso(text: pl.Series, zone: str | None) -> pl.Series:
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
    found = parts.select(
        zoned=pl.concat_str(local, minutes).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", strict=False, time_unit="ms"),
        naive=pl.when(pl.col("offset").is_null())
        .then(local)
        .str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="ms"),
    )
    zoned = pl.col("zoned").dt.epoch("ms")
    return found.select(zoned if zone is None else pl.coalesce(zoned, _in_zone(pl.col("naive"), zone)))["zoned"]


def _pattern(text: pl.Series, written: str, zone: str | None) -> pl.Series:
    # A fraction is `.%f` in Python's patterns and `%.f` in those of Polars.
    known = written.replace(".%f", "%.f")
    found = text.str.to_datetime(known, strict=False, time_unit="ms", time_zone="UTC" if has_offset(known) else None)
    frame = found.to_frame("t")
    if has_offset(known) or zone is None:
        return frame.select(_T.dt.epoch("ms"))["t"]
    return frame.select(_in_zone(_T, zone).alias("t"))["t"]


def _in_zone(local: pl.Expr, zone: str) -> pl.Expr:
    return local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.epoch("ms")
