"""The stored rows of one key: which segments may hold them, and what is in those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.cli.state_key import StepKey
from joinery_runtime.core.pipeline.sides import LEFT, MARKS
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.table.columns import MARK, ROW, SEGMENT
from joinery_runtime.core.table.keyhash import HashRange
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.engine.stored_rows import decoded, flags, marked_in
from joinery_runtime.state.store import JobRecord, StateReader
from joinery_runtime.state.upgrade import read_live

Segments = Mapping[str, Run]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A key of one step, and which segments may hold rows of it."""

    pipeline: Pipeline
    key: StepKey

    @property
    def step(self) -> StepSpec:
        return self.pipeline.steps[self.key.step]

    def covers(self, meta: SegmentMeta) -> bool:
        parts = {part for side in self.step.sides for part in (side.part, side.marks_part)}
        return meta.part in parts and meta.hash_min <= self.key.hash <= meta.hash_max

    def rows_in(self, run: Run) -> np.ndarray:
        """The numbers of the run's rows that have the key's hash; another key may have it too."""
        rows = run.rows_in(HashRange(self.key.hash, self.key.hash))
        return np.arange(rows.start, rows.stop)


def read_key(store: StateReader, record: JobRecord, wanted: Sequence[Wanted]) -> tuple[JobRecord, Segments]:
    """The segments that cover a key, with the record that they are of: a driver may replace some meanwhile."""
    newest = record
    found: dict[str, Run] = {}

    def covering(now: JobRecord) -> list[SegmentMeta]:
        nonlocal newest
        newest = now
        return [meta for meta in now.segments if any(each.covers(meta) for each in wanted)]

    for now, blobs in read_live(store, record, covering):
        metas = {meta.key: meta for meta in now.segments}
        found |= {key: decoded(metas[key], blob) for key, blob in blobs.items()}
    return newest, found


def read_columns(
    store: StateReader, record: JobRecord, pipeline: Pipeline, names: Sequence[str]
) -> tuple[JobRecord, pa.Table | None]:
    """These columns of all rows of the last step's left side that are not marked, and the record that they are of: a
    driver may replace segments meanwhile. No columns: nothing is read."""
    if not names:
        return record, None
    side = pipeline.last.sides[LEFT]
    schema = pa.schema([side.segment_schema().field(name).with_nullable(True) for name in names])
    newest = record
    rows: dict[str, pa.RecordBatch] = {}
    marks: dict[str, pa.RecordBatch] = {}

    def all_of(now: JobRecord) -> list[SegmentMeta]:
        nonlocal newest
        newest = now
        return [meta for meta in now.segments if meta.part in {side.part, side.marks_part}]

    for now, blobs in read_live(store, record, all_of):
        metas = {meta.key: meta for meta in now.segments}
        for key, blob in blobs.items():
            run = decoded(metas[key], blob)
            if metas[key].part == side.part:
                columns = run.batch.select([*names, MARK])
                # Copied, so that the buffers of the segment's other columns are released.
                copies = [pa.concat_arrays([column]) for column in columns.columns]
                rows[key] = pa.record_batch(copies, names=columns.schema.names)
            else:
                marks[key] = run.batch.select([SEGMENT, ROW])
    live = {meta.key for meta in newest.segments}
    applied = [batch for key, batch in marks.items() if key in live]
    there = [_unmarked(batch, marked_in(applied, key)) for key, batch in rows.items() if key in live]
    return newest, pa.Table.from_batches([batch.cast(schema) for batch in there], schema=schema)


def _unmarked(rows: pa.RecordBatch, marked: np.ndarray) -> pa.RecordBatch:
    there = ~flags(rows, MARK)
    there[marked] = False
    return rows.drop_columns([MARK]).filter(pa.array(there))


def marks_among(live: Sequence[SegmentMeta], segments: Segments) -> list[pa.RecordBatch]:
    return [segments[meta.key].batch for meta in live if meta.part.endswith(MARKS)]
