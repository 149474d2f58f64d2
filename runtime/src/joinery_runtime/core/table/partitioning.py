"""Addresses of rows of co-partitioned inputs: those of one partition lie together in the 64-bit space.

A producer's *partitioner* puts a record into partition `F(key) mod N` of a topic with N partitions. Inputs are
co-partitioned by P if P divides each one's number of partitions and every row is in a partition with `partition mod P =
F(join key) mod P`. This is checked for each row by itself, so equal keys share `partition mod P` without anybody
comparing them. The address of a row is then

    ceil(p * 2^64 / P) + min(hash div P, 2^64 div P - 1)     with p = partition mod P, hash = the key hash (rule V1)

which never leaves the range of shard p of P. Shard t of T begins at ceil(t * 2^64 / T). Where t/T = p/P, a shard and a
partition begin at the same address. So there are gcd(T, P) groups that each hold whole shards and whole partitions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinery_runtime.core.table.keyhash import HASH_SPACE, shard_starts

Partitioner = Literal["murmur2", "crc32"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_SHORT = 256
"""Keys of up to this many bytes are hashed together, with one pass for each word over all keys that have it."""


def partition_addresses(partitions: np.ndarray, hashes: np.ndarray, count: int) -> np.ndarray:
    """uint64[n]: the addresses of rows with these partitions (int64[n]) and key hashes (uint64[n]). `count` is the P of
    the module's docstring."""
    within = np.minimum(hashes // np.uint64(count), np.uint64(HASH_SPACE // count - 1))
    return np.asarray(shard_starts(count)[partitions % count] + within)


def key_partitions(key: pa.Array, partitioner: str, count: int) -> np.ndarray:
    """int64[n]: the partition, out of `count`, into which the partitioner puts each key; arbitrary for NULLs. Keys are
    strings (their UTF-8 bytes), binary, or whole numbers (their decimal text)."""
    texts = key if pa.types.is_binary(key.type) else key.cast(pa.string()).cast(pa.binary())
    hashes = _HASHES[partitioner](texts)
    return (hashes % np.uint32(count)).astype(np.int64)


def _crc32(texts: pa.Array) -> NDArray[np.uint32]:
    """Return the hash of librdkafka's `consistent` and `consistent_random`."""
    return np.fromiter((zlib.crc32(text or b"") for text in texts.to_pylist()), np.uint32, len(texts))


def _murmur2(texts: pa.Array) -> NDArray[np.uint32]:
    """Return the hash of Kafka's Java client (`Utils.murmur2`) and of librdkafka's `murmur2` and `murmur2_random`,
    which all drop the sign."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    if texts.null_count:  # Arrow may keep arbitrary bytes in place of a NULL
        lengths = np.where(texts.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    short = lengths <= _SHORT
    hashes = np.zeros(len(texts), dtype=np.uint32)
    hashes[short] = _murmur2_of_short(data or pa.py_buffer(b""), starts[short], lengths[short])
    for at in np.flatnonzero(~short):
        hashes[at] = _murmur2_of_one(texts[int(at)].as_py())
    return hashes & np.uint32(0x7FFFFFFF)


def _murmur2_of_short(data: pa.Buffer, starts: np.ndarray, lengths: np.ndarray) -> NDArray[np.uint32]:
    """Hash short keys together: word by word, over all keys that have that word."""
    m = np.uint32(_M)
    # A word may begin at any byte, and the last one may reach beyond its key.
    padded = np.concatenate([np.frombuffer(data, np.uint8), np.zeros(4, np.uint8)])
    word_at = np.ndarray(len(padded) - 3, "<u4", padded, strides=(1,))
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    for number in range(int(words.max(initial=0))):
        having_word = np.flatnonzero(words > number)
        k = word_at[starts[having_word] + 4 * number] * m
        k = (k ^ (k >> np.uint32(24))) * m
        hashes[having_word] = (hashes[having_word] * m) ^ k
    rest = np.flatnonzero(lengths & 3)
    last_bytes = (lengths[rest] & 3).astype(np.uint32)
    tail = word_at[starts[rest] + 4 * words[rest]] & ((np.uint32(1) << (last_bytes << np.uint32(3))) - np.uint32(1))
    hashes[rest] = (hashes[rest] ^ tail) * m
    hashes = (hashes ^ (hashes >> np.uint32(13))) * m
    return hashes ^ (hashes >> np.uint32(15))


def _murmur2_of_one(text: bytes) -> int:
    """Hash one key of any length."""
    words_end, bits = len(text) & ~3, 0xFFFFFFFF
    h = _SEED ^ len(text)
    for word in np.frombuffer(text[:words_end], "<u4").tolist():
        k = word * _M & bits
        h = (h * _M & bits) ^ ((k ^ k >> 24) * _M & bits)
    if len(text) > words_end:
        h = (h ^ int.from_bytes(text[words_end:], "little")) * _M & bits
    h = (h ^ h >> 13) * _M & bits
    return h ^ h >> 15


_HASHES: dict[str, Callable[[pa.Array], NDArray[np.uint32]]] = {"murmur2": _murmur2, "crc32": _crc32}
