"""The engine (driver, planner, worker, kernel, store) against the oracle of sessions, on random jobs and histories:
late rows, caps, NULL and NaN groups, idle and ended inputs, crashes, restarts, rescales, compaction, edits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.cases import HISTORIES, Case, Epoch
from core.harness import Result, check_against_oracle, few_hashes, merge_early, run
from core.random_sessions import (
    EVERY,
    INPUT,
    NO_CAP,
    SessionJob,
    input_of,
    punctual_sessions,
    session_cases,
    session_cuts,
)
from core.session_table import UpsertTable
from joinery_devkit.oracle import Row, multiset
from joinery_runtime.core.table.keyhash import KeyHash, key_hash
from joinery_runtime.job import SessionWindow


@pytest.fixture(autouse=True)
def eager_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_early(monkeypatch)


def check(case: Case, hasher: KeyHash = key_hash) -> None:
    """Every epoch as the oracle says, and a reader can follow it."""
    jobs = [case.job.job, *(epoch.job.job for epoch in case.epochs if epoch.job is not None)]
    # One that reached the cap may lie inside an open one: beside its mark if the cap is narrow, or when that is gone.
    # Under a longer gap a kept one may take a row that is near to one that was forgotten, too.
    longer = any(job.sessions.gap > case.job.job.sessions.gap for job in jobs)
    capped = any(job.spec.max_duration != NO_CAP for job in jobs)
    apart = case.job.job.spec.emit_retractions and not longer and not capped
    reopens = any(job.spec.late_data == "reopen" for job in jobs)
    table = UpsertTable(case.job.job)
    for result in check_against_oracle(case, hasher):
        table.apply(result.rows)
        if apart:
            table.check_apart()
        if reopens:
            table.forget(_forgotten_before(result))


def _forgotten_before(result: Result) -> int | None:
    """Sessions whose last row is older have left the state by the end of this epoch."""
    watermark, job = result.report.watermarks[INPUT], result.job
    assert isinstance(job, SessionWindow)
    return None if watermark is None else watermark - job.spec.gap - job.spec.allowed_lateness


@settings(HISTORIES, max_examples=examples(160))
@given(case=session_cases())
def test_every_epoch_gives_the_oracles_rows_and_counts(case: Case) -> None:
    check(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(80))
@given(case=session_cases(having=True))
def test_sessions_that_do_not_meet_the_condition_are_counted_or_taken_back(case: Case) -> None:
    check(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(100))
@given(case=session_cases(early=True))
def test_early_results_are_what_has_changed_so_far(case: Case) -> None:
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(data=st.data())
def test_expressions_are_computed_of_each_row_that_is_emitted_or_taken_back(data: Any) -> None:
    chosen = data.draw(st.sampled_from(["having", "early", "computing"]))
    check_against_oracle(data.draw(session_cases(**{chosen: True, "computing": True})), few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(100))
@given(data=st.data())
def test_rows_with_values_that_do_not_fit_are_dead_letters(data: Any) -> None:
    """Those of a changelog are emitted as well, with NULL, and taken back as such (S7)."""
    chosen = data.draw(st.sampled_from(["having", "early", "computing"]))
    computing = data.draw(st.booleans())
    case = data.draw(session_cases(**{chosen: True, "large": True, "computing": computing}))
    check_against_oracle(case, few_hashes(2))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(case=session_cases())
def test_colliding_hashes_change_nothing(case: Case) -> None:
    check(case, few_hashes(2))


@pytest.mark.soak  # the cases above draw the shards of each epoch, and the oracle knows of none
@settings(HISTORIES, max_examples=examples(20))
@given(case=session_cases())
def test_the_number_of_shards_changes_nothing(case: Case) -> None:
    def rows(shards: int) -> list[Any]:
        epochs = tuple(replace(epoch, shards=shards) for epoch in case.epochs)
        # Whether an epoch without rows has something to close is judged by segments, of which there are more then.
        results = [(multiset(result.rows), result.report.dropped) for result in run(replace(case, epochs=epochs))]
        return [result for result in results if any(result)]

    assert rows(1) == rows(3) == rows(8)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(data=st.data(), punctual=punctual_sessions())
def test_where_epochs_are_cut_changes_nothing_in_the_end(data: Any, punctual: Any) -> None:
    """T9, against all rows at once."""
    case, arrivals = punctual
    table = UpsertTable(case.job.job)
    for result in run(replace(case, epochs=data.draw(session_cuts(arrivals)))):
        table.apply(result.rows)
        assert not any("late" in dropped for dropped in result.report.dropped.values())
    table.compare(case.job.shape, arrivals)


EDITS: dict[str, list[Any]] = {
    "allowedLateness": ["0ms", "1ms", "5ms", "12ms", "40ms"],
    "lateData": ["drop", "reopen"],
    "maxDuration": ["2ms", "6ms", "12ms"],
    "gap": ["1ms", "3ms", "9ms"],
}


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(60))
@given(data=st.data(), case=session_cases())
def test_an_edited_job_goes_on_and_gives_nothing_twice(data: Any, case: Case) -> None:
    """What had been forgotten before an edit does not come again as something new (M2)."""
    edit = data.draw(st.fixed_dictionaries({}, optional={name: st.sampled_from(to) for name, to in EDITS.items()}))
    at = data.draw(st.integers(1, len(case.epochs) - 1))
    check(case.edited(at, case.job.edited(**edit)))


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(40))
@given(data=st.data(), case=session_cases())
def test_early_results_begin_with_all_open_sessions_of_the_state(data: Any, case: Case) -> None:
    """Rows from before the edit count as changed (G8, M2)."""
    at = data.draw(st.integers(1, len(case.epochs) - 1))
    every = f"{data.draw(st.sampled_from(EVERY))}ms"
    check_against_oracle(case.edited(at, case.job.edited(emit={"every": every})))


def one_group(**spec: Any) -> SessionJob:
    """Rows of one group, counted as `rows`."""
    types = {"k": "int64", "n": "int32", "v": "int64", "w": "int64"}
    counted = {"groupBy": ["k"], "aggregates": [{"function": "count", "as": "rows"}]}
    written = {"output": {"file": {"path": "out.jsonl"}, "format": "json"}}
    document = {"metadata": {"name": "one-group"}, "spec": {"input": input_of(types), **counted, **written, **spec}}
    return SessionJob(SessionWindow.model_validate(document), types)


def at(offset: int, ts: int) -> Row:
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts)
    return Row(0, offset, ts, {"k": 1, "n": 0, "v": 1, "w": 1, "ts": when})


def test_a_late_row_inside_a_session_that_is_longer_than_an_edited_cap() -> None:
    """The row makes the session no longer, so that the smaller cap has nothing to say (S5). One beside it is late."""
    before = one_group(gap="5ms", maxDuration="100ms", lateData="reopen", allowedLateness="10ms")
    epochs = (
        Epoch({INPUT: [at(offset, ts) for offset, ts in enumerate([100, 105, 110, 115, 120, 124, 130])]}),
        Epoch({INPUT: [at(7, 102), at(8, 97)]}, job=before.edited(maxDuration="6ms")),
        Epoch({}, final=(INPUT,)),
    )
    case = Case(before, {INPUT: (0,)}, epochs)
    check(case)
    results = run(case)
    sessions = [(row["window_start"], row["window_end"], row["rows"]) for result in results for row in result.rows]
    assert sessions == [(100, 124, 6), (100, 124, 7), (130, 130, 1)]
    assert [result.report.dropped.get(INPUT) for result in results if result.report.dropped] == [{"late": 1}]


def test_a_kept_session_may_take_a_late_row_from_the_time_of_one_that_is_forgotten() -> None:
    """Then two sessions of a group share a moment, and no row is in both (S5)."""
    late = {"lateData": "reopen", "allowedLateness": "25ms"}
    job = one_group(gap="5ms", maxDuration=f"{NO_CAP}ms", emitRetractions=True, **late)
    first = [at(offset, ts) for offset, ts in enumerate([95, 100, 105, 109, 140])]
    epochs = (
        Epoch({INPUT: first}),
        Epoch({INPUT: [at(5, 110)]}),
        Epoch({INPUT: [at(6, 107), at(7, 104)]}),
        Epoch({}, final=(INPUT,)),
    )
    case = Case(job, {INPUT: (0,)}, epochs)
    check(case)
    table, results = UpsertTable(job.job), run(case)
    for result in results:
        table.apply(result.rows)
    sessions = [(row["window_start"], row["window_end"], row["rows"]) for row in table.rows]
    assert sorted(sessions) == [(95, 109, 4), (107, 110, 2), (140, 140, 1)]
    assert [epoch_result.report.dropped for epoch_result in results if epoch_result.report.dropped] == [
        {INPUT: {"late": 1}}
    ]
