"""A real broker, shared by the tests of this folder; each test makes its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joinery_devkit.kafka import KafkaBroker

# With the newer group protocol the broker says how often members hear of a rebalance (5 s by default).
PROMPT = {f"group.consumer.{limit}heartbeat.interval.ms": "500" for limit in ("min.", "")}


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(properties=PROMPT) as running:
        yield running
