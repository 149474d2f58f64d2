"""The StateStore in Postgres: blobs, offsets, plans and savepoints in one schema, each change one transaction.

Every change of a job locks its row, gathers facts, asks `decisions`, then writes. Round trips to the server are what
a small commit costs, so statements that don't wait for each other travel together (libpq's pipeline mode).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from joinery_runtime.errors import JoineryError
from joinery_runtime.state import decisions, statements
from joinery_runtime.state.connection import Connection, GuardedConnection
from joinery_runtime.state.ddl import ensure_schema, installed_version
from joinery_runtime.state.decisions import JobFacts, SegmentFacts, Status
from joinery_runtime.state.encoding import (
    decode_json,
    decode_optional,
    encode_json,
    meta_from_json,
)
from joinery_runtime.state.migrations import CURRENT_STATE_VERSION
from joinery_runtime.state.segment_rows import SegmentRows, batches, encoded
from joinery_runtime.state.store import (
    EpochCommit,
    EpochRecord,
    JobRecord,
    Json,
    Migration,
    Savepoint,
    SegmentMeta,
    Standing,
)

SWEEP_BATCH = 32
"""Segments deleted at a time: 1 ms per MB, and a commit of this process waits for one batch at most."""


class PostgresStore:
    """See `StateStore` for the contract; an effect of a commit gets the psycopg connection, inside the transaction.

    Threads share one connection, one at a time. It is opened at the first call (or by `connect`), and after a loss by
    the next call. Pickles as its DSN and schema, so each Spark task opens its own.
    """

    def __init__(self, dsn: str, schema: str = "joinery") -> None:
        """`dsn` is a libpq connection string or postgresql:// address; raises StateError if it cannot be read."""
        self.dsn, self.schema = dsn, schema
        self._connection = GuardedConnection(dsn)
        self._sql = statements.Statements(schema)
        self._segments = SegmentRows(self._sql)
        self._schema_checked = False

    @classmethod
    def connect(cls, dsn: str, schema: str = "joinery") -> Self:
        """Opens it now, creating or upgrading the schema; raises StoreUnavailable or IncompatibleState."""
        store = cls(dsn, schema)
        try:
            store._ensure_schema()
        except JoineryError:
            store.close()
            raise
        return store

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.dsn, self.schema))

    def __repr__(self) -> str:
        return f"PostgresStore({self.place})"

    @property
    def place(self) -> str:
        """Where it is, for messages; never the password."""
        return f"{self._connection.place}, schema {self.schema}"

    def schema_version(self) -> int:
        """Of the tables: how many of the steps in `ddl` they have been through."""
        self._ensure_schema()
        with self._connection.session() as connection:
            return installed_version(connection, self.schema)

    def acquire(self, job: str) -> JobRecord:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            if not self._sql.run(connection, statements.ACQUIRE, job).rowcount:
                decisions.require_job(self._facts(connection, job), job)
            return self._record(connection, job)

    def record(self, job: str) -> JobRecord | None:
        self._ensure_schema()
        with self._connection.session() as connection:
            return self._found(connection, job)

    def standing(self, job: str) -> Standing | None:
        self._ensure_schema()
        with self._connection.session() as connection:
            row = self._sql.run(connection, statements.STANDING, job).fetchone()
        return None if row is None else decisions.standing(row[0], row[1], pending=row[2])

    def claim(self, job: str, expected: Standing, name: str, owner: str, instead_of: str | None = None) -> str | None:
        self._ensure_schema()
        with self._connection.session() as connection:
            row = self._sql.run(
                connection, statements.CLAIM, job, name=name, owner=owner, instead_of=instead_of,
                generation=expected.generation, epoch=expected.epoch,
            ).fetchone()  # fmt: skip
            if row is None:
                decisions.check_claim(self._facts(connection, job), job, expected)
        assert row is not None, "a standing that is not there any more never comes back"
        holder, fresh = row
        return None if fresh else str(holder)

    def claims(self, job: str) -> dict[str, str]:
        self._ensure_schema()
        with self._connection.session() as connection:
            return dict(self._sql.run(connection, statements.CLAIMS, job).fetchall())

    def release_claims(self, job: str, generation: int) -> None:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            decisions.check_owner(self._lock(connection, job), job, generation)
            self._sql.run(connection, statements.RELEASE_CLAIMS, job)

    def write_plan(self, job: str, generation: int, plan: Json, definition: Json) -> None:
        text, under = encode_json(plan), encode_json(definition)
        self._ensure_schema()
        with self._connection.transaction() as connection:
            if decisions.check_plan(self._lock(connection, job), job, generation, text, under):
                self._sql.run(connection, statements.WRITE_PLAN, job, plan=text, definition=under)

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        by_key = decisions.check_stage(job, segments)
        self._ensure_schema()
        with self._connection.session() as connection:
            facts = decisions.require_job(self._facts(connection, job), job)
            self._segments.stage(connection, facts, by_key)

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(dict.fromkeys(keys))
        self._ensure_schema()
        with self._connection.session() as connection:
            found = self._segments.read(connection, job, wanted)
            gone = [key for key in wanted if key not in found]
            if gone or not wanted:
                decisions.require_job(self._facts(connection, job), job)
        if gone:
            raise decisions.missing_segments(job, gone, "not in the store")
        return {key: found[key] for key in wanted}

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        texts = {name: encode_json(getattr(commit, name)) for name in ("plan", "result", "signature", "definition")}
        next_plan = None if commit.next_plan is None else encode_json(commit.next_plan)
        self._ensure_schema()
        with self._connection.transaction() as connection:
            facts, named = self._lock_with_segments(connection, job, [*commit.upserts, *commit.deletes])
            decisions.check_commit(facts, job, generation, commit, named)
            with connection.pipeline():
                self._write_commit(connection, job, generation, commit, {**texts, "next_plan": next_plan})
            for effect in commit.effects:
                effect(connection)

    def epochs(self, job: str, after: int = 0, limit: int = 1000) -> list[EpochRecord]:
        self._ensure_schema()
        with self._connection.session() as connection:
            return [_logged(row) for row in self._sql.run(connection, statements.EPOCHS, job, after=after, limit=limit)]

    def newest_epoch(self, job: str) -> EpochRecord | None:
        self._ensure_schema()
        with self._connection.session() as connection:
            row = self._sql.run(connection, statements.NEWEST_EPOCH, job).fetchone()
        return None if row is None else _logged(row)

    def sweep(self, job: str, generation: int) -> int:
        self._ensure_schema()
        with self._connection.session() as connection:
            facts = decisions.check_owner(self._facts(connection, job), job, generation)
            garbage = self._segments.garbage(connection, facts)
        return sum(self._remove(job, batch) for batch in batches(garbage, SWEEP_BATCH))

    def create_savepoint(self, job: str, name: str) -> Savepoint:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            decisions.require_job(self._lock(connection, job), job)
            if name in self._savepoints(connection, job):
                raise decisions.savepoint_exists(job, name)
            self._sql.run(connection, statements.CREATE_SAVEPOINT, job, name=name)
            return self._savepoints(connection, job)[name]

    def savepoints(self, job: str) -> list[Savepoint]:
        self._ensure_schema()
        with self._connection.session() as connection:
            return list(self._savepoints(connection, job).values())

    def restore_savepoint(self, job: str, name: str) -> JobRecord:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            facts = decisions.require_job(self._lock(connection, job), job)
            self._pin(connection, job, name)
            self._restore(connection, facts, name)
            return self._record(connection, job)

    def roll_back(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            facts = decisions.require_owned(self._lock(connection, job), job, generation)
            if decisions.check_roll_back(facts, self._pin(connection, job, name)):
                self._restore(connection, facts, name)
            else:
                self._sql.run(connection, statements.RESTORE_SEGMENTS, job, name=name)
                self._sql.run(connection, statements.FENCE, job)
            self._sql.run(connection, statements.MARK_ROLLED_BACK, job, name=name)
            return self._record(connection, job)

    def start_anew(self, job: str, name: str, *, generation: int | None = None) -> JobRecord:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            facts = decisions.require_owned(self._lock(connection, job), job, generation)
            if decisions.check_start_anew(facts, self._pin(connection, job, name)):
                with connection.pipeline():
                    self._sql.run(connection, statements.RETIRE_LIVE, job)
                    self._sql.run(connection, statements.DELETE_OFFSETS, job)
                    self._sql.run(connection, statements.RESET, job, epoch=decisions.epoch_after_reset(facts))
                    self._sql.run(connection, statements.FORGET_JOB, job)
            return self._record(connection, job)

    def reset_offsets(
        self, job: str, offsets: Mapping[str, bytes], *, expected: Standing | None = None, drop_plan: bool = False
    ) -> JobRecord:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            facts = decisions.check_reset(self._lock(connection, job), job, expected, drop_plan=drop_plan)
            with connection.pipeline():
                self._set_offsets(connection, job, offsets)
                self._sql.run(connection, statements.RESET, job, epoch=decisions.epoch_after_reset(facts))
            return self._record(connection, job)

    def delete_savepoint(self, job: str, name: str) -> None:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            decisions.require_job(self._lock(connection, job), job)
            self._pin(connection, job, name)
            self._sql.run(connection, statements.DELETE_SAVEPOINT, job, name=name)

    def migrate(self, job: str, generation: int, chain: Mapping[int, Migration], target: int) -> int:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            facts = decisions.check_owner(self._lock(connection, job), job, generation)
            return self._segments.migrate(connection, facts, chain, target)

    def delete_job(self, job: str) -> None:
        self._ensure_schema()
        with self._connection.transaction() as connection:
            facts = self._lock(connection, job)
            if facts is not None:
                self._delete(connection, facts)

    def moved_to(self, job: str) -> str | None:
        """Where `state.moving` has moved the job, or is moving it, from here."""
        self._ensure_schema()
        with self._connection.session() as connection:
            facts = self._facts(connection, job)
        return None if facts is None else facts.moved_to

    def close(self) -> None:
        self._connection.close()

    def _ensure_schema(self) -> None:
        if not self._schema_checked:
            with self._connection.session() as connection:
                ensure_schema(connection, self.schema)
            self._schema_checked = True

    def _facts(self, connection: Connection, job: str) -> JobFacts | None:
        return _job_facts(job, self._sql.run(connection, statements.FACTS, job).fetchone())

    def _lock(self, connection: Connection, job: str) -> JobFacts | None:
        """The job's facts; they stay true until the transaction ends."""
        return _job_facts(job, self._sql.run(connection, statements.LOCK_JOB, job).fetchone())

    def _lock_with_segments(
        self, connection: Connection, job: str, keys: Sequence[str]
    ) -> tuple[JobFacts | None, dict[str, SegmentFacts]]:
        with connection.pipeline():
            locked = self._sql.run(connection, statements.LOCK_JOB, job)
            named = self._sql.run(connection, statements.NAMED, job, keys=encoded(keys))
        facts = {key.decode(): SegmentFacts(Status(status), *staged_under) for key, status, *staged_under in named}
        return _job_facts(job, locked.fetchone()), facts

    def _found(self, connection: Connection, job: str) -> JobRecord | None:
        row = self._sql.run(connection, statements.RECORD, job).fetchone()
        facts = self._facts(connection, job) if row is None or row[-1] is not None else None
        if facts is not None and facts.moved_to is not None:
            raise decisions.moved(facts)
        return None if row is None else _record(job, row)

    def _record(self, connection: Connection, job: str) -> JobRecord:
        record = self._found(connection, job)
        assert record is not None, "the caller holds the lock of the job that it created or found"
        return record

    def _write_commit(
        self, connection: Connection, job: str, generation: int, commit: EpochCommit, texts: Mapping[str, Any]
    ) -> None:
        self._segments.mark(connection, job, commit.upserts, Status.LIVE)
        self._segments.mark(connection, job, commit.deletes, Status.RETIRED)
        self._set_offsets(connection, job, commit.offsets)
        self._sql.run(connection, statements.DROP_CLAIMS, job)
        epoch = {"epoch": commit.epoch, "generation": generation, **texts}
        self._sql.run(connection, statements.ADVANCE, job, **epoch)
        self._sql.run(connection, statements.LOG_EPOCH, job, **epoch)
        self._sql.run(connection, statements.TRIM_EPOCHS, job, oldest=decisions.oldest_logged_epoch(commit.epoch))

    def _set_offsets(self, connection: Connection, job: str, offsets: Mapping[str, bytes]) -> None:
        sources, values = list(offsets), list(offsets.values())
        self._sql.run(
            connection, statements.SET_OFFSETS, job, sources=sources, values=values, version=CURRENT_STATE_VERSION
        )

    def _remove(self, job: str, keys: list[bytes]) -> int:
        with self._connection.session() as connection:
            return self._segments.remove(connection, job, keys)

    def _savepoints(self, connection: Connection, job: str) -> dict[str, Savepoint]:
        return {row[0]: Savepoint(*row) for row in self._sql.run(connection, statements.SAVEPOINTS, job)}

    def _pin(self, connection: Connection, job: str, name: str) -> Savepoint:
        existing = self._savepoints(connection, job)
        if name not in existing:
            raise decisions.no_savepoint(job, name, list(existing))
        return existing[name]

    def _delete(self, connection: Connection, facts: JobFacts) -> None:
        with connection.pipeline():
            self._sql.run(connection, statements.DELETE_SAVEPOINTS, facts.job)
            self._sql.run(connection, statements.DELETE_STATE, facts.job)
            self._sql.run(connection, statements.DELETE_OFFSETS, facts.job)
            self._sql.run(connection, statements.DELETE_EPOCHS, facts.job)
            self._sql.run(connection, statements.RESET, facts.job, epoch=decisions.epoch_after_reset(facts))
            self._sql.run(connection, statements.MARK_DELETED, facts.job)

    def _restore(self, connection: Connection, facts: JobFacts, name: str) -> None:
        with connection.pipeline():
            self._sql.run(connection, statements.RESTORE_SEGMENTS, facts.job, name=name)
            self._sql.run(connection, statements.DELETE_OFFSETS, facts.job)
            self._sql.run(connection, statements.RESTORE_OFFSETS, facts.job, name=name, version=CURRENT_STATE_VERSION)
            self._sql.run(connection, statements.RESTORE_JOB, facts.job, name=name)
            self._sql.run(connection, statements.RESET, facts.job, epoch=decisions.epoch_after_reset(facts))


def _job_facts(job: str, row: tuple[Any, ...] | None) -> JobFacts | None:
    return None if row is None else JobFacts(job, *row)


def _record(job: str, row: tuple[Any, ...]) -> JobRecord:
    lineage, generation, epoch, signature, definition, plan, planned_for_ms, sources, values, metas, committed, _ = row
    return JobRecord(
        job=job,
        lineage=lineage,
        generation=generation,
        epoch=epoch,
        signature=decode_optional(signature),
        definition=decode_optional(definition),
        plan=decode_optional(plan),
        planned_for_ms=planned_for_ms,
        offsets=dict(zip(sources, values, strict=True)),
        segments=tuple(map(meta_from_json, metas)),
        committed=committed,
    )


def _logged(row: tuple[Any, ...]) -> EpochRecord:
    epoch, generation, plan, result, committed_at = row
    return EpochRecord(epoch, generation, decode_json(plan), decode_json(result), committed_at)
