"""`joinery state show`: shows what is kept for one key, and when each row of it will go."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.kinds.rows import Selection, gather
from joinery_runtime.core.pipeline.sides import FLAGS, stored_rows
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.core.table.keyhash import HashRange
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.engine.job_state import stored_co_partitions
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.inspect.kinds.base import EntryView, EpochTimes, StoredRows, description_of
from joinery_runtime.inspect.state_key import StepKey, keys_of
from joinery_runtime.inspect.stored_state import NextEpoch, record_of
from joinery_runtime.job import Job, time_value
from joinery_runtime.job.model.wording import agreeing
from joinery_runtime.state.migrations import flagged_rows, read_runs
from joinery_runtime.state.store import StateReader


@dataclass(frozen=True, slots=True)
class StepView:
    """What one step (1 is the first) keeps of the key."""

    step: int
    key: Mapping[str, Any]
    hash: int
    segments_read: int
    counted: str
    """How much of the `rows` is kept; the others have left."""
    rows: Sequence[EntryView]

    @property
    def left(self) -> int:
        return sum(row.left for row in self.rows)

    def document(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "key": dict(self.key),
            "hash": self.hash,
            "segments_read": self.segments_read,
            "rows": [row.document() for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class KeyView:
    job: str
    epoch: int
    watermarks: Mapping[str, Watermark]
    steps: Sequence[StepView]

    def without_left_rows(self) -> KeyView:
        """Leave out what has left the state and is only stored."""
        steps = [replace(step, rows=[row for row in step.rows if not row.left]) for step in self.steps]
        return replace(self, steps=steps)

    def document(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "epoch": self.epoch,
            "watermarks": {name: time_value(at) for name, at in self.watermarks.items()},
            "steps": [step.document() for step in self.steps],
        }

    def lines(self) -> Iterator[str]:
        for step in self.steps:
            key = ", ".join(f"{name} {json.dumps(value)}" for name, value in step.key.items())
            heading = f"job {self.job}, step {step.step}, key {key}"
            left_note = f"; {step.left:,} that left the state {agreeing(step.left, 'are')} still stored"
            kept_note = f"{step.counted} {agreeing(len(step.rows) - step.left, 'are')} kept after epoch {self.epoch}"
            yield f"{heading}: {kept_note}{left_note if step.left else ''}"
            for row in step.rows:
                yield row.line()


def show(
    job: Job, store: StateReader, texts: Sequence[str], step: int | None = None, pipeline: Pipeline | None = None
) -> KeyView:
    """Find what is kept for a key. `texts` are COLUMN=VALUE, one for each column of the key. `step` (1 is the first)
    restricts the search to one step. `pipeline` is the compiled job, if the caller has it. Raises JoineryError, which
    says what is wrong with the texts."""
    pipeline, record = pipeline or compile_job(job), record_of(job, store)
    keys = keys_of(job, pipeline, texts, step, stored_co_partitions(record))
    keyed_steps = [(pipeline.steps[key.step], key) for key in keys]
    record, runs = read_runs(
        store, record, lambda meta: any(may_have(step, key, meta) for step, key in keyed_steps), lambda _, run: run
    )
    after = NextEpoch.of(pipeline, record)
    shown = []
    for keyed_step, key in keyed_steps:
        segments = [(meta, runs[meta.key]) for meta in record.segments if may_have(keyed_step, key, meta)]
        rows = entries_of_key(keyed_step, key, segments, after.epoch_times)
        counted = description_of(keyed_step).count_text([row for row in rows if not row.left])
        shown.append(StepView(keyed_step.number + 1, key.shown, key.hash, len(segments), counted, rows))
    return KeyView(job.name, record.committed, after.watermarks, shown)


def may_have(step: StepSpec, key: StepKey, meta: SegmentMeta) -> bool:
    """Whether a segment may hold rows of the key, or flags of such rows."""
    parts = {part for side in step.sides for part in (side.part, side.flags_part)}
    return meta.part in parts and meta.hash_min <= key.hash <= meta.hash_max


def entries_of_key(
    step: StepSpec, key: StepKey, segments: Sequence[tuple[SegmentMeta, Run]], epoch_times: EpochTimes
) -> Sequence[EntryView]:
    """Return the rows or sessions of the key in these live segments."""
    flags = [run.batch for meta, run in segments if meta.part.endswith(FLAGS)]
    stored = []
    for side, spec in enumerate(step.sides):
        for meta, run in segments:
            if meta.part == spec.part:
                rows = run.rows_in(HashRange(key.hash, key.hash))
                numbers = np.arange(rows.start, rows.stop)
                for name, value in zip(spec.intake.keys, key.values[side], strict=True):
                    # Another key may have the same hash.
                    numbers = numbers[same_value(gather(spec, Selection(run.batch, numbers), name), value[0])]
                flagged = flagged_rows(run.batch, meta.key, flags)[numbers]
                stored.append(StoredRows(side, stored_rows(spec, run.batch.take(pa.array(numbers))), flagged))
    return description_of(step).entries(stored, epoch_times, rows_to_json)


def same_value(column: pa.Array, value: pa.Scalar) -> np.ndarray:
    """Return bool[n]: which rows have the value. In groups NULL is a value like any other, and so is NaN; keys of
    joins have neither."""
    if not value.is_valid:
        equal = column.is_null()
    elif pa.types.is_floating(value.type) and math.isnan(value.as_py()):
        equal = pc.is_nan(column).fill_null(False)
    else:
        equal = pc.equal(column, value).fill_null(False)
    return np.asarray(equal.to_numpy(zero_copy_only=False))
