"""Brings a job's state to a release's `state_version`. A savepoint pins the old state first, as a way back.

Every step may be repeated: a process killed after the pin, or after the migration, does the same again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.errors import IncompatibleState, RolloutOver, StateError, StoreUnavailable
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state import decisions
from joinery_runtime.state.decisions import by_bytes
from joinery_runtime.state.migrations import check_chain, migrate, readable_from
from joinery_runtime.state.store import (
    DriverStore,
    JobReader,
    JobRecord,
    Migration,
    Savepoints,
    StateReader,
    StoredSavepoint,
)

MOST_PINS = 3
"""How many automatic savepoints are retained, newest first."""

_ROLLOUT = re.compile(r"rollout-.+")
_MIGRATION = re.compile(r"before-state-version-\d+-epoch-\d+")
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Pin:
    """A savepoint and `how` it came about. "kept": it is of another epoch, and the upgrade that it was made for is
    done."""

    savepoint: StoredSavepoint
    how: Literal["created", "there already", "created anew", "kept"]


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


def never(_: StoredSavepoint) -> bool:
    return False


def is_automatic(name: str) -> bool:
    """Whether a rollout or a migration made the savepoint of this name, rather than a person."""
    return is_rollout(name) or _MIGRATION.fullmatch(name) is not None


def is_rollout(name: str) -> bool:
    """Whether a rollout made the savepoint of this name. Retrying a rollout needs another name."""
    return _ROLLOUT.fullmatch(name) is not None


def migrate_pinned(
    store: DriverStore, record: JobRecord, chain: Mapping[int, Migration], target: int, say: Callable[[str], None]
) -> JobRecord:
    """Pins and migrates the state if it needs a migration, and returns the record. Afterwards a release that writes
    `target` can read every live segment. Raises IncompatibleState before anything is written."""
    check_versions(record, chain, target)
    if not outdated(record, chain, target):
        return record
    pin = ensure_pin(store, record, automatic_name(record, target)).savepoint.name
    say(f"The state is older than this release: savepoint {pin} keeps it as it is, for a return to the earlier one")
    count = store.migrate(record.job, record.generation, chain, target)
    say(f"{counted(count, 'segment')} of the state were migrated to state_version {target}")
    prune_pins(store, record.job, pin)
    return reread(store, record)


def automatic_name(record: JobRecord, target: int) -> str:
    """The name of a migration's savepoint if the user gave none."""
    return f"before-state-version-{target}-epoch-{record.committed}"


def reread(store: JobReader, record: JobRecord) -> JobRecord:
    """Reads the record again. Raises Fenced if another driver owns the job by now."""
    now = store.record(record.job)
    if now is None or now.generation != record.generation:
        raise decisions.fenced(record.job, record.generation, "another one" if now is None else str(now.generation))
    return now


def check_versions(record: JobRecord, chain: Mapping[int, Migration], target: int) -> None:
    """Raises IncompatibleState if a step is missing, or if the state is newer than `target`."""
    check_chain((meta.state_version for meta in record.segments), target, chain)


def outdated(record: JobRecord, chain: Mapping[int, Migration], target: int) -> list[SegmentMeta]:
    """The live segments that a release which writes `target` cannot read before a migration."""
    readable = readable_from(target, chain)
    return [meta for meta in record.segments if meta.state_version < readable]


def ensure_pin(
    store: Savepoints, record: JobRecord, name: str, *, done: Callable[[StoredSavepoint], bool] = never
) -> Pin:
    """Makes sure that there is a savepoint `name` of the current state, and returns it.

    An existing savepoint of the same epoch is used as it is. One of another epoch stays if what it was made for is
    `done` and the job has gone on since. Otherwise a migration's savepoint is made anew, a rollout's raises
    RolloutOver, and one made by hand raises StateError.
    """
    check_rollout(store, record, name, done=done)
    pins = {pin.name: pin for pin in store.savepoints(record.job)}
    pin = pins.get(name)
    if pin is None:
        return Pin(store.create_savepoint(record.job, name), "created")
    if pin.committed == record.committed and not _is_over(pin, pins):
        return Pin(pin, "there already")
    if done(pin) and not _is_over(pin, pins):
        return Pin(pin, "kept")
    if not is_automatic(name):
        raise StateError(
            f"Savepoint {name} of job {record.job} is of another epoch",
            facts=f"its state stands on epoch {pin.committed}, the job's on {record.committed}",
            todo=f"Give another name, or delete it first: joinery state savepoint JOB {name} --delete",
        )
    store.delete_savepoint(record.job, name)
    return Pin(store.create_savepoint(record.job, name), "created anew")


def check_rollout(store: Savepoints, record: JobRecord, name: str, *, done: Callable[[StoredSavepoint], bool]) -> None:
    """Raises RolloutOver if `name` is the savepoint of a rollout that ended without being `done`, or that another
    rollout came after.

    A pod of such a rollout may come late, from a node that was cut off. It must not touch the state of the release that
    runs now.
    """
    pins = {pin.name: pin for pin in store.savepoints(record.job)}
    pin = pins.get(name)
    if pin is None or not is_rollout(name):
        return
    if pin.rolled_back:
        why = "it was rolled back"
    elif _is_over(pin, pins):
        why = "another rollout came after it"
    elif pin.committed != record.committed and not done(pin):
        why = f"it began on epoch {pin.committed}, and without it the state stands on epoch {record.committed} by now"
    else:
        return
    raise RolloutOver(
        f"The rollout of savepoint {name} of job {record.job} is over",
        facts=why,
        todo="To try it again, give another name",
    )


def unfinished_rollout(store: Savepoints, record: JobRecord, *, but: str) -> StoredSavepoint | None:
    """The newest automatic savepoint; None if it is `but`, was rolled back, or an epoch was committed since."""
    automatic = [pin for pin in store.savepoints(record.job) if is_automatic(pin.name)]
    newest = max(automatic, key=lambda pin: pin.created_at, default=None)
    if newest is None or newest.name == but or newest.rolled_back:
        return None
    at = (newest.committed, newest.lineage)
    return newest if at == (record.committed, record.lineage) else None


def _is_over(pin: StoredSavepoint, pins: Mapping[str, StoredSavepoint]) -> bool:
    """Whether what an automatic savepoint was made for has ended: it was rolled back, or a later one exists."""
    if not is_automatic(pin.name):
        return False
    return pin.rolled_back or any(is_automatic(o.name) for o in _later(pin, pins.values()))


def is_superseded(pin: StoredSavepoint, pins: Iterable[StoredSavepoint]) -> bool:
    """Whether another rollout came after the savepoint."""
    return any(is_rollout(other.name) for other in _later(pin, pins))


def _later(pin: StoredSavepoint, pins: Iterable[StoredSavepoint]) -> list[StoredSavepoint]:
    return [other for other in pins if other.created_at > pin.created_at]


def prune_pins(store: Savepoints, job: str, keep: str) -> list[str]:
    """Deletes automatic savepoints except `keep` and the newest (MOST_PINS in all). Returns the deleted names."""
    automatic = [pin for pin in store.savepoints(job) if is_automatic(pin.name)]
    newest_first = sorted(automatic, key=lambda pin: (pin.name == keep, pin.created_at), reverse=True)
    names = [pin.name for pin in newest_first[MOST_PINS:]]
    for name in names:
        store.delete_savepoint(job, name)
    return names


def rehearse(store: StateReader, record: JobRecord, chain: Mapping[int, Migration], target: int) -> Rehearsal:
    """Migrates every live segment in memory and writes nothing. Raises IncompatibleState.

    May run beside a driver: if a segment disappears before it is read, the segments that replaced it are used.
    """
    started = time.monotonic()
    sizes: dict[str, int] = {}

    def to_migrate(now: JobRecord) -> list[SegmentMeta]:
        nonlocal record
        record = now
        check_versions(now, chain, target)
        return outdated(now, chain, target)

    for now, blobs in read_live(store, record, to_migrate):
        metas = {meta.key: meta for meta in now.segments}
        sizes |= {key: _rewritten_bytes(metas[key], blob, chain, target) for key, blob in blobs.items()}
    migrated = [meta for meta in outdated(record, chain, target) if meta.key in sizes]
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
    rows = _rows(rewritten)
    if rows != meta.rows:
        raise IncompatibleState(
            f"The migration to state_version {target} does not keep the rows of segment {meta.key}",
            facts=f"it had {meta.rows}, and {'cannot be read' if rows is None else f'has {rows}'} after it",
            todo="Nothing was changed: go on with the release that wrote this state, and report this",
        )
    return len(rewritten)


def _rows(blob: bytes) -> int | None:
    try:
        return int(from_blob(blob).num_rows)
    except (ValueError, OSError):  # Arrow raises these for bytes that are not an Arrow file
        return None


def read_live(
    store: StateReader, record: JobRecord, choose: Callable[[JobRecord], list[SegmentMeta]]
) -> Iterator[tuple[JobRecord, dict[str, bytes]]]:
    """Yields the blobs of the live segments that `choose` selects, batch by batch, each with the record they belong to.

    A running driver may replace a segment before it is read; then `choose` gets the newest record. Raises StateError if
    a segment is missing all the same.
    """
    done: set[str] = set()
    tries = 0
    while wanted := next(by_bytes((meta.key, meta.bytes) for meta in choose(record) if meta.key not in done), None):
        try:
            yield record, store.read_segments(record.job, wanted)
            done.update(wanted)
        except StoreUnavailable:
            raise
        except StateError:
            now = store.record(record.job)
            tries += 1
            if now is None or now.segments == record.segments or tries == _TRIES:
                raise
            record = now
