"""What a JSON record means: the decoder that reads all of them, in whole batches.

Polars reads the batch as newline-delimited JSON; it refuses what is not exactly one object per line, wrong types and
integers out of range. It prints numbers, arrays and objects in text columns anew, so `json_texts` looks for their
own texts, and decimals are read by a second pass with Arrow, which keeps their digits (and crashes on a top-level
`null`: it must only see what Polars accepted).

What the rules of `convert` leave open: a missing column is null; unknown names are ignored; of a name that occurs twice
the first counts (with decimal columns in the schema such a decimal is refused); a string column takes any value: a
number, an array or an object as the text that the record has (a line break in it as a space); date, binary and
timestamp columns go by their text, so `"1700000000000"` is a timestamp too.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from joinery_runtime.sources.convert import convert, in_range, narrow
from joinery_runtime.sources.json_faults import Explainer
from joinery_runtime.sources.json_texts import with_own_texts
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

_PIECE = 512  # records of a failed batch that are tried, and if need be explained one by one, together
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_PAIR = _HIGH + r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# How gzip, zlib and zstd begin: Polars would unpack the whole batch.
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
    """Decodes JSON objects into rows of `schema`, whatever they hold."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._explainer = Explainer(schema)
        self._decimals = [field for field in schema if pa.types.is_decimal(field.type)]
        columns = [field for field in schema if not pa.types.is_decimal(field.type)] or list(schema)
        self._wire = {field.name: _DIRECT.get(field.type, pl.String) for field in columns}
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        # Most producers send integer times, for which text would be a detour. What integers cannot read is read again
        # as text, so the result never depends on the flag.
        self._integer_times: dict[str, type[pl.DataType]] = dict.fromkeys(times, pl.Int64)
        self._try_integers = bool(times)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        index = np.arange(len(values), dtype=np.int64)
        values, index, null = set_aside(values, index, values.is_null(), NULL_VALUE)
        if may_contain(values, b"\n"):
            # A JSON string cannot hold a raw newline, so it is white space, or else an error that the parser sees.
            # Records that begin with a zero are no JSON, and stay as they are for the explainer to recognise.
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
        """The only loop over records: at most `_PIECE` of them, among which at least one is known to be bad."""
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


def _lone_surrogates(values: pa.BinaryArray) -> pa.BooleanArray:
    r"""Records with half of an escaped pair, which Polars would silently read as U+0000; `\\` is no escape's start."""
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
    """Columns by name. The JSON reader lets values through that have too many digits before the point; reading them
    with room to spare and casting refuses these."""
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
