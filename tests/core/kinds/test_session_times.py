"""Which rows are late, what an epoch closes and what it need not look at, for a job of sessions."""

from __future__ import annotations

from typing import Any

import pytest

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import COMPLETE, SESSIONS
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputTime
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.job import SessionWindow
from joinery_runtime.job.model.base import PLAIN_NUMBERS

GAP, LATENESS = 10, 200


def accept_from(pipeline: Pipeline, watermarks: dict[str, int | None]) -> tuple[int | None, ...]:
    return pipeline.last.kind.accept_from(pipeline.last, watermarks)


def pipeline(**changed: Any) -> Pipeline:
    clicks = {
        "name": "clicks",
        "file": {"path": "clicks.jsonl"},
        "format": "json",
        "schema": [{"name": "user", "type": "string"}, {"name": "ts", "type": "timestamp"}],
        "eventTime": "ts",
    }
    spec = {"input": clicks, "groupBy": ["user"], "gap": GAP, "maxDuration": 1000, "allowedLateness": LATENESS}
    document = {"metadata": {"name": "sessions"}, "spec": {**spec, "output": {"file": {"path": "out"}}, **changed}}
    return compile_job(SessionWindow.model_validate(document, context=PLAIN_NUMBERS))


def segment(ts_min: int, ts_max: int) -> SegmentMeta:
    return SegmentMeta("s", SESSIONS, 0, 1, ts_min, ts_max, 5, 100, 1, 1)


def horizons(job_pipeline: Pipeline, watermark: int, floors: dict[str, int]) -> dict[str, Horizon]:
    return times.horizons(job_pipeline, {"clicks": InputTime(watermark)}, floors)


@pytest.mark.parametrize(("late_data", "complete"), [("drop", 1000 - GAP - LATENESS), ("reopen", 1000 - GAP)])
def test_sessions_go_out_and_are_forgotten_behind_the_watermark(late_data: str, complete: int) -> None:
    horizon_by_part = horizons(pipeline(lateData=late_data), 1000, {})
    assert horizon_by_part == {SESSIONS: Horizon(None, 1000 - GAP - LATENESS), COMPLETE: Horizon(None, complete)}


def test_the_end_completes_and_forgets_everything() -> None:
    horizon_by_part = horizons(pipeline(lateData="reopen"), END_OF_TIME, {})
    assert horizon_by_part == {SESSIONS: Horizon(None, END_OF_TIME), COMPLETE: Horizon(None, END_OF_TIME)}


def test_a_longer_gap_makes_no_row_late() -> None:
    """S4 counts from the watermark alone, also where the horizon still stands where a shorter gap had brought it."""
    before = horizons(pipeline(allowedLateness=0), 1000, {})
    longer = pipeline(allowedLateness=0, gap=500)
    assert horizons(longer, 1000, times.floors_after(before))[SESSIONS].current == 990
    assert accept_from(longer, {"clicks": 1000}) == (1000,)


@pytest.mark.parametrize(
    ("late_data", "watermark", "lowest"), [("drop", 1000, 800), ("drop", None, None), ("reopen", 1000, None)]
)
def test_what_is_late(late_data: str, watermark: int | None, lowest: int | None) -> None:
    """S4; with `reopen` it depends on what is kept (S5)."""
    assert accept_from(pipeline(lateData=late_data), {"clicks": watermark}) == (lowest,)


def test_sessions_that_have_gone_out_and_wait_for_late_rows_ask_for_no_epochs() -> None:
    """T3: an epoch without rows is for what it emits."""
    job = pipeline(lateData="reopen")
    floors = times.floors_after(horizons(job, 1000, {}))
    later = horizons(job, 1001, floors)
    assert not times.closes(job, segment(900, 989), later), "gone out"
    assert times.closes(job, segment(900, 990), later), "this one goes out now"
    assert not times.closes(job, segment(991, 995), later), "not yet"


def test_a_segment_is_seen_until_its_last_session_is_forgotten() -> None:
    job = pipeline(lateData="reopen")
    floors = times.floors_after(horizons(job, 1000, {}))
    later = horizons(job, 1100, floors)
    assert not times.needed(job, segment(0, 789), later)
    assert times.needed(job, segment(0, 790), later)
    assert times.expired(job, segment(0, 889), later)
    assert not times.expired(job, segment(0, 890), later)
