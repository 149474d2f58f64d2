"""The target table of the Postgres sink: its name, column types, creation, new columns and checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
# The percentage of a page that inserts fill. As long as one commit replaces no more than about a fifth of the table, a
# row's new version fits beside the old one, and no index changes (HOT).
_FILL_FACTOR = 80
# The table's readers queue behind a statement that waits to alter it.
_ALTER_WAITS = "SET LOCAL lock_timeout = '10s'"
_ANY_WAITS = "SET LOCAL lock_timeout TO DEFAULT"
# For each of our types, the column types of an existing table that hold every value exactly.
_WIDER: Mapping[str, tuple[str, ...]] = {
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "text": ("character varying",),
    "jsonb": ("json", "text"),
}
_LOCATED = """
SELECT coalesce(
    (SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = pg_catalog.to_regclass(%s) AND n.nspname <> 'pg_catalog'),
    pg_catalog.current_schema())::text
"""
# The table, its partitions and the tables that inherit from it: the owner of each, whether that is this role, and
# triggers and rules.
_OWNERS = """
WITH RECURSIVE tables (oid) AS (
    SELECT pg_catalog.to_regclass(%s)::oid
    UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tables t ON i.inhparent = t.oid
)
SELECT pg_catalog.pg_get_userbyid(c.relowner)::text, pg_catalog.pg_get_userbyid(c.relowner) = current_user, ARRAY(
    SELECT tgname::text FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal
    UNION ALL SELECT rulename::text FROM pg_catalog.pg_rewrite WHERE ev_class = c.oid
)
FROM pg_catalog.pg_class c JOIN tables t ON c.oid = t.oid
"""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of an existing table."""

    type: str
    required: bool  # NOT NULL, and nothing fills it by default
    computed: bool = False  # Postgres computes each value itself, and takes none


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The target table. `name` is `table` or `schema.table`. Rows replace those with the same `upsert_key`, if any.
    `retracted` names the output column that says whether a row retracts the one with its key; the table does not have
    this column. `nested` columns are JSON. `owner` and `triggers` are what the job says of a table that is not its
    role's own. `schema` is that of a name without one, once it has been looked up (`with_schema`). `ordered`: rows come
    with ORDER_COLUMNS, by which the last one for a key counts."""

    name: str
    upsert_key: tuple[str, ...] = ()
    retracted: str | None = None
    nested: frozenset[str] = frozenset()
    owner: str | None = None
    triggers: bool = False
    schema: str | None = None
    ordered: bool = False

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*([self.schema] if self.schema else []), *self.name.split(".", 1))

    def with_schema(self, connection: psycopg.Connection[Any]) -> TargetTable:
        """Find the schema of a name without one, by the current `search_path`: where the table is, else where it would
        be created. Raises SinkError."""
        if self.schema is not None or "." in self.name:
            return self
        row = connection.execute(_LOCATED, (sql.Identifier(self.name).as_string(),)).fetchone()
        if row is None or row[0] is None:
            raise SinkError(
                f"The output table {self.name} cannot be prepared",
                facts="there is no such table, and no schema of the role's search_path exists",
                todo="Write schema.table",
            )
        return replace(self, schema=row[0])

    def check_code(self, connection: psycopg.Connection[Any]) -> None:
        """Raise SinkError if rows would run code that the job's role has not made: triggers and rules run with the
        rights of who inserts, and whoever owns a table may add some at any time."""
        rows = connection.execute(_OWNERS, (self.identifier.as_string(),)).fetchall()
        strange = sorted({owner for owner, own, _ in rows if not own and owner != self.owner})
        code = sorted({name for *_, names in rows for name in names})
        if strange:
            raise SinkError(
                f"The output table {self.name} belongs to another role: {', '.join(strange)}",
                facts="its owner can have triggers run with the rights of the job's role, at any time",
                todo=f"If the job is to trust that role, write output.postgres.tableOwner: {strange[0]}. Otherwise let "
                "the job's role own the table, or name one that is not there: it will be created",
            )
        if code and not self.triggers:
            raise SinkError(
                f"The output table {self.name} has triggers or rules: {', '.join(code)}",
                facts="they run with the rights of the job's role, and may change or drop rows",
                todo="If that is meant, write output.postgres.allowTriggers: true. Otherwise drop them",
            )

    def columns(self, output: pa.Schema) -> pa.Schema:
        """Return the output's columns that the table has."""
        return pa.schema([field for field in output if field.name != self.retracted])

    def ensure(self, connection: psycopg.Connection[Any], schema: pa.Schema, job: str) -> list[pa.Field]:
        """Create the table if it is missing. Returns the columns that it lacks, for `add`. Raises SinkError naming
        everything that does not fit, or if columns are missing in a table that the job has not created."""
        existing = columns_of(connection, self.identifier)
        if not existing:  # an existing table needs no right to create tables
            connection.execute(self._create_query(schema))
            connection.execute(self._owned_by(job))
            existing = columns_of(connection, self.identifier)
        self.check_code(connection)
        missing = [field for field in schema if field.name not in existing]
        problems = find_misfits(existing, schema, self.nested)
        if self.upsert_key and not self._has_unique_key(connection):
            columns = ", ".join(self.upsert_key)
            problems.append(
                f"there is no unique index on exactly ({columns}), the upsertKey, that is NULLS NOT DISTINCT or whose "
                "columns are NOT NULL"
            )
        if problems or len(missing) == len(schema):  # a table without any of the columns is another program's
            lacking = [f"column {field.name} {column_type(field, self.nested)} is missing" for field in missing]
            raise SinkError(
                f"The output table {self.name} does not fit the job's output",
                facts="; ".join(lacking + problems),
                todo="Alter the table, or name one that is not there: it will be created. After a trial start from the "
                "beginning: DROP TABLE, then joinery state delete JOB.yaml --yes",
            )
        if missing and not self._is_owned_by(connection, job):
            columns = ", ".join(f"{field.name} {column_type(field, self.nested)}" for field in missing)
            as_written = replace(self, schema=None)
            raise SinkError(
                f"The output table {self.name} lacks columns of the job's output ({columns})",
                facts=f"job {job} has not made that table, so it does not alter it",
                todo=f"Run: {as_written._add_query(missing).as_string(connection)}. To have the job add columns from "
                f"now on, run: {as_written._owned_by(job).as_string(connection)}. Or name a table that is not there: "
                "it will be created",
            )
        return missing

    def add(self, connection: psycopg.Connection[Any], missing: Sequence[pa.Field]) -> None:
        """Add columns, which are NULL in existing rows. From then on, the enclosing transaction blocks all readers of
        the table."""
        statement = self._add_query(missing)
        try:
            connection.execute(_ALTER_WAITS)
            connection.execute(statement)
            connection.execute(_ANY_WAITS)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.WrongObjectType) as error:
            lacking = ", ".join(field.name for field in missing)
            as_written = replace(self, schema=None)._add_query(missing)
            raise SinkError(
                f"The output table {self.name} lacks columns of the job's output ({lacking}), and they cannot be added",
                facts=" ".join(str(error).split()),
                todo=f"Have its owner run: {as_written.as_string(connection)}",
            ) from error

    def _add_query(self, missing: Sequence[pa.Field]) -> sql.Composed:
        # Another driver may add them at the same time.
        added = (
            sql.SQL("ADD COLUMN IF NOT EXISTS {}").format(_column_definition(field, self.nested)) for field in missing
        )
        return sql.SQL("ALTER TABLE {} {}").format(self.identifier, sql.SQL(", ").join(added))

    def _owned_by(self, job: str) -> sql.Composed:
        """Return the statement that records the table's owner in its comment, which survives when the table is renamed,
        moved or restored from a dump."""
        return sql.SQL("COMMENT ON TABLE {} IS {}").format(self.identifier, sql.Literal(_owner_comment(job)))

    def _is_owned_by(self, connection: psycopg.Connection[Any], job: str) -> bool:
        table = self.identifier.as_string(connection)
        comment = connection.execute(
            "SELECT pg_catalog.obj_description(%s::pg_catalog.regclass, 'pg_class')", (table,)
        ).fetchone()
        return comment == (_owner_comment(job),)

    def _create_query(self, schema: pa.Schema) -> sql.Composed:
        columns = [_column_definition(field, self.nested) for field in schema]
        storage: sql.Composable = sql.SQL("")
        if self.upsert_key:
            columns.append(sql.SQL("UNIQUE NULLS NOT DISTINCT ({})").format(names(self.upsert_key)))
            storage = sql.SQL(" WITH (fillfactor = {})").format(_FILL_FACTOR)
        return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}){}").format(
            self.identifier, sql.SQL(", ").join(columns), storage
        )

    def _has_unique_key(self, connection: psycopg.Connection[Any]) -> bool:
        """Return whether there is a suitable unique index. Rows with NULLs in their keys replace each other too, so an
        index in which NULLs are distinct does not suffice."""
        rows = connection.execute(
            "SELECT pg_catalog.array_agg(attname::text) FROM pg_catalog.pg_index JOIN pg_catalog.pg_attribute "
            "ON attrelid = indrelid AND attnum = ANY((indkey::int2[])[0:indnkeyatts - 1]) "
            "WHERE indrelid = %s::pg_catalog.regclass AND indisunique AND indpred IS NULL "
            "AND indexprs IS NULL AND indimmediate "
            "GROUP BY indexrelid, indnullsnotdistinct HAVING indnullsnotdistinct OR pg_catalog.bool_and(attnotnull)",
            (self.identifier.as_string(connection),),
        )
        return any(set(columns) == set(self.upsert_key) for (columns,) in rows)


def _owner_comment(job: str) -> str:
    return f"Joinery: output of job {job}"


def columns_of(connection: psycopg.Connection[Any], table: sql.Identifier) -> dict[str, TableColumn]:
    """Return the columns of a table, in order. Empty if there is no such table."""
    rows = connection.execute(
        # A role with quote_all_identifiers gets "text" in quotes.
        "SELECT attname, pg_catalog.btrim(pg_catalog.format_type(atttypid, atttypmod), '\"'), "
        "attnotnull AND NOT atthasdef AND attidentity = '', attidentity = 'a' OR attgenerated <> '' "
        "FROM pg_catalog.pg_attribute "
        "WHERE attrelid = pg_catalog.to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table.as_string(connection),),
    )
    return {name: TableColumn(*column) for name, *column in rows}


def column_type(field: pa.Field, nested: Collection[str] = ()) -> str:
    """Return the Postgres type of an output column."""
    arrow = field.type
    if field.name in nested:
        return "jsonb"
    if pa.types.is_decimal(arrow):
        return f"numeric({arrow.precision},{arrow.scale})"
    return _TYPES[arrow]


def find_misfits(existing: Mapping[str, TableColumn], schema: pa.Schema, nested: Collection[str] = ()) -> list[str]:
    """Return the reasons why a table with these columns cannot take rows of `schema`, even after adding columns."""
    types = {field.name: column_type(field, nested) for field in schema}
    other = [
        f"column {name} is {existing[name].type}, the output's is {kind}"
        for name, kind in types.items()
        if name in existing and not _type_fits(existing[name].type, kind)
    ]
    unfilled = [
        f"column {name} is NOT NULL, has no default and is not in the output"
        for name, column in existing.items()
        if column.required and name not in types
    ]
    computed = [
        f"column {name} is GENERATED ALWAYS, so it takes no value of the output"
        for name, column in existing.items()
        if column.computed and name in types
    ]
    return other + unfilled + computed


def _type_fits(existing: str, needed: str) -> bool:
    """Return whether a column of type `existing` holds every value of type `needed` exactly."""
    return existing == needed or existing in _WIDER.get(needed, ()) or (existing == "numeric" and "numeric" in needed)


def _column_definition(field: pa.Field, nested: Collection[str]) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field, nested)))


def names(columns: Sequence[str]) -> sql.Composed:
    """Quoted column names, separated by commas."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))
