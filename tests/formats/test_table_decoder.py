"""Changelogs: rows, deletions, and what is neither; the records' order survives whatever is mixed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.connectors.inputs import decoder_for, json_decoder_for
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import BadRecord, Decoded
from joinery_runtime.job import Input

RATE = b'{"currency": "EUR", "rate": 1.25, "ts": 5}'
COLUMNS = {"currency": "string", "rate": "decimal(6,2)", "ts": "int64"}
EUR = b'{"currency": "EUR"}'


def table(
    columns: dict[str, str] | None = None, key: Sequence[str] = ("currency",), key_format: str = "json", **more: Any
) -> Input:
    schema = [{"name": name, "type": kind} for name, kind in (columns or COLUMNS).items()]
    source = {"kafka": {"bootstrapServers": "127.0.0.1:1", "topic": "rates"}, "format": "json", **more}
    changelog = {"key": list(key), "keyFormat": key_format}
    return Input.model_validate({"name": "in", "schema": schema, "eventTime": "ts", "table": changelog, **source})


def raw(records: Sequence[tuple[bytes | None, bytes | None, int]]) -> RawBatch:
    """Records as (key, value, timestamp)."""
    keys, values, times = zip(*records, strict=True) if records else ((), (), ())
    return RawBatch(
        PartitionRef("in", "rates", 0),
        np.arange(len(records)) + 100,
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()),
        np.array(times, np.int64).__getitem__,
    )


def decode(model: Input, *records: tuple[bytes | None, bytes | None, int]) -> Decoded:
    return decoder_for(model).decode_batch(raw(records))


def deletions(decoded: Decoded) -> list[bool]:
    assert decoded.deleted is not None
    assert decoded.deleted.dtype == np.bool_
    return [bool(flag) for flag in decoded.deleted]


def test_rows_and_tombstones_stay_in_the_records_order() -> None:
    decoded = decode(table(), (EUR, None, 3), (None, RATE, 9), (EUR, None, 11), (EUR, RATE, 12))
    assert decoded.rows.to_pylist() == [
        {"currency": "EUR", "rate": None, "ts": 3},
        {"currency": "EUR", "rate": Decimal("1.25"), "ts": 5},
        {"currency": "EUR", "rate": None, "ts": 11},
        {"currency": "EUR", "rate": Decimal("1.25"), "ts": 5},
    ]
    assert decoded.index.tolist() == [0, 1, 2, 3]
    assert deletions(decoded) == [True, False, True, False]
    assert not decoded.bad


@pytest.mark.parametrize("records", [[], [(None, RATE, 1)], [(EUR, None, 1)]], ids=["none", "a row", "a tombstone"])
def test_the_schema_is_the_declared_one(records: list[tuple[bytes | None, bytes | None, int]]) -> None:
    decoded = decode(table(), *records)
    assert decoded.rows.schema == pa.schema({"currency": pa.string(), "rate": pa.decimal128(6, 2), "ts": pa.int64()})
    assert len(deletions(decoded)) == len(decoded.index) == decoded.rows.num_rows == len(records)


def test_a_plain_input_has_no_deletions_and_no_use_for_null_values() -> None:
    plain = table().model_copy(update={"table": None})
    decoded = decode(plain, (EUR, None, 1), (None, RATE.replace(b"}", b', "$delete": true}'), 1))
    assert decoded.deleted is None
    assert decoded.rows["rate"].to_pylist() == [Decimal("1.25")]
    assert decoded.bad == [BadRecord(0, "null value")]


def test_a_composite_key_of_every_kind_of_column() -> None:
    columns = {"a": "int64", "b": "decimal(6,2)", "c": "date", "d": "boolean", "rest": "binary", "ts": "timestamp"}
    key = b'{"d": true, "c": "2024-02-29", "b": "1.5", "a": 9007199254740993, "more": 1}'
    decoded = decode(table(columns, ("a", "b", "c", "d")), (key, None, 1_700_000_000_000))
    (row,) = decoded.rows.set_column(5, "ts", decoded.rows["ts"].cast(pa.int64())).to_pylist()
    assert row == {
        "a": 2**53 + 1,
        "b": Decimal("1.50"),
        "c": date(2024, 2, 29),
        "d": True,
        "rest": None,
        "ts": 1_700_000_000_000,
    }


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("string", "Ω 1".encode(), "Ω 1"),
        ("string", b'{"currency": "EUR"}', '{"currency": "EUR"}'),
        ("string", b"", ""),
        ("int32", b"-7", -7),
        ("int64", b"9223372036854775807", 2**63 - 1),
    ],
)
def test_a_string_key_is_one_column_as_text(kind: str, key: bytes, value: object) -> None:
    decoded = decode(table({**COLUMNS, "currency": kind}, key_format="string"), (key, None, 4))
    assert decoded.rows.to_pylist() == [{"currency": value, "rate": None, "ts": 4}]
    assert deletions(decoded) == [True]


@pytest.mark.parametrize(
    ("key_format", "kind", "key", "reason"),
    [
        ("json", "string", None, "deletion (null value) without a record key"),
        ("json", "string", b"EUR", "by record key 'EUR': not JSON: "),
        ("json", "string", b'"EUR"', "by record key '\"EUR\"': not a JSON object but text"),
        ("json", "string", b"", "by record key '': empty record (keyFormat json)"),
        ("json", "string", b'{"Currency": "EUR"}', "column currency is missing or null (keyFormat json)"),
        ("json", "string", b'{"currency": null}', "column currency is missing or null (keyFormat json)"),
        ("json", "int64", b'{"currency": "5"}', "column currency: '5' is not a valid int64; it is text"),
        ("json", "string", b"\xff", "by record key '�': not UTF-8"),
        ("string", "string", None, "deletion (null value) without a record key"),
        ("string", "string", b"\xff", "by record key '�': not UTF-8 (keyFormat string)"),
        ("string", "int64", b" 5", "column currency: ' 5' is not a valid int64 (keyFormat string)"),
        ("string", "int32", b"2147483648", "column currency: '2147483648' is not a valid int32"),
        ("string", "int32", b"", "column currency: '' is not a valid int32"),
    ],
)
def test_a_tombstone_with_a_bad_key_is_a_bad_record(key_format: str, kind: str, key: bytes | None, reason: str) -> None:
    good = b"5" if key_format == "string" else b'{"currency": 5}'
    model = table({**COLUMNS, "currency": kind}, key_format=key_format)
    decoded = decode(model, (good, None, 1), (key, None, 2), (None, b'{"ts": 3}', 3), (good, None, 4))
    assert decoded.rows["ts"].to_pylist() == [1, 3, 4]
    assert decoded.index.tolist() == [0, 2, 3]
    assert deletions(decoded) == [True, False, True]
    assert [bad.index for bad in decoded.bad] == [1]
    assert reason in decoded.bad[0].reason


def test_a_tombstone_without_a_timestamp_has_no_event_time() -> None:
    decoded = decode(table(), (EUR, None, -1), (EUR, None, 0))
    assert decoded.rows["ts"].to_pylist() == [0]
    assert decoded.bad == [
        BadRecord(0, "deletion (null value): the record has no timestamp, which would be its event time")
    ]


def test_of_a_tombstone_with_two_faults_one_is_told() -> None:
    decoded = decode(table({**COLUMNS, "rate": "string"}, ("currency", "rate")), (b"{}", None, -1))
    assert len(decoded.bad) == 1
    assert "column currency is missing or null" in decoded.bad[0].reason


def test_json_rows_may_delete_with_an_event_time_of_their_own() -> None:
    steps = [
        {"currency": "EUR", "rate": "9.99", "ts": 7, "$delete": True},
        {"currency": "EUR", "rate": "9.99", "ts": 8, "$delete": False},
        {"currency": "EUR", "rate": "9.99", "ts": 9, "$delete": None},
        {"currency": "EUR", "ts": 10, "$delete": "yes"},
    ]
    decoded = decode(table(), *[(None, json.dumps(step).encode(), 1) for step in steps])
    assert decoded.rows.to_pylist() == [
        {"currency": "EUR", "rate": None, "ts": 7},
        {"currency": "EUR", "rate": Decimal("9.99"), "ts": 8},
        {"currency": "EUR", "rate": Decimal("9.99"), "ts": 9},
    ]
    assert deletions(decoded) == [True, False, False]
    assert decoded.bad == [BadRecord(3, "column $delete: 'yes' is not a valid boolean")]


def test_csv_deletes_by_tombstones_only() -> None:
    decoded = decode(table(format="csv"), (None, b"EUR,1.25,5", 1), (EUR, None, 6), (None, b"EUR", 7))
    assert decoded.rows["rate"].to_pylist() == [Decimal("1.25"), None]
    assert deletions(decoded) == [False, True]
    assert decoded.bad == [BadRecord(2, "not CSV: 1 fields instead of 3")]


def test_steps_of_a_trace_are_json_whatever_the_format() -> None:
    rows = raw([(None, RATE, 0), (None, b'{"currency": "EUR", "ts": 6, "$delete": true}', 0)])
    values_only = RawBatch(rows.partition, rows.offsets, rows.values)
    decoded = json_decoder_for(table(format="csv")).decode_batch(values_only)
    assert decoded.rows["ts"].to_pylist() == [5, 6]
    assert deletions(decoded) == [False, True]


upserts = st.integers(0, 99).map(lambda n: (None, b'{"currency": "k", "rate": %d, "ts": %d}' % (n, n), 0))
tombstones = st.integers(0, 99).map(lambda n: (b"key %d" % n, None, n))
marked = st.integers(0, 99).map(lambda n: (None, b'{"currency": "k", "rate": 1, "ts": %d, "$delete": true}' % n, 0))
broken = st.sampled_from([(b"k", b"bad", 1), (None, None, 1), (b"\xff", None, 1), (b"k", None, -1), (b"k", b"", 1)])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(upserts | tombstones | marked | broken, max_size=12))
def test_rows_and_bad_records_partition_the_batch(records: list[tuple[bytes | None, bytes | None, int]]) -> None:
    decoded = decode(table(key_format="string"), *records)
    alone = [decode(table(key_format="string"), record) for record in records]
    good = [i for i, one in enumerate(alone) if one.rows.num_rows]
    assert decoded.index.tolist() == good
    assert decoded.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]
    assert deletions(decoded) == [flag for one in alone for flag in deletions(one)]
    assert list(decoded.bad) == [BadRecord(i, bad.reason) for i, one in enumerate(alone) for bad in one.bad]
