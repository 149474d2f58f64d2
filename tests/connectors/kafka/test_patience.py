"""How long Kafka output waits: `delivery.timeout.ms` counts from the last row that was taken, so that a quota slows the
job instead of ending it. Brokers, here a client's queue, and time are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.rows import attempt
from joinery_runtime.connectors.kafka.errors import LastError
from joinery_runtime.connectors.kafka.markers import EpochMarker
from joinery_runtime.connectors.kafka.producers import Disowned, OwningProducer, Producers
from joinery_runtime.connectors.kafka.record_producers import Patience
from joinery_runtime.connectors.kafka.records import Records, Texts
from joinery_runtime.connectors.kafka.sink import KafkaWriter
from joinery_runtime.connectors.kafka.target import DELIVERY_SECONDS, TRANSACTION_MS, KafkaTarget
from joinery_runtime.connectors.kafka.transactions import PartNames, PartWrite
from joinery_runtime.errors import OutputUnavailable, SinkError


class Queue:
    """A client with room for ten rows; each poll takes `poll_s` and has the next number of rows written."""

    def __init__(self, *written: int, poll_s: float = 50.0) -> None:
        self.now, self._rows, self._poll_s = 0.0, 0, poll_s
        self._written: Iterator[int] = iter(written)

    def __len__(self) -> int:
        return self._rows

    def enqueue(self, topic: str, records: Records, start: int) -> int:
        accepted = min(10 - self._rows, len(records) - start)
        self._rows += accepted
        return start + accepted

    def poll(self, seconds: float) -> None:
        if seconds:
            self.now += self._poll_s
            self._rows -= min(self._rows, next(self._written, 0))


def rows(count: int) -> Records:
    return Records(Texts.of_list([b"x"] * count))


def test_brokers_that_take_a_row_at_a_time_are_waited_for() -> None:
    slow: Any = Queue(*[1] * 40)
    patience = Patience(60.0, lambda: slow.now)
    assert patience.enqueue(slow, "topic", rows(40)) == 0
    assert patience.flush(slow) == 0
    assert slow.now == 40 * 50.0


def test_the_first_checks_for_deliveries_follow_closely() -> None:
    """Nothing wakes the wait for a delivery, so the few rows of a small epoch would wait for the next check."""

    class Waits(Queue):
        def poll(self, seconds: float) -> None:
            super().poll(seconds)
            self.seconds.append(seconds)

    slow: Any = Waits(*[0] * 7, 1, poll_s=0.0)
    slow.seconds = []
    Patience(60.0, lambda: slow.now).enqueue(slow, "topic", rows(1))
    slow.seconds.clear()
    assert Patience(60.0, lambda: slow.now).flush(slow) == 0
    assert slow.seconds == [0.001, 0.002, 0.003, 0.004, 0.005, 0.005, 0.005, 0.005]


def test_brokers_that_take_nothing_any_more_are_not() -> None:
    stuck: Any = Queue(1, 1, 0, 0)
    patience = Patience(60.0, lambda: stuck.now)
    assert patience.enqueue(stuck, "topic", rows(40)) == 28
    assert stuck.now == 4 * 50.0
    assert Patience(60.0, lambda: stuck.now).flush(stuck) == 10


@pytest.mark.parametrize("batch", [15, 40, 10_000])
def test_the_error_counts_each_row_that_is_not_written_once(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Of 40 rows two were taken; ten wait in the client's queue, and the others had no room in it."""
    monkeypatch.setattr("joinery_runtime.connectors.kafka.record_producers._BATCH", batch)
    stuck: Any = Queue(1, 1, 0, 0)
    stuck.failures = []
    client: Any = SimpleNamespace(producer=stuck, errors=LastError())
    monkeypatch.setattr(
        "joinery_runtime.connectors.kafka.sink.Patience", lambda seconds: Patience(seconds, lambda: stuck.now)
    )
    writer = KafkaWriter(KafkaTarget("joined", "kafka:9092", properties={"delivery.timeout.ms": "60000"}))
    with pytest.raises(OutputUnavailable, match="joined: 38 rows were not written, and none was for 60 s"):
        writer._send_rows(client, pa.table({"n": range(40)}))


@pytest.mark.parametrize(
    ("properties", "delivery", "transaction"),
    [
        ({}, DELIVERY_SECONDS, TRANSACTION_MS),
        ({"delivery.timeout.ms": "30000"}, 30.0, TRANSACTION_MS),
        ({"message.timeout.ms": "30000"}, 30.0, TRANSACTION_MS),
        ({"delivery.timeout.ms": "1800000"}, 1800.0, 1_800_000),
        ({"delivery.timeout.ms": "30000", "transaction.timeout.ms": "60000"}, 30.0, 60_000),
    ],
)
def test_the_job_s_timeouts(properties: dict[str, str], delivery: float, transaction: int) -> None:
    target = KafkaTarget("joined", "kafka:9092", properties=properties)
    assert (target.delivery_seconds, target.transaction_ms) == (delivery, transaction)
    settings = target.producer_settings({})
    assert settings["message.timeout.ms"] == transaction
    assert "delivery.timeout.ms" not in settings


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        (
            {"delivery.timeout.ms": "90000", "transaction.timeout.ms": "60000"},
            "delivery.timeout.ms is 90000, and transaction.timeout.ms is 60000.*Set transaction.timeout.ms",
        ),
        ({"delivery.timeout.ms": "1", "message.timeout.ms": "1"}, "Name one of them"),
        ({"delivery.timeout.ms": "2m"}, "delivery.timeout.ms: 2m.*in milliseconds"),
        ({"transaction.timeout.ms": "0"}, "transaction.timeout.ms: 0.*above 0"),
    ],
)
def test_timeouts_that_do_not_go_together_are_refused_at_once(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(SinkError, match=complaint):
        KafkaTarget("joined", "kafka:9092", properties=properties)


class Client:
    """In the place of librdkafka's producer: the broker has ended the transaction when it is to be committed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.failures = settings, list[KafkaError]()

    def enqueue(self, topic: str, records: Records, start: int) -> int:
        return len(records)

    def __len__(self) -> int:
        return 0

    def commit_transaction(self, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError.INVALID_PRODUCER_EPOCH))

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_a_job_may_set_how_soon_a_client_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to longer than the longest wait that a producer has by itself."""
    monkeypatch.setattr("joinery_runtime.connectors.kafka.record_producers.BatchProducer", Client)
    target = KafkaTarget("joined", "127.0.0.1:1", properties={"reconnect.backoff.ms": "2000"})
    client: Any = OwningProducer(target, "job-1")._producer
    Producer(client.settings)


@pytest.mark.parametrize("seconds", [10, 61])
def test_a_transaction_that_took_too_long_is_no_other_attempt_s_work(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.record_producers.BatchProducer", Client)
    target = KafkaTarget("joined", "kafka:9092", properties={"transaction.timeout.ms": "60000"})
    producer = OwningProducer(target, "job-1")
    producer.begin()
    producer.send("joined", [rows(1)], "job-0", EpochMarker(1, "life", 1))
    producer._begun_at -= seconds
    with pytest.raises((Disowned, SinkError)) as caught:
        producer.commit()
    assert isinstance(caught.value, Disowned) == (seconds < 60)
    if seconds > 60:
        assert not isinstance(caught.value, OutputUnavailable)
        assert "Raise transaction.timeout.ms" in str(caught.value)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Clients whose `send_offset` does not come back while a test runs. Yields what leaves little patience with them,
    to be called once they are made."""
    ended = threading.Event()

    class Hanging(Client):
        def send_offset(self, *_: object) -> None:
            ended.wait()

    monkeypatch.setattr("joinery_runtime.connectors.kafka.record_producers.BatchProducer", Hanging)
    yield lambda: monkeypatch.setattr("joinery_runtime.connectors.kafka.producers._CALL_SECONDS", 0.05)
    ended.set()


def test_a_call_that_ignores_its_time_limit_is_given_up_soon_after_it(hanging: Callable[[], None]) -> None:
    """As librdkafka's calls do whose broker goes away: the patience for rows, an hour here, does not count for them."""
    producer = OwningProducer(KafkaTarget("joined", "kafka:9092", properties={"delivery.timeout.ms": "3600000"}), "j-1")
    producer.begin()
    hanging()
    with pytest.raises(OutputUnavailable, match="the Kafka client does not come back"):
        producer.send("joined", [rows(1)], "j-0", EpochMarker(1, "life", 1))


def test_after_a_call_that_was_given_up_no_client_of_before_is_used(hanging: Callable[[], None]) -> None:
    """Each of them would have to be given up too, one after the other."""
    target, names, here = KafkaTarget("joined", "kafka:9092"), PartNames("j"), Producers()
    for number in range(3):
        here.put(target, "j", OwningProducer(target, f"j-{number}"))
    hanging()
    with pytest.raises(OutputUnavailable, match=r"transactional id j-2; a call has taken longer"):
        PartWrite(target, names, attempt(), pa.table({"n": [1]}), here).run()
    assert here.take(target, "j") is None
