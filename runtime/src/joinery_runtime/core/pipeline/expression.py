"""SQL expressions over Arrow columns: sqlglot's syntax tree, evaluated by pyarrow.compute, a whole batch at a time.

Semantics (fixed by tests/core/pipeline/test_expression.py):

* NULL follows SQL's three-valued logic; a predicate keeps a row only where it is TRUE.
* Numbers compare and combine by value; NaN compares as in IEEE 754 (equal to nothing, also not to itself).
* `/` divides as double; division and remainder by zero are NULL. The remainder takes the dividend's sign, and no
  decimals.
* Integer and decimal arithmetic that overflows is an error, never a wrapped value.
* Strings compare by code points. `timestamp + INTERVAL` and `timestamp - INTERVAL` are exact; months are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.errors import ExpressionError

Value: TypeAlias = Any  # pa.Array or pa.Scalar: pyarrow ships no types


@dataclass(frozen=True, slots=True, order=True)
class ColumnRef:
    """A column of an input, written `orders.amount` in expressions."""

    input: str
    column: str

    def __str__(self) -> str:
        return f"{self.input}.{self.column}"


Resolve = Callable[[ColumnRef], Value]


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression. `columns` are the input columns that it reads."""

    text: str
    node: exp.Expr
    columns: frozenset[ColumnRef]

    def evaluate(self, resolve: Resolve, rows: int) -> pa.Array:
        """The value for each of `rows` rows; `resolve` gives a column's array. Raises ExpressionError."""
        try:
            value = _evaluate(self.node, resolve)
        except pa.ArrowException as error:
            raise ExpressionError(f"cannot evaluate {self.text!r}", facts=_first_line(error)) from error
        if isinstance(value, pa.Scalar):
            return pa.repeat(value, rows)
        return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value

    def mask(self, resolve: Resolve, rows: int) -> pa.Array:
        """Boolean per row, TRUE where the predicate is TRUE (not NULL)."""
        return pc.fill_null(_boolean(self.evaluate(resolve, rows)), False)


def parse_expression(text: str, of: str = "") -> Expression:
    """A column without an input's name is one of `of`. Raises ExpressionError with the place in the text for what does
    not parse or is not supported."""
    try:
        node = sqlglot.parse_one(text)
    except SqlglotError as error:
        raise ExpressionError(f"{text!r} is not an SQL expression", facts=_first_line(error)) from error
    for part in node.walk():
        _check(part, text)
    for column in node.find_all(exp.Column):
        if of and not column.table:
            column.set("table", exp.to_identifier(of))
    return _expression(node, text)


def check_predicate(expression: Expression, schemas: dict[str, pa.Schema]) -> None:
    """Raises ExpressionError unless the expression is boolean over these input schemas (unknown columns, types)."""
    kind = type_of(expression, schemas)
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise ExpressionError(f"{expression.text!r} is not a condition", facts=f"it gives {kind}, not boolean")


def type_of(expression: Expression, schemas: dict[str, pa.Schema]) -> pa.DataType:
    """The type of its values over these input schemas. Raises ExpressionError for unknown columns and wrong types."""
    for ref in sorted(expression.columns):
        _check_column(ref, schemas, expression.text)
    return expression.evaluate(lambda ref: pa.array([], schemas[ref.input].field(ref.column).type), 0).type


def conjuncts(expression: Expression) -> list[Expression]:
    """The ANDed parts of a predicate."""
    return [_expression(part, part.sql()) for part in _flatten_and(expression.node)]


def conjunction(parts: list[Expression]) -> Expression | None:
    """All parts ANDed, None for no part."""
    if not parts:
        return None
    node = exp.and_(*(part.node for part in parts))
    return _expression(node, node.sql())


def _expression(node: exp.Expr, text: str) -> Expression:
    refs = frozenset(ColumnRef(column.table, column.name) for column in node.find_all(exp.Column))
    return Expression(text, node, refs)


def _flatten_and(node: exp.Expr) -> Iterator[exp.Expr]:
    node = node.unnest()
    if isinstance(node, exp.And):
        yield from _flatten_and(node.this)
        yield from _flatten_and(node.expression)
    else:
        yield node


def _check_column(ref: ColumnRef, schemas: dict[str, pa.Schema], text: str) -> None:
    if ref.input not in schemas:
        known = ", ".join(sorted(schemas))
        raise ExpressionError(f"{text!r} uses {str(ref).lstrip('.')!r}", facts=f"the inputs are {known}",
                              todo="Write a column as <input>.<column>")  # fmt: skip
    if ref.column not in schemas[ref.input].names:
        known = ", ".join(schemas[ref.input].names)
        raise ExpressionError(f"{text!r} uses unknown column {str(ref)!r}", facts=f"{ref.input} has {known}")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


# --- evaluation -------------------------------------------------------------------------------------------------------


def _evaluate(node: exp.Expr, resolve: Resolve) -> Value:
    if isinstance(node, exp.Column):
        return resolve(ColumnRef(node.table, node.name))
    if (binary := _BINARY.get(type(node))) is not None:
        return binary(_evaluate(node.this, resolve), _evaluate(node.expression, resolve))
    return _SPECIAL[type(node)](node, lambda part: _evaluate(part, resolve))


def _check(node: exp.Expr, text: str) -> None:
    kind = type(node)
    known = kind is exp.Column or kind in _BINARY or kind in _SPECIAL
    if not known and _PARTS.get(kind) is not type(node.parent):
        raise _unsupported(node, text, kind.__name__)
    # An argument that nobody reads would change the meaning silently (BETWEEN SYMMETRIC, TRIM's characters).
    read = _ARGUMENTS.get(kind, _USUAL_ARGUMENTS)
    unread = [name for name, value in node.args.items() if value not in (None, False, []) and name not in read]
    if unread:
        raise _unsupported(node, text, f"{kind.__name__} with {', '.join(unread)}")


def _unsupported(node: exp.Expr, text: str, found: str) -> ExpressionError:
    return ExpressionError(f"{text!r}: {node.sql()!r} is not supported", facts=f"found {found}",
                           todo="See docs/expressions.md for what is")  # fmt: skip


# Nodes that have no value of their own and where they may stand.
_PARTS: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.Identifier: exp.Column,
    exp.If: exp.Case,
    exp.DataType: exp.Cast,
    exp.DataTypeParam: exp.DataType,
    exp.Var: exp.Interval,
}
_USUAL_ARGUMENTS = frozenset({"this", "expression", "safe", "typed"})
_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.DataType: frozenset({"this", "expressions"}),
    exp.Interval: frozenset({"this", "unit"}),
    exp.Substring: frozenset({"this", "start", "length"}),
    exp.Trim: frozenset({"this"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.ILike: frozenset({"this", "expression", "negate"}),
}


def _double(value: Value) -> Value:
    kind = value.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or kind == pa.null()):
        raise pa.ArrowTypeError(f"expected a number, found {kind}")
    return value.cast(pa.float64())


def _modulo(left: Value, right: Value) -> Value:
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        left, divisor = _double(left), _null_if_zero(_double(right))
        return pc.subtract(left, pc.multiply(pc.trunc(pc.divide(left, divisor)), divisor))
    if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
        raise pa.ArrowTypeError("the remainder takes integers and doubles, not decimals; CAST them")
    left, right = (pc.cast(value, pa.int64()) if value.type == pa.null() else value for value in (left, right))
    # The divisor's sign does not count, and the lowest integer / -1 would overflow.
    divisor = _null_if_zero(pc.abs(right))
    return pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))


def _null_if_zero(value: Value) -> Value:
    zero = pa.scalar(0).cast(value.type)
    return pc.if_else(pc.equal(value, zero), pa.scalar(None, value.type), value)


def _boolean(value: Value) -> Value:
    return value.cast(pa.bool_()) if pa.types.is_null(value.type) else value


_BINARY: dict[type[exp.Expr], Callable[[Value, Value], Value]] = {
    exp.And: lambda left, right: pc.and_kleene(_boolean(left), _boolean(right)),
    exp.Or: lambda left, right: pc.or_kleene(_boolean(left), _boolean(right)),
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
    exp.Div: lambda left, right: pc.divide(_double(left), _null_if_zero(_double(right))),
    exp.Mod: _modulo,
    exp.DPipe: lambda left, right: pc.binary_join_element_wise(left, right, ""),
}

Recurse = Callable[[exp.Expr], Value]


def _literal(node: exp.Expr, _: Recurse) -> Value:
    text = str(node.this)
    if node.args["is_string"]:
        return pa.scalar(text)
    if text.isdigit() and int(text) < 2**63:
        return pa.scalar(int(text), pa.int64())
    # 1.10 is exact in SQL, 1e3 is not.
    return pa.scalar(float(text), pa.float64()) if "e" in text.lower() else pa.scalar(Decimal(text))


def _is(node: exp.Expr, recurse: Recurse) -> Value:
    value, wanted = recurse(node.this), node.expression
    if isinstance(wanted, exp.Null):
        return pc.is_null(value)
    return pc.fill_null(pc.equal(value, recurse(wanted)), False)


def _in(node: exp.Expr, recurse: Recurse) -> Value:
    value = recurse(node.this)
    answer = pa.scalar(False)
    for option in node.expressions:
        answer = pc.or_kleene(answer, pc.equal(value, recurse(option)))
    return answer


def _between(node: exp.Expr, recurse: Recurse) -> Value:
    value = recurse(node.this)
    low, high = recurse(node.args["low"]), recurse(node.args["high"])
    return pc.and_kleene(pc.greater_equal(value, low), pc.less_equal(value, high))


def _like(node: exp.Expr, recurse: Recurse) -> Value:
    pattern = node.expression
    if not (isinstance(pattern, exp.Literal) and pattern.is_string):
        raise ExpressionError(f"{node.sql()!r}", facts="the pattern of LIKE must be a string literal")
    matched = pc.match_like(recurse(node.this), pattern.name, ignore_case=isinstance(node, exp.ILike))
    return pc.invert(matched) if node.args.get("negate") else matched


def _case(node: exp.Expr, recurse: Recurse) -> Value:
    default = node.args.get("default")
    value = recurse(default) if default is not None else pa.scalar(None)
    for branch in reversed(node.args["ifs"]):
        condition = recurse(branch.this)
        if node.this is not None:
            condition = pc.equal(recurse(node.this), condition)
        value = pc.if_else(pc.fill_null(_boolean(condition), False), recurse(branch.args["true"]), value)
    return value


def _coalesce(node: exp.Expr, recurse: Recurse) -> Value:
    values = [recurse(part) for part in (node.this, *node.expressions)]
    typed = [value for value in values if not pa.types.is_null(value.type)]
    return pc.coalesce(*typed) if typed else values[0]


def _cast(node: exp.Expr, recurse: Recurse) -> Value:
    target = node.args["to"]
    value = recurse(node.this)
    if target.this in _DATETIME_TYPES and isinstance(node.this, exp.Literal):
        return _time_literal(node.this.name, target)
    if target.this == exp.DataType.Type.DECIMAL:
        return _to_decimal(value, *([int(part.name) for part in target.expressions] or [38]))
    if target.this not in _CASTS or target.expressions:
        raise ExpressionError(f"{node.sql()!r}", facts=f"cannot cast to {target.sql()}")
    return value.cast(_CASTS[target.this])


def _to_decimal(value: Value, precision: int, scale: int = 0) -> Value:
    if pa.types.is_integer(value.type):
        # Arrow refuses a target that could not hold every integer; the detour checks the values instead.
        value = value.cast(pa.decimal256(76, scale))
    return value.cast(pa.decimal128(precision, scale))


def _time_literal(text: str, target: exp.DataType) -> Value:
    try:
        if target.this == exp.DataType.Type.DATE:
            return pa.scalar(date.fromisoformat(text), pa.date32())
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ExpressionError(f"{text!r} is not a {target.sql()}", facts="expected ISO 8601") from error
    return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=UTC), pa.timestamp("ms", "UTC"))


_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_UNIT_MS = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}


def _interval(node: exp.Expr, _: Recurse) -> Value:
    unit = str(node.args["unit"]).upper().removesuffix("S") if node.args.get("unit") else ""
    if unit not in _UNIT_MS:
        raise ExpressionError(f"{node.sql()!r}", facts=f"the unit must be one of {', '.join(_UNIT_MS)}")
    if not isinstance(node.this, exp.Literal) or not _NUMBER.fullmatch(node.this.name):
        raise ExpressionError(f"{node.sql()!r}", facts="the length of an interval must be a number")
    milliseconds = Decimal(node.this.name) * _UNIT_MS[unit]
    return pa.scalar(int(milliseconds), pa.duration("ms"))


def _substring(node: exp.Expr, recurse: Recurse) -> Value:
    first = _whole(node, "start") - 1
    if first < 0:
        raise ExpressionError(f"{node.sql()!r}", facts="SUBSTRING counts from 1")
    stop = first + _whole(node, "length") if node.args.get("length") else None
    return pc.utf8_slice_codeunits(recurse(node.this), first, stop)


def _whole(node: exp.Expr, argument: str) -> int:
    value = node.args.get(argument)
    if not isinstance(value, exp.Literal) or not value.name.isdigit():
        raise ExpressionError(f"{node.sql()!r}", facts=f"its {argument} must be a whole number written out")
    return int(value.name)


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
}


def _unary(function: Callable[[Value], Value]) -> Callable[[exp.Expr, Recurse], Value]:
    return lambda node, recurse: function(recurse(node.this))


_SPECIAL: dict[type[exp.Expr], Callable[[Any, Recurse], Value]] = {
    exp.Literal: _literal,
    exp.Boolean: lambda node, _: pa.scalar(bool(node.this)),
    exp.Null: lambda _node, _: pa.scalar(None),
    exp.Paren: _unary(lambda value: value),
    exp.Not: _unary(lambda value: pc.invert(_boolean(value))),
    exp.Neg: _unary(pc.negate_checked),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.Cast: _cast,
    exp.Interval: _interval,
    exp.Substring: _substring,
    exp.Lower: _unary(pc.utf8_lower),
    exp.Upper: _unary(pc.utf8_upper),
    exp.Length: _unary(pc.utf8_length),
    exp.Trim: _unary(pc.utf8_trim_whitespace),
    exp.Abs: _unary(pc.abs_checked),
}
