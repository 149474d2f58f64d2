"""The paths of a record, in every format."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from joinery_runtime.formats.record_paths import MOST_PATHS, record_paths
from joinery_runtime.job import job_from
from joinery_runtime.job.model.inputs import Input

OF = {"type": "record", "name": "Of", "fields": [{"name": "sym", "type": ["null", "string"]}]}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "ts", "type": "long"}, {"name": "of", "type": OF}],
}
PROTO = """
syntax = "proto3";
message Of { string sym = 1; }
message Order { int64 ts = 1; Of of = 2; repeated Of all = 3; }
"""


def model(kind: str, **more: Any) -> Input:
    side = {
        "name": "l",
        "kafka": {"bootstrapServers": "kafka:9092", "topic": "t"},
        "format": kind,
        "eventTime": "ts",
        "schema": [{"name": "k", "type": "string"}, {"name": "ts", "type": "int64"}],
        **more,
    }
    spec = {
        "input": side,
        "groupBy": ["k"],
        "gap": "30m",
        "maxDuration": "12h",
        "aggregates": [{"function": "count", "as": "rows"}],
        "output": {"console": {}},
    }
    document = {"apiVersion": "joinery.dev/v1alpha1", "kind": "SessionWindow", "metadata": {"name": "p"}, "spec": spec}
    return job_from(document).inputs[0]


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_avro(value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
    return out.getvalue()


def test_paths_of_json_are_written_as_a_column_has_them() -> None:
    record = {"a": 1, "b": {"c": None, "d.e": [{"f": 1}, {"g": 2}]}, "h": [], "i": {}, "$j": 2}
    assert record_paths(model("json"), as_json(record)) == ("a", "b.c", 'b."d.e"[0].f', "h", "i", '"$j"')


def test_paths_of_avro() -> None:
    side = model("avro", avroSchema=json.dumps(AVRO))
    assert record_paths(side, as_avro({"ts": 5, "of": {"sym": "A"}})) == ("ts", "of.sym")


def test_paths_of_protobuf() -> None:
    side = model("protobuf", protobufSchema=PROTO, protobufMessage="Order")
    nested = bytes([0x12, 3, 0x0A, 1, 65])
    assert record_paths(side, bytes([8, 5]) + nested + bytes([0x1A, 3, 0x0A, 1, 66])) == ("ts", "of.sym", "all[0].sym")


@pytest.mark.parametrize("around", [lambda event: event, lambda event: {"schema": {}, "payload": event}])
def test_paths_of_a_change_event_are_those_of_its_row(around: Any) -> None:
    record = as_json(around({"op": "u", "before": {"id": 1}, "after": {"id": 1, "name": "x"}}))
    assert record_paths(model("debezium-json"), record) == ("id", "name")


def test_what_cannot_be_read_has_no_paths_and_there_are_only_so_many() -> None:
    side = model("json")
    for record in (b"", b"1,2,3", b"{", b"[1]", b'"x"', b"\0\0\0\0\1{"):
        assert record_paths(side, record) == ()
    assert record_paths(side, b"\0\0\0\0\1" + as_json({"a": 1})) == ("a",), "in a registry's frame"
    assert len(record_paths(side, as_json({f"c{n}": n for n in range(999)}))) == MOST_PATHS
