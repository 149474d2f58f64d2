"""Sorting by one packed number gives what sorting by the columns gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinery_runtime.core.table import sort
from joinery_runtime.core.table.sort import by_hash_and_time, sort_order

# Hashes that begin alike, at both ends of the space and in its middle.
HASHES = [0, 1, 2**20, 2**63, 2**63 + 1, 2**63 + 5, 2**64 - 2, 2**64 - 1]
TIMES = st.one_of(st.integers(-3, 3), st.integers(10**12, 10**12 + 2**30), st.integers(-(2**62), 2**62))
Row = tuple[int, int, int, int]


@pytest.mark.parametrize("few", [0, 2_048], ids=["by polars", "by numpy"])
@given(rows=st.lists(st.tuples(st.sampled_from(HASHES), TIMES, st.integers(0, 2), st.integers(0, 2)), max_size=12))
@example(rows=[(1, 0, 1, 0), (0, 0, 0, 0)])  # two hashes with one packed number
@example(rows=[(2**63 + 1, 0, 0, 0), (2**63, 7, 0, 0)])
@example(rows=[(5, 3, 1, 1), (5, 3, 0, 2), (5, 3, 0, 1)])
def test_rows_are_in_the_order_of_their_columns(few: int, rows: list[Row]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort, "_FEW", few)
        _check_order(rows)


def _check_order(rows: list[Row]) -> None:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    hashes, times, kind, offsets = (
        np.array(column, dtype=kind) for column, kind in zip(columns, [np.uint64, *[np.int64] * 3], strict=True)
    )
    order = by_hash_and_time(hashes, times, kind, offsets)
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert [rows[i] for i in order] == sorted(rows)
    by_position = sorted(range(len(rows)), key=lambda i: rows[i][:2])
    assert by_hash_and_time(hashes, times).tolist() == by_position


def test_few_rows_wait_for_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "pl", None)
    hashes, times = np.array([7, 5, 5], dtype=np.uint64), np.array([1, 2, 2])
    assert by_hash_and_time(hashes, times, np.array([0, 4, 3])).tolist() == [2, 1, 0]
    assert by_hash_and_time(hashes, np.array([0, 2**62, 0])).tolist() == [2, 1, 0]


def test_many_rows_within_a_day_are_sorted_by_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_columns(*columns: np.ndarray) -> np.ndarray:
        assert len(columns[0]) < n, "all rows by all columns"
        return sort_order(*columns)

    monkeypatch.setattr(sort, "sort_order", of_columns)
    chance, n = np.random.default_rng(1), 100_000
    hashes = chance.choice(chance.integers(0, 2**64, 1_000, dtype=np.uint64), n)
    times = chance.integers(0, 3_600_000, n)
    offsets = chance.permutation(n)
    order = by_hash_and_time(hashes, times, offsets)
    assert (order == np.lexsort((offsets, times, hashes))).all()


def test_many_rows_of_one_hash_and_time_stay_in_their_order() -> None:
    chance, n = np.random.default_rng(2), 10_000
    hashes = chance.choice(chance.integers(0, 2**64, 20, dtype=np.uint64), n)
    times = chance.integers(0, 3, n)
    assert (by_hash_and_time(hashes, times) == np.lexsort((times, hashes))).all()
