"""Reads live segments beside a running driver, which may replace them meanwhile; decodes their rows and flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.columns import FLAG, ROW, SEGMENT
from joinery_runtime.core.table.segment import Run, SegmentMeta, first_key
from joinery_runtime.errors import StateError, StoreUnavailable
from joinery_runtime.state import migrations
from joinery_runtime.state.decisions import by_bytes
from joinery_runtime.state.store import JobRecord, StateReader

T = TypeVar("T")

_TRIES = 5


def read_live(
    store: StateReader, record: JobRecord, choose: Callable[[JobRecord], list[SegmentMeta]]
) -> Iterator[tuple[JobRecord, dict[str, bytes]]]:
    """Yields the blobs of the live segments that `choose` selects, batch by batch, each with the record they belong to.

    A running driver may replace a segment before it is read; then `choose` gets the newest record. Raises StateError if
    a segment is missing all the same.
    """
    done: set[str] = set()
    tries = 0
    while keys := next(by_bytes((meta.key, meta.bytes) for meta in choose(record) if meta.key not in done), None):
        try:
            yield record, store.read_segments(record.job, keys)
            done.update(keys)
        except StoreUnavailable:
            raise
        except StateError:
            now = store.record(record.job)
            tries += 1
            if now is None or now.segments == record.segments or tries == _TRIES:
                raise
            record = now


def decode_run(meta: SegmentMeta, blob: bytes) -> Run:
    target, chain = migrations.CURRENT_STATE_VERSION, migrations.MIGRATIONS
    return Run.view(from_blob(migrations.migrate(blob, meta.state_version, target, chain)))


def read_runs(
    store: StateReader,
    record: JobRecord,
    predicate: Callable[[SegmentMeta], bool],
    take: Callable[[SegmentMeta, Run], T],
) -> tuple[JobRecord, dict[str, T]]:
    """Returns what `take` makes of each live segment that the `predicate` accepts, by the segment's key, and the record
    in which these segments are live: a running driver may replace segments while they are read."""
    extracts: dict[str, T] = {}

    def select_live(now: JobRecord) -> list[SegmentMeta]:
        nonlocal record
        record = now
        return [meta for meta in now.segments if predicate(meta)]

    for now, blobs in read_live(store, record, select_live):
        metas = {meta.key: meta for meta in now.segments}
        extracts |= {key: take(metas[key], decode_run(metas[key], blob)) for key, blob in blobs.items()}
    return record, {meta.key: extracts[meta.key] for meta in record.segments if meta.key in extracts}


def flagged_rows(rows: pa.RecordBatch, segment: str, flags: Iterable[pa.RecordBatch]) -> np.ndarray:
    """Returns bool[n]: which rows of a segment are flagged, in the segment itself or by `flags`, rows of flag
    segments."""
    flagged = np.zeros(rows.num_rows, dtype=bool)
    if FLAG in rows.schema.names:
        flagged |= rows.column(FLAG).to_numpy(zero_copy_only=False)
    for batch in flags:
        names = batch.column(SEGMENT)
        # Flags name the segment by its present key, or by one from before a migration.
        segment_names = [name for name in pc.unique(names).to_pylist() if first_key(name) == first_key(segment)]
        flagged[batch.filter(pc.is_in(names, pa.array(segment_names, pa.string()))).column(ROW).to_numpy()] = True
    return flagged
