"""Values that a change event does not have, although the row has them: a database (Postgres: TOAST) does not log large
values that an update leaves alone, and Debezium writes a placeholder in their place.

The value is that of the row before, if the event has it, or that of the key's earlier version in a table (A1).
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.formats.records import BoolArray, ByValue, IntArray
from joinery_runtime.job.model.references import Path

_PLACEHOLDER = b"__debezium_unavailable_value"
_TEXT, _BASE64 = _PLACEHOLDER.decode(), base64.b64encode(_PLACEHOLDER).decode()
# Java's UUID.nameUUIDFromBytes, which stands in arrays of UUIDs.
_UUID = str(uuid.UUID(bytes=hashlib.md5(_PLACEHOLDER, usedforsecurity=False).digest(), version=3))
_WRITTEN = pa.array(
    [_TEXT, _BASE64]
    + [json.dumps(value, separators=(",", ":")) for value in ([_TEXT], [_BASE64], [_UUID], list(_PLACEHOLDER))]
    + [json.dumps({_TEXT: _TEXT}, separators=(",", ":"))]
)
_BEGINS = np.isin(np.arange(256), [text[0] for text in (_PLACEHOLDER, _BASE64.encode(), b"[", b"{")])
NOT_THERE = (
    "the event does not have the value (__debezium_unavailable_value), because the database did not log it; have it "
    "log whole rows (Postgres: REPLICA IDENTITY FULL), or leave the column out"
)


def placeholders(values: pa.ChunkedArray) -> BoolArray:
    """bool[n]: which of these texts or bytes stand for a value that the event does not have."""
    is_placeholder = np.zeros(len(values), np.bool_)
    # Most values do not begin as a placeholder does, or are too short: they are seen by their first byte only.
    before, positions = 0, [np.empty(0, np.int64)]
    for chunk in values.chunks:
        _, ends, data = chunk.buffers()
        if len(chunk) and data is not None and data.size:
            offsets = np.frombuffer(ends, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            long = np.flatnonzero(np.diff(offsets) >= len(_PLACEHOLDER))
            positions.append(before + long[_BEGINS[np.frombuffer(data, np.uint8)[offsets[long]]]])
        before += len(chunk)
    likely = np.concatenate(positions)
    if len(likely):
        candidates = values.take(pa.array(likely))
        if pa.types.is_binary(values.type):
            equal = pc.equal(candidates, _PLACEHOLDER)
        else:
            equal = pc.is_in(pc.replace_substring_regex(candidates, r"\s", ""), _WRITTEN)
        is_placeholder[likely] = pc.fill_null(equal, False).to_numpy()
    return is_placeholder


class UnavailableValues:
    """Takes the placeholders out of rows. `columns` are those of the row, with their `paths` in it; `make` makes a
    decoder of records into columns by their paths, and the envelope may be at one of the places `around`."""

    def __init__(
        self,
        columns: pa.Schema,
        paths: Mapping[str, Path],
        make: Callable[[pa.Schema, Mapping[str, Path]], ByValue],
        around: Sequence[Path],
    ) -> None:
        self._columns = columns
        self._before = [
            make(columns, {name: (*envelope_path, "before", *paths[name]) for name in columns.names})
            for envelope_path in around
        ]

    def without(
        self, rows: pa.Table, index: IntArray, values: pa.BinaryArray, firsts: Mapping[str, str]
    ) -> tuple[pa.Table, dict[str, BoolArray]]:
        """Return the rows, of the records at `index`, with values of the row before, or null, for placeholders; and by
        column which rows still lack its value. `firsts` names, for a column of another item of an array, the column
        with its first item, which is all that there is of an array without its values."""
        lacking: dict[str, BoolArray] = {}
        for name in self._columns.names:
            lacks = placeholders(rows[name])
            if name in firsts:
                lacks |= placeholders(rows[firsts[name]])
            if lacks.any():
                lacking[name] = lacks
        if not lacking:
            return rows, lacking
        anywhere = np.flatnonzero(np.logical_or.reduce(list(lacking.values())))
        records = values.take(pa.array(index[anywhere]))
        befores = [decoder.decode(records).in_place(len(records))[0] for decoder in self._before]
        for name, lacks in lacking.items():
            earlier = pc.coalesce(*(before[name] for before in befores))
            usable = earlier.is_valid().to_numpy() & ~placeholders(earlier)
            positions = np.zeros(len(index), np.int64)
            positions[anywhere] = np.arange(len(anywhere))
            has_earlier = np.zeros(len(index), np.bool_)
            has_earlier[anywhere[usable]] = True
            replacements = pc.if_else(
                pa.array(has_earlier), earlier.take(pa.array(positions)), pa.scalar(None, earlier.type)
            )
            column = pc.if_else(pa.array(lacks), replacements, rows[name])
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
            lacking[name] = lacks & ~has_earlier
        return rows, {name: lacks for name, lacks in lacking.items() if lacks.any()}


def names_of(lacking: Mapping[str, BoolArray], count: int) -> pa.Array:
    """For each of the rows the columns that it lacks, one a line; null: none."""
    if not lacking:
        return pa.nulls(count, pa.string())
    names = [[name for name, lacks in lacking.items() if lacks[row]] for row in range(count)]
    return pa.array(["\n".join(row_names) or None for row_names in names], pa.string())
