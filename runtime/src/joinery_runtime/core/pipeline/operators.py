"""The operators of expressions over Arrow values: which types they accept, which type they return, and the kernel.

Each function takes arrays or scalars. The result's type depends on the arguments' types alone, so evaluating an
expression over no rows gives its type. An operator raises ArrowTypeError or ArrowNotImplementedError for a type that it
does not accept, and ArrowInvalid for such a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Value: TypeAlias = Any  # pa.Array or pa.Scalar: pyarrow ships no types

TIMESTAMP = pa.timestamp("ms", "UTC")
DURATION = pa.duration("ms")
# RFC 3339's years 0001 to 9999, in milliseconds since 1970. Every later reader can represent these times. Beyond them,
# one corrupt event time must not move the watermark past everything.
EVENT_TIME_MIN, EVENT_TIME_MAX = -62_135_596_800_000, 253_402_300_799_999
PRECISION = 38  # of a column's decimals; only intermediate values are wider
WIDEST = 76  # digits of Arrow's decimals
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Texts with more digits behind the point than Arrow's powers of ten for decimal128.
_MAY_BE_UNSAFE = r"[eE]-|\.[0-9]{39}"
SHOWN = 60  # characters of a text that a reason quotes
_DIGITS = {pa.int32(): 10, pa.int64(): 19}


def event_times(column: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return event times (int64[n], ms) from a column of int64 or timestamps, and which of them are usable (bool[n]):
    neither NULL nor outside the years that can be represented."""
    times = pc.fill_null(column.cast(pa.int64()), EVENT_TIME_MIN - 1).to_numpy(zero_copy_only=False)
    return times, np.asarray((times >= EVENT_TIME_MIN) & (times <= EVENT_TIME_MAX))


# --- types that meet --------------------------------------------------------------------------------------------------


def to_common_type(*values: Value) -> list[Value]:
    """Convert values to one type, for comparisons and for values that may replace each other. Integers with decimals
    become decimals (of up to 76 digits, exact), either with doubles become doubles. With a timestamp, a date becomes
    midnight UTC; with binary, a string becomes its UTF-8 bytes."""
    kind = reduce(_common_type, (value.type for value in values))
    return [convert(value, kind) for value in values]


def row_count(values: Sequence[Value]) -> int:
    """Return the length of the columns among these values, of which there is at least one."""
    return next(len(value) for value in values if not isinstance(value, pa.Scalar))


def to_array(value: Value, count: int) -> pa.Array:
    """Return a value as one array of so many rows."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, count)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def as_column(value: Value) -> Value:
    """Narrow a decimal that is too wide for a column to 38 digits. Raises ArrowInvalid for a value that has more."""
    kind = value.type
    if not pa.types.is_decimal(kind) or kind.precision <= PRECISION:
        return value
    if kind.scale > PRECISION:
        raise pa.ArrowTypeError(f"the result has {kind.scale} digits after the point, and {PRECISION} is the most")
    return value.cast(pa.decimal128(PRECISION, kind.scale))


def convert(value: Value, kind: pa.DataType) -> Value:
    """Convert a value to the type that `_common_type` found for it."""
    if value.type == kind:
        return value
    if pa.types.is_decimal(kind) and pa.types.is_integer(value.type):
        # Arrow casts an integer only to a decimal with room for all 19 digits.
        return value.cast(pa.decimal256(WIDEST, kind.scale)).cast(kind)
    return value.cast(kind, safe=not pa.types.is_floating(kind))  # a large integer becomes the nearest double


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if is_number(first) and is_number(second):
        return _common_number(first, second)
    if {first, second} == {pa.date32(), TIMESTAMP}:
        return TIMESTAMP
    if {first, second} == {pa.string(), pa.binary()}:
        return pa.binary()
    facts = f"{type_text(first)} and {type_text(second)} do not go together"
    if {first, second} <= {pa.int32(), pa.int64(), pa.date32(), TIMESTAMP}:
        facts += "; the time of a number of milliseconds is TIMESTAMP_MILLIS(number)"
    raise pa.ArrowTypeError(facts)


def _common_number(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(first) or pa.types.is_floating(second):
        return pa.float64()
    if pa.types.is_integer(first) and pa.types.is_integer(second):
        return pa.int64()
    (digits, scale), (other_digits, other_scale) = _shape(first), _shape(second)
    highest = max(scale, other_scale)
    precision = min(max(digits - scale, other_digits - other_scale) + highest, WIDEST)
    return _decimal(precision)(precision, highest)


def _shape(kind: pa.DataType) -> tuple[int, int]:
    """Precision and scale of an integer or decimal type."""
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_DIGITS[kind], 0)


def _decimal(precision: int) -> Callable[[int, int], pa.DataType]:
    """Arrow's decimal type (made from precision and scale) with room for this many digits."""
    return pa.decimal128 if precision <= PRECISION else pa.decimal256  # type: ignore[no-any-return]


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def type_text(kind: pa.DataType) -> str:
    """Return a type in a user's words."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    simple = {pa.bool_(): "boolean", pa.date32(): "date", TIMESTAMP: "timestamp", DURATION: "an interval"}
    return simple.get(kind, str(kind))


def boolean(value: Value) -> Value:
    return _expect_type(value, pa.bool_())


def text(value: Value) -> Value:
    return _expect_type(value, pa.string())


def _expect_type(value: Value, kind: pa.DataType) -> Value:
    if pa.types.is_null(value.type):
        return value.cast(kind)
    if value.type != kind:
        raise pa.ArrowTypeError(f"expected {type_text(kind)}, found {type_text(value.type)}")
    return value


def _double(value: Value) -> Value:
    if not (is_number(value.type) or pa.types.is_null(value.type)):
        raise pa.ArrowTypeError(f"expected a number, found {type_text(value.type)}")
    return value.cast(pa.float64(), safe=False)


# --- operators --------------------------------------------------------------------------------------------------------


def comparison(function: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    return lambda a, b: function(*to_common_type(a, b))


def is_same(a: Value, b: Value) -> Value:
    """Say whether both are equal or both are NULL: never NULL. Raises ArrowTypeError for types that do not compare."""
    a, b = to_common_type(a, b)
    if pa.types.is_null(a.type):
        return pc.is_null(a)
    both_null = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(both_null, pc.fill_null(pc.equal(a, b), False))


def add(a: Value, b: Value) -> Value:
    return _sum(pc.add_checked, a, b)


def subtract(a: Value, b: Value) -> Value:
    if _is_time(a.type) and _is_time(b.type):
        return pc.subtract_checked(a.cast(TIMESTAMP), b.cast(TIMESTAMP))
    if pa.types.is_duration(a.type) and _is_time(b.type):
        raise pa.ArrowTypeError("a time cannot be taken off an interval")
    return _sum(pc.subtract_checked, a, b)


def _sum(function: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    times = [value for value in (a, b) if _is_time(value.type)]
    if len(times) == 1:
        moved = function(*(v.cast(TIMESTAMP if _is_time(v.type) else _span(v.type)) for v in (a, b)))
        return _check_years(moved)
    if len(times) == 2:
        raise pa.ArrowTypeError("two times cannot be added")
    a, b = to_common_type(a, b)
    if pa.types.is_decimal(a.type):
        # A sum needs one more digit than its terms. The widest type has no room for it, but 75 digits are enough for
        # anything that fits a column.
        precision, scale = a.type.precision, a.type.scale
        kind = _decimal(precision + 1)(min(precision, WIDEST - 1), scale)
        return as_column(function(a.cast(kind), b.cast(kind)))
    return function(a, b)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _span(kind: pa.DataType) -> pa.DataType:
    if not (pa.types.is_duration(kind) or pa.types.is_null(kind)):
        raise pa.ArrowTypeError(f"an interval goes with a time, found {type_text(kind)}")
    return DURATION


def _check_years(times: Value) -> Value:
    span = pc.min_max(times.cast(pa.int64()))
    lowest, highest = span["min"].as_py(), span["max"].as_py()
    if lowest is not None and (lowest < EVENT_TIME_MIN or highest > EVENT_TIME_MAX):
        raise pa.ArrowInvalid("the time is outside the years 1 to 9999")
    return times


def multiply(a: Value, b: Value) -> Value:
    if not (is_number(a.type) and is_number(b.type)):
        return _scale_interval(a, b)
    kinds = (a.type, b.type)
    if any(map(pa.types.is_floating, kinds)) or not any(map(pa.types.is_decimal, kinds)):
        return pc.multiply_checked(*to_common_type(a, b))
    (digits, scale), (other_digits, other_scale) = map(_shape, kinds)
    precision = digits + other_digits + 1
    # Only the product of two 38-digit decimals is one digit too wide; anything that fits a column has far fewer.
    other_digits -= max(0, precision - WIDEST)
    kind = _decimal(precision)
    product = pc.multiply_checked(convert(a, kind(digits, scale)), convert(b, kind(other_digits, other_scale)))
    return as_column(product)


def _scale_interval(a: Value, b: Value) -> Value:
    """Multiply an interval by an integer. Rejects other types unless one is NULL."""
    kinds = {a.type, b.type}
    if DURATION in kinds and all(kind == DURATION or pa.types.is_integer(kind) for kind in kinds) and len(kinds) == 2:
        return pc.multiply_checked(*(v.cast(DURATION if v.type == DURATION else pa.int64()) for v in (a, b)))
    non_null = [kind for kind in kinds if not pa.types.is_null(kind)]
    if any(not is_number(kind) for kind in non_null):
        raise pa.ArrowTypeError(f"{type_text(a.type)} and {type_text(b.type)} cannot be multiplied")
    return multiply(*to_common_type(a, b)) if non_null else a


def divide(a: Value, b: Value) -> Value:
    return pc.divide(_double(a), _null_if_zero(_double(b)))


def remainder(a: Value, b: Value) -> Value:
    """Return the remainder, with the dividend's sign. For doubles it is C's fmod, which is exact."""
    if any(pa.types.is_floating(value.type) for value in (a, b)):
        a, b = _double(a), _null_if_zero(_double(b))
        dividend, divisor = (pa.array([v.as_py()], pa.float64()) if isinstance(v, pa.Scalar) else v for v in (a, b))
        with np.errstate(invalid="ignore"):
            remainders = np.fmod(dividend.to_numpy(zero_copy_only=False), divisor.to_numpy(zero_copy_only=False))
        valid = pc.and_(pc.is_valid(a), pc.is_valid(b))
        masked = pc.if_else(valid, pa.array(remainders), pa.scalar(None, pa.float64()))
        return masked[0] if isinstance(a, pa.Scalar) and isinstance(b, pa.Scalar) else masked
    if any(pa.types.is_decimal(value.type) for value in (a, b)):
        raise pa.ArrowTypeError("the remainder takes integers and doubles, not decimals; CAST them")
    a, b = to_common_type(*(v.cast(pa.int64()) if pa.types.is_null(v.type) else v for v in (a, b)))
    # The divisor's sign does not matter, and the lowest integer / -1 would overflow.
    divisor = _null_if_zero(pc.abs(b))
    return pc.subtract(a, pc.multiply(pc.divide(a, divisor), divisor))


def _null_if_zero(value: Value) -> Value:
    zero = pa.scalar(0).cast(value.type)
    return pc.if_else(pc.equal(value, zero), pa.scalar(None, value.type), value)


def negate(value: Value) -> Value:
    return value if pa.types.is_null(value.type) else pc.negate_checked(value)


def absolute(value: Value) -> Value:
    return value if pa.types.is_null(value.type) else pc.abs_checked(value)


def concat(a: Value, b: Value) -> Value:
    return pc.binary_join_element_wise(text(a), text(b), "")


# --- CAST -------------------------------------------------------------------------------------------------------------


def cast(value: Value, kind: pa.DataType) -> Value:
    """Cast a value. Raises ArrowInvalid for one that does not fit; a cast to double takes the nearest double."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(value.type):
        return convert(value, kind)
    if _is_time(kind) and not pa.types.is_null(value.type):
        return _cast_to_time(value, kind)
    if pa.types.is_decimal(kind) and pa.types.is_string(value.type):
        return _with_plain_decimals(value, kind).cast(kind)
    if not pa.types.is_floating(kind):
        return value.cast(kind)
    number = value.cast(kind, safe=not is_number(value.type))
    if pa.types.is_float64(value.type) and pc.any(pc.and_(pc.is_finite(value), pc.is_inf(number))).as_py():
        raise pa.ArrowInvalid(f"the number does not fit {kind}")
    return number


def plain_decimal(number: str, scale: int) -> str | None:
    """Write a decimal number without exponent and without zeros at its end. None if the text is no number, or has more
    digits behind the point than `scale`, or more digits than any decimal.

    Arrow looks up a power of ten by the digits behind the point, without a check: it ends the process at
    `1e-999999999`, and reads `1e-77` as 0."""
    if _NUMBER.fullmatch(number) is None:
        return None
    try:
        sign, digits, exponent = Decimal(number).as_tuple()
    except InvalidOperation:  # an exponent out of all bounds
        return None
    assert isinstance(exponent, int), "infinities and NaN do not match"
    significant = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(significant)
    if not significant:
        return "0"
    if not -scale <= exponent <= WIDEST - len(significant):
        return None
    return f"{Decimal((sign, tuple(map(int, significant)), exponent)):f}"


def _with_plain_decimals(texts: Value, kind: pa.DataType) -> Value:
    if isinstance(texts, pa.Scalar):
        return _with_plain_decimals(pa.array([texts.as_py()], pa.string()), kind)[0]
    unsafe = pc.fill_null(pc.match_substring_regex(texts, _MAY_BE_UNSAFE), False)
    if not pc.any(unsafe).as_py():
        return texts
    plain = []
    for number in texts.filter(unsafe).to_pylist():
        plain.append(plain_decimal(number, kind.scale))
        if plain[-1] is None:
            raise pa.ArrowInvalid(f"{number[:SHOWN]!r} is not a valid {type_text(kind)}")
    return pc.replace_with_mask(texts, unsafe, pa.array(plain, pa.string()))


def _cast_to_time(value: Value, kind: pa.DataType) -> Value:
    """Cast a timestamp to its day in UTC, a date to its midnight, or ISO text to a date."""
    if pa.types.is_string(value.type) and pa.types.is_date(kind):
        days = value.cast(kind)
        _check_years(days.cast(TIMESTAMP))
        return days
    if not _is_time(value.type):
        todo = "; write TO_TIMESTAMP(text, 'yyyy-MM-dd HH:mm:ss')" if pa.types.is_string(value.type) else ""
        raise pa.ArrowTypeError(f"cannot cast {type_text(value.type)} to {type_text(kind)}{todo}")
    return value.cast(kind, safe=False)


def find_unreadable(values: pa.StringArray, kind: pa.DataType) -> pa.BooleanArray:
    """Find texts that do not begin like a value of the kind, so that `cast` certainly fails on them; NULL is not one.
    This finds many at once. `cast` may still fail on some of the others."""
    if pa.types.is_integer(kind):
        pattern = "^-?([0-9]+|0[xX][0-9a-fA-F]+)$"
    elif pa.types.is_boolean(kind):
        pattern = "^[tTfF01]"
    else:
        pattern = "^[+-]?[0-9.iInN]"  # also inf and nan
    return pc.fill_null(pc.invert(pc.match_substring_regex(values, pattern)), False)
