"""Sums of doubles that keep what each addition rounds off: a sum is two doubles, `sum + rest`, good for about 100 bits.

Pairs of neighbours are added in rounds (log2 of the longest group), each addition by Knuth's two-sum. What is infinite
or NaN has no rest. A sum that leaves the range of doubles on its way is infinite, as in every sum of IEEE numbers.
"""

from __future__ import annotations

import numpy as np

from joinery_runtime.core.aggregates.base import Groups

Doubles = tuple[np.ndarray, np.ndarray]  # sums, rests


def total(values: Doubles, groups: Groups) -> Doubles:
    """(sums, rests), float64[m] each, of groups of n such sums."""
    (high, low), starts, sizes = values, groups.starts, groups.sizes
    sums, rests = np.empty(groups.count), np.empty(groups.count)
    which = np.arange(groups.count)
    with np.errstate(invalid="ignore", over="ignore"):
        while len(which):
            alone = sizes == 1
            sums[which[alone]], rests[which[alone]] = high[starts[alone]], low[starts[alone]]
            which, starts, sizes = which[~alone], starts[~alone], sizes[~alone]
            high, low = _halve((high, low), starts, sizes)
            sizes = (sizes + 1) >> 1
            starts = np.cumsum(sizes) - sizes
    return sums, rests


def _halve(values: Doubles, starts: np.ndarray, sizes: np.ndarray) -> Doubles:
    """The first and the second of each group added, the third and the fourth, ...; an odd last one as it is."""
    (high, low), halved = values, (sizes + 1) >> 1
    ends = np.cumsum(halved)
    left = np.repeat(starts - 2 * (ends - halved), halved) + np.arange(0, 2 * int(halved.sum()), 2)
    paired = np.ones(len(left), dtype=bool)
    paired[ends - 1] = sizes % 2 == 0
    right = left + paired
    other = (np.where(paired, high[right], 0.0), np.where(paired, low[right], 0.0))
    return _add((high[left], low[left]), other)


def _add(a: Doubles, b: Doubles) -> Doubles:
    rough = a[0] + b[0]
    shadow = rough - a[0]
    lost = (a[0] - (rough - shadow)) + (b[0] - shadow)
    rest = np.where(np.isfinite(rough), lost + (a[1] + b[1]), 0.0)
    exact = rough + rest
    return exact, np.where(np.isfinite(exact), rest - (exact - rough), 0.0)
