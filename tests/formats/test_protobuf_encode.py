"""Output rows as Protobuf: every type, the frame, and field numbers that stay as they are."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory

from formats.registry import Registry, registry
from formats.test_avro_decoder import decode, registry_settings, rows
from formats.test_avro_decoder import model as input_model
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.errors import OutputUnavailable, SinkError
from joinery_runtime.formats.avro.encode import AvroOutput
from joinery_runtime.formats.protobuf.encode import ProtobufOutput
from joinery_runtime.formats.registry.protobuf_schemas import compile_schema
from joinery_runtime.job import Input

AT = datetime(1969, 5, 6, 12, 0, 0, 123000, tzinfo=UTC)
VALUES = {
    "flag": ("boolean", pa.bool_(), False),
    "small": ("int32", pa.int32(), -7),
    "big": ("int64", pa.int64(), 2**63 - 1),
    "half": ("float", pa.float32(), 0.5),
    "real": ("double", pa.float64(), 0.1),
    "text": ("string", pa.string(), ""),
    "raw": ("binary", pa.binary(), b"\xff\0"),
    "price": ("decimal(9,2)", pa.decimal128(9, 2), Decimal("-1.10")),
    "day": ("date", pa.date32(), date(1969, 5, 6)),
    "at": ("timestamp", pa.timestamp("ms", tz="UTC"), AT),
}
SCHEMA = pa.schema({name: kind for name, (_, kind, _) in VALUES.items()})
SUBJECT = "shop.joined-1-value"


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


def output(served: Registry, schema: pa.Schema = SCHEMA) -> ProtobufOutput:
    return ProtobufOutput("shop.joined-1", schema, served.url, {"max.retries": "0"})


def reader(served: Registry) -> Input:
    columns = [{"name": name, "type": kind} for name, (kind, _, _) in VALUES.items()]
    return input_model({**registry_settings(served), "format": "protobuf"}, columns)


def numbers(served: Registry, schema: int) -> dict[str, int]:
    message = compile_schema(served.schemas[schema]["schema"], {}).message_at([0])
    return {field.name: field.number for field in message.fields}


def own(served: Registry, text: str) -> int:
    """A schema that somebody has registered."""
    number = served.add(text, "PROTOBUF")
    served.subjects[SUBJECT, len(served.subjects) + 1] = number
    return number


def test_what_a_job_writes_another_one_reads(served: Registry) -> None:
    """A default (false, an empty text) is not a null."""
    expected = [{name: value for name, (_, _, value) in VALUES.items()}, dict.fromkeys(VALUES)]
    encoder = pickle.loads(pickle.dumps(output(served).register_once()))
    records = encoder.encode(pa.Table.from_pylist(expected, SCHEMA))
    assert rows(decode(decoder_for(reader(served)), *records)) == expected
    assert list(served.subjects) == [(SUBJECT, 1)]
    assert served.schemas[1]["schemaType"] == "PROTOBUF"
    assert [record[:6] for record in records] == [b"\0\0\0\0\x01\0"] * 2
    message = compile_schema(served.schemas[1]["schema"], {}).message_named("ShopJoined1")
    plain = message_factory.GetMessageClass(message).FromString(records[0][6:])
    assert (plain.big, plain.at.ToDatetime(UTC), plain.day) == (2**63 - 1, AT, "1969-05-06")


def test_numbers_of_two_to_the_64_and_what_is_no_number(served: Registry) -> None:
    schema = pa.schema({"session_id": pa.uint64(), "real": pa.float64()})
    (record,) = output(served, schema).register_once().encode(pa.table([[2**64 - 1], [float("inf")]], schema=schema))
    message = message_factory.GetMessageClass(
        compile_schema(served.schemas[1]["schema"], {}).message_at([0])
    ).FromString(record[6:])
    assert (message.session_id, message.real) == (2**64 - 1, float("inf"))


def test_fields_keep_their_numbers_when_columns_come_go_and_change_places(served: Registry) -> None:
    first = pa.schema({"id": pa.string(), "n": pa.int32()})
    more = pa.schema({"at": pa.timestamp("ms", "UTC"), "n": pa.int32(), "id": pa.string()})
    less = pa.schema({"at": pa.timestamp("ms", "UTC")})
    again = pa.schema({"new": pa.int64(), "n": pa.int32()})
    schema_numbers = [output(served, schema).register_once().number for schema in (first, more, less, again)]
    assert schema_numbers == [1, 2, 2, 3], "who writes less needs no schema of its own"
    assert numbers(served, 1) == {"id": 1, "n": 2}
    assert numbers(served, 2) == {"id": 1, "n": 2, "at": 3}
    assert numbers(served, 3) == {"id": 1, "n": 2, "at": 3, "new": 4}
    encoded = output(served, again).register_once().encode(pa.table([[5], [6]], schema=again))
    old = message_factory.GetMessageClass(compile_schema(served.schemas[1]["schema"], {}).message_at([0])).FromString(
        encoded[0][6:]
    )
    assert (old.n, old.HasField("id")) == (6, False), "who has the first schema compiled in reads on"


def strings(*names: str) -> pa.Schema:
    return pa.schema({name: pa.string() for name in names})


WRITTEN = 'syntax = "proto3";\nmessage ShopJoined1 {\n  optional string a = 1;\n  optional string b = 2;\n}\n'


def test_a_new_column_gets_no_number_that_an_older_version_has_used(served: Registry) -> None:
    """Also one that it has reserved, where another one had used it before."""
    first = output(served, strings("a", "b", "c")).register_once()
    own(served, WRITTEN)
    assert numbers(served, output(served, strings("a", "b", "d")).register_once().number) == {"a": 1, "b": 2, "d": 4}
    row = pa.table({"a": ["1"], "b": ["2"], "d": ["4"]})
    (record,) = output(served, row.schema).register_once().encode(row)
    old = message_factory.GetMessageClass(compile_schema(first.schema, {}).message_at([0])).FromString(record[6:])
    assert (old.a, old.HasField("c")) == ("1", False)
    own(served, WRITTEN.replace("}", "  reserved 5 to 7;\n}"))
    own(served, WRITTEN)
    assert numbers(served, output(served, strings("a", "b", "e")).register_once().number) == {"a": 1, "b": 2, "e": 8}


@pytest.mark.parametrize(
    "text",
    [
        WRITTEN.replace("}", '  reserved 3;\n  reserved "old";\n}'),
        WRITTEN + "message Other { optional string z = 1; }\n",
        WRITTEN.replace("optional string b = 2;", "oneof one { string b = 2; }"),
        WRITTEN.replace("string b = 2", "string b = 2 [deprecated = true]"),
        WRITTEN.replace("}", "  optional sint32 n = 3;\n}"),
        WRITTEN.replace("message", "package shop; message"),
    ],
)
def test_what_a_job_would_not_write_it_does_not_extend(served: Registry, text: str) -> None:
    """Its schema would drop what it does not know."""
    own(served, text)
    assert output(served, strings("a", "b")).register_once().number == 1, "it is used as it stands"
    with pytest.raises(SinkError, match=r"has no field for c \(string\): version 1 of .* was not registered by a job"):
        output(served, strings("a", "b", "c")).register_once()
    assert len(served.schemas) == 1


def test_columns_of_one_oneof_and_fields_that_are_required_are_refused(served: Registry) -> None:
    """Of a oneof one value is kept, and a null of a required field cannot be written."""
    own(served, 'syntax = "proto3"; message X { oneof one { string a = 1; string b = 2; } string c = 3; }')
    with pytest.raises(SinkError, match="columns a, b are one oneof, one: only one of them would keep its value"):
        output(served, strings("a", "b")).register_once()
    (record,) = output(served, strings("b", "c")).register_once().encode(pa.table({"b": ["2"], "c": ["3"]}))
    assert record.endswith(b"\x12\x012\x1a\x013")
    own(served, 'syntax = "proto2"; message X { required string a = 1; optional string b = 2; }')
    with pytest.raises(SinkError, match="the fields a are `required`, and a row may have no value for them: version 2"):
        output(served, strings("a")).register_once()
    with pytest.raises(SinkError, match="the fields a are `required`"):
        output(served, strings("b")).register_once()


def test_the_type_that_a_field_has_is_named(served: Registry) -> None:
    own(served, 'syntax = "proto3"; message X { sint32 n = 1; fixed64 m = 2; }')
    with pytest.raises(SinkError, match="column n is int32, and the field of that name is sint32"):
        output(served, pa.schema({"n": pa.int32()})).register_once()
    with pytest.raises(SinkError, match="column m is int64, and the field of that name is fixed64"):
        output(served, pa.schema({"m": pa.int64()})).register_once()


def test_a_column_of_another_type_ends_the_job_before_a_row_is_written(served: Registry) -> None:
    output(served, pa.schema({"n": pa.int32()})).register_once()
    with pytest.raises(SinkError, match="column n is string, and the field of that name is int32: version 1 of shop"):
        output(served, pa.schema({"n": pa.string()})).register_once()
    assert len(served.schemas) == 1


def test_a_schema_that_somebody_wrote_is_used_as_it_stands(served: Registry) -> None:
    text = 'syntax = "proto3"; package shop; // ours\nmessage Order { repeated string tags = 7; string id = 4; }'
    number = own(served, text)
    encoder = output(served, pa.schema({"id": pa.string()})).register_once()
    (record,) = encoder.encode(pa.table({"id": ["a"]}))
    assert (encoder.number, record) == (number, b"\0\0\0\0\x01\0" + b"\x22\x01a")
    with pytest.raises(SinkError, match=r"message shop\.Order has no field for n \(int32\): version 1 of .* was not"):
        output(served, pa.schema({"id": pa.string(), "n": pa.int32()})).register_once()
    with pytest.raises(SinkError, match="column tags is string, and the field of that name is repeated string"):
        output(served, pa.schema({"tags": pa.string()})).register_once()
    assert len(served.schemas) == 1


def test_a_schema_that_imports_another_subject_s(served: Registry) -> None:
    place_number = served.add('syntax = "proto3"; message Place { string city = 1; }', "PROTOBUF")
    served.subjects["place", 1] = place_number
    references = [{"name": "place.proto", "subject": "place", "version": 1}]
    text = 'syntax = "proto3"; import "place.proto"; message Order { Place at = 1; string id = 2; }'
    served.subjects[SUBJECT, 1] = served.add(text, "PROTOBUF", references)
    encoder = pickle.loads(pickle.dumps(output(served, pa.schema({"id": pa.string()})).register_once()))
    assert encoder.encode(pa.table({"id": ["a"]})) == [b"\0\0\0\0\x02\0\x12\x01a"]


def test_a_subject_with_schemas_of_avro_is_refused(served: Registry) -> None:
    narrow = pa.schema({"id": pa.string()})
    AvroOutput("shop.joined-1", narrow, served.url, {"max.retries": "0"}).register_once()
    with pytest.raises(SinkError, match=r"its registered schema is of AVRO, and output\.format is protobuf"):
        output(served, narrow).register_once()


def test_what_the_registry_refuses_and_names_that_cannot_be(served: Registry) -> None:
    with pytest.raises(SinkError, match=r"Protobuf cannot have columns of these names: ordér"):
        output(served, pa.schema({"ordér": pa.string()})).register_once()
    with pytest.raises(SinkError, match=r"schema of the job's columns is not valid: .* conflicts with"):
        output(served, pa.schema({"a_b": pa.string(), "aB": pa.string()})).register_once()
    assert served.schemas == {}
    served.status = 409
    with pytest.raises(SinkError, match="the registry rejects the schema of its rows") as caught:
        output(served).register_once()
    assert not isinstance(caught.value, OutputUnavailable)
    served.status = 503
    with pytest.raises(OutputUnavailable, match="the schema registry does not answer"):
        output(served).register_once()


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_of_two_drivers_that_register_at_the_same_time_the_second_takes_what_the_first_did(
    served: Registry, before: bool, lenient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw the same newest version; the first one's columns have another order, so other numbers. Where the
    registry takes both, the second one is taken back."""
    columns, register_both = racing(served, monkeypatch)
    served.lenient = lenient
    if before:
        output(served, pa.schema({"k": pa.string()})).register_once()
    ours, theirs = register_both()
    assert ours == theirs
    assert len(served.deleted) == lenient
    newest = max(version for _, version in served.subjects.keys() - served.deleted)
    assert numbers(served, served.subjects[SUBJECT, newest]) == {"k": 1, "b": 2, "a": 3}
    more = pa.schema({**columns, "c": pa.string()})
    assert numbers(served, output(served, more).register_once().number) == {"k": 1, "b": 2, "a": 3, "c": 4}


def test_a_second_schema_that_cannot_be_taken_back_is_named(served: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    _, register_both = racing(served, monkeypatch)
    served.lenient = served.keeps = True
    with pytest.raises(
        SinkError, match=r"versions 1 and 2; the later one cannot be taken back: .* Delete version 2 of"
    ):
        register_both()


def racing(served: Registry, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, pa.DataType], Callable[[], Any]]:
    """Some columns, and what registers them when another driver has done so just before, in another order."""
    columns = {"k": pa.string(), "a": pa.string(), "b": pa.int64()}
    register = Registry.register
    theirs: list[Any] = []

    def after_another(registry: Registry, subject: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(Registry, "register", register)
        theirs.append(output(registry, pa.schema({name: columns[name] for name in ("k", "b", "a")})).register_once())
        return registry.register(subject, body)

    def register_both() -> Any:
        monkeypatch.setattr(Registry, "register", after_another)
        return (output(served, pa.schema(columns)).register_once(), *theirs)

    return columns, register_both
