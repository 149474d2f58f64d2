"""The aggregates of a session (S7), from all values of its rows at once: exact numbers, sets, sorting, no state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

from joinery_devkit.oracle.rows import comparable, is_nan
from joinery_runtime.job import Aggregate, ColumnType

Sketch = Callable[[Sequence[Any]], int]
"""The estimate of how many distinct values there are."""

_DIGITS = 38  # of a decimal


def aggregate(spec: Aggregate, values: Sequence[Any], kind: ColumnType | None, sketch: Sketch) -> Any:
    """The value of an aggregate. `values` are those of its column in order of (event time, arrival), one per row;
    `kind` is the column's type."""
    present = [value for value in values if value is not None]
    match spec.function:
        case "count":
            return len(values)
        case "count_col":
            return len(present)
        case "count_distinct":
            return sketch(present) if spec.method == "hll" else exact(present)
        case "first":
            return present[0] if present else None
        case "last":
            return present[-1] if present else None
        case "min":
            return min(present, key=_rank, default=None)
        case "max":
            return max(present, key=_rank, default=None)
        case "sum":
            return _sum(present) if present else None
        case "avg":
            return _average(present, kind) if present else None


def exact(values: Sequence[Any]) -> int:
    """How many distinct values there are; NaN is one value, -0.0 is 0.0."""
    return len({comparable(value) for value in values})


def _rank(value: Any) -> tuple[bool, Any]:
    """A sort key in which NaN is greater than every number."""
    return (True, 0) if is_nan(value) else (False, value)


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], float):
        if all(math.isfinite(value) for value in values):
            return float(sum(map(Fraction, values)))
        return sum(value for value in values if not math.isfinite(value))
    if isinstance(values[0], Decimal):
        return _decimal_sum(values)
    return sum(values)


def _decimal_sum(values: Sequence[Decimal]) -> Decimal:
    with localcontext(prec=4 * _DIGITS):
        return sum(values, Decimal(0))


def _average(values: Sequence[Any], kind: ColumnType | None) -> Any:
    """The average. For decimals it is rounded half up to four more digits than the column has, at most 38 in all."""
    if isinstance(values[0], Decimal):
        assert kind is not None, "a decimal column has a type"
        precision = min(_DIGITS, (kind.precision or 0) + 4)
        scale = min((kind.scale or 0) + 4, precision)
        with localcontext(prec=4 * _DIGITS):
            return (_decimal_sum(values) / len(values)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    total = _sum(values)
    return total / len(values) if not math.isfinite(total) else float(sum(map(Fraction, values)) / len(values))
