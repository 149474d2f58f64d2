"""CSV records without a header line, decoded in whole batches; and the header of a CSV file, which names its columns.

Commas and double quotes, unless the input's dialect says otherwise. A quote inside quotes is doubled (RFC 4180); one
inside a field without quotes is text. A record may end with a line break and may contain others inside quotes. A BOM at
its start is not part of it.
An empty field is null. A quoted empty field is the empty string (or no bytes, for binary), and null for every other
type. `convert` reads numbers and times. The result does not depend on how records are cut into batches.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import Cut
from joinery_runtime.formats.convert import convert, convert_with_comma
from joinery_runtime.formats.opened_files import Bytes, files_of, name_input_in_errors, opened
from joinery_runtime.formats.record_ends import (
    LONGEST_RECORD,
    SAMPLE,
    line_end_of,
    next_line_end,
    record_ends,
    skip_bom,
)
from joinery_runtime.formats.records import (
    NULL_VALUE,
    BadRecord,
    ByValue,
    Decoded,
    Fault,
    FormatDecoder,
    IntArray,
    RejectedBatch,
    all_bad,
    drop_rows,
    in_pieces,
    is_json,
    join_lines,
    looks_like,
    may_contain,
    set_aside,
    with_bad,
    without_bom,
)
from joinery_runtime.job.model.base import OFF
from joinery_runtime.job.model.inputs import CsvDialect, Input

_USUAL = CsvDialect()
_NO_CSV = "not CSV"
_PARTS = 16  # a failed batch is cut into this many


class CsvDecoder(ByValue, FormatDecoder):
    """Decodes records whose fields come in the order of `names` (default: the schema's) into rows of `schema`.

    Columns in `names` that the schema does not have are skipped.
    """

    @classmethod
    def cut(cls, model: Input, /) -> Cut:
        dialect = model.csv or _USUAL
        quote = None if dialect.quote == OFF else ord(dialect.quote)
        return Cut(quote, dialect.header, dialect.separator, dialect.skip_initial_space)

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        """Make a decoder. The header of a file gives the order of its columns."""
        names = None
        if model.file is not None and (model.csv or _USUAL).header:
            with name_input_in_errors(model.name):
                names = csv_header(files_of(model.file.path)[0], schema.names, cls.cut(model))
        return cls(schema, names, model.csv or _USUAL)

    def __init__(self, schema: pa.Schema, names: Sequence[str] | None = None, dialect: CsvDialect = _USUAL) -> None:
        self._schema = schema
        self._quote = None if dialect.quote == OFF else dialect.quote.encode()
        self._parse = {"delimiter": dialect.separator, "quote_char": False if self._quote is None else dialect.quote}
        separator = re.escape(dialect.separator)
        field = rf"[^{separator}\r\n]*"
        if self._quote is not None:
            quote = re.escape(dialect.quote)
            field = rf"(?:{quote}(?:[^{quote}]|{quote}{quote})*{quote}|[^{quote}{separator}\r\n][^{separator}\r\n]*|)"
        self._well_formed = rf"\A{field}(?:{separator}{field})*\z"
        self._blanks = rf"(\A|{separator})[ \t]+({field})" if dialect.skip_initial_space else None
        self._decimal_comma = dialect.decimal == ","
        self._names = list(names or schema.names)
        self._convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(schema.names, pa.string()),
            include_columns=schema.names,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def decode(self, values: pa.BinaryArray) -> Decoded:
        records, index = values, np.arange(len(values), dtype=np.int64)
        foreign: list[BadRecord] = []
        if may_contain(values, b"\0"):
            # Binary data or UTF-16 text may happen to have as many separators as a record.
            strange = [
                value is not None and b"\0" in value and looks_like(value) is not None for value in values.to_pylist()
            ]
            values, index, foreign = set_aside(values, index, pa.array(strange, pa.bool_()), _NO_CSV)
        values, index, null = set_aside(values, index, values.is_null(), NULL_VALUE)
        values = without_bom(values)
        if may_contain(values, b"\n") or may_contain(values, b"\r"):
            values = pc.replace_substring_regex(values, r"[\r\n]+\z", "")
        values, index, empty = set_aside(values, index, pc.equal(pc.binary_length(values), 0), "empty record")
        if self._blanks is not None:
            values = pc.replace_substring_regex(values, self._blanks, r"\1\2")
        malformed: list[BadRecord] = []
        odd = (b"\n", b"\r") if self._quote is None else (self._quote, b"\n", b"\r")
        if any(may_contain(values, byte) for byte in odd):
            stray = pc.invert(pc.match_substring_regex(values, self._well_formed))
            values, index, malformed = set_aside(
                values, index, stray, f"{_NO_CSV}: a quote or a line break out of place"
            )
        decoded = with_bad(self._decode_indexed(values, index), [*foreign, *null, *empty, *malformed])
        if not decoded.bad:
            return decoded
        return replace(decoded, bad=[_with_likely_format(records, bad) for bad in decoded.bad])

    def _decode_indexed(self, values: pa.BinaryArray, index: IntArray) -> Decoded:
        if not len(values):
            return Decoded(self._schema.empty_table(), index, [])
        try:
            text, misshapen = self._read_texts(values)
        except RejectedBatch as rejection:
            if len(values) == 1:
                return Decoded(self._schema.empty_table(), index[:0], all_bad(index, str(rejection)))
            return in_pieces(self._decode_indexed, values, index, -(-len(values) // _PARTS))
        faults: list[Fault] = []
        columns: list[pa.Array | pa.ChunkedArray] = []
        for field in self._schema:
            if pa.types.is_string(field.type):
                columns.append(text[field.name])
                continue
            written = pl.Series(text[field.name], dtype=pl.String)
            if not pa.types.is_binary(field.type):
                written = written.to_frame("t").select(pl.when(pl.col("t") != "").then(pl.col("t")))["t"]
            has_point = pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
            read = convert_with_comma if has_point and self._decimal_comma else convert
            column, fault = read(field.name, written, field.type)
            if has_point and not self._decimal_comma:
                fault = [(rows, list(map(_with_hint, reasons))) for rows, reasons in fault]
            columns.append(column)
            faults += fault
        decoded = drop_rows(pa.table(columns, schema=self._schema), np.delete(index, list(misshapen)), faults)
        return with_bad(decoded, [BadRecord(int(index[row]), reason) for row, reason in misshapen.items()])

    def _read_texts(self, values: pa.BinaryArray) -> tuple[pa.Table, dict[int, str]]:
        """Return all columns as text, and by row the reason for each record with too few or too many fields.

        The records are well formed and not blank, so each gives exactly one row.
        """
        try:
            values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise RejectedBatch("not UTF-8") from error
        lines = join_lines(values)
        misshapen: dict[int, str] = {}

        def skip_row(row: pyarrow.csv.InvalidRow) -> str:
            misshapen[row.number - 1] = f"{_NO_CSV}: {row.actual_columns} fields instead of {row.expected_columns}"
            return "skip"

        try:
            text = pyarrow.csv.read_csv(
                pa.BufferReader(lines),
                read_options=pyarrow.csv.ReadOptions(
                    column_names=self._names, use_threads=False, block_size=len(lines)
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    newlines_in_values=self._quote is not None, invalid_row_handler=skip_row, **self._parse
                ),
                convert_options=self._convert,
            )
        except pa.ArrowInvalid as error:
            raise RejectedBatch(f"{_NO_CSV}: {error}") from error
        if text.num_rows + len(misshapen) != len(values):
            raise RejectedBatch(f"{_NO_CSV}: not one row")
        return text, misshapen


def _with_likely_format(values: pa.BinaryArray, bad: BadRecord) -> BadRecord:
    """Add to a bad record's reason what the record looks like, if it is recognised."""
    record = values[bad.index].as_py() or b""
    text = record.strip()
    nested = text[:1] + text[-1:] in (b"{}", b"[]")
    looks = looks_like(record) or ("JSON; write format: json" if nested and is_json(text) else None)
    return bad if looks is None else replace(bad, reason=f"{_NO_CSV}: it looks like {looks}")


def _with_hint(reason: str) -> str:
    """Say how to read a decimal comma, where the value that a reason quotes has one."""
    has_comma = re.search(r": '[+-]?\d[\d.]*,\d+' is", reason)
    return f'{reason}; for a decimal comma write csv: {{decimal: ","}}' if has_comma else reason


DECODER = CsvDecoder


def csv_header(path: str, columns: Sequence[str], cut: Cut) -> list[str]:
    """Return the names in a CSV file's header, in order. Raises SourceError if one of `columns` is missing."""
    with opened(path) as data:
        end = header_end(data, cut, line_end_of(data, cut))
        if end > LONGEST_RECORD:
            raise SourceError(
                f"The first line of {path} is no header",
                facts=f"it has {end:,} bytes, and a record has {LONGEST_RECORD:,} at most",
                todo="The first line of a CSV file must name its columns; without such a line, write "
                "csv: {header: false}",
            )
        line = data[:end].tobytes()
    text = io.StringIO(line.decode("utf-8-sig", errors="replace"), newline="")
    dialect: dict[str, Any] = {"delimiter": cut.separator, "skipinitialspace": cut.blanks_after_separator}
    dialect |= {"quoting": csv.QUOTE_NONE} if cut.quote is None else {"quotechar": chr(cut.quote)}
    names = next(csv.reader(text, **dialect), [])
    missing = [column for column in columns if column not in names]
    if missing and line.lstrip().startswith((b"{", b"[{")):
        raise SourceError(
            f"The file {path} looks like JSON",
            facts=f"it begins with {text.getvalue()[:60]!r}",
            todo="Write format: json",
        )
    if missing:
        raise SourceError(
            f"The header of {path} does not fit the schema",
            facts=f"no column {', '.join(missing)}; it has {', '.join(names) or 'no columns'}",
            todo=_other_dialect(names, columns)
            or "The first line of a CSV file must name every column of the schema; without such a line, write "
            "csv: {header: false}",
        )
    if len(set(names)) < len(names):
        raise SourceError(f"The header of {path} names a column twice", facts=", ".join(names))
    return names


def _other_dialect(names: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return what to write if the header has the columns, but between other separators or blanks."""
    separators = [None, ";", "\t", "|", ","] if len(names) == 1 else [None]
    for separator in separators:
        fields = names if separator is None else names[0].split(separator)
        if not set(columns) <= {field.strip(' "') for field in fields}:
            continue
        blanks = any(field.startswith(" ") for field in fields)
        settings = [] if separator is None else [f"separator: {json.dumps(separator)}"]
        settings += ["skipInitialSpace: true"] if blanks else []
        if settings:
            differences = (
                "another separator" * (separator is not None) + " and " * (len(settings) > 1) + "blanks" * blanks
            )
            return f"The fields have {differences}: write csv: {{{', '.join(settings)}}}"
        if any(field.endswith(" ") for field in fields):
            return "Blanks follow names of the header, and belong to them: take the blanks out of the header"
    return None


def header_end(data: Bytes, cut: Cut, line_end: int) -> int:
    """Return where the first record of a file ends, in bytes."""
    text, size = skip_bom(data), SAMPLE
    while True:
        complete = size >= len(text)
        ends = record_ends(text[:size], cut, line_end, complete=complete)
        if len(ends):
            return len(data) - len(text) + int(ends[0])
        if complete:
            return len(data)
        if size > LONGEST_RECORD:
            return next_line_end(data, size, len(data), line_end)
        size *= 2
