"""`joinery state move` between two databases of a real Postgres."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cli.commands import Joinery
from cli.stored_state import commit_rows
from job.resources import edited
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import load_job
from joinery_runtime.job.crd.driver import StateCheck
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord

JOB = "orders-payments"
OUTPUT = "    postgres: {table: joined}\n"

pytestmark = pytest.mark.services


@pytest.fixture
def elsewhere(postgres_dsn: str, schema: str) -> str:
    """Another database."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(schema)))
    return make_conninfo(**{**conninfo_to_dict(postgres_dsn), "dbname": schema})


@pytest.fixture
def job_file(postgres_dsn: str, tmp_path: Path, schema: str) -> Path:
    path = tmp_path / "job.yaml"
    kafka = "    kafka: {bootstrapServers: 'kafka:9092', topic: joined}\n"
    store = f'  stateStore: {{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}\n'
    path.write_text(edited((OUTPUT, kafka + store)))
    return path


@pytest.fixture
def before(postgres_dsn: str, schema: str, job_file: Path) -> JobRecord:
    store = PostgresStore(postgres_dsn, schema)
    orders = [{"order_id": "o", "country": 49, "amount": None, "ts": 1_000}]
    commit_rows(store, store.acquire(JOB), load_job(job_file), 1, (orders, []))
    record = store.record(JOB)
    store.close()
    assert record is not None
    return record


def stored_record(dsn: str, schema: str) -> JobRecord | None:
    store = PostgresStore(dsn, schema)
    record = store.record(JOB)
    store.close()
    return record


def test_it_moves_after_a_dry_run(
    joinery: Joinery, job_file: Path, before: JobRecord, elsewhere: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [would] = joinery("state", "move", job_file, "--to", elsewhere, "--dry-run").lines
    assert (would["moved"], would["segments"], would["epochs"]) == (False, 1, 1)
    with psycopg.connect(elsewhere) as connection:
        assert connection.execute("SELECT 1 FROM pg_tables WHERE tablename = 'jobs'").fetchone() is None
    monkeypatch.setenv("JOINERY_MOVE_DSN", elsewhere)
    ended = joinery("state", "move", job_file, "--to-schema", "moved")
    assert (ended.code, ended.err, ended.lines[0]["moved"]) == (0, "", True)
    record = stored_record(elsewhere, "moved")
    assert record is not None
    assert (record.segments, record.offsets, record.incarnation) == (
        before.segments,
        before.offsets,
        before.incarnation,
    )
    where = f"was moved: it is at host {conninfo_to_dict(elsewhere)['host']}"
    for command in (["ls"], ["migrate", "--savepoint", "rollout-b"], ["move", "--to-schema", "moved"]):
        refused = joinery("state", command[0], job_file, *command[1:])
        assert refused.code == 1
        assert where in refused.err
    check = joinery("state", "check", job_file)
    report = StateCheck.model_validate_json(check.out)
    assert (check.code, check.err, report.fits) == (1, "", False)
    assert where in report.refused[0]
    assert joinery("state", "delete", job_file, "--yes").code == 0
    assert joinery("state", "check", job_file).code == 0


def test_what_was_left_behind_is_deleted_and_the_moved_job_keeps_what_it_has_staged(
    joinery: Joinery, job_file: Path, before: JobRecord, elsewhere: str, postgres_dsn: str, schema: str
) -> None:
    """Staged rows and marks in a database of the output's own are the same job's, wherever its state is."""
    output = make_conninfo(**{**conninfo_to_dict(postgres_dsn), "dbname": f"{schema}_out"})
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(f"{schema}_out")))
    kafka = "kafka: {bootstrapServers: 'kafka:9092', topic: joined}"
    job_file.write_text(job_file.read_text().replace(kafka, f'postgres: {{table: joined, dsn: "{output}"}}'))
    job = load_job(job_file)
    with closing(PostgresStore(postgres_dsn, schema)) as store, closing(Outputs.of(job).sink(store)) as sink:
        sink.prepare(compile_job(job).output_schema())
    staged = "SELECT relname FROM pg_class WHERE relname LIKE 'out_apart_%' AND relkind = 'r'"
    with psycopg.connect(output) as connection:
        before_it = connection.execute(staged).fetchall()
    assert joinery("state", "move", job_file, "--to", elsewhere).code == 0
    deleted = joinery("state", "delete", job_file, "--yes")
    assert (deleted.code, deleted.err, deleted.lines[0]["deleted"]) == (0, "", True)
    with psycopg.connect(output) as connection:
        assert connection.execute(staged).fetchall() == before_it != []
    again = joinery("state", "delete", job_file, "--yes")
    assert (again.code, again.lines[0]["deleted"]) == (0, False)
    with psycopg.connect(output) as connection:
        assert connection.execute(staged).fetchall() == before_it, "nothing here knows any more that it was moved"
        assert "no state of the job was here, and it may continue elsewhere" in again.err
        connection.execute(again.err[again.err.index("DROP TABLE") :])
        assert connection.execute(staged).fetchall() == []


def test_a_table_in_the_same_database_would_stay_behind(
    joinery: Joinery, job_file: Path, before: JobRecord, elsewhere: str, postgres_dsn: str, schema: str
) -> None:
    job_file.write_text(
        job_file.read_text().replace("    kafka: {bootstrapServers: 'kafka:9092', topic: joined}\n", OUTPUT)
    )
    ended = joinery("state", "move", job_file, "--to", elsewhere)
    assert ended.code == 1
    assert "the table joined, which is in the state's database and would stay behind" in ended.err
    assert stored_record(postgres_dsn, schema) == before


def test_a_job_that_is_there_is_left_alone(
    joinery: Joinery, job_file: Path, before: JobRecord, elsewhere: str, postgres_dsn: str, schema: str
) -> None:
    store = PostgresStore(elsewhere, schema)
    theirs = store.acquire(JOB)
    store.close()
    for arguments in (["--dry-run"], []):
        ended = joinery("state", "move", job_file, "--to", elsewhere, *arguments)
        assert ended.code == 1
        assert f"There is state of a job {JOB} at the target already" in ended.err
    assert (stored_record(postgres_dsn, schema), stored_record(elsewhere, schema)) == (before, theirs)


def test_where_to_must_be_said_and_a_password_is_not_shown(
    joinery: Joinery, job_file: Path, before: JobRecord, postgres_dsn: str, schema: str
) -> None:
    assert "Give --to DSN, or set JOINERY_MOVE_DSN" in joinery("state", "move", job_file).err
    ended = joinery("state", "move", job_file, "--to", "postgresql://joe:hunter2@127.0.0.1:1/db")
    assert ended.code == 1
    assert "not available (host 127.0.0.1, port 1, database db)" in ended.err
    assert "hunter2" not in ended.err
    assert stored_record(postgres_dsn, schema) == before  # it was not marked as being moved
    assert "No move of job" in joinery("state", "move", job_file, "--stay").err
