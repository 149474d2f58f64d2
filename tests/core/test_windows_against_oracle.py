"""The engine (driver, planner, worker, kernel, store) against the oracle of windows, on random jobs and histories: late
rows, NULL and NaN groups, idle and ended inputs, crashes, restarts, rescales, compaction, edits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.cases import HISTORIES, Case
from core.harness import check_against_oracle, few_hashes, merge_early
from core.random_sessions import EVERY
from core.random_windows import windowed_cases


@pytest.fixture(autouse=True)
def eager_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_early(monkeypatch)


@settings(HISTORIES, max_examples=examples(200))
@given(case=windowed_cases())
def test_every_epoch_gives_the_oracles_rows_and_counts(case: Case) -> None:
    check_against_oracle(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(case=windowed_cases(having=True))
def test_windows_that_do_not_meet_the_condition_are_counted(case: Case) -> None:
    check_against_oracle(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(data=st.data())
def test_expressions_are_computed_of_each_row_that_is_emitted(data: Any) -> None:
    chosen = data.draw(st.sampled_from(["having", "early", "reopen", "computing"]))
    check_against_oracle(data.draw(windowed_cases(**{chosen: True, "computing": True})), few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(80))
@given(case=windowed_cases(early=True))
def test_early_results_are_what_has_changed_so_far(case: Case) -> None:
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(100))
@given(data=st.data())
def test_windows_that_reopen_are_emitted_again_after_each_change(data: Any) -> None:
    case = data.draw(windowed_cases(reopen=True, early=data.draw(st.booleans())))
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(100))
@given(data=st.data())
def test_rows_with_values_that_do_not_fit_are_dead_letters(data: Any) -> None:
    """Those of a changelog are emitted as well, with NULL (S7)."""
    chosen = data.draw(st.sampled_from(["having", "early", "reopen", "computing", "local"]))
    computing = data.draw(st.booleans())
    case = data.draw(windowed_cases(**{chosen: True, "large": True, "computing": computing}))
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(120))
@given(data=st.data())
def test_windows_of_a_zone_begin_and_end_by_its_clocks(data: Any) -> None:
    early, reopen = data.draw(st.sampled_from([(False, False), (False, False), (True, False), (False, True)]))
    check_against_oracle(data.draw(windowed_cases(local=True, early=early, reopen=reopen)), few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(case=windowed_cases())
def test_colliding_hashes_change_nothing(case: Case) -> None:
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(data=st.data(), case=windowed_cases())
def test_a_job_with_an_edited_lateness_emits_nothing_twice(data: Any, case: Case) -> None:
    """What was emitted before an edit stays as it is (M2)."""
    at = data.draw(st.integers(1, len(case.epochs) - 1))
    check_against_oracle(case.edited(at, case.job.with_lateness(data.draw(st.sampled_from([0, 2, 12, 40])))))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(40))
@given(data=st.data(), case=windowed_cases())
def test_early_results_begin_with_all_open_windows_of_the_state(data: Any, case: Case) -> None:
    """Rows from before the edit count as changed (G8, M2)."""
    at = data.draw(st.integers(1, len(case.epochs) - 1))
    check_against_oracle(case.edited(at, case.job.with_early_results(data.draw(st.sampled_from(EVERY)))))
