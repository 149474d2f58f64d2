"""Output rows as Avro: every type, the frame, and schemas that the registry takes and refuses."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from formats.registry import Registry, registry
from formats.test_avro_decoder import decode, registry_settings, rows
from formats.test_avro_decoder import model as input_model
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.errors import OutputUnavailable, SinkError
from joinery_runtime.formats.avro.encode import AvroOutput
from joinery_runtime.job import Input

AT = datetime(2024, 5, 6, 12, 0, 0, 123000, tzinfo=UTC)
TIMESTAMP = pa.timestamp("ms", tz="UTC")
VALUES = {
    "flag": ("boolean", pa.bool_(), True),
    "small": ("int32", pa.int32(), -7),
    "big": ("int64", pa.int64(), 2**63 - 1),
    "half": ("float", pa.float32(), 0.5),
    "real": ("double", pa.float64(), 0.1),
    "text": ("string", pa.string(), 'ü"'),
    "raw": ("binary", pa.binary(), b"\xff\0"),
    "price": ("decimal(9,2)", pa.decimal128(9, 2), Decimal("-1.10")),
    "day": ("date", pa.date32(), date(1969, 5, 6)),
    "at": ("timestamp", TIMESTAMP, AT),
}
SCHEMA = pa.schema({name: kind for name, (_, kind, _) in VALUES.items()})


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


def output(served: Registry, schema: pa.Schema = SCHEMA) -> AvroOutput:
    return AvroOutput("shop.joined-1", schema, served.url, {"max.retries": "0"})


def reader(served: Registry) -> Input:
    return input_model(
        registry_settings(served), [{"name": name, "type": kind} for name, (kind, _, _) in VALUES.items()]
    )


def test_what_a_job_writes_another_one_reads(served: Registry) -> None:
    expected = [{name: value for name, (_, _, value) in VALUES.items()}, dict.fromkeys(VALUES)]
    encoder = pickle.loads(pickle.dumps(output(served).register_once()))
    records = encoder.encode(pa.Table.from_pylist(expected, SCHEMA))
    assert rows(decode(decoder_for(reader(served)), *records)) == expected
    assert list(served.subjects) == [("shop.joined-1-value", 1)]
    schema = fastavro.parse_schema(json.loads(served.schemas[1]["schema"]))
    assert [record[:5] for record in records] == [b"\0\0\0\0\x01"] * 2
    plain = fastavro.schemaless_reader(io.BytesIO(records[0][5:]), schema, None)
    assert plain == expected[0], "logical types, as any reader of Avro has them"


def test_a_session_s_id_is_a_decimal(served: Registry) -> None:
    """Avro has no unsigned numbers, and half of the ids are larger than a long."""
    schema = pa.schema({"session_id": pa.uint64()})
    records = output(served, schema).register_once().encode(pa.table([[2**64 - 1, 7, None]], schema=schema))
    written = fastavro.parse_schema(json.loads(served.schemas[1]["schema"]))
    read = [fastavro.schemaless_reader(io.BytesIO(record[5:]), written, None)["session_id"] for record in records]
    assert read == [Decimal(2**64 - 1), Decimal(7), None]


def test_a_new_column_is_a_new_version_that_old_readers_and_new_ones_read(served: Registry) -> None:
    narrow, wide = pa.schema({"id": pa.string()}), pa.schema({"id": pa.string(), "n": pa.int32()})
    old, new = output(served, narrow).register_once(), output(served, wide).register_once()
    assert [old.number, new.number, output(served, narrow).register_once().number] == [1, 2, 1]
    (first,), (second,) = old.encode(pa.table({"id": ["a"]})), new.encode(pa.table({"id": ["b"], "n": [2]}))
    schemas = [fastavro.parse_schema(json.loads(served.schemas[number]["schema"])) for number in (1, 2)]
    read = fastavro.schemaless_reader
    assert read(io.BytesIO(first[5:]), schemas[0], schemas[1]) == {"id": "a", "n": None}
    assert read(io.BytesIO(second[5:]), schemas[1], schemas[0]) == {"id": "b"}


def test_a_schema_that_the_registry_refuses_ends_the_job_before_a_row_is_written(served: Registry) -> None:
    output(served, pa.schema({"n": pa.int32()})).register_once()
    says = r"Output topic shop.joined-1: the registry rejects the schema of its rows: .*-value: .*incompatible: n"
    with pytest.raises(SinkError, match=says) as caught:
        output(served, pa.schema({"n": pa.string()})).register_once()
    assert not isinstance(caught.value, OutputUnavailable)


def test_a_registry_that_is_away_is_waited_for_and_one_that_denies_is_not(served: Registry) -> None:
    served.status = 503
    with pytest.raises(OutputUnavailable, match="the schema registry does not answer"):
        output(served).register_once()
    with pytest.raises(OutputUnavailable, match="the schema registry does not answer"):
        AvroOutput("t", SCHEMA, "http://127.0.0.1:1", {"max.retries": "0"}).register_once()
    served.status = 401
    with pytest.raises(SinkError, match="the schema registry denies access") as caught:
        output(served).register_once()
    assert not isinstance(caught.value, OutputUnavailable)


def test_a_record_whose_schema_number_the_registry_does_not_take_is_none_of_the_rows(served: Registry) -> None:
    served.status = 422
    assert output(served).lines([b"\0\0\0\0\1"]) == [b"\0\0\0\0\1"]


def test_names_and_settings_that_cannot_be(served: Registry) -> None:
    with pytest.raises(SinkError, match=r"columns of these names: ordér, 2nd\. Name them with `as` in select"):
        output(served, pa.schema({"ok": pa.string(), "ordér": pa.string(), "2nd": pa.string()})).register_once()
    with pytest.raises(SinkError, match=r"output.schemaRegistry.properties are not valid: .*no.such"):
        AvroOutput("t", SCHEMA, served.url, {"no.such": "x"}).register_once()
    assert served.schemas == {}
