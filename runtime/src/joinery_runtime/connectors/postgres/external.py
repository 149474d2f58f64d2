"""A Postgres table in another database than the state's, exactly once.

Tasks stage their rows durably in the table's database, and the state's commit names the attempts. Then one transaction
in the table's database moves the rows of those attempts and records that in the epoch's *mark*. After a crash between
the two commits, recovery finds the mark or moves the rows. Generations grow with every driver. So a mark (generation,
epoch), of a job's incarnation in its state store, grows with every published epoch, even after a savepoint was
restored. A driver that slept and was replaced finds a newer mark and does nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from joinery_runtime.connectors.postgres.client import CATALOG_ONLY, connect
from joinery_runtime.connectors.postgres.merge import NAMED, StagingMerge
from joinery_runtime.connectors.postgres.sink import (
    PostgresSink,
    PostgresWriter,
    Staging,
    connections,
    problem_of,
    rejected_rows,
)
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt
from joinery_runtime.errors import SinkError

_MARKS, _IDENTITY = "output_marks", "output_database"
_TABLES = """
CREATE TABLE IF NOT EXISTS {identity} (id text NOT NULL);
INSERT INTO {identity} SELECT {id} WHERE NOT EXISTS (SELECT FROM {identity});
CREATE TABLE IF NOT EXISTS {marks} (
    job text, lineage text, output text, generation bigint NOT NULL, epoch bigint NOT NULL,
    PRIMARY KEY (job, lineage, output)
);
"""
_HAS_WRITTEN = "SELECT EXISTS (SELECT FROM {} WHERE job = %s)"
_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext(%s))"
_FIRST_MARK = "INSERT INTO {} VALUES (%(job)s, %(lineage)s, %(output)s, 0, 0) ON CONFLICT DO NOTHING"
_MARK = "SELECT generation, epoch FROM {} WHERE (job, lineage, output) = (%(job)s, %(lineage)s, %(output)s) FOR UPDATE"
_NEXT_MARK = (
    "UPDATE {} SET generation = %(generation)s, epoch = %(epoch)s "
    "WHERE (job, lineage, output) = (%(job)s, %(lineage)s, %(output)s)"
)


@dataclass(frozen=True, slots=True)
class ApartWriter:
    """The task half."""

    staged: PostgresWriter

    @property
    def staging(self) -> Staging:
        return self.staged.staging

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        receipt = self.staged.write(attempt, rows)
        try:
            database = _database_identity(connections.get(self.staged.dsn), self.staging.schema)
        except psycopg.Error as error:
            connections.drop(self.staged.dsn)
            raise problem_of("The output rows cannot be staged", error, external=True) from error
        return {**receipt, "database": database, "generation": attempt.id.generation, "lineage": attempt.incarnation}


class ExternalPostgresSink(PostgresSink):
    """The driver half. Its staging is `external`. `schema` is the output's, for `publish` without `prepare`."""

    def __init__(self, dsn: str, target: TargetTable, staging: Staging, schema: pa.Schema) -> None:
        super().__init__(dsn, target, staging)
        self._schema = schema

    def prepare(self, schema: pa.Schema) -> str | None:
        created = super().prepare(schema)
        names = {name: sql.Identifier(self._staging.schema, name) for name in (_IDENTITY, _MARKS)}
        unprepared = f"The output table {self.target.name} cannot be prepared"
        with self._open_session(unprepared) as connection, connection.transaction():
            connection.execute(CATALOG_ONLY)
            connection.execute(_LOCK, (_IDENTITY,))  # against another job's
            connection.execute(
                sql.SQL(_TABLES).format(
                    identity=names[_IDENTITY], marks=names[_MARKS], id=sql.Literal(str(uuid.uuid4()))
                )
            )
            has_written = sql.SQL(_HAS_WRITTEN).format(names[_MARKS])
            (knows_job,) = connection.execute(has_written, (self._staging.job,)).fetchone() or (False,)
        if created is None or knows_job:
            return created
        return f"{created}, in a database where this job has written nothing before (another dsn, or a new database)"

    def writer(self) -> ApartWriter:  # type: ignore[override]
        return ApartWriter(super().writer())

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: the store's transaction does not involve this database."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Move the staged rows. Rows whose receipts name no database went into the state's with its commit, before an
        edit of the job."""
        named = [receipt for receipt in receipts if receipt["rows"] and "database" in receipt]
        if not named:
            return
        table = self._staging.table(epoch)
        with self._open_session(f"The output table {self.target.name} rejects the rows of epoch {epoch}") as connection:
            database = _database_identity(connection, self._staging.schema)
            self._elsewhere = next((receipt for receipt in named if receipt["database"] != database), None)
            if self._elsewhere is not None:
                return
            self.target = self.target.with_schema(connection)
            try:
                with connection.transaction():
                    self._move_once(connection, table, epoch, named)
            except psycopg.IntegrityError as error:
                raise rejected_rows(self.target.name, epoch, error, external=True) from error
        self._empty_if_large(table)

    def _move_once(
        self, connection: psycopg.Connection[Any], table: sql.Identifier, epoch: int, named: Sequence[Receipt]
    ) -> None:
        generation = max(receipt["generation"] for receipt in named)
        marks = sql.Identifier(self._staging.schema, _MARKS)
        output = {"job": self._staging.job, "lineage": named[0]["lineage"], "output": self.target.name}
        connection.execute(sql.SQL(_FIRST_MARK).format(marks), output)
        mark = connection.execute(sql.SQL(_MARK).format(marks), output).fetchone()
        if mark is None or mark < (generation, epoch):
            attempts = {"attempts": [receipt["attempt"] for receipt in named]}
            expected = sum(receipt["rows"] for receipt in named)
            count = sql.SQL("SELECT pg_catalog.count(*) FROM {} WHERE {}").format(table, NAMED)
            (count_found,) = connection.execute(count, attempts).fetchone() or (0,)
            if count_found != expected:
                raise SinkError(
                    f"The rows of epoch {epoch} that are staged for {self.target.name} are not complete",
                    facts=f"{count_found} are there, {expected} were written, and the epoch is committed; somebody has "
                    f"changed {table.as_string(connection)}, or its database was set back",
                    todo="Set the job back to a savepoint from before that epoch (joinery state restore)",
                )
            StagingMerge(self.target, self._schema).run(connection, table, attempts)
            connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, NAMED), attempts)
            connection.execute(sql.SQL(_NEXT_MARK).format(marks), {**output, "generation": generation, "epoch": epoch})


def published_epoch(connection: psycopg.Connection[Any], schema: str, job: str, incarnation: str, output: str) -> int:
    """Return the newest epoch with rows in the table, as seen by this transaction; 0: none. Raises psycopg.Error."""
    if not _table_exists(connection, schema, _MARKS):
        return 0
    marks = sql.Identifier(schema, _MARKS)
    output_key = {"job": job, "lineage": incarnation, "output": output}
    mark = connection.execute(sql.SQL(_MARK.removesuffix(" FOR UPDATE")).format(marks), output_key).fetchone()
    return 0 if mark is None else int(mark[1])


def drop_marks(dsn: str, schema: str, job: str) -> None:
    """Delete the marks of all outputs that the job has ever had in this database. Raises SinkError and
    OutputUnavailable."""
    try:
        with connect(dsn) as connection:
            if _table_exists(connection, schema, _MARKS):
                marks = sql.Identifier(schema, _MARKS)
                connection.execute(sql.SQL("DELETE FROM {} WHERE job = %s").format(marks), (job,))
    except psycopg.Error as error:
        raise problem_of("The marks of the output cannot be deleted", error, external=True) from error


def _database_identity(connection: psycopg.Connection[Any], schema: str) -> str | None:
    """Return the identity of the database, whatever its address. None: no output was ever prepared there."""
    if not _table_exists(connection, schema, _IDENTITY):
        return None
    row = connection.execute(sql.SQL("SELECT id FROM {}").format(sql.Identifier(schema, _IDENTITY))).fetchone()
    return None if row is None else str(row[0])


def _table_exists(connection: psycopg.Connection[Any], schema: str, table: str) -> bool:
    name = sql.Identifier(schema, table).as_string()
    return connection.execute("SELECT pg_catalog.to_regclass(%s)", (name,)).fetchone() != (None,)
