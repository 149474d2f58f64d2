"""In which order rows are: by key hash, then by event time, then as the caller says."""

from __future__ import annotations

import numpy as np
import polars as pl

# How many bits hash and time may have together, so that hashes with one beginning are as good as never there.
_BITS = 62


def sort_order(*columns: np.ndarray) -> np.ndarray:
    """int64[n]: positions sorted by the first column, then by the next."""
    frame = pl.DataFrame({str(i): column for i, column in enumerate(columns)})
    return frame.select(pl.arg_sort_by(*frame.columns)).to_series().to_numpy().astype(np.int64)


def by_hash_and_time(hashes: np.ndarray, times: np.ndarray, *ties: np.ndarray) -> np.ndarray:
    """int64[n]: positions sorted by hash (uint64[n]), then by time (int64[n]), then by `ties`.

    A hash's upper bits and a time of day fit one number, and sorting by one is four times faster than by two columns.
    """
    if not len(times):
        return np.empty(0, dtype=np.int64)
    first = int(times.min())
    bits = (int(times.max()) - first).bit_length()
    if bits + 2 * len(times).bit_length() > _BITS:
        return sort_order(hashes, times, *ties)
    shift = np.uint64(bits)
    packed = (hashes >> shift << shift) | (times - first).astype(np.uint64)
    order = pl.Series(packed).arg_sort().to_numpy().astype(np.int64)
    if _begin_alike(hashes[order], shift):
        return sort_order(hashes, times, *ties)
    return _untied(order, packed, ties) if ties else order


def _begin_alike(hashes: np.ndarray, shift: np.uint64) -> bool:
    """Whether two of the hashes, which are sorted by all but their lowest bits, differ in these only."""
    differ = hashes[1:] ^ hashes[:-1]
    return bool(((differ != 0) & (differ >> shift == 0)).any())


def _untied(order: np.ndarray, packed: np.ndarray, ties: tuple[np.ndarray, ...]) -> np.ndarray:
    """Sorts by `ties` where `packed` does not tell: equal numbers are the same hash and time here."""
    ordered = packed[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.append(same, False) | np.append(False, same)
    if tied.any():
        among = order[tied]
        order[tied] = among[sort_order(packed[among], *(tie[among] for tie in ties))]
    return order
