"""Groups rows by key, window or session, with array arithmetic only.

Keys are told apart by their values. The 64-bit hash alone decides only where no other key has the same hash.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.sort import by_hash_and_time, sort_order


def changes(values: np.ndarray) -> np.ndarray:
    """bool[n]: the first value, and each one that differs from its predecessor."""
    return np.concatenate([np.ones(min(len(values), 1), dtype=bool), values[1:] != values[:-1]])


def gaps(times: np.ndarray, gap: int) -> np.ndarray:
    """bool[n]: the times, given in ascending order, that are more than `gap` after their predecessor (S1). The first
    one never is."""
    return np.diff(times, prepend=times[:1]) > gap


def number_groups(order: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """int64[n]: the number of each row's group. `begins` says where groups begin among the rows taken in `order`."""
    cell = np.empty(len(order), dtype=np.int64)
    cell[order] = np.cumsum(begins) - 1
    return cell


def expand_ranges(first: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (position, number) for every number in [first, stop) of every position; none where stop <= first."""
    count = np.maximum(stop - first, 0)
    position = np.repeat(np.arange(len(first)), count)
    return position, np.arange(len(position)) + np.repeat(first - (np.cumsum(count) - count), count)


def rows_with_hashes(run_hash: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return the rows (int64[k]) of a run, by its sorted hashes, that have one of `hashes` (sorted, distinct)."""
    first, stop = (np.searchsorted(run_hash, hashes, side=side) for side in ("left", "right"))
    return expand_ranges(first, stop)[1]


def reachable_positions(after: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Return the positions reached from `begin` by steps from each element to the one `after` it (n: nowhere). Pointer
    doubling takes log2(longest path) rounds."""
    jump = np.append(after, len(after))
    is_reached = np.zeros(len(jump), dtype=bool)
    is_reached[begin] = True
    previous = 0
    while (reached_count := int(is_reached.sum())) > previous:
        previous = reached_count
        is_reached[jump[is_reached]] = True
        jump = jump[jump]
    return np.flatnonzero(is_reached[:-1])


def order_by_key(hashes: np.ndarray, keys: Sequence[pa.Array], *sorted_by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an order (int64[n]) in which the rows of one key are consecutive, sorted by `sorted_by` (int64[n] each),
    and bool[n]: where keys begin."""
    order = by_hash_and_time(hashes, *sorted_by)
    if not has_hash_collisions(hashes, keys, order):
        return order, changes(hashes[order])
    key = distinguish_keys(hashes, keys)
    order = sort_order(hashes, key, *sorted_by)
    return order, changes(hashes[order]) | changes(key[order])


def with_one_zero(values: pa.Array) -> pa.Array:
    """Return the values with 0.0 in place of -0.0, which is the same value of a key (V1)."""
    return pc.add(values, pa.scalar(0, values.type)) if pa.types.is_floating(values.type) else values


# --- keys with one hash -----------------------------------------------------------------------------------------------


def distinguish_keys(hashes: np.ndarray, keys: Sequence[pa.Array]) -> np.ndarray:
    """int64[n]: 0 where a hash belongs to one key; the number of the row's key where several keys share the hash. NULLs
    equal each other here, and so do NaNs: a caller whose NULLs match nothing leaves them out."""
    numbers = np.zeros(len(hashes), dtype=np.int64)
    plain = [_canonical(key) for key in keys]
    colliding = _colliding_hashes(hashes, plain, np.argsort(hashes, kind="stable"))
    among = np.flatnonzero(np.isin(hashes, colliding))
    if len(among):
        number = np.zeros(len(among), dtype=np.int64)
        for key in plain:
            encoded = key.take(pa.array(among)).dictionary_encode(null_encoding="encode")
            together = number * len(encoded.dictionary) + encoded.indices.to_numpy()
            number = np.unique(together, return_inverse=True)[1]
        numbers[among] = number
    return numbers


def has_hash_collisions(hashes: np.ndarray, keys: Sequence[pa.Array], order: np.ndarray) -> bool:
    """Whether some hash belongs to several keys; `order` sorts the rows by hash."""
    return len(_colliding_hashes(hashes, [_canonical(key) for key in keys], order)) > 0


def _colliding_hashes(hashes: np.ndarray, keys: Sequence[pa.Array], order: np.ndarray) -> np.ndarray:
    """Return the hashes that belong to several keys. In any order of such a hash's rows, some neighbours differ."""
    by_hash = hashes[order]
    differs = np.zeros(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        values = key.take(pa.array(order))
        differ = pc.fill_null(pc.not_equal(values[1:], values[:-1]), False).to_numpy(zero_copy_only=False)
        if values.null_count:
            null = values.is_null().to_numpy(zero_copy_only=False)
            differ = differ | (null[1:] != null[:-1])
        differs |= differ
    return np.asarray(by_hash[1:][differs & (by_hash[1:] == by_hash[:-1])])


def _canonical(key: pa.Array) -> pa.Array:
    """Replace floats by their bits, with one zero and one NaN."""
    if not pa.types.is_floating(key.type):
        return key
    values = pc.fill_null(key.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return pa.array(bits, mask=key.is_null().to_numpy(zero_copy_only=False))
