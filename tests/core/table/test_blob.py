"""The bytes of segments: what is packed comes back as it was, and what was written once is read for ever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.sides import FLAGS
from joinery_runtime.core.table import blob as module
from joinery_runtime.core.table.blob import FEW_ROWS, check_blob, from_blob, to_blob
from joinery_runtime.core.table.columns import ENGINE_FIELDS, FLAGS_SCHEMA, HASH, PARTITION
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.partitioning import partition_addresses
from joinery_runtime.core.table.segment import Run, encode
from joinery_runtime.job import parse_job
from state.stored_jobs import JOBS

# Written by the first release with state_version 2, of `rows(["a", None, "ccc"])` hashed by `user`. It is not to be
# written again: then it would say nothing about that release.
VERSION_2 = Path(__file__).parent / "stored" / "segment-version-2"
# The same of the first release with state_version 3, packed and of few rows.
VERSION_3 = [Path(__file__).parent / "stored" / f"segment-version-3-{kind}" for kind in ("packed", "few")]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few the rows are."""
    monkeypatch.setattr(module, "FEW_ROWS", 0)


def rows(users: Sequence[str | None]) -> pa.RecordBatch:
    """A run that is hashed by `user`, with the position as time and offset."""
    user = pa.array(users, pa.string())
    positions = pa.array(range(len(users)), pa.int64())
    columns = [pa.array(key_hash([user])), positions, positions, positions, user]
    batch = pa.record_batch(columns, schema=pa.schema([*ENGINE_FIELDS, pa.field("user", pa.string())]))
    return Run.sort(batch).batch


def stored_schema(blob: bytes) -> pa.Schema:
    """Of the columns that are stored, behind the checksum."""
    return pa.ipc.open_stream(blob[16:]).schema


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 70_000),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=9) | st.just("x" * 300),
    pa.binary(): st.binary(max_size=9),
    pa.date32(): st.dates(),
    pa.timestamp("ms", tz="UTC"): st.integers(-62_135_596_800_000, 253_402_300_799_999),
    pa.decimal128(12, 2): st.decimals(-9, 9, places=2, allow_nan=False),
    pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=3),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Columns of every type, with NULLs, as a slice of longer ones."""
    count, first = draw(st.integers(0, 5)), draw(st.integers(0, 2))
    columns = {
        str(kind): pa.array(draw(st.lists(st.none() | values, min_size=first + count, max_size=first + count)), kind)
        for kind, values in VALUES.items()
    }
    return pa.record_batch(columns).slice(first)


@settings(deadline=None)
@given(batch=batches())
def test_every_type_comes_back(batch: pa.RecordBatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEW_ROWS", 0)
        assert from_blob(to_blob(batch)).equals(batch)


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (pa.int64(), [2**40, 2**40 + 255], pa.uint8()),
        (pa.int64(), [-(2**40), 256 - 2**40], pa.uint16()),
        (pa.int64(), [0, 2**32 - 1], pa.uint32()),
        (pa.int64(), [0, 2**32], pa.int64()),
        (pa.int32(), [-9, 2**31 - 10], pa.int32()),
        (pa.int32(), [None, None], pa.int32()),
        (pa.timestamp("ms", tz="UTC"), [None, 1_760_000_000_000], pa.uint8()),
        (pa.string(), ["", "x" * 255], pa.uint8()),
        (pa.binary(), [None, b"x" * 256], pa.uint16()),
    ],
)
def test_numbers_and_lengths_take_as_few_bytes_as_they_fit(
    packed: None, kind: pa.DataType, values: list[Any], stored: pa.DataType
) -> None:
    batch = pa.record_batch({"c": pa.array(values, kind)})
    blob = to_blob(batch)
    assert stored_schema(blob).field("c").type == stored
    assert from_blob(blob).equals(batch)


def test_bytes_in_the_place_of_a_null_are_no_text(packed: None) -> None:
    texts = pa.array(["ab", "cd", "ef"])
    hidden = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *texts.buffers()[1:]])
    assert hidden.to_pylist() == ["ab", None, "ef"]
    assert from_blob(to_blob(pa.record_batch({"c": hidden}))).column("c").to_pylist() == ["ab", None, "ef"]


def test_a_hash_that_follows_from_the_key_is_not_stored(packed: None) -> None:
    batch = rows(["b", "a", None, "c"])
    blob = to_blob(batch, ["user"])
    assert HASH not in stored_schema(blob).names
    assert from_blob(blob).equals(batch)
    assert from_blob(blob, lambda keys: key_hash(keys) ^ np.uint64(1)).column(HASH).to_pylist() == [
        value ^ 1 for value in batch.column(HASH).to_pylist()
    ]


def test_an_address_of_co_partitioned_inputs_is_not_stored_either(packed: None) -> None:
    batch = rows(["b", "a", None, "c"])
    addresses = partition_addresses(batch.column(PARTITION).to_numpy(), batch.column(HASH).to_numpy(), 3)
    batch = batch.set_column(0, batch.schema.field(0), pa.array(addresses))
    blob = to_blob(batch, ["user"], 3)
    assert HASH not in stored_schema(blob).names
    assert from_blob(blob).equals(batch)


def test_few_rows_are_stored_as_they_are() -> None:
    batch = rows([str(number) for number in range(FEW_ROWS)])
    few = batch.slice(1)
    assert to_blob(few, ["user"])[16:] == encode(few)
    assert from_blob(encode(few)).equals(few)
    assert len(to_blob(batch, ["user"])) * 3 < len(encode(batch))


def test_what_the_first_release_of_version_2_wrote_is_read() -> None:
    assert from_blob(VERSION_2.read_bytes()).equals(rows(["a", None, "ccc"]))


@pytest.mark.parametrize("stored", VERSION_3, ids=["packed", "few"])
def test_what_the_first_release_of_version_3_wrote_is_read(stored: Path) -> None:
    """Its partitions are int32."""
    assert from_blob(stored.read_bytes()).equals(rows(["a", None, "ccc"]))


@pytest.mark.parametrize("few_rows", [0, FEW_ROWS], ids=["packed", "few"])
def test_no_flipped_bit_decodes(monkeypatch: pytest.MonkeyPatch, few_rows: int) -> None:
    monkeypatch.setattr(module, "FEW_ROWS", few_rows)
    blob = to_blob(rows([f"user {number % 7}" for number in range(50)]), ["user"])
    for position in range(len(blob)):
        damaged = bytearray(blob)
        damaged[position] ^= 1 << position % 8
        for read in (from_blob, check_blob):
            with pytest.raises(ValueError, match=r"checksum|damaged"):
                read(bytes(damaged))


@pytest.mark.parametrize("size", [0, 7, 8, 16, 17, 300])
def test_no_piece_of_a_blob_decodes(size: int) -> None:
    with pytest.raises((ValueError, OSError)):
        from_blob(to_blob(rows(["a"] * 50))[:size])


@pytest.mark.parametrize("few_rows", [0, FEW_ROWS], ids=["packed", "few"])
def test_what_was_written_without_a_checksum_is_read(monkeypatch: pytest.MonkeyPatch, few_rows: int) -> None:
    monkeypatch.setattr(module, "FEW_ROWS", few_rows)
    batch = rows(["b", "a", None, "c"])
    unchecked = to_blob(batch, ["user"])[16:]
    check_blob(unchecked)
    assert from_blob(unchecked).equals(batch)


def test_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected to read"):
        from_blob(b"no segment of any version")


@pytest.mark.parametrize("name", JOBS)
def test_parts_of_joins_and_sessions_are_hashed_by_their_keys(name: str) -> None:
    for side in compile_job(parse_job(JOBS[name], "job.yaml")).parts().values():
        assert side.hashed_by == side.intake.keys
        assert set(side.hashed_by) <= set(side.segment_schema().names)


def _job(keys: str, more: str = "") -> str:
    columns = "[{name: k, type: string}, {name: ts, type: timestamp}]"
    inputs = "".join(
        f"\n  - {{name: {name}, file: {{path: {name}}}, format: json, schema: {columns}, eventTime: ts,"
        " watermark: {delay: 1s}}"
        for name in ("l", "r")
    )
    return f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: j}}
spec:
  inputs:{inputs}
  joins: [{{right: r, keys: {keys}, interval: {{of: l, lower: 0s, upper: 1s}}{more}}}]
  output: {{file: {{path: out}}}}
  stateStore: {{memory: {{}}}}
"""


@pytest.mark.parametrize(
    ("job", "hashed_by"),
    [
        (_job("{l.k: r.k}"), [("k",), ("k",)]),
        (_job("{l.k: r.k, l.ts: r.ts}"), [(), ()]),
        (_job("{}", ", broadcast: r"), [(), ()]),
    ],
    ids=["a key", "the event time is a key, and stored as the time alone", "time only"],
)
def test_the_hash_is_stored_where_it_follows_from_no_stored_column(job: str, hashed_by: list[tuple[str, ...]]) -> None:
    assert [side.hashed_by for side in compile_job(parse_job(job, "job.yaml")).parts().values()] == hashed_by


def test_flags_have_no_keys() -> None:
    assert FLAGS_SCHEMA.names[0] == HASH
    assert not any(part.endswith(FLAGS) for name in JOBS for part in compile_job(parse_job(JOBS[name], "j")).parts())
