"""Counts of rows and of values, and sums: exact for whole numbers, compensated for doubles.

A compensated sum keeps what each addition rounds off: it is two doubles, `sum + rest`, good for about 100 bits. Pairs
of neighbours are added in rounds (log2 of the longest group), each addition by Knuth's two-sum. An infinite or NaN sum
has no rest. A sum that leaves the range of doubles on its way is infinite, as in every sum of IEEE numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates import exact
from joinery_runtime.core.aggregates.base import (
    Accumulator,
    AggregateCall,
    Groups,
    Make,
    Present,
    States,
)


@dataclass(frozen=True, slots=True)
class Count(Accumulator):
    """`count` counts all rows; `count_col` counts the rows in which a column has a value."""

    name: str

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.int64()),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        if values is None or not values.null_count:
            return (pa.array(groups.sizes),)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        return (pa.array(np.add.reduceat(valid, groups.starts, dtype=np.int64)),)

    def merge(self, states: States, groups: Groups) -> States:
        return (pa.array(np.add.reduceat(states[0].to_numpy(), groups.starts)),)

    def result(self, states: States) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class CountIf(Count):
    """`count_if`: the number of rows whose value is true."""

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        return Count.fold(self, pc.if_else(values, values, None), times, groups)


_Doubles = tuple[np.ndarray, np.ndarray]  # sums, rests

_DIGITS = 38  # of a decimal
_ROOM = 19  # digits by which a sum may be longer than its values: there are fewer than 2^63 of them


def sum_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which sums of values of a type are stored: with room for the sum of as many values as can
    be."""
    if not pa.types.is_decimal(kind):
        return pa.decimal128(_DIGITS, 0)
    wide = kind.precision + _ROOM > _DIGITS
    return pa.decimal256(76, kind.scale) if wide else pa.decimal128(_DIGITS, kind.scale)


@dataclass(frozen=True, slots=True)
class WholeSum(Accumulator):
    """The exact sum: of int32 or int64 values as int64, or of decimals of one scale as decimal(38, scale), as `type`
    says. The state is the sum as `state`, which has room for every sum, so that later values may bring it back into the
    range of the result."""

    name: str
    type: pa.DataType
    state: pa.DataType

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, self.state),)

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        numbers = present.values if pa.types.is_decimal(present.values.type) else present.values.cast(pa.int64())
        return (present.scatter(exact.sums_of(numbers, present.groups).stored(self.state)),)

    def merge(self, states: States, groups: Groups) -> States:
        return self.fold(states[0], np.empty(0), groups)

    def result(self, states: States) -> pa.Array:
        if self.state == self.type:
            return states[0]
        sums = exact.Sums.of(states[0])
        absent = states[0].is_null().to_numpy(zero_copy_only=False) | ~self._fits(sums)
        if pa.types.is_decimal(self.type):
            lower = exact.Wide(np.where(absent, 0, sums.lower.high), np.where(absent, np.uint64(0), sums.lower.low))
            return pc.if_else(pa.array(~absent), lower.decimals(self.type), pa.scalar(None, self.type))
        return pa.array(sums.lower.low.view(np.int64), mask=absent)

    def find_misfits(self, states: States) -> Mapping[int, str]:
        if self.state == self.type:
            return {}
        sums, valid = exact.Sums.of(states[0]), states[0].is_valid().to_numpy(zero_copy_only=False)
        beyond = np.flatnonzero(valid & ~self._fits(sums))
        decimal = pa.types.is_decimal(self.type)
        kind = f"the {_DIGITS} digits of a decimal" if decimal else "int64"
        numbers = (decimal_text(number, self.state.scale) for number in sums.take(beyond).objects().tolist())
        return {
            group: f"the sum {number} does not fit {kind}"
            for group, number in zip(beyond.tolist(), numbers, strict=True)
        }

    def _fits(self, sums: exact.Sums) -> np.ndarray:
        return sums.decimal if pa.types.is_decimal(self.type) else sums.narrow


def decimal_text(number: int, scale: int) -> str:
    """Write `number * 10^-scale` in full."""
    return f"{Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)):f}"


@dataclass(frozen=True, slots=True)
class DoubleSum(Accumulator):
    """The compensated sum of float or double values as a double: the nearest double unless nearly everything cancels
    out. The state is the sum and its rest."""

    name: str

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.float64()), pa.field(f"{self.name}.rest", pa.float64()))

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        return self._total(present, np.zeros(len(present.values)))

    def merge(self, states: States, groups: Groups) -> States:
        present = Present.of(states[0], groups)
        return self._total(present, states[1].drop_null().to_numpy())

    def result(self, states: States) -> pa.Array:
        return states[0]

    @staticmethod
    def _total(present: Present, rests: np.ndarray) -> States:
        doubles = present.values.cast(pa.float64()).to_numpy()
        sums, lost = _compensated_sums((doubles, rests), present.groups)
        return present.scatter(pa.array(sums)), present.scatter(pa.array(lost))


def _compensated_sums(values: _Doubles, groups: Groups) -> _Doubles:
    """Return (sums, rests), float64[m] each, of groups of n such sums."""
    (high, low), starts, sizes = values, groups.starts, groups.sizes
    sums, rests = np.empty(groups.count), np.empty(groups.count)
    pending = np.arange(groups.count)
    with np.errstate(invalid="ignore", over="ignore"):
        while len(pending):
            single = sizes == 1
            sums[pending[single]], rests[pending[single]] = high[starts[single]], low[starts[single]]
            pending, starts, sizes = pending[~single], starts[~single], sizes[~single]
            high, low = _add_pairs((high, low), starts, sizes)
            sizes = (sizes + 1) >> 1
            starts = np.cumsum(sizes) - sizes
    return sums, rests


def _add_pairs(values: _Doubles, starts: np.ndarray, sizes: np.ndarray) -> _Doubles:
    """Return the first and the second of each group added, the third and the fourth, ...; an odd last one as it is."""
    (high, low), halved = values, (sizes + 1) >> 1
    ends = np.cumsum(halved)
    first = np.repeat(starts - 2 * (ends - halved), halved) + np.arange(0, 2 * int(halved.sum()), 2)
    paired = np.ones(len(first), dtype=bool)
    paired[ends - 1] = sizes % 2 == 0
    second = first + paired
    other = (np.where(paired, high[second], 0.0), np.where(paired, low[second], 0.0))
    return _add_two((high[first], low[first]), other)


def _add_two(a: _Doubles, b: _Doubles) -> _Doubles:
    rough = a[0] + b[0]
    shadow = rough - a[0]
    lost = (a[0] - (rough - shadow)) + (b[0] - shadow)
    rest = np.where(np.isfinite(rough), lost + (a[1] + b[1]), 0.0)
    rounded = rough + rest
    return rounded, np.where(np.isfinite(rounded), rest - (rounded - rough), 0.0)


def _sum(name: str, call: AggregateCall) -> Accumulator:
    kind: pa.DataType = call.type
    if pa.types.is_floating(kind):
        return DoubleSum(name)
    return WholeSum(
        name, pa.decimal128(_DIGITS, kind.scale) if pa.types.is_decimal(kind) else pa.int64(), sum_type(kind)
    )


FUNCTIONS: Mapping[str, Make] = {
    "count": lambda name, _: Count(name),
    "count_col": lambda name, _: Count(name),
    "count_if": lambda name, _: CountIf(name),
    "sum": _sum,
}
