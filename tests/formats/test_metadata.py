"""Columns from a record's key, headers, timestamp and place in Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from job.chains import load
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Input
from joinery_runtime.state.memory import MemoryStore

KAFKA = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}


def model(*columns: Mapping[str, Any], **more: Any) -> Input:
    return Input.model_validate(
        {"name": "in", "kafka": KAFKA, "format": "json", "schema": columns, "eventTime": columns[-1]["name"], **more}
    )


def decode(
    side: Input,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] = (),
    times: Sequence[int] = (),
    **headers: Sequence[bytes | None],
) -> Decoded:
    raw = RawBatch(
        PartitionRef("in", "t", 3),
        np.arange(len(values)) + 100,
        pa.array(values, pa.binary()),
        pa.array(keys or [None] * len(values), pa.binary()),
        np.array(times or [7] * len(values), np.int64).__getitem__,
        headers={name: pa.array(header_values, pa.binary()) for name, header_values in headers.items()},
    )
    return decoder_for(side).decode_batch(raw)


def test_all_that_a_record_has_can_be_a_column_in_the_order_of_the_schema() -> None:
    side = model(
        {"name": "k", "type": "string", "from": "key"},
        {"name": "v", "type": "int64"},
        {"name": "trace", "type": "string", "from": "headers.traceparent"},
        {"name": "p", "type": "int32", "from": "partition"},
        {"name": "o", "type": "int64", "from": "offset"},
        {"name": "t", "type": "string", "from": "topic"},
        {"name": "ts", "type": "timestamp", "from": "timestamp"},
    )
    decoded = decode(
        side, [b'{"v":1}', b"bad", b'{"v":3}'], [b"a", b"b", None], [5, 6, -1], traceparent=[None, b"y", b"z"]
    )
    assert decoded.rows.column_names == ["k", "v", "trace", "p", "o", "t", "ts"]
    assert decoded.rows.set_column(6, "ts", decoded.rows["ts"].cast(pa.int64())).to_pylist() == [
        {"k": "a", "v": 1, "trace": None, "p": 3, "o": 100, "t": "t", "ts": 5},
        {"k": None, "v": 3, "trace": "z", "p": 3, "o": 102, "t": "t", "ts": None},
    ]
    assert [bad.index for bad in decoded.bad] == [1]


def test_a_key_is_text_that_its_type_can_hold_or_bytes() -> None:
    numbers = model({"name": "k", "type": "int64", "from": "key"}, {"name": "ts", "type": "int64"})
    decoded = decode(numbers, [b'{"ts":1}'] * 4, [b"12", b"x", b"\xff", None])
    assert decoded.rows["k"].to_pylist() == [12, None]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [
        (1, "column k: 'x' is not a valid int64"),
        (2, "column k: not UTF-8"),
    ]
    as_bytes = model({"name": "k", "type": "binary", "from": "key"}, {"name": "ts", "type": "int64"})
    assert decode(as_bytes, [b'{"ts":1}'], [b"\xff"]).rows["k"].to_pylist() == [b"\xff"]


def test_a_path_leads_into_a_key_that_is_json() -> None:
    side = model({"name": "id", "type": "int64", "from": "key", "path": "payload.id"}, {"name": "ts", "type": "int64"})
    decoded = decode(side, [b'{"ts":1}', b'{"ts":2}', b'{"ts":3}'], [b'{"payload":{"id":7}}', b"7", None])
    assert decoded.rows.to_pylist() == [{"id": 7, "ts": 1}, {"id": None, "ts": 3}]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [(1, "record key: not a JSON object but a number")]


def test_without_a_column_from_the_value_no_value_is_needed() -> None:
    side = model({"name": "k", "type": "string", "from": "key"}, {"name": "ts", "type": "int64", "from": "timestamp"})
    assert decode(side, [None, b"anything"], [b"a", b"b"]).rows.to_pylist() == [
        {"k": "a", "ts": 7},
        {"k": "b", "ts": 7},
    ]


def test_a_tables_key_may_be_the_records_key() -> None:
    side = model(
        {"name": "k", "type": "string", "from": "key"},
        {"name": "v", "type": "int64"},
        {"name": "ts", "type": "int64", "from": "timestamp"},
        table={"key": ["k"], "keyFormat": "string"},
    )
    decoded = decode(side, [b'{"v":1}', None, b'{"v":2}'], [b"a", b"a", b"b"], [5, 6, 7])
    assert decoded.rows.to_pylist() == [
        {"k": "a", "v": 1, "ts": 5},
        {"k": "a", "v": None, "ts": 6},
        {"k": "b", "v": 2, "ts": 7},
    ]
    assert decoded.deleted is not None
    assert decoded.deleted.tolist() == [False, True, False]


def test_steps_of_a_trace_give_them() -> None:
    left = {
        "name": "l",
        "kafka": KAFKA,
        "format": "json",
        "schema": [
            {"name": "k", "type": "string", "from": "key"},
            {"name": "tenant", "type": "string", "from": "headers.tenant"},
            {"name": "ts", "type": "timestamp", "from": "timestamp"},
        ],
        "eventTime": "ts",
    }
    inputs = [left, {**left, "name": "r", "schema": [*left["schema"][:1], *left["schema"][2:]]}]
    interval = {"of": "l", "lower": 0, "upper": "9ms"}
    job = load({"right": "r", "keys": {"l.k": "r.k"}, "interval": interval}, inputs=inputs)
    rows = {"l": [{"$key": "a", "$headers": {"tenant": "x"}, "$timestamp": 5}], "r": [{"$key": "a", "$timestamp": 6}]}
    (line,) = run_trace(job, [{"rows": rows}], MemoryStore())
    assert line["output"] == [{"l_k": "a", "tenant": "x", "l_ts": 5, "r_k": "a", "r_ts": 6}]


@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        ("value", ""),
        ("headers.", ""),
        ("Key", ""),
        ("key.order.id", r" \(did you mean from: key, path: order.id\?\)"),
        ("header.tenant", r" \(did you mean headers.tenant\?\)"),
    ],
)
def test_what_a_record_does_not_have_is_refused(origin: str, hint: str) -> None:
    with pytest.raises(
        ValueError, match=f"is nothing that a record has{hint}; write key, timestamp, partition, offset, topic"
    ):
        model({"name": "k", "type": "string", "from": origin})
