"""JSON columns: text that is checked when it is read, so that every output can hold it.

An object or an array in a record is taken as its own text. Text in a record (a Debezium column, a CSV field) is taken
as JSON. Faults are text that is not JSON, and text that Postgres cannot store as jsonb: U+0000, half of a surrogate
pair, numbers of thousands of digits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.convert import shown
from joinery_runtime.formats.json.texts import reject_constant
from joinery_runtime.formats.records import Decoded, Decoder, Fault, drop_rows, with_bad

_MOST_DIGITS = 1_000  # of a number, written out or by its exponent


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
        return with_bad(
            replace(drop_rows(rows, decoded.index, faults), deleted=decoded.deleted, dropped=decoded.dropped),
            decoded.bad,
        )


def _find_fault(name: str, text: str) -> str | None:
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return f"column {name}: {shown(text)} is not JSON"
    if "\\u" in text and not _is_text(json.dumps(value, ensure_ascii=False)):
        return f"column {name}: {shown(text)} has U+0000 or half of a surrogate pair, which jsonb has not"
    return None


def _is_text(written: str) -> bool:
    try:
        written.encode()
    except UnicodeEncodeError:
        return False
    return "\\u0000" not in written.replace("\\\\", "")


def _read_number(text: str) -> int:
    _, _, exponent = text.lower().partition("e")
    if len(text) > _MOST_DIGITS or abs(int(exponent or 0)) > _MOST_DIGITS:
        raise ValueError("too many digits")
    return 0


_DECODER = json.JSONDecoder(parse_float=_read_number, parse_int=_read_number, parse_constant=reject_constant)
