"""Which accumulator serves an aggregate."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from joinery_runtime.core.aggregates import averages
from joinery_runtime.core.aggregates.base import Accumulator, AggregateCall
from joinery_runtime.core.aggregates.counts import Count
from joinery_runtime.core.aggregates.distinct import Distinct
from joinery_runtime.core.aggregates.ends import End
from joinery_runtime.core.aggregates.extremes import Extreme
from joinery_runtime.core.aggregates.sketch import Sketch
from joinery_runtime.core.aggregates.sums import DoubleSum, WholeSum


def accumulator(of: AggregateCall) -> Accumulator:
    """Raises KeyError for a function that there is not."""
    return _MADE[of.function](f"${of.function}({of.column})", of)


def _sum(name: str, of: AggregateCall) -> Accumulator:
    kind: pa.DataType = of.type
    if pa.types.is_floating(kind):
        return DoubleSum(name)
    return WholeSum(name, pa.decimal128(38, kind.scale) if pa.types.is_decimal(kind) else pa.int64())


def _average(name: str, of: AggregateCall) -> Accumulator:
    kind: pa.DataType = of.type
    if pa.types.is_floating(kind):
        return averages.of_doubles(name)
    return averages.of_decimals(name, kind) if pa.types.is_decimal(kind) else averages.of_integers(name)


def _distinct(name: str, of: AggregateCall) -> Accumulator:
    if of.limit is None:
        return Sketch(f"{name}.sketch")
    return Distinct(f"{name}.values", of.type, of.limit)


_MADE: dict[str, Callable[[str, AggregateCall], Accumulator]] = {
    "count": lambda name, _: Count(name),
    "count_col": lambda name, _: Count(name),
    "sum": _sum,
    "avg": _average,
    "min": lambda name, of: Extreme(name, of.type, greatest=False),
    "max": lambda name, of: Extreme(name, of.type, greatest=True),
    "first": lambda name, of: End(name, of.type, last=False),
    "last": lambda name, of: End(name, of.type, last=True),
    "count_distinct": _distinct,
}
