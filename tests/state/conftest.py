from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

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
