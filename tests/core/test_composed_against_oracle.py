"""The engine against the oracle of aggregates behind joins, on random chains, aggregates and histories: late rows, NULL
and NaN keys and groups, idle and ended inputs, restarts, other shard counts, compaction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from budget import examples, rest_in_search
from core.cases import HISTORIES, Case, unedited_cases
from core.harness import check_against_oracle, few_hashes, merge_early
from core.random_composed import composed_jobs

KINDS = ("interval", "broadcast", "chain", "fixed", "asof", "mixed", "windows", "any")


@pytest.fixture(autouse=True)
def eager_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_early(monkeypatch)


@pytest.mark.parametrize("kind", rest_in_search(KINDS, ("any",)))
def test_every_epoch_gives_the_oracles_rows_and_counts(kind: str) -> None:
    @settings(HISTORIES, max_examples=examples(150))
    @given(case=unedited_cases(composed_jobs(kind)))
    def check(case: Case) -> None:
        check_against_oracle(case)

    check()


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(case=unedited_cases(composed_jobs("mixed")))
def test_colliding_hashes_change_nothing(case: Case) -> None:
    check_against_oracle(case, few_hashes(2))
