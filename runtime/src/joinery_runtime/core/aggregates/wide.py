"""Columns of 128-bit integers: exact sums of integers, and of decimals, which are multiples of a unit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates.base import Groups

_HALF = np.int64(32)
_LOW = np.int64(0xFFFFFFFF)
_WORD = 2**64
_BEYOND_DECIMAL = 10**38


@dataclass(frozen=True, slots=True)
class Wide:
    """n numbers `high * 2^64 + low`, as int64[n] and uint64[n]."""

    high: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, values: pa.Array) -> Wide:
        """The unscaled numbers of a decimal128 array without NULLs."""
        words = np.frombuffer(values.buffers()[1], dtype=np.int64)[2 * values.offset :][: 2 * len(values)]
        return cls(words[1::2], words[::2].view(np.uint64))

    def decimals(self, kind: pa.DataType) -> pa.Array:
        """The numbers as a decimal128 array, whose precision they must fit."""
        words = np.empty(2 * len(self.low), dtype=np.int64)
        words[::2], words[1::2] = self.low.view(np.int64), self.high
        return pa.Array.from_buffers(kind, len(self.low), [None, pa.py_buffer(words)])

    @property
    def narrow(self) -> np.ndarray:
        """bool[n]: whether the number fits int64, so that `low` read as int64 is the number."""
        return np.asarray(self.high == self.low.view(np.int64) >> np.int64(63))

    @property
    def decimal(self) -> np.ndarray:
        """bool[n]: whether the number has at most 38 digits."""
        return np.asarray(self._less(_BEYOND_DECIMAL) & ~self._less(1 - _BEYOND_DECIMAL))

    def _less(self, than: int) -> np.ndarray:
        high, low = divmod(than, _WORD)
        return np.asarray((self.high < high) | ((self.high == high) & (self.low < np.uint64(low))))

    def take(self, at: np.ndarray) -> Wide:
        return Wide(self.high[at], self.low[at])

    def objects(self) -> np.ndarray:
        """The numbers as an array of Python integers."""
        return np.asarray(self.high.astype(object) * _WORD + self.low.astype(object))


def total(values: pa.Array, groups: Groups) -> tuple[Wide, np.ndarray]:
    """Returns the sums of groups of int64 or decimal128 values without NULLs, and bool[m]: which sums are lost because
    they do not fit 128 bits."""
    if not pa.types.is_decimal(values.type):
        return _total_of_words(values.to_numpy(), groups)
    wide = Wide.of(values)
    if wide.narrow.all():
        return _total_of_words(wide.low.view(np.int64), groups)
    low = wide.low.view(np.int64)
    return _sum_halves([low & _LOW, low >> _HALF & _LOW, wide.high & _LOW, wide.high >> _HALF], groups)


def _total_of_words(words: np.ndarray, groups: Groups) -> tuple[Wide, np.ndarray]:
    longest = int(groups.sizes.max(initial=0))
    largest = max(int(words.max(initial=0)), -int(words.min(initial=0)))
    if largest * longest < 2**63:
        low = np.add.reduceat(words, groups.starts)
        return Wide(low >> np.int64(63), low.view(np.uint64)), np.zeros(groups.count, dtype=bool)
    return _sum_halves([words & _LOW, words >> _HALF], groups)


def _sum_halves(halves: list[np.ndarray], groups: Groups) -> tuple[Wide, np.ndarray]:
    """Sums numbers that are cut into two or four 32-bit words, lowest first, the last one signed. Fewer than 2^31 such
    words never overflow an int64 sum."""
    sums = [np.add.reduceat(half, groups.starts) for half in halves]
    sums += [np.zeros_like(sums[0]) for _ in range(4 - len(sums))]
    for lower, upper in pairwise(sums):
        np.add(upper, lower >> _HALF, out=upper)
    low = (sums[1] << _HALF) | (sums[0] & _LOW)
    high = (sums[3] << _HALF) | (sums[2] & _LOW)
    return Wide(high, low.view(np.uint64)), sums[3] != sums[3] << _HALF >> _HALF
