"""The ports between a job and its durable state, and the values that cross them.

Every store implements all of them (`StateStore`). Callers take the port they need: a task stages and reads segments
(`TaskStore`), a driver runs epochs (`DriverStore`), an inspection changes nothing (`StateReader`), `joinery state`
works on jobs from outside (`Admin`, `Savepoints`). All are keyed by `job` ("namespace/name" or "name") and thread-safe.

What safety rests on (docs/architecture.md, "Epochs"):

* `acquire` hands out generations 1, 2, 3, ...; from then on every write with an older generation raises Fenced.
* `stage` is invisible: staged segments are never part of `JobRecord.segments` until a commit names their keys. `stage`
  does not check the generation: what a zombie wrote is garbage, not damage. What was staged under an older generation
  can no longer be committed.
* A pending plan is replayed unchanged, under the job definition stored with it, because it may have been acted on. A
  plan is replaced by another one (`replacing`) only if nothing of it is visible, and nothing can become visible.
* `commit` is one atomic step: it checks the generation and that `epoch` is the job's next one, makes exactly
  `upserts` live, takes `deletes` out of the live set, stores the offsets of the sources that it names, moves the plan
  to the epoch log and may store the next plan. It happens whole or not at all; a caller that does not learn which asks
  `record`.
* Segments are immutable: a key is never written twice with different bytes.
* A segment that a savepoint pins outlives its deletion from the live set. Only `sweep` removes what nothing needs, so
  that no commit waits for the deletion of big blobs. A driver calls `sweep` now and then.
* Epoch numbers never repeat, not even after `restore_savepoint`, `reset_offsets`, `start_anew` (rule M3) or
  `delete_job`.
* Plans, results, signatures and definitions are JSON: text or null for an infinite watermark, no NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.job.model.owner import OwnerCandidate, RecordedOwner

__all__ = [
    "Admin",
    "DriverStore",
    "EpochCommit",
    "EpochRecord",
    "Epochs",
    "JobReader",
    "JobRecord",
    "Json",
    "Migration",
    "OwnershipToken",
    "SavepointReader",
    "Savepoints",
    "SegmentMeta",
    "SegmentReader",
    "StateReader",
    "StateStore",
    "StoredSavepoint",
    "TaskStore",
]

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Everything a driver needs to continue: the newest committed epoch, and the state and offsets that belong to it.

    `epoch` is the last number used (0: none yet). `plan` is the pending plan, if one was written and not committed.
    `signature` is the fingerprint of the job that wrote the state. `offsets` are opaque bytes per source id.
    `incarnation` is a UUID, made when the store first sees the job; `delete_job` and `start_anew` begin a new one.
    `definition` is the job document under which the pending plan, or else the epoch `committed`, was made; None before
    the first plan, after `start_anew`, and where the state comes from a release that did not store it. `planned_for_ms`
    is how long ago the pending plan was written, by the store's clock (0: none is pending); comparison ignores it.
    `committed` is the epoch that the state is at: the last one committed, or the savepoint's after a restore (0:
    none). `start_anew` leaves it unchanged until the next commit. `owner` is the resource to which the state belongs;
    None: no driver of a release that records it has started.
    """

    job: str
    incarnation: str
    generation: int
    epoch: int
    signature: Json | None
    definition: Json | None
    plan: Json | None
    planned_for_ms: int = field(compare=False)
    offsets: Mapping[str, bytes]
    segments: tuple[SegmentMeta, ...]
    committed: int = 0
    owner: RecordedOwner | None = None

    @property
    def ownership(self) -> OwnershipToken:
        return OwnershipToken(self.generation, self.epoch, None if self.plan is None else self.epoch + 1)


@dataclass(frozen=True, slots=True)
class OwnershipToken:
    """Who owns a job and how far it has come: newest generation, last epoch number used, epoch of the pending plan."""

    generation: int
    epoch: int
    planned: int | None


@dataclass(frozen=True, slots=True)
class EpochCommit:
    """One epoch's durable effect. `upserts` and `deletes` are segment keys; `plan` and `result` go to the epoch log.

    `definition` is the job document under which this epoch and `next_plan` were made.
    """

    epoch: int
    plan: Json
    result: Json
    upserts: Sequence[str]
    deletes: Sequence[str]
    offsets: Mapping[str, bytes]
    signature: Json
    definition: Json
    next_plan: Json | None = None
    # The sinks' part of the atomic step: each runs inside the transaction, with the store's connection (None: memory).
    effects: Sequence[Callable[[Any], None]] = field(default=())


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One line of the epoch log. `committed_at` is epoch milliseconds by the store's clock."""

    epoch: int
    generation: int
    plan: Json
    result: Json
    committed_at: int


@dataclass(frozen=True, slots=True)
class StoredSavepoint:
    """Pinned state. `epoch` is the last number used by then, `committed` the epoch that the state is at,
    `incarnation` the life of the job. `rolled_back` says that `roll_back` was called with this savepoint. Times are
    epoch milliseconds."""

    name: str
    epoch: int
    created_at: int
    rows: int
    bytes: int
    committed: int
    incarnation: str
    rolled_back: bool = False


Migration = Callable[[bytes], bytes]


# --- reading ----------------------------------------------------------------------------------------------------------


class JobReader(Protocol):
    """Reads what is stored of a job. Takes no generation, waits for no lock, changes nothing."""

    def identity(self) -> StoreIdentity:
        """Identify this store: the same for everyone who opens it, as long as its tables (or the object in memory)
        exist."""
        ...

    def record(self, job: str) -> JobRecord | None:
        """Return the job's record; None if there is no such job. Raises Moved if the job was moved, and StateError
        while it is being moved."""
        ...

    def ownership(self, job: str) -> OwnershipToken | None:
        """Read one row, cheap enough for every attempt of a task. None if there is no such job."""
        ...

    def claims(self, job: str) -> dict[str, str]:
        """Return the owners of claims by name. A commit removes the claims; a plan that is dropped leaves its claims
        behind."""
        ...

    def epochs(self, job: str, after: int = 0, limit: int = 1000) -> list[EpochRecord]:
        """Return the log's epochs > `after`, oldest first. The log goes back 10,000 epochs
        (`decisions.EPOCH_LOG_LENGTH`)."""
        ...

    def newest_epoch(self, job: str) -> EpochRecord | None:
        """Return the log entry of the epoch that the state is at (`JobRecord.committed`): the last one committed,
        or the savepoint's after a restore. None if there is none, or if it was trimmed."""
        ...


class SegmentReader(Protocol):
    """Reads blobs by key. Blobs are immutable, so a reader may cache them for ever."""

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the blobs of live and of pinned segments, by key. Raises StateError naming a key that is missing, or
        whose bytes are not those that were staged (`blob.check_blob`)."""
        ...


class SavepointReader(Protocol):
    """Reads savepoints."""

    def savepoints(self, job: str) -> list[StoredSavepoint]:
        """Return the job's savepoints, ordered by name."""
        ...

    def pinned(self, job: str, name: str) -> JobRecord:
        """Return what the savepoint keeps, as the job's record at that time. No plan is pending, and `epoch` is the
        last number used by then. Raises StateError if there is no such savepoint."""
        ...


class StateReader(JobReader, SegmentReader, SavepointReader, Protocol):
    """Everything that can be read of a job."""


# --- the commit protocol ----------------------------------------------------------------------------------------------


class Epochs(Protocol):
    """What the owner of a job does. `acquire` makes the caller the owner. Every other call names the generation that
    `acquire` gave, and raises Fenced when there is a newer one."""

    def acquire(self, job: str, candidate: OwnerCandidate | None = None) -> JobRecord:
        """Take the next generation (creating the job at its first start) and return the record under it. The state
        belongs to the candidate from then on. Raises StateTaken, and changes nothing, if it belongs to another owner
        (`owner.check_candidate`). Without a candidate, its owner stays."""
        ...

    def write_plan(
        self, job: str, generation: int, plan: Json, definition: Json, *, replacing: Json | None = None
    ) -> None:
        """Store the pending plan with the job document under which it was made; its "epoch" must be record.epoch + 1.
        Raises Fenced, and StateError if another plan, or this one under another definition, is pending. Repeating the
        same call is no error. `replacing` is the pending plan that this one replaces: only a caller that has fenced
        everything that could act on that plan, and has seen that nothing of it is visible, may pass it."""
        ...

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        """Commit an epoch. Raises Fenced, StateError (wrong epoch, unknown staged key), or StoreUnavailable (outcome
        unknown)."""
        ...

    def release_claims(self, job: str, generation: int) -> None:
        """Keep the job's claims but remove their owners, which are fenced: each then belongs to nobody (""). Raises
        Fenced."""
        ...

    def sweep(self, job: str, generation: int) -> int:
        """Remove staged segments that no commit can name any more (older generation or committed epoch), and retired
        ones that no savepoint pins. Returns how many. May run beside commits. Raises Fenced."""
        ...

    def migrate(self, job: str, generation: int, chain: Mapping[int, Migration], target: int) -> int:
        """Rewrite, atomically, every live segment that a release which writes `target` cannot read as it is
        (`migrations.readable_from`). Returns how many. Before anything is written, raises IncompatibleState if a step
        of the chain is missing (the message names it), or if the state is newer than `target`.

        A rewritten segment gets a new key that begins with the old one and `~`. The old key keeps its bytes, for caches
        and savepoints that use it."""
        ...


class Savepoints(SavepointReader, Protocol):
    """Pins the current state. Pinned segments stay readable. The live set does not change, and no driver is fenced."""

    def create_savepoint(self, job: str, name: str) -> StoredSavepoint:
        """Pin the live segments with offsets, signature and definition, without copying a blob. Raises StateError if
        the name is taken."""
        ...

    def delete_savepoint(self, job: str, name: str) -> None:
        """Drop the pins and no live segment: a job that was restored from the savepoint continues."""
        ...


class Resets(Protocol):
    """Changes where the next plan begins to read, and drops a pending one."""

    def reset_offsets(
        self,
        job: str,
        offsets: Mapping[str, bytes],
        *,
        expected: OwnershipToken | None = None,
        drop_plan: bool = False,
        replaced: Collection[str] = (),
        by: Sequence[tuple[SegmentMeta, bytes]] = (),
    ) -> JobRecord:
        """Replace the offsets of the named sources, and the live segments `replaced` by those in `by` (whose keys are
        new to the store), and nothing else. Takes the next generation, so that a running driver is fenced. Raises
        StateError if a plan is pending, unless `drop_plan` is set; then its number is used up, because output of that
        epoch may have been written. `expected` is the job's standing when the arguments were computed. Raises
        StateError if the job continued since, which would also take other partitions back. Replacing segments requires
        `expected`."""
        ...


class DriverStore(JobReader, Epochs, Savepoints, Resets, Protocol):
    """What a driver needs: its own calls, what it reads of the job, and the savepoint that a migration makes."""


class TaskStore(SegmentReader, Protocol):
    """What a task needs. A task owns nothing: its segments are garbage until the driver commits them, and its claims
    hold for as long as the driver owns the job."""

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        """Store segments invisibly; they are durable when the call returns. A call may be repeated. Raises StateError
        for a known key with different bytes."""
        ...

    def claim(
        self, job: str, expected: OwnershipToken, name: str, owner: str, replacing: str | None = None
    ) -> str | None:
        """Claim the part `name` of the pending epoch's output for `owner`, where rows are visible before the commit.

        Returns None if the part was unclaimed; `owner` holds it now. Otherwise returns the holder: `owner` if the
        holder was `replacing`, which must have been fenced; else the first claimant, or "" if that one was fenced
        (`release_claims`). Raises Fenced unless the job's standing is `expected`. Whoever acquires the job later finds
        the claim in `claims`."""
        ...


# --- administration ---------------------------------------------------------------------------------------------------


class Admin(Resets, Protocol):
    """Changes a job's state from outside its driver. Every call that changes anything takes the next generation in the
    same step, so a running driver is fenced and never meets state that it has not written. Dropping a pending plan uses
    up its epoch number, because output of that epoch may have been written."""

    def restore_savepoint(self, job: str, name: str) -> JobRecord:
        """Set live set, offsets, signature, definition and incarnation to those of the savepoint. Drops the pending
        plan and uses up its number; epoch numbers keep counting. Takes the next generation, so that a running driver
        is fenced."""
        ...

    def start_from(self, job: str, other: str, name: str) -> JobRecord:
        """Start a job from the savepoint `name` of the job `other`. Copies its segments, offsets, signature and
        definition, and the log entry of its epoch without what that epoch wrote. The job has an incarnation of its own;
        takes its next generation. Raises StateError if there is no such savepoint, or if the job has any state."""
        ...

    def roll_back(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        """Undo what was done to the state since the savepoint, provided that no epoch was committed since. Raises
        CommittedSince if the state is now at another epoch. May be repeated.

        Makes exactly the pinned segments live. Offsets and signature stay: they are still those of the savepoint, or
        were reset since. The pending plan stays with its definition, because rows of it may have been written. If the
        job was started from the beginning since, all of the savepoint is restored instead, and the plan of the new
        incarnation, which does not fit the old state, is dropped and its number used up. Takes the next generation. If
        `generation` is given and is not the newest until then, raises Fenced."""
        ...

    def start_anew(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        """Empty the live set and drop offsets, signature, definition and plan (whose number is used up). Gives the
        job a new incarnation and takes the next generation. Log and savepoints stay.

        `name` is the savepoint that keeps what is dropped. Raises StateError if the state is at another epoch than
        that savepoint. If the job was already started from the beginning since the savepoint, the call is a repetition:
        it changes nothing and fences no driver. If `generation` is given and is not the newest, raises Fenced.
        """
        ...

    def delete_job(self, job: str) -> None:
        """Remove all state, savepoints and the log. If the job comes back, generation and epoch numbers keep counting,
        so a driver from before stays fenced, but the incarnation is a new one. No error if there is no such job."""
        ...


class StateStore(StateReader, TaskStore, DriverStore, Admin, Protocol):
    """What a state store implements: all ports on the same state. One conformance suite (tests/state) checks it."""

    def close(self) -> None: ...
