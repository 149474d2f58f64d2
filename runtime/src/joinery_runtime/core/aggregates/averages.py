"""Averages: a sum, a count, and the division of one by the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates.base import Accumulator, AggregateCall, GroupError, Groups, Make, States
from joinery_runtime.core.aggregates.exact import Wide
from joinery_runtime.core.aggregates.sums import TODO, Count, DoubleSum, WholeSum

_EXACT = 2**53  # doubles hold whole numbers up to this one exactly

Quotient = Callable[[pa.Array, pa.Array], pa.Array]
"""Computes averages from the sums (NULL: no value) and counts of groups."""


@dataclass(frozen=True, slots=True)
class Average:
    """The average; NULL without any value. The state is that of the sum, and the count of values. `tight`: averages may
    overflow `result_type`, because 38 digits do not hold four more decimal places."""

    sum: WholeSum | DoubleSum
    count: Count
    result_type: pa.DataType
    quotient: Quotient
    tight: bool = False

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (*self.sum.fields, *self.count.fields)

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        return self._check_fit((*self.sum.fold(values, times, groups), *self.count.fold(values, times, groups)))

    def merge(self, states: States, groups: Groups) -> States:
        sums, counts = states[:-1], states[-1:]
        return self._check_fit((*self.sum.merge(sums, groups), *self.count.merge(counts, groups)))

    def result(self, states: States) -> pa.Array:
        return self.quotient(states[0], states[-1]).cast(self.result_type)

    def _check_fit(self, states: States) -> States:
        """Return the states. Raises GroupError if an average has too many digits before the point for its type."""
        if self.tight:
            kind, averages = self.result_type, self.quotient(states[0], states[-1])
            least = pa.scalar(Decimal(10 ** (kind.precision - kind.scale)), averages.type)
            beyond = pc.greater_equal(pc.abs(averages), least)
            misfits = np.flatnonzero(pc.fill_null(beyond, False).to_numpy(zero_copy_only=False))
            if len(misfits):
                facts = f"the average does not fit decimal({kind.precision}, {kind.scale})"
                raise GroupError(int(misfits[0]), facts, TODO["decimal"])
        return states


def _average_doubles(sums: pa.Array, counts: pa.Array) -> pa.Array:
    return pc.divide(sums, _divisors(sums, counts).cast(pa.float64()))


def _average_whole_numbers(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Averages whole numbers to the nearest double. Divides as doubles where these hold the sum exactly, and as Python
    integers where it is longer."""
    wide, divisor = Wide.of(sums.fill_null(0)), np.maximum(counts.to_numpy(), 1)
    averages = wide.low.view(np.int64) / divisor
    long = np.flatnonzero(~(wide.narrow & (np.abs(wide.low.view(np.int64)) <= _EXACT)))
    averages[long] = wide.take(long).objects() / divisor[long].astype(object)
    return pa.array(averages, mask=sums.is_null().to_numpy(zero_copy_only=False))


def _average_decimals(scale: int, sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Averages decimals. Arrow truncates the quotient 20 places after the sum's scale, which is enough to detect
    halves."""
    exact = sums.cast(pa.decimal256(38, sums.type.scale))
    quotient = pc.divide(exact, _divisors(sums, counts).cast(pa.decimal256(19, 0)))
    return pc.round(quotient, ndigits=scale, round_mode="half_towards_infinity")


def _divisors(sums: pa.Array, counts: pa.Array) -> pa.Array:
    return pc.if_else(sums.is_valid(), counts, None)


def _of_type(name: str, call: AggregateCall) -> Accumulator:
    kind: pa.DataType = call.type
    count = Count(f"{name}.count")
    if pa.types.is_floating(kind):
        return Average(DoubleSum(f"{name}.sum"), count, pa.float64(), _average_doubles)
    if not pa.types.is_decimal(kind):
        return Average(WholeSum(f"{name}.sum", pa.decimal128(38, 0)), count, pa.float64(), _average_whole_numbers)
    # Four more decimal places than the values have, if 38 digits hold them. Halves are rounded away from zero.
    precision = min(38, kind.precision + 4)
    result = pa.decimal128(precision, min(kind.scale + 4, precision))
    tight = result.precision - result.scale < kind.precision - kind.scale
    total, quotient = WholeSum(f"{name}.sum", pa.decimal128(38, kind.scale)), partial(_average_decimals, result.scale)
    return Average(total, count, result, quotient, tight)


FUNCTIONS: Mapping[str, Make] = {"avg": _of_type}
