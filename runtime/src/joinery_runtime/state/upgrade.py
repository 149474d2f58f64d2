"""Brings a job's state to a release's `state_version`. A savepoint pins the old state first, as a way back.

Every step may be repeated: a process killed after the pin, or after the migration, does the same again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state import decisions
from joinery_runtime.state.migrations import check_chain, migrate, read_live, readable_from
from joinery_runtime.state.savepoints import ensure_pin, name_for_migration, prune_pins
from joinery_runtime.state.store import DriverStore, JobReader, JobRecord, Migration, StateReader


def migrate_pinned(
    store: DriverStore, record: JobRecord, chain: Mapping[int, Migration], target: int, say: Callable[[str], None]
) -> JobRecord:
    """Pin and migrate the state if it needs a migration, and return the record. Afterwards a release that writes
    `target` can read every live segment. Raises IncompatibleState before anything is written."""
    check_versions(record, chain, target)
    if not outdated_segments(record, chain, target):
        return record
    pin = ensure_pin(store, record, name_for_migration(record, target)).savepoint.name
    say(f"The state is older than this release: savepoint {pin} keeps it as it is, for a return to the earlier one")
    count = store.migrate(record.job, record.generation, chain, target)
    say(f"{counted(count, 'segment')} of the state were migrated to state_version {target}")
    prune_pins(store, record.job, pin)
    return reread_record(store, record)


def reread_record(store: JobReader, record: JobRecord) -> JobRecord:
    """Read the record again. Raises Fenced if another driver owns the job by now."""
    now = store.record(record.job)
    if now is None or now.generation != record.generation:
        raise decisions.fenced_error(
            record.job, record.generation, "another one" if now is None else str(now.generation)
        )
    return now


def check_versions(record: JobRecord, chain: Mapping[int, Migration], target: int) -> None:
    """Raise IncompatibleState if a step is missing, or if the state is newer than `target`."""
    check_chain((meta.state_version for meta in record.segments), target, chain)


def outdated_segments(record: JobRecord, chain: Mapping[int, Migration], target: int) -> list[SegmentMeta]:
    """Return the live segments that a release which writes `target` cannot read before a migration."""
    readable = readable_from(target, chain)
    return [meta for meta in record.segments if meta.state_version < readable]


# --- a rehearsal ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a migration would do. `versions` are those of all live segments; the sizes count the segments to migrate."""

    versions: tuple[int, ...]
    target: int
    segments: int
    to_migrate: int
    bytes_before: int
    bytes_after: int
    seconds: float


def rehearse_migration(store: StateReader, record: JobRecord, chain: Mapping[int, Migration], target: int) -> Rehearsal:
    """Migrate every live segment in memory and write nothing. Raises IncompatibleState.

    May run beside a driver: if a segment disappears before it is read, the segments that replaced it are used.
    """
    started = time.monotonic()
    sizes: dict[str, int] = {}

    def select_outdated(now: JobRecord) -> list[SegmentMeta]:
        nonlocal record
        record = now
        check_versions(now, chain, target)
        return outdated_segments(now, chain, target)

    for now, blobs in read_live(store, record, select_outdated):
        metas = {meta.key: meta for meta in now.segments}
        sizes |= {key: _rewritten_bytes(metas[key], blob, chain, target) for key, blob in blobs.items()}
    migrated = [meta for meta in outdated_segments(record, chain, target) if meta.key in sizes]
    return Rehearsal(
        versions=tuple(sorted({meta.state_version for meta in record.segments})),
        target=target,
        segments=len(record.segments),
        to_migrate=len(migrated),
        bytes_before=sum(meta.bytes for meta in migrated),
        bytes_after=sum(sizes[meta.key] for meta in migrated),
        seconds=time.monotonic() - started,
    )


def _rewritten_bytes(meta: SegmentMeta, blob: bytes, chain: Mapping[int, Migration], target: int) -> int:
    rewritten = migrate(blob, meta.state_version, target, chain)
    try:
        rows = from_blob(rewritten).num_rows
    except (ValueError, OSError):  # Arrow raises these for bytes that are not an Arrow file
        rows = None
    if rows != meta.rows:
        raise IncompatibleState(
            f"The migration to state_version {target} does not keep the rows of segment {meta.key}",
            facts=f"it had {meta.rows}, and {'cannot be read' if rows is None else f'has {rows}'} after it",
            todo="Nothing was changed: keep running the release that wrote this state, and report this",
        )
    return len(rewritten)
