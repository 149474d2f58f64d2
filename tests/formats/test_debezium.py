"""Change events of Debezium, as JSON and as Avro: rows of streams, upserts and deletions of tables."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import uuid
from collections.abc import Sequence
from datetime import date
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from formats.registry import registry
from job.chains import document, load, messages_of
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.errors import RecordError
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Input
from joinery_runtime.state.memory import MemoryStore

ID = {"name": "id", "type": "int64"}
NAME = {"name": "name", "type": "string"}
TS = {"name": "ts", "type": "int64", "from": "envelope", "path": "source.ts_ms"}
Event = dict[str, Any] | None


pytestmark = pytest.mark.usefixtures("json_way")


def model(columns: Sequence[Any] = (ID, NAME, TS), **more: Any) -> Input:
    kafka = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}
    side = {"name": "in", "kafka": kafka, "format": "debezium-json", "schema": columns, "eventTime": "ts"}
    return Input.model_validate({**side, **more})


TABLE = {"table": {"key": ["id"]}}


def event(op: str, row: dict[str, Any] | None, before: dict[str, Any] | None = None, ts: int = 5) -> dict[str, Any]:
    """As a connector without schemas writes it."""
    if op == "d":
        row, before = None, row
    return {"before": before, "after": row, "source": {"name": "db", "ts_ms": ts}, "op": op, "ts_ms": ts + 1}


def with_schema(change: Event) -> Event:
    return None if change is None else {"schema": {"type": "struct", "optional": False}, "payload": change}


def decode(side: Input, events: Sequence[Event]) -> Decoded:
    values = pa.array([None if change is None else json.dumps(change).encode() for change in events], pa.binary())
    return of_values(side, values)


def of_values(side: Input, values: pa.BinaryArray) -> Decoded:
    times = np.full(len(values), 99, np.int64)
    keys = pa.array([b'{"id":1}'] * len(values), pa.binary())
    partition, offsets = PartitionRef("in", "t", 0), np.arange(len(values))
    return decoder_for(side).decode_batch(RawBatch(partition, offsets, values, keys, times.__getitem__))


CHANGES: list[Event] = [
    event("r", {"id": 1, "name": "a"}, ts=1),
    event("c", {"id": 2, "name": "b"}, ts=2),
    event("u", {"id": 1, "name": "c"}, {"id": 1, "name": "a"}, ts=3),
    event("d", {"id": 2}, ts=4),
    None,
]


@pytest.mark.parametrize("wrap", [lambda change: change, with_schema], ids=["plain", "with schemas"])
def test_a_stream_has_the_rows_and_counts_the_deletions(wrap: Any) -> None:
    decoded = decode(model(), [wrap(change) for change in CHANGES])
    assert decoded.bad == []
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [(1, "a", 1), (2, "b", 2), (1, "c", 3)]
    assert decoded.index.tolist() == [0, 1, 2]
    assert decoded.dropped == {"deletion": 1, "tombstone": 1}
    assert decoded.deleted is None


@pytest.mark.parametrize("wrap", [lambda change: change, with_schema], ids=["plain", "with schemas"])
def test_a_table_has_versions_and_deletions_whose_key_is_in_the_row_before(wrap: Any) -> None:
    decoded = decode(model(**TABLE), [wrap(change) for change in CHANGES])
    assert decoded.bad == []
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [
        (1, "a", 1), (2, "b", 2), (1, "c", 3), (2, None, 4)
    ]  # fmt: skip
    assert decoded.deleted is not None
    assert decoded.deleted.tolist() == [False, False, False, True]
    assert decoded.dropped == {"tombstone": 1}, "it only repeats the deletion, at another time"


def test_both_forms_may_be_in_one_batch_and_what_is_no_change_is_bad() -> None:
    events = [with_schema(CHANGES[0]), CHANGES[1], {"id": 3}, event("t", None), with_schema(CHANGES[2]), {"op": "c"}]
    decoded = decode(model(), events)
    assert decoded.rows["id"].to_pylist() == [1, 2, 1]
    assert decoded.index.tolist() == [0, 1, 4]
    assert [(bad.index, bad.reason.partition("; ")[0]) for bad in decoded.bad] == [
        (2, "not a change of a row by Debezium: it has no op"),
        (3, "not a change of a row by Debezium: its op 't' changes no row"),
        (5, "not a change of a row by Debezium: its op 'c' comes without the row after"),
    ]
    (bad,) = of_values(model(), pa.array([b"x"], pa.binary())).bad
    assert bad.reason.startswith("not JSON")


def test_a_column_may_have_a_path_inside_of_the_row_and_a_format() -> None:
    columns = [
        {"name": "key", "type": "int64", "path": "id"},
        {"name": "city", "type": "string", "path": "address.city"},
        {"name": "ts", "type": "timestamp", "path": "at", "format": "us"},
    ]
    row = {"id": 7, "address": {"city": "x"}, "at": 1_700_000_000_123_456}
    side = model(columns, table={"key": ["key"]})
    decoded = decode(side, [event("c", row), event("d", row)])
    assert decoded.bad == []
    times = decoded.rows["ts"].cast(pa.int64()).to_pylist()
    assert (decoded.rows["key"].to_pylist(), times) == ([7, 7], [1_700_000_000_123] * 2)
    assert decoded.rows["city"].to_pylist() == ["x", None]


def envelope(*more: dict[str, Any]) -> dict[str, Any]:
    """The Avro schema of changes of rows with an id, a name and what comes later."""
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}, *more]
    row = {"type": "record", "name": "Row", "fields": fields}
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    types = {"before": ["null", row], "after": ["null", "Row"], "source": source, "op": "string"}
    return {
        "type": "record",
        "name": "Envelope",
        "fields": [{"name": name, "type": avro_type} for name, avro_type in types.items()],
    }


def avro(change: Event, schema: dict[str, Any], number: int | None = None) -> bytes | None:
    """A change as Avro, after the frame of a registry where it has a number there."""
    if change is None:
        return None
    complete_change = {**change, "before": change["before"] and {"name": None, **change["before"]}}
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), complete_change)
    return (b"" if number is None else b"\0" + number.to_bytes(4)) + target.getvalue()


def test_avro_of_the_same_changes_gives_the_same() -> None:
    schema = envelope()
    side = model(format="debezium-avro", avroSchema=json.dumps(schema), **TABLE)
    written = [avro(change, schema) for change in CHANGES]
    decoded, expected = of_values(side, pa.array(written, pa.binary())), decode(model(**TABLE), CHANGES)
    assert decoded.rows.equals(expected.rows)
    assert (decoded.index.tolist(), decoded.bad, decoded.dropped) == (expected.index.tolist(), [], expected.dropped)


@pytest.mark.parametrize("kind", [TABLE, {}], ids=["table", "stream"])
def test_avro_is_read_by_the_schemas_of_a_registry_which_may_change_in_between(kind: dict[str, Any]) -> None:
    old, new = envelope(), envelope({"name": "city", "type": ["null", "string"], "default": None})
    with registry() as served:
        numbers = served.add(old), served.add(new)
        side = model(format="debezium-avro", schemaRegistry={"url": served.url}, **kind)
        written = [avro(change, old, numbers[0]) for change in CHANGES[:2]]
        written += [avro(change, new, numbers[1]) for change in CHANGES[2:]]
        decoded = of_values(side, pa.array(written, pa.binary()))
    expected = decode(model(**kind), CHANGES)
    assert decoded.bad == []
    assert decoded.rows.equals(expected.rows)
    assert (decoded.index.tolist(), decoded.dropped) == (expected.index.tolist(), expected.dropped)
    assert np.array_equal(decoded.deleted, expected.deleted) if kind else decoded.deleted is None


def test_a_stream_is_joined_with_a_table_of_changes_in_a_trace() -> None:
    side: dict[str, Any] = {"file": {"path": "unused"}, "eventTime": "ts"}
    orders = [{"name": "id", "type": "int64"}, {"name": "ts", "type": "int64"}]
    inputs = [
        {"name": "orders", **side, "format": "json", "schema": orders},
        {"name": "users", **side, "format": "debezium-json", "schema": [ID, NAME, TS], **TABLE},
    ]
    as_of = {"keys": {"orders.id": "users.id"}, "asOf": {"historyRetention": "1h"}}
    select = [{"column": "orders.ts", "as": "ts"}, {"column": "users.name", "as": "name"}]
    job = load({"right": "users", "type": "left", **as_of}, inputs=inputs, select=select)
    changes = [
        event("c", {"id": 1, "name": "a"}, ts=1),
        event("u", {"id": 1, "name": "b"}, ts=3),
        event("d", {"id": 1}, ts=5),
    ]
    rows = {"users": changes, "orders": [{"id": 1, "ts": ts} for ts in (2, 4, 6)]}
    (line,) = run_trace(job, [{"rows": rows}], MemoryStore())
    assert [(row["ts"], row["name"]) for row in line["output"]] == [(2, "a"), (4, "b"), (6, None)]


DAY = {"name": "day", "type": "date"}
AT = {"name": "at", "type": "timestamp"}


def int_of(name: str, kind: str, field: str = "at") -> dict[str, Any]:
    return {"type": kind, "optional": True, "name": name, "version": 1, "field": field}


def with_types(change: dict[str, Any], *fields: dict[str, Any]) -> dict[str, Any]:
    """As a connector writes it with `schemas.enable`."""
    row = {"type": "struct", "fields": list(fields), "optional": True, "name": "db.Value"}
    schema = {
        "type": "struct",
        "fields": [{**row, "field": "before"}, {**row, "field": "after"}],
        "name": "db.Envelope",
    }
    return {"schema": schema, "payload": change}


@pytest.mark.parametrize("wrap", [lambda change: change, with_schema], ids=["plain", "with schemas"])
def test_a_date_is_a_number_of_days_or_text(wrap: Any) -> None:
    encoded_days = [20_468, -1, "2026-01-15", None, -719_162, 2_932_896]
    decoded = decode(
        model([ID, DAY, TS]), [wrap(event("c", {"id": n, "day": day})) for n, day in enumerate(encoded_days)]
    )
    assert decoded.bad == []
    days = [date(2026, 1, 15), date(1969, 12, 31), date(2026, 1, 15), None, date(1, 1, 1), date(9999, 12, 31)]
    assert decoded.rows["day"].to_pylist() == days


def test_a_number_that_is_no_day_makes_a_dead_letter() -> None:
    changes = [event("c", {"id": n, "day": day}) for n, day in enumerate([1_700_000_000_000, 1, 1.5, 2_932_897])]
    decoded = decode(model([ID, DAY, TS]), changes)
    assert decoded.rows["id"].to_pylist() == [1]
    assert [bad.index for bad in decoded.bad] == [0, 2, 3]
    assert decoded.bad[0].reason.startswith("column day: '1700000000000' is not a valid date")


def test_a_deletion_has_its_date_and_time_in_the_row_before() -> None:
    side = model([ID, {**AT, "path": "at"}, DAY], eventTime="at", table={"key": ["id", "day"]})
    deletion = event("d", {"id": 1, "day": 3, "at": 1_700_000_000_123_456})
    change = with_types(deletion, int_of("io.debezium.time.MicroTimestamp", "int64"))
    decoded = decode(side, [change])
    assert decoded.bad == []
    assert decoded.rows["day"].to_pylist() == [date(1970, 1, 4)]
    assert decoded.rows["at"].cast(pa.int64()).to_pylist() == [1_700_000_000_123]


def test_the_schema_beside_the_envelope_says_what_a_time_counts() -> None:
    times = [
        ("io.debezium.time.MicroTimestamp", 1_700_000_000_123_456),
        ("io.debezium.time.NanoTimestamp", 1_700_000_000_123_456_789),
        ("io.debezium.time.Timestamp", 1_700_000_000_123),
        ("io.debezium.time.ZonedTimestamp", "2023-11-14T22:13:20.123Z"),
        ("io.debezium.time.MicroTimestamp", 1_500_000_000),
        ("io.debezium.time.MicroTimestamp", -1),
    ]
    changes = [with_types(event("c", {"id": 1, "at": at}), int_of(name, "int64")) for name, at in times]
    decoded = decode(model([ID, AT, TS]), [*changes, event("c", {"id": 1, "at": 1_700_000_000_123})])
    assert decoded.bad == []
    assert decoded.rows["at"].cast(pa.int64()).to_pylist() == [
        *[1_700_000_000_123] * 4,
        1_500_000,
        -1,
        1_700_000_000_123,
    ]


def test_a_column_with_a_format_has_the_number_whatever_the_schema_says() -> None:
    change = with_types(
        event("c", {"id": 1, "at": 1_700_000_000_123_456}), int_of("io.debezium.time.MicroTimestamp", "int64")
    )
    decoded = decode(
        model([ID, {**AT, "format": "us"}, {**AT, "name": "raw", "type": "int64", "path": "at"}, TS]), [change]
    )
    assert decoded.bad == []
    assert decoded.rows["at"].cast(pa.int64()).to_pylist() == [1_700_000_000_123]
    assert decoded.rows["raw"].to_pylist() == [1_700_000_000_123_456]


@pytest.mark.parametrize("kind", ["avro", "debezium-avro"])
def test_avro_names_dates_and_what_times_count(kind: str) -> None:
    named = {"at": ("long", "MicroTimestamp"), "exact": ("long", "NanoTimestamp"), "day": ("int", "Date")}
    fields = [
        {"name": name, "type": ["null", {"type": avro_type, "connect.name": f"io.debezium.time.{what}"}]}
        for name, (avro_type, what) in named.items()
    ]
    columns: list[dict[str, Any]] = [ID, AT, {**AT, "name": "exact"}, DAY]
    row = {"at": 1_700_000_000_123_456, "exact": 1_700_000_000_123_456_789, "day": 20_468}
    if kind == "avro":
        schema: dict[str, Any] = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}, *fields]}
        target = io.BytesIO()
        fastavro.schemaless_writer(target, fastavro.parse_schema(schema), {"id": 1, **row})
        written: bytes | None = target.getvalue()
        side = model(columns, format=kind, avroSchema=json.dumps(schema), eventTime="at")
    else:
        schema = envelope(*fields)
        written = avro(event("c", {"id": 1, "name": None, **row}), schema)
        side = model([*columns, TS], format=kind, avroSchema=json.dumps(schema))
    decoded = of_values(side, pa.array([written], pa.binary()))
    assert decoded.bad == []
    assert decoded.rows["day"].to_pylist() == [date(2026, 1, 15)]
    assert decoded.rows["at"].cast(pa.int64()).to_pylist() == [1_700_000_000_123]
    assert decoded.rows["exact"].cast(pa.int64()).to_pylist() == [1_700_000_000_123]


OID = "65f0c0ffee65f0c0ffee65f0"
DOCUMENT = (
    '{"_id": {"$oid": "65f0c0ffee65f0c0ffee65f0"}, "n": {"$numberLong": "7"}, "price": {"$numberDecimal": "1.10"}, '
    '"at": {"$date": {"$numberLong": "1700000000123"}}, "who": {"name": "a \\"{$oid}\\""}, '
    '"odd": {"$numberDouble": "NaN"}}'
)
OF_DOCUMENT: list[Any] = [
    {"name": "id", "type": "string", "path": "_id.$oid"},
    {"name": "_id", "type": "string"},
    {"name": "n", "type": "int64"},
    {"name": "price", "type": "decimal(6,2)"},
    {"name": "at", "type": "timestamp", "path": "at.$date"},
    {"name": "who", "type": "string", "path": "who.name"},
    {"name": "odd", "type": "double"},
    TS,
]


@pytest.mark.parametrize("wrap", [lambda change: change, with_schema], ids=["plain", "with schemas"])
def test_rows_of_mongodb_are_documents_in_text(wrap: Any) -> None:
    changes: list[Any] = [event("c", None), event("u", None, ts=6), event("c", None, ts=7), event("d", None)]
    changes[0]["after"] = DOCUMENT
    changes[1]["after"] = '{"n": 8}'
    changes[2]["after"] = '{"n": "x"}'
    decoded = decode(model(OF_DOCUMENT), [wrap(change) for change in changes])
    first, second = decoded.rows.to_pylist()
    assert (first["id"], first["_id"], first["n"], str(first["price"])) == (OID, OID, 7, "1.10")
    assert (first["at"].timestamp(), first["who"], first["odd"], first["ts"]) == (
        1_700_000_000.123,
        'a "{$oid}"',
        None,
        5,
    )
    assert (second["id"], second["n"], second["ts"]) == (None, 8, 6)
    assert decoded.index.tolist() == [0, 1]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [(2, "the document: column n: 'x' is not a valid int64")]
    assert decoded.dropped == {"deletion": 1}


@pytest.mark.parametrize("wrap", [lambda change: change, with_schema], ids=["plain", "with schemas"])
def test_changes_without_their_row_are_no_rows_of_nulls_but_dead_letters(wrap: Any) -> None:
    """As of MongoDB: updates without the full document, deletions without a pre-image."""
    columns = [{"name": "id", "type": "string", "path": "_id"}, {"name": "n", "type": "int64"}, TS]
    changes: list[Any] = [event("u", None), event("c", None, ts=6), event("d", None), event("d", None, ts=7)]
    changes[1]["after"] = changes[3]["before"] = DOCUMENT
    decoded = decode(model(columns, table={"key": ["id"]}), [wrap(change) for change in changes])
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [(OID, 7, 6), (OID, None, 7)]
    assert decoded.index.tolist() == [1, 3]
    full, pre_image = decoded.bad
    assert (full.index, pre_image.index) == (0, 2)
    assert "op 'u' comes without the row after" in full.reason
    assert full.reason.endswith("capture.mode change_streams_update_full)")
    assert "op 'd' comes without the row before" in pre_image.reason
    assert pre_image.reason.endswith("capture.mode change_streams_update_full_with_pre_image)")
    stream = decode(model(columns), [wrap(change) for change in changes])
    assert ([bad.index for bad in stream.bad], stream.dropped) == ([0], {"deletion": 2})


def test_documents_and_rows_may_be_mixed_and_a_deletion_has_its_document_before() -> None:
    columns = [{"name": "id", "type": "string", "path": "_id"}, {"name": "n", "type": "int64"}, TS]
    changes: list[Any] = [event("c", {"_id": "a", "n": 1}), event("d", None, ts=6), event("c", {"_id": None}, ts=7)]
    changes[1]["before"] = DOCUMENT
    decoded = decode(model(columns, table={"key": ["id"]}), changes)
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [("a", 1, 5), (OID, None, 6), (None, None, 7)]
    assert decoded.deleted is not None
    assert decoded.deleted.tolist() == [False, True, False]


AFTER_IN_NO_NAME = {"fields": [{"field": "after", "fields": [{"field": "at", "name": ["no", "text"]}]}]}


@pytest.mark.parametrize("schema", ["text", "{", "[" * 100_000, 5, {"fields": 5}, AFTER_IN_NO_NAME])
def test_what_is_beside_the_payload_and_no_schema_names_nothing(schema: Any) -> None:
    change = event("c", {"id": 1, "at": 1_700_000_000_123})
    decoded = decode(model([ID, AT, TS]), [{"schema": schema, "payload": change}])
    assert (decoded.rows["id"].to_pylist(), decoded.bad) == ([1], [])


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_document_that_is_no_text_makes_a_dead_letter(side: str) -> None:
    change = event("u", None) | {"after": DOCUMENT, side: "\ud800"}
    decoded = decode(model(OF_DOCUMENT), [change, event("c", None) | {"after": DOCUMENT}])
    assert (decoded.rows["n"].to_pylist(), decoded.index.tolist()) == ([7], [1])
    assert [bad.index for bad in decoded.bad] == [0]


def test_documents_in_avro() -> None:
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    types = {"before": ["null", "string"], "after": ["null", "string"], "source": source, "op": "string"}
    schema = {
        "type": "record",
        "name": "E",
        "fields": [{"name": name, "type": avro_type} for name, avro_type in types.items()],
    }
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), {**event("c", None), "after": DOCUMENT})
    side = model(OF_DOCUMENT, format="debezium-avro", avroSchema=json.dumps(schema))
    decoded = of_values(side, pa.array([target.getvalue()], pa.binary()))
    assert decoded.bad == []
    assert decoded.rows["n"].to_pylist() == [7]


# --- which events count -----------------------------------------------------------------------------------------------


def test_a_stream_may_leave_updates_out_and_their_times_still_count() -> None:
    side = model(debezium={"ops": ["c", "r"]})
    decoded = decode(side, CHANGES)
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [(1, "a", 1), (2, "b", 2)]
    assert (decoded.index.tolist(), decoded.bad) == ([0, 1], [])
    assert decoded.dropped == {"deletion": 1, "tombstone": 1, "update": 1}
    assert decoded.left_out is not None
    assert (decoded.left_out.times.tolist(), decoded.left_out.index.tolist()) == ([3], [2])
    only_updates = decode(model(debezium={"ops": ["u"]}), CHANGES)
    assert only_updates.rows["name"].to_pylist() == ["c"]
    assert only_updates.dropped == {"deletion": 1, "tombstone": 1, "creation": 1, "snapshot": 1}


def test_an_update_without_its_row_is_no_dead_letter_where_updates_are_left_out() -> None:
    decoded = decode(model(debezium={"ops": ["c", "r"]}), [event("u", None), event("c", None)])
    assert [bad.index for bad in decoded.bad] == [1]
    assert decoded.dropped == {"update": 1}


@pytest.mark.parametrize("more", [{}, {"schema": [ID, {"name": "name", "type": "json", "path": "name"}, TS]}])
def test_an_update_that_is_left_out_need_not_be_a_row(more: Any) -> None:
    """Its event time counts, if it has one."""
    updates = [event("u", {"id": "none", "name": "b"}, ts=7), event("u", {"id": 1}) | {"source": {"ts_ms": "soon"}}]
    events = [event("c", {"id": 1}), *updates, event("c", {"id": "none"}), event("d", {"id": "none"})]
    decoded = decode(model(debezium={"ops": ["c", "r"]}, **more), events)
    assert (decoded.rows["id"].to_pylist(), decoded.index.tolist()) == ([1], [0])
    assert [bad.index for bad in decoded.bad] == [3]
    assert decoded.dropped == {"update": 2, "deletion": 1}
    assert decoded.left_out is not None
    assert (decoded.left_out.times.tolist(), decoded.left_out.index.tolist()) == ([7], [1])


@pytest.mark.parametrize(
    ("more", "location", "text"),
    [
        ({"debezium": {"ops": ["c"]}, **TABLE}, "debezium.ops", "a table takes every change"),
        ({"debezium": {"ops": ["c"]}, "format": "json", "schema": [ID, {"name": "ts", "type": "int64"}]},
         "debezium", "only change events of Debezium have ops"),
        ({"table": {"key": ["id"], "deletedBy": {"path": "__deleted"}}}, "table.deletedBy", "say themselves"),
        ({"table": {"key": ["id"], "deletedBy": {"path": "__deleted"}}, "format": "csv",
          "schema": [ID, {"name": "ts", "type": "int64"}]}, "table.deletedBy", "no field that marks deletions"),
    ],
)  # fmt: skip
def test_what_fits_no_input_is_refused(more: dict[str, Any], location: str, text: str) -> None:
    kafka = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}
    right = {
        "name": "r",
        "kafka": kafka,
        "format": "debezium-json",
        "schema": [ID, NAME, TS],
        "eventTime": "ts",
        **more,
    }
    left = {**right, "name": "l", "format": "json", "schema": [ID, {"name": "ts", "type": "int64"}]}
    matching = (
        {"asOf": {"historyRetention": "1h"}}
        if "table" in more
        else {"interval": {"of": "l", "lower": "0s", "upper": "1s"}}
    )
    joins = {"right": "r", "keys": {"l.id": "r.id"}, **matching}
    wrong = messages_of(document(joins, inputs=[without_table(left), right]))
    assert list(wrong) == [f"spec.inputs[1].{location}"]
    assert text in wrong[f"spec.inputs[1].{location}"]


def without_table(side: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in side.items() if name not in {"table", "debezium"}}


# --- topics that were unwrapped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "more"),
    [
        ("true", []),
        (True, []),
        ("true", [{"name": "__deleted", "type": "string"}]),
        (True, [{"name": "__deleted", "type": "string"}]),
        (True, [{"name": "d", "type": "boolean", "path": "__deleted"}]),
    ],
    ids=["text", "boolean", "text in a column", "boolean in a column", "a column of another name"],
)
def test_a_field_marks_the_deletions_of_an_unwrapped_topic(mark: Any, more: list[Any]) -> None:
    columns = [ID, NAME, {"name": "ts", "type": "int64", "path": "__source_ts_ms"}, *more]
    side = model(columns, format="json", table={"key": ["id"], "deletedBy": {"path": "__deleted", "value": "true"}})
    no = "false" if isinstance(mark, str) else False
    rows: list[Event] = [
        {"id": 1, "name": "a", "__deleted": no, "__source_ts_ms": 1},
        {"id": 1, "name": "a", "__deleted": mark, "__source_ts_ms": 2},
        {"id": 2, "name": "b", "__source_ts_ms": 3},
        {"id": 3, "name": "c", "$delete": True, "__source_ts_ms": 4},
    ]
    decoded = decode(side, rows)
    assert decoded.bad == []
    assert decoded.deleted is not None
    assert decoded.deleted.tolist() == [False, True, False, True]
    assert decoded.rows["id"].to_pylist() == [1, 1, 2, 3]
    assert decoded.rows["name"].to_pylist() == ["a", None, "b", None]
    assert decoded.rows["ts"].to_pylist() == [1, 2, 3, 4]
    assert decoded.rows.column_names == [column["name"] for column in columns]


def test_the_field_may_be_inside_of_the_record_and_say_another_word() -> None:
    by = {"path": "meta.op", "value": "DELETE"}
    side = model([ID, NAME, {"name": "ts", "type": "int64"}], format="json", table={"key": ["id"], "deletedBy": by})
    decoded = decode(side, [{"id": 1, "ts": 1, "meta": {"op": "DELETE"}}, {"id": 1, "ts": 2, "meta": {"op": "INSERT"}}])
    assert decoded.deleted is not None
    assert decoded.deleted.tolist() == [True, False]


# --- decimals ---------------------------------------------------------------------------------------------------------

CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
MONEY = {"name": "amount", "type": "decimal(12,2)"}


def with_fields(row: dict[str, Any], op: str = "c", raw: str | None = None, **types: Any) -> bytes:
    """An event with the connector's schemas; `raw` takes the place of the text RAW."""
    fields = [{"field": name, **field_type} for name, field_type in types.items()]
    sides = [{"field": side, "type": "struct", "fields": fields} for side in ("before", "after")]
    document = {"schema": {"type": "struct", "fields": sides}, "payload": event(op, row)}
    return json.dumps(document).replace('"RAW"', raw or "").encode()


def scaled(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "name": CONNECT_DECIMAL, "parameters": {"scale": str(scale)}}


@pytest.mark.parametrize(
    ("value", "scale", "number"),
    [("AxY=", 2, "7.90"), ("1234", 2, "-26588.24"), ("12e5", 2, "-26604.23"), ("AQ==", 0, "1.00"),
     ("AQ==", -2, "100.00"),
     ("/w==", 2, "-0.01"), ("AA==", 2, "0.00"), ("RAW 12.50", 2, "12.50"), ("RAW 1234", 2, "1234.00"),
     ("RAW 1E+3", 2, "1000.00"), ("RAW 1234", 0, "1234.00"), (None, 2, None)],
)  # fmt: skip
def test_a_decimal_is_the_bytes_that_the_schema_says_or_a_number(value: Any, scale: int, number: str | None) -> None:
    raw = value.removeprefix("RAW ") if isinstance(value, str) and value.startswith("RAW ") else None
    record = with_fields({"id": 1, "amount": value if raw is None else "RAW"}, raw=raw, amount=scaled(scale))
    decoded = of_values(model([ID, MONEY, TS]), pa.array([record], pa.binary()))
    assert decoded.bad == []
    assert [str(row) if row is not None else None for row in decoded.rows["amount"].to_pylist()] == [number]


def test_text_that_the_schema_says_is_text_is_a_number() -> None:
    record = with_fields({"id": 1, "amount": "1234"}, amount={"type": "string"})
    decoded = of_values(model([ID, MONEY, TS]), pa.array([record], pa.binary()))
    assert [str(row) for row in decoded.rows["amount"].to_pylist()] == ["1234.00"]


def test_decimals_inside_of_arrays_and_of_deletions_and_with_a_scale_of_their_own() -> None:
    columns = [{"name": "id", "type": "decimal(9,0)"}, {**MONEY, "path": "prices[1]"},
               {"name": "rate", "type": "decimal(9,3)"}, TS]  # fmt: skip
    types = {"id": scaled(0), "prices": {"type": "array", "items": scaled(2)},
             "rate": {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}}  # fmt: skip
    row = {"id": "BNI=", "prices": ["AQ==", "1234"], "rate": {"scale": 3, "value": "BNI="}}
    side = model(columns, table={"key": ["id"]})
    records = [with_fields(row, **types), with_fields({"id": "BNI="}, "d", **types)]
    decoded = of_values(side, pa.array(records, pa.binary()))
    assert decoded.bad == []
    assert [str(row) for row in decoded.rows["id"].to_pylist()] == ["1234", "1234"]
    assert str(decoded.rows["amount"][0].as_py()) == "-26588.24"
    assert str(decoded.rows["rate"][0].as_py()) == "1.234"


def test_without_a_schema_the_reason_names_what_the_text_may_be() -> None:
    values = [{"id": 1, "amount": "AxY="}, {"id": 2, "amount": {"scale": 2, "value": "AxY="}}, {"id": 3, "amount": "x"}]
    reasons = [bad.reason for bad in decode(model([ID, MONEY, TS]), [event("c", row) for row in values]).bad]
    assert "Kafka Connect's Decimal" in reasons[0]
    assert "decimal.handling.mode: string" in reasons[0]
    assert "VariableScaleDecimal" in reasons[1]
    assert reasons[2] == "column amount: 'x' is not a valid decimal(12,2)"


def test_decimals_of_avro_by_their_connect_names() -> None:
    decimal = {"type": "bytes", "connect.name": CONNECT_DECIMAL, "connect.parameters": {"scale": "2"}}
    variable = {"type": "record", "name": "V", "connect.name": "io.debezium.data.VariableScaleDecimal",
                "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]}  # fmt: skip
    written = envelope({"name": "amount", "type": ["null", decimal]}, {"name": "rate", "type": ["null", variable]},
                       {"name": "all", "type": {"type": "array", "items": decimal}})  # fmt: skip
    columns = [ID, MONEY, {"name": "rate", "type": "decimal(9,3)"}, {**MONEY, "name": "second", "path": "all[1]"}, TS]
    side = model(columns, format="debezium-avro", avroSchema=json.dumps(written))
    row = {
        "id": 1,
        "name": "a",
        "amount": b"\x03\x16",
        "rate": {"scale": 3, "value": b"\x04\xd2"},
        "all": [b"\1", b"\2"],
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out, fastavro.parse_schema(written), {"source": {"ts_ms": 5}, "op": "c", "before": None, "after": row}
    )
    decoded = of_values(side, pa.array([out.getvalue()], pa.binary()))
    assert decoded.bad == []
    assert [str(decoded.rows[name][0].as_py()) for name in ("amount", "rate", "second")] == ["7.90", "1.234", "0.02"]


# --- values that an event does not have -------------------------------------------------------------------------------

NOT_THERE = "__debezium_unavailable_value"
IN_BASE64 = base64.b64encode(NOT_THERE.encode()).decode()
PIC = {"name": "pic", "type": "binary"}


def lacking(decoded: Decoded) -> list[list[str]]:
    """By row the columns whose values are to be those of an earlier version."""
    assert decoded.unavailable is not None
    return [(names or "").splitlines() for names in decoded.unavailable.to_pylist()]


@pytest.mark.parametrize(
    "value",
    [NOT_THERE, IN_BASE64, [NOT_THERE], [IN_BASE64], list(NOT_THERE.encode()), {NOT_THERE: NOT_THERE},
     [str(uuid.UUID(bytes=hashlib.md5(NOT_THERE.encode()).digest(), version=3))]],
    ids=["text", "bytes", "texts", "arrays of bytes", "numbers", "hstore", "uuids"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["string", "json"])
def test_a_value_that_an_event_lacks_is_no_data(value: Any, kind: str) -> None:
    side = model([ID, {"name": "bio", "type": kind}, TS], **TABLE)
    decoded = decode(side, [event("u", {"id": 1, "bio": value}), event("u", {"id": 1, "bio": "[1]"})])
    assert decoded.bad == []
    assert decoded.rows["bio"].to_pylist() == [None, "[1]"]
    assert lacking(decoded) == [["bio"], []]


def test_bytes_and_items_of_arrays_are_known_to_be_lacking() -> None:
    columns = [ID, PIC, {"name": "first", "type": "string", "path": "tags[0]"},
               {"name": "second", "type": "string", "path": "tags[1]"}, TS]  # fmt: skip
    events = [
        event("u", {"id": 1, "pic": IN_BASE64, "tags": [NOT_THERE]}),
        event("u", {"id": 1, "pic": "AAEC", "tags": ["a", "b"]}),
        event("u", {"id": 1, "pic": "AAEC", "tags": ["a"]}),
    ]
    decoded = decode(model(columns, **TABLE), events)
    assert lacking(decoded) == [["pic", "first", "second"], [], []]
    assert decoded.rows["second"].to_pylist() == [None, "b", None]


@pytest.mark.parametrize("wrap", [lambda change: change, with_schema], ids=["plain", "with schemas"])
@pytest.mark.parametrize("table", [{}, TABLE], ids=["stream", "table"])
def test_the_row_before_may_have_the_value(wrap: Any, table: dict[str, Any]) -> None:
    side = model([ID, NAME, PIC, TS], **table)
    row = {"id": 1, "name": NOT_THERE, "pic": IN_BASE64}
    decoded = decode(side, [wrap(event("u", row, {"id": 1, "name": "long", "pic": "AAEC"}))])
    assert decoded.bad == []
    assert (decoded.rows["name"].to_pylist(), decoded.rows["pic"].to_pylist()) == (["long"], [b"\0\1\2"])
    assert not table or lacking(decoded) == [[]]


def test_in_a_stream_the_event_is_a_dead_letter_unless_it_is_left_out() -> None:
    events = [
        event("c", {"id": 1, "name": "a"}),
        event("u", {"id": 1, "name": NOT_THERE}, {"id": 1, "name": NOT_THERE}),
    ]
    decoded = decode(model(), events)
    assert decoded.rows["name"].to_pylist() == ["a"]
    assert [(bad.index, bad.reason.partition(",")[0]) for bad in decoded.bad] == [
        (1, f"column name: the event does not have the value ({NOT_THERE})")
    ]
    creations = decode(model(debezium={"ops": ["c", "r"]}), events)
    assert (creations.bad, creations.dropped) == ([], {"update": 1})


def test_a_key_or_a_part_of_the_row_before_cannot_come_from_an_earlier_version() -> None:
    key = [NAME, TS]
    decoded = decode(model(key, table={"key": ["name"]}), [event("u", {"name": NOT_THERE})])
    assert [bad.reason.partition(":")[0] for bad in decoded.bad] == ["column name"]
    old = {"name": "old", "type": "string", "from": "envelope", "path": "before.name"}
    decoded = decode(model([ID, old, TS], **TABLE), [event("u", {"id": 1}, {"name": NOT_THERE})])
    assert [bad.reason.partition(":")[0] for bad in decoded.bad] == ["column old"]


def test_avro_lacks_values_too() -> None:
    written = envelope({"name": "pic", "type": ["null", "bytes"]},
                       {"name": "tags", "type": {"type": "array", "items": "string"}})  # fmt: skip
    columns = [ID, NAME, PIC, {"name": "tags", "type": "json"}, TS]
    side = model(columns, format="debezium-avro", avroSchema=json.dumps(written), **TABLE)
    before = {"id": 1, "name": "a", "pic": None, "tags": []}
    rows = [
        event("u", {"id": 1, "name": NOT_THERE, "pic": NOT_THERE.encode(), "tags": [NOT_THERE]}, before),
        event("u", {"id": 1, "name": "b", "pic": b"\1", "tags": ["x"]}, before),
    ]
    parsed = fastavro.parse_schema(written)
    records = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        records.append(out.getvalue())
    decoded = of_values(side, pa.array(records, pa.binary()))
    assert decoded.bad == []
    assert decoded.rows["name"].to_pylist() == ["a", "b"], "from the row before"
    assert decoded.rows["tags"].to_pylist() == ["[]", '["x"]']
    assert lacking(decoded) == [["pic"], []]


def test_a_job_without_dead_letters_names_the_event_whose_value_is_nowhere() -> None:
    inputs = [
        {"name": "orders", "file": {"path": "o"}, "format": "json", "schema": [ID, {**TS, "from": None, "path": None}],
         "eventTime": "ts"},
        {"name": "users", "file": {"path": "u"}, "format": "debezium-json", "schema": [ID, NAME, TS], "eventTime": "ts",
         "table": {"key": ["id"]}},
    ]  # fmt: skip
    job = load({"right": "users", "keys": {"orders.id": "users.id"}, "asOf": {"historyRetention": "1h"}}, inputs=inputs)
    steps = [json.dumps({"input": "users", "rows": [event("u", {"id": 1, "name": NOT_THERE})]})]
    with pytest.raises(RecordError, match=r"column name: the event does not have the value"):
        list(run_trace(job, map(json.loads, steps), MemoryStore()))
