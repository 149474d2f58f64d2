"""The stable 64-bit key hash (rule V1), version 1, and the hash ranges that shards own.

The hash decides where state lives, so it must be the same on every machine and in every release. Its definition, in
unsigned 64-bit arithmetic modulo 2^64, for the key columns k1..kn of a row:

    h = 1
    for each column: h = mix((h * 0x9E3779B97F4A7C15) ^ word(k))

`mix` is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
`word` is the canonical 64-bit form of a value, equal for equal values whatever their width:

    boolean                 0 or 1
    int32, int64            two's complement
    uint64                  itself (the ids of sessions, which are keys of output rows only)
    date                    days since 1970-01-01, two's complement
    timestamp               milliseconds since the epoch, two's complement
    float, double           the bits of the IEEE double; -0.0 counts as 0.0, every NaN as 0x7FF8000000000000
    string                  xxh3_64 (seed 0) of the UTF-8 bytes
    binary                  xxh3_64 (seed 0) of the bytes
    decimal                 xxh3_64 (seed 0) of the 32-byte little-endian two's complement of value * 10^38
    NULL                    0x6E756C6C6E756C6C

Keys that share a hash are told apart by comparing the keys themselves, never by trusting the hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import polars_hash as plh
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NULL_WORD = np.uint64(0x6E756C6C6E756C6C)
_NAN_BITS = np.uint64(0x7FF8000000000000)

KeyHash = Callable[[Sequence[pa.Array]], np.ndarray]


FEW = 256
"""Up to this many values are hashed one by one. A call of Polars takes at least 0.15 ms of CPU, and with hundreds of
partitions most batches have a few rows."""


def xxh3(column: pa.Array) -> np.ndarray:
    """uint64[n]: xxh3_64 of each of n strings or binary values; undefined for NULLs."""
    if len(column) <= FEW:
        texts = column.cast(pa.binary()).to_pylist()
        digests = (0 if text is None else xxhash.xxh3_64_intdigest(text) for text in texts)
        return np.fromiter(digests, np.uint64, len(column))
    frame = pl.DataFrame({"k": pl.from_arrow(column)})
    hashes = frame.select(plh.col("k").nchash.xxh3_64().fill_null(0)).to_series()
    return np.asarray(hashes.to_numpy())


def key_hash(columns: Sequence[pa.Array], xxh3: Callable[[pa.Array], np.ndarray] = xxh3) -> np.ndarray:
    """Hash n rows (uint64[n]). `columns` are the key columns, n values each. `xxh3` may be another implementation of
    the function of that name."""
    hashes = np.ones(len(columns[0]), dtype=np.uint64)
    for column in columns:
        hashes = _mix((hashes * _GOLDEN) ^ _words(column, xxh3))
    return hashes


def spread_hash(partitions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Hash partitions and offsets (uint64[n]), for rows that no key assigns to a shard."""
    packed = (partitions.astype(np.uint64) << np.uint64(48)) ^ offsets.astype(np.uint64)
    return _mix((np.uint64(1) * _GOLDEN) ^ packed)


def partition_hash(partitions: np.ndarray) -> np.ndarray:
    """Hash partitions (uint64[n]), for rows that stay together. Multiples of the golden ratio spread few of them more
    evenly over the hashes than a random hash does."""
    return partitions.astype(np.uint64) * _GOLDEN


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _words(column: pa.Array, xxh3: Callable[[pa.Array], np.ndarray]) -> np.ndarray:
    kind = column.type
    if pa.types.is_floating(kind):
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
        words = np.where(np.isnan(values), _NAN_BITS, values.view(np.uint64))
    elif pa.types.is_decimal(kind):
        # With a common scale, the bytes depend on the value alone. decimal256 holds 38 digits on both sides of the
        # point.
        wide = column.cast(pa.decimal256(76, 38))
        data = wide.buffers()[1]
        raw = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(wide), [None, data], offset=wide.offset)
        words = xxh3(raw.cast(pa.binary()))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        words = xxh3(column)
    else:
        whole_numbers = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
        if not pa.types.is_uint64(kind):
            whole_numbers = whole_numbers.cast(pa.int64())
        words = pc.fill_null(whole_numbers, 0).to_numpy(zero_copy_only=False).view(np.uint64)
    if column.null_count:
        words = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL_WORD, words)
    return words


# --- shards -----------------------------------------------------------------------------------------------------------

# Shards are contiguous ranges of the 64-bit hash space: shard t of T owns [ceil(t*2^64/T), ceil((t+1)*2^64/T)). State
# is addressed by hash, never by shard number, so any epoch may run with any number of shards.
HASH_SPACE = 1 << 64


@dataclass(frozen=True, slots=True)
class HashRange:
    """A range of unsigned 64-bit hashes, both ends inclusive (2^64 itself does not fit 64 bits)."""

    first: int
    last: int

    def contains(self, first: int, last: int) -> bool:
        return self.first <= first and last <= self.last

    def overlaps(self, first: int, last: int) -> bool:
        return first <= self.last and self.first <= last


def shard_range(shard: int, shards: int) -> HashRange:
    return HashRange(_start(shard, shards), _start(shard + 1, shards) - 1)


def shard_starts(shards: int) -> np.ndarray:
    """uint64[shards]: the first hash of every shard."""
    return np.array([_start(t, shards) for t in range(shards)], dtype=np.uint64)


def _start(shard: int, shards: int) -> int:
    return -(-shard * HASH_SPACE // shards)
