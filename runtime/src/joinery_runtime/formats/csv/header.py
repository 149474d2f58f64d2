"""Reads the header of a CSV file, which names its columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import Cut
from joinery_runtime.formats.opened_files import Bytes, opened
from joinery_runtime.formats.record_ends import (
    LONGEST_RECORD,
    SAMPLE,
    line_end_of,
    next_line_end,
    record_ends,
    without_bom,
)


def csv_header(path: str, columns: Sequence[str], cut: Cut) -> list[str]:
    """The names in a CSV file's header, in order. Raises SourceError if one of `columns` is missing."""
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
    """What to write if the header has the columns, but between other separators or blanks."""
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
    text, size = without_bom(data), SAMPLE
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
