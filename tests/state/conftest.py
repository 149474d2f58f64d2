from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import psycopg
import pytest

from joinery_runtime.state.embedded import embedded_postgres
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import StateStore

_numbers = count(1)


@pytest.fixture(scope="session")
def dsn(postgres_dsn: str) -> str:
    """A database of this worker's own, on a real Postgres."""
    return postgres_dsn


@pytest.fixture
def schema() -> str:
    """A schema that no other test uses."""
    return f"schema {next(_numbers)}"


@pytest.fixture
def job() -> str:
    """A job that no other test uses."""
    return f"tests/job-{next(_numbers)}"


@pytest.fixture
def postgres(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresStore(dsn, "shared by tests")
    yield store
    store.close()


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.services)])
def driver(request: pytest.FixtureRequest) -> Iterator[Callable[[], StateStore]]:
    """Opens one driver's view of the store; call it again for another driver's."""
    if request.param == "memory":
        shared = MemoryStore()
        yield lambda: shared
        return
    dsn = request.getfixturevalue("dsn")
    opened: list[PostgresStore] = []

    def connect() -> StateStore:
        opened.append(PostgresStore(dsn, "shared by tests"))
        return opened[-1]

    yield connect
    for store in opened:
        store.close()


@pytest.fixture
def store(driver: Callable[[], StateStore]) -> StateStore:
    return driver()


@pytest.fixture
def damage(store: StateStore, request: pytest.FixtureRequest) -> Callable[[str, str, bytes], None]:
    """Replaces the blob of a job's segment by other bytes, past the store."""

    def replaced(job: str, key: str, blob: bytes) -> None:
        if isinstance(store, MemoryStore):
            segments = store._jobs[job].segments
            segments[key] = replace(segments[key], blob=blob)
            return
        with psycopg.connect(request.getfixturevalue("dsn")) as connection:
            connection.execute(
                'UPDATE "shared by tests".state SET state_blob = %s WHERE (pipeline_name, group_key) = (%s, %s)',
                (blob, job, key.encode()),
            )

    return replaced


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of an embedded Postgres, to be copied: a new one takes a second."""
    folder = tmp_path_factory.mktemp("cluster")
    with embedded_postgres(folder):
        """It is there, and stops."""
    return folder / "data"
