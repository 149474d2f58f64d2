"""Records that somebody has written to end a job: each is a bad record, and its neighbours are rows (rule T8)."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for, with_record_boundary
from joinery_runtime.connectors.source import Range, StoredOffsets
from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.protobuf import decoder as protobuf
from joinery_runtime.formats.record_ends import LONGEST_RECORD
from joinery_runtime.formats.records import Decoded, LeftOut
from joinery_runtime.formats.registry import avro_bounds
from joinery_runtime.formats.registry.avro_bounds import DEEPEST
from joinery_runtime.job import Input
from stores import STORE

ID, TS = {"name": "id", "type": "int64"}, {"name": "ts", "type": "int64"}
DEEP = 200_000


def model(kind: str, *more: dict[str, Any], **settings: Any) -> Input:
    kafka = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}
    side = {"name": "in", "kafka": kafka, "format": kind, "schema": [ID, TS, *more], "eventTime": "ts"}
    return Input.model_validate({**side, **settings})


def batch(records: Sequence[bytes]) -> RawBatch:
    return RawBatch(PartitionRef("in", "t", 0), np.arange(len(records)), pa.array(records, pa.binary()))


def decode(side: Input, *records: bytes) -> Decoded:
    return with_record_boundary(side, decoder_for(side)).decode_batch(batch(records))


# --- Avro -------------------------------------------------------------------------------------------------------------

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}


def avro(kind: Any, column: str) -> Input:
    """Records with a field `x` of this type, read into a column of that type."""
    fields = [{"name": "id", "type": "long"}, {"name": "ts", "type": "long"}, {"name": "x", "type": kind}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    return model("avro", {"name": "x", "type": column}, avroSchema=schema)


def long(number: int) -> bytes:
    zigzag, out = number << 1, b""
    while zigzag >= 0x80:
        zigzag, out = zigzag >> 7, out + bytes([zigzag & 0x7F | 0x80])
    return out + bytes([zigzag])


MIN_LONG = b"\xff" * 9 + b"\1"


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (["null", NODE], b"\2" * DEEP + b"\0", f"nested deeper than {DEEPEST}"),
        (["null", NODE], b"\2" * 2_000 + b"\0", f"nested deeper than {DEEPEST}"),
        ({"type": "record", "name": "Q", "fields": [{"name": "q", "type": "Q"}]}, b"", "nested deeper"),
        ({"type": "array", "items": "null"}, long(300_000_000) + b"\0", "300,000,000 items"),
        (
            {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
            long(300_000_000),
            "300,000,000 items",
        ),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, long(300_000_000), "300,000,000 items"),
        ({"type": "array", "items": "int"}, long(300_000_000), "field x: it has a block of 300,000,000 items"),
        (MONEY, long(900_000) + b"\1" * 900_000, "a decimal of 900,000 bytes"),
        ("bytes", b"\x09", "field x, byte 2: the length of bytes is -5"),
        ("string", b"\x01", "field x, byte 2: the length of a string is -1"),
        ({"type": "map", "values": "int"}, b"\2\1\2\0", "field x, byte 3: the length of a key is -1"),
        ({"type": "array", "items": "long"}, MIN_LONG + b"\2\2\0", "a block of 9,223,372,036,854,775,808 items"),
        ("boolean", b"\2", "field x, byte 2: a boolean is 0 or 1, and this is 2"),
        (["null", "boolean"], b"\2\xff", "field x, byte 3: a boolean is 0 or 1, and this is 255"),
        ({"type": "boolean", "doc": "paid"}, b"\3", "field x, byte 2: a boolean is 0 or 1, and this is 3"),
        ("long", b"\xff" * 9 + b"\2", "field x, byte 2: a number has more than 64 bits"),
        ("long", b"\x80" * 10 + b"\0", "field x, byte 2: a number does not end"),
    ],
    ids=[
        "very deep",
        "deep",
        "endless",
        "nulls",
        "empty records",
        "empty fixed",
        "ints",
        "decimal",
        "length below 0",
        "text of a length below 0",
        "key of a length below 0",
        "as many items as no record has",
        "boolean of 2",
        "boolean of 255 in a union",
        "boolean with a doc",
        "number of 65 bits",
        "number of 11 bytes",
    ],
)
@pytest.mark.parametrize("column", ["string", "json"])
def test_avro_beyond_its_bounds_is_a_bad_record(kind: Any, value: bytes, says: str, column: str) -> None:
    began = time.process_time()
    decoded = decode(avro(kind, column), b"\2\2" + value)
    assert [bad.index for bad in decoded.bad] == [0]
    assert says in decoded.bad[0].reason
    assert len(decoded.bad[0].reason) < 300
    assert time.process_time() - began < 5


COLOR = {"type": "enum", "name": "Color", "symbols": ["R", "G", "B"]}
INDEXES = {
    "enum": (COLOR, [-1, -3, 3], "an enum has no symbol {}", b"\4", "B"),
    "union": (["null", "string"], [-1, -2, 2], "a union has no branch {}", b"\2\2B", "B"),
    "enum in a union": (["null", COLOR], [-1, -2, 2], "a union has no branch {}", b"\2\4", "B"),
    "union in an array": ({"type": "array", "items": ["null", COLOR]}, [], "", b"\2\2\4\0", '["B"]'),
}


@pytest.mark.parametrize("guarded_library", [True, False])
@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_names_no_symbol_and_no_branch_is_a_bad_record(
    name: str, guarded_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library counts a negative one from the end. Without its guard, records are checked before they are read."""
    assert avro_bounds._rejects_negative_indexes(), "the guard holds with the library that is installed"
    if not guarded_library:
        monkeypatch.setattr(avro_bounds, "_rejects_negative_indexes", lambda: False)
    kind, wrong, says, right, value = INDEXES[name]
    side = avro(kind, "string")
    decoded = decode(side, *(b"\2\2" + number(index) + b"\2B" for index in wrong), b"\2\2" + right)
    assert [bad.index for bad in decoded.bad] == list(range(len(wrong)))
    for bad, index in zip(decoded.bad, wrong, strict=True):
        assert bad.reason == f"not Avro of this schema: field x, byte 2: {says.format(index)}"
    assert decoded.rows["x"].to_pylist() == [value]
    nested = {-1: "an enum has no symbol -1", 3: "an enum has no symbol 3"} if "Color" in json.dumps(kind) else {}
    for index, reason in nested.items():
        record = b"\2\2" + right.replace(b"\4", number(index))
        assert re.fullmatch(rf"not Avro of this schema: field x, byte \d: {reason}", decode(side, record).bad[0].reason)


def test_an_index_of_a_schema_that_is_a_union_names_a_branch() -> None:
    event = {"type": "record", "name": "A", "fields": [{"name": name, "type": "long"} for name in ("id", "ts")]}
    side = model("avro", avroSchema=json.dumps([event, "null"]))
    decoded = decode(side, b"\0\2\2", b"\3\2\2", b"\4\2\2")
    assert decoded.rows["id"].to_pylist() == [1]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [
        (row, f"not Avro of this schema: byte 0: a union has no branch {branch}") for row, branch in ((1, -2), (2, 2))
    ]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", long(20) + "长长长长长长x".encode() + b"x", "长长长长长长xx"),
        ("long", MIN_LONG, str(-(2**63))),
        ("int", b"\xff\xff\xff\xff\x0f", str(-(2**31))),
        ("boolean", b"\1", "true"),
        (["null", "boolean"], b"\2\0", "false"),
    ],
    ids=["text that is not ASCII", "lowest long", "lowest int", "boolean", "boolean in a union"],
)
def test_avro_at_its_bounds_is_read(kind: Any, value: bytes, text: str) -> None:
    decoded = decode(avro(kind, "string"), b"\2\2" + value)
    assert (decoded.bad, decoded.rows["x"].to_pylist()) == ([], [text])


def number(value: int) -> bytes:
    """A small number as Avro writes it."""
    return bytes([2 * value if value >= 0 else -2 * value - 1])


def test_a_schema_with_more_fields_than_can_be_counted_gives_bad_records() -> None:
    kind: Any = "null"
    for n in range(35):
        kind = {
            "type": "record",
            "name": f"D{n}",
            "fields": [{"name": "a", "type": kind}, {"name": "b", "type": f"D{n - 1}" if n else "null"}],
        }
    assert "more values than 2 bytes can hold" in decode(avro(kind, "string"), b"\2\2").bad[0].reason


def test_what_is_nested_as_deep_as_allowed_and_arrays_of_some_nulls_are_read() -> None:
    # Each node is a record in a record; the outermost one is the record itself.
    depth = DEEPEST - 2
    decoded = decode(avro(["null", NODE], "string"), b"\2\2" + b"\2" * depth + b"\0")
    assert (decoded.bad, decoded.rows["x"][0].as_py().count("next")) == ([], depth)
    decoded = decode(avro({"type": "array", "items": "null"}, "string"), b"\2\2" + long(500) + b"\0")
    assert (decoded.bad, json.loads(decoded.rows["x"][0].as_py())) == ([], [None] * 500)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "enum", "name": "Color", "symbols": ["R", "G"]}, "G"),
        ({"type": "fixed", "name": "Color", "size": 2}, b"ab"),
    ],
)
def test_the_branches_of_a_union_share_their_names(kind: Any, value: Any) -> None:
    """A producer that writes several kinds of events into one topic may have a union as its schema."""

    def event(name: str, first: Any) -> dict[str, Any]:
        fields = [("id", "long"), ("ts", "long"), ("x", first), ("y", ["null", "Color"])]
        return {
            "type": "record",
            "name": name,
            "fields": [{"name": field, "type": avro_type} for field, avro_type in fields],
        }

    schema = [event("A", kind), event("B", "Color"), NODE]
    records = []
    for name in ("A", "B"):
        target = io.BytesIO()
        row = {"id": 1, "ts": 1, "x": value, "y": value}
        fastavro.schemaless_writer(target, fastavro.parse_schema(schema), (name, row))
        records.append(target.getvalue())
    column = "string" if isinstance(value, str) else "binary"
    side = model("avro", {"name": "x", "type": column}, avroSchema=json.dumps(schema))
    decoded = decode(side, *records)
    assert (decoded.rows["x"].to_pylist(), decoded.bad) == ([value, value], [])


def parsed(kind: Any) -> Any:
    return fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})


def test_only_records_that_may_be_over_a_limit_are_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark writes an array of structs as one of unions of null and a record, whose fields are such unions."""
    monkeypatch.setattr(avro_bounds, "_Walk", None)
    fields = [{"name": f"f{n}", "type": ["null", "string"]} for n in range(40)]
    record = {"type": "record", "name": "Item", "fields": fields}
    nulls = {"type": "record", "name": "Item", "fields": [{"name": f"n{n}", "type": "null"} for n in range(40)]}
    for kind in ("array", "map"):
        element_key = "items" if kind == "array" else "values"
        avro_bounds.check(b"\0", 0, parsed({"type": kind, element_key: ["null", record]}))
        avro_bounds.check(b"\0", 0, parsed({"type": kind, element_key: ["null", {"type": kind, element_key: record}]}))
        with pytest.raises(TypeError):
            avro_bounds.check(b"\0", 0, parsed({"type": kind, element_key: ["null", nulls]}))


def test_threads_that_judge_schemas_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread clears what is remembered right after this one has looked."""

    class Cleared(dict[int, Any]):
        def __contains__(self, key: object) -> bool:
            present = super().__contains__(key)
            self.clear()
            return present

    monkeypatch.setattr(avro_bounds, "_judged", Cleared())
    schema = parsed("long")
    for _ in range(2):
        avro_bounds.check(b"\2", 0, schema)


def test_a_decimal_has_all_its_digits_whatever_precision_its_schema_names() -> None:
    number = 123_456_789_012_345_678_901_234
    data = number.to_bytes(16)
    decoded = decode(avro(MONEY, "string"), b"\2\2" + long(len(data)) + data)
    assert decoded.rows["x"].to_pylist() == ["1234567890123456789012.34"]


# --- other formats ----------------------------------------------------------------------------------------------------

GOOD = b'{"id": 1, "ts": 1, "s": "x", "j": {"a": 1}}'


@pytest.mark.parametrize(
    "field",
    [b'"u":' + b"[" * DEEP + b"]" * DEEP, b'"s":' + b"[" * DEEP + b"]" * DEEP,
     b'"j":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP, b'"u":' + b"[" * DEEP, b'"id":' + b"1" * 1_000_000],
    ids=["not a column", "text", "json", "open", "digits"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["json", "debezium-json"])
def test_json_that_is_too_deep_or_too_long_is_a_bad_record(field: bytes, kind: str) -> None:
    records = [GOOD, b'{"id": 2, "ts": 2, ' + field + b"}", GOOD]
    if kind == "debezium-json":
        records = [b'{"op": "c", "after": ' + record + b"}" for record in records]
    decoded = decode(model(kind, {"name": "s", "type": "string"}, {"name": "j", "type": "json"}), *records)
    assert decoded.rows["id"].to_pylist() in ([1, 1], [1, 2, 1])
    assert [bad.index for bad in decoded.bad] in ([1], [])


PROTO = """syntax = "proto3";
import "google/protobuf/any.proto";
message Node { Node next = 1; }
message R { int64 id = 1; int64 ts = 2; Node n = 3; google.protobuf.Any any = 4; }"""


def wrapped(field: int, inner: bytes) -> bytes:
    size, out = len(inner), b""
    while size >= 0x80:
        size, out = size >> 7, out + bytes([size & 0x7F | 0x80])
    return bytes([field << 3 | 2]) + out + bytes([size]) + inner


def test_protobuf_that_is_too_deep_is_a_bad_record() -> None:
    node = b""
    for _ in range(5_000):
        node = wrapped(1, node)
    boxed = b""
    for _ in range(2_000):
        boxed = wrapped(1, b"type.googleapis.com/google.protobuf.Any") + wrapped(2, boxed)
    columns = [{"name": "n", "type": "string"}, {"name": "any", "type": "json"}]
    side = model("protobuf", *columns, protobufSchema=PROTO, protobufMessage="R")
    decoded = decode(side, b"\x08\1\x10\1" + wrapped(3, node), b"\x08\2\x10\1", b"\x08\3\x10\1" + wrapped(4, boxed))
    assert decoded.rows["id"].to_pylist() == [2]
    assert [bad.index for bad in decoded.bad] == [0, 2]


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_line_that_is_too_long_is_a_bad_record_of_which_the_beginning_is_read(kind: str, tmp_path: Path) -> None:
    """From 20 KB of gzip. The last line is too long too, and has no line break."""

    def line(number: int, text: str) -> str:
        row = {"id": number, "ts": number, "s": text}
        return json.dumps(row) if kind == "json" else f"{number},{number},{text}"

    lines = [line(1, "a"), line(2, "x" * LONGEST_RECORD), line(3, "b"), line(4, "y" * LONGEST_RECORD)]
    file = tmp_path / "f.gz"
    with gzip.open(file, "wt") as out:
        out.write("\n".join([*(["id,ts,s"] if kind == "csv" else []), *lines]))
    side = model(kind, {"name": "s", "type": "string"}, kafka=None, file={"path": str(file)})
    planner, reader, decoder = (
        planner_for(side, "j", STORE),
        reader_for(side),
        with_record_boundary(side, decoder_for(side)),
    )
    (bounds,) = planner.bounds(StoredOffsets())
    batches = list(reader.read(Range(bounds.partition, bounds.start, bounds.end_exclusive)))
    decoded = [decoder.decode_batch(raw) for raw in batches]
    assert [number for part in decoded for number in part.rows["id"].to_pylist()] == [1, 3]
    bad = [(raw, bad) for raw, part in zip(batches, decoded, strict=True) for bad in part.bad]
    assert [raw.values[bad.index].as_py() for raw, bad in bad] == [
        text.encode()[:65_536] for text in (lines[1], lines[3])
    ]
    assert bad[0][1].reason.startswith(
        f"it has {len(lines[1]) + 1:,} bytes, and a record has {LONGEST_RECORD:,} at most"
    )


def test_a_file_that_is_one_long_line_is_no_csv_with_a_header(tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_bytes(b"x" * (LONGEST_RECORD + 1))
    side = model("csv", kafka=None, file={"path": str(file)})
    with pytest.raises(SourceError, match="is no header"):
        planner_for(side, "j", STORE).bounds(StoredOffsets())


# --- the boundary -----------------------------------------------------------------------------------------------------


class Fragile:
    """Decodes offsets, and fails on a batch with one of these."""

    def __init__(self, error: BaseException, *bad: int) -> None:
        self._error, self._bad = error, set(bad)
        self.calls = 0

    def decode_batch(self, raw: RawBatch) -> Decoded:
        self.calls += 1
        if self._bad & set(raw.offsets.tolist()):
            raise self._error
        rows = pa.table({"id": pa.array(raw.offsets), "ts": pa.array(raw.offsets)})
        return Decoded(
            rows,
            np.arange(len(raw.offsets)),
            [],
            dropped={"tombstone": 1},
            passed=(1, 2),
            left_out=LeftOut(raw.offsets, np.arange(len(raw.offsets))),
        )


@pytest.mark.parametrize(
    "error",
    [RuntimeError("of\nthe library " * 100), RecursionError(), MemoryError(), pl.exceptions.PanicException("at 1")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_record_raises_concerns_this_record_only(error: BaseException) -> None:
    fragile = Fragile(error, 3, 70)
    decoded = with_record_boundary(model("json"), fragile).decode_batch(batch([b"x"] * 100))
    assert [bad.index for bad in decoded.bad] == [3, 70]
    assert decoded.bad[0].reason.startswith(f"it cannot be read: {type(error).__name__}")
    assert len(decoded.bad[0].reason) < 300
    assert decoded.rows["id"].to_pylist() == [n for n in range(100) if n not in (3, 70)]
    assert decoded.index.tolist() == decoded.rows["id"].to_pylist()
    assert decoded.passed == (1, 2)
    assert decoded.left_out is not None
    assert decoded.left_out.times.tolist() == decoded.left_out.index.tolist() == decoded.index.tolist()
    assert fragile.calls < 40


def test_a_table_without_rows_has_no_deletions_either() -> None:
    side = model("json", table={"key": ["id"]})
    decoded = with_record_boundary(side, Fragile(ValueError(), 0)).decode_batch(batch([b"x"]))
    assert decoded.deleted is not None
    assert (decoded.deleted.tolist(), decoded.rows.num_rows, len(decoded.bad)) == ([], 0, 1)


def test_an_error_of_the_surroundings_is_no_fault_of_a_record() -> None:
    with pytest.raises(SourceUnavailable):
        with_record_boundary(model("json"), Fragile(SourceUnavailable("away"), 3)).decode_batch(batch([b"x"] * 5))


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), TimeoutError()])
@pytest.mark.parametrize("count", [1, 5])
def test_an_error_of_the_machine_is_no_fault_of_a_record_either(error: OSError, count: int) -> None:
    with pytest.raises(type(error)):
        with_record_boundary(model("json"), Fragile(error, 0)).decode_batch(batch([b"x"] * count))


def test_a_record_gets_a_second_chance_where_memory_ended() -> None:
    class Once(Fragile):
        def decode_batch(self, raw: RawBatch) -> Decoded:
            if self.calls:
                self._bad = set()
            return super().decode_batch(raw)

    decoded = with_record_boundary(model("json"), Once(MemoryError(), 0)).decode_batch(batch([b"x"]))
    assert (decoded.rows["id"].to_pylist(), decoded.bad) == ([0], [])


def one_by_one(kind: str, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> Decoded:
    """Decode three records of a format while its library raises these errors first."""
    left = list(errors)
    if kind == "avro":
        schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": "long"} for n in ("id", "ts")]}
        side, record = model("avro", avroSchema=json.dumps(schema)), b"\2\2"
        module, name = fastavro, "schemaless_reader"
    else:
        text = 'syntax = "proto3"; message M { int64 id = 1; int64 ts = 2; }'
        side, record = model("protobuf", protobufSchema=text), b"\x08\x01\x10\x01"
        module, name = protobuf._Reader, "read"
    read = getattr(module, name)

    def fails(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return read(*arguments)

    monkeypatch.setattr(module, name, fails)
    return decoder_for(side).decode_batch(batch([record] * 3))


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_no_record_of_a_format_is_blamed_for_the_machine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = one_by_one(kind, monkeypatch, MemoryError())
    assert (decoded.rows["id"].to_pylist(), decoded.bad) == ([1, 1, 1], [])
    decoded = one_by_one(kind, monkeypatch, MemoryError(), MemoryError())
    assert [bad.index for bad in decoded.bad] == [0]
    with pytest.raises(OSError, match="Too many"):
        one_by_one(kind, monkeypatch, OSError(24, "Too many open files"))
