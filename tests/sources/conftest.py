"""What the tests of sources share; each makes its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.sources import kafka_record_clients
from joinery_runtime.sources.formats import json as json_format


@pytest.fixture(scope="session")
def broker(kafka_broker: KafkaAdmin) -> KafkaAdmin:
    return kafka_broker


@pytest.fixture(params=["in batches", "record by record"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to get records from Kafka: whoever asks for it runs with each."""
    if request.param == "record by record":
        monkeypatch.setattr(kafka_record_clients, "kernels", lambda name: None)
    return str(request.param)


@pytest.fixture(scope="module", params=["compiled", "judged"])
def json_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to read JSON: with the kernel from the first record on, and without a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_format, "_WORTHWHILE", 0)
        if request.param == "judged":
            patch.setattr(json_format, "kernels", lambda name: None)
        yield
