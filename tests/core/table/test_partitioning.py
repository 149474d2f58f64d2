"""Partitioners as Kafka's clients have them, and where rows of co-partitioned inputs live."""

from __future__ import annotations

import math
import zlib
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinery_runtime.core.table.keyhash import HASH_SPACE, shard_range, shard_starts
from joinery_runtime.core.table.partitioning import Partitioner, key_partitions, partition_addresses

# What Kafka's own test says of its Java client (UtilsTest.testMurmur2).
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
counts = st.one_of(st.integers(1, 12), st.integers(1, 10_000))


def murmur2(text: bytes) -> int:
    """From the Java client's source, byte by byte; without the sign."""
    m, bits, length = 0x5BD1E995, 0xFFFFFFFF, len(text)
    h = 0x9747B28C ^ length
    for at in range(0, length - length % 4, 4):
        k = (text[at] + (text[at + 1] << 8) + (text[at + 2] << 16) + (text[at + 3] << 24)) * m & bits
        k = (k ^ (k >> 24)) * m & bits
        h = (h * m & bits) ^ k
    tail = text[length - length % 4 :]
    for at in reversed(range(len(tail))):
        h ^= tail[at] << (8 * at)
    if tail:
        h = h * m & bits
    h = (h ^ (h >> 13)) * m & bits
    return (h ^ (h >> 15)) & 0x7FFFFFFF


HASHES = {"murmur2": murmur2, "crc32": zlib.crc32}


def test_murmur2_is_that_of_the_java_client() -> None:
    count = 2**31 - 1
    expected = [(value & 0x7FFFFFFF) % count for value in JAVA.values()]
    assert key_partitions(pa.array(list(JAVA), pa.binary()), "murmur2", count).tolist() == expected


@pytest.mark.parametrize("partitioner", get_args(Partitioner))
@given(keys=st.lists(st.none() | st.binary(max_size=40), max_size=12), count=counts, skip=st.integers(0, 2))
@example(keys=[b"a" * 256, b"b" * 257, b"c" * 1_001, b"", None], count=7, skip=0)
def test_keys_go_where_the_partitioner_puts_them(
    partitioner: str, keys: list[bytes | None], count: int, skip: int
) -> None:
    """Also those of a slice, and next to NULLs."""
    column = pa.array(keys, pa.binary()).slice(skip)
    partitions = key_partitions(column, partitioner, count)
    assert len(partitions) == len(column)
    for key, partition in zip(column.to_pylist(), partitions.tolist(), strict=True):
        assert 0 <= partition < count
        assert key is None or partition == HASHES[partitioner](key) % count


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), "é", "é".encode()),
        (pa.binary(), b"\xff\x00", b"\xff\x00"),
        (pa.int32(), -7, b"-7"),
        (pa.int64(), 2**40, b"1099511627776"),
    ],
)
def test_what_bytes_a_key_has(kind: pa.DataType, value: Any, text: bytes) -> None:
    count = 2**31 - 1
    for partitioner in get_args(Partitioner):
        expected = HASHES[partitioner](text) % count
        assert key_partitions(pa.array([value], kind), partitioner, count).tolist() == [expected]


@given(count=counts, hashes=st.lists(st.integers(0, HASH_SPACE - 1), min_size=1, max_size=8), data=st.data())
@example(count=3, hashes=[0, HASH_SPACE - 1], data=None)
@example(count=1, hashes=[0, HASH_SPACE - 1], data=None)
def test_addresses_stay_in_their_partition_and_keep_the_order_of_hashes(
    count: int, hashes: list[int], data: Any
) -> None:
    partition = count - 1 if data is None else data.draw(st.integers(0, 3 * count))
    hashes = sorted(hashes)
    partitions = np.full(len(hashes), partition, dtype=np.int32)
    address_array = partition_addresses(partitions, np.array(hashes, dtype=np.uint64), count)
    assert address_array.dtype == np.uint64
    addresses = address_array.tolist()
    owned = shard_range(partition % count, count)
    assert all(owned.contains(at, at) for at in addresses)
    assert addresses == sorted(addresses)


@given(count=counts, shards=st.integers(1, 64), data=st.data())
def test_a_group_has_whole_shards_and_whole_partitions(count: int, shards: int, data: Any) -> None:
    """gcd(shards, partitions) of them: no address of a partition is in a shard of another group."""
    groups = math.gcd(count, shards)
    partition = data.draw(st.integers(0, count - 1))
    edges = np.array([0, HASH_SPACE - 1, data.draw(st.integers(0, HASH_SPACE - 1))], dtype=np.uint64)
    addresses = partition_addresses(np.full(3, partition, dtype=np.int32), edges, count)
    owning_shards = np.searchsorted(shard_starts(shards), addresses, side="right") - 1
    assert {int(shard) * groups // shards for shard in owning_shards} == {partition * groups // count}
