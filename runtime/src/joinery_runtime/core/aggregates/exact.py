"""Exact sums of numbers and of products of numbers: integers of any length, so that no order of additions matters.

A number is an integer multiple of a unit: of 1 for integers, of 10^-scale for decimals, and of 2^-1088 for doubles, of
which it divides all. The integer is cut into 32-bit digits; digits with the same position are added as int64. That is
the long accumulator of Kulisch ("Computer Arithmetic and Validity", chapter 8), restricted to the positions in use.

A stored sum is binary, in 4-byte little-endian words: the position of the lowest digit, the digits, and the sign (0 or
-1), which makes them two's complement. Zeros at either end are omitted, so that equal sums have equal bytes. A sum with
an infinity or NaN has no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates.base import Groups
from joinery_runtime.core.aggregates.wide import Wide

DOUBLE_BITS = 1088
"""Doubles are multiples of 2^-DOUBLE_BITS."""

_DIGIT = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MANTISSA = 52
_SHIFT = DOUBLE_BITS - 1023 - _MANTISSA  # of the mantissa of a double whose exponent's bits are 0


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
        """The numbers of an array without NULLs: of integers, decimals or floating-point numbers."""
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
        """Omits the highest digits that are 0 in all numbers."""
        while digits and not digits[-1].any():
            digits.pop()
        return cls(np.where(negative, np.int64(-1), np.int64(1)), digits, position, finite)


def sums(numbers: Digits, groups: Groups) -> pa.Array:
    """The stored sum of each group (binary[m])."""
    total = _Total(numbers.position, len(numbers.digits), groups)
    for i, digit in enumerate(numbers.digits):
        total.add(i, numbers.sign * digit.astype(np.int64))
    return total.stored(numbers.finite)


def product_sums(left: Digits, right: Digits, groups: Groups) -> pa.Array:
    """The stored sum of `left * right` of each group (binary[m]); squares if both are the same object. The unit is the
    product of both units."""
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
    """The stored sum of each group of stored sums without NULLs (binary[m])."""
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
        digits[position[row] - lowest + nth, row] = np.where(is_sign, values, values & np.int64(0xFFFFFFFF))
    total = np.add.reduceat(digits, groups.starts, axis=1)
    return _pack(total, lowest, np.logical_and.reduceat(finite, groups.starts))


def integer(stored: bytes) -> tuple[int, int]:
    """A stored sum with bytes as (integer, position): it is integer * 2^(32 * position) units."""
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
        """Adds each row's amount (int64[n], less than 2^34) to the digit that is `nth` from the row's position."""
        for at, rows in self._rows_at.items():
            chosen = amounts if rows is None else np.where(rows, amounts, 0)
            self._digits[at + nth] += np.add.reduceat(chosen, self._groups.starts)

    def stored(self, finite: np.ndarray) -> pa.Array:
        return _pack(self._digits, self._lowest, np.logical_and.reduceat(finite, self._groups.starts))


def _pack(digits: np.ndarray, lowest: int, finite: np.ndarray) -> pa.Array:
    """Stored sums from digits (int64[d, m]) that are not carried yet and begin at position `lowest`."""
    width, count = digits.shape
    body = np.zeros((width + 2, count), dtype=np.int64)
    body[:width] = digits
    for nth in range(width + 1):
        body[nth + 1] += body[nth] >> np.int64(32)
        body[nth] &= np.int64(0xFFFFFFFF)
    sign = body[-1] >> np.int64(32)
    body[-1] &= np.int64(0xFFFFFFFF)
    significant, is_used = body != (sign & np.int64(0xFFFFFFFF)), body != 0
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
