"""The target table of the Postgres sink: its name, column types, creation, new columns and checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from joinery_runtime.errors import SinkError

_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("ms", tz="UTC"): "timestamp with time zone",
}
# Percent of a page that inserts fill. A row's new version finds room beside the old one, and no index changes (HOT), as
# long as one commit replaces no more than about a fifth of the table.
_FILL_FACTOR = 80
# Who reads the table waits behind who waits to alter it.
_ALTER_WAITS = "SET LOCAL lock_timeout = '10s'"
_ANY_WAITS = "SET LOCAL lock_timeout TO DEFAULT"
# Types of an existing table's columns that hold every value of ours, exactly.
_WIDER: Mapping[str, tuple[str, ...]] = {
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "text": ("character varying",),
    "jsonb": ("json", "text"),
}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of an existing table."""

    type: str
    required: bool  # NOT NULL and nothing fills it


@dataclass(frozen=True, slots=True)
class TargetTable:
    """`name` is `table` or `schema.table`; rows replace those with the same `upsert_key`, if there is one. `retracted`
    names the output's column that says whether a row takes back the one with its key; it is no column of the table.
    `nested` columns are JSON."""

    name: str
    upsert_key: tuple[str, ...] = ()
    retracted: str | None = None
    nested: frozenset[str] = frozenset()

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.name.split(".", 1))

    def columns(self, output: pa.Schema) -> pa.Schema:
        """What the table holds of the output's columns."""
        return pa.schema([field for field in output if field.name != self.retracted])

    def ensure(self, connection: psycopg.Connection[Any], schema: pa.Schema, job: str) -> list[pa.Field]:
        """Creates the table if it is missing, else returns the columns that it lacks, for `add`. Raises SinkError with
        all that does not fit, and for columns that a table lacks which the job has not made."""
        existing = columns_of(connection, self.identifier)
        if not existing:  # one that is there takes no right to create tables beside it
            connection.execute(self._create(schema))
            connection.execute(self._owned_by(job))
            existing = columns_of(connection, self.identifier)
        missing = [field for field in schema if field.name not in existing]
        problems = misfits(existing, schema, self.nested)
        if self.upsert_key and not self._has_unique_key(connection):
            columns = ", ".join(self.upsert_key)
            problems.append(
                f"there is no unique index on exactly ({columns}), the upsertKey, that is NULLS NOT DISTINCT or whose "
                "columns are NOT NULL"
            )
        if problems or len(missing) == len(schema):  # one without any of the columns is another program's
            lacking = [f"column {field.name} {column_type(field, self.nested)} is missing" for field in missing]
            raise SinkError(
                f"The output table {self.name} does not fit the job's output",
                facts="; ".join(lacking + problems),
                todo="Alter the table, or name one that is not there: it will be created. After a trial begin anew: "
                "DROP TABLE, then joinery state delete JOB.yaml --yes",
            )
        if missing and not self._is_owned_by(connection, job):
            columns = ", ".join(f"{field.name} {column_type(field, self.nested)}" for field in missing)
            raise SinkError(
                f"The output table {self.name} lacks columns of the job's output ({columns})",
                facts=f"job {job} has not made that table, so it does not alter it",
                todo=f"Run: {self._added(missing).as_string(connection)}. To have the job add columns from now on, "
                f"run: {self._owned_by(job).as_string(connection)}. Or name a table that is not there: it will be "
                "created",
            )
        return missing

    def add(self, connection: psycopg.Connection[Any], missing: Sequence[pa.Field]) -> None:
        """Adds columns; rows that are there have NULL in them. Inside a transaction, which holds up all who read the
        table from then on."""
        statement = self._added(missing)
        try:
            connection.execute(_ALTER_WAITS)
            connection.execute(statement)
            connection.execute(_ANY_WAITS)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.WrongObjectType) as error:
            lacking = ", ".join(field.name for field in missing)
            raise SinkError(
                f"The output table {self.name} lacks columns of the job's output ({lacking}), and they cannot be added",
                facts=" ".join(str(error).split()),
                todo=f"Have its owner run: {statement.as_string(connection)}",
            ) from error

    def _added(self, missing: Sequence[pa.Field]) -> sql.Composed:
        # Another driver may add them at the same time.
        added = (sql.SQL("ADD COLUMN IF NOT EXISTS {}").format(_defined(field, self.nested)) for field in missing)
        return sql.SQL("ALTER TABLE {} {}").format(self.identifier, sql.SQL(", ").join(added))

    def _owned_by(self, job: str) -> sql.Composed:
        """Whose the table is, its comment says: that goes along when it is renamed, moved or restored from a dump."""
        return sql.SQL("COMMENT ON TABLE {} IS {}").format(self.identifier, sql.Literal(_owner(job)))

    def _is_owned_by(self, connection: psycopg.Connection[Any], job: str) -> bool:
        table = self.identifier.as_string(connection)
        found = connection.execute("SELECT obj_description(%s::regclass, 'pg_class')", (table,)).fetchone()
        return found == (_owner(job),)

    def _create(self, schema: pa.Schema) -> sql.Composed:
        columns = [_defined(field, self.nested) for field in schema]
        storage: sql.Composable = sql.SQL("")
        if self.upsert_key:
            columns.append(sql.SQL("UNIQUE NULLS NOT DISTINCT ({})").format(names(self.upsert_key)))
            storage = sql.SQL(" WITH (fillfactor = {})").format(_FILL_FACTOR)
        return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}){}").format(
            self.identifier, sql.SQL(", ").join(columns), storage
        )

    def _has_unique_key(self, connection: psycopg.Connection[Any]) -> bool:
        """A row with a NULL in its key replaces the one like it, too: no index will do where NULLs are all distinct."""
        rows = connection.execute(
            "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute "
            "ON attrelid = indrelid AND attnum = ANY((indkey::int2[])[0:indnkeyatts - 1]) "
            "WHERE indrelid = %s::regclass AND indisunique AND indpred IS NULL AND indexprs IS NULL AND indimmediate "
            "GROUP BY indexrelid, indnullsnotdistinct HAVING indnullsnotdistinct OR bool_and(attnotnull)",
            (self.identifier.as_string(connection),),
        )
        return any(set(columns) == set(self.upsert_key) for (columns,) in rows)


def _owner(job: str) -> str:
    return f"Joinery: output of job {job}"


def columns_of(connection: psycopg.Connection[Any], table: sql.Identifier) -> dict[str, TableColumn]:
    """The columns of a table in their order; none if there is no such table."""
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' "
        "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table.as_string(connection),),
    )
    return {name: TableColumn(kind, required) for name, kind, required in rows}


def column_type(field: pa.Field, nested: Collection[str] = ()) -> str:
    """The Postgres type of an output column."""
    arrow = field.type
    if field.name in nested:
        return "jsonb"
    if pa.types.is_decimal(arrow):
        return f"numeric({arrow.precision},{arrow.scale})"
    return _TYPES[arrow]


def misfits(existing: Mapping[str, TableColumn], schema: pa.Schema, nested: Collection[str] = ()) -> list[str]:
    """What keeps rows of `schema` out of a table with these columns, whatever is added to it."""
    wanted = {field.name: column_type(field, nested) for field in schema}
    other = [
        f"column {name} is {existing[name].type}, the output's is {kind}"
        for name, kind in wanted.items()
        if name in existing and not _fits(existing[name].type, kind)
    ]
    unfilled = [
        f"column {name} is NOT NULL, has no default and is not in the output"
        for name, column in existing.items()
        if column.required and name not in wanted
    ]
    return other + unfilled


def _fits(existing: str, wanted: str) -> bool:
    """Whether a column of the type `existing` holds every value of the type `wanted`, exactly."""
    return existing == wanted or existing in _WIDER.get(wanted, ()) or (existing == "numeric" and "numeric" in wanted)


def _defined(field: pa.Field, nested: Collection[str]) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field, nested)))


def names(columns: Sequence[str]) -> sql.Composed:
    """Quoted column names, separated by commas."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))
