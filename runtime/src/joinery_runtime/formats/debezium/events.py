"""Change events of Debezium: an envelope with the row before and after a change of a database, and what was done.

    {"op": "u", "before": {...}, "after": {...}, "source": {...}, "ts_ms": 1700000000000}

Rows that were created, read by a snapshot or updated (`c`, `r`, `u`) are the row after. A stream may leave some of them
out (`debezium.ops`). A deletion (`d`) has the row before; some databases log only its key. In a table a deletion
deletes; in a stream, which has no deletions, it is dropped and counted, as is the record without a value that follows
each deletion for the sake of compaction.
Anything else (`t`, a table was emptied) is a bad record.

Dates are days since 1970. Where the connector's schema is beside the envelope (JSON) or each record names it (Avro), it
says what numbers of timestamp columns count, and which text is the bytes of a decimal. MongoDB's rows are
documents, which are text of JSON (`_Documents`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.operators import event_times
from joinery_runtime.core.table.columns import UNAVAILABLE
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.connect_types import (
    TIMES,
    decimal_in_base64,
    name_in_json,
    scale_in_json,
    variable_decimal,
)
from joinery_runtime.formats.convert import checked_column, convert, in_years
from joinery_runtime.formats.debezium.unavailable import NOT_THERE, UnavailableValues, names_of, placeholders
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.json.texts import is_number_in_json
from joinery_runtime.formats.records import (
    BadRecord,
    BoolArray,
    ByValue,
    Decoded,
    Decoder,
    Fault,
    FormatDecoder,
    IntArray,
    LeftOut,
    all_bad,
    drop_rows,
    merge_decoded,
    with_bad,
)
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.inputs import Column, Debezium, Input
from joinery_runtime.job.model.references import Path

DELETE = "$delete"
_OP = "$op"
BEFORE = "before."
_FIRST = "first."
_ROWS = pa.array(["c", "r", "u"])
_SCHEMA = "$schema"
_NO_CHANGE = "not a change of a row by Debezium"
_NO_ROW_BEFORE = (
    "its op 'd' comes without the row before, and so without a key; have the connector send that row "
    "(MongoDB: capture.mode change_streams_update_full_with_pre_image)"
)
_NO_ROW_AFTER = (
    "its op {!r} comes without the row after; have the connector send that row "
    "(MongoDB: capture.mode change_streams_update_full)"
)
_MOST_SCHEMAS = 64  # of the connector's that a decoder remembers
_NO_SCALE = 100_000  # stands for scale 0, so that 0 says that there is none
# What MongoDB's extended JSON wraps values in. Inside of JSON's texts quotes are escaped, so that none of the patterns
# begins there.
_WRAPPERS = {"$oid", "$date", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal"}
_UNWRAPPED = (
    (r'\{\s*"\$number(?:Int|Long|Double|Decimal)"\s*:\s*"(-?[0-9][-+.0-9eE]*)"\s*\}', "$1"),
    (r'\{\s*"\$number(?:Double|Decimal)"\s*:\s*"[^"]*"\s*\}', "null"),
    (r'\{\s*"\$(?:oid|date)"\s*:\s*("[^"]*"|-?[0-9]+)\s*\}', "$1"),
)

Make = Callable[[pa.Schema, Mapping[str, Path]], ByValue]


class ChangeEvents(ByValue):
    """Decodes change events into rows of `schema`, which for a table has DELETE last. `make` makes a decoder of records
    into columns by their paths, `make_json` one of texts of JSON; the envelope may be inside of the record at one of
    the places `around`."""

    def __init__(
        self, schema: pa.Schema, model: Input, make: Make, make_json: Make, around: Sequence[Path] = ((),)
    ) -> None:
        self._schema, self._deletes = schema, DELETE in schema.names
        self._rows = pa.schema([field for field in schema if field.name not in (DELETE, UNAVAILABLE)])
        envelope_paths = {column.name: column.steps for column in model.columns if column.origin == "envelope"}
        row_paths = {column.name: column.steps for column in model.columns if column.origin is None}
        key = model.table.key if model.table is not None else ()
        self._ops = pa.array((model.debezium or Debezium()).ops)
        # A deletion has its key, and perhaps its event time, in the row before.
        self._before = [name for name in self._rows.names if name in {*key, model.event_time} and name in row_paths]
        # Of an array without its values only the first item says so.
        self._firsts = {
            name: _FIRST + name for name, path in row_paths.items() if isinstance(path[-1], int) and path[-1] > 0
        }
        self._decoders = [
            _Envelope(*self._envelope_columns(envelope_paths, row_paths), envelope_path, make)
            for envelope_path in around
        ]
        large = [name for name in row_paths if _may_be_large(self._rows.field(name).type)]
        self._large = pa.schema([self._rows.field(name) for name in large])
        self._beside = [name for name in envelope_paths if _may_be_large(self._rows.field(name).type)]
        self._fixed = {*key, model.event_time}
        self._unavailable = UnavailableValues(self._large, row_paths, make, around)
        texts = {
            f"{side}{number}": (*envelope_path, side)
            for number, envelope_path in enumerate(around)
            for side in ("after", "before")
        }
        self._texts = make(pa.schema([pa.field(name, pa.string()) for name in texts]), texts)
        self._documents = _Documents(pa.schema([self._rows.field(name) for name in row_paths]), row_paths, make_json)

    def _envelope_columns(
        self, envelope_paths: Mapping[str, Path], row_paths: Mapping[str, Path]
    ) -> tuple[pa.Schema, dict[str, Path]]:
        """Return the columns of an envelope, and their paths."""
        paths: dict[str, Path] = {_OP: ("op",)}
        for name in self._rows.names:
            paths[name] = envelope_paths[name] if name in envelope_paths else ("after", *row_paths[name])
        before = self._before if self._deletes else []
        paths |= {BEFORE + name: ("before", *row_paths[name]) for name in before}
        paths |= {first: ("after", *row_paths[name][:-1], 0) for name, first in self._firsts.items()}
        fields = [
            pa.field(_OP, pa.string()),
            *self._rows,
            *(pa.field(column, pa.string()) for column in self._firsts.values()),
        ]
        return pa.schema([*fields, *(self._rows.field(name).with_name(BEFORE + name) for name in before)]), paths

    def decode(self, values: pa.BinaryArray) -> Decoded:
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        present_values = values if len(present) == len(values) else values.take(pa.array(present))
        first, *fallbacks = self._decoders
        events = first.decode(present_values)
        for number, other in enumerate(fallbacks, start=1):
            lacks_envelope = events.rows[_OP].is_null().to_numpy(zero_copy_only=False)
            if not lacks_envelope.any():
                break
            positions = events.index[lacks_envelope]
            redecoded = other.decode(present_values.take(pa.array(positions))).at(positions)
            if lacks_envelope.all():  # the topic's form, most likely: begin with it
                self._decoders.insert(0, self._decoders.pop(number))
            with_envelope = events.rows.filter(pa.array(~lacks_envelope))
            events = merge_decoded(Decoded(with_envelope, events.index[~lacks_envelope], events.bad), redecoded)
        decoded = self._decode_changes(present_values, self._with_documents(present_values, events)).at(present)
        without_value = len(values) - len(present)
        dropped = {**decoded.dropped, **({"tombstone": without_value} if without_value else {})}
        return Decoded(decoded.rows, decoded.index, decoded.bad, dropped=dropped)

    def _with_documents(self, values: pa.BinaryArray, events: Decoded) -> Decoded:
        """Return the same, with the columns of rows that are documents. Only where an event has no value for any column
        of its row does one look for a document, and whether there is a row at all."""
        rows, names = events.rows, self._documents.names
        deletion = pc.fill_null(pc.equal(rows[_OP], "d"), False).to_numpy()
        row = pc.fill_null(pc.is_in(rows[_OP], self._ops), False).to_numpy()
        before = [BEFORE + name for name in self._before] if self._deletes else []
        lacks = (row & _all_null(rows, names)) | (deletion & _all_null(rows, before))
        if not names or not lacks.any():
            return events
        texts = self._texts.decode(values.take(pa.array(events.index[lacks]))).at(np.flatnonzero(lacks))
        sides = {
            side: [texts.rows[name] for name in texts.rows.column_names if name.startswith(side)]
            for side in ("after", "before")
        }
        is_deletion = pa.array(deletion[texts.index])
        written = pc.if_else(is_deletion, pc.coalesce(*sides["before"]), pc.coalesce(*sides["after"]))
        is_written = pc.is_valid(written).to_numpy()
        unread = [replace(bad, index=int(events.index[bad.index])) for bad in texts.bad]
        for position in texts.index[~is_written].tolist():
            reason = _NO_ROW_BEFORE if deletion[position] else _NO_ROW_AFTER.format(rows[_OP][position].as_py())
            unread.append(BadRecord(int(events.index[position]), f"{_NO_CHANGE}: {reason}"))
        positions = texts.index[is_written]
        documents = self._documents.decode(written.filter(pa.array(is_written)))
        decoded_positions = positions[documents.index]
        is_deletion, table = pa.array(deletion[decoded_positions]), rows.take(pa.array(decoded_positions))
        for name in names:
            value, nothing = documents.rows[name], pa.scalar(None, documents.rows[name].type)
            table = _replace_column(table, name, pc.if_else(is_deletion, nothing, value))
            if BEFORE + name in before:
                table = _replace_column(table, BEFORE + name, pc.if_else(is_deletion, value, nothing))
        complete = Decoded(rows.filter(pa.array(~lacks)), events.index[~lacks], events.bad)
        return with_bad(
            merge_decoded(complete, Decoded(table, documents.index, documents.bad).at(events.index[positions])), unread
        )

    def _decode_changes(self, values: pa.BinaryArray, events: Decoded) -> Decoded:
        op = events.rows[_OP]
        row = pc.fill_null(pc.is_in(op, _ROWS), False).to_numpy()
        deletion = pc.fill_null(pc.equal(op, "d"), False).to_numpy()
        bad: list[BadRecord] = []
        for position in np.flatnonzero(~row & ~deletion).tolist():
            done = op[position].as_py()
            reason = "it has no op" if done is None else f"its op {done!r} changes no row"
            bad += all_bad(events.index[position : position + 1], f"{_NO_CHANGE}: {reason}")
        changes = row | deletion if self._deletes else row
        change_rows = events.rows.filter(pa.array(changes))
        deleted = pa.array(deletion[changes])
        columns = {name: change_rows[name] for name in self._rows.names}
        for name in self._before if self._deletes else ():
            columns[name] = pc.if_else(deleted, change_rows[BEFORE + name], change_rows[name])
        columns |= {first: change_rows[first] for first in self._firsts.values()}
        completed, lacking = self._unavailable.without(pa.table(columns), events.index[changes], values, self._firsts)
        columns = {name: completed[name] for name in self._rows.names}
        lacking |= {name: lacks for name in self._beside if (lacks := placeholders(completed[name])).any()}
        if self._deletes:
            columns[DELETE] = deleted
        dropped = {} if self._deletes or not deletion.any() else {"deletion": int(deletion.sum())}
        if UNAVAILABLE in self._schema.names:
            columns[UNAVAILABLE] = names_of(lacking, len(deleted))
        rows = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        # Values of a stream, of a key or of what is beside the row are nowhere else. Events left out need none.
        is_selected = pc.is_in(change_rows[_OP], self._ops).to_numpy() if lacking else np.empty(0, np.bool_)
        nowhere = {*lacking} if UNAVAILABLE not in self._schema.names else {*lacking} & {*self._fixed, *self._beside}
        masks = {name: lacking[name] & is_selected for name in lacking if name in nowhere}
        faults = [(mask, [f"column {name}: {NOT_THERE}"] * int(mask.sum())) for name, mask in masks.items()]
        usable = drop_rows(rows, events.index[changes], faults)
        return with_bad(with_bad(replace(usable, dropped=dropped), events.bad), bad)


def _may_be_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


class DebeziumJsonDecoder(ByValue, FormatDecoder):
    """Decodes change events into rows of `schema`."""

    tells_deletions: ClassVar[bool] = True
    tombstones_repeat: ClassVar[bool] = True

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(ChangeEvents(schema, model, JsonDecoder, JsonDecoder, around=((), ("payload",))))

    def __init__(self, events: ChangeEvents) -> None:
        self._events = events

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return self._events.decode(values)


DECODER = DebeziumJsonDecoder


class _Envelope(ByValue):
    """Decodes an envelope at one place of a record into `columns`, whose `paths` are from there on."""

    def __init__(self, columns: pa.Schema, paths: Mapping[str, Path], envelope_path: Path, make: Make) -> None:
        self._columns, self._paths = columns, paths
        self._dates = [field for field in columns if pa.types.is_date(field.type)]
        # Only beside a payload there is a schema, and only of rows does it name times and decimals.
        in_rows = [field for field in columns if paths[field.name][0] in ("before", "after")] if envelope_path else []
        self._times = [field for field in in_rows if pa.types.is_timestamp(field.type)]
        self._decimals = [field for field in in_rows if pa.types.is_decimal(field.type)]
        text = {field.name for field in (*self._dates, *self._times, *self._decimals)}
        wire = pa.schema([field.with_type(pa.string()) if field.name in text else field for field in columns])
        inside: dict[str, Path] = {name: (*envelope_path, *path) for name, path in paths.items()}
        if self._times or self._decimals:
            wire, inside[_SCHEMA] = wire.append(pa.field(_SCHEMA, pa.string())), (*envelope_path[:-1], "schema")
        self._decoder, self._inside = make(wire, inside), inside
        self._factors_by_schema: dict[str, Mapping[str, int]] = {}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        decoded = self._decoder.decode(values)
        rows, faults = decoded.rows, list[Fault]()
        for field in self._dates:
            column, fault = days(field, pl.Series(rows[field.name], dtype=pl.String))
            rows, faults = _replace_column(rows, field.name, column), [*faults, *fault]
        if self._times or self._decimals:
            schemas = rows[_SCHEMA].combine_chunks().dictionary_encode()
            units = [self._schema_units(text) for text in schemas.dictionary.to_pylist()]
            schema_index = pc.fill_null(schemas.indices, len(units)).to_numpy()
            for field in (*self._times, *self._decimals):
                named = np.array([*(factors.get(field.name, 0) for factors in units), 0], np.int64)[schema_index]
                text = pl.Series(rows[field.name], dtype=pl.String)
                if pa.types.is_timestamp(field.type):
                    column, fault = counted_times(field, text, named)
                else:
                    numbers = self._without_base64(field, text, named, values, decoded.index)
                    column, fault = convert(field.name, numbers, field.type)
                rows, faults = _replace_column(rows, field.name, column), [*faults, *fault]
        return with_bad(drop_rows(rows.select(self._columns.names), decoded.index, faults), decoded.bad)

    def _without_base64(
        self, field: pa.Field, text: pl.Series, scales: IntArray, values: pa.BinaryArray, index: IntArray
    ) -> pl.Series:
        """Return the texts of numbers, with digits in place of what the schemas say is the bytes of a decimal."""
        path = self._inside[field.name]

        def is_number(row: int) -> bool:
            return is_number_in_json(values[int(index[row])].as_py(), path)

        return with_digits(text, scales - _NO_SCALE, scales != 0, is_number)

    def _schema_units(self, written: str) -> Mapping[str, int]:
        """By column what the schema says that its times count, or the scale of its decimals, counted from _NO_SCALE."""
        if written not in self._factors_by_schema:
            if len(self._factors_by_schema) >= _MOST_SCHEMAS:
                self._factors_by_schema.clear()
            schema: Any = None
            with suppress(ValueError, RecursionError):  # text that is no schema names nothing
                schema = json.loads(written)
            names = {field.name: name_in_json(schema, self._paths[field.name]) or "" for field in self._times}
            scales = {field.name: scale_in_json(schema, self._paths[field.name]) for field in self._decimals}
            self._factors_by_schema[written] = {
                **{column: TIMES[name] for column, name in names.items() if name in TIMES},
                **{column: scale + _NO_SCALE for column, scale in scales.items() if scale is not None},
            }
        return self._factors_by_schema[written]


class _Documents:
    r"""Decodes documents of MongoDB into rows of `schema`, by paths from the document on: text of JSON, in which
    MongoDB's extended JSON has the types. `make_json` makes a decoder of JSON.

        {"after": "{\"_id\": {\"$oid\": \"65f...\"}, \"amount\": {\"$numberLong\": \"7\"}}", "op": "c"}

    Numbers, times and object ids are read as the values that they wrap; what has no value of its own in JSON (NaN) is
    null. A path may name the wrapper, as the document has it, or not: `_id.$oid` is `_id`. Other wrappers (`$binary`)
    are objects as any.
    """

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path], make_json: Make) -> None:
        self._schema = schema
        inside = {name: tuple(step for step in path if step not in _WRAPPERS) for name, path in paths.items()}
        self._decoder = make_json(schema, {name: inside[name] or paths[name] for name in schema.names})

    @property
    def names(self) -> Sequence[str]:
        names: list[str] = self._schema.names
        return names

    def decode(self, written: pa.ChunkedArray) -> Decoded:
        """Return rows of all of these texts. One that is no document gives a row of nulls."""
        present = np.flatnonzero(pc.fill_null(pc.starts_with(written, "{"), False).to_numpy())
        texts = pl.Series(written.take(pa.array(present)), dtype=pl.String)
        for pattern, value in _UNWRAPPED:
            texts = texts.str.replace_all(pattern, value)
        decoded = self._decoder.decode(texts.to_arrow().cast(pa.binary())).at(present)
        bad = [replace(record, reason=f"the document: {record.reason}") for record in decoded.bad]
        fine = np.setdiff1d(np.arange(len(written)), [record.index for record in bad])
        rows, _ = decoded.in_place(len(written))
        return Decoded(rows.take(pa.array(fine)), fine, bad)


def _replace_column(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, values.type), values)


def _all_null(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Which rows have none of these columns."""
    all_null = np.full(rows.num_rows, bool(names))
    for name in names:
        if not all_null.any():
            break
        all_null &= rows[name].is_null().to_numpy()
    return all_null


_YEAR_1, _YEAR_9999 = -719_162, 2_932_896  # the first and the last day, since 1970
_EXPONENT = r"^[+-]?[0-9.]{1,100}[eE][+-]?[0-9]{1,2}$"
_PLAIN = r"^[+-]?[0-9]*\.?[0-9]*$"


def days(field: pa.Field, text: pl.Series) -> tuple[pa.Array, list[Fault]]:
    """Return dates as numbers of days since 1970, or as text."""
    numbers = text.cast(pl.Int64, strict=False)
    days = numbers.to_frame("t").select(pl.when(pl.col("t").is_between(_YEAR_1, _YEAR_9999)).then("t"))["t"]
    if days.null_count() == text.null_count():
        return days.cast(pl.Int32).to_arrow().cast(field.type), []
    from_text, faults = convert(field.name, _keep_where(days.is_null(), text), field.type)
    return pc.coalesce(days.cast(pl.Int32).to_arrow().cast(field.type), from_text), faults


def counted_times(field: pa.Field, text: pl.Series, factors: IntArray) -> tuple[pa.Array, list[Fault]]:
    """Convert times. Divides each number by its factor; a factor of 0 means that the unit is unknown."""
    numbers = text.cast(pl.Int64, strict=False)
    named = pl.Series(factors > 0) & numbers.is_not_null()
    if not named.any():
        return convert(field.name, text, field.type)
    times = in_years(numbers // pl.Series(np.maximum(factors, 1)))
    own, faults = checked_column(field.name, _keep_where(named, text), _keep_where(named, times), field.type)
    from_text, more = convert(field.name, _keep_where(~named, text), field.type)
    return pc.coalesce(own, from_text), [*faults, *more]


def _keep_where(chosen: pl.Series, values: pl.Series) -> pl.Series:
    return pl.DataFrame({"chosen": chosen, "t": values}).select(pl.when("chosen").then("t"))["t"]


def with_digits(text: pl.Series, scales: IntArray, in_bytes: BoolArray, is_number: Callable[[int], bool]) -> pl.Series:
    """Return the texts of decimals, as digits with a point. `in_bytes` says in which rows the schema names a decimal,
    whose text is then base64 with this scale; a converter may also write such a decimal as a number, which `is_number`
    tells of a row. What is no decimal stays as it is. Numbers may have an exponent."""
    bytes_there = pl.Series(in_bytes) & text.is_not_null() & ~(text.str.contains(r"[.-]") & text.str.contains(_PLAIN))
    strange = bytes_there | text.str.starts_with("{") | text.str.contains(_EXPONENT)
    rows = np.flatnonzero(strange.fill_null(False).to_numpy())
    if not len(rows):
        return text
    written = [
        _write_digits(text[row], int(scales[row]) if in_bytes[row] else None, row, is_number) for row in rows.tolist()
    ]
    return text.scatter(rows, written)


def _write_digits(text: str, scale: int | None, row: int, is_number: Callable[[int], bool]) -> str:
    with suppress(ValueError, ArithmeticError, RecursionError):
        if text.startswith("{"):
            return format(variable_decimal(json.loads(text)), "f")
        if scale is not None and not is_number(row):
            return format(decimal_in_base64(text, scale), "f")
        return format(Decimal(text), "f")
    return text


OP = Column.model_construct(name="$event_op", type=ColumnType("string"), origin="envelope", path="op")
"""The column with the op, which the decoder of the events has to give."""
_REASONS = {"c": "creation", "r": "snapshot", "u": "update"}


def leaves_out(model: Input) -> bool:
    """Return whether some events with a row are to be left out."""
    return model.debezium is not None and not set(Debezium().ops) <= set(model.debezium.ops)


class WantedOps:
    """Drops and counts the events whose op is not one of `ops`. `events` gives the column OP besides the input's;
    `times` gives OP and the event time, and `kinds` only OP. The event times of dropped events count for the watermark
    (T1), and no other value of theirs has to be one of its column."""

    def __init__(self, ops: tuple[str, ...], event_time: str, events: Decoder, times: Decoder, kinds: Decoder) -> None:
        self._ops, self._event_time = pa.array(ops), event_time
        self._events, self._bad_decoders = events, (times, kinds)

    def decode_batch(self, raw: RawBatch) -> Decoded:
        decoded = self._events.decode_batch(raw)
        selected = pc.is_in(decoded.rows[OP.name], self._ops)
        rows, bad = decoded.rows.drop_columns([OP.name]), decoded.bad
        unwanted = [self._select_unwanted(decoded)]
        for decoder in self._bad_decoders:
            if not bad:
                break
            positions = np.array([record.index for record in bad], np.int64)
            unwanted_bad = self._select_unwanted(decoder.decode_batch(raw.take(positions))).at(positions)
            bad = [record for record in bad if record.index not in unwanted_bad.index]
            unwanted.append(unwanted_bad)
        counts = Counter(_REASONS[op] for events in unwanted for op in events.rows[OP.name].to_pylist())
        if not counts:
            return replace(decoded, rows=rows)
        timed = [events for events in unwanted if self._event_time in events.rows.column_names]
        read = [event_times(events.rows[self._event_time]) for events in timed]
        event_ms, valid = np.concatenate([ms for ms, _ in read]), np.concatenate([valid for _, valid in read])
        return replace(
            decoded,
            rows=rows.filter(selected),
            index=decoded.index[selected.to_numpy()],
            bad=bad,
            dropped={**decoded.dropped, **counts},
            left_out=LeftOut(event_ms[valid], np.concatenate([events.index for events in timed])[valid]),
        )

    def _select_unwanted(self, events: Decoded) -> Decoded:
        unwanted = pc.invert(pc.is_in(events.rows[OP.name], self._ops))
        return Decoded(events.rows.filter(unwanted), events.index[unwanted.to_numpy()], [])
