"""The as-of join against row-by-row code: random histories, horizons, batch cuts, ties, deletions and compactions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from budget import examples, found_with
from core.kinds.as_of_shard import Oracle, Rate, Row, Shard, Trade, all_the_same, asof_step, far_apart, rows_of
from joinery_runtime.core.kinds import as_of
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.step import StepResult

# Examples are cheap and many; the shared two-core machine makes any deadline a lottery.
quick = settings(deadline=None)


@dataclass(frozen=True)
class Epoch:
    """`compact` says per side which of its runs are merged after the epoch (in turn; the rest are not)."""

    trades: tuple[Trade, ...]
    rates: tuple[Rate, ...]
    now: int | None
    history: int | None
    compact: tuple[tuple[bool, ...], tuple[bool, ...]] = ((), ())


@dataclass(frozen=True)
class Case:
    grace: int
    left: bool
    where: bool
    collide: bool
    epochs: tuple[Epoch, ...]


@st.composite
def cases(draw: Any) -> Case:
    left = draw(st.booleans())
    offsets = iter(range(1000))
    now, history, epochs = None, None, []
    for _ in range(draw(st.integers(1, 6))):
        # Offsets are drawn in no order: what arrived first need not come first in the batch.
        trades = [draw(trades_at(next(offsets), left)) for _ in range(draw(st.integers(0, 4)))]
        rates = [draw(rates_at(next(offsets))) for _ in range(draw(st.integers(0, 5)))]
        now, history = draw(risen(now)), draw(risen(history))
        choices = st.lists(st.booleans(), max_size=6).map(tuple)
        compact = (draw(choices), draw(choices))
        epochs.append(
            Epoch(tuple(draw(st.permutations(trades))), tuple(draw(st.permutations(rates))), now, history, compact)
        )
    return Case(
        draw(st.sampled_from([0, 5])), left, draw(st.sampled_from([False, False, True])), draw(st.booleans()),
        tuple(epochs),
    )  # fmt: skip


def risen(horizon: int | None) -> st.SearchStrategy[int | None]:
    if horizon is None:
        return st.sampled_from([None, 0, 3, 8])
    return st.sampled_from([0, 0, 1, 2, 5]).map(lambda more: horizon + more)


@st.composite
def trades_at(draw: Any, offset: int, left: bool) -> Trade:
    joinable = not left or draw(st.integers(0, 5)) > 0
    return Trade(draw(st.sampled_from("ABC")), draw(st.integers(0, 15)), offset, draw(partitions), offset, joinable)


@st.composite
def rates_at(draw: Any, offset: int) -> Rate:
    value = draw(st.sampled_from([None, 1, 2, 3]))
    # A key that has moved between partitions can have the same offset twice.
    where = draw(st.sampled_from([(0, offset), (1, offset), (2 + offset, 500)]))
    return Rate(draw(st.sampled_from("AAB")), draw(st.integers(0, 15)), value, *where)


partitions = st.sampled_from([0, 0, 1])


def run_case(case: Case, *, compact: bool = True) -> list[tuple[StepResult, list[Row]]]:
    where = "rates.rate >= 2" if case.where else None
    step = asof_step(grace=case.grace, left=case.left, where=where)
    shard = Shard(step, all_the_same if case.collide else far_apart)
    results = []
    for epoch in case.epochs:
        result = shard.epoch(epoch.trades, epoch.rates, now=epoch.now, history=epoch.history)
        results.append((result, rows_of(result)))
        for side in (LEFT, RIGHT):
            if compact:
                shard.compact(side, epoch.compact[side])
    return results


def check(case: Case) -> None:
    oracle = Oracle(case.grace, case.left, lambda rate: not case.where or (rate is not None and rate >= 2))
    for epoch, (result, rows) in zip(case.epochs, run_case(case), strict=True):
        expected_rows, expired, lookups = oracle.epoch(epoch.trades, epoch.rates, epoch.now, epoch.history)
        assert rows == expected_rows
        assert result.dropped == ({}, {"expired": expired} if expired else {})
        assert result.lookups == (lookups, 0)
        assert result.matches == sum(rate is not None for _, _, rate, _ in expected_rows)


@settings(quick, max_examples=examples(400))
@given(case=cases())
def test_every_epoch_gives_the_oracles_rows_in_order_and_counts(case: Case) -> None:
    check(case)


@settings(quick, max_examples=examples(200))
@given(case=cases())
def test_compaction_changes_nothing(case: Case) -> None:
    def seen(*, compact: bool) -> list[Any]:
        return [(rows, result.dropped, result.lookups) for result, rows in run_case(case, compact=compact)]

    assert seen(compact=True) == seen(compact=False)


@settings(quick, max_examples=examples(200))
@given(case=cases(), cut=st.integers(1, 3))
def test_with_one_epoch_per_row_or_all_in_one_what_has_waited_joins_the_same(case: Case, cut: int) -> None:
    """Once every version is there and nothing has expired, only versions and times count, not the epochs' cuts."""
    patient = replace(case, grace=5, epochs=tuple(replace(e, now=None, history=None) for e in case.epochs))
    trades = tuple(t for e in patient.epochs for t in e.trades)
    rates = tuple(r for e in patient.epochs for r in e.rates)
    nothing = Epoch((), (), None, None)
    at_once = replace(nothing, trades=trades, rates=rates)
    cuts = [
        replace(nothing, trades=trades[n : n + cut], rates=rates[n : n + cut])
        for n in range(0, len(trades + rates), cut)
    ]
    end = replace(nothing, now=20)
    one, many = ([row for _, rows in run_case(replace(patient, epochs=(*epochs, end))) for row in rows]
                 for epochs in ([at_once], cuts))  # fmt: skip
    assert sorted(one, key=str) == sorted(many, key=str)


@pytest.mark.search
@pytest.mark.parametrize("broken", ["horizon", "before", "ties", "compaction"])
def test_the_suite_finds_a_broken_core(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that cannot fail proves nothing: each of these one-off mistakes must be found."""
    if broken == "horizon":
        real = as_of.valid_versions
        monkeypatch.setattr(as_of, "valid_versions", lambda step, rows, runs, horizon: real(step, rows, runs, None))
    elif broken == "before":
        monkeypatch.setattr(as_of, "_between", lambda run, before, now: run.batch.filter(run.ts <= now))
    elif broken == "ties":
        monkeypatch.setattr(as_of, "_later", lambda first, second: np.asarray(first[0] > second[0]))
    else:
        monkeypatch.setattr(as_of, "_last_of_their_keys", lambda keys, ranks: np.ones(len(keys), dtype=bool) & False)

    @found_with(1)
    @settings(quick, max_examples=1500, database=None, phases=[Phase.generate])
    @given(case=cases())
    def search(case: Case) -> None:
        check(case)

    with pytest.raises(AssertionError):
        search()
