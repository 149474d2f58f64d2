"""The engine (driver, planner, worker, kernels, store) against the oracle, on random jobs of every kind and random
histories: late rows, rows too far ahead, NULL and NaN keys, idle and ended inputs, partitions that are added or
elsewhere, restarts, other shard counts, compaction, edits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples, few_of, rest_in_search
from core.cases import HISTORIES, START, Case, Epoch, cases, cuts, punctual
from core.harness import check_against_oracle, few_hashes, merge_early, run
from core.random_jobs import KINDS, Job, unless_null
from joinery_devkit.oracle import Predicates, Row, brute_force, multiset, output_columns, output_row
from joinery_runtime.core.table import compaction, sort
from joinery_runtime.job import StreamJoin


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment of a short history would have a filter either."""
    monkeypatch.setattr(sort, "_FILTERED", 0)
    merge_early(monkeypatch)
    monkeypatch.setattr(compaction, "EPOCH_BYTES", 0)


def search(kind: str, count: int, check: Callable[[Case], object]) -> None:
    @settings(HISTORIES, max_examples=examples(count))
    @given(case=cases(kind))
    def every(case: Case) -> None:
        check(case)

    every()


@pytest.mark.parametrize("kind", rest_in_search(KINDS, ("asof", "any")))
def test_every_epoch_gives_the_oracles_rows_and_counts(kind: str) -> None:
    search(kind, 120, check_against_oracle)


def test_a_condition_on_an_earlier_table_drops_no_version() -> None:
    """A later step's condition on a table of an earlier step is about the version that was found (A1, J4)."""
    schema = [{"name": name, "type": kind} for name, kind in (("k", "int64"), ("v", "int64"), ("ts", "timestamp"))]
    inputs = [
        {
            "name": name,
            "file": {"path": f"{name}.jsonl"},
            "format": "json",
            "schema": schema,
            "eventTime": "ts",
            "watermark": {"delay": "0ms"},
            **({"table": {"key": ["k"]}} if name != "o" else {}),
        }
        for name in ("o", "r", "x")
    ]
    as_of = {"keys": {"o.k": "r.k"}, "asOf": {"historyRetention": "1h"}}
    steps = [{"right": "r", **as_of}, {"right": "x", **as_of, "keys": {"o.k": "x.k"}, "where": "r.v > 0"}]
    spec = {"inputs": inputs, "joins": steps, "output": {"file": {"path": "out.jsonl"}, "format": "json"}}
    resource = StreamJoin.model_validate({"metadata": {"name": "early"}, "spec": spec})
    condition = Predicates(unless_null(lambda v: v > 0, ("r", "v")), left_reads=frozenset({"r"}))

    def version(offset: int, v: int | None, *, deleted: bool = False) -> Row:
        ts = START + 10 * offset
        return Row(0, offset, ts, {"k": 1, "v": v, "ts": datetime.fromtimestamp(ts / 1000, UTC)}, deleted)

    versions = [version(0, 3), version(1, 0), version(2, None, deleted=True), version(3, 4)]
    epoch = Epoch({"r": versions, "x": [version(0, 1)], "o": [version(number, number) for number in range(4)]})
    subject = Job(resource, {1: condition}, {}, {"k": "int64", "n": "integers"})
    results = check_against_oracle(Case(subject, dict.fromkeys("orx", (0,)), (epoch,)))
    assert [(row["o_v"], row["r_v"]) for result in results for row in result.rows] == [(0, 3), (3, 4)]
    assert not any(any(result.report.dropped.values()) for result in results)


# The keys of rows are compared by the kernels: one of each.
@pytest.mark.search
@pytest.mark.parametrize("kind", few_of(KINDS, ("interval", "fixed", "session", "asof", "computed", "any")))
def test_colliding_hashes_change_nothing(kind: str) -> None:
    search(kind, 40, lambda case: check_against_oracle(case, few_hashes(2)))


@pytest.mark.soak  # the cases above draw the shards of each epoch, and the oracle knows of none
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_shards_changes_nothing(kind: str) -> None:
    def check(case: Case) -> None:
        def rows(shards: int) -> list[Any]:
            epochs = tuple(replace(epoch, shards=shards) for epoch in case.epochs)
            # Whether an epoch without rows has something to close is judged by segments, of which there are more then.
            results = [(multiset(result.rows), result.report.dropped) for result in run(replace(case, epochs=epochs))]
            return [result for result in results if any(result)]

        assert rows(1) == rows(3) == rows(8)

    search(kind, 12, check)


# What runs on threads knows no kind: jobs of several steps are enough.
@pytest.mark.search
@pytest.mark.parametrize("kind", few_of(KINDS, ("chain", "mixed", "any")))
def test_shards_and_readers_on_threads_change_nothing(kind: str) -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # seconds: threads get in between each other's steps far more often than usual
    try:
        search(kind, 12, lambda case: check_against_oracle(case, threads=3))
    finally:
        sys.setswitchinterval(switching)


@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
def test_where_epochs_are_cut_changes_only_when_rows_come_out(kind: str) -> None:
    """T9, against the plain meaning of the join over all rows at once."""

    @settings(HISTORIES, max_examples=examples(40))
    @given(data=st.data(), history=punctual(kind))
    def check(data: Any, history: Any) -> None:
        case, arrivals = history
        oracle = case.job.oracle()
        rows = {name: [row for side, row in arrivals if side == name] for name in case.job.inputs}
        columns = output_columns(case.job.job, case.job.computed)
        expected = multiset(output_row(row, columns) for row in brute_force(oracle.inputs, oracle.steps, rows))
        results = run(replace(case, epochs=data.draw(cuts(case.job, arrivals))))
        assert multiset(row for result in results for row in result.rows) == expected
        assert not any("late" in dropped for result in results for dropped in result.report.dropped.values())

    check()
