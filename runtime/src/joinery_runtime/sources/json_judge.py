"""What a JSON record means: the reference decoders, which read any record. `JsonJudge` reads flat records in whole
batches, `NestedJudge` reads nested ones one by one.

Polars reads the batch as newline-delimited JSON. It refuses anything but exactly one object per line, wrong types, and
integers out of range. It reformats numbers, arrays and objects in text columns, so `json_texts` looks up their original
texts. Decimals are read in a second pass by Arrow, which keeps their digits. (Arrow crashes on a top-level `null`, so
it must only see what Polars accepted.)

Rules beyond those of `convert`: a missing column is null; unknown names are ignored; of a name that occurs twice, the
first counts (if the schema has decimal columns, such a decimal is refused); a string column takes any value, a number,
an array or an object as its original text (with a line break as a space); date, binary and timestamp columns go by
their text, so `"1700000000000"` is a timestamp too.

A column may have its value inside objects and arrays, by its path. A path leads nowhere if it meets a scalar or null
before its last step, or an object where it wants an array: the column is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from joinery_runtime.job.model.paths import Path
from joinery_runtime.sources.convert import convert, in_range, narrow
from joinery_runtime.sources.json_faults import Explainer
from joinery_runtime.sources.json_texts import texts, tree, with_own_texts
from joinery_runtime.sources.records import (
    NULL_VALUE,
    BadRecord,
    ByValue,
    Decoded,
    Fault,
    IntArray,
    RefusedError,
    all_bad,
    drop_rows,
    in_pieces,
    joined,
    may_contain,
    set_aside,
    with_bad,
)

_PIECE = 512  # records of a failed batch that are tried together and, if need be, explained one by one
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_PAIR = _HIGH + r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# How gzip, zlib and zstd begin. Polars would decompress the whole batch.
_COMPRESSED = (b"\x1f\x8b", b"x", b"\x28\xb5\x2f\xfd")
_LONE_SURROGATE = "not JSON: half of a surrogate pair"

_DIRECT: dict[pa.DataType, type[pl.DataType]] = {
    pa.bool_(): pl.Boolean,
    pa.int32(): pl.Int32,
    pa.int64(): pl.Int64,
    pa.float32(): pl.Float64,
    pa.float64(): pl.Float64,
}


class JsonJudge(ByValue):
    """Decodes any JSON objects into rows of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._explainer = Explainer(schema)
        self._decimals = [field for field in schema if pa.types.is_decimal(field.type)]
        columns = [field for field in schema if not pa.types.is_decimal(field.type)] or list(schema)
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
            values, index, broken = set_aside(values, index, _lone_surrogates(values), _LONE_SURROGATE)
        return with_bad(self._decode(values, index), [*null, *broken])

    def _decode(self, values: pa.BinaryArray, index: IntArray) -> Decoded:
        if not len(values):
            return Decoded(self._schema.empty_table(), index, [])
        try:
            return self._read(values, index)
        except RefusedError as refusal:
            if len(values) > _PIECE:
                return in_pieces(self._decode, values, index, _PIECE)
            return self._decode_explained(values, index, str(refusal))

    def _decode_explained(self, values: pa.BinaryArray, index: IntArray, refusal: str) -> Decoded:
        """Decodes at most `_PIECE` records, at least one of them bad. The only loop over records."""
        reasons = [self._explainer.explain(record) for record in values.to_pylist()]
        if len(values) == 1:
            return Decoded(self._schema.empty_table(), index[:0], all_bad(index, reasons[0] or refusal))
        if not any(reasons):
            return in_pieces(self._decode, values, index, (len(values) + 1) // 2)
        fine = np.array([reason is None for reason in reasons])
        bad = [BadRecord(position, reason) for position, reason in zip(index.tolist(), reasons, strict=True) if reason]
        return with_bad(self._decode(values.filter(pa.array(fine)), index[fine]), bad)

    def _read(self, values: pa.BinaryArray, index: IntArray) -> Decoded:
        lines = joined(values)
        frame = self._frame(lines)
        if frame.height != len(values):
            raise RefusedError("empty record")
        decimals = _read_decimals(lines, self._decimals)
        faults: list[Fault] = []
        columns = []
        for field in self._schema:
            if pa.types.is_decimal(field.type):
                columns.append(decimals[field.name])
                continue
            read = frame[field.name]
            if pa.types.is_string(field.type):
                read = with_own_texts(field.name, read, values)
            column, fault = _typed(field, read)
            columns.append(column)
            faults += fault
        return drop_rows(pa.table(columns, schema=self._schema), index, faults)

    def _frame(self, lines: bytes) -> pl.DataFrame:
        if self._try_integers:
            try:
                return _read_ndjson(lines, {**self._wire, **self._integer_times})
            except RefusedError:
                frame = _read_ndjson(lines, self._wire)
                self._try_integers = False
                return frame
        return _read_ndjson(lines, self._wire)


class NestedJudge(ByValue):
    """Decodes nested JSON objects into rows of `schema`: takes the wanted texts out of each record, one by one, and has
    `JsonJudge` decode flat objects that are made of them. `paths` are by column; others are fields of the record."""

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._root = tree([paths.get(name, (name,)) for name in schema.names])
        self._names = [json.dumps(name, ensure_ascii=False) for name in schema.names]
        self._text = [pa.types.is_string(each.type) for each in schema]
        self._judge = JsonJudge(schema)
        self._explainer = Explainer(pa.schema([]))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        flat: list[bytes] = []
        places: list[int] = []
        bad: list[BadRecord] = []
        for place, written in enumerate(values.to_pylist()):
            # A JSON string cannot hold a raw newline, so it is white space, or else an error.
            record = None if written is None else written.replace(b"\n", b" ")
            made = None if record is None else self._flat(record)
            if made is None:
                reason = NULL_VALUE if written is None else self._explainer.explain(written)
                bad.append(BadRecord(place, reason or "not readable as JSON"))
            else:
                flat.append(made)
                places.append(place)
        decoded = self._judge.decode(pa.array(flat, pa.binary()))
        return with_bad(decoded.at(np.array(places, np.int64)), bad)

    def _flat(self, record: bytes) -> bytes | None:
        """A flat object of the wanted texts; None where the record is no JSON object."""
        try:
            text = record.decode()
            found = texts(text, self._root)
        except (ValueError, RecursionError, IndexError):
            return None
        if found is None:
            return None
        fields = [f"{self._names[column]}:{self._written(column, value)}" for column, value in found.items()]
        return f"{{{','.join(fields)}}}".encode()

    def _written(self, column: int, value: str) -> str:
        """An object or an array in a string column is its own text."""
        return json.dumps(value, ensure_ascii=False) if self._text[column] and value[0] in "{[" else value


def is_nested(schema: pa.Schema, paths: Mapping[str, Path]) -> bool:
    """Whether a column of the schema is anything else than the record's field of its name."""
    return any(paths.get(name, (name,)) != (name,) for name in schema.names)


def _lone_surrogates(values: pa.BinaryArray) -> pa.BooleanArray:
    r"""Finds records with half of an escaped pair, which Polars silently reads as U+0000. `\\` is no escape's start."""
    plain = pc.replace_substring(values, "\\\\", "__")
    return pc.not_equal(pc.count_substring_regex(plain, _HIGH), pc.count_substring_regex(plain, _PAIR))


def _read_ndjson(lines: bytes, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    if lines.startswith(_COMPRESSED):
        raise RefusedError("not readable as JSON: no object begins so")
    try:
        return pl.read_ndjson(lines, schema=schema)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise RefusedError(f"not readable as JSON: {str(error).splitlines()[0]}") from error


def _read_decimals(lines: bytes, fields: list[pa.Field]) -> dict[str, pa.ChunkedArray]:
    """Reads decimal columns, by name. Arrow's JSON reader accepts values with too many digits before the point, so they
    are read with room to spare and then cast, which refuses them."""
    if not fields:
        return {}
    roomy = pa.schema([pa.field(field.name, pa.decimal256(76, field.type.scale)) for field in fields])
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=roomy, unexpected_field_behavior="ignore"),
        )
        return {field.name: table[field.name].cast(field.type) for field in fields}
    except pa.ArrowInvalid as error:
        raise RefusedError(f"not readable as JSON with decimals: {error}") from error


def _typed(field: pa.Field, column: pl.Series) -> tuple[pa.Array, list[Fault]]:
    if column.dtype == pl.String and not pa.types.is_string(field.type):
        return convert(field.name, column, field.type)
    if pa.types.is_float32(field.type):
        return narrow(field.name, column)
    if pa.types.is_timestamp(field.type):
        return in_range(field.name, column)
    return column.to_arrow().cast(field.type), []
