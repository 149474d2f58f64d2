"""Values that do not fit have no result, and the aggregate says why; no order of rows and states changes that."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, localcontext
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.aggregates.cases import decimals
from joinery_runtime.core.aggregates import Accumulator, Groups, States, accumulator
from joinery_runtime.core.aggregates.base import AggregateCall
from joinery_runtime.core.aggregates.sums import sum_type
from joinery_runtime.errors import EnvironmentProblem

WIDE = pa.decimal128(38, 0)
MOST, MOST_DIGITS = 2**63 - 1, 10**38 - 1


def aggregate(function: str, kind: pa.DataType, limit: int | None = None) -> Accumulator:
    return accumulator(
        AggregateCall(function, "out", "v", kind, limit, separator="," if function == "string_agg" else None)
    )


def fold(implementation: Accumulator, kind: pa.DataType, *groups: list[Any]) -> States:
    values = [value for group in groups for value in group]
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    return implementation.fold(pa.array(values, kind), np.arange(len(values)), Groups(starts, len(values)))


def merge(implementation: Accumulator, states: States, *starts: int) -> States:
    return implementation.merge(states, Groups(np.array(starts), len(states[0])))


def results(implementation: Accumulator, states: States) -> tuple[list[Any], Mapping[int, str]]:
    return implementation.result(states).to_pylist(), implementation.find_misfits(states)


LARGE = st.integers(-(2**63), MOST) | st.sampled_from([MOST, -(2**63), 2**62, -(2**62), 1, -1, None])
LARGER = decimals(38, 0).map(int) | st.sampled_from([MOST_DIGITS, -MOST_DIGITS, 5 * 10**37, 1, -1, None])


@given(st.lists(st.lists(LARGE, min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_sum_of_integers_does_not_fit_exactly_where_int64_ends(groups: list[list[int | None]]) -> None:
    judged(pa.int64(), groups, -(2**63), MOST, "int64")


@given(st.lists(st.lists(LARGER, min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_sum_of_decimals_does_not_fit_exactly_beyond_38_digits(groups: list[list[int | None]]) -> None:
    judged(WIDE, groups, -MOST_DIGITS, MOST_DIGITS, "the 38 digits of a decimal")


def judged(kind: pa.DataType, groups: list[list[int | None]], low: int, high: int, words: str) -> None:
    """Folded at once, and merged from states of single rows in reverse order."""
    total, listed = aggregate("sum", kind), [[v for v in group if v is not None] for group in groups]
    sums = [sum(group) if group else None for group in listed]
    expected = (
        [None if number is None or not low <= number <= high else number for number in sums],
        {
            n: f"the sum {number} does not fit {words}"
            for n, number in enumerate(sums)
            if number is not None and not low <= number <= high
        },
    )
    assert results(total, fold(total, kind, *groups)) == expected
    single = fold(total, kind, *([value] for group in groups for value in reversed(group)))
    starts = np.cumsum([0, *map(len, groups)])[:-1].tolist()
    assert results(total, merge(total, single, *starts)) == expected


@pytest.mark.parametrize("value", [MOST_DIGITS, -MOST_DIGITS])
def test_a_sum_of_any_length_comes_back_into_range(value: int) -> None:
    total = aggregate("sum", WIDE)
    long = fold(total, WIDE, [Decimal(value)] * 100_000, [Decimal(-value)] * 99_999, [Decimal(5)])
    assert results(total, long) == (
        [None, None, 5],
        {
            n: f"the sum {sum_} does not fit the 38 digits of a decimal"
            for n, sum_ in ((0, value * 100_000), (1, -value * 99_999))
        },
    )
    for order in permutations(range(3)):
        shuffled = tuple(column.take(pa.array(order)) for column in long)
        back = merge(total, merge(total, shuffled, 0, 2), 0)
        assert results(total, back) == (([value + 5] if value < 0 else [None]), {} if value < 0 else {0: BEYOND})


BEYOND = f"the sum {MOST_DIGITS + 5} does not fit the 38 digits of a decimal"


def test_sums_of_short_decimals_are_stored_as_before() -> None:
    """No number of rows makes them longer than 38 digits."""
    kinds = [pa.decimal128(9, 2), pa.decimal128(19, 4), pa.decimal128(20, 4), pa.int32()]
    wide = [pa.decimal128(38, 2), pa.decimal128(38, 4), pa.decimal256(76, 4), WIDE]
    assert [sum_type(kind) for kind in kinds] == wide
    assert [aggregate("sum", kind).fields[0].type for kind in kinds] == wide


def test_merged_sums_do_not_fit() -> None:
    total = aggregate("sum", pa.int64())
    states = fold(total, pa.int64(), [None], [None], [1], [MOST], [1])
    assert results(total, merge(total, states, 0, 2, 3, 4)) == ([None, 1, MOST, 1], {})
    assert results(total, merge(total, states, 0, 2, 3)) == (
        [None, 1, None],
        {2: f"the sum {2**63} does not fit int64"},
    )


def test_averages_of_int64_do_not_overflow() -> None:
    average = aggregate("avg", pa.int64())
    states = fold(average, pa.int64(), [MOST] * 5, [-(2**63), -(2**63), 2**53 + 1], [2**53 + 1])
    assert average.result(states).to_pylist() == [float(MOST), (-(2**64) + 2**53 + 1) / 3, float(2**53 + 1)]


def test_an_average_of_decimals_fails_where_its_type_has_no_room_for_it() -> None:
    kind = pa.decimal128(38, 2)
    average = aggregate("avg", kind)
    assert average.result_type == pa.decimal128(38, 6)
    fits = fold(average, kind, [Decimal(10**32 - 1), Decimal(10**32 - 1), None], [None])
    assert average.result(fits).to_pylist() == [Decimal(10**32 - 1), None]
    beyond = results(average, fold(average, kind, [None], [Decimal(1)], [Decimal("-1e32")]))
    assert beyond == ([None, 1, None], {2: f"the average -{10**32} does not fit decimal(38, 6)"})


@pytest.mark.parametrize("scale", [0, 3, 36])
def test_averages_of_sums_of_more_than_38_digits_are_exact(scale: int) -> None:
    kind, unit = pa.decimal128(38, scale), Decimal((0, (1,), -scale))
    average = aggregate("avg", kind)
    most = Decimal((0, (9,) * (38 - min(4, 38 - scale)), -scale))
    ulp = Decimal((0, (1,), -average.result_type.scale))
    with localcontext(prec=100):
        groups = [
            [most] * 3,
            [most, most, most - unit],
            [-most, -most, -most + unit, None],
            [most - unit, most],
            [unit],
        ]
        exact = [most, most - unit / 3, unit / 3 - most, most - unit / 2, unit]
        states = fold(average, kind, *groups)
        assert results(average, states) == ([value.quantize(ulp, ROUND_HALF_UP) for value in exact], {})
    assert results(average, merge(average, states, 0, 2))[1] == {}


def test_averages_of_decimals_are_rounded_half_up() -> None:
    kind = pa.decimal128(37, 0)
    average = aggregate("avg", kind)
    assert average.result_type == pa.decimal128(38, 4)
    groups = [[Decimal(sign), *[Decimal(0)] * (n - 1)] for n in (3, 6, 20_000, 20_001) for sign in (1, -1)]
    thirds = ["0.3333", "0.1667", "0.0001", "0.0000"]
    assert average.result(fold(average, kind, *groups)).to_pylist() == [
        sign * Decimal(third) for third in thirds for sign in (1, -1)
    ]


@pytest.mark.parametrize("kind", [pa.int32(), pa.string()])
def test_more_distinct_values_than_the_limit_are_not_counted(kind: pa.DataType) -> None:
    distinct_count = aggregate("count_distinct", kind, limit=3)
    values = [str(n) if kind == pa.string() else n for n in (1, 2, 3, 4)]
    one, two, three, four = values
    states = fold(distinct_count, kind, [one, one, two], [three, two, four])
    assert distinct_count.result(states).to_pylist() == [2, 3]
    assert distinct_count.find_misfits(states) == {}
    assert results(distinct_count, merge(distinct_count, states, 0)) == ([None], {0: TOO_MANY})
    assert results(distinct_count, fold(distinct_count, kind, [values[0]], values)) == ([1, None], {1: TOO_MANY})


TOO_MANY = "there are more than 3 distinct values, the `limit`"
LISTING = {
    "count_distinct": ("distinct values", 3),
    "median": ("distinct values", 2.0),
    "array_agg": ("values", "[1,2,3]"),
    "string_agg": ("values", "1,2,3"),
}


@pytest.mark.parametrize("function", LISTING)
def test_a_group_over_its_limit_gets_no_value_again(function: str) -> None:
    """Whatever it is merged with, in any order; its state does not grow, and other groups keep theirs."""
    kind = pa.string() if function == "string_agg" else pa.int32()
    aggregated, (words, of_three) = aggregate(function, kind, limit=3), LISTING[function]
    one, two, three, four = [str(n) if kind == pa.string() else n for n in (1, 2, 3, 4)]
    states = fold(aggregated, kind, [one, two, three, four], [one], [None], [one, two, three])
    over = f"there are more than 3 {words}, the `limit`"
    assert results(aggregated, states)[1] == {0: over}
    assert results(aggregated, states)[0][3] == of_three
    assert states[0][0].as_py() is None
    for order in permutations(range(3)):
        shuffled = tuple(column.take(pa.array([*order, 3])) for column in states)
        merged = merge(aggregated, merge(aggregated, shuffled, 0, 2, 3), 0, 2)
        assert results(aggregated, merged) == ([None, of_three], {0: over})


def test_an_estimate_without_its_library_names_it_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Python that the library has no package for."""
    monkeypatch.setitem(sys.modules, "datasketches", None)
    monkeypatch.delitem(sys.modules, "joinery_runtime.core.aggregates.sketch", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"of v with method: hll needs the Python package datasketches.*exact"):
        aggregate("count_distinct", pa.string())
    assert aggregate("count_distinct", pa.string(), 10).fields
