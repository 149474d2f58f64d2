"""Services that the whole run shares, and how much hypothesis searches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from budget import examples
from joinery_devkit.kafka import KafkaBroker
from joinery_runtime.state.embedded import embedded_postgres

# The tests' own Kubernetes, for every folder of tests.
pytest_plugins = ["joinery_devkit.kubernetes.fixtures"]

# "ci" finds the same on every run; "dev" looks elsewhere each time. On a busy machine an example may be slow.
# tests/budget.py says how many examples there are.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.register_profile("dev", deadline=None, max_examples=examples(100))
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A real broker; each test makes topics of its own."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """A real Postgres; each test makes a schema of its own."""
    # Not in pytest's own folder: run by root, the server has another user, and every further pytest that starts on
    # this machine closes that folder to others.
    with (
        tempfile.TemporaryDirectory(prefix="joinery-postgres-") as directory,
        embedded_postgres(Path(directory)) as dsn,
    ):
        yield dsn


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is still at them when the others are done."""
    items.sort(key=lambda item: not item.path.name.startswith("test_kill"))
