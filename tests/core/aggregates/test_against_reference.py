"""Every function of every type it takes: folded at once, and folded in epochs and merged in any steps."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.aggregates.cases import ALL, BOOLEAN, DOUBLE, FLOAT, NUMBERS, ORDERED, SPECIAL, STRING, Rows, merged, rows
from core.aggregates.reference import SHARE, exact_sum, reference
from joinery_runtime.core.aggregates import Accumulator, Groups, accumulator
from joinery_runtime.core.aggregates.base import AggregateCall

OF_ANY = ("count_col", "first", "last", "count_distinct", "array_agg")
OF_ORDERED = (*OF_ANY, "min", "max")
OF_NUMBERS = (
    *("sum", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp"),
    *("median", "percentile_cont", "percentile_disc", "approx_percentile"),
)
OF_CONDITIONS = ("bool_and", "bool_or", "count_if")
FUNCTIONS = (*OF_ORDERED, *OF_NUMBERS)


def aggregate(function: str, kind: pa.DataType, limit: int | None = None) -> Accumulator:
    by = {"by": "b", "by_type": kind.field("by").type} if pa.types.is_struct(kind) else {}
    column_type = kind.field("value").type if by else kind
    share = Fraction(1, 2) if function == "median" else SHARE
    call = AggregateCall(function, "out", "v", column_type, limit, share=share, separator="; ", **by)
    return accumulator(call)


def agree(given_rows: Rows, function: str, results: pa.Array) -> None:
    for values, value in zip(given_rows.values(), results.to_pylist(), strict=True):
        expected = reference(function, given_rows.kind, values)
        if function in ("sum", "avg") and results.type == pa.float64() and values:
            assert near(value, expected, values, units=Fraction(1 if function == "sum" else "3/2"))
        elif function == "array_agg" and value is not None:
            elements = json.loads(value)
            shortest = given_rows.kind == FLOAT  # the shortest text that names the float
            assert ([e and float(np.float32(e)) for e in elements] if shortest else elements) == expected
        else:
            assert same(value, expected)


def same(value: Any, expected: Any) -> bool:
    """-0.0 is 0.0, NaN is NaN."""
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(value, float) and math.isnan(value)
    return bool(value == expected)


def near(value: float, expected: Any, values: list[Any], *, units: Fraction) -> bool:
    """Within these units of the last place (an average is rounded twice), and 2^-95 of all that was added."""
    if isinstance(expected, float):  # not finite
        return same(value, expected)
    room = Fraction(math.ulp(float(expected))) * units + exact_sum([abs(v) for v in values]) / 2**95
    return abs(Fraction(value) - expected) <= room


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("kind", ALL, ids=str)
def test_every_value_as_in_plain_python(kind: pa.DataType, data: st.DataObject) -> None:
    case = data.draw(rows(kind, ALL[kind]))
    for function in OF_ORDERED if kind in ORDERED else OF_ANY:
        check(function, case, data)


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_sums_and_averages_as_in_plain_python(kind: pa.DataType, data: st.DataObject) -> None:
    case = data.draw(rows(kind, NUMBERS[kind]))
    for function in OF_NUMBERS:
        check(function, case, data)


@given(data=st.data())
def test_conditions_as_in_plain_python(data: st.DataObject) -> None:
    case = data.draw(rows(BOOLEAN, st.booleans()))
    for function in OF_CONDITIONS:
        check(function, case, data)


@given(data=st.data())
def test_texts_are_joined_in_order(data: st.DataObject) -> None:
    check("string_agg", data.draw(rows(STRING, ALL[STRING])), data)


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("by", ORDERED, ids=str)
def test_the_value_of_the_least_and_greatest_as_in_plain_python(by: pa.DataType, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(ALL)))
    struct = pa.struct([("value", kind), ("by", by)])
    few = data.draw(st.lists(ORDERED[by], min_size=1, max_size=3))  # so that there are ties
    pairs = st.fixed_dictionaries({"value": ALL[kind], "by": st.sampled_from(few)})
    case = data.draw(rows(struct, pairs))
    for function in ("min_by", "max_by"):
        check(function, case, data)


def check(function: str, case: Rows, data: st.DataObject) -> None:
    implementation = aggregate(function, case.kind, limit=100)
    states, _ = case.folded(implementation, epochs=False)
    parts, groups = case.folded(implementation, epochs=True)
    for final_states in (states, merged(data.draw, implementation, parts, groups)):
        assert [state.type for state in final_states] == [field.type for field in implementation.fields]
        assert implementation.result(final_states).type == implementation.result_type
        agree(case, function, implementation.result(final_states))


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("kind", [FLOAT, DOUBLE], ids=str)
def test_infinities_and_nan_add_up_as_in_ieee(kind: pa.DataType, data: st.DataObject) -> None:
    case = data.draw(rows(kind, NUMBERS[kind] | SPECIAL))
    for function in OF_NUMBERS:
        check(function, case, data)


@given(data=st.data())
def test_averages_of_integers_are_the_nearest_doubles(data: st.DataObject) -> None:
    average = aggregate("avg", pa.int64())
    case = data.draw(rows(pa.int64(), ORDERED[pa.int64()]))
    states, groups = case.folded(average, epochs=True)
    averages = average.result(merged(data.draw, average, states, groups)).to_pylist()
    assert averages == [sum(values) / len(values) if values else None for values in case.values()]


@settings(max_examples=examples(25))
@given(data=st.data())
@pytest.mark.parametrize("kind", ALL, ids=str)
def test_sketches_of_few_values_count_exactly(kind: pa.DataType, data: st.DataObject) -> None:
    distinct_count = aggregate("count_distinct", kind)
    case = data.draw(rows(kind, ALL[kind]))
    states, groups = case.folded(distinct_count, epochs=True)
    agree(case, "count_distinct", distinct_count.result(merged(data.draw, distinct_count, states, groups)))


@given(data=st.data())
def test_count_counts_rows_whatever_is_in_them(data: st.DataObject) -> None:
    row_count = accumulator(AggregateCall("count", "out"))
    case = data.draw(rows(pa.null(), st.none()))
    states, groups = case.folded(row_count, epochs=True)
    counts = row_count.result(merged(data.draw, row_count, states, groups)).to_pylist()
    assert counts == [sum(row.group == n for row in case.rows) for n in range(len(counts))]


@pytest.mark.parametrize(("kind", "bits"), [(FLOAT, [0x7FC00001, -1]), (DOUBLE, [0x7FF8000000000001, -1])], ids=str)
def test_every_nan_is_one_exact_value(kind: pa.DataType, bits: list[int]) -> None:
    distinct_count = aggregate("count_distinct", kind, limit=1)
    values = pa.array(bits, pa.int32() if kind == FLOAT else pa.int64()).view(kind)
    states = distinct_count.fold(values, np.arange(2), Groups(np.array([0]), 2))
    assert distinct_count.result(states).to_pylist() == [1]


def test_columns_of_the_state_tell_aggregates_apart() -> None:
    implementations = [aggregate(function, pa.int64(), limit=5) for function in FUNCTIONS]
    implementations += [aggregate("count_distinct", pa.int64()), accumulator(AggregateCall("count", "out"))]
    implementations += [aggregate(function, BOOLEAN) for function in OF_CONDITIONS]
    implementations += [accumulator(AggregateCall("sum", "out", "v", pa.int64(), condition="v > 0"))]
    # What is equal is shared: the sums of variances, and the values of exact percentiles.
    columns = {implementation.fields[0].name: implementation for implementation in implementations}
    names = [field.name for implementation in columns.values() for field in implementation.fields]
    assert len(columns) == len(implementations) - 5
    assert len(set(names)) == len(names)
    assert all(name.startswith("$") for name in names)
