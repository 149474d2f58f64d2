"""Decodes changelogs: records that are versions of a key, and records that delete it (rule A1).

A record without a value (a Kafka tombstone) is a deletion. Its key columns come from the record's key, and its event
time is the record's timestamp. In JSON, a row with `"$delete": true` is a deletion too, with key and event time in
columns like every row. Files and traces delete this way, and so can Kafka if a deletion needs its own event time. In
topics that Debezium has unwrapped, a field of the record (`deletedBy`) says the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.columns import UNAVAILABLE
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.convert import convert, quote_value
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.records import (
    BadRecord,
    ByValue,
    Decoded,
    Decoder,
    Fault,
    IntArray,
    drop_rows,
    merge_decoded,
    not_utf8,
    set_aside,
    with_bad,
)

if TYPE_CHECKING:
    from joinery_runtime.formats.framed_keys import FramedKeys

DELETE = "$delete"  # a user column cannot begin with $
DELETE_FIELD = pa.field(DELETE, pa.bool_())
DELETED_BY = "$deletedBy"  # the column with the field of the record that tells deletions

_TOMBSTONE = "deletion (null value)"


@dataclass(frozen=True, slots=True)
class Changelog:
    """The form of a table's rows: their schema, the key and event-time columns, and the format of record keys."""

    schema: pa.Schema
    key: tuple[str, ...]
    event_time: str
    key_format: Literal["json", "string"] = "json"

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.key])


class TableDecoder:
    """Decodes a changelog into rows of its schema. `values` decodes records that have a value; its rows also have
    DELETE_FIELD if the format tells deletions. `deleted_by` names a text column of `values`, and what it says in a
    deletion. With `tombstones_repeat` it gets all records. `framed` reads keys with a
    registry's frame."""

    def __init__(
        self,
        changelog: Changelog,
        values: Decoder,
        *,
        deleted_by: tuple[str, str] | None = None,
        tombstones_repeat: bool = False,
        framed: FramedKeys | None = None,
    ) -> None:
        self._changelog, self._values, self._repeated = changelog, values, tombstones_repeat
        self._deleted_by = deleted_by
        self._keys: ByValue
        if changelog.key_format == "string":
            text = _TextKeys(changelog.key_schema)
            self._keys = text if framed is None else framed.text(text)
        else:
            inside = JsonDecoder(changelog.key_schema)
            self._keys = inside if framed is None else framed.json(inside)

    def decode_batch(self, raw: RawBatch) -> Decoded:
        if self._repeated or not raw.values.null_count:
            return self._decode_versions(raw)
        null = raw.values.is_null().to_numpy(zero_copy_only=False)
        with_value, without = np.flatnonzero(~null), np.flatnonzero(null)
        versions = self._decode_versions(raw.take(with_value))
        assert raw.keys is not None, "the reader of a table input gives keys"
        assert raw.timestamps is not None, "the reader of a table input gives timestamps"
        tombstones = self._decode_tombstones(raw.keys.take(pa.array(without)), raw.timestamps(without))
        return merge_decoded(versions.at(with_value), tombstones.at(without))

    def _decode_versions(self, raw: RawBatch) -> Decoded:
        decoded = self._values.decode_batch(raw)
        rows = decoded.rows
        if UNAVAILABLE in rows.column_names:
            decoded = replace(decoded, unavailable=rows[UNAVAILABLE].combine_chunks())
        marks = [rows[DELETE]] if DELETE in rows.column_names else []
        if self._deleted_by is not None:
            column, value = self._deleted_by
            marks.append(pc.equal(rows[column], value))
        if not marks:
            return replace(
                decoded,
                rows=rows.select(self._changelog.schema.names),
                deleted=np.zeros(len(decoded.index), dtype=np.bool_),
            )
        deleted = reduce(pc.or_, [pc.fill_null(mark, False) for mark in marks])
        rows = rows.select(self._changelog.schema.names)
        if pc.any(deleted).as_py():
            # Of a deletion, only key and event time count.
            for at, field in enumerate(rows.schema):
                if field.name not in {*self._changelog.key, self._changelog.event_time}:
                    values = pc.if_else(deleted, pa.scalar(None, field.type), rows.column(at))
                    rows = rows.set_column(at, field, values)
        return replace(decoded, rows=rows, deleted=deleted.to_numpy())

    def _decode_tombstones(self, keys: pa.BinaryArray, times: IntArray) -> Decoded:
        """Decode deletions from the keys and the timestamps of their records."""
        index = np.arange(len(keys), dtype=np.int64)
        present, index, keyless = set_aside(keys, index, keys.is_null(), f"{_TOMBSTONE} without a record key")
        decoded = self._keys.decode(present).at(index)
        schema, event_times = self._changelog.schema, times[decoded.index]
        columns = {field.name: pa.nulls(len(event_times), field.type) for field in schema}
        faults: list[Fault] = []
        for name in decoded.rows.column_names:
            columns[name] = decoded.rows[name]
            # A key with a different layout, which lacks a column, would silently delete nothing.
            missing, reason = columns[name].is_null().to_numpy(), f"column {name} is missing or null"
            faults.append((missing, [self._rejection_reason(keys[i], reason) for i in decoded.index[missing].tolist()]))
        columns[self._changelog.event_time] = pa.array(event_times).cast(schema.field(self._changelog.event_time).type)
        untimed, reason = event_times < 0, "the record has no timestamp, which would be its event time"
        faults.append((untimed, [f"{_TOMBSTONE}: {reason}"] * int(untimed.sum())))
        usable = drop_rows(pa.table(columns, schema=schema), decoded.index, faults)
        rejected = [BadRecord(bad.index, self._rejection_reason(keys[bad.index], bad.reason)) for bad in decoded.bad]
        return replace(with_bad(usable, [*keyless, *rejected]), deleted=np.ones(len(usable.index), dtype=np.bool_))

    def _rejection_reason(self, key: pa.BinaryScalar, reason: str) -> str:
        text = key.as_py().decode(errors="replace")
        return f"{_TOMBSTONE} by record key {quote_value(text)}: {reason} (keyFormat {self._changelog.key_format})"


class _TextKeys(ByValue):
    """Decodes keys that are one column as text: a string unchanged, other types by `convert`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        index = np.arange(len(values), dtype=np.int64)
        values, index, garbled = set_aside(values, index, not_utf8(values), "not UTF-8")
        field = self._schema.field(0)
        column, faults = convert(field.name, pl.Series(values.cast(pa.string()), dtype=pl.String), field.type)
        return with_bad(drop_rows(pa.table([column], schema=self._schema), index, faults), garbled)
