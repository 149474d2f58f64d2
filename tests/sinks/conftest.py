"""Real servers, shared by the tests of this folder; each test makes its own topics and tables."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from joinery_devkit.kafka import KafkaBroker
from joinery_runtime.state.embedded import embedded_postgres


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


@pytest.fixture(scope="session")
def dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_postgres(tmp_path_factory.mktemp("postgres")) as address:
        yield address


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    """Stands for the store's connection."""
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened
