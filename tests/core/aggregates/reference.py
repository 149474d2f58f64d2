"""The aggregates of S7 a second time: of one group's values (no NULLs among them, in order of event time and arrival),
in plain Python."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from functools import partial
from typing import Any

import pyarrow as pa


def reference(function: str, kind: pa.DataType, values: Sequence[Any]) -> Any:
    if function == "count_col":
        return len(values)
    if function == "count_distinct":
        return len({canonical(value) for value in values})
    if function == "count_if":
        return sum(values)
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


def _variance(kind: pa.DataType, values: Sequence[Any], sample: bool, root: bool) -> float | None:
    """Of exact numbers by the definition, in two passes, and rounded once."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return None if len(values) < 1 + sample else math.nan
    if len(values) < 1 + sample:
        return None
    mean = exact_sum(values) / len(values)
    try:
        variance = float(sum((Fraction(value) - mean) ** 2 for value in values) / (len(values) - sample))
    except OverflowError:
        variance = math.inf
    return math.sqrt(variance) if root else variance


def percentile(values: Sequence[Any], share: Fraction, *, between: bool) -> float:
    """By PostgreSQL's definitions of percentile_cont and percentile_disc."""
    doubles = sorted(map(float, values), key=ordered)
    if not between:
        return next(value for n, value in enumerate(doubles, 1) if Fraction(n, len(doubles)) >= share)
    at = share * (len(doubles) - 1)
    low, high = doubles[math.floor(at)], doubles[math.ceil(at)]
    return low if at.denominator == 1 else low + float(at - math.floor(at)) * (high - low)


def _element(kind: pa.DataType, value: Any) -> Any:
    if pa.types.is_floating(kind):
        return value if math.isfinite(value) else None
    if pa.types.is_timestamp(kind):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if pa.types.is_binary(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_decimal(kind):
        return format(value, "f")
    return value if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else str(value)


def _array(kind: pa.DataType, values: Sequence[Any]) -> list[Any]:
    return [_element(kind, value) for value in values]


SHARE = Fraction(9, 10)

_OF = {
    "var_pop": partial(_variance, sample=False, root=False),
    "var_samp": partial(_variance, sample=True, root=False),
    "stddev_pop": partial(_variance, sample=False, root=True),
    "stddev_samp": partial(_variance, sample=True, root=True),
    "median": lambda kind, values: percentile(values, Fraction(1, 2), between=True),
    "percentile_cont": lambda kind, values: percentile(values, SHARE, between=True),
    "percentile_disc": lambda kind, values: percentile(values, SHARE, between=False),
    "approx_percentile": lambda kind, values: percentile(values, SHARE, between=False),
    "bool_and": lambda kind, values: all(values),
    "bool_or": lambda kind, values: any(values),
    "array_agg": _array,
    "string_agg": lambda kind, values: "; ".join(values),
    "min_by": lambda kind, values: min(values, key=lambda row: ordered(row["by"]))["value"],
    "max_by": lambda kind, values: max(values, key=lambda row: ordered(row["by"]))["value"],
    "sum": _sum,
    "avg": _avg,
    "min": lambda kind, values: min(values, key=ordered),
    "max": lambda kind, values: max(values, key=ordered),
    "first": lambda kind, values: values[0],
    "last": lambda kind, values: values[-1],
}
