"""What a JSON record means: the reference decoders, which read any record. `JsonFallbackDecoder` reads flat records in
whole batches, `NestedJsonDecoder` reads nested ones one by one.

Polars reads the batch as newline-delimited JSON. It rejects anything but exactly one object per line, wrong types, and
integers out of range. It reformats numbers, arrays and objects in text columns, so `json_texts` looks up their original
texts. Decimals are read in a second pass by Arrow, which keeps their digits. (Arrow crashes on a top-level `null`, so
it must only see what Polars accepted, and on `1e-999999999`, so it sees no exponents below 0.) Of records whose names
may occur twice, and of those that Polars rejects though they are JSON (an undeclared number of 39 digits), both parsers
get the declared fields only (`_Selection`).

Rules beyond those of `convert`: a missing column is null; unknown names are ignored; of a name that occurs twice, the
last counts; a string column takes any value, a number, an array or an object as its original text (with a line break as
a space); date, binary and timestamp columns go by their text, so `"1700000000000"` is a timestamp too.

A column may have its value inside objects and arrays, by its path. A path leads nowhere if it meets a scalar or null
before its last step, or an object where it wants an array: the column is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from joinery_runtime.core.pipeline.operators import WIDEST, plain_decimal
from joinery_runtime.formats.convert import convert, fault, in_range, to_single_precision
from joinery_runtime.formats.json.faults import Explainer
from joinery_runtime.formats.json.texts import ESCAPED_NAME, texts, wanted_tree, with_own_texts
from joinery_runtime.formats.records import (
    NULL_VALUE,
    BadRecord,
    ByValue,
    Decoded,
    Fault,
    IntArray,
    RejectedBatch,
    all_bad,
    drop_rows,
    in_pieces,
    join_lines,
    may_contain,
    set_aside,
    with_bad,
)
from joinery_runtime.job.model.references import Path

_PIECE = 512  # records of a failed batch that are tried together and, if need be, explained one by one
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# How gzip, zlib and zstd begin. Polars would decompress the whole batch.
_COMPRESSED = (b"\x1f\x8b", b"x", b"\x28\xb5\x2f\xfd")
_WHOLE = re.compile(r"-?[0-9]+")
_LONG = 19  # characters of a number that may not fit 64 bits
# What may be an exponent below 0. Escapes may stand for the characters `-`, `.`, digits, `E` and `e`.
_MAY_BE_SMALL = r"[0-9.][eE]-|\\u00(?:2[dDeE]|3[0-9]|[46]5)"
_EXPONENT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")
_LONE_SURROGATE = "not JSON: half of a surrogate pair"

_DIRECT: dict[pa.DataType, type[pl.DataType]] = {
    pa.bool_(): pl.Boolean,
    pa.int32(): pl.Int32,
    pa.int64(): pl.Int64,
    pa.float32(): pl.Float64,
    pa.float64(): pl.Float64,
}


class JsonFallbackDecoder(ByValue):
    """Decodes any JSON objects into rows of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._explainer = Explainer(schema)
        self._selection = _Selection(schema, {})
        self._decimals = [field for field in schema if pa.types.is_decimal(field.type)]
        columns = [field for field in schema if not pa.types.is_decimal(field.type)] or list(schema)
        self._decimal_root = wanted_tree([(field.name,) for field in self._decimals])
        self._wire = {field.name: _DIRECT.get(field.type, pl.String) for field in columns}
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        # Most producers send integer times, for which text would be a detour. If reading as integers fails, the batch
        # is read again as text, so the result never depends on the flag.
        self._integer_times: dict[str, type[pl.DataType]] = dict.fromkeys(times, pl.Int64)
        self._try_integers = bool(times)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        index = np.arange(len(values), dtype=np.int64)
        values, index, null = set_aside(values, index, values.is_null(), NULL_VALUE)
        if may_contain(values, b"\n"):
            # A JSON string cannot hold a raw newline, so it is white space or an error that the parser will find.
            # Records that begin with a zero are not JSON. They stay unchanged, so that the explainer recognises them.
            values = pc.if_else(pc.starts_with(values, "\0"), values, pc.replace_substring(values, "\n", " "))
        broken: list[BadRecord] = []
        if may_contain(values, b"\\"):
            # Polars rejects half of an escaped pair, or reads it as U+0000. `\\` begins no escape.
            plain = pc.replace_substring(values, "\\\\", "__")
            high, low, pairs = (pc.count_substring_regex(plain, escape) for escape in (_HIGH, _LOW, _HIGH + _LOW))
            has_halves = pc.or_(pc.not_equal(high, pairs), pc.not_equal(low, pairs))
            values, index, broken = set_aside(values, index, has_halves, _LONE_SURROGATE)
        return with_bad(self._decode_indexed(values, index), [*null, *broken])

    def _decode_indexed(self, values: pa.BinaryArray, index: IntArray) -> Decoded:
        if not len(values):
            return Decoded(self._schema.empty_table(), index, [])
        try:
            lines = join_lines(values)
            frame, decimals = self._parse_lines(values, lines)
            nulls = {name: frame[name].null_count() for name in frame.columns}
            nulls |= {name: column.null_count for name, column in decimals.items()}
            twice = _names_twice(values, lines, nulls)
            if twice is None:
                return self._make_rows(values, frame, decimals, index)
            selected = pc.replace_with_mask(values, twice, self._selection.of(values.filter(twice)))
            return self._make_rows(selected, *self._parse_lines(selected, join_lines(selected)), index)
        except RejectedBatch:
            if len(values) > _PIECE:
                return in_pieces(self._decode_indexed, values, index, _PIECE)
            # The parsers reject at least one of the records. The only loop over records.
            reasons = [self._explainer.explain(record) for record in values.to_pylist()]
            bad = [
                BadRecord(position, reason) for position, reason in zip(index.tolist(), reasons, strict=True) if reason
            ]
            fine = np.array([reason is None for reason in reasons], np.bool_)
            return with_bad(self._decode_selected(self._selection.of(values.filter(pa.array(fine))), index[fine]), bad)

    def _decode_selected(self, values: pa.BinaryArray, index: IntArray) -> Decoded:
        """Decode records of declared fields only, in halves down to those that the parsers still reject."""
        if not len(values):
            return Decoded(self._schema.empty_table(), index, [])
        try:
            return self._make_rows(values, *self._parse_lines(values, join_lines(values)), index)
        except RejectedBatch as rejection:
            if len(values) == 1:
                return Decoded(self._schema.empty_table(), index[:0], all_bad(index, str(rejection)))
            return in_pieces(self._decode_selected, values, index, (len(values) + 1) // 2)

    def _parse_lines(self, values: pa.BinaryArray, lines: bytes) -> tuple[pl.DataFrame, dict[str, pa.ChunkedArray]]:
        """Return the columns of both parsers, one row per record. Raises RejectedBatch."""
        try:
            frame = _read_ndjson(lines, {**self._wire, **self._integer_times} if self._try_integers else self._wire)
        except RejectedBatch:
            if not self._try_integers:
                raise
            frame = _read_ndjson(lines, self._wire)
            self._try_integers = False
        if frame.height != len(values):
            raise RejectedBatch("empty record")
        if not self._decimals:
            return frame, {}
        # Arrow's JSON reader accepts values with too many digits before the point, so they are read with room to spare
        # and then cast, which rejects those values.
        roomy = pa.schema([pa.field(field.name, pa.decimal256(WIDEST, field.type.scale)) for field in self._decimals])
        try:
            lines = self._without_small_exponents(values, lines)
            table = pyarrow.json.read_json(
                pa.BufferReader(lines),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=roomy, unexpected_field_behavior="ignore"),
            )
            return frame, {field.name: table[field.name].cast(field.type) for field in self._decimals}
        except pa.ArrowInvalid as error:
            raise RejectedBatch(f"not readable as JSON with decimals: {error}") from error

    def _without_small_exponents(self, values: pa.BinaryArray, lines: bytes) -> bytes:
        """Rewrite records of `lines` in which a decimal may have an exponent below 0, as their decimals alone. Raises
        RejectedBatch where no decimal column holds the number."""
        may_be_small = pc.match_substring_regex(values, _MAY_BE_SMALL)
        if not pc.any(may_be_small).as_py():
            return lines
        plain = [self._plain_decimals(record) for record in values.filter(may_be_small).to_pylist()]
        return join_lines(pc.replace_with_mask(values, may_be_small, pa.array(plain, pa.binary())))

    def _plain_decimals(self, record: bytes) -> bytes:
        try:
            own = texts(record.decode(), self._decimal_root)
        except (ValueError, RecursionError, IndexError):
            own = None
        if own is None:
            raise RejectedBatch("not readable as JSON with decimals")
        fields = (
            f"{json.dumps(field.name, ensure_ascii=False)}:{_plain_decimal(field, own[column])}"
            for column, field in enumerate(self._decimals)
            if column in own
        )
        return f"{{{','.join(fields)}}}".encode()

    def _make_rows(
        self, values: pa.BinaryArray, frame: pl.DataFrame, decimals: Mapping[str, pa.ChunkedArray], index: IntArray
    ) -> Decoded:
        faults: list[Fault] = []
        columns = []
        for field in self._schema:
            if pa.types.is_decimal(field.type):
                columns.append(decimals[field.name])
                continue
            read = frame[field.name]
            if pa.types.is_string(field.type):
                read = with_own_texts(field.name, read, values)
            if read.dtype == pl.String and not pa.types.is_string(field.type):
                column, fault = convert(field.name, read, field.type)
            elif pa.types.is_float32(field.type):
                column, fault = to_single_precision(field.name, read)
            elif pa.types.is_timestamp(field.type):
                column, fault = in_range(field.name, read)
            else:
                column, fault = read.to_arrow().cast(field.type), []
            columns.append(column)
            faults += fault
        return drop_rows(pa.table(columns, schema=self._schema), index, faults)


class NestedJsonDecoder(ByValue):
    """Decodes nested JSON objects into rows of `schema`: takes the wanted texts out of each record, one by one, and has
    `JsonFallbackDecoder` decode flat objects that are made of them. `paths` are by column; others are fields of the
    record."""

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._selection = _Selection(schema, paths)
        self._judge = JsonFallbackDecoder(schema)
        self._explainer = Explainer(pa.schema([]))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        flat: list[bytes] = []
        positions: list[int] = []
        bad: list[BadRecord] = []
        for position, written in enumerate(values.to_pylist()):
            # A JSON string cannot hold a raw newline, so it is white space, or else an error.
            record = None if written is None else written.replace(b"\n", b" ")
            selected = None if record is None else self._selection.select(record)
            if selected is None:
                reason = NULL_VALUE if written is None else self._explainer.explain(written)
                bad.append(BadRecord(position, reason or "not readable as JSON"))
            else:
                flat.append(selected)
                positions.append(position)
        decoded = self._judge.decode(pa.array(flat, pa.binary()))
        return with_bad(decoded.at(np.array(positions, np.int64)), bad)


class _Selection:
    """Takes the columns of a schema out of JSON records: makes flat records that have each column once. `paths` are by
    column; others are fields of the record."""

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._root = wanted_tree([paths.get(name, (name,)) for name in schema.names])
        self._names = [json.dumps(name, ensure_ascii=False) for name in schema.names]
        self._types = schema.types

    def of(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """Select from each record. One that is no JSON object stays as it is."""
        return pa.array([self.select(record) or record for record in values.to_pylist()], pa.binary())

    def select(self, record: bytes) -> bytes | None:
        """Make a flat record of the columns' texts; None where the record is no JSON object."""
        try:
            own = texts(record.decode(), self._root)
        except (ValueError, RecursionError, IndexError):
            return None
        if own is None:
            return None
        fields = [f"{self._names[column]}:{self._write_value(column, text)}" for column, text in own.items()]
        return f"{{{','.join(fields)}}}".encode()

    def _write_value(self, column: int, text: str) -> str:
        """Write a value so that the parsers read it as its column says: they reject long numbers, and would reformat
        those in text."""
        target = self._types[column]
        if text[0] == '"' or text == "null":
            return text
        if pa.types.is_floating(target):
            return f"{text}.0" if _WHOLE.fullmatch(text) else text
        if target in _DIRECT or pa.types.is_decimal(target):
            return text
        short = pa.types.is_timestamp(target) and _WHOLE.fullmatch(text) and len(text) < _LONG
        return text if short else json.dumps(text, ensure_ascii=False)


def is_nested(schema: pa.Schema, paths: Mapping[str, Path]) -> bool:
    """Return whether a column of the schema is anything else than the record's field of its name."""
    return any(paths.get(name, (name,)) != (name,) for name in schema.names)


def _plain_decimal(field: pa.Field, text: str) -> str:
    """Write the JSON text of a decimal without an exponent. Raises RejectedBatch if no decimal holds the number."""
    number = json.loads(text) if text[0] == '"' else text
    if not _EXPONENT.fullmatch(number):
        return text
    plain = plain_decimal(number, field.type.scale)
    if plain is None:
        raise RejectedBatch(fault(field.name, number, field.type))
    return f'"{plain}"'


def _names_twice(values: pa.BinaryArray, lines: bytes, nulls: Mapping[str, int]) -> pa.BooleanArray | None:
    """Find the records in which a declared name may occur twice, or is written with an escape; None if there is none.
    `lines` are the records, `nulls` says how many have none or null under a name."""
    quoted = {json.dumps(name, ensure_ascii=False): len(values) - count for name, count in nulls.items()}
    often = [name for name, usual in quoted.items() if lines.count(name.encode()) > usual]
    if not often and b"\\" not in lines:
        return None
    records = pl.Series(values.cast(pa.string()))
    twice = records.str.contains(ESCAPED_NAME)
    # A name with an escape is a value without its name in quotes, which makes up for a name that occurs twice.
    for name in quoted if twice.any() else often:
        twice |= records.str.count_matches(name, literal=True) > 1
    return twice.to_arrow() if twice.any() else None


def _read_ndjson(lines: bytes, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    if lines.startswith(_COMPRESSED):
        raise RejectedBatch("not readable as JSON: no object begins so")
    try:
        return pl.read_ndjson(lines, schema=schema)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise RejectedBatch(f"not readable as JSON: {str(error).splitlines()[0]}") from error
