from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinery_runtime.core.table.columns import ENGINE_FIELDS
from joinery_runtime.core.table.keyhash import HASH_SPACE, HashRange, shard_range, shard_starts
from joinery_runtime.core.table.segment import STATE_VERSION, Run, concat, decode, describe, encode, merge

LAST = HASH_SPACE - 1


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    """Rows of (hash, ts) with their position as offset and a user column."""
    hashes, times = (pa.array([row[i] for row in rows], kind) for i, kind in ((0, pa.uint64()), (1, pa.int64())))
    n = len(rows)
    columns = [hashes, times, pa.array([0] * n, pa.int32()), pa.array(range(n), pa.int64()), pa.array(["x"] * n)]
    return pa.record_batch(columns, schema=pa.schema([*ENGINE_FIELDS, pa.field("user", pa.string())]))


def hashes_and_times(run: Run) -> list[tuple[int, int]]:
    return list(zip(run.hash.tolist(), run.ts.tolist(), strict=True))


rows = st.lists(st.tuples(st.sampled_from([0, 1, 2**63 - 1, 2**63, LAST - 1, LAST]), st.integers(-9, 9)), max_size=9)


@settings(deadline=None)
@given(rows=rows)
def test_sort_by_unsigned_hash_then_time_and_back_from_bytes(rows: list[tuple[int, int]]) -> None:
    run = Run.sort(batch(*rows))
    assert hashes_and_times(run) == sorted(rows)
    again = Run.view(decode(encode(run.batch)))
    assert again.batch.equals(run.batch)
    assert hashes_and_times(again) == hashes_and_times(run)
    assert decode(encode(run.batch, compression=None)).equals(run.batch)


@settings(deadline=None)
@given(rows=rows, shards=st.integers(1, 9))
def test_within_cuts_a_run_into_its_shards(rows: list[tuple[int, int]], shards: int) -> None:
    run = Run.sort(batch(*rows))
    parts = [run.within(shard_range(t, shards)) for t in range(shards)]
    assert [position for part in parts for position in hashes_and_times(part)] == hashes_and_times(run)
    for t, part in enumerate(parts):
        assert all(shard_range(t, shards).contains(h, h) for h in part.hash.tolist())


@settings(deadline=None)
@given(parts=st.lists(rows, min_size=1, max_size=4))
def test_merge_keeps_every_row(parts: list[list[tuple[int, int]]]) -> None:
    merged = merge([Run.sort(batch(*rows)) for rows in parts])
    assert hashes_and_times(merged) == sorted(row for rows in parts for row in rows)


def test_concat_brings_columns_into_one_order() -> None:
    first = batch((1, 2))
    other = batch((3, 4)).select([*reversed(first.schema.names)])
    assert concat([first, other]).column("$hash").to_pylist() == [1, 3]


def test_describe_says_what_a_run_holds() -> None:
    run = Run.sort(batch((5, 9), (2**63, -4), (5, 3)))
    meta = describe(run, key="k", part="left", epoch=7, blob=b"1234")
    assert (meta.hash_min, meta.hash_max, meta.ts_min, meta.ts_max) == (5, 2**63, -4, 9)
    assert (meta.key, meta.part, meta.rows, meta.bytes, meta.epoch) == ("k", "left", 3, 4, 7)
    assert meta.state_version == STATE_VERSION


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 8, 4096])
def test_shards_cover_the_hash_space_without_gap_or_overlap(shards: int) -> None:
    ranges = [shard_range(t, shards) for t in range(shards)]
    assert ranges[0].first == 0
    assert ranges[-1].last == LAST
    assert all(a.last + 1 == b.first for a, b in pairwise(ranges))
    assert shard_starts(shards).tolist() == [r.first for r in ranges]
    sizes = {r.last - r.first + 1 for r in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_hash_ranges_include_both_ends() -> None:
    owned = HashRange(10, 20)
    assert owned.contains(10, 20)
    assert not owned.contains(9, 20)
    assert not owned.contains(10, 21)
    assert owned.overlaps(20, 99)
    assert owned.overlaps(0, 10)
    assert not owned.overlaps(21, 99)
    assert np.uint64(shard_range(0, 1).last) == np.uint64(LAST)
