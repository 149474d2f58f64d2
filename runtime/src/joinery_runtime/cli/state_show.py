"""`joinery state show`: what is kept for one key, and when each of it will go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.cli.common import time_text
from joinery_runtime.cli.state import known
from joinery_runtime.cli.state_fate import Fate, Row, fates
from joinery_runtime.cli.state_key import StepKey, group_key, step_keys
from joinery_runtime.cli.state_next import NextEpoch
from joinery_runtime.cli.state_rows import Segments, Wanted, flags, marked_in, marks_among, read_key
from joinery_runtime.cli.state_sessions import KeptSession, kept_sessions
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.kinds.rows import Selection, gather
from joinery_runtime.core.pipeline.spec import SIDES, Pipeline, SessionWindow, Watermark
from joinery_runtime.core.table.columns import DELETED, MARK, OFFSET, PARTITION, TS
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.job import Job, StreamJoin
from joinery_runtime.job import SessionWindow as SessionWindowJob
from joinery_runtime.sinks.encode import rows_to_json
from joinery_runtime.state.store import JobRecord, StateReader


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row that is kept, by its side's inputs, and what is to come for it. Times are milliseconds."""

    input: str
    row: Row
    fate: Fate

    def document(self) -> dict[str, Any]:
        row = self.row
        place = {"ts": row.ts, "partition": row.partition, "offset": row.offset}
        return {"input": self.input, **place, "columns": dict(row.columns), **self.fate.facts}

    def line(self) -> str:
        columns = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.row.columns.items())
        place = f"{self.row.partition}/{self.row.offset}"
        return f"{self.input} {place} at {time_text(self.row.ts)}: {columns}; {self.fate.words}"


@dataclass(frozen=True, slots=True)
class ShownStep:
    """What is kept of the key in one step (1 is the first)."""

    step: int
    key: Mapping[str, Any]
    hash: int
    segments_read: int
    of_sessions: bool
    rows: Sequence[KeptRow] | Sequence[KeptSession]

    @property
    def counted(self) -> str:
        capped = sum(isinstance(row, KeptSession) and row.capped for row in self.rows)
        what = "sessions" if self.of_sessions else "rows"
        return f"{len(self.rows) - capped} {what}{f' and {capped} marks of capped ones' if capped else ''}"

    def document(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "key": dict(self.key),
            "hash": self.hash,
            "segments_read": self.segments_read,
            "rows": [row.document() for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Shown:
    job: str
    epoch: int
    watermarks: Mapping[str, Watermark]
    steps: Sequence[ShownStep]

    def document(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "epoch": self.epoch,
            "watermarks": dict(self.watermarks),
            "steps": [step.document() for step in self.steps],
        }

    def lines(self) -> Iterator[str]:
        for step in self.steps:
            key = ", ".join(f"{name} {json.dumps(value)}" for name, value in step.key.items())
            what = f"job {self.job}, step {step.step}, key {key}"
            yield f"{what}: {step.counted} are kept after epoch {self.epoch}"
            for row in step.rows:
                yield row.line()


def show(job: Job, store: StateReader, texts: Sequence[str], step: int | None = None) -> Shown:
    """`texts` are COLUMN=VALUE, one for each column of the key; `step` (1 is the first) narrows it to one. Raises
    JoineryError naming what is wrong with them."""
    pipeline = compile_job(job)
    wanted = [Wanted(pipeline, key) for key in _keys(job, pipeline, texts, step)]
    record, segments = read_key(store, known(job, store), wanted)
    after = NextEpoch.of(pipeline, record)
    shown = [_shown(after, record, segments, each) for each in wanted]
    return Shown(job.name, record.committed, after.watermarks, shown)


def _keys(job: Job, pipeline: Pipeline, texts: Sequence[str], step: int | None) -> list[StepKey]:
    if isinstance(job, StreamJoin):
        return step_keys(job, texts, step)
    assert isinstance(job, SessionWindowJob), "there are two kinds"
    return [group_key(job, pipeline.last.sides[0].intake.schema, texts, step)]


def _shown(after: NextEpoch, record: JobRecord, segments: Segments, wanted: Wanted) -> ShownStep:
    # A segment that was replaced while it was read is not live any more; what replaced it has its rows.
    live = [meta for meta in record.segments if wanted.covers(meta)]
    of_sessions = isinstance(wanted.step.rule, SessionWindow)
    told = (kept_sessions if of_sessions else _kept_rows)(after, wanted, live, segments)
    return ShownStep(wanted.step.number + 1, wanted.key.shown, wanted.key.hash, len(live), of_sessions, told)


def _kept_rows(after: NextEpoch, wanted: Wanted, live: Sequence[SegmentMeta], segments: Segments) -> list[KeptRow]:
    marks, step = marks_among(live, segments), wanted.step
    rows = [
        row
        for side in SIDES
        for meta in live
        if meta.part == step.sides[side].part
        for row in _rows(wanted, side, segments[meta.key], marked_in(marks, meta.key))
    ]
    rows.sort(key=lambda row: (row.side, row.ts, row.partition, row.offset))
    return [
        KeptRow(" + ".join(step.sides[row.side].inputs), row, fate)
        for row, fate in zip(rows, fates(after, step, rows), strict=True)
    ]


def _rows(wanted: Wanted, side: int, run: Run, marked: np.ndarray) -> Iterator[Row]:
    spec = wanted.step.sides[side]
    numbers = _numbers(wanted, side, run)
    batch = run.batch.take(pa.array(numbers))
    documents = rows_to_json(pa.table(batch.select(list(spec.intake.stored))))
    places = zip(*(batch.column(name).to_pylist() for name in (TS, PARTITION, OFFSET)), strict=True)
    marks = flags(batch, MARK) | np.isin(numbers, marked)
    told = zip(marks.tolist() if spec.marks else [None] * len(numbers), flags(batch, DELETED).tolist(), strict=True)
    for (ts, partition, offset), document, (mark, deleted) in zip(places, documents, told, strict=True):
        yield Row(side, ts, partition, offset, json.loads(document), mark, deleted)


def _numbers(wanted: Wanted, side: int, run: Run) -> np.ndarray:
    """Which rows of a segment have this key; two keys may have one hash."""
    numbers = wanted.rows_in(run)
    spec = wanted.step.sides[side]
    for name, value in zip(spec.intake.keys, wanted.key.values[side], strict=True):
        held = gather(spec, Selection(run.batch, numbers), name)
        numbers = numbers[pc.equal(held, value[0]).to_numpy(zero_copy_only=False)]
    return numbers
