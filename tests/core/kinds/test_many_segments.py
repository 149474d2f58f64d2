"""What a row costs must hardly grow with the number of segments that may have its partner, and have not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from core.kinds.as_of_shard import asof_step
from core.step_runs import ran
from joinery_runtime.core.kinds import as_of, interval
from joinery_runtime.core.kinds.interval import IntervalJoin
from joinery_runtime.core.pipeline.prepare import DecodedRecords, prepare
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StateRun, StepWork
from joinery_runtime.core.table.segment import Run
from joinery_runtime.core.table.sort import find_ranges

ROWS, SEGMENTS, PARTNERS = 10_000, 6, 1_000


def rows_of(step: StepSpec, side: int, keys: range) -> pa.RecordBatch:
    intake, count = step.sides[side].intake, len(keys)
    values: dict[str, Any] = {"currency": [str(key) for key in keys], "amount": [1] * count, "rate": [1] * count}
    columns = [pa.array(values.get(field.name, [1_000] * count), field.type) for field in intake.schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=intake.schema)
    return prepare(intake, DecodedRecords(batch, 0, np.arange(count))).rows


@pytest.mark.parametrize("module", [interval, as_of])
def test_rows_are_searched_only_in_segments_that_may_have_their_key(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def counted(run_hash: np.ndarray, run_ts: np.ndarray, hashes: np.ndarray, *bounds: np.ndarray) -> Any:
        searched.append(len(hashes))
        return find_ranges(run_hash, run_ts, hashes, *bounds)

    monkeypatch.setattr(module, "find_ranges", counted)
    step = asof_step()
    if module is interval:
        step = replace(step, kind=IntervalJoin(0, 0))
    segments = [rows_of(step, RIGHT, range(ROWS * n, ROWS * (n + 1))) for n in range(SEGMENTS)]
    state_runs = [StateRun(str(n), Run.sort(rows)) for n, rows in enumerate(segments)]
    stored = ROWS * SEGMENTS
    arrivals = (rows_of(step, LEFT, range(stored - PARTNERS, stored + ROWS)), None)
    result = ran(step.kind.run(step, StepWork(arrivals, ([], state_runs), (Horizon(None, 1_000), Horizon()))))
    assert sum(batch.num_rows for batch in result.output) == result.matches == PARTNERS
    assert len(searched) == SEGMENTS
    assert sum(searched) < PARTNERS + SEGMENTS * (ROWS + PARTNERS) // 8
