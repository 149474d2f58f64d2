"""What an aggregate has no value for is an error that names the group."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.aggregates.cases import decimals
from joinery_runtime.core.aggregates import Accumulator, GroupError, Groups, States, accumulator
from joinery_runtime.core.aggregates.base import AggregateCall
from joinery_runtime.errors import EnvironmentProblem

WIDE = pa.decimal128(38, 0)
MOST = 2**63 - 1


def aggregate(function: str, kind: pa.DataType, limit: int | None = None) -> Accumulator:
    return accumulator(AggregateCall(function, "out", "v", kind, limit))


def fold(implementation: Accumulator, kind: pa.DataType, *groups: list[Any]) -> States:
    values = [value for group in groups for value in group]
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    return implementation.fold(pa.array(values, kind), np.arange(len(values)), Groups(starts, len(values)))


def merge(implementation: Accumulator, states: States, *starts: int) -> States:
    return implementation.merge(states, Groups(np.array(starts), len(states[0])))


def first_beyond(groups: list[list[int]], low: int, high: int) -> int | None:
    return next(
        (n for n, group in enumerate(groups) if not low <= sum(v for v in group if v is not None) <= high), None
    )


LARGE = st.integers(-(2**63), MOST) | st.sampled_from([MOST, -(2**63), 2**62, -(2**62), 1, -1, None])
LARGER = decimals(38, 0).map(int) | st.sampled_from([10**38 - 1, 1 - 10**38, 5 * 10**37, 1, -1, None])


@given(st.lists(st.lists(LARGE, min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_sum_of_integers_overflows_exactly_where_int64_does(groups: list[list[int]]) -> None:
    overflows(pa.int64(), groups, -(2**63), MOST)


@given(st.lists(st.lists(LARGER, min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_sum_of_decimals_overflows_exactly_beyond_38_digits(groups: list[list[int]]) -> None:
    overflows(WIDE, groups, 1 - 10**38, 10**38 - 1)


def overflows(kind: pa.DataType, groups: list[list[int]], low: int, high: int) -> None:
    total, beyond = aggregate("sum", kind), first_beyond(groups, low, high)
    if beyond is not None:
        with pytest.raises(GroupError) as error:
            fold(total, kind, *groups)
        assert error.value.group == beyond
        return
    sums = [[v for v in group if v is not None] for group in groups]
    assert total.result(fold(total, kind, *groups)).to_pylist() == [sum(group) if group else None for group in sums]


def test_a_long_sum_of_large_decimals_wraps_no_word() -> None:
    total = aggregate("sum", WIDE)
    with pytest.raises(GroupError, match="does not fit the 38 digits"):
        fold(total, WIDE, [Decimal(10**38 - 1)] * 1000)  # more than 128 bits


@pytest.mark.parametrize(
    ("kind", "value", "facts"),
    [(pa.int64(), MOST, "does not fit int64"), (WIDE, Decimal(10**38 - 1), "does not fit the 38 digits of a decimal")],
)
def test_sums_overflow_when_states_are_merged(kind: pa.DataType, value: Any, facts: str) -> None:
    total = aggregate("sum", kind)
    states = fold(total, kind, [None], [None], [1], [value], [1])
    assert total.result(merge(total, states, 0, 2, 3, 4)).to_pylist() == [None, 1, value, 1]
    with pytest.raises(GroupError, match=facts) as error:
        merge(total, states, 0, 2, 3)
    assert error.value.group == 2


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
    with pytest.raises(GroupError, match=r"the average does not fit decimal\(38, 6\)") as error:
        fold(average, kind, [None], [Decimal(1)], [Decimal(10**32)])
    assert error.value.group == 2


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
def test_more_distinct_values_than_the_limit_fail_naming_it(kind: pa.DataType) -> None:
    distinct_count = aggregate("count_distinct", kind, limit=3)
    states = fold(
        distinct_count,
        kind,
        *([str(n) if kind == pa.string() else n for n in group] for group in ([1, 1, 2], [3, 2, 4])),
    )
    assert distinct_count.result(states).to_pylist() == [2, 3]
    with pytest.raises(GroupError, match="there are 4 distinct values, and the limit is 3") as error:
        merge(distinct_count, states, 0)
    assert (error.value.group, "hll" in error.value.todo) == (0, True)
    with pytest.raises(GroupError) as error:
        fold(distinct_count, pa.int32(), [5], [1, 2, 3, 4])
    assert error.value.group == 1


def test_an_estimate_without_its_library_names_it_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Python that the library has no package for."""
    monkeypatch.setitem(sys.modules, "datasketches", None)
    monkeypatch.delitem(sys.modules, "joinery_runtime.core.aggregates.sketch", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"of v with method: hll needs the Python package datasketches.*exact"):
        aggregate("count_distinct", pa.string())
    assert aggregate("count_distinct", pa.string(), 10).fields
