"""`joinery state savepoint`, `restore` and `delete`: pin a job's state, go back to a pin, delete all of the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from joinery_runtime.engine.job_state import input_offsets, live_segments
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.stored_state import epochs_after, has_committed, is_by_hand, record_of
from joinery_runtime.job import Job, definition
from joinery_runtime.job.crd import SavepointResult
from joinery_runtime.job.model.outputs import ONLY_OUTPUT
from joinery_runtime.job.model.wording import counted, listed, size_text
from joinery_runtime.state import decisions
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.savepoints import is_rollout, is_superseded, prune_pins
from joinery_runtime.state.store import JobRecord, StateStore, StoredSavepoint

LONGEST_NAME = 253  # characters that a resource's status can hold


def create(store: StateStore, job: Job, name: str, *, idempotent: bool = False) -> StoredSavepoint:
    """Create a savepoint. `idempotent`: return an existing one of that name."""
    check_name(name)
    record_of(job, store)
    if not is_by_hand(name):
        raise JoineryError(
            f"A savepoint cannot be called {name} by hand",
            facts="such names are those of rollouts, migrations and drivers, which delete them again",
            todo="Choose another name",
        )
    if not idempotent:
        return store.create_savepoint(job.name, name)
    existing = next((pin for pin in store.savepoints(job.name) if pin.name == name), None)
    return existing or store.create_savepoint(job.name, name)


def savepoint_result(savepoint: StoredSavepoint) -> SavepointResult:
    """Return what the operator reads of a savepoint."""
    time = datetime.fromtimestamp(savepoint.created_at / 1000, UTC)
    return SavepointResult(epoch=savepoint.committed, time=time, rows=savepoint.rows, bytes=savepoint.bytes)


def delete(store: StateStore, job: Job, name: str, *, idempotent: bool = False) -> None:
    """Delete a savepoint. Raises StateError if there is no such job or savepoint, unless `idempotent`."""
    if not idempotent:
        record_of(job, store)
    elif store.record(job.name) is None or name not in {pin.name for pin in store.savepoints(job.name)}:
        return
    store.delete_savepoint(job.name, name)


def check_name(name: str) -> None:
    """Raise JoineryError for a name that a new savepoint cannot have."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise JoineryError(
            "A savepoint cannot have this name",
            facts=f"it has {len(name)} characters",
            todo=f"Give one of 1 to {LONGEST_NAME} characters",
        )


@dataclass(frozen=True, slots=True)
class Repeat:
    """What a return to a savepoint does to the output. `rows_out` counts rows by epoch, for epochs that wrote any."""

    job: str
    savepoint: StoredSavepoint
    output: str
    rows_out: Mapping[int, int]
    planned: int | None

    def document(self, *, restored: bool) -> dict[str, Any]:
        pin = {"savepoint": self.savepoint.name, "committed": self.savepoint.committed}
        return {**asdict(self), **pin, "restored": restored}

    def lines(self) -> Iterator[str]:
        yield f"savepoint {self.savepoint.name} of job {self.job}: epoch {self.savepoint.committed}"
        if self.rows_out:
            first, last, rows = min(self.rows_out), max(self.rows_out), sum(self.rows_out.values())
            epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
            yield f"Since then {epochs} wrote {counted(rows, 'row')} to {self.output}: they will be written again."
            for epoch, count in self.rows_out.items():
                yield f"  epoch {epoch}: {counted(count, 'row')}"
        else:
            yield f"No epoch since then wrote rows to {self.output}."
        if self.planned is not None:
            yield f"Epoch {self.planned} is planned: its plan is dropped, and rows of it that are out already repeat."


def repeats(store: StateStore, job: Job, name: str) -> Repeat:
    """Return what a return to the savepoint would repeat. Raises StateError if there is no such savepoint."""
    record = record_of(job, store)
    pins = {pin.name: pin for pin in store.savepoints(job.name)}
    if name not in pins:
        raise decisions.no_savepoint(job.name, name, sorted(pins))
    later_epochs = epochs_after(store, job.name, pins[name].committed)
    counts = {entry.epoch: int(entry.result.get("rows_out", 0)) for entry in later_epochs}
    wrote = {epoch: rows for epoch, rows in counts.items() if rows}
    return Repeat(job.name, pins[name], output_text(job, record), wrote, _planned_epoch(record))


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did. `planned` is the epoch that will be replayed, `dropped` one that was planned after the job
    was started from the beginning. `restored` False: there was nothing to undo, and `note` says why."""

    job: str
    savepoint: str
    committed: int
    planned: int | None
    dropped: int | None
    restored: bool = True
    note: str = ""

    def lines(self) -> Iterator[str]:
        if not self.restored:
            yield f"job {self.job}, savepoint {self.savepoint}: there is nothing to undo, {self.note}"
            return
        yield f"job {self.job} is back at savepoint {self.savepoint}: epoch {self.committed}"
        if self.planned is not None:
            yield f"epoch {self.planned} is planned and will be run as it stands: no row of it repeats"
        if self.dropped is not None:
            yield f"the plan of epoch {self.dropped} was dropped: rows of it that are out already stay"


def roll_back(store: StateStore, job: str, name: str) -> RolledBack:
    """Roll the state back to the savepoint. May be repeated, even after the earlier release has resumed. Raises
    StateError.

    Also ends a rollout that never began: its first container may come late, from a node that was cut off.
    """
    before, pins = store.record(job), {pin.name: pin for pin in store.savepoints(job)}
    pin = pins.get(name)
    committed = 0 if before is None else before.committed
    if pin is None and is_rollout(name):
        # The rollout failed before it pinned anything (its image could not be pulled, say), and so changed nothing.
        record = store.acquire(job)  # so that nobody commits between the pin and the return to it
        store.create_savepoint(job, name)
        record = store.roll_back(job, name, generation=record.generation)
        prune_pins(store, job, name)
        note = "it was never made, and can be no more"
        return RolledBack(job, name, record.committed, _planned_epoch(record), None, restored=False, note=note)
    if pin is not None and pin.rolled_back and (committed > pin.committed or is_superseded(pin, pins.values())):
        note = "that was done before and the job has continued"
        return RolledBack(job, name, committed, None, None, restored=False, note=note)
    record = store.roll_back(job, name)
    planned, was_planned = _planned_epoch(record), None if before is None else _planned_epoch(before)
    return RolledBack(job, name, record.committed, planned, None if planned is not None else was_planned)


def _planned_epoch(record: JobRecord) -> int | None:
    return None if record.plan is None else int(record.plan["epoch"])


def output_text(job: Job, record: JobRecord) -> str:
    """Where rows went, according to the job's definition at the newest epoch. An upsert key that this definition does
    not name follows from the job as it is now, whose groups cannot have changed."""
    defined = record.definition or definition(job)
    targets = []
    for output in defined.get("outputs") or [defined["output"]]:
        if "kafka" in output:
            targets.append(f"the topic {output['kafka']['topic']}")
        elif "postgres" in output:
            now = next((at for at in job.outputs if at.name == output.get("name", ONLY_OUTPUT)), None)
            upserts = output["postgres"].get("upsertKey") or (() if now is None else job.upsert_key(now))
            by = f" (rows of the same {', '.join(upserts)} are replaced)" if upserts else ""
            targets.append(f"the table {output['postgres']['table']}{by}")
        else:
            targets.append(f"the folder {output['file']['path']}")
    return listed(targets)


def restore(store: StateStore, job: Job, name: str) -> Repeat:
    """Go back to the savepoint. Fences the running driver first, so that nothing else repeats than is reported."""
    repeats(store, job, name)
    store.acquire(job.name)
    repeat = repeats(store, job, name)
    store.restore_savepoint(job.name, name)
    return repeat


def stored_text(store: PostgresStore, job: str) -> str | None:
    """Return what the store has of the job, in words; None if it has nothing."""
    new_location = store.moved_to(job)
    if new_location is not None:
        return f"it was moved to {new_location}, or a move there has begun"
    record = store.record(job)
    if record is None:
        return None
    rows, size = sum(meta.rows for meta in live_segments(record)), sum(meta.bytes for meta in record.segments)
    live = f"{counted(rows, 'row')} in {counted(len(record.segments), 'segment')} ({size_text(size)})"
    pins = counted(len(store.savepoints(job)), "savepoint")
    inputs = counted(len(input_offsets(record)), "input")
    log = f"the log up to epoch {record.epoch}" if has_committed(store, record) else "no epoch in the log"
    return f"{live}, the offsets of {inputs}, {pins}, {log}"
