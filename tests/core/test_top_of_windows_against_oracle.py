"""The engine against the oracle of top-N behind aggregates (R6), on random jobs and histories: late rows, NULL and NaN
groups, idle and ended inputs, restarts, other shard counts, compaction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from budget import examples
from core.cases import HISTORIES, Case
from core.harness import check_against_oracle, few_hashes, merge_early
from core.random_top_of_windows import top_of_windows_cases


@pytest.fixture(autouse=True)
def eager_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_early(monkeypatch)


@settings(HISTORIES, max_examples=examples(60))
@given(case=top_of_windows_cases())
def test_every_epoch_gives_the_oracles_rows_and_counts(case: Case) -> None:
    check_against_oracle(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(30))
@given(case=top_of_windows_cases())
def test_colliding_hashes_change_nothing(case: Case) -> None:
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(40))
@given(case=top_of_windows_cases(local=True))
def test_windows_of_a_zone_are_told_apart_by_their_ends(case: Case) -> None:
    check_against_oracle(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(40))
@given(case=top_of_windows_cases(ranked=True))
def test_rows_have_ranks(case: Case) -> None:
    check_against_oracle(case)
