"""What a kernel does first with the rows that arrive on a side, and how it hands them to the state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.spec import SideSpec
from joinery_runtime.core.table.columns import JOINABLE, MARK_FIELD
from joinery_runtime.core.table.segment import Run


def split_joinable(side: SideSpec, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows that can match, and those that cannot (J4), which come on preserved sides only."""
    if not side.preserved:
        return rows, rows.slice(0, 0)
    joinable = rows.column(JOINABLE)
    return rows.filter(joinable), rows.filter(pc.invert(joinable))


def as_segment(side: SideSpec, rows: pa.RecordBatch, marked: np.ndarray | None = None) -> pa.RecordBatch:
    """Prepared rows that can match with the columns of the side's segments; `marked` is bool[n] (None: no row is)."""
    marks = pa.array(marked if marked is not None else np.zeros(rows.num_rows, dtype=bool))
    schema = side.segment_schema()
    columns = [marks if field == MARK_FIELD else rows.column(field.name) for field in schema]
    return pa.record_batch(columns, schema=schema)


def to_keep(side: SideSpec, rows: pa.RecordBatch) -> Run | None:
    """Prepared rows that can match as a sorted run of the side's segments, no row marked. None: no rows."""
    return Run.sort(as_segment(side, rows)) if rows.num_rows else None
