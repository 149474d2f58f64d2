"""Which rows of a sorted run match probe rows: by hash, then by time, then by the keys themselves.

Everything is vectorised over probes. Cost is O(p log n) to find the ranges and O(pairs) to list them: a key with many
rows on both sides costs only the pairs whose times fit, because the time bounds are searched inside the key's rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Pairs listed at once: bounds the memory of a key that matches with very many rows.
MAX_PAIRS = 1 << 20

Ranges = tuple[np.ndarray, np.ndarray, np.ndarray]


def find_ranges(
    run_hash: np.ndarray, run_ts: np.ndarray, hashes: np.ndarray, ts_first: np.ndarray, ts_last: np.ndarray
) -> Ranges:
    """(probe, start, stop): int64 arrays of the probes that found rows [start, stop) of the run with the probe's hash
    and `ts_first <= ts <= ts_last` (both per probe, inclusive). The run is sorted by (hash, ts)."""
    start = np.searchsorted(run_hash, hashes, side="left")
    probe = np.flatnonzero(run_hash[np.minimum(start, len(run_hash) - 1)] == hashes) if len(run_hash) else start[:0]
    start = start[probe]
    stop = np.searchsorted(run_hash, hashes[probe], side="right")
    start, stop = (
        _bisect(run_ts, start, stop, ts_first[probe], after_equal=False),
        _bisect(run_ts, start, stop, ts_last[probe], after_equal=True),
    )
    found = start < stop
    return probe[found], start[found], stop[found]


def _bisect(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, target: np.ndarray, *, after_equal: bool
) -> np.ndarray:
    """Per element: the first index in [low, high] at which `target` can be inserted, after its equals or before."""
    low, high = low.copy(), high.copy()
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        at = values[np.where(open_, middle, 0)]
        right = open_ & ((at <= target) if after_equal else (at < target))
        low = np.where(right, middle + 1, low)
        high = np.where(open_ & ~right, middle, high)
    return low


def list_pairs(ranges: Ranges, max_pairs: int = MAX_PAIRS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(probe index, run index) of every pair, in chunks of at most `max_pairs`."""
    probe, start, stop = ranges
    if not len(probe):
        return
    ends = np.cumsum(stop - start)
    for first in range(0, int(ends[-1]), max_pairs):
        pair = np.arange(first, min(first + max_pairs, int(ends[-1])))
        at = np.searchsorted(ends, pair, side="right")
        yield probe[at], stop[at] - (ends[at] - pair)
