"""Protobuf with a schema registry and without: schemas that evolve, every type, and what is none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import json_format, message_factory

from formats.registry import Registry, registry
from formats.test_avro_decoder import COLUMNS, avro, decode, registry_settings, rows
from formats.test_avro_decoder import model as avro_model
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.registry.protobuf_schemas import compile_schema
from joinery_runtime.job import Input

ORDER = 'syntax = "proto3"; package shop; message Order { string id = 1; int32 amount = 2; }'
NOTE = [*COLUMNS, {"name": "note", "type": "string"}]
FIRST = b"\0"  # the mark of the schema's first message


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


def model(source: Mapping[str, Any], columns: Sequence[Mapping[str, Any]] = COLUMNS) -> Input:
    return avro_model(source, columns, "protobuf")


def message(schema: str, value: Mapping[str, Any], name: str | None = None, **imports: str) -> bytes:
    kind = message_factory.GetMessageClass(compile_schema(schema, imports).message_named(name))
    written: bytes = json_format.ParseDict(value, kind()).SerializeToString()
    return written


def framed(number: int, record: bytes, message_indexes: bytes = FIRST) -> bytes:
    return b"\0" + number.to_bytes(4) + message_indexes + record


def read(text: str, value: Mapping[str, Any], columns: Mapping[str, str], **paths: str) -> dict[str, Any]:
    side = [{"name": n, "type": kind, **({"path": paths[n]} if n in paths else {})} for n, kind in columns.items()]
    decoded = decode(decoder_for(model({"protobufSchema": text}, side)), message(text, value))
    assert decoded.bad == []
    (row,) = rows(decoded)
    return row


def test_each_record_is_read_by_the_schema_that_it_names_which_may_change_while_the_job_runs(served: Registry) -> None:
    old = served.add(ORDER, "PROTOBUF")
    decoder = decoder_for(model(registry_settings(served), NOTE))
    by_hand = framed(old, b"\x0a\x01a\x10\x01")
    assert rows(decode(decoder, by_hand)) == [{"id": "a", "amount": 1, "note": None}]

    wider = 'syntax = "proto3"; package shop; message Order { string id = 1; int64 amount = 2; string note = 3; }'
    renamed = 'syntax = "proto3"; package shop; message Order { string id = 1; int32 total = 2; }'
    as_text = 'syntax = "proto3"; package shop; message Order { string id = 1; string amount = 4; }'
    new, other, text = (served.add(schema, "PROTOBUF") for schema in (wider, renamed, as_text))
    decoded = decode(
        decoder,
        framed(new, message(wider, {"id": "b", "amount": 2**40, "note": "x"})),
        framed(text, message(as_text, {"id": "c", "amount": "many"})),
        framed(other, message(renamed, {"id": "d", "total": 3})),
        by_hand,
    )
    assert rows(decoded) == [
        {"id": "b", "amount": 2**40, "note": "x"},
        {"id": "d", "amount": None, "note": None},
        {"id": "a", "amount": 1, "note": None},
    ]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [(1, "column amount: 'many' is not a valid int64")]
    assert len(served.requested_paths) == 4, "each schema is asked for once"


def test_the_same_change_of_schemas_in_avro(served: Registry) -> None:
    fields = [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}]
    order = {"type": "record", "name": "Order", "fields": fields}
    wider = {**order, "fields": [*fields, {"name": "note", "type": ["null", "string"], "default": None}]}
    as_text = {**order, "fields": [fields[0], {"name": "amount", "type": "string"}]}
    old, new, text = (served.add(schema) for schema in (order, wider, as_text))
    decoder = decoder_for(avro_model(registry_settings(served), NOTE))
    decoded = decode(
        decoder,
        avro(order, {"id": "a", "amount": 1}, old),
        avro(wider, {"id": "b", "amount": 2, "note": "x"}, new),
        avro(as_text, {"id": "c", "amount": "many"}, text),
    )
    assert rows(decoded) == [{"id": "a", "amount": 1, "note": None}, {"id": "b", "amount": 2, "note": "x"}]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [(2, "column amount: 'many' is not a valid int64")]


def test_a_schema_that_is_none_is_a_reason_and_no_crash(served: Registry) -> None:
    broken, no_avro = served.add('syntax = "proto3"; messag X {}', "PROTOBUF"), served.add({"type": "recrod"})
    (bad,) = decode(decoder_for(model(registry_settings(served))), framed(broken, b"")).bad
    assert bad.reason.startswith("schema 1 is not valid: schema.proto:1:20: ")
    (bad,) = decode(decoder_for(avro_model(registry_settings(served))), b"\0" + no_avro.to_bytes(4) + b"x").bad
    assert bad.reason.startswith("schema 2 is not valid: ")


def test_what_is_no_record_of_a_known_schema_is_bad_with_its_reason(served: Registry) -> None:
    number, other = served.add(ORDER, "PROTOBUF"), served.add({"type": "string"})
    record = message(ORDER, {"id": "a", "amount": 1})
    cases: list[tuple[bytes | None, str]] = [
        (None, "null value"),
        (b"", "it does not begin with the number of a schema, as schemaRegistry says"),
        (b'{"id":"a"}', "it does not begin with the number of a schema, as schemaRegistry says; it looks like JSON"),
        (framed(number, record[:-1]), "not Protobuf of message shop.Order: "),
        (framed(number, b"", b""), "it has no positions of a message after the schema's number"),
        (framed(number, record, b"\x02\x0a"), "schema 1: the schema has no message [5]"),
        (framed(number, record, b"\x02\x01"), "schema 1: the schema has no message [-1]"),
        (framed(number, b"", b"\x14"), "the list of message positions is longer than the record"),
        (framed(number, b"\x0a\x01\xff"), "not Protobuf of message shop.Order: "),
        (framed(99, record), f"the registry {served.url} has no schema 99"),
        (framed(other, record), "schema 2 is of AVRO, not of PROTOBUF"),
    ]
    decoded = decode(
        decoder_for(model(registry_settings(served))), framed(number, record), *(record for record, _ in cases)
    )
    assert rows(decoded) == [{"id": "a", "amount": 1}]
    assert [bad.index for bad in decoded.bad] == list(range(1, len(cases) + 1))
    for bad, (_, reason) in zip(decoded.bad, cases, strict=True):
        assert bad.reason.startswith(reason)


def test_the_positions_say_which_message_of_the_schema_a_record_is(served: Registry) -> None:
    text = """syntax = "proto3"; message A { string id = 1; }
        message B { message X { string id = 9; } message Y { int64 amount = 2; string id = 3; } }"""
    number = served.add(text, "PROTOBUF")
    decoded = decode(
        decoder_for(model(registry_settings(served))),
        framed(number, message(text, {"id": "a"}, "A")),
        framed(number, message(text, {"id": "y", "amount": 5}, "B.Y"), b"\x04\x02\x02"),  # [1, 1]
        framed(number, message(text, {"id": "x"}, "B.X"), b"\x04\x02\x00"),  # [1, 0]
    )
    assert decoded.bad == []
    assert rows(decoded) == [{"id": "a", "amount": None}, {"id": "y", "amount": 5}, {"id": "x", "amount": None}]


def test_schemas_may_refer_to_others_which_refer_to_others(served: Registry) -> None:
    sku = 'syntax = "proto3"; package shop; message Sku { string code = 1; }'
    line = 'syntax = "proto3"; package shop; import "shop/sku.proto"; message Line { Sku sku = 1; }'
    order = 'syntax = "proto3"; package shop; import "line.proto"; message Order { repeated Line lines = 1; }'
    served.subjects["sku", 1] = served.add(sku, "PROTOBUF")
    refers = [{"name": "shop/sku.proto", "subject": "sku", "version": 1}]
    served.subjects["line", 3] = served.add(line, "PROTOBUF", refers)
    number = served.add(order, "PROTOBUF", [{"name": "line.proto", "subject": "line", "version": 3}])
    value = {"lines": [{"sku": {"code": "x"}}, {"sku": {"code": "y"}}]}
    record = message(order, value, **{"line.proto": line, "shop/sku.proto": sku})
    side = model(registry_settings(served), [{"name": "sku", "type": "string", "path": "lines[1].sku.code"}])
    assert rows(decode(decoder_for(side), framed(number, record))) == [{"sku": "y"}]


def test_a_reference_never_writes_outside_of_its_folder(served: Registry) -> None:
    served.subjects["evil", 1] = served.add(ORDER, "PROTOBUF")
    number = served.add(ORDER, "PROTOBUF", [{"name": "../evil.proto", "subject": "evil", "version": 1}])
    (bad,) = decode(decoder_for(model(registry_settings(served))), framed(number, b"")).bad
    assert bad.reason == "schema 2 is not valid: '../evil.proto' is no name of a file to import"


ALL = """syntax = "proto3";
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto"; import "google/protobuf/duration.proto";
enum Color { RED = 0; BLUE = 1; }
message Line { string sku = 1; optional int32 n = 2; repeated Line parts = 3; }
message All {
  bool flag = 1; int32 small = 2; int64 big = 3; uint64 huge = 4; sint64 zigzag = 5; fixed32 fixed = 6;
  float half = 7; double real = 8; string text = 9; bytes raw = 10; Color color = 11;
  optional int32 maybe = 12; oneof either { string a = 13; int32 b = 14; }
  google.protobuf.Timestamp at = 15; google.protobuf.Duration took = 16; google.protobuf.Int64Value boxed = 17;
  google.protobuf.Struct loose = 18; repeated Line lines = 19; map<int32, Line> by = 20; Line line = 21;
  repeated Color colors = 22;
}"""


def every(value: Mapping[str, Any], columns: Mapping[str, str], **paths: str) -> dict[str, Any]:
    side = [{"name": n, "type": kind, **({"path": paths[n]} if n in paths else {})} for n, kind in columns.items()]
    decoder = decoder_for(model({"protobufSchema": ALL, "protobufMessage": "All"}, side))
    decoded = decode(decoder, message(ALL, value, "All"))
    assert [bad.reason for bad in decoded.bad] == []
    (row,) = rows(decoded)
    return row


def test_every_type_becomes_what_json_of_the_same_content_is() -> None:
    fields: list[tuple[str, Any, str, Any]] = [
        ("flag", True, "boolean", True),
        ("small", -7, "int32", -7),
        ("big", 2**63 - 1, "int64", 2**63 - 1),
        ("huge", 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
        ("zigzag", -(2**63), "int64", -(2**63)),
        ("fixed", 2**32 - 1, "int64", 2**32 - 1),
        ("half", 0.5, "float", 0.5),
        ("real", 0.1, "double", 0.1),
        ("text", 'ü"', "string", 'ü"'),
        ("raw", "/wA=", "binary", b"\xff\0"),
        ("color", "BLUE", "string", "BLUE"),
        ("maybe", 0, "int32", 0),
        ("b", 0, "int32", 0),
        ("at", "2024-05-06T12:00:00.123456789Z", "timestamp", datetime(2024, 5, 6, 12, 0, 0, 123000, tzinfo=UTC)),
        ("took", "1.5s", "string", "1.500s"),
        ("boxed", "7", "int64", 7),
        ("loose", {"x": [1, {"y": None}]}, "string", '{"x": [1.0, {"y": null}]}'),
        ("lines", [{"sku": "x"}], "string", '[{"sku": "x", "n": null, "parts": []}]'),
        ("colors", ["RED", "BLUE"], "string", '["RED", "BLUE"]'),
    ]
    value = {name: content for name, content, _, _ in fields}
    assert every(value, {name: kind for name, _, kind, _ in fields}) == {name: row for name, _, _, row in fields}


def test_what_is_not_set_is_its_default_and_null_where_presence_is_tracked() -> None:
    names = {
        "flag": "boolean", "small": "int32", "real": "double", "text": "string", "raw": "binary", "color": "string",
        "maybe": "int32", "a": "string", "b": "int32", "at": "timestamp", "boxed": "int64", "line": "string",
        "lines": "string", "by": "string",
    }  # fmt: skip
    assert every({"a": "this one"}, names) == {
        "flag": False, "small": 0, "real": 0.0, "text": "", "raw": b"", "color": "RED",
        "maybe": None, "a": "this one", "b": None, "at": None, "boxed": None, "line": None,
        "lines": "[]", "by": "{}",
    }  # fmt: skip
    old = 'syntax = "proto2"; message Old { optional string id = 1; optional int32 amount = 2 [default = 5]; }'
    assert read(old, {"id": ""}, {"id": "string", "amount": "int64"}) == {"id": "", "amount": None}


def test_paths_lead_into_messages_lists_maps_and_structs() -> None:
    paths = {
        "deep": "lines[1].parts[0].sku", "past": "lines[2].sku", "into": "text.sku", "unknown": "line.none",
        "of_map": "by.7.sku", "of_struct": "loose.x[1].y", "index": "line[0]", "enum": "colors[1]",
        "seconds": "at.seconds", "unset": "line.n", "nobody": "nothing.at.all",
    }  # fmt: skip
    value = {
        "lines": [{}, {"parts": [{"sku": "deep"}]}], "by": {"7": {"sku": "seven"}}, "loose": {"x": [1, {"y": "z"}]},
        "colors": ["RED", "BLUE"], "at": "1970-01-01T00:00:05Z", "line": {"sku": "l"}, "text": "t",
    }  # fmt: skip
    expected = dict.fromkeys(paths) | {
        "deep": "deep", "of_map": "seven", "of_struct": "z", "enum": "BLUE", "seconds": "5",
    }  # fmt: skip
    assert every(value, dict.fromkeys(paths, "string"), **paths) == expected


def test_a_value_that_its_column_cannot_hold_is_a_bad_record_and_its_neighbours_are_none() -> None:
    columns = [
        {"name": "huge", "type": "int64"},
        {"name": "at", "type": "timestamp"},
        {"name": "real", "type": "double"},
    ]
    decoder = decoder_for(model({"protobufSchema": ALL, "protobufMessage": "All"}, columns))
    far = b"\x7a\x07\x08\x80\x80\x80\x80\x80\x40"  # at.seconds = 2**41
    decoded = decode(
        decoder, message(ALL, {"huge": 2**64 - 1}, "All"), far, message(ALL, {"real": "NaN"}, "All"), b'{"huge":1}'
    )
    assert rows(decoded) == [{"huge": 0, "at": None, "real": None}]
    reasons = {bad.index: bad.reason for bad in decoded.bad}
    assert reasons[0] == "column huge: 18446744073709551615 is not a valid int64"
    assert reasons[1].startswith("column at: ")
    assert reasons[3].startswith("not Protobuf of message All: ")
    assert reasons[3].endswith("; it looks like JSON")
    assert list(reasons) == [0, 1, 3]


def test_an_enum_value_that_the_schema_does_not_know_is_its_number() -> None:
    decoder = decoder_for(
        model({"protobufSchema": ALL, "protobufMessage": "All"}, [{"name": "color", "type": "string"}])
    )
    assert rows(decode(decoder, b"\x58\x07")) == [{"color": "7"}]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"\0\0\0\0\x07\0\x0a\x01a\x10\x01", "Confluent Protobuf of schema 7; write format: protobuf and its schema"),
        # No number of Protobuf has more than ten bytes, however many a broken record has.
        (b"\0\0\0\0\x07\0\x08" + b"\x80" * 12 + b"\x01", "Confluent Avro of schema 7"),
        (b"\0\0\0\0\x07\0\x0a\x09a\x10\x01", "Confluent Avro of schema 7; write format: avro and its schema"),
    ],
)
def test_json_that_is_something_else_is_recognised(record: bytes, says: str) -> None:
    for path in ("id", "nested.id"):
        side = avro_model({}, [{"name": "id", "type": "string", "path": path}], "json")
        decoded = decode(decoder_for(side), b'{"nested":\n{"id":"b"},"id":"b"}', record)
        assert rows(decoded) == [{"id": "b"}]
        (bad,) = decoded.bad
        assert f"it looks like {says}" in bad.reason


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"protobufSchema": "message X {"}, r"protobufSchema is no schema of Protobuf(.|\n)*schema.proto:1:"),
        ({"protobufSchema": ORDER, "protobufMessage": "Item"}, r"protobufMessage is not in(.|\n)*Item; it has Order"),
        ({"protobufSchema": ORDER, "protobufMessage": "Order.Item"}, r"no message Order.Item; it has Order"),
        ({"protobufSchema": 'syntax = "proto3";'}, r"has no message"),
    ],
)
def test_a_schema_in_the_job_that_is_none(source: Mapping[str, str], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        decoder_for(model(source))


def test_a_message_is_named_with_its_package_or_without() -> None:
    for name in ("Order", "shop.Order"):
        side = model({"protobufSchema": ORDER, "protobufMessage": name})
        assert rows(decode(decoder_for(side), message(ORDER, {"id": "a"}))) == [{"id": "a", "amount": 0}]
