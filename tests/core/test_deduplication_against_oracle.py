"""The engine (driver, planner, worker, kernel, store) against the oracle of deduplication, on random jobs and
histories: late rows, NULL and NaN keys, idle and ended inputs, crashes, restarts, rescales, compaction, edits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.cases import HISTORIES, Case
from core.harness import check_against_oracle, few_hashes, merge_early
from core.random_deduplication import deduplicated_cases


@pytest.fixture(autouse=True)
def eager_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_early(monkeypatch)


@settings(HISTORIES, max_examples=examples(150))
@given(case=deduplicated_cases())
def test_every_epoch_gives_the_oracles_rows_and_counts(case: Case) -> None:
    check_against_oracle(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(case=deduplicated_cases())
def test_colliding_hashes_change_nothing(case: Case) -> None:
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(data=st.data(), case=deduplicated_cases())
def test_a_job_with_an_edited_lateness_emits_nothing_twice(data: Any, case: Case) -> None:
    """What was emitted before an edit stays as it is (M2)."""
    at = data.draw(st.integers(1, len(case.epochs) - 1))
    check_against_oracle(case.edited(at, case.job.with_lateness(data.draw(st.sampled_from([0, 2, 12, 40])))))
