"""Segments of a wider job and of a narrower one merge: dropping a column from `select` goes on (M2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from engine.sim_jobs import FULL, parsed
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.core.pipeline.sides import LEFT, SideSpec
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.table.columns import ENGINE_FIELDS, FLAG
from joinery_runtime.core.table.segment import Run, SegmentMeta, describe, encode
from joinery_runtime.engine.cache import FlagCache, SegmentCache
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.step_task import StepTask


class Blobs:
    def __init__(self, blobs: dict[str, bytes]) -> None:
        self._blobs = blobs

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: self._blobs[key] for key in keys}


def run_of(side: SideSpec, offset: int) -> Run:
    """One row, flagged if its offset is odd."""
    values = {"$hash": 1, "$ts": offset, "$partition": 0, "$offset": offset, FLAG: offset % 2 == 1}
    schema = side.segment_schema()
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    return Run.sort(pa.record_batch(arrays, schema=schema))


def narrowed(pipeline: Pipeline) -> Pipeline:
    """Only the keys are stored on the left side."""
    (step,) = pipeline.steps
    left, right = step.sides
    narrow = replace(left, intake=replace(left.intake, stored=left.intake.keys))
    return replace(pipeline, steps=(replace(step, sides=(narrow, right)),))


def merged(pipeline: Pipeline, runs: dict[str, Run], cache: Path) -> Run:
    """The left side's segments, in an epoch in which nothing arrives."""
    blobs = {key: encode(run.batch) for key, run in runs.items()}
    segments = [describe(run, key=key, part="left", epoch=1, blob=blobs[key]) for key, run in runs.items()]
    segment_cache = SegmentCache(cache, cast(Any, Blobs(blobs)), "job")
    horizons = dict.fromkeys(pipeline.parts(), Horizon())
    plan = EpochPlan(2, 1, (), {"orders": None, "payments": None}, checkpoint=True, horizons=horizons)
    work = EpochWork(1, plan, tuple[SegmentMeta, ...](segments))
    task = StepTask(pipeline, pipeline.steps[0], 0, work, segment_cache, FlagCache(segment_cache))
    with pytest.raises(StopIteration) as ended:
        next(task.run((None, None), ordered=False))
    done = ended.value.value
    assert set(done.replaced) == set(runs)
    ((part, run),) = done.runs
    assert part == "left"
    return run


def test_wide_segments_merge_with_a_narrow_one(tmp_path: Path) -> None:
    wide = compile_join(parsed(FULL))
    narrow = narrowed(wide)
    before, after = (pipeline.steps[0].sides[LEFT] for pipeline in (wide, narrow))
    runs = {str(n): run_of(before, n) for n in range(3)} | {"3": run_of(after, 3)}
    run = merged(narrow, runs, tmp_path)
    assert run.batch.schema.names == [*(field.name for field in ENGINE_FIELDS), FLAG, *after.intake.keys]
    assert run.ts.tolist() == [0, 1, 2, 3]
    assert run.batch.column(FLAG).to_pylist() == [False, True, False, True]
