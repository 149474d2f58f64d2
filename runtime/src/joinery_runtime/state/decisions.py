"""Decides what a store may do, from what it has stored alone: no database, no clock. Every store calls these functions.

A segment's life: staged -> live -> retired -> gone. A *retired* segment is one that a commit, a restore or a migration
took out of the live set. Only `sweep` removes rows: deleting a big blob takes Postgres 1 ms per MB (measured), which no
commit should wait for, and a retired segment that a savepoint pins must stay anyway.

A staged segment carries the generation and the epoch that it was staged under. If it can be swept
(`is_sweepable`), no commit can take it, now or later: so garbage can be swept while commits continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from joinery_runtime.core.table.blob import check_blob
from joinery_runtime.errors import CommittedSince, Fenced, Moved, StateError
from joinery_runtime.job.model.owner import OwnerCandidate, RecordedOwner, check_candidate
from joinery_runtime.state.store import EpochCommit, JobRecord, Json, OwnershipToken, SegmentMeta, StoredSavepoint

EPOCH_LOG_LENGTH = 10_000
"""How many epoch numbers back from the newest commit the log goes; each commit trims older entries."""

EPOCH_LOG_BYTES = 256 << 20
"""Bytes that the plans and results of a job's log may take, compressed as stored; each sweep trims the oldest."""

MAX_SEGMENT_BYTES = 1_000_000_000
"""Postgres breaks the connection on a row of 1 GiB, which would look like an outage."""

BATCH = 32
"""The most segments to handle at a time; libpq holds a whole answer in memory, next to the blobs made from it."""

BATCH_BYTES = 128 * 2**20
"""The most bytes to handle at a time, unless a single segment has more."""

_KEYS_IN_MESSAGE = 5

_T = TypeVar("_T")


class SegmentStatus(StrEnum):
    STAGED = "staged"
    LIVE = "live"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job's stored row: newest generation, last epoch number used, JSON texts of the pending plan and the definition,
    the epoch that the state is at, the incarnation, where the state was moved or is being moved to, and its owner
    (`RecordedOwner`, as JSON).

    A deleted job keeps its generation and epoch: a driver from before the deletion stays fenced, and numbers never
    repeat (M3).
    """

    job: str
    generation: int
    epoch: int
    plan: str | None
    definition: str | None
    deleted: bool
    committed: int
    incarnation: str
    moved_to: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment's stored status. `generation` and `epoch` are those that the segment was staged under."""

    status: SegmentStatus
    generation: int
    epoch: int


def no_job(job: str) -> StateError:
    return StateError(
        f"There is no state of job {job}",
        facts="the store has no such job",
        todo="Check its name, namespace and the store's address",
    )


def require_owned(stored: StoredJob | None, job: str, generation: int | None) -> StoredJob:
    """Return the stored job. Raises StateError if there is none, and Fenced if `generation` is given and does not own
    the job."""
    return require_job(stored, job) if generation is None else check_owner(stored, job, generation)


def check_roll_back(stored: StoredJob, pin: StoredSavepoint) -> bool:
    """Return whether the job was started from the beginning since the savepoint, so that all of it has to be restored.
    Raises CommittedSince."""
    if stored.committed != pin.committed:
        raise CommittedSince(
            f"Job {stored.job} cannot simply be rolled back to savepoint {pin.name}",
            facts=f"its state is now at epoch {stored.committed}, the savepoint's at {pin.committed}",
            todo="To go back all the same, restore the savepoint: output of the epochs since then will repeat",
        )
    return stored.incarnation != pin.incarnation


def check_start_anew(stored: StoredJob, pin: StoredSavepoint) -> bool:
    """Return whether there is state to drop; False if the job was already started from the beginning since it. Raises
    StateError."""
    if stored.incarnation != pin.incarnation:
        return False
    if stored.committed != pin.committed:
        raise StateError(
            f"Savepoint {pin.name} does not keep the state of job {stored.job} that would be dropped",
            facts=f"the savepoint's state is at epoch {pin.committed}, the job's at {stored.committed}",
            todo="Create another savepoint and name that one",
        )
    return True


def no_savepoint(job: str, name: str, existing: Sequence[str]) -> StateError:
    facts = f"there are: {', '.join(existing)}" if existing else "it has none"
    return StateError(f"Job {job} has no savepoint {name}", facts=facts, todo="Name one of them, or create it first")


def is_new(record: JobRecord) -> bool:
    """Return whether the job has neither state nor a plan that may have been acted on."""
    return record.committed == 0 and record.signature is None and record.plan is None and not record.segments


def state_exists_error(job: str) -> StateError:
    return StateError(
        f"Job {job} has state already",
        facts="only a job that has none can start from another one's savepoint",
        todo="Take stateStore.startFrom out, or give the job another name",
    )


def savepoint_exists_error(job: str, name: str) -> StateError:
    return StateError(f"Job {job} already has a savepoint {name}", todo="Choose another name, or delete that one first")


def missing_segments(job: str, keys: Iterable[str], reason: str) -> StateError:
    return StateError(
        f"Job {job} lacks segments that it needs",
        facts=f"{reason}: {name_keys(keys)}",
        todo="Restart the job: it continues from its last committed epoch",
    )


def name_keys(keys: Iterable[str]) -> str:
    """Return the first few keys in order, and how many more there are."""
    ordered = sorted(keys)
    more = len(ordered) - _KEYS_IN_MESSAGE
    return ", ".join(ordered[:_KEYS_IN_MESSAGE]) + (f" and {more} more" if more > 0 else "")


def require_job(stored: StoredJob | None, job: str) -> StoredJob:
    if stored is None:
        raise no_job(job)
    if stored.moved_to is not None:
        raise moved_error(stored)
    if stored.deleted:
        raise no_job(job)
    return stored


def moved_error(stored: StoredJob) -> StateError:
    if stored.deleted:
        return Moved(
            f"The state of job {stored.job} was moved",
            facts=f"it is at {stored.moved_to}",
            todo="Name that place in stateStore. To start here from the beginning instead: "
            "joinery state delete JOB --yes",
        )
    return StateError(
        f"The state of job {stored.job} is being moved",
        facts=f"to {stored.moved_to}; the move has not ended",
        todo="Repeat the same joinery state move, or cancel it with joinery state move JOB --stay",
    )


def check_owner(stored: StoredJob | None, job: str, generation: int) -> StoredJob:
    """Raise Fenced unless `generation` is the job's newest one."""
    if stored is not None and stored.generation != generation:
        raise fenced_error(job, generation, str(stored.generation))
    return require_job(stored, job)


def fenced_error(job: str, generation: int, by: str) -> Fenced:
    return Fenced(
        f"This driver no longer owns job {job}",
        facts=f"its generation is {generation}, the store's is {by}",
        todo="A newer driver, a restored savepoint or a deletion took over; this driver must stop",
    )


def next_owner(stored: StoredJob, candidate: OwnerCandidate) -> str:
    """Return the owner of the state, as JSON, once the candidate has acquired `stored.generation`. Raises
    StateTaken."""
    recorded = decode_owner(stored.owner)
    check_candidate(stored.job, recorded, candidate)
    if recorded is not None and recorded.owner == candidate.owner and stored.owner is not None:
        return stored.owner
    return RecordedOwner(owner=candidate.owner, since=stored.generation).model_dump_json(exclude_defaults=True)


def decode_owner(text: str | None) -> RecordedOwner | None:
    return None if text is None else RecordedOwner.model_validate_json(text)


def check_plan(
    stored: StoredJob | None, job: str, generation: int, plan: str, definition: str, replacing: Json | None = None
) -> bool:
    """Return whether the plan is to be written; False: it is there already. Both are JSON texts.

    A plan is for the next epoch, and one that is pending is never replaced by another, since it may have been acted on:
    except `replacing`: its owner knows that none of its rows ever was or will be visible.
    """
    owner = check_owner(stored, job, generation)
    _check_plan_epoch(job, json.loads(plan), owner.epoch + 1)
    if owner.plan is None:
        return True
    if replacing is not None and json.loads(owner.plan) == replacing:
        return True
    if json.loads(owner.plan) != json.loads(plan):
        raise _pending_error(f"Job {job} has another plan for epoch {owner.epoch + 1}")
    if decode_optional(owner.definition) != json.loads(definition):
        raise _pending_error(f"Job {job} has this plan for epoch {owner.epoch + 1} under another definition")
    return False


def _pending_error(summary: str) -> StateError:
    return StateError(summary, facts="a pending plan is replayed as it stands", todo="Commit it first")


def check_reset(stored: StoredJob | None, job: str, expected: OwnershipToken | None, *, drop_plan: bool) -> StoredJob:
    """Check that offsets may change: between two plans, never under one, because what a plan reads is part of it."""
    existing = require_job(stored, job)
    current = ownership(existing.generation, existing.epoch, pending=existing.plan is not None)
    if expected is not None and current != expected:
        raise StateError(
            f"Job {job} continued while its offsets were being changed",
            facts=f"{_standing_text(expected)} became {_standing_text(current)}",
            todo="Stop the job, then try again",
        )
    if existing.plan is not None and not drop_plan:
        raise StateError(
            f"The offsets of job {job} cannot be changed: its epoch {existing.epoch + 1} is planned and not committed",
            facts="output of that epoch may have been written already",
            todo="Finish it (start the job and stop it with SIGTERM), or have the plan dropped",
        )
    return existing


def _standing_text(at: OwnershipToken) -> str:
    planned = "" if at.planned is None else f" with epoch {at.planned} planned"
    return f"generation {at.generation}, epoch {at.epoch}{planned}"


def check_claim(stored: StoredJob | None, job: str, expected: OwnershipToken) -> None:
    """Raise Fenced for an attempt of a fenced driver, or of an epoch that is over. Such attempts may claim nothing."""
    existing = check_owner(stored, job, expected.generation)
    current = ownership(existing.generation, existing.epoch, pending=existing.plan is not None)
    if current != expected:
        raise Fenced(
            f"Job {job} has continued",
            facts=f"{_standing_text(expected)} became {_standing_text(current)}",
            todo="This task stops",
        )


def ownership(generation: int, epoch: int, *, pending: bool) -> OwnershipToken:
    """Return the standing that these stored values mean: a pending plan is always for the next epoch (`check_plan`)."""
    return OwnershipToken(generation, epoch, epoch + 1 if pending else None)


def check_commit(
    stored: StoredJob | None, job: str, generation: int, commit: EpochCommit, named: Mapping[str, StoredSegment]
) -> None:
    """Raise Fenced or StateError unless the commit may happen. `named` holds those segments of `commit.upserts` and
    `commit.deletes` that exist."""
    owner = check_owner(stored, job, generation)
    if commit.epoch != owner.epoch + 1:
        raise StateError(
            f"Job {job} cannot commit epoch {commit.epoch}",
            facts=f"its last epoch is {owner.epoch}, so the next one is {owner.epoch + 1}",
            todo="Read the job's record and continue from there",
        )
    if commit.next_plan is not None:
        _check_plan_epoch(job, commit.next_plan, commit.epoch + 1)
    unknown = [
        key for key in commit.upserts if key not in named or not is_committable(named[key], generation, commit.epoch)
    ]
    if unknown:
        raise missing_segments(job, unknown, f"not staged by generation {generation} for epoch {commit.epoch}")
    not_live = [key for key in commit.deletes if key not in named or named[key].status is not SegmentStatus.LIVE]
    if not_live:
        raise missing_segments(job, not_live, f"epoch {commit.epoch} deletes what is not live")


def _check_plan_epoch(job: str, plan: Json, expected: int) -> None:
    if plan.get("epoch") != expected:
        raise StateError(
            f"Job {job} cannot store this plan",
            facts=f"it is for epoch {plan.get('epoch')}, the next one is {expected}",
            todo="Read the job's record and plan the next epoch",
        )


def is_committable(segment: StoredSegment, generation: int, epoch: int) -> bool:
    """Return whether the commit of `epoch` by `generation` may make the segment live."""
    return segment.status is SegmentStatus.STAGED and not is_sweepable(segment, generation, epoch - 1, pinned=False)


def is_sweepable(segment: StoredSegment, generation: int, committed_epoch: int, *, pinned: bool) -> bool:
    """Return whether nothing can ever need the segment again, given the job's generation and last committed epoch."""
    if segment.status is SegmentStatus.STAGED:
        return segment.generation < generation or segment.epoch <= committed_epoch
    return segment.status is SegmentStatus.RETIRED and not pinned


def is_readable(segment: StoredSegment, *, pinned: bool) -> bool:
    return segment.status is SegmentStatus.LIVE or (segment.status is SegmentStatus.RETIRED and pinned)


def staged_epoch(stored: StoredJob, meta: SegmentMeta) -> int:
    """Return the epoch that a segment is staged under. Compaction may give a new segment an older `meta.epoch`, which
    must not make it garbage."""
    return max(meta.epoch, stored.epoch + 1)


def check_stage(job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> dict[str, tuple[SegmentMeta, bytes]]:
    """Return the segments by key. Raises StateError if one is too big, or if two have the same key."""
    for meta, blob in segments:
        if len(blob) > MAX_SEGMENT_BYTES:
            raise StateError(
                f"Segment {meta.key} of job {job} is too big to store",
                facts=f"{len(blob):,} bytes, the limit is {MAX_SEGMENT_BYTES:,}",
                todo="Lower trigger.maxBytesPerEpoch or trigger.maxRecordsPerEpoch: the plan is then made smaller",
            )
    by_key = {meta.key: (meta, blob) for meta, blob in segments}
    if len(by_key) != len(segments):
        raise StateError(f"Job {job} stages a segment key twice in one call", facts=name_keys(by_key))
    return by_key


def check_blobs(job: str, blobs: Mapping[str, bytes]) -> None:
    """Raise StateError if a blob that carries a checksum does not have the bytes that were written."""
    for key, blob in blobs.items():
        try:
            check_blob(blob)
        except ValueError as error:
            raise damaged_segment(job, key, str(error)) from error


def damaged_segment(job: str, key: str, facts: str) -> StateError:
    return StateError(
        f"Segment {key} of job {job} is damaged",
        facts=facts,
        todo="Look for errors of disk and memory where the state is stored. Restore a savepoint from before it was "
        "written (joinery state restore), or a backup of the database",
    )


def different_bytes(job: str, key: str) -> StateError:
    return StateError(
        f"Job {job} stages other bytes under the key {key}",
        facts="segments are immutable and their keys unique for ever",
        todo="This is a bug in what names the segments: please report it",
    )


def epoch_after_reset(stored: StoredJob) -> int:
    """Return the last epoch number used once the pending plan is dropped. Dropping uses up the plan's number, because
    output of that epoch may have been written (M3)."""
    return stored.epoch if stored.plan is None else stored.epoch + 1


def oldest_logged_epoch(epoch: int) -> int:
    return epoch - EPOCH_LOG_LENGTH + 1


# --- what is stored, and how much at a time ---------------------------------------------------------------------------


def encode_json(value: Json) -> str:
    """Return JSON text. Raises StateError for what JSON cannot hold (NaN, infinity, bytes).

    Plans, results and definitions are stored as JSON *text*, not JSONB: a pending plan is replayed exactly as written,
    and JSONB would turn 1e16 into an integer and reject a string that holds U+0000.
    """
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StateError(
            "A plan, result, signature or definition is not JSON",
            facts=str(error),
            todo="Use null or text for such a value",
        ) from error


def decode_optional(text: str | None) -> Any:
    """Decode JSON text; None stays None."""
    return None if text is None else json.loads(text)


def by_bytes(items: Iterable[tuple[_T, int]], *, most: int = BATCH_BYTES) -> Iterator[list[_T]]:
    """Group items, each given with its size in bytes, into batches that fit in memory: at most `most` bytes and BATCH
    items, and at least one item."""
    batch: list[_T] = []
    batch_bytes = 0
    for item, size in items:
        if batch and (batch_bytes + size > most or len(batch) == BATCH):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(item)
        batch_bytes += size
    if batch:
        yield batch
