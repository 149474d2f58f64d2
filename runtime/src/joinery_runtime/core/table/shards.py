"""Shards are contiguous ranges of the 64-bit hash space: shard t of T owns [ceil(t*2^64/T), ceil((t+1)*2^64/T)).

State is addressed by hash, never by shard number, so any epoch may run with any number of shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HASH_SPACE = 1 << 64


@dataclass(frozen=True, slots=True)
class HashRange:
    """Unsigned 64-bit hashes, both ends inclusive (2^64 itself does not fit 64 bits)."""

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
