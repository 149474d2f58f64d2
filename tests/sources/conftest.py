"""What the tests of sources share; each makes its own topics."""

from __future__ import annotations

import pytest

from joinery_devkit.kafka_admin import KafkaAdmin


@pytest.fixture(scope="session")
def broker(kafka_broker: KafkaAdmin) -> KafkaAdmin:
    return kafka_broker
