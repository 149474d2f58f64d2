"""One key with very many rows on both sides and few matches costs its matches, not their product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from core.step_runs import Ran, ran
from job.resources import job
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.core.kinds import interval as join
from joinery_runtime.core.kinds.interval import IntervalJoin
from joinery_runtime.core.pipeline.prepare import DecodedRecords, prepare
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StateRun, StepWork
from joinery_runtime.core.table.segment import Run
from joinery_runtime.core.table.sort import Ranges, list_pairs

ROWS = 100_000
SPACING_MS = 1_000
HOUR = 3_600_000


def step_of(lower: int, upper: int) -> StepSpec:
    (step,) = compile_join(job()).steps
    return replace(step, kind=IntervalJoin(lower, upper))


def rows_of(step: StepSpec, side: int, first: int) -> pa.RecordBatch:
    """ROWS rows of one key, one each SPACING_MS from `first` on."""
    intake = step.sides[side].intake
    values = {"order_id": ["hot"] * ROWS, "country": [49] * ROWS, "ts": first + np.arange(ROWS) * SPACING_MS}
    columns = [pa.array(values.get(field.name, [None] * ROWS), field.type) for field in intake.schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=intake.schema)
    return prepare(intake, DecodedRecords(batch, 0, np.arange(ROWS))).rows


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many candidate pairs each probe listed: the only rows whose keys and residual are compared."""
    counts: list[int] = []

    def counted(ranges: Ranges) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for pairs in list_pairs(ranges):
            counts.append(len(pairs[0]))
            yield pairs

    monkeypatch.setattr(join, "list_pairs", counted)
    return counts


def count_rows(result: Ran) -> int:
    return sum(batch.num_rows for batch in result.output)


@pytest.mark.parametrize("in_state", [False, True])
def test_only_rows_that_are_near_in_time_are_compared(looked_at: list[int], in_state: bool) -> None:
    step = step_of(0, 0)
    left, right = rows_of(step, LEFT, HOUR), rows_of(step, RIGHT, HOUR + 10 * SPACING_MS)
    state = [StateRun("s", Run.sort(left))] if in_state else []
    arrivals = (None, right) if in_state else (left, right)
    result = ran(step.kind.run(step, StepWork(arrivals, (state, []), (Horizon(), Horizon()))))
    assert count_rows(result) == result.matches == ROWS - 10
    assert sum(looked_at) == ROWS - 10


def test_no_pair_is_compared_where_no_times_fit(looked_at: list[int]) -> None:
    step = step_of(1, SPACING_MS - 1)
    sides = (rows_of(step, LEFT, HOUR), rows_of(step, RIGHT, HOUR))
    result = ran(step.kind.run(step, StepWork(sides, ([], []), (Horizon(), Horizon()))))
    assert (count_rows(result), looked_at) == (0, [])
    assert result.lookups == (ROWS, ROWS)


def test_the_rows_behind_the_horizon_are_not_compared(looked_at: list[int]) -> None:
    step = step_of(-HOUR * 1_000, HOUR * 1_000)
    state_run = StateRun("s", Run.sort(rows_of(step, LEFT, HOUR)))
    newest = HOUR + (ROWS - 3) * SPACING_MS
    arriving = rows_of(step, RIGHT, HOUR).slice(0, 5)
    work = StepWork((None, arriving), ([state_run], []), (Horizon(None, newest), Horizon()))
    assert count_rows(ran(step.kind.run(step, work))) == sum(looked_at) == 5 * 3


def test_a_product_of_rows_is_never_in_memory_whole() -> None:
    """2,000 x 2,000 rows that all match are 4 M rows from 4,000."""
    step = step_of(-HOUR * 1_000, HOUR * 1_000)
    sides = (rows_of(step, LEFT, HOUR).slice(0, 2_000), rows_of(step, RIGHT, HOUR).slice(0, 2_000))
    before, peak, count = pa.total_allocated_bytes(), 0, 0
    for batch in step.kind.run(step, StepWork(sides, ([], []), (Horizon(), Horizon()))):
        count += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert count == 2_000 * 2_000
    assert peak < 64 << 20
