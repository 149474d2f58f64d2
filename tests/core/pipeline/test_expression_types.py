"""Which types meet in expressions, by value and exactly, against Python's own numbers; what a result's type is."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.core.pipeline.expression import Evaluated, column_type, parse_expression
from joinery_runtime.errors import ExpressionError

KINDS = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "d5_2": pa.decimal128(5, 2),
    "d38_0": pa.decimal128(38, 0),
    "d38_20": pa.decimal128(38, 20),
    "d38_38": pa.decimal128(38, 38),
}
SCHEMA = pa.schema(
    [
        *KINDS.items(),
        ("float", pa.float32()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("b", pa.bool_()),
        ("ts", pa.timestamp("ms", "UTC")),
        ("day", pa.date32()),
    ]
)


def result_type(text: str) -> pa.DataType:
    return column_type(parse_expression(text), {"o": SCHEMA})


# --- the type of a column ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("o.ts - TIMESTAMP '2024-01-01'", pa.int64()),
        ("o.ts - o.day", pa.int64()),
        ("o.day - DATE '2024-01-01'", pa.int64()),
        ("INTERVAL '1' HOUR", pa.int64()),
        ("ABS(o.ts - o.day) * 2", pa.int64()),
        ("COALESCE(o.ts - o.day, INTERVAL '1' HOUR)", pa.int64()),
        ("o.day + INTERVAL '1' HOUR", pa.timestamp("ms", "UTC")),
        ("INTERVAL '1' HOUR + o.day", pa.timestamp("ms", "UTC")),
        ("o.ts - NULL", pa.timestamp("ms", "UTC")),
        ("COALESCE(o.ts, o.day)", pa.timestamp("ms", "UTC")),
        ("NULL", pa.string()),
        ("o.int32 + o.int32", pa.int32()),
        ("o.int32 + 1", pa.int64()),
        ("o.int64 / 2", pa.float64()),
        ("o.float * o.float", pa.float32()),
        ("o.float + o.int64", pa.float64()),
        ("o.d5_2 + o.int32", pa.decimal128(13, 2)),
        ("o.d38_20 + o.int64", pa.decimal128(38, 20)),
        ("o.d38_20 * 2", pa.decimal128(38, 20)),
        ("o.d38_20 * o.d5_2", pa.decimal128(38, 22)),
        ("o.d5_2 * o.d5_2", pa.decimal128(11, 4)),
        ("COALESCE(o.d38_20, 0)", pa.decimal128(38, 20)),
        ("COALESCE(o.d38_20, o.d38_0)", pa.decimal128(38, 20)),
        ("CASE WHEN o.b THEN o.d38_0 ELSE o.d5_2 END", pa.decimal128(38, 2)),
        ("CASE WHEN o.b THEN o.d5_2 ELSE o.double END", pa.float64()),
        ("LENGTH(o.s)", pa.int32()),
        ("COALESCE(o.s, o.raw)", pa.binary()),
        ("o.raw LIKE 'a%' OR o.raw = 'a'", pa.bool_()),
    ],
)
def test_what_a_column_of_an_expression_holds(text: str, expected: pa.DataType) -> None:
    assert result_type(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("o.d38_20 * o.d38_20", "the result has 40 digits after the point, and 38 is the most"),
        ("12345678901234567890123456789012345678901", "gives decimal(41,0): no column can hold that. Add a CAST"),
        ("CAST(o.s AS DECIMAL(39, 2))", "1 <= p <= 38"),
        ("CAST(o.s AS DECIMAL(5, 6))", "0 <= s <= p"),
        ("o.ts + o.ts", "two times cannot be added"),
        ("o.ts + 1", "an interval goes with a time, found int64"),
        ("INTERVAL '1' HOUR - o.ts", "a time cannot be taken off an interval"),
        ("o.ts - o.ts > 1000", "an interval and int64 do not go together"),
        ("COALESCE(o.s, 1)", "string and int64 do not go together"),
        ("CASE WHEN o.b THEN o.ts ELSE 0 END", "timestamp and int64 do not go together"),
        ("o.s * 2", "string and int64 cannot be multiplied"),
        ("INTERVAL '999999999999999' DAY", "shorter than 10,000 years"),
        ("o.ts + INTERVAL '0.5' MILLISECOND", "INTERVAL '0.5' MILLISECOND\": an interval is whole milliseconds"),
        ("o.ts - INTERVAL '1.0005' SECOND", "an interval is whole milliseconds, as times are"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_before_any_row_is_read(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        result_type(text)
    assert reason in str(caught.value)


# --- numbers, by value ------------------------------------------------------------------------------------------------

EXACT = Context(prec=200)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1) | st.integers(-1000, 1000)
    return unscaled.map(lambda number: EXACT.scaleb(Decimal(number), -scale))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int32": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    "double": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3).map(float),
    "d5_2": decimals(5, 2),
    "d38_0": decimals(38, 0),
    "d38_20": decimals(38, 20),
    "d38_38": decimals(38, 38),
}
operands = st.sampled_from(list(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind]))


def evaluated(text: str, left: tuple[str, Any], right: tuple[str, Any]) -> Evaluated:
    columns = {"o": pa.array([left[1]], KINDS[left[0]]), "p": pa.array([right[1]], KINDS[right[0]])}
    return parse_expression(text).evaluate(lambda ref: columns[ref.input], 1)


def as_python(left: tuple[str, Any], right: tuple[str, Any]) -> tuple[Any, Any]:
    """Both as decimals, exactly, or both as doubles where one is."""
    if "double" in (left[0], right[0]):
        return float(left[1]), float(right[1])
    return Decimal(left[1]), Decimal(right[1])


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip


@settings(max_examples=examples(600), deadline=None)
@given(operands, operands, st.sampled_from(list(COMPARISONS)))
@example(("d38_20", Decimal("1.5")), ("int64", 1), ">")
@example(("d38_38", Decimal("0.5")), ("d38_0", Decimal("1e37")), "<")
@example(("int64", 2**53 + 1), ("double", float(2**53)), "=")
def test_numbers_compare_by_value(left: tuple[str, Any], right: tuple[str, Any], sign: str) -> None:
    result = evaluated(f"o.x {sign} p.x", left, right)
    assert result.values.to_pylist() == [COMPARISONS[sign](*as_python(left, right))]


def fits(number: Decimal, kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return EXACT.abs(EXACT.scaleb(number, kind.scale)) < 10**kind.precision
    bits = 31 if kind == pa.int32() else 63
    return -(2**bits) <= number < 2**bits


exact_operands = operands.filter(lambda operand: operand[0] != "double")


@settings(max_examples=examples(600), deadline=None)
@given(exact_operands, exact_operands, st.sampled_from(["+", "-", "*"]))
@example(("d38_20", Decimal("1.5")), ("int64", 2), "+")
@example(("d38_0", Decimal(10**38 - 1)), ("d38_0", Decimal(1)), "+")
@example(("int32", 2**31 - 1), ("int32", 1), "+")
def test_sums_and_products_are_exact_or_fail(left: tuple[str, Any], right: tuple[str, Any], sign: str) -> None:
    schemas = {"o": pa.schema({"x": KINDS[left[0]]}), "p": pa.schema({"x": KINDS[right[0]]})}
    try:
        kind = column_type(parse_expression(f"o.x {sign} p.x"), schemas)
    except ExpressionError:
        assert sign == "*"  # more than 38 digits after the point
        return
    result = evaluated(f"o.x {sign} p.x", left, right)
    assert result.values.type == kind
    function = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign]
    with localcontext(EXACT):
        expected = function(*as_python(left, right))
    if fits(expected, kind):
        assert result.values.to_pylist() == [expected]
    else:
        assert list(result.failed) == [0]


@settings(max_examples=examples(600), deadline=None)
@given(st.floats(), st.floats())
@example(1e17, 3.0)
@example(5.5, 0.1)
@example(-7.0, math.inf)
@example(math.inf, 3.0)
@example(-0.0, 3.0)
def test_the_remainder_of_doubles_is_fmod(left: float, right: float) -> None:
    (remainder,) = evaluated("o.x % p.x", ("double", left), ("double", right)).values.to_pylist()
    if right == 0:
        assert remainder is None
    elif math.isnan(left) or math.isnan(right) or math.isinf(left):
        assert math.isnan(remainder)
    else:
        assert (remainder, math.copysign(1, remainder)) == (
            math.fmod(left, right),
            math.copysign(1, math.fmod(left, right)),
        )


def test_the_remainder_of_literals_and_columns_mixed() -> None:
    pair = ("double", 1e17), ("int64", 3)
    assert evaluated("o.x % 3", *pair).values.to_pylist() == [1.0]
    assert evaluated("1e17 % p.x", *pair).values.to_pylist() == [1.0]
    assert evaluated("1e17 % 3", *pair).values.to_pylist() == [1.0]
    assert evaluated("5.5e0 % 0.1", *pair).values.to_pylist() == [math.fmod(5.5, 0.1)]


def test_an_integer_above_2_to_53_meets_a_double_as_a_double() -> None:
    nanoseconds = ("int64", 1_700_000_000_123_456_789)
    assert evaluated("o.x / 1000000 > 5", nanoseconds, ("double", 0.0)).values.to_pylist() == [True]
    assert evaluated("o.x + p.x", nanoseconds, ("double", 0.5)).values.to_pylist() == [1_700_000_000_123_456_789.5]
    assert evaluated("CAST(o.x AS DOUBLE)", nanoseconds, ("double", 0.5)).values.to_pylist() == [1.7000000001234568e18]


def test_a_time_outside_the_years_1_to_9999_fails() -> None:
    times = pa.array([0, 253_402_300_799_999], pa.timestamp("ms", "UTC"))
    result = parse_expression("o.ts + INTERVAL '1' SECOND").evaluate(lambda _: times, 2)
    assert result.failed == {
        1: "cannot evaluate \"o.ts + INTERVAL '1' SECOND\": the time is outside the years 1 to 9999"
    }
    assert result.values.cast(pa.int64()).to_pylist() == [1000, None]


def test_a_double_that_a_float_cannot_hold_fails() -> None:
    result = parse_expression("CAST(o.x AS REAL)").evaluate(lambda _: pa.array([1e300, math.inf, 1.5]), 3)
    assert result.values.to_pylist() == [None, math.inf, 1.5]
    assert list(result.failed) == [0]
