from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinery_runtime.core.table import sort as match
from joinery_runtime.core.table.sort import HashFilter, find_ranges, list_pairs

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=12)
probes = st.lists(st.tuples(st.integers(0, 3), st.integers(-6, 6), st.integers(-3, 4)), max_size=12)


def arrays(run: list[tuple[int, int]], lookups: list[tuple[int, int, int]]) -> tuple[np.ndarray, ...]:
    run = sorted(run)
    return (
        np.array([h for h, _ in run], dtype=np.uint64) << np.uint64(62),
        np.array([t for _, t in run], dtype=np.int64),
        np.array([h for h, _, _ in lookups], dtype=np.uint64) << np.uint64(62),
        np.array([first for _, first, _ in lookups], dtype=np.int64),
        np.array([first + length for _, first, length in lookups], dtype=np.int64),
    )


def naive(run_hash: Any, run_ts: Any, hashes: Any, first: Any, last: Any) -> set[tuple[int, int]]:
    return {
        (p, r)
        for p in range(len(hashes))
        for r in range(len(run_hash))
        if run_hash[r] == hashes[p] and first[p] <= run_ts[r] <= last[p]
    }


@settings(deadline=None)
@given(run=rows, lookups=probes, chunk=st.integers(1, 5))
def test_agrees_with_a_naive_loop(run: Any, lookups: Any, chunk: int) -> None:
    inputs = arrays(run, lookups)
    chunks = list(list_pairs(find_ranges(*inputs), max_pairs=chunk))
    assert all(0 < len(probe) == len(row) <= chunk for probe, row in chunks)
    pairs = [(int(p), int(r)) for probe, row in chunks for p, r in zip(probe, row, strict=True)]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == naive(*inputs)


def test_the_ends_of_the_hash_space_are_found() -> None:
    run_hash = np.array([0, 2**64 - 1], dtype=np.uint64)
    run_ts = np.array([5, 5])
    probe, start, stop = find_ranges(run_hash, run_ts, run_hash[::-1], np.array([5, 5]), np.array([5, 5]))
    assert (probe.tolist(), start.tolist(), stop.tolist()) == ([0, 1], [1, 0], [2, 1])


hashes = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 5), st.integers(2**64 - 5, 2**64 - 1), st.just(2**63))


@settings(deadline=None)
@given(run=st.lists(hashes, min_size=1, max_size=40), queried=st.lists(hashes, max_size=40), present=st.integers(0, 40))
def test_a_filter_lets_through_every_hash_of_its_run(run: list[int], queried: list[int], present: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "_FILTERED", 0)
        hash_filter = HashFilter(np.array(sorted(run), dtype=np.uint64))
        queries = np.array([*queried, *run[:present]], dtype=np.uint64)
        through = hash_filter.may_contain(queries)
        assert sorted(set(through.tolist())) == through.tolist()
        assert {at for at, hash_value in enumerate(queries.tolist()) if hash_value in run} <= set(through.tolist())


def test_a_filter_keeps_most_strange_hashes_away_and_a_small_run_has_none() -> None:
    random = np.random.default_rng(1)
    run, strange = (np.sort(random.integers(0, 2**64, 50_000, dtype=np.uint64)) for _ in range(2))
    assert len(HashFilter(run).may_contain(strange)) < 2_000
    assert len(HashFilter(run).may_contain(run)) == 50_000
    small = HashFilter(run[:1_000])
    assert len(small.may_contain(strange)) == 50_000
    assert small._bits is None


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the elements that the searches and the listing touch."""
    touched: list[int] = []
    real_where, real_arange = np.where, np.arange

    def where(*args: Any) -> Any:
        touched.append(len(args[0]))
        return real_where(*args)

    def arange(*args: Any) -> Any:
        listed = real_arange(*args)
        touched.append(len(listed))
        return listed

    monkeypatch.setattr(match.np, "where", where)
    monkeypatch.setattr(match.np, "arange", arange)
    return touched


def test_a_hot_key_costs_only_the_pairs_whose_times_fit(work: list[int]) -> None:
    rows_per_side = 100_000
    times = np.arange(rows_per_side) * 1_000
    work.clear()
    same_key = np.full(rows_per_side, 42, dtype=np.uint64)
    ranges = find_ranges(same_key, times, same_key, times - 500, times + 500)
    pairs = sum(len(probe) for probe, _ in list_pairs(ranges))
    assert pairs == rows_per_side
    # Two bisections of 17 steps with three selections each, and the pairs themselves: far from 10^10.
    assert sum(work) <= rows_per_side * (2 * 18 * 3 + 1)


def test_a_hot_key_whose_times_all_fit_is_listed_in_bounded_chunks() -> None:
    run_hash = np.zeros(100_000, dtype=np.uint64)
    run_ts = np.arange(100_000)
    probes = np.zeros(100_000, dtype=np.uint64)
    ranges = find_ranges(run_hash, run_ts, probes, np.zeros(100_000, np.int64), np.full(100_000, 99_999))
    assert ranges[2].sum() - ranges[1].sum() == 10**10
    first = next(list_pairs(ranges))
    assert len(first[0]) == match.MAX_PAIRS
