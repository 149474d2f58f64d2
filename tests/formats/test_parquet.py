"""Parquet files: every row once whatever the ranges, columns with the types of the schema, and clear errors."""

from __future__ import annotations

import errno
import json
import re
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinery_runtime.connectors.files import parquet
from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for, with_record_boundary
from joinery_runtime.connectors.source import Range, StoredOffsets
from joinery_runtime.connectors.trial import read_carefully
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.formats.records import Decoded, records_of
from joinery_runtime.job import Input
from stores import STORE

AT = datetime(2026, 1, 15, 10, 0, 0, 123_000, tzinfo=UTC)
Column = tuple[str, str] | dict[str, Any]


def model(path: Path, *columns: Column, **more: Any) -> Input:
    schema = [column if isinstance(column, dict) else {"name": column[0], "type": column[1]} for column in columns]
    data = {"name": "in", "file": {"path": str(path)}, "format": "parquet", "schema": schema, "eventTime": "ts"}
    return Input.model_validate({**data, **more})


def read(side: Input, per_range: int = 100_000) -> list[tuple[list[int], Decoded, list[bytes]]]:
    """Offsets, rows and bad records of each batch, read in ranges as a job reads them."""
    planner, reader, decoder = (
        planner_for(side, "job", STORE),
        reader_for(side),
        with_record_boundary(side, decoder_for(side)),
    )
    batches, positions = [], {}
    while True:
        open_ = [b for b in planner.bounds(StoredOffsets(positions)) if b.start < b.end_exclusive]
        if not open_:
            return batches
        for bounds in open_:
            planned = planner.cut(bounds, per_range)
            positions[bounds.partition] = planned.end_exclusive
            for raw in reader.read(Range(bounds.partition, planned.start, planned.end_exclusive)):
                decoded = decoder.decode_batch(raw)
                bad = records_of(raw, [bad_record.index for bad_record in decoded.bad]).to_pylist()
                batches.append((raw.offsets.tolist(), decoded, bad))


def rows(side: Input) -> list[dict[str, Any]]:
    return [row for _, decoded, _ in read(side) for row in decoded.rows.to_pylist()]


def one(tmp_path: Path, values: pa.Array, kind: str, **more: Any) -> Decoded:
    """A column `c` of a file with these values, read as a column of this type."""
    times = pa.array([AT] * len(values), pa.timestamp("ms", tz="UTC"))
    pq.write_table(pa.table({"c": values, "ts": times}), tmp_path / "in")
    ((_, decoded, _),) = read(model(tmp_path / "in", {"name": "c", "type": kind, **more}, ("ts", "timestamp")))
    return decoded


def values_of(decoded: Decoded) -> list[Any]:
    return decoded.rows["c"].to_pylist()


@pytest.mark.parametrize("per_range", [1, 7, 10, 1_000])
def test_every_row_comes_once_with_its_number_whatever_row_groups_and_ranges(tmp_path: Path, per_range: int) -> None:
    table = pa.table({"n": range(45), "unread": ["x"] * 45, "ts": pa.array([AT] * 45, pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "in", row_group_size=10)
    batches = read(model(tmp_path / "in", ("n", "int64"), ("ts", "timestamp")), per_range)
    assert [at for offsets, _, _ in batches for at in offsets] == list(range(45))
    assert [row["n"] for _, decoded, _ in batches for row in decoded.rows.to_pylist()] == list(range(45))


@pytest.mark.parametrize(
    ("written", "kind", "expected"),
    [
        (pa.array([True, None]), "boolean", [True, None]),
        (pa.array([1, None], pa.int8()), "int32", [1, None]),
        (pa.array([7], pa.int32()), "int64", [7]),
        (pa.array([7], pa.decimal128(38, 0)), "int64", [7]),
        (pa.array([0.5], pa.float16()), "float", [0.5]),
        (pa.array([2**53 + 1], pa.int64()), "double", [float(2**53)]),
        (pa.array([Decimal("1.25")]), "double", [1.25]),
        (pa.array([float("nan")]), "string", ["NaN"]),
        (pa.array([Decimal("1.250")]), "decimal(4,2)", [Decimal("1.25")]),
        (pa.array([12], pa.int64()), "decimal(4,2)", [Decimal(12)]),
        (pa.array([Decimal("1.25")], pa.decimal256(40, 2)), "decimal(4,2)", [Decimal("1.25")]),
        (pa.array(["a", None], pa.large_string()), "string", ["a", None]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "string", ["a", "b", "a"]),
        (pa.array([b"\xc3\xa9"]), "string", ["é"]),
        (pa.array([b"ab"], pa.binary(2)), "binary", [b"ab"]),
        (pa.array([date(2026, 1, 15)], pa.date64()), "date", [date(2026, 1, 15)]),
        (pa.array([date(2026, 1, 15)]), "string", ["2026-01-15"]),
        (pa.nulls(2), "int64", [None, None]),
        (pa.array([{"a": [1], "at": AT}]), "string", ['{"a": [1], "at": "2026-01-15T10:00:00.123000+00:00"}']),
        (pa.array([[b"\xff"], None, []]), "string", ['["/w=="]', None, "[]"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_types(tmp_path: Path, written: pa.Array, kind: str, expected: list[Any]) -> None:
    decoded = one(tmp_path, written, kind)
    assert (values_of(decoded), decoded.bad) == (expected, [])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_every_unit_are_cut_off_below_a_millisecond(tmp_path: Path, unit: str, zone: str | None) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    physical = [-1, 0, 1_768_471_200 * per_second + per_second // 8]
    milliseconds = [-1_000 if unit == "s" else -1, 0, 1_768_471_200_000 + (0 if unit == "s" else 125)]
    decoded = one(tmp_path, pa.array(physical, pa.timestamp(unit, zone)), "timestamp")
    assert decoded.rows["c"].cast(pa.int64()).to_pylist() == milliseconds
    assert decoded.bad == []


def test_numbers_are_times_as_in_json_and_formats_say_otherwise(tmp_path: Path) -> None:
    assert values_of(one(tmp_path, pa.array([1_768_471_200_123]), "timestamp"))[0].year == 2026
    (bad,) = one(tmp_path, pa.array([1_768_471_200]), "timestamp").bad
    assert "1970 if it counts milliseconds" in bad.reason
    assert values_of(one(tmp_path, pa.array([1_768_471_200]), "timestamp", format="s"))[0].year == 2026
    local = pa.array([datetime(2026, 7, 1, 12)], pa.timestamp("us"))
    assert values_of(one(tmp_path, local, "timestamp", format="iso", zone="Europe/Berlin"))[0].hour == 10
    assert values_of(one(tmp_path, pa.array(["2026-07-01T12:00:00Z"]), "timestamp", format="iso"))[0].hour == 12


def _unchecked_text(*values: bytes) -> pa.Array:
    """A text column of these bytes, as writers of other encodings leave it."""
    binary = pa.array(values)
    return pa.StringArray.from_buffers(len(binary), binary.buffers()[1], binary.buffers()[2])


@pytest.mark.parametrize(
    ("written", "kind", "reason"),
    [
        (pa.array([2**31, 1]), "int32", "is not a valid int32"),
        (pa.array([2**64 - 1, 1], pa.uint64()), "int64", "is not a valid int64"),
        (pa.array([1e300, 1.0]), "float", "is not a valid float"),
        (pa.array([Decimal("1.005"), Decimal("1.000")]), "decimal(4,2)", "is not a valid decimal(4,2)"),
        (pa.array([b"\xff", b"1"]), "string", "not UTF-8"),
        (_unchecked_text(b"\xff", b"1"), "string", "not UTF-8"),
        (_unchecked_text(b"\xff", b"1").cast(pa.large_string()), "string", "not UTF-8"),
        (pa.StructArray.from_arrays([_unchecked_text(b"\xff", b"1")], ["s"]), "string", "not UTF-8"),
        (pa.ListArray.from_arrays([0, 1, 2], _unchecked_text(b"\xff", b"1")), "string", "not UTF-8"),
        (pa.array([253_402_300_800_000_000, 1], pa.timestamp("us", "UTC")), "timestamp", "is not a valid timestamp"),
        (pa.array([2**63, 1], pa.uint64()), "timestamp", "is not a valid timestamp"),
        (pa.array([2_932_897, -719_162], pa.date32()), "date", "is not a valid date"),
        (pa.array([-719_163 * 86_400_000, 2_932_896 * 86_400_000], pa.date64()), "date", "is not a valid date"),
    ],
)
def test_a_value_that_does_not_fit_is_a_dead_letter_and_the_others_are_not(
    tmp_path: Path, written: pa.Array, kind: str, reason: str
) -> None:
    decoded = one(tmp_path, written, kind)
    assert [(bad.index, reason in bad.reason) for bad in decoded.bad] == [(0, True)]
    assert decoded.index.tolist() == [1]


def test_a_dead_letter_holds_the_row_as_json(tmp_path: Path) -> None:
    """Of the columns that the job names, whatever their types."""
    nanoseconds = pa.array([1, 0], pa.timestamp("ns", "UTC"))
    deep = pa.array([{"raw": b"\xff", "d": Decimal("1.50")}, None])
    table = pa.table({"n": [2**40, 1], "deep": deep, "other": [1, 2], "ts": nanoseconds})
    pq.write_table(table, tmp_path / "in")
    columns = (("n", "int32"), ("deep", "string"), ("ts", "timestamp"))
    ((_, _, (record,)),) = read(model(tmp_path / "in", *columns))
    row = json.loads(record)
    assert (row["n"], row["deep"]) == (2**40, {"raw": "/w==", "d": "1.50"})
    assert row["ts"].startswith("1970-01-01")
    assert "other" not in row


def test_paths_lead_into_structs_and_lists(tmp_path: Path) -> None:
    deep = [{"id": 1, "items": [{"sku": "a"}, {"sku": "b"}]}, {"id": 2, "items": []}, {"id": 3, "items": None}, None]
    times = pa.array([AT] * 4, pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"after": pa.array(deep), "x.y": ["q"] * 4, "ts": times}), tmp_path / "in")
    side = model(
        tmp_path / "in",
        {"name": "id", "type": "int64", "path": "after.id"},
        {"name": "sku", "type": "string", "path": "after.items[1].sku"},
        {"name": "dotted", "type": "string", "path": '"x.y"'},
        ("ts", "timestamp"),
    )
    assert [(row["id"], row["sku"], row["dotted"]) for row in rows(side)] == [
        (1, "b", "q"), (2, None, "q"), (3, None, "q"), (None, None, "q"),
    ]  # fmt: skip


def test_files_written_before_a_column_was_there(tmp_path: Path) -> None:
    """It is null in them, and a column that is in no file at all is a mistake."""
    times = pa.array([AT], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"k": ["old"], "n": pa.array([1], pa.int32()), "ts": times}), tmp_path / "1")
    pq.write_table(pa.table({"k": ["new"], "n": [2], "added": ["x"], "ts": times}), tmp_path / "2")
    columns: list[Column] = [("k", "string"), ("n", "int64"), ("added", "string"), ("ts", "timestamp")]
    values = [(row["k"], row["n"], row["added"]) for row in rows(model(tmp_path, *columns))]
    assert values == [("old", 1, None), ("new", 2, "x")]
    with pytest.raises(SourceError, match="do not fit") as raised:
        read(model(tmp_path, *columns, ("addde", "string")))
    assert f"no file of {tmp_path} has addde" in raised.value.facts


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ([("k", "int64"), ("ts", "timestamp")], "column k is string there, and int64 in the job"),
        ([("n", "int64"), ("ts", "timestamp")], "column n is double there, and int64 in the job"),
        ([("k", "string"), ("ts", "timestamp"), ("late", "timestamp")], "late, the event time, is not there"),
    ],
)
def test_a_file_that_does_not_fit_is_named_at_the_start(tmp_path: Path, columns: list[Column], facts: str) -> None:
    times = pa.array([AT], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"k": ["a"], "n": [1.5], "ts": times}), tmp_path / "in")
    event_time = columns[-1][0] if isinstance(columns[-1], tuple) else ""
    with pytest.raises(SourceError, match=r"Parquet file .*/in does not fit") as raised:
        planner_for(model(tmp_path / "in", *columns, eventTime=event_time), "job", STORE).bounds(StoredOffsets())
    assert facts in raised.value.facts


def test_what_is_no_parquet_or_not_complete_is_named(tmp_path: Path) -> None:
    side = model(tmp_path / "in", ("ts", "timestamp"))
    pq.write_table(pa.table({"ts": pa.array([AT] * 9, pa.timestamp("ms", "UTC"))}), tmp_path / "in")
    (bounds,) = planner_for(side, "job", STORE).bounds(StoredOffsets())
    intact = (tmp_path / "in").read_bytes()
    for broken in (b"", b'{"ts": 1}\n', intact[:-9]):
        (tmp_path / "in").write_bytes(broken)
        with pytest.raises(SourceError, match=r"/in cannot be read as Parquet"):
            planner_for(side, "job", STORE).bounds(StoredOffsets())
    pq.write_table(pa.table({"ts": pa.array([AT], pa.timestamp("ms", "UTC"))}), tmp_path / "in")
    with pytest.raises(SourceError, match="is shorter than before"):
        planner_for(side, "job", STORE).bounds(StoredOffsets({bounds.partition: 9}))
    with pytest.raises(SourceError, match="cut short while it was read"):
        list(reader_for(side).read(Range(bounds.partition, 0, 9)))
    with pytest.raises(SourceError, match="missing cannot be read"):
        read(model(tmp_path / "missing", ("ts", "timestamp")))


def with_bytes(path: Path, at: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("compression", "at", "damage", "fault"),
    [
        ("snappy", -20, b"\xff" * 8, "snappy|CRC"),
        ("snappy", 0, b"\xff" * 8, "thrift"),
        ("none", -20, b"\xff" * 8, "CRC"),
        ("zstd", 0, b"\x00" * 50, "thrift|page"),
    ],
)
@pytest.mark.parametrize("per_range", [7, 1_000])
def test_a_damaged_page_costs_its_row_group_only(
    tmp_path: Path, per_range: int, compression: str, at: int, damage: bytes, fault: str
) -> None:
    """It ended the job at every start, whatever the job does with bad records."""
    table = pa.table({"n": range(30), "ts": pa.array([AT] * 30, pa.timestamp("ms", "UTC"))})
    path = tmp_path / "in"
    settings = {"compression": compression, "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=10, **settings)
    column = pq.read_metadata(path).row_group(1).column(0)
    end = column.data_page_offset + column.total_compressed_size
    with_bytes(path, (end if at < 0 else column.data_page_offset) + at, damage)

    batches = read(model(path, ("n", "int64"), ("ts", "timestamp")), per_range)
    assert [row["n"] for _, decoded, _ in batches for row in decoded.rows.to_pylist()] == [*range(10), *range(20, 30)]
    bad = [(offsets, decoded.bad[0].reason, json.loads(values[0])) for offsets, decoded, values in batches if values]
    spans = [(value["first_row"], value["last_row"]) for _, _, value in bad]
    assert spans == ([(10, 13), (14, 19)] if per_range == 7 else [(10, 19)])
    for (offsets, reason, _), (first, last) in zip(bad, spans, strict=True):
        assert offsets == [first]
        assert re.match(rf"rows {first} to {last}, of row group 1, cannot be read: .*({fault})", reason)


def test_rows_that_only_the_metadata_has_are_a_bad_record(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000), "ts": pa.array([AT] * 1000, pa.timestamp("ms", "UTC"))})
    path = tmp_path / "in"
    pq.write_table(table, path, use_dictionary=False, write_statistics=False, store_schema=False)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    thousand, more = b"\xd0\x0f", b"\x80\x7d"  # 1,000 and 8,000 in Thrift
    assert data[footer:].count(thousand) >= 2
    path.write_bytes(data[:footer] + data[footer:].replace(thousand, more))
    assert pq.read_metadata(path).num_rows == 8000

    batches = read(model(path, ("n", "int64"), ("ts", "timestamp")), 4_000)
    assert [row["n"] for _, decoded, _ in batches for row in decoded.rows.to_pylist()] == list(range(1000))
    reasons = [decoded.bad[0].reason for _, decoded, _ in batches if decoded.bad]
    assert [reason.partition(",")[0] for reason in reasons] == ["rows 1", "rows 4"], reasons


# A reader that dies behind the first batch of the second row group, as one written in C may.
DIES = """
import os, signal, sys
from joinery_runtime.connectors.trial import serve_parquet
for rows in serve_parquet(*sys.argv[1:]):
    print(rows, flush=True)
    if sys.argv[2].startswith("[1,"):
        os.kill(os.getpid(), signal.SIGSEGV)
"""
DIES_OF_NOTHING = "import os; os.kill(os.getpid(), 9)"


def test_rows_that_end_the_process_cost_their_row_group_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 4)
    table = pa.table({"n": range(30), "ts": pa.array([AT] * 30, pa.timestamp("ms", "UTC"))})
    pq.write_table(table, tmp_path / "in", row_group_size=10)
    reader = reader_for(model(tmp_path / "in", ("n", "int64"), ("ts", "timestamp")))
    planned = Range(PartitionRef("in", str(tmp_path / "in"), 0), 12, 30)

    def offsets_and_reasons(script: str) -> tuple[list[int], list[str | None]]:
        (tmp_path / "other.py").write_text(script)
        careful = read_carefully(reader, (sys.executable, str(tmp_path / "other.py")))
        batches = list(careful.read(planned))
        return [at for raw in batches for at in raw.offsets.tolist()], [raw.refusal for raw in batches if raw.refusal]

    assert offsets_and_reasons(DIES) == (
        [12, 13, 14, *range(20, 30)],
        ["rows 14 to 19, of row group 1, cannot be read: reading them ended the process (SIGSEGV)"],
    )
    assert offsets_and_reasons(DIES_OF_NOTHING) == (list(range(12, 30)), [])
    careful_offsets = [raw.offsets.tolist() for raw in read_carefully(reader).read(planned)]
    assert careful_offsets == [raw.offsets.tolist() for raw in reader.read(planned)]


def test_an_error_of_the_machine_is_no_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"n": range(30), "ts": pa.array([AT] * 30, pa.timestamp("ms", "UTC"))})
    pq.write_table(table, tmp_path / "in")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fails)
    with pytest.raises(SourceError, match="cannot be read: Input/output error"):
        read(model(tmp_path / "in", ("n", "int64"), ("ts", "timestamp")))


def test_a_table_of_versions_and_deletions(tmp_path: Path) -> None:
    times = pa.array([AT] * 3, pa.timestamp("ms", "UTC"))
    table = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3], "ts": times})
    side = model(tmp_path / "in", ("k", "string"), ("v", "int64"), ("ts", "timestamp"), table={"key": ["k"]})
    pq.write_table(table, tmp_path / "in")
    ((_, decoded, _),) = read(side)
    assert decoded.deleted is not None
    assert not decoded.deleted.any()
    pq.write_table(table.append_column("$delete", pa.array([None, False, True])), tmp_path / "in")
    ((_, decoded, _),) = read(side)
    assert decoded.deleted is not None
    assert decoded.deleted.tolist() == [False, False, True]
    assert [(row["k"], row["v"]) for row in decoded.rows.to_pylist()] == [("a", 1), ("b", 2), ("a", None)]
    pq.write_table(table.append_column("$delete", pa.array(["no"] * 3)), tmp_path / "in")
    with pytest.raises(SourceError, match="does not fit") as raised:
        read(side)
    assert "column $delete is string there, and bool in the job" in raised.value.facts
