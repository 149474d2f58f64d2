"""The core against the brute-force oracle, on random jobs and histories; over 2,000 examples in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from core.cases import cases, cuts, punctual
from core.harness import Case, check_against_oracle
from joinery_runtime.core.keyhash import KeyHash, key_hash
from joinery_runtime.core.match import find_ranges
from joinery_runtime.core.spec import JoinSpec

# Examples are cheap and many; the shared two-core machine makes any deadline a lottery.
quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@settings(quick, max_examples=1200)
@given(case=cases())
def test_every_epoch_gives_the_oracles_pairs_and_counts(case: Case) -> None:
    check_against_oracle(case)


def few_hashes(count: int) -> KeyHash:
    """The real hash, folded onto `count` values that lie far apart."""

    def folded(columns: Sequence[pa.Array]) -> np.ndarray:
        return (key_hash(columns) % np.uint64(count)) * np.uint64(2**64 // (count + 1))

    return folded


@settings(quick, max_examples=400)
@given(case=cases(), hashes=st.sampled_from([1, 2, 3]))
def test_colliding_hashes_change_nothing(case: Case, hashes: int) -> None:
    check_against_oracle(case, few_hashes(hashes))


@settings(quick, max_examples=200)
@given(case=cases())
def test_the_number_of_shards_changes_nothing(case: Case) -> None:
    def run(shards: int) -> list[Any]:
        epochs = tuple(replace(epoch, shards=shards) for epoch in case.epochs)
        results = check_against_oracle(replace(case, epochs=epochs))
        return [(result.pairs, result.late, result.dropped) for result in results]

    assert run(1) == run(3) == run(8)


@settings(quick, max_examples=300)
@given(data=st.data(), history=punctual())
def test_where_epochs_are_cut_changes_only_when_pairs_come_out(data: Any, history: Any) -> None:
    case, arrivals = history
    wanted = by_nested_loops(case, arrivals)
    for _ in range(2):
        results = check_against_oracle(replace(case, epochs=data.draw(cuts(arrivals))))
        assert sum((result.pairs for result in results), Counter()) == wanted
        assert all(result.late == {"left": 0, "right": 0} for result in results)


def by_nested_loops(case: Case, arrivals: list[Any]) -> Counter[Any]:
    """J1 over all rows at once: no epochs, no watermarks, no state."""
    oracle = case.oracle(reopen=True)
    expected = oracle.epoch({"left": None, "right": None}, {
        name: [row for side, row in arrivals if side == name] for name in ("left", "right")
    })  # fmt: skip
    return Counter(pair.place for pair in expected.pairs)


@pytest.mark.parametrize("broken", ["keep", "late", "bounds"])
def test_the_suite_finds_a_broken_core(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that cannot fail proves nothing: each of these one-off mistakes must be found."""
    real_keep, real_accept = JoinSpec.keep_from, JoinSpec.accept_from
    if broken == "keep":
        monkeypatch.setattr(JoinSpec, "keep_from", lambda s, side, wm: _plus_one(real_keep(s, side, wm)))
    elif broken == "late":
        monkeypatch.setattr(JoinSpec, "accept_from", lambda s, wm: _plus_one(real_accept(s, wm)))
    else:
        monkeypatch.setattr("joinery_runtime.core.join.find_ranges", _without_upper_end)

    @settings(quick, max_examples=2000, database=None, phases=[Phase.generate])
    @given(case=cases())
    def search(case: Case) -> None:
        check_against_oracle(case)

    with pytest.raises(AssertionError):
        search()


def _plus_one(value: int | None) -> int | None:
    return None if value is None else value + 1


def _without_upper_end(run_hash: Any, run_ts: Any, hashes: Any, first: Any, last: Any) -> Any:
    return find_ranges(run_hash, run_ts, hashes, first, last - 1)
