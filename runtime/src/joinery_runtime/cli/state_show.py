"""`joinery state show`: what is kept for one key, and when each of it will go."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.cli.state import known
from joinery_runtime.cli.state_key import keys_of
from joinery_runtime.cli.state_next import NextEpoch
from joinery_runtime.cli.state_rows import Segments, Wanted, marks_among, read_key
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.kinds.rows import Selection, gather
from joinery_runtime.core.pipeline.describe import Shown, StoredRows
from joinery_runtime.core.pipeline.sides import stored_rows
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.core.table.columns import MARK
from joinery_runtime.core.table.segment import Run
from joinery_runtime.engine.job_state import stored_co_partitions
from joinery_runtime.engine.stored_rows import flags, marked_in
from joinery_runtime.job import Job, time_value
from joinery_runtime.sinks.encode import rows_to_json
from joinery_runtime.state.store import JobRecord, StateReader


@dataclass(frozen=True, slots=True)
class ShownStep:
    """What is kept of the key in one step (1 is the first)."""

    step: int
    key: Mapping[str, Any]
    hash: int
    segments_read: int
    counted: str
    rows: Sequence[Shown]

    def document(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "key": dict(self.key),
            "hash": self.hash,
            "segments_read": self.segments_read,
            "rows": [row.document() for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class ShownKey:
    job: str
    epoch: int
    watermarks: Mapping[str, Watermark]
    steps: Sequence[ShownStep]

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
            what = f"job {self.job}, step {step.step}, key {key}"
            yield f"{what}: {step.counted} are kept after epoch {self.epoch}"
            for row in step.rows:
                yield row.line()


def show(job: Job, store: StateReader, texts: Sequence[str], step: int | None = None) -> ShownKey:
    """`texts` are COLUMN=VALUE, one for each column of the key; `step` (1 is the first) narrows it to one. Raises
    JoineryError naming what is wrong with them."""
    pipeline, record = compile_job(job), known(job, store)
    keys = keys_of(job, pipeline, texts, step, stored_co_partitions(record))
    wanted = [Wanted(pipeline, key) for key in keys]
    record, segments = read_key(store, record, wanted)
    after = NextEpoch.of(pipeline, record)
    shown = [_shown(after, record, segments, each) for each in wanted]
    return ShownKey(job.name, record.committed, after.watermarks, shown)


def _shown(after: NextEpoch, record: JobRecord, segments: Segments, wanted: Wanted) -> ShownStep:
    # A segment that was replaced while it was read is not live any more; what replaced it has its rows.
    live = [meta for meta in record.segments if wanted.covers(meta)]
    marks, step = marks_among(live, segments), wanted.step
    stored = [
        _stored(wanted, side, segments[meta.key], marked_in(marks, meta.key))
        for side, spec in enumerate(step.sides)
        for meta in live
        if meta.part == spec.part
    ]
    rows = step.kind.shown(step, stored, after.outlook, rows_to_json)
    return ShownStep(step.number + 1, wanted.key.shown, wanted.key.hash, len(live), step.kind.count_text(rows), rows)


def _stored(wanted: Wanted, side: int, run: Run, marked: np.ndarray) -> StoredRows:
    numbers = _numbers(wanted, side, run)
    rows = stored_rows(wanted.step.sides[side], run.batch.take(pa.array(numbers)))
    return StoredRows(side, rows, flags(rows, MARK) | np.isin(numbers, marked))


def _numbers(wanted: Wanted, side: int, run: Run) -> np.ndarray:
    """Which rows of a segment have this key; two keys may have one hash."""
    numbers = wanted.rows_in(run)
    spec = wanted.step.sides[side]
    for name, value in zip(spec.intake.keys, wanted.key.values[side], strict=True):
        held = gather(spec, Selection(run.batch, numbers), name)
        numbers = numbers[same_value(held, value[0])]
    return numbers


def same_value(held: pa.Array, value: pa.Scalar) -> np.ndarray:
    """bool[n]: in groups NULL is a value like others, and so is NaN; keys of joins have neither."""
    if not value.is_valid:
        equal = held.is_null()
    elif pa.types.is_floating(value.type) and math.isnan(value.as_py()):
        equal = pc.is_nan(held).fill_null(False)
    else:
        equal = pc.equal(held, value).fill_null(False)
    return np.asarray(equal.to_numpy(zero_copy_only=False))
