"""Percentiles of numbers, as doubles: exact up to a limit, or of a sketch.

The state is a multiset: distinct values, sorted, and how often each occurs. The sketch is DDSketch (Masson, Rim, Lee,
VLDB 2019) with the buckets of HdrHistogram: a group with more than EXACT values drops all but SIGNIFICANT bits of each
mantissa, toward zero. So a bucket is a double itself, bounds are the same on every machine, and integers below 512 stay
as they are. A percentile is at most 1/256 (0.4 %) nearer to zero than the exact one. Which values are cut depends on
the values alone, so the state does not depend on how rows were split
(docs/decisions/0098-aggregates-do-not-depend-on-how-rows-were-split.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa

from joinery_runtime.core.aggregates.base import (
    Accumulator,
    AggregateCall,
    Groups,
    Make,
    Present,
    States,
)
from joinery_runtime.core.aggregates.exact import Wide
from joinery_runtime.core.aggregates.lists import (
    lacks_lists,
    limited_lists,
    list_sizes,
    misfits_of_lists,
    unify_zeros,
)

EXACT = 256
SIGNIFICANT = 8

_CUT = np.int64(-(2 ** (52 - SIGNIFICANT)))


@dataclass(frozen=True, slots=True)
class Percentile(Accumulator):
    """The value below which a `share` of the values lies, NULL without any: the first value with at least that share
    up to it, or, if `between`, the point between two neighbours. `limit` is the largest number of distinct values;
    None: it is a sketch."""

    name: str
    share: Fraction
    limit: int | None
    between: bool = False

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (
            pa.field(f"{self.name}.values", pa.list_(pa.float64())),
            pa.field(f"{self.name}.counts", pa.list_(pa.int64())),
        )

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        doubles = unify_zeros(_as_doubles(present.values)).to_numpy()
        ones = np.ones(len(doubles), dtype=np.int64)
        return self._states(doubles, ones, groups.number[present.rows], groups.count)

    def merge(self, states: States, groups: Groups) -> States:
        number = np.repeat(groups.number, list_sizes(states[0]))
        values, counts = (state.flatten().to_numpy() for state in states)
        return self._states(values, counts, number, groups.count, lacks_lists(states, groups))

    def result(self, states: States) -> pa.Array:
        values, counts = (state.flatten().to_numpy() for state in states)
        sizes = list_sizes(states[0])
        reached, ends = np.append(0, np.cumsum(counts)), np.cumsum(sizes)
        before = reached[ends - sizes]
        totals = reached[ends] - before
        some = np.flatnonzero(totals)
        positions = [self._rank(total) for total in totals[some].tolist()]

        def nth(ranks: list[int]) -> np.ndarray:
            at = np.searchsorted(reached[1:], before[some] + np.array(ranks, dtype=np.int64))
            return np.asarray(values[at])

        results = nth([rank for rank, _ in positions])
        fractions = np.array([fraction for _, fraction in positions])
        between = np.flatnonzero(fractions)
        if len(between):
            following = nth([rank + (fraction > 0) for rank, fraction in positions])
            with np.errstate(invalid="ignore", over="ignore"):
                results[between] += fractions[between] * (following - results)[between]
        output = np.zeros(len(sizes))
        output[some] = results
        return pa.array(output, mask=totals == 0)

    def find_misfits(self, states: States) -> Mapping[int, str]:
        return {} if self.limit is None else misfits_of_lists(states[0], self.limit, "distinct values")

    def _rank(self, total: int) -> tuple[int, float]:
        """Return the number of the value, from 1, and how far the percentile lies between that and the next."""
        if not self.between:
            return max(1, -(-total * self.share.numerator // self.share.denominator)), 0.0
        whole, part = divmod(self.share * (total - 1), 1)
        return int(whole) + 1, float(part)

    def _states(
        self, values: np.ndarray, counts: np.ndarray, number: np.ndarray, groups: int, before: np.ndarray | None = None
    ) -> States:
        """Return states from `counts` of `values` (float64[n]), whose groups `number` (int64[n], ascending) gives. For
        `before` see `limited_lists`."""
        starts = np.searchsorted(number, np.arange(groups + 1))
        if self.limit is None and len(values):
            reached = np.append(0, np.cumsum(counts))
            cut = (np.diff(reached[starts]) > EXACT)[number] & ~np.isnan(values)
            values = np.where(cut, (values.view(np.int64) & _CUT).view(np.float64), values)
            values = values + 0.0  # a negative number that is cut to nothing is 0.0
        rows = pl.DataFrame({"group": number, "value": values, "count": counts}).sort("group", "value")
        group, sorted_values = rows["group"].to_numpy(), rows["value"].to_numpy()
        bits = sorted_values.view(np.int64)
        first = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(bits, prepend=0) != 0))
        offsets = np.searchsorted(group[first], np.arange(groups + 1))
        occurrences = np.add.reduceat(rows["count"].to_numpy(), first) if len(first) else np.zeros(0, dtype=np.int64)
        elements = (pa.array(sorted_values[first]), pa.array(occurrences))
        return limited_lists(self.fields, elements, offsets, self.limit, before)


def _as_doubles(values: pa.Array) -> pa.Array:
    """Return the double nearest to each number."""
    if not pa.types.is_decimal(values.type):
        return values.cast(pa.float64(), safe=False)
    numbers, scale = Wide.of(values), values.type.scale
    words = numbers.low.view(np.int64)
    # A quotient of two exact doubles is rounded once. Arrow's cast of decimals is not the nearest double.
    short = numbers.narrow & (np.abs(words) <= 2**53) & (scale <= 22)
    doubles = words / 10.0 ** min(scale, 22)
    long = np.flatnonzero(~short)
    doubles[long] = numbers.take(long).objects() / np.full(len(long), 10**scale, dtype=object)
    return pa.array(doubles)


def _exact(call: AggregateCall, *, between: bool) -> Accumulator:
    return Percentile(f"$percentile({call.arguments})", call.share, call.limit, between)


FUNCTIONS: Mapping[str, Make] = {
    "approx_percentile": lambda name, call: Percentile(name, call.share, None),
    "percentile_cont": lambda _, call: _exact(call, between=True),
    "percentile_disc": lambda _, call: _exact(call, between=False),
    "median": lambda _, call: _exact(call, between=True),
}
