"""Finds the earlier rows of their keys from which rows have the values that they lack."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def sources_of(
    keys: np.ndarray, ranks: np.ndarray, deleted: np.ndarray, lacking: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """For each column the row (int64[n]) from which each of n rows has its value: the row itself, or the latest earlier
    row of its key that has one; -1 where there is none, because the key was deleted since then or was never there.
    Rows with equal `keys` belong together, in order of their `ranks`; `deleted` is bool[n], as `lacking` by column."""
    order = np.lexsort((ranks, keys))
    position = np.arange(len(keys))
    first_of_key = np.maximum.accumulate(np.where(np.diff(keys[order], prepend=-1) != 0, position, 0))
    sources = {}
    for name, lacks in lacking.items():
        latest = np.maximum.accumulate(np.where(lacks[order], -1, position))
        usable = (latest >= first_of_key) & (~deleted[order][latest] | (latest == position))
        sources[name] = np.empty(len(keys), np.int64)
        sources[name][order] = np.where(usable, order[latest], -1)
    return sources
