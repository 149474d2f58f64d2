"""Calls of the Kafka client that are tried again."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from joinery_runtime.connectors.kafka.target import repeat_call


def test_a_repeated_call_prints_nothing(capfd) -> None:
    """Standard output is for the JSON lines of `joinery run`."""
    trials = []

    def call() -> None:
        trials.append(1)
        if len(trials) < 3:
            raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE))

    repeat_call(call, lambda error: error.code() == KafkaError.COORDINATOR_NOT_AVAILABLE, 5)
    assert len(trials) == 3
    assert capfd.readouterr() == ("", "")


def test_another_error_is_not_repeated() -> None:
    def call() -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    with pytest.raises(KafkaException):
        repeat_call(call, lambda error: error.code() == KafkaError.COORDINATOR_NOT_AVAILABLE, 5)
