"""What the tests of sources share; each makes its own topics."""

from __future__ import annotations

import pytest

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.sources import kafka_clients


@pytest.fixture(scope="session")
def broker(kafka_broker: KafkaAdmin) -> KafkaAdmin:
    return kafka_broker


@pytest.fixture(params=["in batches", "record by record"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to get records from Kafka: whoever asks for it runs with each."""
    if request.param == "record by record":
        monkeypatch.setattr(kafka_clients, "kernels", lambda name: None)
    return str(request.param)
