"""The aggregates of a session (S7), from all values of its rows at once: exact numbers, sets, sorting, no state."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from functools import partial
from typing import Any

from joinery_devkit.oracle.rows import Values, comparable, is_nan
from joinery_runtime.job import Aggregate, ColumnType
from joinery_runtime.job.kinds.aggregate.model import Aggregation

Sketch = Callable[[Sequence[Any]], int]
"""The estimate of how many distinct values there are."""

_DIGITS = 38  # of a decimal

UNFIT = object()
"""A value that does not fit its type, or of which there are too many (S7)."""


def aggregate_rows(
    spec: Aggregate,
    rows: Sequence[Values],
    kind: ColumnType | None,
    sketch: Sketch,
    conditions: Mapping[str, Callable[[Values], bool | None]],
) -> Any:
    """Return the value of an aggregate of rows in order of (event time, arrival). `kind` is the type of its column,
    `conditions` are those of aggregates, by their text."""
    chosen = rows if spec.where is None else [row for row in rows if conditions[spec.where](row) is True]
    values = [None if spec.column is None else row[spec.column] for row in chosen]
    return aggregate(spec, values, kind, sketch, [row[spec.by] for row in chosen] if spec.by is not None else ())


def aggregate(
    spec: Aggregate, values: Sequence[Any], kind: ColumnType | None, sketch: Sketch, by: Sequence[Any] = ()
) -> Any:
    """Return the value of an aggregate, or UNFIT. `values` are those of its column in order of (event time, arrival),
    one per row that meets its condition, and `by` those of its second column; `kind` is the column's type."""
    present = [value for value in values if value is not None]
    if spec.values_limit is not None:
        of_lists = spec.function in {"array_agg", "string_agg"}
        if (len(present) if of_lists else exact(present)) > spec.values_limit:
            return UNFIT
    match spec.function:
        case "count":
            return len(values)
        case "count_col":
            return len(present)
        case "count_if":
            return present.count(True)
        case "count_distinct":
            return sketch(present) if spec.method == "hll" else exact(present)
        case "min_by" | "max_by":
            pairs = [pair for pair in zip(values, by, strict=True) if None not in pair]
            extreme = min if spec.function == "min_by" else max  # both take the first of equal ones
            return extreme(pairs, key=lambda pair: _rank(pair[1]), default=(None, None))[0]
        case "avg":
            return _average(present, kind) if present else None
        case "median" | "percentile_cont" | "percentile_disc" | "approx_percentile":
            return _percentile(spec, present) if present else None
        case "string_agg":
            return ("," if spec.separator is None else spec.separator).join(present) if present else None
    return _OF_VALUES[spec.function](present) if present else None


@dataclass(frozen=True, slots=True)
class Judged:
    """What becomes of an aggregate's row: the row as it is emitted (None: it is not), whether `having` leaves it out,
    and whether it has an UNFIT value that it needs."""

    row: dict[str, Any] | None
    left_out: bool = False
    unfit: bool = False


@dataclass(frozen=True, slots=True)
class RowRules:
    """How rows of an aggregate are judged (G7, S7). `read_by_having` and `read_by_row` are columns; `having` is on what
    a row has. `replaces`: a row may replace an earlier one (G9)."""

    read_by_having: frozenset[str]
    read_by_row: frozenset[str] | None  # None: all columns
    having: Callable[[Values], bool | None] | None
    replaces: bool

    @classmethod
    def of(
        cls,
        aggregation: Aggregation,
        selected: Sequence[Any] | None,
        having: Callable[[Values], bool | None] | None,
    ) -> RowRules:
        texts = None if selected is None else [item.expression or item.column or "" for item in selected]
        return cls(
            names_in(aggregation.having or ""),
            None if texts is None else names_in(" ".join(texts)),
            having,
            aggregation.late_data == "reopen" or aggregation.emit_every is not None,
        )

    def judge_row(self, row: Mapping[str, Any]) -> Judged:
        unfit = {name for name, value in row.items() if value is UNFIT}
        emitted = {name: None if value is UNFIT else value for name, value in row.items()}
        if unfit & self.read_by_having:
            return Judged(None, unfit=True)
        if self.having is not None and self.having(emitted) is not True:
            return Judged(None, left_out=True)
        if unfit if self.read_by_row is None else unfit & self.read_by_row:
            return Judged(emitted if self.replaces else None, unfit=True)
        return Judged(emitted)


def names_in(text: str) -> frozenset[str]:
    """Return the words of a text, among them the columns that an expression reads."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", text))


def exact(values: Sequence[Any]) -> int:
    """How many distinct values there are; NaN is one value, -0.0 is 0.0."""
    return len({comparable(value) for value in values})


def _rank(value: Any) -> tuple[bool, Any]:
    """Return a sort key in which NaN is greater than every number."""
    return (True, 0) if is_nan(value) else (False, value)


def sum_of(values: Sequence[Any]) -> Any:
    """Return the sum of some values, or UNFIT."""
    if isinstance(values[0], float):
        if all(math.isfinite(value) for value in values):
            return float(sum(map(Fraction, values)))
        return sum(value for value in values if not math.isfinite(value))
    if isinstance(values[0], Decimal):
        total = _decimal_sum(values)
        return total if len(total.as_tuple().digits) <= _DIGITS else UNFIT
    integer = sum(values)
    return integer if -(2**63) <= integer < 2**63 else UNFIT


def _decimal_sum(values: Sequence[Decimal]) -> Decimal:
    with localcontext(prec=4 * _DIGITS):
        return sum(values, Decimal(0))


def _average(values: Sequence[Any], kind: ColumnType | None) -> Any:
    """Return the average. For decimals it is rounded half up to four more digits than the column has, at most 38 in
    all."""
    if isinstance(values[0], Decimal):
        assert kind is not None, "a decimal column has a type"
        precision = min(_DIGITS, (kind.precision or 0) + 4)
        scale = min((kind.scale or 0) + 4, precision)
        with localcontext(prec=4 * _DIGITS):
            average = (_decimal_sum(values) / len(values)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        return average if abs(average) < 10 ** (precision - scale) else UNFIT
    if not all(map(math.isfinite, values)):
        return sum_of(values) / len(values)
    return float(sum(map(Fraction, values)) / len(values))


def _spread(values: Sequence[Any], *, sample: bool, root: bool) -> float | None:
    """Return the variance, or its root: of exact numbers, rounded once."""
    if len(values) < 1 + sample:
        return None
    if not all(math.isfinite(value) for value in values):
        return math.nan
    numbers = [Fraction(value) for value in values]
    mean = sum(numbers) / len(numbers)
    try:
        variance = float(sum((number - mean) ** 2 for number in numbers) / (len(numbers) - sample))
    except OverflowError:
        variance = math.inf
    return math.sqrt(variance) if root else variance


def _percentile(spec: Aggregate, values: Sequence[Any]) -> float:
    """Return the percentile of values as doubles. The sketch of more than 256 values drops the last 44 bits of each."""
    doubles = sorted((float(value) + 0.0 for value in values), key=_rank)
    share = Fraction(1, 2) if spec.percentile is None else Fraction(str(spec.percentile))
    if spec.function in {"percentile_disc", "approx_percentile"}:
        value = doubles[max(1, math.ceil(share * len(doubles))) - 1]
        if spec.function == "percentile_disc" or len(doubles) <= 256 or is_nan(value):
            return value
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        (cut,) = struct.unpack("<d", struct.pack("<q", bits >> 44 << 44))
        return float(cut) + 0.0
    position, part = divmod(share * (len(doubles) - 1), 1)
    if not part:
        return doubles[int(position)]
    lower, upper = doubles[int(position)], doubles[int(position) + 1]
    return lower + float(part) * (upper - lower)


def _element(value: Any) -> Any:
    """Return a value in a JSON array, as in JSON outputs."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else value


_OF_VALUES: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "min": lambda values: min(values, key=_rank),
    "max": lambda values: max(values, key=_rank),
    "sum": sum_of,
    "var_pop": partial(_spread, sample=False, root=False),
    "var_samp": partial(_spread, sample=True, root=False),
    "stddev_pop": partial(_spread, sample=False, root=True),
    "stddev_samp": partial(_spread, sample=True, root=True),
    "bool_and": all,
    "bool_or": any,
    "array_agg": lambda values: json.dumps(list(map(_element, values)), ensure_ascii=False, separators=(",", ":")),
}
"""The functions that values alone decide; of no values they are NULL."""
