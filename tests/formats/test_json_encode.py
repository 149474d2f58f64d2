"""Rows as JSON: exact values, and that our own decoder reads them back."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.rows import EVERY_TYPE, FULL, ROWS
from joinery_runtime.connectors.kafka.records import Records
from joinery_runtime.connectors.sink import DEAD_LETTER_SCHEMA, LONGEST_TEXT, dead_letter_rows
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.json.encode import JsonStyle, json_lines, rows_to_json
from joinery_runtime.job.model.outputs import Timestamps


def test_every_type() -> None:
    full, empty = map(json.loads, rows_to_json(ROWS))
    assert full == {
        "flag": True,
        "small": -(2**31),
        "big": -(2**63),
        "session": 2**64 - 1,
        "half": 0.5,
        "real": 0.1,
        "text": 'a,"b"\n\\.\té😀',
        "raw": "/wA=",
        "price": "1234567890123456789012345678901234.5678",
        "day": "0001-01-01",
        "at": 253402300799999,
    }
    assert empty == dict.fromkeys(EVERY_TYPE.names)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_json_has_no_number_for_is_null(value: float) -> None:
    assert rows_to_json(pa.table({"a": [value]})) == [b'{"a":null}']


def test_no_rows() -> None:
    assert rows_to_json(ROWS.slice(0, 0)) == []
    assert json_lines(ROWS.slice(0, 0)) == b""


def test_lines_are_held_once() -> None:
    """As a text and as bytes they would take the time of two copies, and the memory."""
    rows = pa.table({"text": ["x" * 100] * 65_536})
    json_lines(rows)
    tracemalloc.start()
    try:
        lines = json_lines(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.75 * len(lines)


def test_a_job_can_read_what_another_wrote() -> None:
    readable = ROWS.drop_columns(["session"])
    decoded = JsonDecoder(readable.schema).decode(pa.array(rows_to_json(readable), pa.binary()))
    assert not decoded.bad
    assert decoded.rows.to_pylist() == readable.to_pylist()


def test_timestamps_as_text_are_read_back_too() -> None:
    rows = pa.table(
        {"at": pa.array([0, -1, 253402300799999, None], pa.timestamp("ms", "UTC")), "k": ["a", "b", "c", "d"]}
    )
    written = rows_to_json(rows, JsonStyle("rfc3339"))
    assert [json.loads(line)["at"] for line in written] == [
        *("1970-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z", None)
    ]
    assert JsonDecoder(rows.schema).decode(pa.array(written, pa.binary())).rows.to_pylist() == rows.to_pylist()
    messages = Records.of(rows.slice(0, 1), ("at", "k"), {"when": "at"}, JsonStyle("rfc3339")).messages()
    assert messages == [
        {
            "value": b'{"at":"1970-01-01T00:00:00.000Z","k":"a"}',
            "key": b'{"at":"1970-01-01T00:00:00.000Z","k":"a"}',
            "headers": [("when", "1970-01-01T00:00:00.000Z")],
        }
    ]


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), max_size=8))
def test_any_text_is_one_line(texts: list[str | None]) -> None:
    rows = pa.table({"a": pa.array(texts, pa.string())})
    assert [json.loads(line)["a"] for line in rows_to_json(rows)] == texts


@pytest.mark.parametrize("timestamps", ["epochMillis", "rfc3339"])
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "half": st.none() | st.floats(width=32),
                "real": st.none() | st.floats(),
                "text": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_few_rows_are_written_as_many_are(timestamps: Timestamps, drawn: list[dict[str, Any]]) -> None:
    few = pa.concat_tables([ROWS, pa.Table.from_pylist([FULL | row for row in drawn], schema=EVERY_TYPE)])
    many = pa.concat_tables([few] * 200)
    style = JsonStyle(timestamps)
    assert rows_to_json(many, style) == rows_to_json(few, style) * 200


def test_dead_letters_keep_the_record_as_it_was() -> None:
    values = pa.array([b"\xff{", None, b"{", b"x" * (LONGEST_TEXT + 1)], pa.binary())
    reasons = ["no", "null value", "no", "no"]
    batch = dead_letter_rows(
        input_name="orders", topic="t", partition=3, offsets=[7, 9, 10, 11], reasons=reasons, values=values
    )
    assert batch.schema == DEAD_LETTER_SCHEMA
    first, second, third, fourth = map(json.loads, rows_to_json(pa.Table.from_batches([batch])))
    source = {"input": "orders", "topic": "t", "partition": 3}
    assert first == {**source, "offset": 7, "reason": "no", "value": "/3s=", "text": None}
    assert (second["value"], second["text"]) == (None, None)
    assert (third["value"], third["text"]) == ("ew==", "{")
    assert fourth["text"] is None
    assert len(fourth["value"]) > LONGEST_TEXT


def test_columns_as_headers() -> None:
    """Text and bytes as they are, others as JSON has them. A null is no header."""
    headers = {f"x-{name}": name for name in FULL}
    full, empty = (message["headers"] for message in Records.of(ROWS, (), headers).messages())
    assert dict(full) == {
        "x-flag": "true", "x-small": "-2147483648", "x-big": "-9223372036854775808", "x-session": str(2**64 - 1),
        "x-half": "0.5", "x-real": "0.1", "x-text": FULL["text"], "x-raw": b"\xff\x00",
        "x-price": "1234567890123456789012345678901234.5678", "x-day": "0001-01-01", "x-at": "253402300799999",
    }  # fmt: skip
    assert empty == []


def test_sessions_with_their_key_for_a_compacted_topic() -> None:
    """The id is an exact integer up to 2^64-1, and a retraction is a row with the same key, not a tombstone."""
    highest = 2**64 - 1
    rows = pa.table(
        {
            "user": ["a", None],
            "session_id": pa.array([highest, 2**53 + 1], pa.uint64()),
            "retracted": [True, False],
        }
    )
    assert Records.of(rows, ["user", "session_id"]).messages() == [
        {
            "key": b'{"user":"a","session_id":%d}' % highest,
            "value": b'{"user":"a","session_id":%d,"retracted":true}' % highest,
        },
        {
            "key": b'{"user":null,"session_id":9007199254740993}',
            "value": b'{"user":null,"session_id":9007199254740993,"retracted":false}',
        },
    ]


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize(
    "names", [["doc", "n", "t"], ["n", "doc", "t"], ["n", "t", "doc"], ["doc"], ["doc", "n", "more"]]
)
def test_columns_of_json_are_what_they_are(count: int, names: list[str]) -> None:
    values = {
        "doc": ['{"a": [1, "}"]}', None, "7", '"x"'],
        "more": ["[]"] * 4,
        "n": [1.5, None, float("nan"), 2.0],
        "t": ['}"{', "a\n", None, ""],
    }
    rows = pa.table({name: values[name] * count for name in names})
    lines = rows_to_json(rows, JsonStyle(nested=frozenset({"doc", "more", "not there"})))
    assert len(lines) == 4 * count
    plain = [json.loads(line) for line in rows_to_json(rows)]
    embedded = {name: [text and json.loads(text) for text in values[name]] * count for name in ("doc", "more")}
    expected = [
        {name: embedded[name][at] if name in embedded else row[name] for name in names} for at, row in enumerate(plain)
    ]
    assert [json.loads(line) for line in lines] == expected
    assert [list(json.loads(line)) for line in lines[:4]] == [names] * 4
    assert b'"doc":{"a": [1, "}"]}' in lines[0], "its own text"
