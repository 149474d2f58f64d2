"""A Postgres table in the state store's database, exactly once.

Tasks COPY their rows into an unlogged staging table, where nobody looks. The transaction that commits the epoch moves
the rows of exactly the attempts that the commit names, never through the driver. Two staging tables alternate by epoch,
so that TRUNCATE can empty that of a committed epoch while tasks of the next one write. (Rows deleted one by one would
slow later scans until a vacuum.) After a crash of the server, unlogged tables are empty. So the number of staged rows
is checked against the receipts, and the epoch runs again if it differs.

Values travel as CSV, with timestamps as integer milliseconds (formatting and parsing them as text took more time than
everything else). U+0000, which Postgres cannot store in text, becomes U+FFFD.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import polars as pl
import polars.selectors as cs
import psycopg
import pyarrow as pa
from psycopg import sql

from joinery_runtime.connectors.postgres.client import (
    CATALOG_ONLY,
    connect,
    create_schema,
    error_advice,
    is_stale,
    is_unavailable,
)
from joinery_runtime.connectors.postgres.merge import ATTEMPT, NAMED, ROW, StagingMerge, staged_type
from joinery_runtime.connectors.postgres.table import TargetTable, columns_of, names
from joinery_runtime.connectors.sink import Attempt, AttemptRows, NamesNoStore, Receipt, RecoveryContext
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.errors import OutputUnavailable, SinkError, StoreUnavailable
from joinery_runtime.job.model.wording import counted

_PREFIX, _EXTERNAL_PREFIX = "out_", "out_apart_"
_WORTH_EMPTYING = 4 * 2**20  # bytes
# Unlogged rows need no flush. If a lock is in the way, emptying can wait for another epoch. These settings are for the
# transaction only: behind a pooler, a lasting one would affect the commits of the state too.
_DROP_WAITS = "SET LOCAL lock_timeout = '30s'"
_SHORT_WAITS = "SET LOCAL lock_timeout = '2s'"
_STAGING = f"SET LOCAL synchronous_commit = off; {_SHORT_WAITS}"

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Staging:
    """The two staging tables of a job's output, `<schema>.<prefix>_0` and `_1`. Their comment names the job.
    `external`: they are in another database than the state."""

    schema: str
    prefix: str
    job: str
    external: bool = False

    @classmethod
    def of(cls, schema: str, job: str, table: str, *, external: bool = False) -> Staging:
        digest = hashlib.sha256(f"{job}\0{table}".encode()).hexdigest()[:16]
        return cls(schema, f"{_EXTERNAL_PREFIX if external else _PREFIX}{digest}", job, external)

    def table(self, epoch: int) -> sql.Identifier:
        return sql.Identifier(self.schema, f"{self.prefix}_{epoch % 2}")

    def tables(self) -> list[sql.Identifier]:
        return [self.table(turn) for turn in (0, 1)]


@dataclass(frozen=True, slots=True)
class PostgresWriter:
    """The task half."""

    dsn: str = field(repr=False)
    staging: Staging

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        count, batches = 0, iter(rows.to_batches())
        first = next(batches, None)
        if first is None:
            return {"attempt": str(attempt.id), "rows": 0}
        columns = [ATTEMPT, ROW, *first.schema.names]
        copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            self.staging.table(attempt.id.epoch), names(columns)
        )
        try:
            connection = connections.get(self.dsn)
            with connection.transaction():
                connection.execute(_SHORT_WAITS if self.staging.external else _STAGING)
                with connection.cursor().copy(copy) as stream:
                    for batch in chain([first], batches):
                        stream.write(_encode_csv(str(attempt.id), batch, count))
                        count += batch.num_rows
        except psycopg.Error as error:
            connections.drop(self.dsn)
            raise problem_of("The output rows cannot be staged", error, external=self.staging.external) from error
        return {"attempt": str(attempt.id), "rows": count}


class PostgresSink(NamesNoStore):
    """The driver half, for a table in the state's database. `in_transaction` uses the store's connection, everything
    else its own."""

    def __init__(self, dsn: str, target: TargetTable, staging: Staging) -> None:
        self._dsn, self.target, self._staging = dsn, target, staging
        self._schema: pa.Schema = pa.schema([])
        self._elsewhere: Receipt | None = None

    def prepare(self, schema: pa.Schema) -> str | None:
        self._schema = schema
        unprepared = f"The output table {self.target.name} cannot be prepared"
        with self._open_session(unprepared) as connection, connection.transaction():
            self.target = self.target.with_schema(connection)
            connection.execute(CATALOG_ONLY)
            created = None if columns_of(connection, self.target.identifier) else f"the table {self.target.name}"
            missing = self.target.ensure(connection, self.target.columns(schema), self._staging.job)
            create_schema(connection, self._staging.schema)
            for table in self._staging.tables():
                self._ensure_staging(connection, table, schema)
            if missing:
                # The target comes last, so that its readers do not wait while a task that still writes holds a staging
                # table. A commit also locks the staging table first, then the target.
                self.target.add(connection, missing)
        return created

    def writer(self) -> PostgresWriter:
        return PostgresWriter(self._dsn, self._staging)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        expected = sum(receipt["rows"] for receipt in receipts)
        if not expected:
            return
        attempts = {"attempts": [receipt["attempt"] for receipt in receipts]}
        try:
            # The lock that this query takes keeps the rows until the transaction ends.
            count = sql.SQL("SELECT pg_catalog.count(*) FROM {} WHERE {}").format(self._staging.table(epoch), NAMED)
            staged = connection.execute(count, attempts).fetchone()[0]
            if staged == expected:
                self.target = self.target.with_schema(connection)
                StagingMerge(self.target, self._schema).run(connection, self._staging.table(epoch), attempts)
        except psycopg.Error as error:
            problem = rejected_rows(self.target.name, epoch, error)
            if isinstance(problem, StoreUnavailable):
                raise  # the store's own connection: the store judges what became of it
            raise problem from error
        if staged != expected:
            raise OutputUnavailable(
                f"The staged output of epoch {epoch} is not complete",
                facts=f"{counted(staged, 'row', 'are')} there, {expected} were written; a crash of Postgres empties "
                "unlogged tables",
                todo="Nothing was committed; the epoch is run again",
            )

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Empty the epoch's staging table once it is large. The rows are in the target already, unless they were
        staged in another database, which the job no longer names."""
        self._elsewhere = next((receipt for receipt in receipts if receipt["rows"] and "database" in receipt), None)
        if self._elsewhere is None:
            self._empty_if_large(self._staging.table(epoch))

    def _empty_if_large(self, table: sql.Identifier) -> None:
        with self._open_session("The staging table cannot be emptied") as connection:
            # NULL for a table that is missing: the job wrote into another database, which it no longer names.
            query = "SELECT pg_catalog.pg_table_size(pg_catalog.to_regclass(%s))"
            size = connection.execute(query, (table.as_string(connection),)).fetchone()
            if size is not None and size[0] is not None and size[0] > _WORTH_EMPTYING:
                # If a zombie task is writing, the table is emptied another time.
                with contextlib.suppress(psycopg.errors.LockNotAvailable), connection.transaction():
                    connection.execute(_STAGING)
                    connection.execute(sql.SQL("TRUNCATE {}").format(table))

    def recover(self, recovery: RecoveryContext) -> bool:
        if self._elsewhere is not None and recovery.pending is not None:
            raise SinkError(
                f"Rows of epoch {recovery.committed_epoch} are staged for {self.target.name} in another database",
                facts="output.postgres.dsn has changed, and the job was not stopped in order before: the table in the "
                "other database may miss those rows",
                todo="Name the earlier dsn, start the job, stop it in order (SIGTERM, suspend: true), then change it",
            )
        older = sql.SQL("pg_catalog.split_part({}, '-', 1)::bigint < %s").format(sql.Identifier(ATTEMPT))
        with self._open_session("The staging tables cannot be swept") as connection, connection.transaction():
            connection.execute(_STAGING)
            for table in self._staging.tables():
                connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, older), (recovery.generation,))
        return False

    def close(self) -> None:
        connections.drop(self._dsn)

    @contextlib.contextmanager
    def _open_session(self, failing: str) -> Iterator[Connection]:
        try:
            yield connections.get(self._dsn)
        except psycopg.Error as error:
            connections.drop(self._dsn)
            raise problem_of(failing, error, external=self._staging.external) from error

    def _ensure_staging(self, connection: Connection, table: sql.Identifier, schema: pa.Schema) -> None:
        """Create a staging table, unless it has the right columns: a task of the epoch about to be replayed may hold
        it."""
        rows = {ATTEMPT: "text", ROW: "bigint", **{field.name: staged_type(field) for field in schema}}
        order = dict.fromkeys(ORDER_COLUMNS if self.target.ordered else (), "bigint")
        expected = rows | order
        comment = sql.SQL("COMMENT ON TABLE {} IS {}").format(table, sql.Literal(_staging_comment(self._staging.job)))
        existing = columns_of(connection, table)
        types = {name: column.type for name, column in existing.items()}
        if types == rows and order:  # an earlier release made it, and may have committed rows in it
            added = (sql.SQL("ADD COLUMN {} bigint").format(sql.Identifier(name)) for name in order)
            connection.execute(sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(", ").join(added)))
            types = expected
        if types == expected:
            # Earlier releases made tables without a comment. A table of another role stays without one.
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(comment)
            return
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in expected.items()
        )
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
        create = "CREATE TABLE {} ({})" if self._staging.external else "CREATE UNLOGGED TABLE {} ({})"
        connection.execute(sql.SQL(create).format(table, columns))
        connection.execute(comment)


def drop_staging(dsn: str, schema: str, job: str, *, external: bool = False) -> None:
    """Drop the staging tables of all outputs that the job has ever had in this database, including those from before
    an edit. Its drivers must have been fenced. Waits for tasks that still write. Raises SinkError or StoreUnavailable
    (OutputUnavailable if `external`)."""
    try:
        with connect(dsn) as connection:
            connection.execute(_DROP_WAITS)
            for table in _staging_of(connection, schema, job):
                connection.execute(sql.SQL("DROP TABLE {}").format(table))
    except psycopg.Error as error:
        raise problem_of("The staging tables cannot be dropped", error, external=external) from error


def staging_apart(dsn: str, schema: str, job: str) -> list[str]:
    """Return the names of the staging tables that `drop_staging` would drop in another database than the state's.
    Raises SinkError and OutputUnavailable."""
    try:
        with connect(dsn) as connection:
            return [table.as_string(connection) for table in _staging_of(connection, schema, job)]
    except psycopg.Error as error:
        raise problem_of("The staging tables cannot be looked for", error, external=True) from error


def _staging_of(connection: psycopg.Connection[Any], schema: str, job: str) -> list[sql.Identifier]:
    tables = connection.execute(_STAGING_OF, {"schema": schema, "prefix": _PREFIX, "comment": _staging_comment(job)})
    return [sql.Identifier(schema, name) for (name,) in tables.fetchall()]


def _staging_comment(job: str) -> str:
    return f"Joinery: staged output of job {job}"


_STAGING_OF = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND pg_catalog.starts_with(c.relname, %(prefix)s)
AND pg_catalog.obj_description(c.oid, 'pg_class') = %(comment)s ORDER BY c.relname
"""


class _Connections(threading.local):
    """A thread's connections. They stay open, because a new one costs Postgres a process."""

    def __init__(self) -> None:
        self._open: dict[str, Connection] = {}

    def get(self, dsn: str) -> Connection:
        connection = self._open.get(dsn)
        if connection is None or connection.closed or is_stale(connection):
            self.drop(dsn)
            connection = connect(dsn, application_name="joinery output", autocommit=True)
            self._open[dsn] = connection
        return connection

    def drop(self, dsn: str) -> None:
        connection = self._open.pop(dsn, None)
        if connection is not None:
            connection.close()

    def close_all(self) -> None:
        while self._open:
            self.drop(next(iter(self._open)))


connections = _Connections()


def _encode_csv(attempt: str, rows: pa.RecordBatch, first: int) -> bytes:
    """Encode rows as CSV, after their attempt and row number (from `first`). Nulls are empty, empty text is quoted."""
    frame = pl.DataFrame(rows).select(
        pl.lit(attempt).alias(ATTEMPT),
        (first + pl.int_range(pl.len())).alias(ROW),
        cs.all(),
    )
    plain = frame.with_columns(
        cs.datetime().dt.epoch("ms"),
        (pl.lit("\\x") + cs.binary().bin.encode("hex")).name.keep(),
    )
    text = plain.write_csv(include_header=False, quote_style="necessary").encode()
    return text.replace(b"\0", REPLACEMENT) if b"\0" in text else text


REPLACEMENT = "\ufffd".encode()


_CONSTRAINTS = {
    "23502": "Have the job emit a value (COALESCE in select) or leave such rows out (filter, having), or let the "
    "column be NULL: ALTER TABLE ... ALTER COLUMN ... DROP NOT NULL",
    "23503": "Insert the row that it refers to, or drop the foreign key",
    "23505": "Name the columns of this unique index in upsertKey, so that a row replaces the one before, or drop the "
    "index",
    "23514": "Leave such rows out (where, filter, having), or alter the constraint or the partitions of the table",
    "23P01": "Leave such rows out (where, filter, having), or alter the constraint",
}
"""By SQLSTATE, what to do about rows that violate a constraint."""


def rejected_rows(
    table: str, epoch: int, error: psycopg.Error, *, external: bool = False
) -> SinkError | StoreUnavailable:
    """Turn an error while rows move into the table into ours. Postgres' own words name the column or the constraint,
    and the row."""
    summary = f"The output table {table} rejects the rows of epoch {epoch}"
    todo = _CONSTRAINTS.get(error.sqlstate or "")
    if todo is None:
        return problem_of(summary, error, external=external)
    outcome = "the epoch is committed, and its rows stay staged" if external else "nothing of the epoch was committed"
    then = "moves these rows" if external else "runs the epoch again"
    facts = f"{' '.join(str(error).split())}; {outcome}"
    return SinkError(summary, facts=facts, todo=f"{todo}. The next start {then}")


def problem_of(summary: str, error: psycopg.Error, *, external: bool = False) -> SinkError | StoreUnavailable:
    """Turn an error of Postgres into ours. If the database is unavailable, the job waits for it and recovers.
    Unless `external`, it is the state's database."""
    reason = " ".join(str(error).split())
    todo = error_advice(error, "Check the table and the role's rights")
    if not is_unavailable(error):
        return SinkError(summary, facts=reason, todo=todo)
    return (OutputUnavailable if external else StoreUnavailable)(summary, facts=reason, todo=todo)
