"""The oracle, epoch by epoch, against the plain meaning of each join over all rows at once: where epochs are cut
changes only when rows come out (T9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.cases import HISTORIES, Case, Epoch, cuts, punctual
from core.random_jobs import KINDS
from joinery_devkit.oracle import Joined, WatermarkOracle, brute_force


@pytest.mark.parametrize("kind", KINDS)
def test_where_epochs_are_cut_changes_only_when_rows_come_out(kind: str) -> None:
    @settings(HISTORIES, max_examples=examples(150))
    @given(data=st.data(), history=punctual(kind))
    def check(data: Any, history: Any) -> None:
        case, arrivals = history
        all_rows = {name: [row for side, row in arrivals if side == name] for name in case.job.inputs}
        oracle = case.job.oracle()
        expected = count_positions(brute_force(oracle.inputs, oracle.steps, all_rows))
        for _ in range(2):
            assert replay(case, data.draw(cuts(case.job, arrivals))) == expected

    check()


def replay(case: Case, epochs: Iterable[Epoch]) -> Counter[Hashable]:
    oracle = case.job.oracle()
    delays = {side.name: side.watermark.delay for side in case.job.job.spec.inputs}
    marks = WatermarkOracle(delays, case.partitions)
    joined_places: Counter[Hashable] = Counter()
    for epoch in epochs:
        expected = oracle.epoch(marks.watermarks(), epoch.rows)
        assert not any(expected.late.values())
        joined_places += count_positions(expected.joined)
        for name, listed in epoch.rows.items():
            for row in listed:
                marks.saw(name, row.partition, [row.ts])
    for expected in oracle.end():
        joined_places += count_positions(expected.joined)
    assert not list(next(oracle.end()).joined), "everything has closed"
    return joined_places


def count_positions(rows: Iterable[Joined]) -> Counter[Hashable]:
    return Counter((row.positions, row.window) for row in rows)
