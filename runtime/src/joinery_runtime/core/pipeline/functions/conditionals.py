"""Functions that choose between values. COALESCE, IF and CASE, which compute only what they need, are no functions."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.functions.base import Family, Parameter
from joinery_runtime.core.pipeline.operators import Value, to_common_type

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
