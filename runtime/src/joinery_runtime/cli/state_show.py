"""`joinery state show`: the rows that are kept for one key, and when each will go."""

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
from joinery_runtime.cli.state_key import StepKey, step_keys
from joinery_runtime.cli.state_next import NextEpoch
from joinery_runtime.core.columns import DELETED, MARK, OFFSET, PARTITION, ROW, SEGMENT, TS
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.rows import Selection, gather
from joinery_runtime.core.segment import Run, SegmentMeta, decode
from joinery_runtime.core.shards import HashRange
from joinery_runtime.core.spec import MARKS, SIDES, Pipeline, StepSpec, Watermark
from joinery_runtime.job import StreamJoin
from joinery_runtime.sinks.encode import rows_to_json
from joinery_runtime.state import migrations
from joinery_runtime.state.store import JobRecord, StateStore
from joinery_runtime.state.upgrade import read_live


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
    """The rows of the key in one step (1 is the first)."""

    step: int
    key: Mapping[str, Any]
    hash: int
    segments_read: int
    rows: Sequence[KeptRow]

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
            yield f"{what}: {len(step.rows)} rows are kept after epoch {self.epoch}"
            for row in step.rows:
                yield row.line()


def show(job: StreamJoin, store: StateStore, texts: Sequence[str], step: int | None = None) -> Shown:
    """`texts` are COLUMN=VALUE, one for each column of the key; `step` (1 is the first) narrows it to one. Raises
    JoineryError naming what is wrong with them."""
    pipeline, keys = compile_job(job), step_keys(job, texts, step)
    record, segments = _read(store, known(job, store), [_Wanted(pipeline, key) for key in keys])
    after = NextEpoch.of(pipeline, record)
    shown = [_shown(after, record, segments, _Wanted(pipeline, key)) for key in keys]
    return Shown(job.name, record.committed, after.watermarks, shown)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A key of one step, and which segments may hold rows of it."""

    pipeline: Pipeline
    key: StepKey

    @property
    def step(self) -> StepSpec:
        return self.pipeline.steps[self.key.step]

    def covers(self, meta: SegmentMeta) -> bool:
        parts = {part for side in self.step.sides for part in (side.part, side.marks_part)}
        return meta.part in parts and meta.hash_min <= self.key.hash <= meta.hash_max


Segments = Mapping[str, Run]


def _read(store: StateStore, record: JobRecord, wanted: Sequence[_Wanted]) -> tuple[JobRecord, Segments]:
    """The segments that cover a key, with the record that they are of: a driver may replace some meanwhile."""
    newest = record
    found: dict[str, Run] = {}

    def covering(now: JobRecord) -> list[SegmentMeta]:
        nonlocal newest
        newest = now
        return [meta for meta in now.segments if any(each.covers(meta) for each in wanted)]

    for now, blobs in read_live(store, record, covering):
        metas = {meta.key: meta for meta in now.segments}
        found |= {key: _decoded(metas[key], blob) for key, blob in blobs.items()}
    return newest, found


def _decoded(meta: SegmentMeta, blob: bytes) -> Run:
    target, chain = migrations.CURRENT_STATE_VERSION, migrations.MIGRATIONS
    return Run.view(decode(migrations.migrate(blob, meta.state_version, target, chain)))


def _shown(after: NextEpoch, record: JobRecord, segments: Segments, wanted: _Wanted) -> ShownStep:
    # A segment that was replaced while it was read is not live any more; what replaced it has its rows.
    live = [meta for meta in record.segments if wanted.covers(meta)]
    marks = [segments[meta.key].batch for meta in live if meta.part.endswith(MARKS)]
    step = wanted.step
    rows = [
        row
        for side in SIDES
        for meta in live
        if meta.part == step.sides[side].part
        for row in _rows(wanted, side, segments[meta.key], _marked_in(marks, meta.key))
    ]
    rows.sort(key=lambda row: (row.side, row.ts, row.partition, row.offset))
    told = [
        KeptRow(" + ".join(step.sides[row.side].inputs), row, fate)
        for row, fate in zip(rows, fates(after, step, rows), strict=True)
    ]
    return ShownStep(step.number + 1, wanted.key.shown, wanted.key.hash, len(live), told)


def _marked_in(marks: Sequence[pa.RecordBatch], segment: str) -> np.ndarray:
    """Row numbers of the segment that were marked after it was written."""
    mine = [batch.filter(pc.equal(batch.column(SEGMENT), segment)).column(ROW).to_numpy() for batch in marks]
    return np.concatenate([np.empty(0, dtype=np.int64), *mine])


def _rows(wanted: _Wanted, side: int, run: Run, marked: np.ndarray) -> Iterator[Row]:
    spec = wanted.step.sides[side]
    numbers = _numbers(wanted, side, run)
    batch = run.batch.take(pa.array(numbers))
    documents = rows_to_json(pa.table(batch.select(list(spec.intake.stored))))
    places = zip(*(batch.column(name).to_pylist() for name in (TS, PARTITION, OFFSET)), strict=True)
    marks = _flags(batch, MARK) | np.isin(numbers, marked)
    flags = zip(marks.tolist() if spec.marks else [None] * len(numbers), _flags(batch, DELETED).tolist(), strict=True)
    for (ts, partition, offset), document, (mark, deleted) in zip(places, documents, flags, strict=True):
        yield Row(side, ts, partition, offset, json.loads(document), mark, deleted)


def _numbers(wanted: _Wanted, side: int, run: Run) -> np.ndarray:
    """Which rows of a segment have this key; two keys may have one hash."""
    rows = run.rows_in(HashRange(wanted.key.hash, wanted.key.hash))
    numbers = np.arange(rows.start, rows.stop)
    spec = wanted.step.sides[side]
    for name, value in zip(spec.intake.keys, wanted.key.values[side], strict=True):
        held = gather(spec, Selection(run.batch, numbers), name)
        numbers = numbers[pc.equal(held, value[0]).to_numpy(zero_copy_only=False)]
    return numbers


def _flags(batch: pa.RecordBatch, name: str) -> np.ndarray:
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=bool)
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False))
