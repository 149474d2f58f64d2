"""What a broker answers while it starts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import OffsetSpec

from joinery_runtime import kafka_errors
from joinery_runtime.errors import SourceUnavailable
from joinery_runtime.sources.base import PartitionRef
from joinery_runtime.sources.kafka_client import Cluster
from joinery_runtime.sources.kafka_metadata import KafkaMetadata

REF = PartitionRef("orders", "orders", 0)


class Answers(KafkaMetadata):
    """Each request has the next of these offsets, the last one for ever."""

    def __init__(self, *offsets: int) -> None:
        super().__init__(Cluster("orders", "orders", "127.0.0.1:1", {}))
        self.offsets_to_come = list(offsets)

    def ask(self, partitions: Any, spec: Any) -> Mapping[PartitionRef, Future[Any]]:
        offset = self.offsets_to_come[0]
        if len(self.offsets_to_come) > 1:
            del self.offsets_to_come[0]
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=offset))
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
