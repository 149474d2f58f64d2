"""Text is UTF-8 on every connection, whatever the environment says, and a database that cannot store it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from connectors.rows import attempt
from joinery_runtime.connectors.postgres.client import connect
from joinery_runtime.connectors.postgres.external import drop_marks
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging, drop_staging
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.table_content import PostgresContent
from joinery_runtime.errors import JoineryError, SinkError, StateError, Unavailable
from joinery_runtime.state.moving import MovableStore
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services
TEXTS = ["Zürich", "€ 20", "ѕ漢字", "\U0001f600"]
ROWS = pa.table({"n": range(len(TEXTS)), "text": TEXTS})
TABLE = TargetTable("texts_of_an_encoding")


@pytest.fixture(params=["LATIN1", "WIN1252", "SQL_ASCII"])
def recoded(request: pytest.FixtureRequest, dsn: str) -> Iterator[str]:
    """A database of another encoding."""
    name = f"recoded {request.param}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE \"{name}\" ENCODING '{request.param}' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C' "
            "TEMPLATE template0"
        )
        yield make_conninfo(dsn, dbname=name)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.parametrize(
    "variable",
    [
        {"PGCLIENTENCODING": "LATIN1"},
        {"PGOPTIONS": "-c client_encoding=WIN1252"},
        {"PGOPTIONS": "-c quote_all_identifiers=on"},
    ],
)
def test_text_arrives_as_it_was_whatever_the_environment_says(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, variable: dict[str, str]
) -> None:
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGDATESTYLE", "German")
    sink = PostgresSink(dsn, TABLE, Staging.of(schema, "job", TABLE.name))
    sink.prepare(ROWS.schema)
    with connect(dsn) as connection:
        sink.in_transaction(connection, 1, [sink.writer().write(attempt(), ROWS)])
    content = PostgresContent(dsn, TABLE, ROWS.schema, lambda: 1, None)
    assert [text for piece in content.pieces() for text in piece.texts] == content.texts(ROWS)
    content.close()
    sink.close()
    for name in variable:
        monkeypatch.delenv(name)
    with psycopg.connect(make_conninfo(dsn, client_encoding="UTF8")) as connection:
        assert [text for (text,) in connection.execute(f"SELECT text FROM {TABLE.name} ORDER BY n")] == TEXTS
        connection.execute(f"DROP TABLE {TABLE.name}")


CALLS: dict[str, Callable[[str], object]] = {
    "the state": lambda dsn: PostgresStore(dsn).record("job"),
    "the target of a move": lambda dsn: MovableStore(dsn).knows("job"),
    "an output table": lambda dsn: PostgresSink(dsn, TABLE, Staging.of("s", "job", TABLE.name)).prepare(ROWS.schema),
    "a task's rows": lambda dsn: (
        PostgresSink(dsn, TABLE, Staging.of("s", "job", TABLE.name)).writer().write(attempt(), ROWS)
    ),
    "what verify reads": lambda dsn: PostgresContent(dsn, TABLE, ROWS.schema, lambda: 1, None),
    "staged rows": lambda dsn: drop_staging(dsn, "s", "job"),
    "marks": lambda dsn: drop_marks(dsn, "s", "job"),
}


@pytest.mark.parametrize("recoded", ["LATIN1"], indirect=True)
@pytest.mark.parametrize("call", CALLS)
def test_a_database_of_another_encoding_is_refused_by_everyone(recoded: str, call: str) -> None:
    with pytest.raises((SinkError, StateError), match=r"has the encoding LATIN1.*ENCODING 'UTF8'") as refusal:
        CALLS[call](recoded)
    assert not isinstance(refusal.value, Unavailable), "waiting does not help"


def test_every_other_encoding_is_refused(recoded: str) -> None:
    with pytest.raises(JoineryError, match="has the encoding"):
        PostgresStore(recoded).record("job")


@pytest.mark.parametrize("dsn_text", ["postgresql://user:secret@[::1/x", "host='secret"])
def test_what_is_no_dsn_is_not_quoted(dsn_text: str) -> None:
    with pytest.raises(psycopg.ProgrammingError) as refusal:
        connect(dsn_text)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("setting", ["user", "dbname"])
def test_a_name_that_postgres_would_cut_is_refused(dsn: str, setting: str) -> None:
    with pytest.raises(StateError, match=f"{setting} of the DSN has 64 bytes, and Postgres cuts names after 63"):
        PostgresStore(make_conninfo(dsn, **{setting: "n" * 64})).record("job")


def test_a_schema_that_postgres_would_cut_is_refused(dsn: str) -> None:
    with pytest.raises(StateError, match="the schema's name has 64 bytes"):
        MovableStore(dsn, "ü" * 32)
