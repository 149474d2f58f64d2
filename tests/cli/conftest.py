from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import Joinery, runner
from job.resources import edited
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.state.postgres import PostgresStore


@pytest.fixture
def joinery(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Joinery]:
    monkeypatch.setenv("COLUMNS", "200")  # help and usage errors are fitted to the terminal
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield runner(capsys)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A valid job with every field on a line of its own."""
    path = tmp_path / "job.yaml"
    path.write_text(edited())
    return path


@pytest.fixture
def schema(tmp_path: Path) -> str:
    """One of this test's own, in the Postgres that all share."""
    return tmp_path.name.replace("-", "_")


@pytest.fixture
def job(job_file: Path) -> StreamJoin:
    return load_job(job_file)


@pytest.fixture
def store(postgres_dsn: str, schema: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_dsn, schema)
    yield store
    store.close()
