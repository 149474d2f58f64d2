"""What a broker answers while it starts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from joinery_runtime.connectors.kafka import errors as kafka_errors
from joinery_runtime.connectors.kafka.metadata import KafkaMetadata
from joinery_runtime.connectors.kafka.settings import Cluster
from joinery_runtime.errors import SourceUnavailable
from joinery_runtime.formats.batch import PartitionRef

REF = PartitionRef("orders", "orders", 0)


class Answers(KafkaMetadata):
    """Each request has the next of these offsets or errors, the last one for ever."""

    def __init__(self, *answers: int | KafkaError) -> None:
        super().__init__(Cluster("orders", "orders", "127.0.0.1:1", {}))
        self.to_come = list(answers)

    def ask(self, partitions: Any, spec: Any) -> Mapping[PartitionRef, Future[Any]]:
        offset_or_error = self.to_come[0]
        if len(self.to_come) > 1:
            del self.to_come[0]
        answer: Future[Any] = Future()
        if isinstance(offset_or_error, KafkaError):
            answer.set_exception(KafkaException(offset_or_error))
        else:
            answer.set_result(SimpleNamespace(offset=offset_or_error))
        return {REF: answer}


def test_no_offset_without_an_error_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be below what was read: the log would seem to be truncated, which stops a job for good."""
    monkeypatch.setattr(kafka_errors, "RETRY_SECONDS", 0.0)
    assert Answers(-1001, -1001, 7).offsets([REF], OffsetSpec.latest()) == [{REF: 7}]
    assert Answers(-1).offsets([REF], OffsetSpec.for_timestamp(5)) == [{REF: -1}], "no record is as late as that"


def test_a_broker_that_goes_on_like_this_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_errors, "SETTLE_SECONDS", 0.0)
    with pytest.raises(SourceUnavailable, match="the broker answered -1001"):
        Answers(-1001).offsets([REF], OffsetSpec.latest())


def test_a_partition_of_which_the_client_knows_no_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the moment when its broker dies: a job that took it for a mistake in its file would end."""
    no_leader = KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")
    monkeypatch.setattr(kafka_errors, "RETRY_SECONDS", 0.0)
    assert Answers(no_leader, 7).offsets([REF], OffsetSpec.latest()) == [{REF: 7}]
    monkeypatch.setattr(kafka_errors, "SETTLE_SECONDS", 0.0)
    with pytest.raises(SourceUnavailable, match="No leaders found"):
        Answers(no_leader).offsets([REF], OffsetSpec.latest())
