"""Segments in portions that fit in memory: one may have 1 GB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

BATCH = 32
"""Segments at a time at most; libpq holds an answer whole, next to the blobs made from it."""

BATCH_BYTES = 128 * 2**20
"""Bytes at a time at most, unless one segment alone has more."""


def by_bytes(items: Iterable[tuple[_T, int]], *, most: int = BATCH_BYTES) -> Iterator[list[_T]]:
    """Items, each given with its bytes, in batches of at most `most` bytes and BATCH items, and of at least one."""
    batch: list[_T] = []
    held = 0
    for item, size in items:
        if batch and (held + size > most or len(batch) == BATCH):
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size
    if batch:
        yield batch
