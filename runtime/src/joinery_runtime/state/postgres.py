"""The StateStore in Postgres: blobs, offsets, plans and savepoints in one schema. Each change is one transaction.

Every change locks the job's row, reads what is stored, asks `decisions`, then writes. Round trips to the server
dominate the cost of a small commit, so independent statements travel together (libpq's pipeline mode).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import psycopg

from joinery_runtime.connectors.postgres.client import OWN_PATH, check_name
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.errors import StateError
from joinery_runtime.job.model.owner import OwnerCandidate
from joinery_runtime.state import decisions, statements
from joinery_runtime.state.connection import Connection, GuardedConnections
from joinery_runtime.state.ddl import ensure_schema, installed_version
from joinery_runtime.state.decisions import (
    SegmentStatus,
    StoredJob,
    StoredSegment,
    decode_optional,
    encode_json,
)
from joinery_runtime.state.migrations import CURRENT_STATE_VERSION
from joinery_runtime.state.segment_table import SegmentTable, cut_batches, encode_keys
from joinery_runtime.state.statements import Statements
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

_T = TypeVar("_T")

_DURABILITY = """
SELECT pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('synchronous_standby_names')
"""

SWEEP_BATCH = 32
"""Segments that `sweep` deletes at a time. Deleting takes 1 ms per MB; a commit of this process waits for one batch at
most."""


class PostgresStore:
    """See `StateStore` for the contract. The effects of a commit get the psycopg connection, inside the transaction.

    Threads that call at the same time have a connection each. The first call (or `connect`) opens it, and after a loss
    the next call does. The store pickles as its DSN and schema, so each Spark task opens its own connections.
    """

    def __init__(self, dsn: str, schema: str = "joinery", *, log_retention_ms: int | None = None) -> None:
        """`dsn` is a libpq connection string or postgresql:// address; raises StateError if it cannot be parsed, or if
        Postgres would cut the schema's name.
        `sweep` trims epochs committed longer than `log_retention_ms` ago (None: only count and bytes bound the log)."""
        try:
            check_name("the schema's name", schema)
        except psycopg.ProgrammingError as error:
            raise StateError("The state store cannot be opened", facts=str(error), todo="Name another schema") from None
        self.dsn, self.schema, self._log_retention_ms = dsn, schema, log_retention_ms
        self._connection = GuardedConnections(dsn, self._prepare)
        self._sql = Statements(schema)
        self._segments = SegmentTable(self._sql)

    @classmethod
    def connect(cls, dsn: str, schema: str = "joinery") -> Self:
        """Connect now, and create or upgrade the schema. Raises StoreUnavailable or IncompatibleState."""
        store = cls(dsn, schema)
        with store._connection.session():
            return store

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.dsn, self.schema))

    def __repr__(self) -> str:
        return f"PostgresStore({self.location})"

    @property
    def location(self) -> str:
        """Where the store is, for messages; never the password."""
        return f"{self._connection.location}, schema {self.schema}"

    def durability_warning(self) -> str | None:
        """Warn of server settings under which a committed epoch may be lost; None if there are none."""
        with self._connection.session() as connection:
            row = connection.execute(_DURABILITY).fetchone()
        assert row is not None, "settings are always there"
        commit, standbys = row
        losing = {"off": "a crash of Postgres"} | ({"local": "a failover to a synchronous standby"} if standbys else {})
        if commit not in losing:
            return None
        return (
            f"synchronous_commit is {commit} ({self.location}): {losing[commit]} may take the newest commits back. "
            "Their Kafka output stays, and the job then does not continue. Set it to on for this role"
        )

    def schema_version(self) -> int:
        """Return how many of the steps in `ddl` have run on the tables."""
        with self._connection.session() as connection:
            return installed_version(connection, self.schema)

    def identity(self) -> StoreIdentity:
        with self._connection.session() as connection:
            row = connection.execute(self._sql[statements.STORE_ID]).fetchone()
        assert row is not None, "the first step is part of every schema"
        return StoreIdentity(row[0], self.location)

    def acquire(self, job: str, candidate: OwnerCandidate | None = None) -> JobRecord:
        with self._connection.transaction() as connection:
            acquired = self._sql.run(connection, statements.ACQUIRE, job).rowcount
            if not acquired or candidate is not None:
                stored = decisions.require_job(self._stored(connection, job), job)
            if candidate is not None and (owner := decisions.next_owner(stored, candidate)) != stored.owner:
                self._sql.run(connection, statements.SET_OWNER, job, owner=owner)
            return self._locked_record(connection, job)

    def record(self, job: str) -> JobRecord | None:
        with self._connection.session() as connection:
            return self._read_record(connection, job)

    def jobs(self) -> list[str]:
        """Return the names of the jobs of which this store has state, also of those whose state was moved away."""
        with self._connection.session() as connection:
            return [name for (name,) in connection.execute(self._sql[statements.JOBS])]

    def jobs_written(self) -> dict[str, int]:
        """When each of these jobs was last written, in milliseconds."""
        with self._connection.session() as connection:
            return dict(connection.execute(self._sql[statements.JOBS_WRITTEN]).fetchall())

    def ownership(self, job: str) -> OwnershipToken | None:
        with self._connection.session() as connection:
            row = self._sql.run(connection, statements.STANDING, job).fetchone()
        return None if row is None else decisions.ownership(row[0], row[1], pending=row[2])

    def claim(
        self, job: str, expected: OwnershipToken, name: str, owner: str, replacing: str | None = None
    ) -> str | None:
        with self._connection.session() as connection:
            row = self._sql.run(
                connection, statements.CLAIM, job, name=name, owner=owner, replacing=replacing,
                generation=expected.generation, epoch=expected.epoch,
            ).fetchone()  # fmt: skip
            if row is None:
                decisions.check_claim(self._stored(connection, job), job, expected)
        assert row is not None, "a standing that is not there any more never comes back"
        holder, fresh = row
        return None if fresh else str(holder)

    def claims(self, job: str) -> dict[str, str]:
        with self._connection.session() as connection:
            return dict(self._sql.run(connection, statements.CLAIMS, job).fetchall())

    def release_claims(self, job: str, generation: int) -> None:
        with self._connection.transaction() as connection:
            decisions.check_owner(self._lock(connection, job), job, generation)
            self._sql.run(connection, statements.RELEASE_CLAIMS, job)

    def write_plan(
        self, job: str, generation: int, plan: Json, definition: Json, *, replacing: Json | None = None
    ) -> None:
        text, under = encode_json(plan), encode_json(definition)
        with self._connection.transaction() as connection:
            if decisions.check_plan(self._lock(connection, job), job, generation, text, under, replacing):
                self._sql.run(connection, statements.WRITE_PLAN, job, plan=text, definition=under)

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        by_key = decisions.check_stage(job, segments)
        with self._connection.session() as connection:
            stored = decisions.require_job(self._stored(connection, job), job)
            self._segments.stage(connection, stored, by_key)

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        unique_keys = list(dict.fromkeys(keys))
        with self._connection.session() as connection:
            blobs = self._segments.read(connection, job, unique_keys)
            missing = [key for key in unique_keys if key not in blobs]
            if missing or not unique_keys:
                decisions.require_job(self._stored(connection, job), job)
        if missing:
            raise decisions.missing_segments(job, missing, "not in the store")
        decisions.check_blobs(job, blobs)
        return {key: blobs[key] for key in unique_keys}

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        texts = {name: encode_json(getattr(commit, name)) for name in ("plan", "result", "signature", "definition")}
        next_plan = None if commit.next_plan is None else encode_json(commit.next_plan)
        epoch: dict[str, Any] = {"epoch": commit.epoch, "generation": generation, **texts, "next_plan": next_plan}
        with self._connection.transaction() as connection:
            stored, named = self._lock_with_segments(connection, job, [*commit.upserts, *commit.deletes])
            decisions.check_commit(stored, job, generation, commit, named)
            with connection.pipeline():
                self._segments.set_status(connection, job, commit.upserts, SegmentStatus.LIVE)
                self._segments.set_status(connection, job, commit.deletes, SegmentStatus.RETIRED)
                self._set_offsets(connection, job, commit.offsets)
                self._sql.run(connection, statements.DROP_CLAIMS, job)
                self._sql.run(connection, statements.ADVANCE, job, **epoch)
                self._sql.run(connection, statements.LOG_EPOCH, job, **epoch)
                oldest = decisions.oldest_logged_epoch(commit.epoch)
                self._sql.run(connection, statements.TRIM_EPOCHS, job, oldest=oldest)
                if commit.effects:  # what they do is their own
                    connection.execute(OWN_PATH)
            for effect in commit.effects:
                effect(connection)

    def epochs(self, job: str, after: int = 0, limit: int = 1000) -> list[EpochRecord]:
        with self._connection.session() as connection:
            return [
                _epoch_record(row)
                for row in self._sql.run(connection, statements.EPOCHS, job, after=after, limit=limit)
            ]

    def newest_epoch(self, job: str) -> EpochRecord | None:
        with self._connection.session() as connection:
            row = self._sql.run(connection, statements.NEWEST_EPOCH, job).fetchone()
        return None if row is None else _epoch_record(row)

    def sweep(self, job: str, generation: int) -> int:
        with self._connection.session() as connection:
            stored = decisions.check_owner(self._stored(connection, job), job, generation)
            garbage = self._segments.garbage_keys(connection, stored)
        removed = 0
        for batch in cut_batches(garbage, SWEEP_BATCH):
            with self._connection.session() as connection:  # a session per batch lets commits in between
                removed += self._segments.remove(connection, job, batch)
        limits: dict[str, Any] = {
            "newest": stored.committed,
            "bytes": decisions.EPOCH_LOG_BYTES,
            "retention": self._log_retention_ms,
            "limit": SWEEP_BATCH,
        }
        trimmed = SWEEP_BATCH
        while trimmed == SWEEP_BATCH:
            with self._connection.session() as connection:
                trimmed = self._sql.run(connection, statements.TRIM_LOG, job, **limits).rowcount
        return removed

    def create_savepoint(self, job: str, name: str) -> StoredSavepoint:
        with self._connection.transaction() as connection:
            decisions.require_job(self._lock(connection, job), job)
            if name in self._savepoints(connection, job):
                raise decisions.savepoint_exists_error(job, name)
            self._sql.run(connection, statements.CREATE_SAVEPOINT, job, name=name)
            return self._savepoints(connection, job)[name]

    def savepoints(self, job: str) -> list[StoredSavepoint]:
        with self._connection.session() as connection:
            return list(self._savepoints(connection, job).values())

    def pinned(self, job: str, name: str) -> JobRecord:
        with self._connection.session() as connection:
            row = self._sql.run(connection, statements.PINNED, job, name=name).fetchone()
            if row is None:
                decisions.require_job(self._stored(connection, job), job)
                raise decisions.no_savepoint(job, name, list(self._savepoints(connection, job)))
        return _record_of_row(job, row)

    def restore_savepoint(self, job: str, name: str) -> JobRecord:
        with self._connection.transaction() as connection:
            stored = decisions.require_job(self._lock(connection, job), job)
            self._pin(connection, job, name)
            self._restore(connection, stored, name)
            return self._locked_record(connection, job)

    def start_from(self, job: str, other: str, name: str) -> JobRecord:
        with self._connection.transaction() as connection:
            decisions.require_job(self._lock(connection, other), other)
            self._pin(connection, other, name)
            if not self._sql.run(connection, statements.ACQUIRE, job).rowcount:
                decisions.require_job(self._stored(connection, job), job)
            if not decisions.is_new(self._locked_record(connection, job)):
                raise decisions.state_exists_error(job)
            for statement in (statements.COPY_SEGMENTS, statements.COPY_JOB, statements.COPY_EPOCH):
                self._sql.run(connection, statement, job, other=other, name=name)
            version = CURRENT_STATE_VERSION
            self._sql.run(connection, statements.COPY_OFFSETS, job, other=other, name=name, version=version)
            return self._locked_record(connection, job)

    def roll_back(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        with self._connection.transaction() as connection:
            stored = decisions.require_owned(self._lock(connection, job), job, generation)
            if decisions.check_roll_back(stored, self._pin(connection, job, name)):
                self._restore(connection, stored, name)
            else:
                self._sql.run(connection, statements.RESTORE_SEGMENTS, job, name=name)
                self._sql.run(connection, statements.FENCE, job)
            self._sql.run(connection, statements.SET_ROLLED_BACK, job, name=name)
            return self._locked_record(connection, job)

    def start_anew(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        with self._connection.transaction() as connection:
            stored = decisions.require_owned(self._lock(connection, job), job, generation)
            if decisions.check_start_anew(stored, self._pin(connection, job, name)):
                with connection.pipeline():
                    self._sql.run(connection, statements.RETIRE_LIVE, job)
                    self._sql.run(connection, statements.DELETE_OFFSETS, job)
                    self._sql.run(connection, statements.RESET, job, epoch=decisions.epoch_after_reset(stored))
                    self._sql.run(connection, statements.FORGET_JOB, job)
            return self._locked_record(connection, job)

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
        with self._connection.transaction() as connection:
            stored = decisions.check_reset(self._lock(connection, job), job, expected, drop_plan=drop_plan)
            self._segments.set_status(connection, job, list(replaced), SegmentStatus.RETIRED)
            self._segments.add_live(connection, stored, by)
            with connection.pipeline():
                self._set_offsets(connection, job, offsets)
                self._sql.run(connection, statements.RESET, job, epoch=decisions.epoch_after_reset(stored))
            return self._locked_record(connection, job)

    def delete_savepoint(self, job: str, name: str) -> None:
        with self._connection.transaction() as connection:
            decisions.require_job(self._lock(connection, job), job)
            self._pin(connection, job, name)
            self._sql.run(connection, statements.DELETE_SAVEPOINT, job, name=name)

    def migrate(self, job: str, generation: int, chain: Mapping[int, Migration], target: int) -> int:
        with self._connection.transaction() as connection:
            stored = decisions.check_owner(self._lock(connection, job), job, generation)
            return self._segments.migrate(connection, stored, chain, target)

    def delete_job(self, job: str) -> None:
        with self._connection.transaction() as connection:
            stored = self._lock(connection, job)
            if stored is not None:
                self._delete(connection, stored)

    def moved_to(self, job: str) -> str | None:
        """Return the place to which `state.moving` has moved the job from here, or is moving it; None if there is no
        move."""
        with self._connection.session() as connection:
            stored = self._stored(connection, job)
        return None if stored is None else stored.moved_to

    def close(self) -> None:
        self._connection.close()

    def _prepare(self, connection: Connection) -> None:
        """Run on a new connection: brings the schema to the version that this release knows."""
        ensure_schema(connection, self.schema)

    def _stored(self, connection: Connection, job: str) -> StoredJob | None:
        return _stored_job(job, self._sql.run(connection, statements.JOB, job).fetchone())

    def _lock(self, connection: Connection, job: str) -> StoredJob | None:
        """Read the job's row and lock it until the transaction ends."""
        return _stored_job(job, self._sql.run(connection, statements.LOCK_JOB, job).fetchone())

    def _lock_with_segments(
        self, connection: Connection, job: str, keys: Sequence[str]
    ) -> tuple[StoredJob | None, dict[str, StoredSegment]]:
        with connection.pipeline():
            locked = self._sql.run(connection, statements.LOCK_JOB, job)
            named = self._sql.run(connection, statements.NAMED, job, keys=encode_keys(keys))
        segments = {
            key.decode(): StoredSegment(SegmentStatus(status), *staged_under) for key, status, *staged_under in named
        }
        return _stored_job(job, locked.fetchone()), segments

    def _read_record(self, connection: Connection, job: str) -> JobRecord | None:
        row = self._sql.run(connection, statements.RECORD, job).fetchone()
        stored = self._stored(connection, job) if row is None or row[-1] is not None else None
        if stored is not None and stored.moved_to is not None:
            raise decisions.moved_error(stored)
        return None if row is None else _record_of_row(job, row)

    def _locked_record(self, connection: Connection, job: str) -> JobRecord:
        record = self._read_record(connection, job)
        assert record is not None, "the caller holds the lock of the job that it created or found"
        return record

    def _set_offsets(self, connection: Connection, job: str, offsets: Mapping[str, bytes]) -> None:
        sources, values = list(offsets), list(offsets.values())
        self._sql.run(
            connection, statements.SET_OFFSETS, job, sources=sources, values=values, version=CURRENT_STATE_VERSION
        )

    def _savepoints(self, connection: Connection, job: str) -> dict[str, StoredSavepoint]:
        return {row[0]: StoredSavepoint(*row) for row in self._sql.run(connection, statements.SAVEPOINTS, job)}

    def _pin(self, connection: Connection, job: str, name: str) -> StoredSavepoint:
        existing = self._savepoints(connection, job)
        if name not in existing:
            raise decisions.no_savepoint(job, name, list(existing))
        return existing[name]

    def _delete(self, connection: Connection, stored: StoredJob) -> None:
        with connection.pipeline():
            self._sql.run(connection, statements.DELETE_SAVEPOINTS, stored.job)
            self._sql.run(connection, statements.DELETE_STATE, stored.job)
            self._sql.run(connection, statements.DELETE_OFFSETS, stored.job)
            self._sql.run(connection, statements.DELETE_EPOCHS, stored.job)
            self._sql.run(connection, statements.RESET, stored.job, epoch=decisions.epoch_after_reset(stored))
            self._sql.run(connection, statements.SET_DELETED, stored.job)

    def _restore(self, connection: Connection, stored: StoredJob, name: str) -> None:
        with connection.pipeline():
            self._sql.run(connection, statements.RESTORE_SEGMENTS, stored.job, name=name)
            self._sql.run(connection, statements.DELETE_OFFSETS, stored.job)
            self._sql.run(connection, statements.RESTORE_OFFSETS, stored.job, name=name, version=CURRENT_STATE_VERSION)
            self._sql.run(connection, statements.RESTORE_JOB, stored.job, name=name)
            self._sql.run(connection, statements.RESET, stored.job, epoch=decisions.epoch_after_reset(stored))


class ReadOnlyStore(PostgresStore):
    """Reads beside a driver of an earlier release, for `record`, `jobs_written` and `read_segments` only. It
    changes nothing, because that driver could not start again after an upgrade of its schema. `record` upgrades the
    schema in a transaction that is rolled back; the others read the tables as they are."""

    def record(self, job: str) -> JobRecord | None:
        with self._connection.session() as connection, connection.transaction(force_rollback=True):
            ensure_schema(connection, self.schema)
            return self._read_record(connection, job)

    def _prepare(self, connection: Connection) -> None:
        """Leave an older schema as it is."""


def _stored_job(job: str, row: tuple[Any, ...] | None) -> StoredJob | None:
    return None if row is None else StoredJob(job, *row)


def _record_of_row(job: str, row: tuple[Any, ...]) -> JobRecord:
    (
        incarnation,
        generation,
        epoch,
        signature,
        definition,
        plan,
        planned_for_ms,
        sources,
        values,
        metas,
        committed,
        owner,
        _,
    ) = row
    return JobRecord(
        job=job,
        incarnation=incarnation,
        generation=generation,
        epoch=epoch,
        signature=decode_optional(signature),
        definition=decode_optional(definition),
        plan=decode_optional(plan),
        planned_for_ms=planned_for_ms,
        offsets=dict(zip(sources, values, strict=True)),
        segments=tuple(SegmentMeta(**meta) for meta in metas),
        committed=committed,
        owner=decisions.decode_owner(owner),
    )


def _epoch_record(row: tuple[Any, ...]) -> EpochRecord:
    epoch, generation, plan, result, committed_at = row
    return EpochRecord(epoch, generation, json.loads(plan), json.loads(result), committed_at)
