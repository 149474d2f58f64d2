"""Variances and standard deviations: computed from the exact sums of values and of squares, rounded once at the end.

Chan's and Welford's updates are stable but depend on how rows were split, in the last digits. Exact sums do not, and
cancel nothing (docs/decisions/0098-aggregates-do-not-depend-on-how-rows-were-split.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates import exact
from joinery_runtime.core.aggregates.base import Accumulator, AggregateCall, Groups, Make, Present, States
from joinery_runtime.core.aggregates.sums import Count


@dataclass(frozen=True, slots=True)
class Variance(Accumulator):
    """The variance of numbers, or their standard deviation if `root`; of a `sample`, which needs two values, or of all.
    NULL with fewer; NaN with an infinity or NaN among them. `scale` is that of decimals, `binary` says that values are
    doubles. The state is the same for all four: the sum, the sum of squares, and the count."""

    name: str
    scale: int
    binary: bool
    sample: bool
    root: bool

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        sums = (pa.field(f"{self.name}.{part}", pa.binary()) for part in ("sum", "squares"))
        return (*sums, *self._count.fields)

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    @property
    def _count(self) -> Count:
        return Count(f"{self.name}.count")

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        count = self._count.fold(values, times, groups)
        if not len(present.values):
            nothing = pa.nulls(groups.count, pa.binary())
            return nothing, nothing, *count
        numbers = exact.Digits.of(present.values)
        sums = (exact.sums(numbers, present.groups), exact.product_sums(numbers, numbers, present.groups))
        return *map(present.scatter, sums), *count

    def merge(self, states: States, groups: Groups) -> States:
        merged = []
        for stored in states[:2]:
            present = Present.of(stored, groups)
            sums = exact.merged_sums(present.values, present.groups) if len(present.values) else present.values
            merged.append(present.scatter(sums))
        return (*merged, *self._count.merge(states[2:], groups))

    def result(self, states: States) -> pa.Array:
        rows = zip(*(state.to_pylist() for state in states), strict=True)
        return pa.array([self._value(*row) for row in rows], pa.float64())

    def _value(self, total: bytes | None, squares: bytes | None, count: int) -> float | None:
        if count < 1 + self.sample or total is None or squares is None:
            return None
        if not total:
            return math.nan
        (first, first_at), (second, second_at) = exact.integer(total), exact.integer(squares)
        lowest = min(2 * first_at, second_at)
        first_squared = first * first << 32 * (2 * first_at - lowest)
        over = count * (second << 32 * (second_at - lowest)) - first_squared
        under = count * (count - self.sample) * 10 ** (2 * self.scale)
        exponent = 32 * lowest - (2 * exact.DOUBLE_BITS if self.binary else 0)
        try:
            variance = (over << max(0, exponent)) / (under << max(0, -exponent))
        except OverflowError:
            variance = math.inf
        return math.sqrt(variance) if self.root else variance


def _maker(*, sample: bool, root: bool) -> Callable[[str, AggregateCall], Accumulator]:
    def make(_: str, call: AggregateCall) -> Accumulator:
        kind: pa.DataType = call.type
        scale = kind.scale if pa.types.is_decimal(kind) else 0
        return Variance(f"$variance({call.arguments})", scale, pa.types.is_floating(kind), sample, root)

    return make


FUNCTIONS: Mapping[str, Make] = {
    "var_pop": _maker(sample=False, root=False),
    "var_samp": _maker(sample=True, root=False),
    "stddev_pop": _maker(sample=False, root=True),
    "stddev_samp": _maker(sample=True, root=True),
}
