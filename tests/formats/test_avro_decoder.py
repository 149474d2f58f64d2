"""Avro with a schema registry and without: schemas that evolve, every type, and what is none of it."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from formats.registry import Registry, registry
from joinery_runtime.connectors.inputs import check_registry, decoder_for, json_decoder_for
from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded, Decoder
from joinery_runtime.job import Input

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}],
}
COLUMNS = [{"name": "id", "type": "string"}, {"name": "amount", "type": "int64"}]


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


def model(source: Mapping[str, Any], columns: Sequence[Mapping[str, Any]] = COLUMNS, kind: str = "avro") -> Input:
    kafka = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}
    schema = [*columns, {"name": "ts", "type": "int64", "from": "timestamp"}]
    side = {"name": "in", "kafka": kafka, "format": kind, "schema": schema, "eventTime": "ts", **source}
    return Input.model_validate(side)


def registry_settings(served: Registry, **properties: str) -> dict[str, Any]:
    return {"schemaRegistry": {"url": served.url, "properties": {"max.retries": "0", **properties}}}


def decode(decoder: Decoder, *records: bytes | None, keys: Sequence[bytes] = ()) -> Decoded:
    times, values = np.full(len(records), 7, np.int64), pa.array(records, pa.binary())
    partition, at = PartitionRef("in", "t", 0), np.arange(len(records))
    key_array = pa.array(keys, pa.binary()) if keys else None
    return decoder.decode_batch(RawBatch(partition, at, values, key_array, timestamps=times.__getitem__))


def avro(schema: Any, value: Any, number: int | None = None) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    frame = b"" if number is None else b"\0" + number.to_bytes(4)
    return frame + written.getvalue()


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    return decoded.rows.drop_columns(["ts"]).to_pylist()


def test_each_record_is_read_by_the_schema_that_it_names_which_may_change_while_the_job_runs(served: Registry) -> None:
    old = served.add(ORDER)
    decoder = decoder_for(model(registry_settings(served)))
    assert rows(decode(decoder, avro(ORDER, {"id": "a", "amount": 1}, old))) == [{"id": "a", "amount": 1}]

    wider = {
        **ORDER,
        "fields": [{"name": "note", "type": "string"}, *ORDER["fields"][:1], {"name": "amount", "type": "long"}],
    }
    renamed = {**ORDER, "fields": [ORDER["fields"][0], {"name": "total", "type": "int"}]}
    new, other = served.add(wider), served.add(renamed)
    decoded = decode(
        decoder,
        avro(wider, {"note": "x", "id": "b", "amount": 2**40}, new),
        avro(renamed, {"id": "c", "total": 3}, other),
        avro(ORDER, {"id": "d", "amount": 4}, old),
    )
    assert decoded.bad == []
    assert rows(decoded) == [
        {"id": "b", "amount": 2**40},
        {"id": "c", "amount": None},
        {"id": "d", "amount": 4},
    ]
    assert len(served.requested_paths) == 3, "each schema is asked for once"


def test_a_change_that_a_column_cannot_hold_is_a_bad_record(served: Registry) -> None:
    as_text = {**ORDER, "fields": [ORDER["fields"][0], {"name": "amount", "type": "string"}]}
    number = served.add(as_text)
    (bad,) = decode(
        decoder_for(model(registry_settings(served))), avro(as_text, {"id": "a", "amount": "many"}, number)
    ).bad
    assert bad.reason == "column amount: 'many' is not a valid int64"


def test_what_is_no_record_of_a_known_schema_is_bad_with_its_reason(served: Registry) -> None:
    number, protobuf = served.add(ORDER), served.add('syntax = "proto3";', "PROTOBUF")
    good = avro(ORDER, {"id": "a", "amount": 1}, number)
    decoded = decode(
        decoder_for(model(registry_settings(served))),
        None, b"", b'{"id":"a"}', good, good[:-1], good + b"x", b"\0\0\0\0\x63", b"\0" + protobuf.to_bytes(4),
    )  # fmt: skip
    assert rows(decoded) == [{"id": "a", "amount": 1}]
    reasons = {bad.index: bad.reason for bad in decoded.bad}
    assert list(reasons) == [0, 1, 2, 4, 5, 6, 7]
    assert reasons[0] == "null value"
    assert reasons[2] == "it does not begin with the number of a schema, as schemaRegistry says; it looks like JSON"
    assert re.fullmatch(r"not Avro of this schema: field amount, byte \d+: a number does not end", reasons[4])
    assert reasons[5] == "not Avro of this schema: 1 bytes are left over"
    assert reasons[6] == f"the registry {served.url} has no schema 99"
    assert reasons[7] == "schema 2 is of PROTOBUF, not of AVRO"


def test_a_registry_that_is_away_is_waited_for_and_one_that_refuses_is_not(served: Registry) -> None:
    number = served.add(ORDER)
    record = avro(ORDER, {"id": "a", "amount": 1}, number)
    decoder = decoder_for(model(registry_settings(served)))
    served.status = 503
    with pytest.raises(SourceUnavailable, match="the schema registry does not answer"):
        decode(decoder, record)
    served.status, served.login = None, "me:secret"
    with pytest.raises(SourceError, match="denies access") as caught:
        decode(decoder, record)
    assert not isinstance(caught.value, SourceUnavailable)
    authorized = decoder_for(model(registry_settings(served, **{"basic.auth.user.info": "me:secret"})))
    assert rows(decode(authorized, record)) == [{"id": "a", "amount": 1}]
    nobody = decoder_for(model({"schemaRegistry": {"url": "http://127.0.0.1:1", "properties": {"max.retries": "0"}}}))
    with pytest.raises(SourceUnavailable, match="asked for schema 1: "):
        decode(nobody, record)


def test_an_address_that_is_no_registrys_makes_no_record_a_dead_letter(served: Registry) -> None:
    """A web server, or a registry's with a wrong path, has nothing at /schemas/ids/1 either."""
    record = avro(ORDER, {"id": "a", "amount": 1}, served.add(ORDER))
    decoder = decoder_for(model(registry_settings(served)))
    served.status = 404
    with pytest.raises(SourceUnavailable, match="no schema registry answers at this address"):
        decode(decoder, record)
    served.status = None
    assert rows(decode(decoder, record)) == [{"id": "a", "amount": 1}]


def test_a_page_instead_of_an_answer_is_no_registrys(served: Registry) -> None:
    record = avro(ORDER, {"id": "a", "amount": 1}, served.add(ORDER))
    served.page = "<html>welcome</html>"
    with pytest.raises(SourceUnavailable, match="no schema registry answers at this address"):
        decode(decoder_for(model(registry_settings(served))), record)


def test_the_beginning_of_a_page_is_quoted(served: Registry) -> None:
    record = avro(ORDER, {"id": "a", "amount": 1}, served.add(ORDER))
    served.page, served.page_status = f"<html>\n\n<h1>Not here</h1>{'<p>' * 1000}", 404
    with pytest.raises(SourceUnavailable, match="<h1>Not here</h1>") as caught:
        decode(decoder_for(model(registry_settings(served))), record)
    assert len(caught.value.facts) < 300


@pytest.mark.parametrize("kind", ["avro", "protobuf", "debezium-avro"])
def test_a_start_asks_the_registry_before_there_is_a_record(served: Registry, kind: str) -> None:
    side = model(registry_settings(served), kind=kind)
    check_registry(side)  # one that has no schema yet
    served.status = 403  # it may allow the schemas of the job
    check_registry(side)
    served.status = 401
    with pytest.raises(SourceError, match="denies access") as caught:
        check_registry(side)
    assert not isinstance(caught.value, SourceUnavailable)
    served.status = 404
    with pytest.raises(SourceUnavailable, match="Input in: no schema registry answers at this address"):
        check_registry(side)


def test_a_job_that_needs_no_answer_of_a_registry_asks_none(served: Registry) -> None:
    check_registry(model(registry_settings(served), kind="json"))
    check_registry(model({"avroSchema": json.dumps(ORDER)}))
    assert served.requested_paths == []


def test_schemas_may_refer_to_others(served: Registry) -> None:
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
    served.subjects["shop.Line", 1] = served.add(line)
    lines = {"name": "lines", "type": {"type": "array", "items": "shop.Line"}}
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [lines]}
    number = served.add(order, references=[{"name": "shop.Line", "subject": "shop.Line", "version": 1}])
    resolved = {**order, "fields": [{"name": "lines", "type": {"type": "array", "items": line}}]}
    record = avro(resolved, {"lines": [{"sku": "x"}, {"sku": "y"}]}, number)
    side = model(registry_settings(served), [{"name": "sku", "type": "string", "path": "lines[1].sku"}])
    assert rows(decode(decoder_for(side), record)) == [{"sku": "y"}]


def test_every_type_becomes_what_json_of_the_same_content_is() -> None:
    at = datetime(2024, 5, 6, 12, 0, 0, 123000, tzinfo=UTC)
    fields: list[tuple[str, Any, Any, str, Any]] = [
        ("flag", "boolean", True, "boolean", True),
        ("small", "int", -7, "int32", -7),
        ("big", "long", 2**63 - 1, "int64", 2**63 - 1),
        ("real", "double", 0.1, "double", 0.1),
        ("nan", "double", float("nan"), "double", None),
        ("maybe", ["null", "string"], None, "string", None),
        ("either", ["null", "int", "string"], "x", "string", "x"),
        ("raw", "bytes", b"\xff\0", "binary", b"\xff\0"),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.10"),
         "decimal(9,2)", Decimal("1.10")),
        ("color", {"type": "enum", "name": "C", "symbols": ["RED"]}, "RED", "string", "RED"),
        ("day", {"type": "int", "logicalType": "date"}, date(2024, 5, 6), "date", date(2024, 5, 6)),
        ("ms", {"type": "long", "logicalType": "timestamp-millis"}, at, "timestamp", at),
        ("us", {"type": "long", "logicalType": "timestamp-micros"}, at, "timestamp", at),
        ("plain", "long", 1_715_000_000_000, "timestamp", datetime(2024, 5, 6, 12, 53, 20, tzinfo=UTC)),
        ("map", {"type": "map", "values": "int"}, {"a": 1}, "string", '{"a": 1}'),
    ]  # fmt: skip
    schema = {"type": "record", "name": "All", "fields": [{"name": n, "type": t} for n, t, *_ in fields]}
    side = model({"avroSchema": json.dumps(schema)}, [{"name": n, "type": kind} for n, _, _, kind, _ in fields])
    decoded = decode(decoder_for(side), avro(schema, {n: value for n, _, value, _, _ in fields}))
    assert decoded.bad == []
    assert rows(decoded) == [{n: expected for n, *_, expected in fields}]


def test_json_with_the_frame_of_a_registry_needs_no_registry() -> None:
    side = model({"schemaRegistry": {"url": "http://127.0.0.1:1"}}, kind="json")
    records = [b'\0\0\0\0\x07{"id":"a","amount":1}', b'{"id":"b"}', b"\0\0", None]
    decoded = decode(decoder_for(side), *records)
    assert rows(decoded) == [{"id": "a", "amount": 1}, {"id": "b", "amount": None}], "a topic may have both"
    assert [(bad.index, bad.reason[:10]) for bad in decoded.bad] == [(2, "not JSON: "), (3, "null value")]
    # Arrow's slices without an end fail on these.
    assert len(rows(decode(decoder_for(side), *[records[0] + b" " * 300] * 1000))) == 1000
    assert rows(decode(json_decoder_for(side), b'{"id":"a"}')) == [{"id": "a", "amount": None}], "steps of traces"


KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}


def test_keys_may_have_the_frame_of_a_registry_and_be_json_or_avro(served: Registry) -> None:
    """Of tombstones and of columns from keys, beside keys without one."""
    number, text, other = served.add(KEY), served.add("{}", "JSON"), served.add('syntax = "proto3";', "PROTOBUF")
    keys = [
        b'\0\0\0\0\x63{"id":"a"}',
        b'{"id":"b"}',
        avro(KEY, {"id": "c"}, number),
        b"\0\0\0\0" + bytes([text]) + b' {"id":"d"}',
        b"\0\0\0\0\x63\x02a",
        b"\0\0\0\0" + bytes([other]) + b"\0",
        avro(KEY, {"id": "c"}, number)[:-1],
    ]
    reasons = [f"the registry {served.url} has no schema 99", "schema 3 is of PROTOBUF, in which keys are not read"]
    reasons.append("not Avro of this schema: ")
    table = decoder_for(model({**registry_settings(served), "table": {"key": ["id"]}}, kind="json"))
    deleted = decode(table, *[None] * len(keys), keys=keys)
    assert [row["id"] for row in rows(deleted)] == ["a", "b", "c", "d"]
    assert deleted.deleted is not None
    assert deleted.deleted.all()
    assert [bad.index for bad in deleted.bad] == [4, 5, 6]
    assert all(reason in bad.reason for reason, bad in zip(reasons, deleted.bad, strict=True))

    columns = [{"name": "id", "type": "string", "from": "key", "path": "id"}, COLUMNS[1]]
    stream = decode(
        decoder_for(model(registry_settings(served), columns, "json")), *[b'{"amount":1}'] * len(keys), keys=keys
    )
    assert rows(stream) == [{"id": name, "amount": 1} for name in "abcd"]
    assert [bad.index for bad in stream.bad] == [4, 5, 6]
    assert all(bad.reason.startswith(f"record key: {reason}") for reason, bad in zip(reasons, stream.bad, strict=True))


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_a_key_in_a_frame_without_a_path_is_its_value(served: Registry, kind: str) -> None:
    name, count, record_key = served.add('"string"'), served.add('"long"'), served.add(KEY)
    text = served.add("{}", "JSON")
    keys = [
        avro("string", "a", name),
        avro("long", -62, count),
        avro(KEY, {"id": "c"}, record_key),
        b"\0\0\0\0" + bytes([text]) + b'"d"',
        b"plain",
    ]
    value = served.add({"type": "record", "name": "V", "fields": []})
    record = b"{}" if kind == "json" else avro({"type": "record", "name": "V", "fields": []}, {}, value)
    columns = [{"name": "id", "type": "string", "from": "key"}, {"name": "v", "type": "string"}]
    decoded = decode(decoder_for(model(registry_settings(served), columns, kind)), *[record] * 5, keys=keys)
    assert decoded.bad == []
    assert decoded.rows["id"].to_pylist() == ["a", "-62", '{"id": "c"}', "d", "plain"]

    numbers = [{**columns[0], "type": "int64"}, columns[1]]
    decoded = decode(decoder_for(model(registry_settings(served), numbers, kind)), *[record] * 5, keys=keys)
    assert decoded.rows["id"].to_pylist() == [-62]
    assert [bad.index for bad in decoded.bad] == [0, 2, 3, 4]
    raw = [{**columns[0], "type": "binary"}, columns[1]]
    decoded = decode(decoder_for(model(registry_settings(served), raw, kind)), *[record] * 5, keys=keys)
    assert decoded.rows["id"].to_pylist() == keys, "bytes are as they are"


def test_tombstones_of_keys_that_are_one_value_of_avro(served: Registry) -> None:
    number = served.add('"long"')
    columns = [{"name": "id", "type": "int64"}]
    side = model({**registry_settings(served), "table": {"key": ["id"], "keyFormat": "string"}}, columns)
    deleted = decode(decoder_for(side), None, None, keys=[avro("long", 7, number), b"8"])
    assert deleted.bad == []
    assert deleted.rows["id"].to_pylist() == [7, 8]


def test_a_key_that_is_nested_too_deep_makes_a_dead_letter(served: Registry) -> None:
    number = served.add("{}", "JSON")
    key = b"\0\0\0\0" + bytes([number]) + b'{"id":' * 100_000 + b"1" + b"}" * 100_000
    table = decoder_for(model({**registry_settings(served), "table": {"key": ["id"]}}, kind="json"))
    deleted = decode(table, None, None, keys=[key, b'{"id":"b"}'])
    assert ([row["id"] for row in rows(deleted)], [bad.index for bad in deleted.bad]) == (["b"], [0])


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"\0\0\0\0\x07\x02a\x02", "Confluent Avro of schema 7; write format: avro and its schemaRegistry"),
        (b'\0\0\0\0\x07{"id":"a"}', "Confluent JSON of schema 7; name its schemaRegistry"),
        (b"\x1f\x8b\x08\0", "gzip inside of the value"),
        (zlib.compress(b'{"id":"a"}'), "zlib inside of the value"),
        ('{"id":"a"}'.encode("utf-16"), "UTF-16; let the producer write UTF-8"),
        ('{"id":"a"}'.encode("utf-16-be"), "UTF-16; let the producer write UTF-8"),
    ],
)
def test_json_that_is_something_else_is_recognised(record: bytes, says: str) -> None:
    (bad,) = decode(decoder_for(model({}, kind="json")), record).bad
    assert f"it looks like {says}" in bad.reason


def test_a_schema_in_the_job_that_is_none() -> None:
    with pytest.raises(SourceError, match="avroSchema is no schema of Avro"):
        decoder_for(model({"avroSchema": '{"type": "recrod"}'}))
