"""The engine against the oracle of an aggregate behind a deduplication (D5), on random jobs and histories: late
rows, NULL and NaN groups, idle and ended inputs, restarts, other shard counts, compaction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from budget import examples
from core.cases import HISTORIES, Case
from core.harness import check_against_oracle, few_hashes, merge_early
from core.random_counted import counted_cases


@pytest.fixture(autouse=True)
def eager_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_early(monkeypatch)


@settings(HISTORIES, max_examples=examples(60))
@given(case=counted_cases())
def test_every_epoch_gives_the_oracles_rows_and_counts(case: Case) -> None:
    check_against_oracle(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(30))
@given(case=counted_cases())
def test_colliding_hashes_change_nothing(case: Case) -> None:
    check_against_oracle(case, few_hashes(2))
