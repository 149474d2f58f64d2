"""Decodes columns that do not come from a record's value, but from its key, headers, timestamp or place in Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.convert import convert
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.records import ByValue, Decoded, Decoder, Fault, IntArray, read_utf8, with_rows
from joinery_runtime.job.model.inputs import Column, header_of

if TYPE_CHECKING:
    from joinery_runtime.formats.framed_keys import FramedKeys


class MetadataDecoder:
    """Adds `columns`, which have an origin, to the rows that `values` decodes, in the order of `schema`. If `values` is
    None, no column comes from the value, and records may lack one. `framed` reads keys with a registry's frame."""

    def __init__(
        self, schema: pa.Schema, columns: Sequence[Column], values: Decoder | None, *, framed: FramedKeys | None = None
    ) -> None:
        self._schema, self._values, self._framed = schema, values, framed
        self._columns = [column for column in columns if column.path is None]
        nested = [column for column in columns if column.path is not None]
        self._nested = pa.schema([schema.field(column.name) for column in nested])
        self._keys: ByValue | None = None
        if nested:
            inside = JsonDecoder(self._nested, {column.name: column.steps for column in nested})
            self._keys = inside if framed is None else framed.json(inside)

    def decode_batch(self, raw: RawBatch) -> Decoded:
        if self._values is None:
            count = len(raw.offsets)
            decoded = Decoded(pa.table({}), np.arange(count, dtype=np.int64), [])
        else:
            decoded = self._values.decode_batch(raw)
        index = decoded.index
        columns = {name: decoded.rows[name] for name in decoded.rows.column_names}
        faults: list[Fault] = []
        for column in self._columns:
            field = self._schema.field(column.name)
            if column.origin == "key" and self._framed is not None and not pa.types.is_binary(field.type):
                assert raw.keys is not None, "the reader gives keys where a column comes from them"
                texts, fault = _key_columns(self._framed.text(_Bytes()), raw.keys.take(pa.array(index)))
                values, rejected = _read_text(field, texts["key"].combine_chunks())
                fault += rejected
            else:
                values, fault = _metadata_column(raw, index, column, field)
            columns[column.name] = values
            faults += fault
        if self._keys is not None:
            assert raw.keys is not None, "the reader gives keys where a column comes from them"
            keys = pc.fill_null(raw.keys.take(pa.array(index)), b"{}")  # without a key, its columns are null
            key_columns, fault = _key_columns(self._keys, keys)
            columns |= {name: key_columns[name] for name in self._nested.names}
            faults += fault
        rows = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        return with_rows(decoded, rows, faults)


def _key_columns(decoder: ByValue, keys: pa.BinaryArray) -> tuple[pa.Table, list[Fault]]:
    """Return the columns of all keys, and the keys that `decoder` cannot read."""
    decoded = decoder.decode(keys)
    rows, is_readable = decoded.in_place(len(keys))
    return rows, [(~is_readable, [f"record key: {bad.reason}" for bad in decoded.bad])] if decoded.bad else []


class _Bytes(ByValue):
    """Decodes the values unchanged into one column."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return Decoded(pa.table({"key": values}), np.arange(len(values), dtype=np.int64), [])


def _metadata_column(raw: RawBatch, index: IntArray, column: Column, field: pa.Field) -> tuple[pa.Array, list[Fault]]:
    """Return a column for the records at these places of the batch, and the records whose value does not fit."""
    match column.origin:
        case "timestamp":
            assert raw.timestamps is not None, "a Kafka reader gives timestamps"
            times = raw.timestamps(index)
            return pa.array(times, pa.int64(), mask=times < 0).cast(field.type), []
        case "partition":
            return pa.repeat(raw.partition.partition, len(index)).cast(field.type), []
        case "topic":
            return pa.repeat(raw.partition.topic, len(index)), []
        case "offset":
            return pa.array(raw.offsets[index], pa.int64()), []
        case "key":
            assert raw.keys is not None, "the reader gives keys where a column comes from them"
            return _read_text(field, raw.keys.take(pa.array(index)))
        case origin:
            return _read_text(field, raw.headers[header_of(origin or "") or ""].take(pa.array(index)))


def _read_text(field: pa.Field, values: pa.BinaryArray) -> tuple[pa.Array, list[Fault]]:
    """Return the bytes unchanged for a binary column, else read as text by `convert`."""
    if pa.types.is_binary(field.type):
        return values, []
    text, garbled_faults = read_utf8(field.name, values)
    column, faults = convert(field.name, pl.Series(text, dtype=pl.String), field.type)
    return column, [*faults, *garbled_faults]
