"""Sorts rows by key hash, then by event time, then as the caller says; and searches sorted rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

# The limit for the bits of a time span plus twice the bits of the row count. Below it, two different hashes practically
# never share their upper bits.
_BITS = 62
# Up to this many rows, numpy sorts faster than polars hands them to its threads: 1 to 50 us instead of 60 to 350.
_FEW = 2_048


def sort_order(*columns: np.ndarray) -> np.ndarray:
    """int64[n]: positions sorted by the first column, then by the next ones. Columns are numeric."""
    if len(columns[0]) <= _FEW and all(column.dtype.kind in "iu" for column in columns):
        return np.lexsort(columns[::-1])
    frame = pl.DataFrame({str(i): column for i, column in enumerate(columns)})
    return frame.select(pl.arg_sort_by(*frame.columns)).to_series().to_numpy().astype(np.int64)


def by_hash_and_time(hashes: np.ndarray, times: np.ndarray, *ties: np.ndarray) -> np.ndarray:
    """int64[n]: positions sorted by hash (uint64[n]), then by time (int64[n]), then by `ties`, or by position
    without them.

    A hash's upper bits and a time within the span fit one number. Sorting by one column is four times faster than by
    two.
    """
    if not len(times):
        return np.empty(0, dtype=np.int64)
    first = int(times.min())
    bits = (int(times.max()) - first).bit_length()
    if bits + 2 * len(times).bit_length() <= _BITS:
        shift = np.uint64(bits)
        packed = (hashes >> shift << shift) | (times - first).astype(np.uint64)
        # Not a stable sort: numpy's default one uses vector instructions, and takes a quarter of the time.
        order = np.argsort(packed)
        sorted_hashes = hashes[order]
        differ = sorted_hashes[1:] ^ sorted_hashes[:-1]
        if not ((differ != 0) & (differ >> shift == 0)).any():  # else two hashes differ only in their lowest bits
            return _break_ties(order, packed, ties)
    return sort_order(hashes, times, *(ties or (np.arange(len(times)),)))


def _break_ties(order: np.ndarray, packed: np.ndarray, ties: tuple[np.ndarray, ...]) -> np.ndarray:
    """Sort by `ties`, else by position, where `packed` is equal, which here means the same hash and time."""
    ordered = packed[order]
    equals_next = ordered[1:] == ordered[:-1]
    if not equals_next.any():
        return order
    tied = np.append(equals_next, False) | np.append(False, equals_next)
    among = order[tied]
    if ties:
        order[tied] = among[sort_order(packed[among], *(tie[among] for tie in ties))]
    else:
        # Equal values stand together: one number for each of them, before the position, sorts both at once.
        group = np.cumsum(np.append(0, ordered[tied][1:] != ordered[tied][:-1]))
        order[tied] = np.sort(group * len(order) + among) % len(order)
    return order


# --- search -----------------------------------------------------------------------------------------------------------

# A filter has 8 (2 to the third) to 16 bits per row. Each row sets two. The filter lets 3 % of other hashes through.
_FILTER_BITS = 3
# Searching fewer rows or fewer probes than this takes less time than a filter.
_FILTERED = 4_096

# Pairs listed at once. This bounds the memory for a key that matches very many rows.
MAX_PAIRS = 1 << 16

Ranges = tuple[np.ndarray, np.ndarray, np.ndarray]


class HashFilter:
    """A filter that rules out most hashes that a run does not have, in an eighth of the time of a search. Without it,
    the cost of a row grows with every run in which it is looked up. The filter is built when many hashes are first
    asked for."""

    def __init__(self, run_hash: np.ndarray) -> None:
        """`run_hash` is uint64[n], sorted."""
        self._run_hash = run_hash
        self._bits: np.ndarray | None = None

    def may_contain(self, hashes: np.ndarray) -> np.ndarray:
        """int64[k]: the positions of all hashes that the run has, and of a few others."""
        if min(len(self._run_hash), len(hashes)) < _FILTERED:
            return np.arange(len(hashes))
        if self._bits is None:
            is_set = np.zeros(self._size() + 1, dtype=bool)
            is_set[self._first_bit_numbers(self._run_hash)] = True
            is_set[self._second_bit_numbers(self._run_hash)] = True
            self._bits = np.packbits(is_set, bitorder="little")
        # The first lookup reads the bits from front to back if hashes are sorted. The few that pass get a second one.
        passed = _positions_of_set_bits(self._bits, self._first_bit_numbers(hashes))
        return np.asarray(passed[_positions_of_set_bits(self._bits, self._second_bit_numbers(hashes[passed]))])

    def _first_bit_numbers(self, hashes: np.ndarray) -> np.ndarray:
        """uint64[n]: each hash's bit. A hash outside the run's range gets the last one, which is never set."""
        first, last = self._run_hash[0], self._run_hash[-1]
        shift = max(0, int(last - first).bit_length() - (self._size().bit_length() - 1))
        numbers: np.ndarray = np.minimum((hashes - first) >> np.uint64(shift), np.uint64(self._size()))
        return numbers

    def _second_bit_numbers(self, hashes: np.ndarray) -> np.ndarray:
        """uint64[n]: each hash's second bit, which is as selective as the first."""
        return hashes & np.uint64(self._size() - 1)

    def _size(self) -> int:
        return 1 << (len(self._run_hash).bit_length() + _FILTER_BITS)


def _positions_of_set_bits(bits: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """int64[k]: the positions of the bit numbers (uint64[n]) whose bit is set."""
    at = numbers.view(np.int64)
    is_set = bits.take(at >> 3) >> (at.astype(np.uint8) & np.uint8(7)) & np.uint8(1)
    return np.asarray(is_set.view(np.bool_).nonzero()[0])


def find_ranges(
    run_hash: np.ndarray, run_ts: np.ndarray, hashes: np.ndarray, ts_first: np.ndarray, ts_last: np.ndarray
) -> Ranges:
    """Return (probe, start, stop) as int64 arrays: the probes that found rows, and the rows [start, stop) of the run
    with the probe's hash and `ts_first <= ts <= ts_last` (per probe). The run is sorted by (hash, ts)."""
    start = np.searchsorted(run_hash, hashes, side="left")
    probe = np.flatnonzero(run_hash[np.minimum(start, len(run_hash) - 1)] == hashes) if len(run_hash) else start[:0]
    start = start[probe]
    stop = np.searchsorted(run_hash, hashes[probe], side="right")
    start, stop = (
        _bisect(run_ts, start, stop, ts_first[probe], after_equal=False),
        _bisect(run_ts, start, stop, ts_last[probe], after_equal=True),
    )
    nonempty = start < stop
    return probe[nonempty], start[nonempty], stop[nonempty]


def _bisect(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, target: np.ndarray, *, after_equal: bool
) -> np.ndarray:
    """For each element, the index in [low, high] at which to insert `target`: after equal values, or before them."""
    low, high = low.copy(), high.copy()
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        at = values[np.where(open_, middle, 0)]
        right = open_ & ((at <= target) if after_equal else (at < target))
        low = np.where(right, middle + 1, low)
        high = np.where(open_ & ~right, middle, high)
    return low


def list_pairs(ranges: Ranges, max_pairs: int = MAX_PAIRS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (probe indexes, run indexes) of all pairs, in chunks of at most `max_pairs`."""
    probe, start, stop = ranges
    if not len(probe):
        return
    ends = np.cumsum(stop - start)
    for first in range(0, int(ends[-1]), max_pairs):
        pair = np.arange(first, min(first + max_pairs, int(ends[-1])))
        at = np.searchsorted(ends, pair, side="right")
        yield probe[at], stop[at] - (ends[at] - pair)
