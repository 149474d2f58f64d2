"""In which order a Postgres sink takes its locks; without a server."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql

from joinery_runtime.connectors.postgres import sink as postgres
from joinery_runtime.connectors.postgres import table as postgres_table
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging
from joinery_runtime.connectors.postgres.table import TableColumn, TargetTable


class Connection:
    """Writes down what it is to execute."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def transaction(self) -> Any:
        return nullcontext()

    def execute(self, statement: str | sql.Composable, _: object = None) -> Any:
        """Answers as if each schema were there, and the table the role's own."""
        self.statements.append(statement if isinstance(statement, str) else statement.as_string())
        return SimpleNamespace(rowcount=1, fetchone=lambda: ("public",), fetchall=list)


def test_a_table_is_altered_when_its_staging_tables_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zombie's COPY keeps a staging table from being made anew: who reads the target must not wait for that, and a
    commit, which locks the staging table first, must not wait for who waits for it."""
    connection = Connection()
    for module in (postgres, postgres_table):
        monkeypatch.setattr(module, "columns_of", lambda *_: {"k": TableColumn("bigint", False)})
    monkeypatch.setattr(TargetTable, "_is_owned_by", lambda *_: True)
    monkeypatch.setattr(PostgresSink, "_open_session", lambda *_: nullcontext(connection))
    sink = PostgresSink("", TargetTable("paid"), Staging.of("joinery", "job", "paid"))
    sink.prepare(pa.schema([("k", pa.int64()), ("v", pa.string())]))
    alters = [
        position for position, statement in enumerate(connection.statements) if statement.startswith("ALTER TABLE")
    ]
    drops = [position for position, statement in enumerate(connection.statements) if statement.startswith("DROP TABLE")]
    assert (len(alters), len(drops)) == (1, 2)
    assert max(drops) < min(alters)
