"""`joinery state migrate`: brings the state to this release's version, or drops it to start from the beginning; both
with a way back. `joinery state move`: moves it to another Postgres."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.admin.savepoints import check_name
from joinery_runtime.inspect.stored_state import record_of
from joinery_runtime.job import Job
from joinery_runtime.job.model.owner import OwnerCandidate, check_candidate
from joinery_runtime.job.model.wording import counted, size_text
from joinery_runtime.state import migrations
from joinery_runtime.state.moving import MovableStore, Moving
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.savepoints import (
    Pin,
    check_rollout,
    ensure_pin,
    is_automatic,
    name_for_migration,
    prune_pins,
    unfinished_rollout,
)
from joinery_runtime.state.store import JobRecord, Migration, StateReader, StateStore, StoredSavepoint
from joinery_runtime.state.upgrade import Rehearsal, check_versions, outdated_segments, rehearse_migration


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did. `dropped`: the state was dropped to start from the beginning, now or in an earlier call,
    together with the plan of epoch `dropped_plan`."""

    job: str
    target: int
    migrated: int
    pin: Pin | None
    dropped: bool
    pruned: tuple[str, ...]
    dropped_plan: int | None = None

    def document(self) -> Mapping[str, Any]:
        pin = self.pin and {
            "name": self.pin.savepoint.name,
            "committed": self.pin.savepoint.committed,
            "how": self.pin.origin,
        }
        return {**asdict(self), "pin": pin, "pruned": list(self.pruned)}

    def lines(self) -> Iterator[str]:
        if self.pin is not None:
            yield f"savepoint {self.pin.savepoint.name} of epoch {self.pin.savepoint.committed}: {self.pin.origin}"
            if self.pin.origin == "kept":
                yield "  the job has committed since: a rollback before the first commit is not possible any more"
        for name in self.pruned:
            yield f"savepoint {name} deleted: of automatic ones the newest are kept"
        if self.dropped:
            yield f"job {self.job} starts from the beginning"
            if self.dropped_plan is not None:
                yield f"  the plan of epoch {self.dropped_plan} was dropped: rows of it that are out already stay"
        elif self.migrated:
            yield f"job {self.job}: {self.migrated} segments migrated to state_version {self.target}"
        else:
            yield f"job {self.job}: nothing to migrate"


def dry_run(job: Job, store: StateReader) -> Rehearsal:
    return rehearse_migration(store, record_of(job, store), migrations.MIGRATIONS, migrations.CURRENT_STATE_VERSION)


def rehearsal_lines(name: str, done: Rehearsal) -> Iterator[str]:
    versions = ", ".join(map(str, done.versions)) or "none"
    segments = counted(done.segments, "segment")
    yield f"job {name}: {segments} of state versions {versions}, this release writes {done.target}"
    if not done.to_migrate:
        yield "nothing to migrate"
        return
    sizes = f"{size_text(done.bytes_before)} become {size_text(done.bytes_after)}"
    yield f"{counted(done.to_migrate, 'segment')} would be migrated: {sizes}, in {done.seconds:.1f} s"


def report_rewrites(chain: Mapping[int, Migration], report: Callable[[int], None]) -> Mapping[int, Migration]:
    """Return the same chain, but the last step that rewrites segments reports how many it has rewritten."""
    rewriting = [version for version, step in chain.items() if step is not migrations.unchanged]
    if not rewriting:
        return chain
    last, done = max(rewriting), 0

    def counted(blob: bytes) -> bytes:
        nonlocal done
        rewritten = chain[last](blob)
        done += 1
        report(done)
        return rewritten

    return {**chain, last: counted}


def migrate_job(
    store: StateStore,
    job: str,
    savepoint: str | None,
    *,
    drop_state: bool,
    report: Callable[[int], None] = lambda _: None,
    candidate: OwnerCandidate | None = None,
) -> Migrated:
    """Take the next generation, which fences older drivers, pin the state, and migrate or drop it. May be repeated
    after an interruption, and after the new driver has committed; then it changes nothing. Calls `report` with the
    number of segments written so far. `candidate` is who acquires the state. Raises JoineryError.

    All steps use the generation taken first, so that rolling back this rollout meanwhile fences them.
    """
    chain, target = report_rewrites(migrations.MIGRATIONS, report), migrations.CURRENT_STATE_VERSION
    if savepoint is not None:
        check_name(savepoint)
    record = store.record(job)
    if record is not None and candidate is not None:
        check_candidate(job, record.owner, candidate)
    if record is not None and savepoint is not None:
        # A rollout that is over, or a release that is too old, must not fence the running driver.
        check_rollout(store, record, savepoint, done=_completion_test(record, drop_state=drop_state))
    if drop_state:
        return _start_anew(store, job, savepoint, target, candidate)
    if record is not None:
        check_versions(record, chain, target)
    if savepoint is None and (record is None or not outdated_segments(record, chain, target)):
        return Migrated(job, target, 0, None, dropped=False, pruned=())
    record = store.acquire(job, candidate)
    name = name_for_migration(record, target) if savepoint is None else savepoint
    done = _completion_test(record, drop_state=False)
    check_rollout(store, record, name, done=done)
    given_up = unfinished_rollout(store, record, but=name)
    if given_up is not None:
        # The state pinned now must be one with which the release before that rollout can continue.
        record = store.roll_back(job, given_up.name, generation=record.generation)
        done = _completion_test(record, drop_state=False)
    count = len(outdated_segments(record, chain, target))
    pin = ensure_pin(store, record, name, done=done)
    store.migrate(job, record.generation, chain, target)
    return Migrated(job, target, count, pin, dropped=False, pruned=tuple(prune_pins(store, job, name)))


def _start_anew(
    store: StateStore, job: str, savepoint: str | None, target: int, candidate: OwnerCandidate | None
) -> Migrated:
    if savepoint is None:
        raise JoineryError(
            "--anew needs a savepoint that keeps the state which is dropped",
            todo="Give --savepoint NAME; it can be deleted once the job runs well",
        )
    record = store.acquire(job, candidate)
    pin = ensure_pin(store, record, savepoint, done=_completion_test(record, drop_state=True))
    after = store.start_anew(job, savepoint, generation=record.generation)
    planned = int(record.plan["epoch"]) if record.plan is not None and after.plan is None else None
    pruned = tuple(prune_pins(store, job, savepoint))
    return Migrated(job, target, 0, pin, dropped=True, pruned=pruned, dropped_plan=planned)


def _completion_test(record: JobRecord, *, drop_state: bool) -> Callable[[StoredSavepoint], bool]:
    """Return a test whether what a savepoint was made for is done, as far as the record shows."""
    chain, target = migrations.MIGRATIONS, migrations.CURRENT_STATE_VERSION

    def done(pin: StoredSavepoint) -> bool:
        return (
            pin.incarnation != record.incarnation
            if drop_state
            else is_automatic(pin.name) and not outdated_segments(record, chain, target)
        )

    return done


DSN_VARIABLE = "JOINERY_MOVE_DSN"
"""The variable for the target's DSN: on the command line, a list of processes would show its password."""


@dataclass(frozen=True, slots=True)
class StateMove:
    job: str
    source: str
    target: str
    contents: Moving
    moved: bool

    def document(self) -> Mapping[str, Any]:
        return {"job": self.job, "from": self.source, "to": self.target, "moved": self.moved, **asdict(self.contents)}

    def lines(self) -> Iterator[str]:
        contents = self.contents
        segments, savepoints = counted(contents.segments, "segment"), counted(contents.savepoints, "savepoint")
        size = f"{segments} ({size_text(contents.bytes)}), {savepoints}, {counted(contents.epochs, 'epoch')}"
        if not self.moved:
            yield f"job {self.job}: {size} would be moved to {self.target}"
            return
        yield f"job {self.job}: {size} moved to {self.target}"
        yield "Name that place in stateStore before the job is started again; here it does not start any more."


def move(job: Job, store: PostgresStore, to: str | None, schema: str | None, *, dry_run: bool) -> StateMove:
    """Move the state. After a JoineryError, a move that has begun can be repeated."""
    dsn = to or os.environ.get(DSN_VARIABLE)
    if not dsn:
        raise JoineryError("The move has no destination", todo=f"Give --to DSN, or set {DSN_VARIABLE}")
    # Both change in one transaction: such a table has to be in the state's database, and would stay behind.
    tables = [output.postgres for output in job.outputs if output.postgres is not None]
    for table in (table for table in tables if not table.is_external):
        raise JoineryError(
            f"Job {job.name} writes to the table {table.table}, which is in the state's database and would stay behind",
            facts="both change in one transaction, so they have to move together",
            todo="Stop the job, copy the whole database with pg_dump and pg_restore, and name the copy in stateStore. "
            "Make sure that nobody starts the job on the old database",
        )
    with (
        closing(MovableStore(store.dsn, store.schema)) as source,
        closing(MovableStore(dsn, schema or store.schema)) as target,
    ):
        contents = source.contents(job.name)
        if not dry_run:
            source.move_to(target, job.name)
        elif target.knows(job.name):
            raise JoineryError(f"There is state of a job {job.name} at the target already", facts=target.location)
        return StateMove(job.name, source.location, target.location, contents, moved=not dry_run)


def stay(job: Job, store: PostgresStore) -> None:
    with closing(MovableStore(store.dsn, store.schema)) as source:
        source.stay(job.name)
