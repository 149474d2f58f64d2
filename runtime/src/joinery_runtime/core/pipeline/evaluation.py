"""Evaluates an expression's syntax tree over Arrow columns, and finds the rows on which it fails.

The first pass computes a whole batch at once, every part for all rows. If the value of some row cannot be computed (an
overflow, a text that is not a number), a second, careful pass follows. In it, `AND`, `OR`, `CASE` and `COALESCE`
compute what they guard only for the rows that need it, and an operator searches for the rows on which it fails. Those
rows get a reason; all others get their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from joinery_runtime.core.pipeline import operators
from joinery_runtime.core.pipeline.functions import called
from joinery_runtime.core.pipeline.functions.base import BatchFailed, RowsFailed
from joinery_runtime.core.pipeline.functions.patterns import match_like
from joinery_runtime.core.pipeline.operators import (
    DURATION,
    TIMESTAMP,
    Value,
    as_column,
    boolean,
    row_count,
    text,
    to_common_type,
)
from joinery_runtime.errors import ExpressionError
from joinery_runtime.job.model.function_calls import call_of

Resolve = Callable[[str, str], Value]  # from an input and its column

_MAY_FAIL = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Cast, exp.Case, exp.Coalesce)
_PIECES = 16  # into how many pieces a piece is cut on which an operator fails


@dataclass(frozen=True, slots=True)
class EvaluatedRows:
    """`count` rows whose columns `resolve` gives. `failed` collects the reasons why rows have no value, by their
    `positions` (int64[count]) in the batch. `positions` None: an operator that fails on a row raises ArrowInvalid."""

    resolve: Resolve
    count: int
    positions: np.ndarray | None = None
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def careful(self) -> bool:
        return self.positions is not None

    def with_care(self) -> EvaluatedRows:
        return EvaluatedRows(self.resolve, self.count, np.arange(self.count), self.failed)

    def where(self, chosen: pa.BooleanArray) -> EvaluatedRows:
        assert self.positions is not None, "rows are only picked with care"
        picked = self.positions[chosen.to_numpy(zero_copy_only=False)]

        def resolve(name: str, column: str) -> Value:
            return self.resolve(name, column).filter(chosen)

        return EvaluatedRows(resolve, len(picked), picked, self.failed)

    def fail(self, row: int, reason: str) -> None:
        assert self.positions is not None, "reasons are only collected with care"
        self.failed.setdefault(int(self.positions[row]), reason)


def evaluate(node: exp.Expr, resolve: Resolve, count: int) -> tuple[Value, dict[int, str]]:
    """Return an array of `count` values, or a scalar for all rows, and the reasons why rows have no value (the array
    is undefined there). Raises ExpressionError, and ArrowException for types that do not fit, whatever the rows."""
    rows = EvaluatedRows(resolve, count)
    try:
        return _value(node, rows), {}
    except pa.ArrowInvalid:
        if not count:
            raise
        return _value(node, rows.with_care()), rows.failed


def is_known(node: exp.Expr) -> bool:
    """Whether the node has a value."""
    kind = type(node)
    return kind is exp.Column or kind in _BINARY or kind in _UNARY or kind in _SPECIAL or call_of(node) is not None


def may_fail(node: exp.Expr) -> bool:
    """Whether the node may fail on some row."""
    for part in node.walk():
        if isinstance(part, _MAY_FAIL):
            if not isinstance(part, exp.TryCast):
                return True
        elif call_of(part) is not None and called(part)[0].fails:
            return True
    return False


def unguarded_parts(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a node that are computed for every row for which the node is."""
    if isinstance(node, exp.Case):
        first = node.args["ifs"][0].this
        return [first] if node.this is None else [node.this, first]
    if isinstance(node, exp.And | exp.Or | exp.Coalesce):
        return [node.this]
    return [part for part in node.iter_expressions() if is_known(part)]


def _value(node: exp.Expr, rows: EvaluatedRows) -> Value:
    kind = type(node)
    if isinstance(node, exp.Column):
        return rows.resolve(node.table, node.name)
    if (binary := _BINARY.get(kind)) is not None:
        return _apply(rows, binary, _value(node.this, rows), _value(node.expression, rows))
    if (unary := _UNARY.get(kind)) is not None:
        return _apply(rows, unary, _value(node.this, rows))
    if (special := _SPECIAL.get(kind)) is not None:
        return special(node, rows)
    function, arguments = called(node)
    argument_values = [_value(argument, rows) for argument in arguments]
    try:
        compute, values = function.bind(argument_values)
        return _apply(rows, compute, *values)
    except pa.ArrowTypeError as error:
        raise ExpressionError(f"{node.sql()!r}", facts=f"{error}; the function is {function.signature}") from error


# --- rows that fail, and rows that are not needed ---------------------------------------------------------------------


def _apply(rows: EvaluatedRows, function: Callable[..., Value], *values: Value, null: bool = False) -> Value:
    """Apply the function. In the careful pass, a row on which it fails gets NULL and, unless `null`, a reason."""
    if not rows.careful and not null:
        return function(*values)
    if all(isinstance(value, pa.Scalar) for value in values):
        return _constant(function, values, null=null)
    try:
        return function(*values)
    except RowsFailed as error:
        for row in () if null else np.flatnonzero(error.failed.to_numpy(zero_copy_only=False)).tolist():
            rows.fail(row, first_line(error))
        arguments = [
            value if isinstance(value, pa.Scalar) else pc.if_else(error.failed, pa.scalar(None, value.type), value)
            for value in values
        ]
        return _apply(rows, function, *arguments, null=null)
    except BatchFailed as error:
        count = row_count(values)
        for row in () if null else range(count):
            rows.fail(row, first_line(error))
        return pa.nulls(count, error.kind)
    except pa.ArrowInvalid:
        count = row_count(values)
        return pa.concat_arrays(_pieces(rows, function, values, 0, count, null=null))


def _constant(function: Callable[..., Value], values: tuple[Value, ...], *, null: bool) -> Value:
    try:
        return function(*values)
    except pa.ArrowInvalid:
        if not null:
            raise
    empty = function(*(pa.array([], value.type) for value in values))
    return pa.scalar(None, empty.type)


def _pieces(
    rows: EvaluatedRows, function: Callable[..., Value], values: tuple[Value, ...], start: int, stop: int, *, null: bool
) -> list[pa.Array]:
    def piece(first: int, last: int) -> list[Value]:
        return [value if isinstance(value, pa.Scalar) else value.slice(first, last - first) for value in values]

    try:
        return [function(*piece(start, stop))]
    except pa.ArrowInvalid as error:
        if stop - start == 1:
            if not null:
                rows.fail(start, first_line(error))
            return [pa.nulls(1, function(*piece(0, 0)).type)]
    step = -(-(stop - start) // _PIECES)
    edges = range(start, stop, step)
    return [
        part for first in edges for part in _pieces(rows, function, values, first, min(first + step, stop), null=null)
    ]


def _where(needed: Value, node: exp.Expr, rows: EvaluatedRows) -> Value:
    """Return the node's values for the rows where `needed` (boolean, never NULL) is true; undefined for the others."""
    if not rows.careful:
        return _value(node, rows)
    chosen = pa.repeat(needed, rows.count) if isinstance(needed, pa.Scalar) else needed
    value = _value(node, rows.where(chosen))
    if isinstance(value, pa.Scalar):
        return value
    is_chosen = chosen.to_numpy(zero_copy_only=False)
    return value.take(pa.array(np.cumsum(is_chosen) - 1, mask=~is_chosen))


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _and(node: exp.Expr, rows: EvaluatedRows) -> Value:
    first = boolean(_value(node.this, rows))
    return pc.and_kleene(first, boolean(_where(pc.fill_null(first, True), node.expression, rows)))


def _or(node: exp.Expr, rows: EvaluatedRows) -> Value:
    first = boolean(_value(node.this, rows))
    return pc.or_kleene(first, boolean(_where(pc.invert(pc.fill_null(first, False)), node.expression, rows)))


def _case(node: exp.Expr, rows: EvaluatedRows) -> Value:
    operand = _value(node.this, rows) if node.this is not None else None
    rest: Value = pa.scalar(True)
    conditions: list[Value] = []
    values: list[Value] = []
    for branch in node.args["ifs"]:
        condition = _where(rest, branch.this, rows)
        if operand is not None:
            condition = pc.equal(*to_common_type(operand, condition))
        conditions.append(pc.and_(rest, pc.fill_null(boolean(condition), False)))
        values.append(_where(conditions[-1], branch.args["true"], rows))
        rest = pc.and_not(rest, conditions[-1])
    default = node.args.get("default")
    values.append(_where(rest, default, rows) if default is not None else pa.scalar(None))
    *chosen, column = [_apply(rows, as_column, value) for value in to_common_type(*values)]
    for condition, value in zip(reversed(conditions), reversed(chosen), strict=True):
        column = pc.if_else(condition, value, column)
    return column


def _coalesce(node: exp.Expr, rows: EvaluatedRows) -> Value:
    values = [_value(node.this, rows)]
    missing = pc.is_null(values[0])
    for part in node.expressions:
        values.append(_where(missing, part, rows))
        missing = pc.and_(missing, pc.is_null(values[-1]))
    values = [_apply(rows, as_column, value) for value in to_common_type(*values)]
    return pc.coalesce(*values)


# --- the other nodes --------------------------------------------------------------------------------------------------


def _literal(node: exp.Expr, _: EvaluatedRows) -> Value:
    written = str(node.this)
    if node.args["is_string"]:
        return pa.scalar(written)
    if written.isdigit() and int(written) < 2**63:
        return pa.scalar(int(written), pa.int64())
    # In SQL, 1.10 is an exact number and 1e3 is not.
    return pa.scalar(float(written), pa.float64()) if "e" in written.lower() else pa.scalar(Decimal(written))


def _is(node: exp.Expr, rows: EvaluatedRows) -> Value:
    value, expected = _value(node.this, rows), node.expression
    if isinstance(expected, exp.Null):
        return pc.is_null(value)
    return pc.fill_null(pc.equal(boolean(value), _value(expected, rows)), False)


def _in(node: exp.Expr, rows: EvaluatedRows) -> Value:
    value = _value(node.this, rows)
    answer = pa.scalar(False)
    for option in node.expressions:
        answer = pc.or_kleene(answer, pc.equal(*to_common_type(value, _value(option, rows))))
    return answer


def _between(node: exp.Expr, rows: EvaluatedRows) -> Value:
    value = _value(node.this, rows)
    low, high = _value(node.args["low"], rows), _value(node.args["high"], rows)
    return pc.and_kleene(pc.greater_equal(*to_common_type(value, low)), pc.less_equal(*to_common_type(value, high)))


def _like(node: exp.Expr, rows: EvaluatedRows, escape: str = "\\") -> Value:
    value, pattern = _value(node.this, rows), _value(node.expression, rows)
    searched = value if pa.types.is_binary(value.type) else text(value)
    match = partial(match_like, escape=escape, any_case=isinstance(node, exp.ILike))
    matched = _apply(rows, match, searched, text(pattern))
    return pc.invert(matched) if node.args.get("negate") else matched


def _like_with_escape(node: exp.Expr, rows: EvaluatedRows) -> Value:
    escape = node.expression
    is_character = isinstance(escape, exp.Literal) and escape.is_string and len(escape.name) <= 1
    if not is_character or not isinstance(node.this, exp.Like | exp.ILike):
        raise ExpressionError(
            f"{node.sql()!r}",
            facts="ESCAPE names one character behind a LIKE, or none as ''",
            todo="Write LIKE '50!%' ESCAPE '!'",
        )
    return _like(node.this, rows, escape.name)


def _cast(node: exp.Expr, rows: EvaluatedRows) -> Value:
    target = node.args["to"]
    if target.this in _DATETIME_TYPES and isinstance(node.this, exp.Literal):
        return _time_literal(node.this.name, target)
    kind = _cast_type(node, target)
    value, null = _value(node.this, rows), isinstance(node, exp.TryCast)
    try:
        return operators.cast(value, kind)
    except pa.ArrowInvalid:
        if not (rows.careful or null):
            raise
    if isinstance(value, pa.Array) and pa.types.is_string(value.type) and not pa.types.is_binary(kind):
        # Texts that are certainly not a value of the kind become NULL at once: there may be many.
        wrong = operators.find_unreadable(value, kind)
        for row in () if null else np.flatnonzero(wrong.to_numpy(zero_copy_only=False)).tolist():
            rows.fail(row, f"{value[row].as_py()[: operators.SHOWN]!r} is not a valid {operators.type_text(kind)}")
        value = pc.if_else(wrong, pa.scalar(None, pa.string()), value)
    return _apply(rows, lambda value: operators.cast(value, kind), value, null=null)


def _cast_type(node: exp.Expr, target: exp.DataType) -> pa.DataType:
    if target.this == exp.DataType.Type.DECIMAL:
        precision, scale = [*(int(part.name) for part in target.expressions), 0, 0][:2]
        if not target.expressions:
            precision = operators.PRECISION
        if 1 <= precision <= operators.PRECISION and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
        raise ExpressionError(f"{node.sql()!r}", facts="a decimal(p,s) has 1 <= p <= 38 and 0 <= s <= p")
    if target.this not in _CASTS or target.expressions:
        raise ExpressionError(f"{node.sql()!r}", facts=f"cannot cast to {target.sql()}")
    return _CASTS[target.this]


def _time_literal(written: str, target: exp.DataType) -> Value:
    try:
        if target.this == exp.DataType.Type.DATE:
            return pa.scalar(date.fromisoformat(written), pa.date32())
        moment = datetime.fromisoformat(written)
    except ValueError as error:
        raise ExpressionError(f"{written!r} is not a {target.sql()}", facts="expected ISO 8601") from error
    return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=UTC), TIMESTAMP)


_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_UNIT_MS = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}


def _interval(node: exp.Expr, _: EvaluatedRows) -> Value:
    unit = str(node.args["unit"]).upper().removesuffix("S") if node.args.get("unit") else ""
    if unit not in _UNIT_MS:
        raise ExpressionError(f"{node.sql()!r}", facts=f"the unit must be one of {', '.join(_UNIT_MS)}")
    if not isinstance(node.this, exp.Literal) or not _NUMBER.fullmatch(node.this.name):
        raise ExpressionError(f"{node.sql()!r}", facts="the length of an interval must be a number")
    milliseconds = Decimal(node.this.name) * _UNIT_MS[unit]
    if abs(milliseconds) > operators.EVENT_TIME_MAX - operators.EVENT_TIME_MIN:
        raise ExpressionError(f"{node.sql()!r}", facts="an interval is shorter than 10,000 years")
    if milliseconds != int(milliseconds):
        raise ExpressionError(f"{node.sql()!r}", facts="an interval is whole milliseconds, as times are")
    return pa.scalar(int(milliseconds), DURATION)


_DATETIME_TYPES = {
    exp.DataType.Type.DATE,
    exp.DataType.Type.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ,
    exp.DataType.Type.TIMESTAMPNTZ,
}
_CASTS = {
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.FLOAT: pa.float32(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.VARCHAR: pa.string(),
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.DATE: pa.date32(),
    **dict.fromkeys(_DATETIME_TYPES - {exp.DataType.Type.DATE}, TIMESTAMP),
}

_BINARY: dict[type[exp.Expr], Callable[[Value, Value], Value]] = {
    exp.EQ: operators.comparison(pc.equal),
    exp.NEQ: operators.comparison(pc.not_equal),
    exp.NullSafeEQ: operators.is_same,
    exp.NullSafeNEQ: lambda a, b: pc.invert(operators.is_same(a, b)),
    exp.LT: operators.comparison(pc.less),
    exp.LTE: operators.comparison(pc.less_equal),
    exp.GT: operators.comparison(pc.greater),
    exp.GTE: operators.comparison(pc.greater_equal),
    exp.Add: operators.add,
    exp.Sub: operators.subtract,
    exp.Mul: operators.multiply,
    exp.Div: operators.divide,
    exp.Mod: operators.remainder,
    exp.DPipe: operators.concat,
}
_UNARY: dict[type[exp.Expr], Callable[[Value], Value]] = {
    exp.Paren: lambda value: value,
    exp.Not: lambda value: pc.invert(boolean(value)),
    exp.Neg: operators.negate,
}
_SPECIAL: dict[type[exp.Expr], Callable[[Any, EvaluatedRows], Value]] = {
    exp.Literal: _literal,
    exp.Boolean: lambda node, _: pa.scalar(bool(node.this)),
    exp.Null: lambda _node, _: pa.scalar(None),
    exp.And: _and,
    exp.Or: _or,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _like_with_escape,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Interval: _interval,
}
