"""Where rows of co-partitioned inputs live: the addresses of a partition lie together in the 64-bit space.

A producer's *partitioner* puts a record into partition `F(key) mod N` of a topic of N partitions. Inputs are
co-partitioned by P where P divides the number of partitions of each of them, and every row is in a partition with
`partition mod P = F(join key) mod P`. That is checked for each row by itself, so equal keys share `partition mod P`
without anybody having to see both of them. The address of a row is then

    ceil(p * 2^64 / P) + min(hash div P, 2^64 div P - 1)     with p = partition mod P, hash = the key hash (rule V1)

which never leaves the range of shard p of P. Shard t of T begins at ceil(t * 2^64 / T): where t/T = p/P, a shard and a
partition begin at the same address, so of gcd(T, P) groups each has whole shards and whole partitions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinery_runtime.core.table.keyhash import HASH_SPACE, shard_starts

Partitioner = Literal["murmur2", "crc32"]
PARTITIONERS: tuple[str, ...] = get_args(Partitioner)

_SEED = 0x9747B28C
_M = 0x5BD1E995
_SHORT = 256
"""Bytes of a key up to which keys are hashed together: each further word is a pass over all that have it."""


def partition_addresses(partitions: np.ndarray, hashes: np.ndarray, count: int) -> np.ndarray:
    """uint64[n]: the addresses of rows in these partitions (int32[n]) with these key hashes (uint64[n]); `count` is P
    of the module's text."""
    within = np.minimum(hashes // np.uint64(count), np.uint64(HASH_SPACE // count - 1))
    return np.asarray(shard_starts(count)[partitions % count] + within)


def key_partitions(key: pa.Array, partitioner: str, count: int) -> np.ndarray:
    """int64[n]: the partition of `count` that the partitioner puts each key into; of NULLs, any. Keys are strings
    (their UTF-8 bytes), binary, or whole numbers (their decimal text)."""
    texts = key if pa.types.is_binary(key.type) else key.cast(pa.string()).cast(pa.binary())
    hashes = _HASHES[partitioner](texts)
    return (hashes % np.uint32(count)).astype(np.int64)


def _crc32(texts: pa.Array) -> NDArray[np.uint32]:
    """librdkafka's `consistent` and `consistent_random`."""
    return np.fromiter((zlib.crc32(text or b"") for text in texts.to_pylist()), np.uint32, len(texts))


def _murmur2(texts: pa.Array) -> NDArray[np.uint32]:
    """That of Kafka's Java client (`Utils.murmur2`) and of librdkafka's `murmur2` and `murmur2_random`, which both drop
    its sign."""
    _, places, data = texts.buffers()
    ends = np.frombuffer(places, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    if texts.null_count:  # what Arrow has in the place of a NULL may be anything
        lengths = np.where(texts.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    short = lengths <= _SHORT
    hashes = np.zeros(len(texts), dtype=np.uint32)
    hashes[short] = _murmur2_of_short(data or pa.py_buffer(b""), starts[short], lengths[short])
    for at in np.flatnonzero(~short):
        hashes[at] = _murmur2_of_one(texts[int(at)].as_py())
    return hashes & np.uint32(0x7FFFFFFF)


def _murmur2_of_short(data: pa.Buffer, starts: np.ndarray, lengths: np.ndarray) -> NDArray[np.uint32]:
    """Word by word, for all keys that have so many."""
    m = np.uint32(_M)
    # A word may begin at any byte, and the last one reaches beyond the key.
    padded = np.concatenate([np.frombuffer(data, np.uint8), np.zeros(4, np.uint8)])
    word_at = np.ndarray(len(padded) - 3, "<u4", padded, strides=(1,))
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    for number in range(int(words.max(initial=0))):
        there = np.flatnonzero(words > number)
        k = word_at[starts[there] + 4 * number] * m
        k = (k ^ (k >> np.uint32(24))) * m
        hashes[there] = (hashes[there] * m) ^ k
    rest = np.flatnonzero(lengths & 3)
    left = (lengths[rest] & 3).astype(np.uint32)
    tail = word_at[starts[rest] + 4 * words[rest]] & ((np.uint32(1) << (left << np.uint32(3))) - np.uint32(1))
    hashes[rest] = (hashes[rest] ^ tail) * m
    hashes = (hashes ^ (hashes >> np.uint32(13))) * m
    return hashes ^ (hashes >> np.uint32(15))


def _murmur2_of_one(text: bytes) -> int:
    """The same, of one key however long."""
    whole, bits = len(text) & ~3, 0xFFFFFFFF
    h = _SEED ^ len(text)
    for word in np.frombuffer(text[:whole], "<u4").tolist():
        k = word * _M & bits
        h = (h * _M & bits) ^ ((k ^ k >> 24) * _M & bits)
    if len(text) > whole:
        h = (h ^ int.from_bytes(text[whole:], "little")) * _M & bits
    h = (h ^ h >> 13) * _M & bits
    return h ^ h >> 15


_HASHES: dict[str, Callable[[pa.Array], NDArray[np.uint32]]] = {"murmur2": _murmur2, "crc32": _crc32}
