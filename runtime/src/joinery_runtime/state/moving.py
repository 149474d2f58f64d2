"""Moves a job to another Postgres, where it continues as if it had always been there.

    source: note where the job is being moved, which fences every driver
    target: copy all rows in one transaction, and compare them with the source's
    source: delete the rows, and leave the note

Each step may be interrupted and repeated. Between the first and the last step no driver can own the job at the source,
and the target has either all of the job or nothing. The job keeps its incarnation, its counters, its plan and the
claims on the plan's output, so output into Kafka stays exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from joinery_runtime.errors import StateError
from joinery_runtime.state import decisions
from joinery_runtime.state.connection import Connection, GuardedConnection
from joinery_runtime.state.ddl import installed_version
from joinery_runtime.state.decisions import StoredJob, by_bytes
from joinery_runtime.state.postgres import PostgresStore

_TABLES = ("jobs", "state", "offsets", "epochs", "savepoints", "savepoint_segments", "claims")

# Staged segments are garbage, and so are retired ones that no savepoint pins.
_NEEDED = """
pipeline_name = %(job)s AND (status = 'live' OR status = 'retired' AND EXISTS (
    SELECT FROM {schema}.savepoint_segments p WHERE p.pipeline_name = t.pipeline_name AND p.group_key = t.group_key))
"""
_OF_JOB = "pipeline_name = %(job)s"

_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY 1"
_OUT = "COPY (SELECT {columns} FROM {schema}.{table} t WHERE {where}) TO STDOUT (FORMAT binary)"
_IN = "COPY {schema}.{table} ({columns}) FROM STDIN (FORMAT binary)"
_COUNT = "SELECT pg_catalog.count(*) FROM {schema}.{table} t WHERE {where}"
_BLOBS = """
SELECT coalesce(pg_catalog.sum(pg_catalog.octet_length(state_blob)), 0)::bigint,
    pg_catalog.encode(pg_catalog.sha256(coalesce(
        pg_catalog.string_agg(pg_catalog.sha256(state_blob), ''::bytea ORDER BY group_key), ''::bytea)), 'hex')
FROM {schema}.state t WHERE {where}
"""
_BYTES = """
SELECT coalesce(pg_catalog.sum(pg_catalog.octet_length(state_blob)), 0)::bigint FROM {schema}.state t WHERE {where}
"""
_SIZES = "SELECT group_key, pg_catalog.octet_length(state_blob) FROM {schema}.state t WHERE {where} ORDER BY group_key"

_KNOWS = "SELECT 1 FROM {schema}.jobs WHERE pipeline_name = %(job)s AND NOT deleted"
_BEGIN_MOVE = """
UPDATE {schema}.jobs SET moved_to = %(location)s, generation = generation + 1, updated_at = pg_catalog.now()
WHERE pipeline_name = %(job)s
"""
_CLEAR_MOVED_TO = (
    "UPDATE {schema}.jobs SET moved_to = NULL, updated_at = pg_catalog.now() WHERE pipeline_name = %(job)s"
)
_SET_MOVED_TO = "UPDATE {schema}.jobs SET moved_to = %(location)s WHERE pipeline_name = %(job)s"
_FORGET = "DELETE FROM {schema}.jobs WHERE pipeline_name = %(job)s AND deleted"
_FORGET_CLAIMS = "DELETE FROM {schema}.claims WHERE pipeline_name = %(job)s"
# If the target once had a job of this name, a driver of that job stays fenced.
_ARRIVED = """
UPDATE {schema}.jobs SET moved_to = NULL, generation = greatest(generation, %(generation)s + 1)
WHERE pipeline_name = %(job)s
"""
_NO_COLUMNS = sql.SQL("")
# One end is idle while the other one compares: about a minute for every 20 GB.
_PATIENT = "SET LOCAL idle_in_transaction_session_timeout = 0"
_HOLD = "SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('joinery move ' || %(job)s, 0))"


@dataclass(frozen=True, slots=True)
class Moving:
    """What a move takes along; `bytes` counts the segments only."""

    segments: int
    bytes: int
    epochs: int
    savepoints: int


class MovableStore(PostgresStore):
    """A store as the source or the target of a move."""

    def contents(self, job: str) -> Moving:
        """Count what a move would take along. Raises StateError if there is nothing to move."""
        with self._connection.session() as connection:
            _require_present(self._stored(connection, job), job)
            counts = self._count_rows(connection, job)
            row = connection.execute(self._compose(_BYTES, "state"), {"job": job}).fetchone()
        assert row is not None, "an aggregate always has one row"
        return Moving(counts["state"], int(row[0]), counts["epochs"], counts["savepoints"])

    def knows(self, job: str) -> bool:
        """Return whether the store has a job of that name. Changes nothing, not even where the schema does not exist
        yet."""
        with closing(GuardedConnection(self.dsn)) as bare, bare.session() as connection:
            if not installed_version(connection, self.schema):
                return False
            return connection.execute(self._compose(_KNOWS, "jobs"), {"job": job}).fetchone() is not None

    def move_to(self, target: MovableStore, job: str) -> None:
        """Move the job, or finish an interrupted move. After a StateError the call can be repeated."""
        self._require_another_location(target, job)
        with self._connection.session() as connection:
            stored = _require_present(self._stored(connection, job), job)
        if stored.moved_to not in (None, target.location):
            raise decisions.moved_error(stored)
        has_copy = target._has_copy(job, stored)
        if not has_copy:
            self._check_segments(job)
            with self._connection.transaction() as connection:
                _require_present(self._lock(connection, job), job)
                connection.execute(self._compose(_BEGIN_MOVE, "jobs"), {"job": job, "location": target.location})
            self._copy_all(target, job)
        self._leave(job, target.location)

    def stay(self, job: str) -> None:
        """Give up an unfinished move, so that the job continues here. Raises StateError if no move is under way."""
        with self._connection.transaction() as connection:
            stored = self._lock(connection, job)
            if stored is None or stored.deleted or stored.moved_to is None:
                raise StateError(f"No move of job {job} from {self.location} is under way")
            connection.execute(self._compose(_CLEAR_MOVED_TO, "jobs"), {"job": job})

    def _require_another_location(self, target: MovableStore, job: str) -> None:
        """Raise StateError if both ends are the same place. Two sessions cannot both hold one advisory lock of a
        database, whatever addresses they connected to."""
        with self._connection.transaction() as source_connection, target._connection.transaction() as target_connection:
            lock_rows = [
                connection.execute(_HOLD, {"job": job}).fetchone()
                for connection in (source_connection, target_connection)
            ]
        if lock_rows[0] != (True,) or (lock_rows[1] != (True,) and self.schema == target.schema):
            raise StateError(
                f"Job {job} cannot be moved",
                facts="both places are the same database and schema, or another move of it runs at this moment",
                todo="Name another database or schema",
            )

    def _has_copy(self, job: str, departing: StoredJob) -> bool:
        """Return whether an interrupted move has already copied the job here. Raises StateError if another job of that
        name is here."""
        with self._connection.session() as connection:
            stored = self._stored(connection, job)
        if stored is None or stored.deleted:
            return False
        if departing.moved_to is not None and stored.incarnation == departing.incarnation:
            return True
        raise StateError(
            f"There is state of a job {job} at the target already",
            facts=self.location,
            todo="Name another database or schema, or delete that job's state there first",
        )

    def _check_segments(self, job: str) -> None:
        """Raise StateError if a segment is damaged; the copy is compared with what is here."""
        with self._connection.session() as connection:
            sizes = connection.execute(self._compose(_SIZES, "state"), {"job": job}).fetchall()
            for keys in by_bytes((key.decode(), size) for key, size in sizes):
                decisions.check_blobs(job, self._segments.read(connection, job, keys))

    def _copy_all(self, target: MovableStore, job: str) -> None:
        with self._connection.transaction() as source_connection, target._connection.transaction() as target_connection:
            for connection in (source_connection, target_connection):
                connection.execute(_PATIENT)
            _require_present(self._lock(source_connection, job), job)
            before = target._lock(target_connection, job)
            for forget in (_FORGET, _FORGET_CLAIMS):
                target_connection.execute(target._compose(forget, "jobs"), {"job": job})
            for table in _TABLES:
                self._copy_table(source_connection, target, target_connection, table, job)
            if self._digest(source_connection, job) != target._digest(target_connection, job):
                raise StateError(
                    f"The state of job {job} did not arrive at the target as it was",
                    facts=f"rows or bytes differ from those at {self.location}",
                    todo="Nothing was changed there; repeat the move, and report this if it stays so",
                )
            generation = -1 if before is None else before.generation
            target_connection.execute(target._compose(_ARRIVED, "jobs"), {"job": job, "generation": generation})

    def _copy_table(
        self, source_connection: Connection, target: MovableStore, target_connection: Connection, table: str, job: str
    ) -> None:
        names = [name for (name,) in source_connection.execute(_COLUMNS, (self.schema, table))]
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        source, arriving = self._compose(_OUT, table, columns), target._compose(_IN, table, columns)
        with (
            source_connection.cursor().copy(source, {"job": job}) as leaving,
            target_connection.cursor().copy(arriving) as entering,
        ):
            for block in leaving:
                entering.write(block)

    def _digest(self, connection: Connection, job: str) -> tuple[Any, ...]:
        blobs = connection.execute(self._compose(_BLOBS, "state"), {"job": job}).fetchone()
        return self._count_rows(connection, job), blobs

    def _count_rows(self, connection: Connection, job: str) -> Mapping[str, int]:
        counts = {}
        for table in _TABLES:
            row = connection.execute(self._compose(_COUNT, table), {"job": job}).fetchone()
            assert row is not None, "an aggregate always has one row"
            counts[table] = int(row[0])
        return counts

    def _leave(self, job: str, location: str) -> None:
        with self._connection.transaction() as connection:
            self._delete(connection, _require_present(self._lock(connection, job), job))
            connection.execute(self._compose(_SET_MOVED_TO, "jobs"), {"job": job, "location": location})

    def _compose(self, statement: str, table: str, columns: sql.Composable = _NO_COLUMNS) -> sql.Composed:
        schema = sql.Identifier(self.schema)
        where = sql.SQL(_NEEDED if table == "state" else _OF_JOB).format(schema=schema)
        return sql.SQL(statement).format(schema=schema, table=sql.Identifier(table), columns=columns, where=where)


def _require_present(stored: StoredJob | None, job: str) -> StoredJob:
    """Return the stored job, even while it is being moved. Raises StateError if there is no state here."""
    if stored is None or (stored.deleted and stored.moved_to is None):
        raise decisions.no_job(job)
    if stored.deleted:
        raise decisions.moved_error(stored)
    return stored
