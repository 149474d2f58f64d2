"""How many sessions a job keeps, and what they wait for. All of the state is read, a batch of segments at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_runtime.cli.common import time_text
from joinery_runtime.cli.state_next import NextEpoch
from joinery_runtime.cli.state_rows import decoded, flags, marked_in
from joinery_runtime.cli.state_sessions import Course
from joinery_runtime.core.pipeline.spec import MARKS, SESSIONS
from joinery_runtime.core.table.columns import EMITTED, FORCED, MARK, ROW, SEGMENT, TS
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.state.store import JobRecord, StateReader
from joinery_runtime.state.upgrade import read_live


@dataclass(frozen=True, slots=True)
class Census:
    """Numbers of sessions: `open` ones, of which `due` go out with the next epoch; those that have gone out and still
    take late rows; marks of those that reached the cap. `until` is the watermark of `until_input` above which the
    first session that is not due goes out, unless it grows (None: there is none), in milliseconds."""

    open: int
    due: int
    gone_out: int
    marks: int
    until_input: str
    until: int | None

    def document(self) -> Mapping[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        kept = [
            f"{self.open:,} open ({self.due:,} go out with the next epoch)",
            f"{self.gone_out:,} have gone out and take late rows",
            f"{self.marks:,} marks of sessions that reached maxDuration",
        ]
        yield f"sessions: {', '.join(kept)}"
        if self.until is not None:
            yield f"  the first goes out when the watermark of {self.until_input} is above {time_text(self.until)}"


def read_sessions(store: StateReader, record: JobRecord) -> tuple[JobRecord, pa.Table]:
    """TS, EMITTED and FORCED of all rows that no later one has replaced, and the record that they are of: a driver may
    replace segments meanwhile."""
    newest = record
    rows: dict[str, pa.RecordBatch] = {}
    marks: dict[str, pa.RecordBatch] = {}

    def all_of(now: JobRecord) -> list[SegmentMeta]:
        nonlocal newest
        newest = now
        return [meta for meta in now.segments if meta.part.removesuffix(MARKS) == SESSIONS]

    for now, blobs in read_live(store, record, all_of):
        metas = {meta.key: meta for meta in now.segments}
        for key, blob in blobs.items():
            run = decoded(metas[key], blob)
            if metas[key].part == SESSIONS:
                rows[key] = _slim(run)
            else:
                marks[key] = run.batch.select([SEGMENT, ROW])
    live = {meta.key for meta in newest.segments}
    applied = [batch for key, batch in marks.items() if key in live]
    there = [_there(batch, marked_in(applied, key)) for key, batch in rows.items() if key in live]
    return newest, pa.Table.from_batches(there, schema=_SCHEMA)


_SCHEMA = pa.schema([pa.field(TS, pa.int64()), pa.field(EMITTED, pa.bool_()), pa.field(FORCED, pa.bool_())])
_SLIM = pa.schema([*_SCHEMA, pa.field(MARK, pa.bool_())])


def _slim(run: Run) -> pa.RecordBatch:
    """The columns that are counted by, without the buffers of the others."""
    return pa.record_batch([pa.concat_arrays([run.batch.column(name)]) for name in _SLIM.names], schema=_SLIM)


def _there(rows: pa.RecordBatch, replaced: np.ndarray) -> pa.RecordBatch:
    there = ~flags(rows, MARK)
    there[replaced] = False
    return rows.select(_SCHEMA.names).filter(pa.array(there))


def census(after: NextEpoch, rows: pa.Table) -> Census:
    """`rows` are as `read_sessions` gives them."""
    course = Course.of(after)
    last, emitted, forced = (rows.column(name).to_numpy() for name in _SCHEMA.names)
    kept = course.is_kept(last)
    out = course.has_gone_out(last, emitted)
    open_ = kept & ~forced & ~out
    due = open_ & course.goes_out_next(last)
    first = last[open_ & ~due].min(initial=np.iinfo(np.int64).max)
    return Census(
        open=int(open_.sum()),
        due=int(due.sum()),
        gone_out=int((kept & ~forced & out).sum()),
        marks=int((kept & forced).sum()),
        until_input=course.input,
        until=course.goes_out_above(int(first)) if (open_ & ~due).any() else None,
    )
