"""Exact sums of numbers and of products of numbers, so that no order of additions matters: integers of 192 bits for
sums of integers and decimals (`Sums`), and integers of any length for all other sums (`Digits`).

In `Digits`, a number is an integer multiple of a unit: 1 for integers, 10^-scale for decimals, and 2^-1088 for doubles
(every double is a multiple of it). The integer is cut into 32-bit digits; digits with the same position are added as
int64. That is the long accumulator of Kulisch ("Computer Arithmetic and Validity", chapter 8), restricted to the
positions in use.

A stored sum is binary, in 4-byte little-endian words: the position of the lowest digit, the digits, and the sign (0 or
-1), which makes them two's complement. Zeros at either end are omitted, so that equal sums have equal bytes. A sum with
an infinity or NaN has no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates.base import Groups

DOUBLE_BITS = 1088
"""Doubles are multiples of 2^-DOUBLE_BITS."""

_DIGIT = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MANTISSA = 52
_HALF = np.int64(32)
_LOW_SIGNED = np.int64(0xFFFFFFFF)
_WORD = 2**64
_BEYOND_DECIMAL = 10**38
_SHIFT = DOUBLE_BITS - 1023 - _MANTISSA  # of the mantissa of a double whose exponent's bits are 0


# --- numbers of 128 bits ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wide:
    """n numbers `high * 2^64 + low`, as int64[n] and uint64[n]."""

    high: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, values: pa.Array) -> Wide:
        """Return the unscaled numbers of a decimal128 array without NULLs."""
        words = np.frombuffer(values.buffers()[1], dtype=np.int64)[2 * values.offset :][: 2 * len(values)]
        return cls(words[1::2], words[::2].view(np.uint64))

    def decimals(self, kind: pa.DataType) -> pa.Array:
        """Return the numbers as a decimal128 array, whose precision they must fit."""
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
        """Return the numbers as an array of Python integers."""
        return np.asarray(self.high.astype(object) * _WORD + self.low.astype(object))


@dataclass(frozen=True, slots=True)
class Sums:
    """n sums: `top * 2^128`, plus `lower` read as unsigned, with `top` int64[n]. No sum of fewer than 2^63 numbers of
    128 bits is longer."""

    lower: Wide
    top: np.ndarray

    @classmethod
    def of(cls, stored: pa.Array) -> Sums:
        """Return the unscaled sums in an array of decimals without NULLs."""
        if pa.types.is_decimal128(stored.type):
            lower = Wide.of(stored)
            return cls(lower, lower.high >> np.int64(63))
        words = np.frombuffer(stored.buffers()[1], dtype=np.int64)[4 * stored.offset :][: 4 * len(stored)]
        return cls(Wide(words[1::4], words[::4].view(np.uint64)), words[2::4])

    def stored(self, kind: pa.DataType) -> pa.Array:
        """Return the sums as an array of decimals, whose precision they must fit."""
        if pa.types.is_decimal128(kind):
            return self.lower.decimals(kind)
        words = np.empty((len(self.top), 4), dtype=np.int64)
        words[:, 0], words[:, 1] = self.lower.low.view(np.int64), self.lower.high
        words[:, 2], words[:, 3] = self.top, self.top >> np.int64(63)
        return pa.Array.from_buffers(kind, len(self.top), [None, pa.py_buffer(words)])

    @property
    def narrow(self) -> np.ndarray:
        """bool[n]: whether the sum fits int64."""
        return np.asarray(self.short & self.lower.narrow)

    @property
    def decimal(self) -> np.ndarray:
        """bool[n]: whether the sum has at most 38 digits."""
        return np.asarray(self.short & self.lower.decimal)

    @property
    def short(self) -> np.ndarray:
        """bool[n]: whether the sum fits 128 bits, so that `lower` is the sum."""
        return np.asarray(self.top == self.lower.high >> np.int64(63))

    def take(self, at: np.ndarray) -> Sums:
        return Sums(self.lower.take(at), self.top[at])

    def objects(self) -> np.ndarray:
        """Return the sums as an array of Python integers."""
        high = self.lower.high.view(np.uint64).astype(object)
        return np.asarray((self.top.astype(object) * _WORD + high) * _WORD + self.lower.low.astype(object))


def sums_of(values: pa.Array, groups: Groups) -> Sums:
    """Return the sums of groups of int64 values, decimals, or stored sums, without NULLs."""
    if not pa.types.is_decimal(values.type):
        return _sum_words(values.to_numpy(), groups)
    if pa.types.is_decimal128(values.type):
        lower = Wide.of(values)
        if lower.narrow.all():
            return _sum_words(lower.low.view(np.int64), groups)
        words = [lower.low.view(np.int64), lower.high]
    else:
        numbers = Sums.of(values)
        if numbers.narrow.all():
            return _sum_words(numbers.lower.low.view(np.int64), groups)
        words = [numbers.lower.low.view(np.int64), numbers.lower.high, numbers.top]
    halves = [half for word in words for half in (word & _LOW_SIGNED, word >> _HALF & _LOW_SIGNED)]
    halves[-1] = words[-1] >> _HALF
    return _sum_halves(halves, groups)


def _sum_words(words: np.ndarray, groups: Groups) -> Sums:
    longest = int(groups.sizes.max(initial=0))
    largest = max(int(words.max(initial=0)), -int(words.min(initial=0)))
    if largest * longest < 2**63:
        low = np.add.reduceat(words, groups.starts)
        sign = low >> np.int64(63)
        return Sums(Wide(sign, low.view(np.uint64)), sign)
    return _sum_halves([words & _LOW_SIGNED, words >> _HALF], groups)


def _sum_halves(halves: list[np.ndarray], groups: Groups) -> Sums:
    """Sum numbers that are cut into 32-bit words, at most six, lowest first, the last one signed. Fewer than 2^31 such
    words never overflow an int64 sum."""
    sums = [np.add.reduceat(half, groups.starts) for half in halves]
    sums += [np.zeros_like(sums[0]) for _ in range(6 - len(sums))]
    for lower, upper in pairwise(sums):
        np.add(upper, lower >> _HALF, out=upper)
    low, high, top = ((sums[nth + 1] << _HALF) | (sums[nth] & _LOW_SIGNED) for nth in (0, 2, 4))
    return Sums(Wide(high, low.view(np.uint64)), top)


# --- numbers of any length --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Digits:
    """n numbers: `sign` (int64[n], 1 or -1) times the sum of digit i of `digits` (uint64[n] each, below 2^32) times
    2^(32 * (`position` + i)), with `position` int64[n]. `finite` (bool[n]): the number is one; else the digits are
    0."""

    sign: np.ndarray
    digits: Sequence[np.ndarray]
    position: np.ndarray
    finite: np.ndarray

    @classmethod
    def of(cls, values: pa.Array) -> Digits:
        """Return the numbers of an array without NULLs: of integers, decimals or floating-point numbers."""
        if pa.types.is_floating(values.type):
            return cls._of_doubles(values.cast(pa.float64()).to_numpy())
        if pa.types.is_decimal(values.type):
            numbers = Wide.of(values)
            high, low = numbers.high, numbers.low
        else:
            words = values.cast(pa.int64()).to_numpy()
            high, low = words >> np.int64(63), words.view(np.uint64)
        negative = high < 0
        high_word = high.view(np.uint64)
        low = np.where(negative, ~low + np.uint64(1), low)
        high_word = np.where(negative, ~high_word + (low == 0), high_word)
        digits = [low & _LOW, low >> _DIGIT, high_word & _LOW, high_word >> _DIGIT]
        return cls._trimmed(negative, digits, np.zeros(len(low), dtype=np.int64), np.ones(len(low), dtype=bool))

    @classmethod
    def _of_doubles(cls, doubles: np.ndarray) -> Digits:
        finite = np.isfinite(doubles)
        bits = np.where(finite, doubles, 0.0).view(np.uint64)
        exponent = (bits >> np.uint64(_MANTISSA)).astype(np.int64) & 0x7FF
        mantissa = bits & np.uint64(2**_MANTISSA - 1) | ((exponent > 0).astype(np.uint64) << np.uint64(_MANTISSA))
        bit = np.maximum(exponent, 1) + _SHIFT
        left = (bit & 31).astype(np.uint64)
        low = mantissa << left
        high = mantissa >> np.uint64(1) >> (np.uint64(63) - left)
        return cls._trimmed(np.signbit(doubles), [low & _LOW, low >> _DIGIT, high], bit >> 5, finite)

    @classmethod
    def _trimmed(
        cls, negative: np.ndarray, digits: list[np.ndarray], position: np.ndarray, finite: np.ndarray
    ) -> Digits:
        """Omit the highest digits that are 0 in all numbers."""
        while digits and not digits[-1].any():
            digits.pop()
        return cls(np.where(negative, np.int64(-1), np.int64(1)), digits, position, finite)


def sums(numbers: Digits, groups: Groups) -> pa.Array:
    """Return the stored sum of each group (binary[m])."""
    total = _Total(numbers.position, len(numbers.digits), groups)
    for i, digit in enumerate(numbers.digits):
        total.add(i, numbers.sign * digit.astype(np.int64))
    return total.stored(numbers.finite)


def product_sums(left: Digits, right: Digits, groups: Groups) -> pa.Array:
    """Return the stored sum of `left * right` of each group (binary[m]); squares if both are the same object. The unit
    is the product of both units."""
    sign = left.sign * right.sign
    total = _Total(left.position + right.position, len(left.digits) + len(right.digits), groups)
    for i, a in enumerate(left.digits):
        for j, b in enumerate(right.digits):
            if left is right and i > j:
                continue
            product, times = a * b, sign if left is not right or i == j else 2 * sign
            total.add(i + j, times * (product & _LOW).astype(np.int64))
            total.add(i + j + 1, times * (product >> _DIGIT).astype(np.int64))
    return total.stored(left.finite & right.finite)


def merged_sums(stored: pa.Array, groups: Groups) -> pa.Array:
    """Return the stored sum of each group of stored sums without NULLs (binary[m])."""
    ends = np.frombuffer(stored.buffers()[1], dtype=np.int32)[stored.offset :][: len(stored) + 1].astype(np.int64) // 4
    words = np.frombuffer(stored.buffers()[2], dtype="<i4") if ends[-1] else np.zeros(0, dtype=np.int32)
    starts, lengths = ends[:-1], np.diff(ends)
    finite = lengths > 0
    position = np.zeros(len(stored), dtype=np.int64)
    position[finite] = words[starts[finite]]
    lowest = int(position[finite].min(initial=0))
    width = int((position + lengths)[finite].max(initial=lowest + 1)) - 1 - lowest
    digits = np.zeros((width, len(stored)), dtype=np.int64)
    counts = np.maximum(lengths - 1, 0)
    for nth in range(int(counts.max(initial=0))):
        row = np.flatnonzero(counts > nth)
        values = words[starts[row] + nth + 1].astype(np.int64)
        is_sign = counts[row] - 1 == nth
        digits[position[row] - lowest + nth, row] = np.where(is_sign, values, values & _LOW_SIGNED)
    total = np.add.reduceat(digits, groups.starts, axis=1)
    return _pack(total, lowest, np.logical_and.reduceat(finite, groups.starts))


def integer(stored: bytes) -> tuple[int, int]:
    """Return a stored sum with bytes as (integer, position): it is integer * 2^(32 * position) units."""
    return int.from_bytes(stored[4:], "little", signed=True), int.from_bytes(stored[:4], "little", signed=True)


class _Total:
    """Digits of sums, by group and position."""

    def __init__(self, position: np.ndarray, width: int, groups: Groups) -> None:
        self._groups, self._lowest = groups, int(position.min(initial=0))
        relative = position - self._lowest
        used = np.flatnonzero(np.bincount(relative)).tolist()
        self._rows_at = {at: None if len(used) == 1 else relative == at for at in used}
        self._digits = np.zeros((max(used) + width, groups.count), dtype=np.int64)

    def add(self, nth: int, amounts: np.ndarray) -> None:
        """Add each row's amount (int64[n], less than 2^34) to the digit that is `nth` from the row's position."""
        for at, rows in self._rows_at.items():
            chosen = amounts if rows is None else np.where(rows, amounts, 0)
            self._digits[at + nth] += np.add.reduceat(chosen, self._groups.starts)

    def stored(self, finite: np.ndarray) -> pa.Array:
        return _pack(self._digits, self._lowest, np.logical_and.reduceat(finite, self._groups.starts))


def _pack(digits: np.ndarray, lowest: int, finite: np.ndarray) -> pa.Array:
    """Return stored sums from digits (int64[d, m]) that are not carried yet and begin at position `lowest`."""
    width, count = digits.shape
    body = np.zeros((width + 2, count), dtype=np.int64)
    body[:width] = digits
    for nth in range(width + 1):
        body[nth + 1] += body[nth] >> _HALF
        body[nth] &= _LOW_SIGNED
    sign = body[-1] >> _HALF
    body[-1] &= _LOW_SIGNED
    significant, is_used = body != (sign & _LOW_SIGNED), body != 0
    begin = np.argmax(is_used, axis=0)
    end = np.where(significant.any(axis=0), len(body) - np.argmax(significant[::-1], axis=0), 0)
    end = np.maximum(begin, end)
    position = np.where(is_used.any(axis=0), begin + lowest, 0)
    lengths = np.where(finite, end - begin + 2, 0)
    starts = np.cumsum(lengths) - lengths
    words = np.zeros(int(lengths.sum()), dtype="<i4")
    words[starts[finite]] = position[finite]
    words[(starts + lengths - 1)[finite]] = sign[finite]
    for nth, digit in enumerate(body):
        stays = np.flatnonzero(finite & (begin <= nth) & (nth < end))
        words[starts[stays] + 1 + nth - begin[stays]] = digit[stays].astype(np.uint32).view(np.int32)
    buffers = [None, pa.py_buffer(np.append(0, 4 * np.cumsum(lengths)).astype(np.int32)), pa.py_buffer(words)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
