"""States that are functions of the rows alone: the same bytes, however rows were split; and what they cost in
accuracy."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.aggregates.cases import NUMBERS, SPECIAL, decimals, merged, rows
from core.aggregates.reference import percentile
from joinery_runtime.core.aggregates import Accumulator, Groups, States, accumulator, exact
from joinery_runtime.core.aggregates.base import AggregateCall
from joinery_runtime.core.aggregates.percentiles import EXACT

ORDERLESS = ("var_pop", "stddev_samp", "approx_percentile", "percentile_cont", "median")


def aggregate(function: str, kind: pa.DataType, share: Fraction = Fraction(1, 2)) -> Accumulator:
    return accumulator(AggregateCall(function, "out", "v", kind, 100_000, share=share))


def fold(implementation: Accumulator, values: pa.Array, *starts: int) -> States:
    return implementation.fold(values, np.arange(len(values)), Groups(np.array(starts or [0]), len(values)))


@settings(max_examples=examples(30))
@given(data=st.data())
@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_states_have_the_same_bytes_however_rows_were_split(kind: pa.DataType, data: st.DataObject) -> None:
    numbers = NUMBERS[kind] | SPECIAL if pa.types.is_floating(kind) else NUMBERS[kind]
    case = data.draw(rows(kind, numbers))
    for function in ORDERLESS:
        implementation = aggregate(function, kind)
        at_once, _ = case.folded(implementation, epochs=False)
        parts, groups = case.folded(implementation, epochs=True)
        states = merged(data.draw, implementation, parts, groups)
        assert [state.to_pylist() for state in map(_plain, states)] == [
            state.to_pylist() for state in map(_plain, at_once)
        ]


def _plain(state: pa.Array) -> pa.Array:
    """NaN, which equals nothing, as text."""
    return state.cast(pa.list_(pa.string())) if pa.types.is_list(state.type) else state


@settings(max_examples=examples(200))
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**32, -(2**32), 0]), min_size=1))
def test_sums_of_integers_and_of_squares_are_exact(values: list[int]) -> None:
    numbers, one = exact.Digits.of(pa.array(values, pa.int64())), Groups(np.array([0]), len(values))
    for stored, total in (
        (exact.sums(numbers, one), sum(values)),
        (exact.product_sums(numbers, numbers, one), sum(value * value for value in values)),
    ):
        integer, position = exact.integer(stored[0].as_py())
        assert integer << 32 * position == total


@given(st.lists(decimals(38, 4), min_size=2, max_size=9))
def test_the_variance_of_long_decimals_is_rounded_once(values: list[Decimal]) -> None:
    variance = aggregate("var_pop", pa.decimal128(38, 4))
    mean = sum(map(Fraction, values)) / len(values)
    expected = float(sum((Fraction(value) - mean) ** 2 for value in values) / len(values))
    assert variance.result(fold(variance, pa.array(values, pa.decimal128(38, 4)))).to_pylist() == [expected]


def test_a_variance_beside_a_large_mean_loses_nothing() -> None:
    variance = aggregate("var_samp", pa.float64())
    values = [1e15 + n for n in (4.0, 7.0, 13.0, 16.0)]
    assert variance.result(fold(variance, pa.array(values))).to_pylist() == [30.0]


@pytest.mark.parametrize("share", ["0", "0.01", "0.5", "0.95", "1"])
def test_a_sketch_is_at_most_a_256th_nearer_to_zero(share: str) -> None:
    values = np.random.default_rng(7).lognormal(3, 2, 5_000) * np.where(np.arange(5_000) % 3, 1, -1)
    approximation = aggregate("approx_percentile", pa.float64(), Fraction(share))
    parts = fold(approximation, pa.array(values), 0, 10, 300, 3_000)
    (about,) = approximation.result(approximation.merge(parts, Groups(np.array([0]), 4))).to_pylist()
    precise = percentile(values.tolist(), Fraction(share), between=False)
    assert about == approximation.result(fold(approximation, pa.array(values)))[0].as_py()
    assert abs(precise) * (1 - 1 / 256) <= abs(about) <= abs(precise)
    assert np.sign(about) == np.sign(precise)


def test_a_sketch_of_small_integers_is_exact() -> None:
    values = np.arange(-511, 512)
    approximation = aggregate("approx_percentile", pa.int64(), Fraction("0.9"))
    assert len(values) > EXACT
    assert approximation.result(fold(approximation, pa.array(values))).to_pylist() == [
        percentile(values.tolist(), Fraction("0.9"), between=False)
    ]


@pytest.mark.parametrize("function", ["var_pop", "var_samp", "stddev_pop", "stddev_samp", "median"])
def test_as_in_duckdb(function: str) -> None:
    values = np.random.default_rng(3).normal(100, 15, 999)
    implementation = aggregate(function, pa.float64())
    table = pa.table({"v": values})
    with duckdb.connect() as database:
        database.register("rows", table)
        ((expected,),) = database.execute(f"SELECT {function}(v) FROM rows").fetchall()
    assert implementation.result(fold(implementation, pa.array(values)))[0].as_py() == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(
    ("share", "disc", "cont"), [("0", 1.0, 1.0), ("0.5", 2.0, 2.5), ("0.75", 3.0, 3.25), ("1", 4.0, 4.0)]
)
def test_percentiles_as_in_postgres(share: str, disc: float, cont: float) -> None:
    values = pa.array([4, 1, 3, 2], pa.int32())
    for function, expected in (("percentile_disc", disc), ("percentile_cont", cont)):
        implementation = aggregate(function, pa.int32(), Fraction(share))
        assert implementation.result(fold(implementation, values)).to_pylist() == [expected]


def test_values_beside_a_condition_and_a_second_column() -> None:
    batch = pa.record_batch(
        {
            "v": pa.array(["a", "b", None, "d", "e"]),
            "b": pa.array([1, None, 3, 4, 5]),
            "$where(x)": pa.array([True, True, True, None, False]),
        }
    )

    def values(**fields: Any) -> Any:
        column = AggregateCall("first", "out", **fields).values(batch)
        return column if column is None else column.to_pylist()

    assert values() is None
    assert values(condition="x") == [True, True, True, None, None]
    assert values(column="v") == ["a", "b", None, "d", "e"]
    assert values(column="v", condition="x") == ["a", "b", None, None, None]
    both = {"value": "a", "by": 1}
    assert values(column="v", by="b") == [both, None, None, {"value": "d", "by": 4}, {"value": "e", "by": 5}]
    assert values(column="v", by="b", condition="x") == [both, None, None, None, None]


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.date32(), pa.timestamp("ms", tz="UTC")], ids=str)
@pytest.mark.parametrize("bits", [0, 20, 31, 59, 60, 61, 63, 64])
def test_the_state_of_distinct_values_is_sorted_however_far_apart_they_are(kind: pa.DataType, bits: int) -> None:
    """Numbers of a narrow span are sorted packed with their group, others are not (three groups take two bits)."""
    width = kind.bit_width
    least = -(1 << min(bits, width) - 1) if bits else 7
    values = [least + (1 << min(bits, width)) - 1, least, least, least + (1 << min(bits, width)) - 1]
    numbers = pa.array([*values, least, *values], pa.int32() if width == 32 else pa.int64()).view(kind)
    distinct_count = aggregate("count_distinct", kind)
    (state,) = fold(distinct_count, numbers, 0, 4, 5)
    (merged_state,) = distinct_count.merge((state,), Groups(np.array([0, 2]), 3))
    as_numbers = pa.list_(pa.int32() if width == 32 else pa.int64())
    both = sorted(set(values))
    assert state.cast(as_numbers).to_pylist() == [both, [least], both]
    assert merged_state.cast(as_numbers).to_pylist() == [both, both]
