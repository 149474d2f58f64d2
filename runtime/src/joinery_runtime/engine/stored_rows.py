"""Reads rows of stored segments for commands: decoded, with the flags that were added later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.columns import FLAG, ROW, SEGMENT
from joinery_runtime.core.table.segment import Run, SegmentMeta, first_key
from joinery_runtime.state import migrations
from joinery_runtime.state.store import JobRecord, StateReader
from joinery_runtime.state.upgrade import read_live

T = TypeVar("T")


def decoded(meta: SegmentMeta, blob: bytes) -> Run:
    target, chain = migrations.CURRENT_STATE_VERSION, migrations.MIGRATIONS
    return Run.view(from_blob(migrations.migrate(blob, meta.state_version, target, chain)))


def read_runs(
    store: StateReader,
    record: JobRecord,
    wanted: Callable[[SegmentMeta], bool],
    take: Callable[[SegmentMeta, Run], T],
) -> tuple[JobRecord, dict[str, T]]:
    """Returns what `take` makes of each live segment that is `wanted`, by the segment's key, and the record in which
    these segments are live: a running driver may replace segments while they are read."""
    taken: dict[str, T] = {}

    def chosen(now: JobRecord) -> list[SegmentMeta]:
        nonlocal record
        record = now
        return [meta for meta in now.segments if wanted(meta)]

    for now, blobs in read_live(store, record, chosen):
        metas = {meta.key: meta for meta in now.segments}
        taken |= {key: take(metas[key], decoded(metas[key], blob)) for key, blob in blobs.items()}
    return record, {meta.key: taken[meta.key] for meta in record.segments if meta.key in taken}


def flagged_rows(rows: pa.RecordBatch, segment: str, flags: Iterable[pa.RecordBatch]) -> np.ndarray:
    """Returns bool[n]: which rows of a segment are flagged, in the segment itself or by `flags`, rows of flag
    segments."""
    flagged = np.zeros(rows.num_rows, dtype=bool)
    if FLAG in rows.schema.names:
        flagged |= rows.column(FLAG).to_numpy(zero_copy_only=False)
    for batch in flags:
        names = batch.column(SEGMENT)
        # Flags name the segment by its present key, or by one from before a migration.
        same = [name for name in pc.unique(names).to_pylist() if first_key(name) == first_key(segment)]
        flagged[batch.filter(pc.is_in(names, pa.array(same, pa.string()))).column(ROW).to_numpy()] = True
    return flagged
