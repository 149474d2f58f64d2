"""`joinery sql`: over output, epoch log and state, on a real Postgres."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import yaml

from cli.commands import Joinery
from cli.session_jobs import REOPEN, epoch, resource, row, run_epochs
from cli.stored_state import commit_rows
from job.resources import edited
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.sinks.files import write_parquet
from joinery_runtime.state.postgres import PostgresStore

HOUR = 3_600_000
OUTPUT = "    postgres: {table: joined}\n"

pytestmark = pytest.mark.services


def order(order_id: str, ts: int) -> dict[str, object]:
    return {"order_id": order_id, "country": 49, "amount": None, "ts": ts}


@pytest.fixture
def stored_in(postgres_dsn: str, schema: str) -> str:
    return f'  stateStore: {{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}\n'


@pytest.fixture
def job_file(tmp_path: Path, stored_in: str, schema: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(edited((OUTPUT, OUTPUT.replace("joined", f"{schema}.joined") + stored_in)))
    return path


@pytest.fixture
def kept(store: PostgresStore, job: StreamJoin) -> None:
    """Two epochs; the second one closes the state up to 2 h of event time."""
    record = store.acquire("orders-payments")
    payments = [{"order_id": "a", "country": 49, "ts": HOUR}]
    commit_rows(store, record, job, 1, ([order("a", HOUR), order("b", HOUR)], payments), rows_out=3)
    watermarks = {"orders": 2 * HOUR, "payments": 2 * HOUR}
    commit_rows(store, record, job, 2, ([order("a", 2 * HOUR)], []), watermarks=watermarks, rows_out=4)


@pytest.mark.usefixtures("kept")
def test_the_state_and_the_log_are_tables(joinery: Joinery, job_file: Path) -> None:
    asked = (
        "SELECT order_id, count(*) AS n, max(event_time) AS newest FROM state_left GROUP BY order_id ORDER BY order_id"
    )
    assert joinery("sql", job_file, asked).lines == [
        {"order_id": "a", "n": 2, "newest": "1970-01-01T02:00:00+00:00"},
        {"order_id": "b", "n": 1, "newest": "1970-01-01T01:00:00+00:00"},
    ]
    pairs = 'SELECT l.order_id, r."offset" FROM state_left l JOIN state_right r ON l.order_id = r.order_id'
    assert joinery("sql", job_file, pairs).lines == [{"order_id": "a", "offset": 0}] * 2
    log = joinery("sql", job_file, "SELECT epoch, rows_out FROM epochs ORDER BY epoch").lines
    assert log == [{"epoch": 1, "rows_out": 3}, {"epoch": 2, "rows_out": 4}]


@pytest.mark.usefixtures("kept")
def test_the_output_is_a_table(joinery: Joinery, job_file: Path, postgres_dsn: str, schema: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f'CREATE TABLE "{schema}".joined (k text, price numeric(9,2), at timestamptz, raw bytea)')
        row = ("a", "1.50", "2026-01-15T10:00:00Z", b"\xff")
        connection.execute(f'INSERT INTO "{schema}".joined VALUES (%s, %s, %s, %s)', row)
    (found,) = joinery("sql", job_file, "WITH few AS (SELECT * FROM output) SELECT * FROM few").lines
    assert (found["k"], found["price"], found["raw"]) == ("a", "1.50", "ff")
    assert found["at"].startswith("2026-01-15T")


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_files_are_a_table(joinery: Joinery, tmp_path: Path, stored_in: str, kept: None, kind: str) -> None:
    folder, path = tmp_path / "out", tmp_path / "files.yaml"
    path.write_text(edited((OUTPUT, f'    file: {{path: "{folder}"}}\n    format: {kind}\n{stored_in}')))
    nothing = joinery("sql", path, "SELECT * FROM output")
    assert "There is no output of job orders-payments yet" in nothing.err
    folder.mkdir()
    if kind == "json":
        (folder / "epoch-1-shard-0.jsonl").write_text('{"k": "a", "n": 1}\n{"k": "b", "n": null}\n')
    else:
        with (folder / "epoch-1-shard-0.parquet").open("wb") as file:
            write_parquet(file, pa.table({"k": ["a", "b"], "n": [1, None]}).to_batches())
    assert joinery("sql", path, "SELECT k FROM output WHERE n IS NULL").lines == [{"k": "b"}]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "SELECT * FROM joined",
            "There is no table joined of job orders-payments: its tables are epochs, output, state_left",
        ),
        ("DELETE FROM output", "The query is no SELECT"),
        ("SELECT 1; SELECT 2", "The query is no SQL statement"),
        ("SELECT FROM WHERE", "The query is no SQL statement"),
        ("SELECT nope FROM epochs", "The query cannot be run"),
        ("SELECT * FROM output", "joined cannot be read"),
    ],
)
def test_what_cannot_be_asked(joinery: Joinery, job_file: Path, asked: str, said: str) -> None:
    assert said in joinery("sql", job_file, asked).err


def test_rows_in_a_topic_are_not_read(joinery: Joinery, tmp_path: Path, stored_in: str, kept: None) -> None:
    path = tmp_path / "topic.yaml"
    path.write_text(edited((OUTPUT, "    kafka: {bootstrapServers: 'k:1', topic: out}\n" + stored_in)))
    assert "it goes to the topic out; tables and files can" in joinery("sql", path, "SELECT * FROM output").err


@pytest.mark.usefixtures("kept")
def test_a_terminal_shows_a_table(joinery: Joinery, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = joinery("sql", job_file, "SELECT epoch, rows_out FROM epochs ORDER BY epoch", "--rows", "1").out
    assert "| epoch | rows_out |" in shown
    assert "1 more rows" in shown


def test_sessions_are_a_table(joinery: Joinery, tmp_path: Path, postgres_dsn: str, schema: str) -> None:
    path = tmp_path / "sessions.yaml"
    stored = {"stateStore": {"postgres": {"dsn": postgres_dsn, "schema": schema}}}
    path.write_text(yaml.safe_dump(resource(**REOPEN, **stored)))
    store = PostgresStore(postgres_dsn, schema)
    run_epochs(load_job(path), store, epoch(row(100), row(80, "y")), epoch(row(105)))
    store.close()
    asked = "SELECT k, window_start, window_end FROM state_sessions ORDER BY k"
    x, y = joinery("sql", path, asked).lines
    assert x == {
        "k": "x",
        "window_start": "1970-01-01T00:00:00.100000+00:00",
        "window_end": "1970-01-01T00:00:00.105000+00:00",
    }
    assert y["k"] == "y"
