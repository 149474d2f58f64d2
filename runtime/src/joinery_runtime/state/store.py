"""The ports between a job and its durable state, and the values that cross them.

Every store implements all of them (`StateStore`). A user takes the port that it needs: a task stages and reads segments
(`TaskStore`), a driver runs epochs (`DriverStore`), an inspection changes nothing (`StateReader`), `joinery state`
works on jobs from beside (`Admin`, `Savepoints`). All are keyed by `job` ("namespace/name" or "name") and thread-safe.

What safety rests on (seeds 000 and 003, architecture "the commit protocol"):

* `acquire` hands out generations 1, 2, 3, ...; from then on every write with an older generation raises Fenced.
* `stage` is invisible: staged segments are never part of `JobRecord.segments` until a commit names their keys. It does
  not check the generation: a zombie's leftovers are garbage, not damage. What was staged under an older generation can
  no longer be committed.
* A pending plan is replayed as it stands, under the job definition that is stored with it: it may have been acted on.
  Only one of which nothing is visible, and nothing can be any more, is replaced by another one (`replacing`).
* `commit` is one atomic step: it checks the generation and that `epoch` is the job's next one, makes exactly
  `upserts` live, takes `deletes` out of the live set, stores the offsets of the sources that it names, moves the plan
  to the epoch log and may store the next plan. It happens whole or not at all; who does not learn which asks `record`.
* Segments are immutable: a key is never written twice with other bytes.
* A segment that a savepoint pins outlives its deletion from the live set. What nothing needs is removed by `sweep`
  alone, so that no commit waits for the deletion of big blobs: a driver calls it now and then.
* Epoch numbers never repeat, also not after `restore_savepoint`, `reset_offsets`, `start_anew` (rule M3) or
  `delete_job`.
* Plans, results, signatures and definitions are JSON: text or null for an infinite watermark, no NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.store_identity import StoreIdentity

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
    "SavepointReader",
    "Savepoints",
    "SegmentMeta",
    "SegmentReader",
    "Standing",
    "StateReader",
    "StateStore",
    "StoredSavepoint",
    "TaskStore",
]

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Everything a driver needs to go on: the newest committed epoch and what hangs on it.

    `epoch` is the last number used (0: none yet), `plan` the pending plan if one was written and not committed,
    `signature` the fingerprint of the job that the state was written by, `offsets` opaque bytes per source id.
    `lineage` names this life of the job: a UUID, made when the store first sees the job and anew when it comes back
    after `delete_job` or `start_anew`. `definition` is the job document that the pending plan, or else the epoch
    `committed`, was made under; None before the first plan, after `start_anew`, and where a release that did not store
    it left the state. `planned_for_ms` is how long ago the pending plan was written, by the store's clock (0: none is
    pending); records are equal without it. `committed` is the epoch that the state stands on: the last one that was
    committed, or the savepoint's after a restore (0: none). After `start_anew` it stays, until the next commit.
    """

    job: str
    lineage: str
    generation: int
    epoch: int
    signature: Json | None
    definition: Json | None
    plan: Json | None
    planned_for_ms: int = field(compare=False)
    offsets: Mapping[str, bytes]
    segments: tuple[SegmentMeta, ...]
    committed: int = 0

    @property
    def standing(self) -> Standing:
        return Standing(self.generation, self.epoch, None if self.plan is None else self.epoch + 1)


@dataclass(frozen=True, slots=True)
class Standing:
    """Who owns a job and how far it is: newest generation, last epoch number used, epoch of the pending plan."""

    generation: int
    epoch: int
    planned: int | None


@dataclass(frozen=True, slots=True)
class EpochCommit:
    """One epoch's durable effect. `upserts` and `deletes` are segment keys; `plan` and `result` go to the epoch log.

    `definition` is the job document that this epoch, and `next_plan`, were made under.
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
    # Runs inside the transaction with the store's connection (None for memory): the sinks' part of the atomic step.
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
    """Pinned state. `epoch` is the last number that had been used, `committed` the epoch that the state stands on,
    `lineage` the life of the job; `rolled_back` says that `roll_back` has been here. Times are epoch milliseconds."""

    name: str
    epoch: int
    created_at: int
    rows: int
    bytes: int
    committed: int
    lineage: str
    rolled_back: bool = False


Migration = Callable[[bytes], bytes]


# --- what is there ----------------------------------------------------------------------------------------------------


class JobReader(Protocol):
    """Reads what is stored of a job. Takes no generation, waits for nobody, changes nothing."""

    def identity(self) -> StoreIdentity:
        """Which store this is: the same for all who open it, for as long as its tables (or the object in memory)
        live."""
        ...

    def record(self, job: str) -> JobRecord | None:
        """None if there is no such job. Raises Moved, or StateError while it is being moved."""
        ...

    def standing(self, job: str) -> Standing | None:
        """One row, cheap enough for every attempt of a task; None if there is no such job."""
        ...

    def claims(self, job: str) -> dict[str, str]:
        """Owners of claims by name. A commit removes them; a plan that was dropped otherwise leaves its own behind."""
        ...

    def epochs(self, job: str, after: int = 0, limit: int = 1000) -> list[EpochRecord]:
        """The log's epochs > `after`, oldest first; the log goes 10,000 epochs back (`decisions.EPOCH_LOG_LENGTH`)."""
        ...

    def newest_epoch(self, job: str) -> EpochRecord | None:
        """The log's entry of the epoch that the state stands on (`JobRecord.committed`): the last one that was
        committed, or the savepoint's after a restore. None if there is none, or if it has been trimmed."""
        ...


class SegmentReader(Protocol):
    """Blobs by key. They are immutable, so what was read once may be kept for ever."""

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Blobs by key, of live and of pinned segments; raises StateError naming a key that is not there."""
        ...


class SavepointReader(Protocol):
    """What savepoints keep."""

    def savepoints(self, job: str) -> list[StoredSavepoint]:
        """By name."""
        ...

    def pinned(self, job: str, name: str) -> JobRecord:
        """What the savepoint keeps, as the record of the job that stood there: nothing is planned, `epoch` is the last
        number that had been used. Raises StateError if there is no such savepoint."""
        ...


class StateReader(JobReader, SegmentReader, SavepointReader, Protocol):
    """All that can be read of a job."""


# --- the commit protocol ----------------------------------------------------------------------------------------------


class Epochs(Protocol):
    """What the owner of a job does. `acquire` makes one; every other call names the generation that `acquire` gave, and
    raises Fenced when there is a newer one."""

    def acquire(self, job: str) -> JobRecord:
        """Takes the next generation (creating the job at its first start) and returns the record under it."""
        ...

    def write_plan(
        self, job: str, generation: int, plan: Json, definition: Json, *, replacing: Json | None = None
    ) -> None:
        """Stores the pending plan with the job document it was made under; its "epoch" must be record.epoch + 1.
        Raises Fenced, and StateError if another plan, or this one under another definition, is pending; the same
        again is no error. `replacing` is the pending plan that this one takes the place of: only who has fenced all
        that could act on it, and has seen that nothing of it is visible, may give it."""
        ...

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        """Raises Fenced, StateError (wrong epoch, unknown staged key), or StoreUnavailable (outcome unknown)."""
        ...

    def release_claims(self, job: str, generation: int) -> None:
        """Their owners have been fenced: the claims stay, and are nobody's (""). Raises Fenced."""
        ...

    def sweep(self, job: str, generation: int) -> int:
        """Removes staged segments that no commit can name any more (older generation or committed epoch) and deleted
        ones that no savepoint pins; returns how many. May run beside commits. Raises Fenced."""
        ...

    def migrate(self, job: str, generation: int, chain: Mapping[int, Migration], target: int) -> int:
        """Rewrites through the chain, atomically, every live segment that a release which writes `target` cannot read
        as it is (`migrations.readable_from`); returns how many. Raises IncompatibleState naming the missing step before
        anything is written, or state newer than `target`.

        A rewritten segment gets a new key, the old one followed by `~`: the old bytes stay what caches and savepoints
        know them as."""
        ...


class Savepoints(SavepointReader, Protocol):
    """Pins the state as it is. Pinned segments stay readable; live ones are not touched, and no driver is fenced."""

    def create_savepoint(self, job: str, name: str) -> StoredSavepoint:
        """Pins the live segments with offsets, signature and definition; copies no blob. Raises StateError if the
        name is taken."""
        ...

    def delete_savepoint(self, job: str, name: str) -> None:
        """Drops the pins, not what is live: a job that was restored from it goes on."""
        ...


class DriverStore(JobReader, Epochs, Savepoints, Protocol):
    """What a driver works with: its own calls, what it reads of the job, and the savepoint that a migration makes."""


class TaskStore(SegmentReader, Protocol):
    """What a task works with. A task owns nothing: its segments are garbage until the driver commits them, and its
    claims hold for as long as the driver owns the job."""

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        """Durable when it returns. A call may be repeated; raises StateError for a known key with other bytes."""
        ...

    def claim(self, job: str, expected: Standing, name: str, owner: str, instead_of: str | None = None) -> str | None:
        """Claims the part `name` of the pending epoch's output for `owner`, where rows are visible before the commit.

        None if nobody had claimed it before: `owner` has it now. Else who has it: the first one who claimed it, `owner`
        if that was `instead_of`, who must have been fenced, or "" if its owner has been (`release_claims`). Raises
        Fenced unless the job's standing is `expected`; whoever acquires the job later finds the claim in `claims`."""
        ...


# --- from beside ------------------------------------------------------------------------------------------------------


class Admin(Protocol):
    """Changes what a job stands on, from beside its driver. A call that changes anything takes the generation anew in
    the same step: a driver that runs is fenced and never meets state that it has not written. The number of a plan
    that is dropped is used up, because output of that epoch may have gone out."""

    def restore_savepoint(self, job: str, name: str) -> JobRecord:
        """Live set, offsets, signature, definition and lineage become the savepoint's; the pending plan is dropped
        and its number is used up; epoch goes on counting; the generation is taken anew, so that a running driver is
        fenced."""
        ...

    def start_from(self, job: str, other: str, name: str) -> JobRecord:
        """Begins a job with the savepoint `name` of the job `other`: a copy of its segments, offsets, signature,
        definition and of the log's entry of its epoch, without what that epoch wrote. The lineage is the job's own, the
        generation is taken. Raises StateError if there is no such savepoint, or if the job has any state."""
        ...

    def roll_back(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        """Undoes what was done to the state since the savepoint, as long as no epoch was committed: CommittedSince if
        the state stands on another one by now. May be repeated.

        The live segments become the pinned ones. Offsets and signature are still those of the savepoint, or were
        reset since; the pending plan stays with its definition, because rows of it may have gone out. Where the job
        was started anew since, all of the savepoint comes back instead, and the plan of the new life, which means
        nothing to it, is dropped with its number used up. The generation is taken anew; where `generation` is given,
        that has to be the newest until then: else Fenced."""
        ...

    def start_anew(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        """Leaves nothing live: offsets, signature, definition and plan are dropped (the plan's number is used up), the
        lineage is another one, the generation is taken anew. Log and savepoints stay.

        `name` is the savepoint that keeps what is dropped: StateError if the state stands on another epoch than it. If
        the job was started anew since that savepoint, this was done before, and nothing changes: no driver is fenced.
        Where `generation` is given, it has to be the newest: else Fenced.
        """
        ...

    def reset_offsets(
        self,
        job: str,
        offsets: Mapping[str, bytes],
        *,
        expected: Standing | None = None,
        drop_plan: bool = False,
        replaced: Collection[str] = (),
        by: Sequence[tuple[SegmentMeta, bytes]] = (),
    ) -> JobRecord:
        """Replaces the offsets of the named sources, and these live segments `by` others (of keys that the store does
        not know), and nothing else; the generation is taken anew, so that a running driver is fenced. Raises StateError
        if a plan is pending, unless it is to be dropped: its number is used up then, because output of that epoch may
        have gone out. `expected` is where the job stood when all this was worked out: StateError if it went on since,
        which would take other partitions back with them, and needed where segments are replaced."""
        ...

    def delete_job(self, job: str) -> None:
        """Removes all state, savepoints and the log. Generation and epoch numbers go on if the job comes back, so a
        zombie of its old life stays fenced; its lineage does not. No error if there is no such job."""
        ...


class StateStore(StateReader, TaskStore, DriverStore, Admin, Protocol):
    """What a state store implements: all ports on the same state, with one conformance suite (tests/state)."""

    def close(self) -> None: ...
