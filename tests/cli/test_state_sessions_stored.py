"""`joinery state` of a job of sessions on a real Postgres: every command, on state that real epochs have left."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cli.commands import Joinery
from cli.session_jobs import REOPEN, epoch, resource, row, run_epochs
from joinery_runtime.core.table import blob
from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.segment import STATE_VERSION, encode
from joinery_runtime.job import Job, load_job
from joinery_runtime.state import migrations
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services


@pytest.fixture
def job_file(postgres_dsn: str, tmp_path: Path, schema: str) -> Path:
    """It writes into a Postgres table, upserted by the default key, and its state is in a schema of its own."""
    path = tmp_path / "job.yaml"
    stored = {"output": {"postgres": {"table": "out"}}, "stateStore": {"postgres": {"dsn": postgres_dsn}}}
    stored["stateStore"]["postgres"]["schema"] = schema
    path.write_text(yaml.safe_dump(resource(**REOPEN, **stored)))
    return path


@pytest.fixture
def job(job_file: Path) -> Job:
    return load_job(job_file)


@pytest.fixture
def ran(job: Job, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of rows; x is open, y has gone out in one between them. The last row completes nothing. Segments are
    stored as those with many rows are."""
    monkeypatch.setattr(blob, "FEW_ROWS", 0)
    run_epochs(job, store, epoch(row(100), row(80, "y")), epoch(row(105)))


def test_looking_at_it(joinery: Joinery, job_file: Path, ran: None) -> None:
    (shown,) = joinery("state", "show", job_file, "--key", "k=x").lines
    (session,) = shown["steps"][0]["rows"]
    assert (session["window_end"], session["aggregates"]["events"], session["emitted"]) == (105, 2, False)
    (statistics,) = joinery("state", "stats", job_file).lines
    assert (statistics["sessions"]["open"], statistics["sessions"]["gone_out"]) == (1, 1)
    listed = joinery("state", "ls", job_file).out
    assert "input clicks: watermark 1970-01-01T00:00:00.105Z" in listed
    assert "part sessions: closed up to 1970-01-01T00:00:00.070Z" in listed
    assert "part sessions.complete: closed up to 1970-01-01T00:00:00.090Z" in listed
    log = joinery("state", "epochs", job_file).lines
    assert [line["epoch"] for line in log] == list(range(1, statistics["epoch"] + 1))
    assert sum(line["result"]["rows_out"] for line in log) == 1


def test_going_back_names_the_key_that_rows_are_replaced_by(
    joinery: Joinery, job_file: Path, job: Job, store: PostgresStore, ran: None
) -> None:
    assert joinery("state", "savepoint", job_file, "here").code == 0
    before = joinery("state", "show", job_file, "--key", "k=x").lines
    run_epochs(job, store, epoch(row(107)), epoch(row(140, "z")))
    assert joinery("state", "show", job_file, "--key", "k=x").lines != before
    unconfirmed = joinery("state", "restore", job_file, "--savepoint", "here")
    assert "(rows of the same k, session_id are replaced)" in unconfirmed.out + unconfirmed.err
    assert joinery("state", "restore", job_file, "--savepoint", "here", "--yes").code == 0
    assert joinery("state", "show", job_file, "--key", "k=x").lines == before


def test_migrating_it(joinery: Joinery, job_file: Path, ran: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = joinery("state", "show", job_file, "--key", "k=x").lines
    counted = joinery("state", "stats", job_file).lines[0]["sessions"]
    monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", STATE_VERSION + 1)
    step = {STATE_VERSION: lambda stored: encode(from_blob(stored), compression=None)}
    monkeypatch.setattr(migrations, "MIGRATIONS", step)
    assert joinery("state", "show", job_file, "--key", "k=x").lines == before, "read as it is"
    (rehearsed,) = joinery("state", "migrate", job_file, "--dry-run").lines
    assert rehearsed["to_migrate"] == rehearsed["segments"] > 0
    assert joinery("state", "migrate", job_file).code == 0
    assert joinery("state", "show", job_file, "--key", "k=x").lines == before
    assert joinery("state", "stats", job_file).lines[0]["sessions"] == counted
    (checked,) = joinery("state", "check", job_file).lines
    assert (checked["fits"], checked["toMigrate"]) == (True, 0)


def test_a_job_that_does_not_fit(joinery: Joinery, job_file: Path, ran: None) -> None:
    text = job_file.read_text()
    job_file.write_text(text.replace("groupBy:\n  - k", "groupBy:\n  - v"))
    assert job_file.read_text() != text
    ended = joinery("state", "check", job_file)
    assert ended.code == 1
    assert "k" in ended.lines[0]["refused"][0]


def test_deleting_it(joinery: Joinery, job_file: Path, store: PostgresStore, ran: None) -> None:
    assert joinery("state", "delete", job_file, "--yes").code == 0
    assert store.record("s") is None


def test_segments_that_are_replaced_while_they_are_counted(
    joinery: Joinery, job_file: Path, store: PostgresStore, ran: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = joinery("state", "stats", job_file).lines[0]["sessions"]
    read, calls = PostgresStore.read_segments, []

    def read_late(self: PostgresStore, name: str, keys: list[str]) -> dict[str, bytes]:
        if not calls:
            record = store.acquire("s")
            store.migrate("s", record.generation, {STATE_VERSION: lambda stored: stored}, STATE_VERSION + 1)
            store.sweep("s", record.generation)
        calls.append(keys)
        return read(self, name, keys)

    monkeypatch.setattr(PostgresStore, "read_segments", read_late)
    monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", STATE_VERSION + 1)
    assert joinery("state", "stats", job_file).lines[0]["sessions"] == before
    assert len(calls) == 2
