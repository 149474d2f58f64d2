"""A StateStore in this process's memory: for tests, traces and jobs that may lose their state.

Several drivers may share one instance; fencing works between them as it does in Postgres.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.job.model.owner import OwnerCandidate
from joinery_runtime.state import decisions
from joinery_runtime.state.decisions import SegmentStatus, StoredJob, StoredSegment, decode_optional, encode_json
from joinery_runtime.state.migrations import check_chain, migrate_segment, readable_from
from joinery_runtime.state.store import (
    EpochCommit,
    EpochRecord,
    JobRecord,
    Json,
    Migration,
    OwnershipToken,
    SegmentMeta,
    StoredSavepoint,
)

_WRITTEN = {"output", "dead_letters"}  # keys of an epoch's result that say what it wrote where


@dataclass(frozen=True, slots=True)
class _Segment:
    meta: SegmentMeta
    blob: bytes
    stored: StoredSegment


@dataclass(frozen=True, slots=True)
class _Pin:
    savepoint: StoredSavepoint
    offsets: Mapping[str, bytes]
    signature: str | None
    keys: frozenset[str]
    definition: str | None


@dataclass(frozen=True, slots=True)
class _Logged:
    generation: int
    plan: str
    result: str
    committed_at: int


@dataclass(slots=True)
class _Job:
    stored: StoredJob
    planned_at: int = 0
    signature: str | None = None
    offsets: dict[str, bytes] = field(default_factory=dict)
    segments: dict[str, _Segment] = field(default_factory=dict)
    log: dict[int, _Logged] = field(default_factory=dict)
    pins: dict[str, _Pin] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)

    def is_pinned(self, key: str) -> bool:
        return any(key in pin.keys for pin in self.pins.values())

    def live(self) -> dict[str, _Segment]:
        return {key: item for key, item in sorted(self.segments.items()) if item.stored.status is SegmentStatus.LIVE}

    def set_status(self, keys: Iterable[str], status: SegmentStatus) -> None:
        for key in keys:
            item = self.segments[key]
            self.segments[key] = replace(item, stored=replace(item.stored, status=status))

    def make_live(self, keys: Iterable[str]) -> None:
        """Make exactly these segments live and retires all others that were."""
        self.set_status(list(self.live()), SegmentStatus.RETIRED)
        self.set_status(keys, SegmentStatus.LIVE)

    def stored_segments(self, keys: Iterable[str]) -> dict[str, StoredSegment]:
        return {key: self.segments[key].stored for key in keys if key in self.segments}

    def epoch_record(self, epoch: int) -> EpochRecord:
        line = self.log[epoch]
        plan, result = json.loads(line.plan), json.loads(line.result)
        return EpochRecord(epoch, line.generation, plan, result, line.committed_at)

    def record(self, now: int) -> JobRecord:
        return JobRecord(
            job=self.stored.job,
            incarnation=self.stored.incarnation,
            generation=self.stored.generation,
            epoch=self.stored.epoch,
            signature=decode_optional(self.signature),
            definition=decode_optional(self.stored.definition),
            plan=decode_optional(self.stored.plan),
            planned_for_ms=0 if self.stored.plan is None else max(0, now - self.planned_at),
            offsets=dict(self.offsets),
            segments=tuple(item.meta for item in self.live().values()),
            committed=self.stored.committed,
            owner=decisions.decode_owner(self.stored.owner),
        )


class MemoryStore:
    """See `StateStore` for the contract. `clock` returns milliseconds since the epoch."""

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._jobs: dict[str, _Job] = {}
        self._identity = StoreIdentity(str(uuid.uuid4()), f"the memory of process {os.getpid()} on {platform.node()}")

    def identity(self) -> StoreIdentity:
        return self._identity

    def acquire(self, job: str, candidate: OwnerCandidate | None = None) -> JobRecord:
        with self._lock:
            entry = self._jobs.setdefault(job, _Job(StoredJob(job, 0, 0, None, None, False, 0, _new_incarnation())))
            acquired = replace(entry.stored, generation=entry.stored.generation + 1, deleted=False)
            owner = acquired.owner if candidate is None else decisions.next_owner(acquired, candidate)
            entry.stored = replace(acquired, owner=owner)
            return entry.record(self._clock())

    def record(self, job: str) -> JobRecord | None:
        with self._lock:
            entry = self._jobs.get(job)
            return None if entry is None or entry.stored.deleted else entry.record(self._clock())

    def ownership(self, job: str) -> OwnershipToken | None:
        with self._lock:
            stored = self._stored_job(job)
            if stored is None or stored.deleted:
                return None
            return decisions.ownership(stored.generation, stored.epoch, pending=stored.plan is not None)

    def claim(
        self, job: str, expected: OwnershipToken, name: str, owner: str, replacing: str | None = None
    ) -> str | None:
        with self._lock:
            decisions.check_claim(self._stored_job(job), job, expected)
            claims = self._jobs[job].claims
            fresh = name not in claims
            if fresh or claims[name] == replacing:
                claims[name] = owner
            return None if fresh else claims[name]

    def claims(self, job: str) -> dict[str, str]:
        with self._lock:
            return dict(self._jobs[job].claims) if job in self._jobs else {}

    def release_claims(self, job: str, generation: int) -> None:
        with self._lock:
            decisions.check_owner(self._stored_job(job), job, generation)
            claims = self._jobs[job].claims
            claims |= dict.fromkeys(claims, "")

    def write_plan(
        self, job: str, generation: int, plan: Json, definition: Json, *, replacing: Json | None = None
    ) -> None:
        text, under = encode_json(plan), encode_json(definition)
        with self._lock:
            if decisions.check_plan(self._stored_job(job), job, generation, text, under, replacing):
                entry = self._jobs[job]
                entry.stored = replace(entry.stored, plan=text, definition=under)
                entry.planned_at = self._clock()

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        by_key = decisions.check_stage(job, segments)
        with self._lock:
            entry = self._require_job(job)
            for key in by_key.keys() & entry.segments.keys():
                if by_key[key] != (entry.segments[key].meta, entry.segments[key].blob):
                    raise decisions.different_bytes(job, key)
            for key in by_key.keys() - entry.segments.keys():
                meta, blob = by_key[key]
                epoch = decisions.staged_epoch(entry.stored, meta)
                entry.segments[key] = _Segment(
                    meta, bytes(blob), StoredSegment(SegmentStatus.STAGED, entry.stored.generation, epoch)
                )

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        with self._lock:
            entry = self._require_job(job)
            unique_keys = list(dict.fromkeys(keys))
            unreadable = [
                key
                for key in unique_keys
                if key not in entry.segments
                or not decisions.is_readable(entry.segments[key].stored, pinned=entry.is_pinned(key))
            ]
            if unreadable:
                raise decisions.missing_segments(job, unreadable, "not in the store")
            blobs = {key: entry.segments[key].blob for key in unique_keys}
        decisions.check_blobs(job, blobs)
        return blobs

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        plan, result, signature = encode_json(commit.plan), encode_json(commit.result), encode_json(commit.signature)
        next_plan = None if commit.next_plan is None else encode_json(commit.next_plan)
        definition = encode_json(commit.definition)
        with self._lock:
            entry = self._jobs.get(job)
            named = {} if entry is None else entry.stored_segments([*commit.upserts, *commit.deletes])
            decisions.check_commit(self._stored_job(job), job, generation, commit, named)
            for effect in commit.effects:
                effect(None)
            # Nothing below can fail: the step is atomic.
            entry, now = self._jobs[job], self._clock()
            entry.set_status(commit.upserts, SegmentStatus.LIVE)
            entry.set_status(commit.deletes, SegmentStatus.RETIRED)
            entry.offsets |= commit.offsets
            entry.claims.clear()
            entry.signature = signature
            entry.stored = replace(
                entry.stored, epoch=commit.epoch, committed=commit.epoch, plan=next_plan, definition=definition
            )
            entry.planned_at = now
            entry.log[commit.epoch] = _Logged(generation, plan, result, now)
            oldest = decisions.oldest_logged_epoch(commit.epoch)
            while (first := next(iter(entry.log))) < oldest:
                del entry.log[first]

    def epochs(self, job: str, after: int = 0, limit: int = 1000) -> list[EpochRecord]:
        with self._lock:
            entry = self._jobs.get(job)
            return [] if entry is None else [entry.epoch_record(epoch) for epoch in entry.log if epoch > after][:limit]

    def newest_epoch(self, job: str) -> EpochRecord | None:
        with self._lock:
            entry = self._jobs.get(job)
            if entry is None or entry.stored.committed not in entry.log:
                return None
            return entry.epoch_record(entry.stored.committed)

    def sweep(self, job: str, generation: int) -> int:
        with self._lock:
            stored = decisions.check_owner(self._stored_job(job), job, generation)
            entry = self._jobs[job]
            garbage = [
                key
                for key, item in entry.segments.items()
                if decisions.is_sweepable(item.stored, generation, stored.epoch, pinned=entry.is_pinned(key))
            ]
            for key in garbage:
                del entry.segments[key]
            return len(garbage)

    def create_savepoint(self, job: str, name: str) -> StoredSavepoint:
        with self._lock:
            entry = self._require_job(job)
            if name in entry.pins:
                raise decisions.savepoint_exists_error(job, name)
            metas = [item.meta for item in entry.live().values()]
            rows, size = sum(meta.rows for meta in metas), sum(meta.bytes for meta in metas)
            stored, keys = entry.stored, frozenset(meta.key for meta in metas)
            savepoint = StoredSavepoint(
                name, stored.epoch, self._clock(), rows, size, stored.committed, stored.incarnation
            )
            offsets, signature = dict(entry.offsets), entry.signature
            entry.pins[name] = _Pin(savepoint, offsets, signature, keys, stored.definition)
            return savepoint

    def savepoints(self, job: str) -> list[StoredSavepoint]:
        with self._lock:
            pins = self._jobs[job].pins if job in self._jobs else {}
            return [pins[name].savepoint for name in sorted(pins)]

    def pinned(self, job: str, name: str) -> JobRecord:
        with self._lock:
            entry = self._require_job(job)
            pin = self._find_pin(entry, name)
            return replace(
                entry.record(self._clock()),
                incarnation=pin.savepoint.incarnation,
                epoch=pin.savepoint.epoch,
                signature=decode_optional(pin.signature),
                definition=decode_optional(pin.definition),
                plan=None,
                planned_for_ms=0,
                offsets=dict(pin.offsets),
                segments=tuple(entry.segments[key].meta for key in sorted(pin.keys)),
                committed=pin.savepoint.committed,
            )

    def restore_savepoint(self, job: str, name: str) -> JobRecord:
        with self._lock:
            entry = self._require_job(job)
            self._restore_pin(entry, self._find_pin(entry, name))
            return entry.record(self._clock())

    def start_from(self, job: str, other: str, name: str) -> JobRecord:
        with self._lock:
            source = self._require_job(other)
            pin = self._find_pin(source, name)
            if (record := self.record(job)) is not None and not decisions.is_new(record):
                raise decisions.state_exists_error(job)
            self.acquire(job)
            entry, committed = self._jobs[job], pin.savepoint.committed
            entry.segments |= {key: source.segments[key] for key in pin.keys}
            entry.set_status(pin.keys, SegmentStatus.LIVE)
            entry.offsets, entry.signature = dict(pin.offsets), pin.signature
            epoch = max(entry.stored.epoch, committed)
            entry.stored = replace(entry.stored, definition=pin.definition, committed=committed, epoch=epoch)
            if committed in source.log:
                result = {k: v for k, v in json.loads(source.log[committed].result).items() if k not in _WRITTEN}
                entry.log[committed] = replace(source.log[committed], result=encode_json(result))
            return entry.record(self._clock())

    def roll_back(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        with self._lock:
            entry = self._require_job(job, generation)
            pin = self._find_pin(entry, name)
            if decisions.check_roll_back(entry.stored, pin.savepoint):
                self._restore_pin(entry, pin)
            else:
                entry.make_live(pin.keys)
                entry.stored = replace(entry.stored, generation=entry.stored.generation + 1)
            entry.pins[name] = replace(pin, savepoint=replace(pin.savepoint, rolled_back=True))
            return entry.record(self._clock())

    def start_anew(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        with self._lock:
            entry = self._require_job(job, generation)
            if decisions.check_start_anew(entry.stored, self._find_pin(entry, name).savepoint):
                entry.make_live(())
                entry.offsets, entry.signature = {}, None
                self._fence_drivers(entry)
                entry.stored = replace(entry.stored, definition=None, incarnation=_new_incarnation())
            return entry.record(self._clock())

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
        with self._lock:
            stored = decisions.check_reset(self._stored_job(job), job, expected, drop_plan=drop_plan)
            entry = self._jobs[job]
            entry.set_status(replaced, SegmentStatus.RETIRED)
            live = StoredSegment(SegmentStatus.LIVE, stored.generation, stored.epoch)
            entry.segments |= {meta.key: _Segment(meta, bytes(blob), live) for meta, blob in by}
            entry.offsets |= offsets
            self._fence_drivers(entry)
            return entry.record(self._clock())

    def delete_savepoint(self, job: str, name: str) -> None:
        with self._lock:
            entry = self._require_job(job)
            self._find_pin(entry, name)
            del entry.pins[name]

    def migrate(self, job: str, generation: int, chain: Mapping[int, Migration], target: int) -> int:
        with self._lock:
            decisions.check_owner(self._stored_job(job), job, generation)
            entry = self._jobs[job]
            live = entry.live()
            readable = readable_from(target, chain)
            check_chain((item.meta.state_version for item in live.values()), target, chain)
            old = [item for item in live.values() if item.meta.state_version < readable]
            new = [migrate_segment(item.meta, item.blob, target, chain, generation) for item in old]
            entry.set_status([item.meta.key for item in old], SegmentStatus.RETIRED)
            for item, (meta, blob) in zip(old, new, strict=True):
                entry.segments[meta.key] = _Segment(meta, blob, replace(item.stored, status=SegmentStatus.LIVE))
            return len(old)

    def delete_job(self, job: str) -> None:
        with self._lock:
            if job in self._jobs:
                entry = self._jobs[job] = _Job(self._jobs[job].stored, claims=self._jobs[job].claims)
                self._fence_drivers(entry)
                entry.stored = replace(
                    entry.stored,
                    definition=None,
                    deleted=True,
                    committed=0,
                    incarnation=_new_incarnation(),
                    owner=None,
                )

    def close(self) -> None:
        """Do nothing: the state lives as long as this object."""

    def _stored_job(self, job: str) -> StoredJob | None:
        return self._jobs[job].stored if job in self._jobs else None

    def _require_job(self, job: str, generation: int | None = None) -> _Job:
        decisions.require_owned(self._stored_job(job), job, generation)
        return self._jobs[job]

    @staticmethod
    def _find_pin(entry: _Job, name: str) -> _Pin:
        if name not in entry.pins:
            raise decisions.no_savepoint(entry.stored.job, name, sorted(entry.pins))
        return entry.pins[name]

    def _restore_pin(self, entry: _Job, pin: _Pin) -> None:
        entry.make_live(pin.keys)
        entry.offsets, entry.signature = dict(pin.offsets), pin.signature
        self._fence_drivers(entry)
        entry.stored = replace(
            entry.stored,
            definition=pin.definition,
            committed=pin.savepoint.committed,
            incarnation=pin.savepoint.incarnation,
        )

    @staticmethod
    def _fence_drivers(entry: _Job) -> None:
        """Fence every running driver and drop the pending plan."""
        stored = entry.stored
        entry.stored = replace(
            stored, generation=stored.generation + 1, epoch=decisions.epoch_after_reset(stored), plan=None
        )


def _new_incarnation() -> str:
    return str(uuid.uuid4())
