"""The aggregates of S7 a second time: of one group's values (no NULLs among them, in order of event time and arrival),
in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

import pyarrow as pa


def reference(function: str, kind: pa.DataType, values: Sequence[Any]) -> Any:
    if function == "count_col":
        return len(values)
    if function == "count_distinct":
        return len({canonical(value) for value in values})
    return _OF[function](kind, values) if values else None


def canonical(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def ordered(value: Any) -> Any:
    """NaN is greater than all numbers; strings go by code points."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def exact_sum(values: Sequence[Any]) -> Any:
    """A Fraction of finite numbers, else the float that IEEE's sum is."""
    special = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    return sum(special) if special else sum(map(Fraction, values), Fraction(0))


def _sum(kind: pa.DataType, values: Sequence[Any]) -> Any:
    if not pa.types.is_decimal(kind):
        return exact_sum(values)
    with localcontext(prec=100):
        return sum(values, Decimal(0))


def _avg(kind: pa.DataType, values: Sequence[Any]) -> Any:
    total = exact_sum(values)
    if not pa.types.is_decimal(kind):
        return total / len(values)
    scale = min(kind.scale + 4, 38)
    with localcontext(prec=200):
        quotient = Decimal(total.numerator) / Decimal(total.denominator * len(values))
        return quotient.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)


_OF = {
    "sum": _sum,
    "avg": _avg,
    "min": lambda kind, values: min(values, key=ordered),
    "max": lambda kind, values: max(values, key=ordered),
    "first": lambda kind, values: values[0],
    "last": lambda kind, values: values[-1],
}
