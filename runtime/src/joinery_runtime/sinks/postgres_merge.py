"""How staged rows come into the target table: the statements that the commit's transaction runs.

With an upsert key, of the rows of one epoch with one key the one that its shard wrote last counts. Where the output has
a column that says that a row is taken back, such a row deletes the one with its key.

Rows with a key arrive sorted by it, so that neighbours in the index are written together; decision 19 has what this
and other statements cost.

A comparison that takes NULLs as equal (IS NOT DISTINCT FROM) can use no index and no hash. So deletions are made by
which of their keys' columns are NULL: `=` and IS NULL can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from joinery_runtime.sinks.postgres_table import TargetTable, column_type, names

ATTEMPT, ROW = "$attempt", "$row"  # no output column starts with a dollar
NAMED = sql.SQL("{} = ANY(%(attempts)s)").format(sql.Identifier(ATTEMPT))

Attempts = Mapping[str, Sequence[str]]  # what NAMED asks for

# A million rows are sorted in memory; with Postgres's default of 4 MB most epochs were sorted in files.
_SORT_MEMORY = """
SELECT set_config('work_mem', '128MB', true) WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes('128MB')
"""


def staged_type(field: pa.Field) -> str:
    """The type of an output column in the staging tables, where timestamps are integer milliseconds and JSON is
    text."""
    return "bigint" if pa.types.is_timestamp(field.type) else column_type(field)


@dataclass(frozen=True, slots=True)
class StagingMerge:
    """Moves rows of `schema`, the output's, from a staging table to `target`."""

    target: TargetTable
    schema: pa.Schema

    def run(self, connection: psycopg.Connection[Any], staging: sql.Identifier, attempts: Attempts) -> None:
        """Raises psycopg.Error. `work_mem` is raised until the transaction ends."""
        if self.target.upsert_key:
            connection.execute(_SORT_MEMORY)
        if self.target.retracted is not None:
            # Deletions come first: a row may take the place of one that is gone in another unique index of the table.
            for nulls in connection.execute(self._null_keys(staging, self.target.retracted), attempts).fetchall():
                connection.execute(self._delete(staging, self.target.retracted, nulls), attempts)
        connection.execute(self._insert(staging), attempts)

    def _insert(self, staging: sql.Identifier) -> sql.Composed:
        table, key = self.target.columns(self.schema), self.target.upsert_key
        others = [field.name for field in table if field.name not in key]
        update = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
        action = sql.SQL("DO UPDATE SET {}").format(update) if others else sql.SQL("DO NOTHING")
        retracted = self.target.retracted
        not_retracted = sql.SQL("NOT {}").format(sql.Identifier(retracted)) if retracted else sql.SQL("TRUE")
        every = sql.SQL("{} WHERE {}").format(staging, NAMED)
        query = sql.SQL("INSERT INTO {target} ({columns}) SELECT {values} FROM {rows} {conflict}")
        return query.format(
            target=self.target.identifier,
            columns=names(table.names),
            values=sql.SQL(", ").join(self._moved(field) for field in table),
            rows=self._newest(staging, not_retracted) if key else every,
            conflict=sql.SQL("ON CONFLICT ({}) {}").format(names(key), action) if key else sql.SQL(""),
        )

    def _null_keys(self, staging: sql.Identifier, retracted: str) -> sql.Composed:
        """Which of the key's columns are NULL: every combination that there is among rows that are taken back."""
        columns = (sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self.target.upsert_key)
        return sql.SQL("SELECT DISTINCT {columns} FROM {staging} WHERE {named} AND {retracted}").format(
            columns=sql.SQL(", ").join(columns), staging=staging, named=NAMED, retracted=sql.Identifier(retracted)
        )

    def _delete(self, staging: sql.Identifier, retracted: str, nulls: Sequence[bool]) -> sql.Composed:
        """Takes the rows with such a key out of the table whose last word is that they are taken back."""
        fields = [self.schema.field(name) for name in self.target.upsert_key]
        among, same = [], []
        for field, null in zip(fields, nulls, strict=True):
            name = sql.Identifier(field.name)
            among.append(sql.SQL("{} IS NULL" if null else "{} IS NOT NULL").format(name))
            same.append(sql.SQL("target.{0} IS NULL" if null else "target.{0} = gone.{0}").format(name))
        query = sql.SQL("DELETE FROM {target} AS target USING (SELECT {keys} FROM {rows}) AS gone WHERE {same}")
        return query.format(
            target=self.target.identifier,
            keys=sql.SQL(", ").join(sql.SQL("{} AS {}").format(self._moved(f), sql.Identifier(f.name)) for f in fields),
            rows=self._newest(staging, sql.Identifier(retracted), *among),
            same=sql.SQL(" AND ").join(same),
        )

    def _moved(self, field: pa.Field) -> sql.Composable:
        return (
            sql.SQL("{}::jsonb").format(sql.Identifier(field.name))
            if field.name in self.target.nested
            else _moved(field)
        )

    def _newest(self, staging: sql.Identifier, chosen: sql.Composable, *among: sql.Composable) -> sql.Composed:
        """The last row for each key among those `among`, where it is `chosen`."""
        key = sql.SQL(", ").join(_sorted_by(self.schema.field(name)) for name in self.target.upsert_key)
        query = sql.SQL(
            "(SELECT DISTINCT ON ({key}) * FROM {staging} WHERE {among} ORDER BY {key}, {row} DESC, {attempt}) "
            "AS newest WHERE {chosen}"
        )
        return query.format(
            key=key,
            staging=staging,
            among=sql.SQL(" AND ").join([NAMED, *among]),
            row=sql.Identifier(ROW),
            attempt=sql.Identifier(ATTEMPT),
            chosen=chosen,
        )


def _sorted_by(field: pa.Field) -> sql.Composable:
    """Text is sorted by its bytes: that costs a fraction of what a language's order does. Equal texts are the same."""
    return sql.SQL('{} COLLATE "C"' if pa.types.is_string(field.type) else "{}").format(sql.Identifier(field.name))


def _moved(field: pa.Field) -> sql.Composable:
    name = sql.Identifier(field.name)
    if pa.types.is_timestamp(field.type):
        # Postgres multiplies intervals as doubles: exact only if seconds and the rest go apart.
        return sql.SQL(
            "timestamptz 'epoch' + {0} / 1000 * interval '1 second' + mod({0}, 1000) * interval '1 millisecond'"
        ).format(name)
    return name
