"""Averages: a sum, a count, and the division of one by the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates.base import Accumulator, AggregateCall, Groups, Make, States
from joinery_runtime.core.aggregates.exact import Sums
from joinery_runtime.core.aggregates.sums import Count, DoubleSum, WholeSum, decimal_text, sum_type

_EXACT = 2**53  # doubles hold whole numbers up to this one exactly

Quotient = Callable[[pa.Array, pa.Array], pa.Array]
"""Computes averages from the sums (NULL: no value) and counts of groups."""


@dataclass(frozen=True, slots=True)
class Average(Accumulator):
    """The average; NULL without any value. The state is that of the sum, and the count of values. `tight`: averages may
    overflow `type`, because 38 digits do not hold four more decimal places."""

    sum: WholeSum | DoubleSum
    count: Count
    type: pa.DataType
    quotient: Quotient
    tight: bool = False

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (*self.sum.fields, *self.count.fields)

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        return (*self.sum.fold(values, times, groups), *self.count.fold(values, times, groups))

    def merge(self, states: States, groups: Groups) -> States:
        return (*self.sum.merge(states[:-1], groups), *self.count.merge(states[-1:], groups))

    def result(self, states: States) -> pa.Array:
        averages = self.quotient(states[0], states[-1])
        if self.tight:
            averages = pc.if_else(self._is_beyond(averages), pa.scalar(None, averages.type), averages)
        return averages.cast(self.type)

    def find_misfits(self, states: States) -> Mapping[int, str]:
        if not self.tight:
            return {}
        kind, averages = self.type, self.quotient(states[0], states[-1])
        beyond = np.flatnonzero(pc.fill_null(self._is_beyond(averages), False).to_numpy(zero_copy_only=False))
        texts = (f"{averages[group].as_py():f}".rstrip("0").rstrip(".") for group in beyond.tolist())
        return {
            group: f"the average {text} does not fit decimal({kind.precision}, {kind.scale})"
            for group, text in zip(beyond.tolist(), texts, strict=True)
        }

    def _is_beyond(self, averages: pa.Array) -> pa.Array:
        """Whether averages have too many digits before the point for the type of the result."""
        least = pa.scalar(Decimal(10 ** (self.type.precision - self.type.scale)), averages.type)
        return pc.greater_equal(pc.abs(averages), least)


def _average_doubles(sums: pa.Array, counts: pa.Array) -> pa.Array:
    return pc.divide(sums, _divisors(sums, counts).cast(pa.float64()))


def _average_whole_numbers(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Average whole numbers to the nearest double. Divides as doubles where these hold the sum exactly, and as
    Python integers where it is longer."""
    total, divisor = Sums.of(sums.fill_null(0)), np.maximum(counts.to_numpy(), 1)
    words = total.lower.low.view(np.int64)
    averages = words / divisor
    long = np.flatnonzero(~(total.narrow & (np.abs(words) <= _EXACT)))
    averages[long] = total.take(long).objects() / divisor[long].astype(object)
    return pa.array(averages, mask=sums.is_null().to_numpy(zero_copy_only=False))


def _average_decimals(scale: int, sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Average decimals. Arrow truncates the quotient 20 places after the sum's scale, which is enough to detect
    halves. A longer sum is divided as a Python integer."""
    totals = Sums.of(sums)
    long = np.flatnonzero(~totals.decimal & sums.is_valid().to_numpy(zero_copy_only=False))
    if len(long):
        at = np.arange(len(sums))
        at[long] = -1
        sums = sums.take(pa.array(at, mask=at < 0))
    exact = sums.cast(pa.decimal256(38, sums.type.scale))
    quotient = pc.divide(exact, _divisors(sums, counts).cast(pa.decimal256(19, 0)))
    averages = pc.round(quotient, ndigits=scale, round_mode="half_towards_infinity")
    if not len(long):
        return averages
    numbers = totals.take(long).objects() * 10 ** (scale - sums.type.scale)
    divisors = counts.to_numpy()[long].tolist()
    long_averages = [
        Decimal(decimal_text(_rounded_quotient(number, divisor), scale))
        for number, divisor in zip(numbers.tolist(), divisors, strict=True)
    ]
    at = np.arange(len(averages))
    at[long] = len(averages) + np.arange(len(long))
    return pa.concat_arrays([averages, pa.array(long_averages, averages.type)]).take(pa.array(at))


def _rounded_quotient(number: int, divisor: int) -> int:
    """Return the quotient, rounded to the nearest integer; halves away from zero."""
    quotient, rest = divmod(abs(number), divisor)
    rounded = quotient + (2 * rest >= divisor)
    return -rounded if number < 0 else rounded


def _divisors(sums: pa.Array, counts: pa.Array) -> pa.Array:
    return pc.if_else(sums.is_valid(), counts, None)


def _of_type(name: str, call: AggregateCall) -> Accumulator:
    kind: pa.DataType = call.type
    count = Count(f"{name}.count")
    if pa.types.is_floating(kind):
        return Average(DoubleSum(f"{name}.sum"), count, pa.float64(), _average_doubles)
    if not pa.types.is_decimal(kind):
        return Average(_sum_of(name, kind), count, pa.float64(), _average_whole_numbers)
    # Four more decimal places than the values have, if 38 digits hold them. Halves are rounded away from zero.
    precision = min(38, kind.precision + 4)
    result = pa.decimal128(precision, min(kind.scale + 4, precision))
    tight = result.precision - result.scale < kind.precision - kind.scale
    quotient = partial(_average_decimals, result.scale)
    return Average(_sum_of(name, kind), count, result, quotient, tight)


def _sum_of(name: str, kind: pa.DataType) -> WholeSum:
    """Return the sum of whole numbers or decimals; only its state is used."""
    return WholeSum(f"{name}.sum", sum_type(kind), sum_type(kind))


FUNCTIONS: Mapping[str, Make] = {"avg": _of_type}
