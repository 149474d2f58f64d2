"""Moves staged rows into the target table: the statements that the commit's transaction runs.

With an upsert key, the last row for a key in an epoch counts, in the defined order (rule J2), which is staged beside
the rows: their shards wrote them in no common order. If the output has a retraction column, a retracted row deletes the
one with its key, and the last row that a shard wrote counts.

Rows with a key arrive sorted by it, so that neighbours in the index are written together. Decision 19 has the costs of
these and other statements.

A comparison that treats NULLs as equal (IS NOT DISTINCT FROM) can use neither index nor hash, but `=` and IS NULL can.
So there is one deletion for each combination of key columns that are NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from joinery_runtime.connectors.postgres.client import CATALOG_ONLY, OWN_PATH
from joinery_runtime.connectors.postgres.table import TargetTable, column_type, names
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS

ATTEMPT, ROW = "$attempt", "$row"  # an output column cannot begin with a dollar
NAMED = sql.SQL("{} = ANY(%(attempts)s)").format(sql.Identifier(ATTEMPT))

Attempts = Mapping[str, Sequence[str]]  # the parameters of NAMED

# Enough to sort a million rows in memory. With Postgres's default of 4 MB, most epochs were sorted on disk.
_SORT_MEMORY = """
SELECT pg_catalog.set_config('work_mem', '128MB', true)
WHERE pg_catalog.pg_size_bytes(pg_catalog.current_setting('work_mem')) < pg_catalog.pg_size_bytes('128MB')
"""


def staged_type(field: pa.Field) -> str:
    """Return the type of an output column in the staging tables. There timestamps are integer milliseconds, and JSON is
    text."""
    return "bigint" if pa.types.is_timestamp(field.type) else column_type(field)


@dataclass(frozen=True, slots=True)
class StagingMerge:
    """Moves rows of `schema`, the output's, from a staging table to `target`."""

    target: TargetTable
    schema: pa.Schema

    def run(self, connection: psycopg.Connection[Any], staging: sql.Identifier, attempts: Attempts) -> None:
        """Move the rows. Raises `work_mem` until the transaction ends. Raises psycopg.Error."""
        if not self.target.triggers:  # those may name tables and functions without a schema, as for any other client
            connection.execute(CATALOG_ONLY)
        if self.target.upsert_key:
            connection.execute(_SORT_MEMORY)
        if self.target.retracted is not None:
            # Deletions come first: in another unique index of the table, a new row may take a deleted row's place.
            for nulls in connection.execute(self._null_keys_query(staging, self.target.retracted), attempts).fetchall():
                connection.execute(self._delete_query(staging, self.target.retracted, nulls), attempts)
        connection.execute(self._insert_query(staging), attempts)
        # A deferred constraint is checked here, where an error names the table, and not at the commit.
        connection.execute(f"SET CONSTRAINTS ALL IMMEDIATE; {OWN_PATH}")

    def _insert_query(self, staging: sql.Identifier) -> sql.Composed:
        table, key = self.target.columns(self.schema), self.target.upsert_key
        # A row with 0.0 replaces one with -0.0, and then its key is 0.0.
        updated = [field.name for field in table if field.name not in key or pa.types.is_floating(field.type)]
        update = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in updated)
        action = sql.SQL("DO UPDATE SET {}").format(update) if updated else sql.SQL("DO NOTHING")
        retracted = self.target.retracted
        not_retracted = sql.SQL("NOT {}").format(sql.Identifier(retracted)) if retracted else sql.SQL("TRUE")
        every = sql.SQL("{} WHERE {}").format(staging, NAMED)
        query = sql.SQL("INSERT INTO {target} ({columns}) SELECT {values} FROM {rows} {conflict}")
        return query.format(
            target=self.target.identifier,
            columns=names(table.names),
            values=sql.SQL(", ").join(self._moved_column(field) for field in table),
            rows=self._newest_rows(staging, not_retracted) if key else every,
            conflict=sql.SQL("ON CONFLICT ({}) {}").format(names(key), action) if key else sql.SQL(""),
        )

    def _null_keys_query(self, staging: sql.Identifier, retracted: str) -> sql.Composed:
        """Return the combinations of key columns that are NULL among retracted rows."""
        columns = (sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self.target.upsert_key)
        return sql.SQL("SELECT DISTINCT {columns} FROM {staging} WHERE {named} AND {retracted}").format(
            columns=sql.SQL(", ").join(columns), staging=staging, named=NAMED, retracted=sql.Identifier(retracted)
        )

    def _delete_query(self, staging: sql.Identifier, retracted: str, nulls: Sequence[bool]) -> sql.Composed:
        """Delete the rows whose keys have this combination of NULLs and whose last staged row is a retraction."""
        fields = [self.schema.field(name) for name in self.target.upsert_key]
        among, matching = [], []
        for field, null in zip(fields, nulls, strict=True):
            name = sql.Identifier(field.name)
            among.append(sql.SQL("{} IS NULL" if null else "{} IS NOT NULL").format(name))
            matching.append(sql.SQL("target.{0} IS NULL" if null else "target.{0} = gone.{0}").format(name))
        query = sql.SQL("DELETE FROM {target} AS target USING (SELECT {keys} FROM {rows}) AS gone WHERE {same}")
        return query.format(
            target=self.target.identifier,
            keys=sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(self._moved_column(f), sql.Identifier(f.name)) for f in fields
            ),
            rows=self._newest_rows(staging, sql.Identifier(retracted), *among),
            same=sql.SQL(" AND ").join(matching),
        )

    def _moved_column(self, field: pa.Field) -> sql.Composable:
        name = sql.Identifier(field.name)
        if field.name in self.target.nested:
            return sql.SQL("{}::jsonb").format(name)
        if pa.types.is_timestamp(field.type):
            # Postgres multiplies intervals as doubles, which is exact only if seconds and the rest are separate.
            return sql.SQL(
                "timestamptz 'epoch' + {0} / 1000 * interval '1 second' + "
                "pg_catalog.mod({0}, 1000) * interval '1 millisecond'"
            ).format(name)
        return name

    def _newest_rows(self, staging: sql.Identifier, chosen: sql.Composable, *among: sql.Composable) -> sql.Composed:
        """Return the last row for each key, among rows that fulfil `among`, if that row fulfils `chosen`."""
        # Text is sorted by its bytes, which costs a fraction of a language's collation. Equality is the same.
        texts = {field.name for field in self.schema if pa.types.is_string(field.type)}
        key = sql.SQL(", ").join(
            sql.SQL('{} COLLATE "C"' if name in texts else "{}").format(sql.Identifier(name))
            for name in self.target.upsert_key
        )
        # Rows that an earlier release staged have no order.
        ordered = ORDER_COLUMNS if self.target.ordered else ()
        query = sql.SQL(
            "(SELECT DISTINCT ON ({key}) * FROM {staging} WHERE {among} ORDER BY {key}, {last} DESC, {attempt}) "
            "AS newest WHERE {chosen}"
        )
        return query.format(
            key=key,
            staging=staging,
            among=sql.SQL(" AND ").join([NAMED, *among]),
            last=sql.SQL(" DESC NULLS LAST, ").join(map(sql.Identifier, (*ordered, ROW))),
            attempt=sql.Identifier(ATTEMPT),
            chosen=chosen,
        )
