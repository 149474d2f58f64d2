"""Sketches: their error, their order, and the bytes that are kept of them from release to release."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa
import pytest

from joinery_runtime.core.aggregates import Groups, States, accumulator
from joinery_runtime.core.aggregates.base import AggregateCall
from joinery_runtime.core.aggregates.sketch import EXACT

RELATIVE_ERROR = 0.01625
OF = accumulator(AggregateCall("count_distinct", "out", "v", pa.int64()))


def sketch(values: pa.Array, *starts: int) -> States:
    return OF.fold(values, np.zeros(len(values)), Groups(np.array(starts or (0,)), len(values)))


def numbers(first: int, stop: int) -> pa.Array:
    return pa.array(np.arange(first, stop))


def merge(*states: States) -> States:
    together = (pa.concat_arrays([state[0] for state in states]),)
    return OF.merge(together, Groups(np.array([0]), len(states)))


def count(states: States) -> int:
    (value,) = OF.result(states).to_pylist()
    return int(value)


def test_a_million_values_in_any_order_within_the_stated_error() -> None:
    parts = [sketch(numbers(n * 100_000, n * 100_000 + 150_000)) for n in range(9)] + [
        sketch(numbers(950_000, 1_000_000))
    ]
    at_once = sketch(numbers(0, 1_000_000))
    assert abs(count(at_once) - 1_000_000) < 2 * RELATIVE_ERROR * 1_000_000
    for seed in range(5):
        left = random.Random(seed).sample(parts, len(parts))
        while len(left) > 1:
            sketches = [left.pop() for _ in range(min(len(left), 2 + seed))]
            left.append(merge(*sketches))
        assert count(left[0]) == count(at_once)


def test_the_error_over_many_sketches_is_the_stated_one() -> None:
    size, many = 5000, 60
    states = sketch(numbers(0, size * many), *range(0, size * many, size))
    errors = OF.result(states).to_numpy() / size - 1
    assert 0.5 * RELATIVE_ERROR < np.sqrt(np.mean(errors**2)) < 1.3 * RELATIVE_ERROR
    assert abs(errors.mean()) < 3 * RELATIVE_ERROR / np.sqrt(many)


@pytest.mark.parametrize("size", [EXACT, EXACT + 1, 100, 384])
def test_counts_are_nearly_exact_while_values_are_few(size: int) -> None:
    assert abs(count(sketch(numbers(0, size))) - size) <= 1


def test_small_and_large_states_merge() -> None:
    small, middle, large = sketch(numbers(0, 20)), sketch(numbers(10, 50)), sketch(numbers(40, 5000))
    assert count(merge(small, sketch(numbers(10, 30)))) == 30
    assert count(merge(small, sketch(numbers(20, 40)))) == 40
    assert count(merge(small, middle)) == 50
    assert (
        count(merge(merge(small, middle), large))
        == count(merge(large, small, middle))
        == count(sketch(numbers(0, 5000)))
    )


def test_a_merge_leaves_lonely_states_as_they_are() -> None:
    states = sketch(numbers(0, 1000), 0, 10, 500, 510, 520)
    merged = OF.merge(states, Groups(np.array([0, 1, 2, 4]), 5))
    assert [merged[0][n] for n in (0, 1, 3)] == [states[0][n] for n in (0, 1, 4)]
    assert OF.result(merged)[2].as_py() == 20


def test_values_that_are_equal_count_once_whatever_their_type() -> None:
    of_int = sketch(pa.array([1, 2, 3], pa.int32()))
    assert count(merge(of_int, sketch(pa.array([3, 4], pa.int64())))) == 4
    short, long = pa.array(["1.5"]).cast(pa.decimal128(3, 1)), pa.array(["1.50"]).cast(pa.decimal128(30, 2))
    assert count(merge(sketch(short), sketch(long))) == 1
    nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    assert count(sketch(pa.array([0.0, -0.0, *nan]))) == 2


# States of earlier releases lie in users' stores: these bytes change only together with `state_version` (M1).
STORED = {  # the bytes of few values, SHA-256 of those of many
    3: "807d96aa0ba4af09eb647e6975c349794372efa4fa225be7",
    40: "9c0fe3e2c77ee542ce828d7b54bd0f009de9347bd11f2c3a65916467927cc037",
    2000: "231126ae3df4189b3f9072c18d4e7b4f99905c238b682f04b851d616536c642f",
}


@pytest.mark.parametrize(("size", "expected"), STORED.items())
def test_the_bytes_of_states_are_those_of_earlier_releases(size: int, expected: str) -> None:
    (state,) = sketch(pa.array([f"value {n}" for n in range(size)]))[0].to_pylist()
    assert (state.hex() if size == 3 else hashlib.sha256(state).hexdigest()) == expected


def test_the_count_of_a_stored_state_is_that_of_earlier_releases() -> None:
    assert [count(sketch(numbers(0, size))) for size in (3, 40, 2000, 100_000)] == [3, 40, 1993, 99099]
