"""Functions of numbers. What is computed as double follows IEEE 754: SQRT(-1) is NaN, LN(0) is -inf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.functions.base import (
    Family,
    Parameter,
    by_polars,
    constant,
    double,
    integer,
    number,
    optional,
    require,
)
from joinery_runtime.core.pipeline.operators import PRECISION, Value, absolute, as_column, row_count, to_array

NUMBERS = Family("Numbers")
BITS = Family("Bits")
_SAME, _ROUNDED = "the type of `x`", "the type of `x`; a decimal has one digit more"
_INT64 = np.iinfo(np.int64)

# --- signs and rounding -----------------------------------------------------------------------------------------------

NUMBERS.define(
    "ABS",
    Parameter("x", "quantity"),
    returns=_SAME,
    meaning="without its sign",
    example="ABS(-2)",
    result="2",
    fails=True,
)(absolute)
NUMBERS.define(
    "SIGN",
    number("x"),
    returns="int32; double for floats and doubles",
    meaning="-1, 0 or 1",
    example="SIGN(-2.5)",
    result="-1",
)(lambda x: pc.sign(x).cast(pa.float64() if pa.types.is_floating(x.type) else pa.int32()))


def _round_number(x: Value, mode: str, digits: int) -> Value:
    digits = max(-400, min(digits, 400))
    if pa.types.is_decimal(x.type):
        return _round_decimal(x, mode, digits)
    if pa.types.is_integer(x.type):
        if digits >= 0:
            return x
        if -digits >= len(str(2 ** (x.type.bit_width - 1) - 1)):
            return pc.if_else(pc.is_valid(x), pa.scalar(0, x.type), x)
        return pc.round(x, digits, round_mode=mode)
    if isinstance(x, pa.Scalar):
        return _round_number(pa.array([x.as_py()], x.type), mode, digits)[0]
    doubles = pc.fill_null(x.cast(pa.float64()), 0.0).to_numpy()
    rounded = pa.array(_round_doubles(doubles, mode, digits)).cast(x.type, safe=False)
    return pc.if_else(pc.is_valid(x), rounded, pa.scalar(None, x.type))


_ROUND_SCALED: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "half_towards_infinity": lambda scaled: np.copysign(
        np.floor(np.abs(scaled)) + (np.abs(scaled) - np.floor(np.abs(scaled)) >= 0.5), scaled
    ),
    "half_to_even": np.rint,
    "towards_zero": np.trunc,
    "down": np.floor,
    "up": np.ceil,
}


def _round_doubles(values: np.ndarray, mode: str, digits: int) -> np.ndarray:
    """Round doubles (float64[n]). Arrow's own rounding changes numbers of 11 and more digits that need none, and fails
    where a number times its power of ten is too large, though such a number has no digits to round."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        power = np.float64(10.0) ** abs(digits)
        if digits >= 0:
            scaled = values * power
            rounded, nearest = _ROUND_SCALED[mode](scaled) / power, np.rint(scaled) / power
        else:
            scaled = values / power
            rounded, nearest = _ROUND_SCALED[mode](scaled) * power, np.rint(scaled) * power
            rounded = np.where(np.isfinite(power), rounded, np.copysign(0.0, values))
        too_large = ~(np.abs(scaled) < 2.0**52) if digits >= 0 else np.zeros(len(values), dtype=bool)
        unchanged = ~np.isfinite(values) | (nearest == values) | too_large
    return np.where(unchanged, values, rounded)


def _round_decimal(x: Value, mode: str, digits: int) -> Value:
    """Round in a type with room for one more digit: where there is none, Arrow wraps."""
    precision, scale = x.type.precision, x.type.scale
    wider = x.cast(pa.decimal256(precision + 1, scale))
    if -digits > precision - scale:
        rounded = pc.multiply(wider, pa.scalar(0, pa.int64())).cast(wider.type)
    else:
        rounded = pc.round(wider, min(digits, scale), round_mode=mode)
    if mode == "towards_zero":
        return rounded.cast(x.type)
    return as_column(rounded if precision >= PRECISION else rounded.cast(pa.decimal128(precision + 1, scale)))


_DIGITS = optional(constant(integer("digits")))
NUMBERS.define(
    "ROUND",
    number("x"),
    _DIGITS,
    returns=_ROUNDED,
    meaning="to the nearest value with so many digits after the point (0), halves away from zero; digits before the "
    "point if negative",
    example="ROUND(2.345, 2)",
    result="2.35",
    fails=True,
)(lambda x, digits=0: _round_number(x, "half_towards_infinity", digits))
NUMBERS.define(
    "BROUND",
    number("x"),
    _DIGITS,
    returns=_ROUNDED,
    meaning="likewise, halves to the even digit",
    example="BROUND(2.345, 2)",
    result="2.34",
    fails=True,
)(lambda x, digits=0: _round_number(x, "half_to_even", digits))
NUMBERS.define(
    "TRUNC TRUNCATE",
    number("x"),
    _DIGITS,
    returns=_SAME,
    meaning="likewise, towards zero",
    example="TRUNC(-2.345, 2)",
    result="-2.34",
)(lambda x, digits=0: _round_number(x, "towards_zero", digits))
NUMBERS.define(
    "FLOOR",
    number("x"),
    returns=_ROUNDED,
    meaning="the nearest whole number that is not larger",
    example="FLOOR(-2.5)",
    result="-3",
    fails=True,
)(lambda x: _round_number(x, "down", 0))
NUMBERS.define(
    "CEIL CEILING",
    number("x"),
    returns=_ROUNDED,
    meaning="the nearest whole number that is not smaller",
    example="CEIL(-2.5)",
    result="-2",
    fails=True,
)(lambda x: _round_number(x, "up", 0))

# --- arithmetic -------------------------------------------------------------------------------------------------------


@NUMBERS.define(
    "DIV",
    integer("x"),
    integer("y"),
    returns="int64",
    meaning="the quotient without its fraction; NULL for division by zero",
    example="DIV(-7, 2)",
    result="-3",
    fails=True,
)
def _integer_quotient(x: Value, y: Value) -> Value:
    return pc.divide_checked(x, pc.if_else(pc.equal(y, 0), pa.scalar(None, pa.int64()), y))


@NUMBERS.define(
    "GCD",
    integer("x"),
    integer("y"),
    returns="int64",
    meaning="the greatest common divisor",
    example="GCD(12, -18)",
    result="6",
    fails=True,
)
def _greatest_divisor(x: Value, y: Value) -> Value:
    first, second = _as_numpy(x, y)
    require(pa.array((first != _INT64.min) & (second != _INT64.min)), "the number has no positive counterpart")
    return pa.array(np.gcd(first, second))


@NUMBERS.define(
    "LCM",
    integer("x"),
    integer("y"),
    returns="int64",
    meaning="the least common multiple",
    example="LCM(4, 6)",
    result="12",
    fails=True,
)
def _least_multiple(x: Value, y: Value) -> Value:
    divisor = _greatest_divisor(x, y)
    first, second = (pa.array(values) for values in _as_numpy(x, y))
    return pc.abs_checked(
        pc.multiply_checked(
            pc.divide(first, pc.if_else(pc.equal(divisor, 0), pa.scalar(1, pa.int64()), divisor)), second
        )
    )


@NUMBERS.define(
    "WIDTH_BUCKET",
    double("x"),
    double("low"),
    double("high"),
    integer("count"),
    returns="int64",
    meaning="the number, from 1, of the one of `count` equal ranges between low and high that holds `x`; 0 below low, "
    "count + 1 from high on. Fails unless low < high and count > 0",
    example="WIDTH_BUCKET(5.35, 0, 10, 5)",
    result="3",
    fails=True,
)
def _width_bucket(x: Value, low: Value, high: Value, count: Value) -> Value:
    require(pc.and_(pc.less(low, high), pc.greater(count, 0)), "WIDTH_BUCKET takes low < high and a positive count")
    require(pc.invert(pc.is_nan(x)), "WIDTH_BUCKET takes no NaN")
    require(pc.less(count, 2**53), "WIDTH_BUCKET takes less than 2^53 ranges")
    value, lowest, highest, ranges = _as_numpy(x, low, high, count)
    with np.errstate(all="ignore"):
        inside = np.floor((value - lowest) / (highest - lowest) * ranges)
    inside = np.clip(np.nan_to_num(inside), 0, ranges - 1).astype(np.int64) + 1
    return pa.array(np.where(value < lowest, 0, np.where(value >= highest, ranges + 1, inside)), pa.int64())


def _as_numpy(*values: Value) -> list[Any]:
    """Return numbers as NumPy arrays of one length, with 1 for a NULL."""
    length = row_count(values)
    arrays = [to_array(value, length) for value in values]
    return [pc.fill_null(array, 1).to_numpy(zero_copy_only=False) for array in arrays]


# --- doubles ----------------------------------------------------------------------------------------------------------


def _of_double(names: str, kernel: Callable[..., Value], meaning: str, example: str, result: str) -> None:
    NUMBERS.define(names, double("x"), returns="double", meaning=meaning, example=example, result=result)(kernel)


def _by_numpy(function: Callable[..., Any]) -> Callable[..., pa.Array]:
    def kernel(*values: Value) -> pa.Array:
        with np.errstate(all="ignore"):
            return pa.array(function(*_as_numpy(*values)), pa.float64())

    return kernel


def _cube_root(x: np.ndarray) -> np.ndarray:
    """Compute cube roots. On some processors numpy's root of 27 is not 3, which a step of Newton's method mends."""
    root = np.cbrt(x)
    better = root - (root * root * root - x) / (3 * root * root)
    return np.asarray(np.where(np.isfinite(better), better, root))


_of_double("SQRT", pc.sqrt, "the square root", "SQRT(9)", "3")
_of_double("CBRT", _by_numpy(_cube_root), "the cube root", "CBRT(-27)", "-3")
_of_double("EXP", pc.exp, "e to the power of `x`", "EXP(0)", "1")
_of_double("EXPM1", pc.expm1, "e to the power of `x`, minus 1", "EXPM1(0)", "0")
_of_double("LN", pc.ln, "the natural logarithm", "LN(1)", "0")
_of_double("LOG1P", pc.log1p, "the natural logarithm of 1 + `x`", "LOG1P(0)", "0")
_of_double("LOG2", pc.log2, "the logarithm to base 2", "LOG2(8)", "3")
_of_double("LOG10", pc.log10, "the logarithm to base 10", "LOG10(100)", "2")
NUMBERS.define(
    "LOG",
    double("base"),
    double("x"),
    returns="double",
    meaning="the logarithm to this base",
    example="LOG(2, 8)",
    result="3",
)(lambda base, x: pc.logb(x, base))
NUMBERS.define(
    "POWER POW",
    double("x"),
    double("exponent"),
    returns="double",
    meaning="`x` to this power",
    example="POWER(2, 10)",
    result="1024",
)(pc.power)
_of_double("SIN", pc.sin, "the sine, as the others of an angle in radians", "SIN(0)", "0")
_of_double("COS", pc.cos, "the cosine", "COS(0)", "1")
_of_double("TAN", pc.tan, "the tangent", "TAN(0)", "0")
_of_double("COT", _by_numpy(lambda x: 1 / np.tan(x)), "the cotangent", "ROUND(COT(1), 3)", "0.642e0")
_of_double("ASIN", pc.asin, "the angle with this sine", "ASIN(0)", "0")
_of_double("ACOS", pc.acos, "the angle with this cosine", "ACOS(1)", "0")
_of_double("ATAN", pc.atan, "the angle with this tangent", "ATAN(0)", "0")
NUMBERS.define(
    "ATAN2",
    double("y"),
    double("x"),
    returns="double",
    meaning="the angle of the point (x, y)",
    example="ATAN2(0, 1)",
    result="0",
)(pc.atan2)
_of_double("SINH", pc.sinh, "the hyperbolic sine", "SINH(0)", "0")
_of_double("COSH", pc.cosh, "the hyperbolic cosine", "COSH(0)", "1")
_of_double("TANH", pc.tanh, "the hyperbolic tangent", "TANH(0)", "0")
_of_double("ASINH", pc.asinh, "its inverse", "ASINH(0)", "0")
_of_double("ACOSH", pc.acosh, "its inverse", "ACOSH(1)", "0")
_of_double("ATANH", pc.atanh, "its inverse", "ATANH(0)", "0")
_of_double("DEGREES", _by_numpy(np.degrees), "radians as degrees", "DEGREES(PI())", "180")
_of_double("RADIANS", _by_numpy(np.radians), "degrees as radians", "RADIANS(180) = PI()", "TRUE")
NUMBERS.define("PI", returns="double", meaning="π", example="ROUND(PI(), 2)", result="3.14e0")(
    lambda: pa.scalar(np.pi, pa.float64())
)
NUMBERS.define("E", returns="double", meaning="Euler's number", example="LN(E())", result="1")(
    lambda: pa.scalar(np.e, pa.float64())
)
for _name, _kernel, _meaning, _example in (
    ("ISNAN", pc.is_nan, "whether it is NaN", "ISNAN(CAST('NaN' AS DOUBLE))"),
    ("ISINF", pc.is_inf, "whether it is infinite", "ISINF(CAST('-inf' AS DOUBLE))"),
    ("ISFINITE", pc.is_finite, "whether it is neither NaN nor infinite", "ISFINITE(1.5)"),
):
    NUMBERS.define(_name, double("x"), returns="boolean", meaning=_meaning, example=_example, result="TRUE")(_kernel)
# --- bits -------------------------------------------------------------------------------------------------------------

for _name, _kernel, _meaning, _example, _result in (
    ("BITAND", pc.bit_wise_and, "the bits that both have", "BITAND(6, 3)", "2"),
    ("BITOR", pc.bit_wise_or, "the bits that one of them has", "BITOR(6, 3)", "7"),
    ("BITXOR", pc.bit_wise_xor, "the bits that exactly one has", "BITXOR(6, 3)", "5"),
):
    BITS.define(
        _name,
        integer("x"),
        integer("y"),
        returns="int64",
        meaning=_meaning,
        example=_example,
        result=_result,
    )(_kernel)
BITS.define(
    "BITNOT", integer("x"), returns="int64", meaning="the bits that it has not", example="BITNOT(0)", result="-1"
)(pc.bit_wise_not)
BITS.define(
    "BIT_COUNT",
    integer("x"),
    returns="int64",
    meaning="its number of bits that are 1",
    example="BIT_COUNT(7)",
    result="3",
)(by_polars(lambda x: x.bitwise_count_ones().cast(int)))


def _shift_bits(x: Value, count: Value, shift: Callable[..., Value]) -> Value:
    require(pc.and_(pc.greater_equal(count, 0), pc.less(count, 64)), "a shift is by 0 to 63 bits")
    # Arrow takes a shift of 63 bits for none.
    once = pc.if_else(pc.and_(pc.greater_equal(count, 0), pc.less(count, 64)), pc.min_element_wise(count, 62), 0)
    return shift(shift(x, once), pc.if_else(pc.equal(count, 63), 1, 0))


BITS.define(
    "SHIFTLEFT",
    integer("x"),
    integer("count"),
    returns="int64",
    meaning="its bits moved up; those that leave the 64 are lost. Fails unless count is 0 to 63",
    example="SHIFTLEFT(1, 4)",
    result="16",
    fails=True,
)(lambda x, count: _shift_bits(x, count, pc.shift_left))
BITS.define(
    "SHIFTRIGHT",
    integer("x"),
    integer("count"),
    returns="int64",
    meaning="its bits moved down, with the sign kept. Fails likewise",
    example="SHIFTRIGHT(-16, 2)",
    result="-4",
    fails=True,
)(lambda x, count: _shift_bits(x, count, pc.shift_right))
