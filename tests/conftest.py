"""Services that the whole run shares, and how much hypothesis searches."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from joinery_devkit.kafka import KafkaBroker
from joinery_runtime.state.embedded import embedded_postgres

# "ci" finds the same on every run; "dev" looks elsewhere each time. On a busy machine an example may be slow.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A real broker; each test makes topics of its own."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Postgres; each test makes a schema of its own."""
    with embedded_postgres(tmp_path_factory.mktemp("postgres-shared")) as dsn:
        yield dsn
