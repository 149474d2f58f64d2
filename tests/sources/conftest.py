"""A real broker, shared by the tests of this folder; each test makes its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joinery_devkit.kafka import KafkaBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running
