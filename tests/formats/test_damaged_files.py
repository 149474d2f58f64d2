"""Files that are cut off or damaged, of every format and compression: the job stops and names the file, before anything
of the file is planned, or its rule for bad records counts (T8). No row is lost in silence, and no library's own error
ends the job."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for, with_record_boundary
from joinery_runtime.connectors.source import StoredOffsets
from joinery_runtime.errors import SourceError
from joinery_runtime.job import Input
from stores import STORE

ROWS = 4_000
JSON = b"".join(b'{"ts": %d, "id": "order-%d"}\n' % (number, number) for number in range(ROWS))
CSV = b"ts,id\n" + b"".join(b"%d,order-%d\n" % (number, number) for number in range(ROWS))


def parquet_file(compression: str) -> bytes:
    table = pa.table({"ts": pa.array(range(ROWS), pa.timestamp("ms")), "id": [f"order-{n}" for n in range(ROWS)]})
    target = io.BytesIO()
    pq.write_table(table, target, compression=compression, row_group_size=1_000, write_page_checksum=True)
    return target.getvalue()


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


FILES = {
    **{
        (file_format, name): pack(data)
        for file_format, data in (("json", JSON), ("csv", CSV))
        for name, pack in (("plain", bytes), ("gzip", gzip.compress), ("zstd", zstd))
    },
    **{("parquet", name): parquet_file(name) for name in ("none", "snappy", "gzip", "zstd", "brotli", "lz4")},
}
PACKED = [(file_format, name) for file_format, name in FILES if file_format == "parquet" or name in {"gzip", "zstd"}]
CUTS: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "last byte": lambda data: data[:-1],
    "last eight bytes": lambda data: data[:-8],
    "first eight bytes": lambda data: data[:8],
    "bytes behind it": lambda data: data + b"\x01\x02\x03\x04\x05\x06\x07\x08\x09",
}


def read(tmp_path: Path, file_format: str, data: bytes) -> tuple[int, list[str]]:
    """The number of rows, and why records are bad, read as a job reads them."""
    (tmp_path / "in").write_bytes(data)
    columns = [{"name": "ts", "type": "timestamp"}, {"name": "id", "type": "string"}]
    model = {"name": "in", "file": {"path": str(tmp_path / "in")}, "format": file_format, "schema": columns}
    side = Input.model_validate({**model, "eventTime": "ts"})
    planner, decoder = planner_for(side, "job", STORE), with_record_boundary(side, decoder_for(side))
    rows, reasons = 0, []
    for bounds in planner.bounds(StoredOffsets()):
        for raw in reader_for(side).read(planner.cut(bounds, 10 * ROWS)):
            decoded = decoder.decode_batch(raw)
            rows += decoded.rows.num_rows
            reasons += [record.reason for record in decoded.bad]
    return rows, reasons


@pytest.mark.parametrize(("file_format", "compression"), FILES)
def test_a_whole_file_is_read(tmp_path: Path, file_format: str, compression: str) -> None:
    assert read(tmp_path, file_format, FILES[file_format, compression]) == (ROWS, [])


@pytest.mark.parametrize("damage", CUTS)
@pytest.mark.parametrize(("file_format", "compression"), PACKED)
def test_one_that_is_cut_off_is_named(tmp_path: Path, file_format: str, compression: str, damage: str) -> None:
    data = CUTS[damage](FILES[file_format, compression])
    with pytest.raises(SourceError, match=r"/in cannot be (unpacked|read as Parquet)") as raised:
        read(tmp_path, file_format, data)
    assert f"the file has {len(data):,} bytes" in raised.value.facts
    if file_format != "parquet":
        assert " between byte " in raised.value.facts


@pytest.mark.parametrize(("file_format", "complete"), [("json", JSON), ("csv", CSV)])
def test_a_record_that_is_cut_off_is_bad(tmp_path: Path, file_format: str, complete: bytes) -> None:
    rows, reasons = read(tmp_path, file_format, complete[: complete.index(b"1234") + 2])
    assert rows + len(reasons) == 1_235
    assert len(reasons) == 1


@pytest.mark.parametrize(("file_format", "compression"), PACKED)
def test_a_flipped_bit_is_noticed_or_changes_no_count(tmp_path: Path, file_format: str, compression: str) -> None:
    """A zstd stream has a checksum only if its writer adds one, so a value may change, but none disappears."""
    intact = FILES[file_format, compression]
    for at in range(8, len(intact), max(1, len(intact) // 60)):
        data = bytearray(intact)
        data[at] ^= 0x10
        try:
            rows, reasons = read(tmp_path, file_format, bytes(data))
        except SourceError as error:
            assert "/in" in error.summary  # noqa: PT017
        else:
            assert rows == ROWS or reasons, at


def test_an_end_that_contradicts_itself_is_named(tmp_path: Path) -> None:
    """Arrow believes the number of all rows, and rows of the last row groups were left out."""
    intact = parquet_file("none")
    count = b"\x16" + varint(2 * ROWS)  # the field num_rows of the footer: a zigzag varint
    assert intact.count(count) == 1
    damaged = intact.replace(count, b"\x16" + varint(2 * (ROWS - 1_000)))
    with pytest.raises(SourceError, match="cannot be read as Parquet") as raised:
        read(tmp_path, "parquet", damaged)
    assert raised.value.facts == "its end says 3,000 rows, and 4,000 for its row groups together"


def varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
