"""Functions that choose between values. COALESCE, IF and CASE, which compute only what they need, are no functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.functions.base import Family, Parameter, double, repeated
from joinery_runtime.core.pipeline.operators import Value, as_column, to_common_type

CONDITIONALS = Family("Conditionals")


@CONDITIONALS.define(
    "NULLIF",
    Parameter("value", "any"),
    Parameter("other", "any"),
    returns="the type of `value`",
    meaning="NULL if both are equal, else the value",
    example="NULLIF(7, 0)",
    result="7",
    nulls="the value if the other is NULL",
)
def _null_if_equal(value: Value, other: Value) -> Value:
    equal = pc.fill_null(pc.equal(*to_common_type(value, other)), False)
    return pc.if_else(equal, pa.scalar(None, value.type), value)


CONDITIONALS.define(
    "GREATEST",
    repeated(Parameter("value", "any")),
    returns="the type that holds all",
    meaning="the largest of numbers, texts or times; NaN is larger than every number",
    example="GREATEST(1, 3, NULL)",
    result="3",
    nulls="leaves out NULLs; NULL if there is nothing else",
)(lambda *values: _choose_extreme(pc.max_element_wise, values))
CONDITIONALS.define(
    "LEAST",
    repeated(Parameter("value", "any")),
    returns="the type that holds all",
    meaning="the smallest, likewise",
    example="LEAST(1, 3, NULL)",
    result="1",
    nulls="leaves out NULLs; NULL if there is nothing else",
)(lambda *values: _choose_extreme(pc.min_element_wise, values))


def _choose_extreme(choose: Callable[..., Value], values: tuple[Value, ...]) -> Value:
    """Choose the largest or the smallest of each row's values, which are NULL only if all are.

    Raises ArrowTypeError for booleans, which have no order, and for types that do not go together.
    """
    common = [as_column(value) for value in to_common_type(*values)]
    kind = common[0].type
    if pa.types.is_null(kind):
        return common[0]
    if pa.types.is_boolean(kind):
        raise pa.ArrowTypeError("its values must be numbers, texts or times, found boolean")
    if pa.types.is_timestamp(kind) and kind.tz is not None:  # Arrow compares those without a zone only
        local = pa.timestamp(kind.unit)
        return choose(*(value.cast(local) for value in common)).cast(kind)
    chosen = choose(*common)
    if not pa.types.is_floating(kind):
        return chosen
    # Arrow takes any number before NaN. As the largest value, NaN is the greatest if there is one, and the least if
    # there is nothing else, which Arrow gets right.
    if choose is pc.min_element_wise:
        return chosen
    has_nan = pc.is_nan(common[0])
    for value in common[1:]:
        has_nan = pc.or_kleene(has_nan, pc.is_nan(value))
    return pc.if_else(pc.fill_null(has_nan, False), pa.scalar(np.nan, kind), chosen)


CONDITIONALS.define(
    "ISNULL",
    Parameter("value", "any"),
    returns="boolean",
    meaning="the same as `IS NULL`",
    example="ISNULL(1)",
    result="FALSE",
    nulls="TRUE for a NULL",
)(pc.is_null)
CONDITIONALS.define(
    "ISNOTNULL",
    Parameter("value", "any"),
    returns="boolean",
    meaning="the same as `IS NOT NULL`",
    example="ISNOTNULL(1)",
    result="TRUE",
    nulls="FALSE for a NULL",
)(pc.is_valid)
CONDITIONALS.define(
    "NANVL",
    double("x"),
    double("other"),
    returns="double",
    meaning="`x`, or the other value if `x` is NaN",
    example="NANVL(CAST('NaN' AS DOUBLE), 0)",
    result="0",
)(lambda x, other: pc.if_else(pc.is_nan(x), other, x))
