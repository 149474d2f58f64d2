"""Moves a job to another Postgres, so that it goes on there as if it had never been anywhere else.

    source: note where the job is being moved, which fences every driver
    target: all rows in one transaction, compared with the source's
    source: delete them, and leave the note

Any of it may be interrupted and repeated. Between the first and the last step no driver can own the job at the source;
at the target there is either all of it or nothing. The job keeps its lineage, its counters, its plan and the claims of
the plan's output, so output into Kafka goes on exactly once.
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
from joinery_runtime.state.decisions import StoredJob
from joinery_runtime.state.postgres import PostgresStore

_TABLES = ("jobs", "state", "offsets", "epochs", "savepoints", "savepoint_segments", "claims")

# What was staged, or retired and is not pinned, is garbage.
_NEEDED = """
pipeline_name = %(job)s AND (status = 'live' OR status = 'retired' AND EXISTS (
    SELECT FROM {schema}.savepoint_segments p WHERE p.pipeline_name = t.pipeline_name AND p.group_key = t.group_key))
"""
_OF_JOB = "pipeline_name = %(job)s"

_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY 1"
_OUT = "COPY (SELECT {columns} FROM {schema}.{table} t WHERE {where}) TO STDOUT (FORMAT binary)"
_IN = "COPY {schema}.{table} ({columns}) FROM STDIN (FORMAT binary)"
_COUNT = "SELECT count(*) FROM {schema}.{table} t WHERE {where}"
_BLOBS = """
SELECT coalesce(sum(octet_length(state_blob)), 0)::bigint,
    encode(sha256(coalesce(string_agg(sha256(state_blob), ''::bytea ORDER BY group_key), ''::bytea)), 'hex')
FROM {schema}.state t WHERE {where}
"""
_BYTES = "SELECT coalesce(sum(octet_length(state_blob)), 0)::bigint FROM {schema}.state t WHERE {where}"

_KNOWS = "SELECT 1 FROM {schema}.jobs WHERE pipeline_name = %(job)s AND NOT deleted"
_BEGIN_MOVE = """
UPDATE {schema}.jobs SET moved_to = %(place)s, generation = generation + 1, updated_at = now()
WHERE pipeline_name = %(job)s
"""
_CLEAR_MOVED_TO = "UPDATE {schema}.jobs SET moved_to = NULL, updated_at = now() WHERE pipeline_name = %(job)s"
_SET_MOVED_TO = "UPDATE {schema}.jobs SET moved_to = %(place)s WHERE pipeline_name = %(job)s"
_FORGET = "DELETE FROM {schema}.jobs WHERE pipeline_name = %(job)s AND deleted"
_FORGET_CLAIMS = "DELETE FROM {schema}.claims WHERE pipeline_name = %(job)s"
# A zombie of a job of that name that was here before stays fenced.
_ARRIVED = """
UPDATE {schema}.jobs SET moved_to = NULL, generation = greatest(generation, %(generation)s + 1)
WHERE pipeline_name = %(job)s
"""
_NO_COLUMNS = sql.SQL("")
# One end waits while the other one compares: a minute for every 20 GB or so.
_PATIENT = "SET LOCAL idle_in_transaction_session_timeout = 0"
_HOLD = "SELECT pg_try_advisory_xact_lock(hashtextextended('joinery move ' || %(job)s, 0))"


@dataclass(frozen=True, slots=True)
class Moving:
    """What a move takes along; `bytes` are those of segments."""

    segments: int
    bytes: int
    epochs: int
    savepoints: int


class MovableStore(PostgresStore):
    """A store as one end of a move."""

    def contents(self, job: str) -> Moving:
        """Raises StateError if there is nothing to move."""
        with self._connection.session() as connection:
            _present(self._stored(connection, job), job)
            counts = self._counts(connection, job)
            row = connection.execute(self._filled(_BYTES, "state"), {"job": job}).fetchone()
        assert row is not None, "an aggregate always has one row"
        return Moving(counts["state"], int(row[0]), counts["epochs"], counts["savepoints"])

    def knows(self, job: str) -> bool:
        """Whether there is a job of that name with state; changes nothing, also where there is no schema yet."""
        with closing(GuardedConnection(self.dsn)) as bare, bare.session() as connection:
            if not installed_version(connection, self.schema):
                return False
            return connection.execute(self._filled(_KNOWS, "jobs"), {"job": job}).fetchone() is not None

    def move_to(self, target: MovableStore, job: str) -> None:
        """All of it, or what is left to do of an interrupted move. Raises StateError; then it can be repeated."""
        self._require_another_place(target, job)
        with self._connection.session() as connection:
            stored = _present(self._stored(connection, job), job)
        if stored.moved_to not in (None, target.place):
            raise decisions.moved(stored)
        arrived = target._arrived(job, stored)
        if not arrived:
            self._depart(job, target.place)
            self._copy_all(target, job)
        self._leave(job, target.place)

    def stay(self, job: str) -> None:
        """Gives an unfinished move up: the job goes on here. Raises StateError if none is under way."""
        with self._connection.transaction() as connection:
            stored = self._lock(connection, job)
            if stored is None or stored.deleted or stored.moved_to is None:
                raise StateError(f"No move of job {job} from {self.place} is under way")
            connection.execute(self._filled(_CLEAR_MOVED_TO, "jobs"), {"job": job})

    def _require_another_place(self, target: MovableStore, job: str) -> None:
        """Two sessions cannot both hold one lock of a database, by whatever address they came to it."""
        with self._connection.transaction() as here, target._connection.transaction() as there:
            held = [connection.execute(_HOLD, {"job": job}).fetchone() for connection in (here, there)]
        if held[0] != (True,) or (held[1] != (True,) and self.schema == target.schema):
            raise StateError(
                f"Job {job} cannot be moved",
                facts="both places are the same database and schema, or another move of it runs at this moment",
                todo="Name another database or schema",
            )

    def _arrived(self, job: str, from_there: StoredJob) -> bool:
        """Whether an interrupted move has brought all of it here. Raises StateError for another job of that name."""
        with self._connection.session() as connection:
            stored = self._stored(connection, job)
        if stored is None or stored.deleted:
            return False
        if from_there.moved_to is not None and stored.lineage == from_there.lineage:
            return True
        raise StateError(
            f"There is state of a job {job} at the target already",
            facts=self.place,
            todo="Name another database or schema, or delete that job's state there first",
        )

    def _depart(self, job: str, place: str) -> None:
        with self._connection.transaction() as connection:
            _present(self._lock(connection, job), job)
            connection.execute(self._filled(_BEGIN_MOVE, "jobs"), {"job": job, "place": place})

    def _copy_all(self, target: MovableStore, job: str) -> None:
        with self._connection.transaction() as here, target._connection.transaction() as there:
            for connection in (here, there):
                connection.execute(_PATIENT)
            _present(self._lock(here, job), job)
            before = target._lock(there, job)
            for forget in (_FORGET, _FORGET_CLAIMS):
                there.execute(target._filled(forget, "jobs"), {"job": job})
            for table in _TABLES:
                self._copy_table(here, target, there, table, job)
            if self._digest(here, job) != target._digest(there, job):
                raise StateError(
                    f"The state of job {job} did not arrive at the target as it was",
                    facts=f"rows or bytes differ from those at {self.place}",
                    todo="Nothing was changed there; repeat the move, and report this if it stays so",
                )
            generation = -1 if before is None else before.generation
            there.execute(target._filled(_ARRIVED, "jobs"), {"job": job, "generation": generation})

    def _copy_table(self, here: Connection, target: MovableStore, there: Connection, table: str, job: str) -> None:
        names = [name for (name,) in here.execute(_COLUMNS, (self.schema, table))]
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        source, arriving = self._filled(_OUT, table, columns), target._filled(_IN, table, columns)
        with (
            here.cursor().copy(source, {"job": job}) as leaving,
            there.cursor().copy(arriving) as entering,
        ):
            for block in leaving:
                entering.write(block)

    def _digest(self, connection: Connection, job: str) -> tuple[Any, ...]:
        blobs = connection.execute(self._filled(_BLOBS, "state"), {"job": job}).fetchone()
        return self._counts(connection, job), blobs

    def _counts(self, connection: Connection, job: str) -> Mapping[str, int]:
        counts = {}
        for table in _TABLES:
            row = connection.execute(self._filled(_COUNT, table), {"job": job}).fetchone()
            assert row is not None, "an aggregate always has one row"
            counts[table] = int(row[0])
        return counts

    def _leave(self, job: str, place: str) -> None:
        with self._connection.transaction() as connection:
            self._delete(connection, _present(self._lock(connection, job), job))
            connection.execute(self._filled(_SET_MOVED_TO, "jobs"), {"job": job, "place": place})

    def _filled(self, statement: str, table: str, columns: sql.Composable = _NO_COLUMNS) -> sql.Composed:
        schema = sql.Identifier(self.schema)
        where = sql.SQL(_NEEDED if table == "state" else _OF_JOB).format(schema=schema)
        return sql.SQL(statement).format(schema=schema, table=sql.Identifier(table), columns=columns, where=where)


def _present(stored: StoredJob | None, job: str) -> StoredJob:
    """Also while it is being moved. Raises StateError if there is no state here."""
    if stored is None or (stored.deleted and stored.moved_to is None):
        raise decisions.no_job(job)
    if stored.deleted:
        raise decisions.moved(stored)
    return stored
