"""Columns of type json: objects and arrays of a record, text that is JSON, and what is none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from job.chains import messages_of
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Input, parse_job
from joinery_runtime.state.memory import MemoryStore

DOC, TS = {"name": "doc", "type": "json"}, {"name": "ts", "type": "int64"}


def decode(*records: bytes, columns: list[dict[str, Any]] | None = None, **more: Any) -> Decoded:
    kafka = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}
    side = {"name": "in", "kafka": kafka, "format": "json", "schema": columns or [DOC, TS], "eventTime": "ts", **more}
    raw = RawBatch(PartitionRef("in", "t", 0), np.arange(len(records)), pa.array(records, pa.binary()))
    return decoder_for(Input.model_validate(side)).decode_batch(raw)


def test_a_column_is_the_text_of_an_object_or_text_that_is_json() -> None:
    documents = [b'{"a": 1.10,\n"b":[]}', b"[1, 2]", b"null", b"1.50", b"true", b'"{\\"a\\": 1}"', b'"\\"text\\""']
    decoded = decode(*[b'{"ts":1,"doc":%s}' % document for document in documents])
    assert decoded.bad == []
    expected = ['{"a": 1.10, "b":[]}', "[1, 2]", None, "1.50", "true", '{"a": 1}', '"text"']
    assert decoded.rows["doc"].to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("plain", "is not JSON"),
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("NaN", "is not JSON"),
        ("1e1001", "is not JSON"),
        ("9" * 1001, "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('"\\u0000"', "U+0000"),
        ('{"\\ud800": 1}', "half of a surrogate pair"),
    ],
)
def test_what_no_output_can_hold_as_json_is_a_dead_letter(text: str, says: str) -> None:
    decoded = decode(*[json.dumps({"ts": 1, "doc": document}).encode() for document in ("{}", text, '"\\\\u0000"')])
    assert decoded.rows["doc"].to_pylist() == ["{}", '"\\\\u0000"']
    assert [bad.index for bad in decoded.bad] == [1]
    assert decoded.bad[0].reason.startswith("column doc: ")
    assert says in decoded.bad[0].reason


def test_text_of_csv_and_of_a_path_and_documents_of_debezium() -> None:
    assert decode(b'"{""a"": 1}",1', format="csv").rows["doc"].to_pylist() == ['{"a": 1}']
    inner = [{**DOC, "path": "a.b"}, TS]
    assert decode(b'{"ts":1,"a":{"b":{"c":2}}}', columns=inner).rows["doc"].to_pylist() == ['{"c":2}']
    change = {"op": "c", "after": {"ts": 1, "doc": '{"k": null}'}}
    assert decode(json.dumps(change).encode(), format="debezium-json").rows["doc"].to_pylist() == ['{"k": null}']


def job(**spec: Any) -> dict[str, Any]:
    side = {"file": {"path": "unused"}, "format": "json", "schema": [{"name": "id", "type": "string"}, DOC, TS]}
    inputs = [{"name": name, **side, "eventTime": "ts"} for name in "lr"]
    step = {"right": "r", "keys": {"l.id": "r.id"}, "interval": {"of": "l", "lower": 0, "upper": "9ms"}, "type": "left"}
    plain = {"inputs": inputs, "joins": [step], "output": {"file": {"path": "out"}}, **spec}
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "j"}, "spec": plain}


def test_rows_have_json_in_their_json() -> None:
    rows = {"l": [{"id": "a", "doc": {"x": [1]}, "ts": 5}, {"id": "b", "doc": "[]", "ts": 6}]}
    rows["r"] = [{"id": "a", "doc": None, "ts": 5}]
    lines = list(
        run_trace(
            parse_job(json.dumps(job()), "job.json", plain_numbers=True), [{"rows": rows}, {"end": True}], MemoryStore()
        )
    )
    out = [(row["l_id"], row["l_doc"], row["r_doc"]) for line in lines for row in line["output"]]
    assert out == [("a", {"x": [1]}, None), ("b", [], None)]


def test_it_is_no_key() -> None:
    data = job()
    data["spec"]["joins"][0]["keys"] = {"l.doc": "r.doc"}
    assert any("is json: equal values may have different texts" in text for text in messages_of(data).values())


@pytest.mark.parametrize(
    "output",
    [
        {"postgres": {"table": "t", "upsertKey": ["l_id", "l_doc"]}},
        {"kafka": {"topic": "t", "bootstrapServers": "h:1", "key": ["l_doc"]}},
    ],
)
def test_it_is_no_key_of_the_output(output: dict[str, Any]) -> None:
    """In Postgres `{"a":1}` and `{"a": 1}` are one value, and one statement cannot update a row twice."""
    assert any("column 'l_doc' is json" in text for text in messages_of(job(output=output)).values())
