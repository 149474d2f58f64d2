"""Reads segment blobs of this release and of earlier ones: forward-only migrations (rule M1), and live segments beside
a running driver, which may replace them meanwhile.

Each step of a migration is a pure function that turns a blob of one `state_version` into a blob of the next. Steps stay
for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.columns import FLAG, ROW, SEGMENT
from joinery_runtime.core.table.segment import MIGRATED, STATE_VERSION, Run, SegmentMeta, first_key
from joinery_runtime.errors import IncompatibleState, StateError, StoreUnavailable
from joinery_runtime.state.decisions import by_bytes
from joinery_runtime.state.store import JobRecord, Migration, StateReader

CURRENT_STATE_VERSION = STATE_VERSION
"""The `state_version` that this release writes."""


def unchanged(blob: bytes) -> bytes:
    """Return the step to a version whose readers also read blobs of the version before: no segment is rewritten for it.
    Old segments are read as they are, and compaction writes its results in the new version."""
    return blob


MIGRATIONS: Mapping[int, Migration] = {1: unchanged, 2: unchanged, 3: unchanged, 4: unchanged}
"""`{n: step}` takes a blob from version n to n + 1. A step keeps rows and their order: flags name rows by number."""


def readable_from(target: int, chain: Mapping[int, Migration]) -> int:
    """Return the oldest version whose blobs a release that writes `target` reads without a migration."""
    version = target
    while chain.get(version - 1) is unchanged:
        version -= 1
    return version


def check_chain(versions: Iterable[int], target: int, chain: Mapping[int, Migration]) -> None:
    """Raise IncompatibleState if a blob of one of `versions` cannot be brought to `target`."""
    stored_versions = set(versions)
    if stored_versions and max(stored_versions) > target:
        raise IncompatibleState(
            f"The stored state is newer than this release: it has state_version {max(stored_versions)}",
            facts=f"this release reads up to {target}",
            todo="Run the release that wrote it or a later one, or restore a savepoint from before the upgrade",
        )
    missing = [step for step in range(min(stored_versions, default=target), target) if step not in chain]
    if missing:
        raise IncompatibleState(
            f"There is no migration from state_version {missing[0]} to {missing[0] + 1}",
            facts=f"the stored state has versions {sorted(stored_versions)}, this release needs {target}",
            todo="Upgrade through a release that has this step, or start without state",
        )


def migrate(blob: bytes, from_version: int, to_version: int, chain: Mapping[int, Migration] = MIGRATIONS) -> bytes:
    """Return the blob at `to_version`. Raises IncompatibleState for a missing or failing step, or a newer blob."""
    check_chain([from_version], to_version, chain)
    for step in range(from_version, to_version):
        try:
            blob = chain[step](blob)
        except Exception as error:
            raise IncompatibleState(
                f"The migration from state_version {step} to {step + 1} failed",
                facts=f"{type(error).__name__}: {error}",
                todo="Nothing was changed: keep running the release that wrote this state, and report this",
            ) from error
    return blob


def migrate_segment(
    meta: SegmentMeta, blob: bytes, target: int, chain: Mapping[int, Migration], generation: int
) -> tuple[SegmentMeta, bytes]:
    """Return the segment at `target` under a new key, `<old key>~<target>.<generation>`.

    The old key keeps its bytes: savepoints pin it for a rollback, and executors cache blobs by key. Flags still name
    the segment by its old key (`core.table.segment.first_key`).
    """
    rewritten = migrate(blob, meta.state_version, target, chain)
    key = f"{meta.key}{MIGRATED}{target}.{generation}"
    return replace(meta, key=key, bytes=len(rewritten), state_version=target), rewritten


T = TypeVar("T")

_READ_TRIES = 5


def read_live(
    store: StateReader, record: JobRecord, choose: Callable[[JobRecord], list[SegmentMeta]]
) -> Iterator[tuple[JobRecord, dict[str, bytes]]]:
    """Yield the blobs of the live segments that `choose` selects, batch by batch, each with the record they belong to.

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
            if now is None or now.segments == record.segments or tries == _READ_TRIES:
                raise
            record = now


def decode_run(meta: SegmentMeta, blob: bytes) -> Run:
    return Run.view(from_blob(migrate(blob, meta.state_version, CURRENT_STATE_VERSION, MIGRATIONS)))


def read_runs(
    store: StateReader,
    record: JobRecord,
    predicate: Callable[[SegmentMeta], bool],
    take: Callable[[SegmentMeta, Run], T],
) -> tuple[JobRecord, dict[str, T]]:
    """Return what `take` makes of each live segment that the `predicate` accepts, by the segment's key, and the record
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
    """Return bool[n]: which rows of a segment are flagged, in the segment itself or by `flags`, rows of flag
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
