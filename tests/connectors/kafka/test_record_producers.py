"""Both producers, librdkafka's own and Python's client, do the same on a real broker (docs/decisions/0061)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.connectors.kafka import librdkafka, record_producers
from joinery_runtime.connectors.kafka.errors import LastError
from joinery_runtime.connectors.kafka.markers import EpochMarker, EpochMarkerReader
from joinery_runtime.connectors.kafka.record_producers import (
    BatchProducer,
    MessageProducer,
    Patience,
    RecordProducer,
    open_producer,
)
from joinery_runtime.connectors.kafka.records import Records, Texts
from joinery_runtime.connectors.kafka.target import KafkaTarget

_names = (f"producers-{number}" for number in count())
PATIENCE = 60.0
NOBODY = "127.0.0.1:1"
services = pytest.mark.services
Opener = Callable[..., RecordProducer]


@pytest.fixture(params=[BatchProducer, MessageProducer])
def kind(request: pytest.FixtureRequest) -> type[Any]:
    producer_type: type[Any] = request.param
    return producer_type


@pytest.fixture
def topic(broker: KafkaAdmin) -> str:
    name = next(_names)
    broker.create_topic(name, 3)
    return name


@pytest.fixture
def opened(broker: KafkaAdmin, topic: str, kind: type[Any]) -> Opener:
    """Opens a producer of this kind for the topic, with more properties or settings."""

    def opener(**more: Any) -> RecordProducer:
        target = KafkaTarget(topic, broker.bootstrap)
        own = {name.replace("_", "."): value for name, value in more.items()}
        if "transactional.id" in own:
            own["transaction.timeout.ms"] = target.transaction_ms
        settings = target.producer_settings({}) | own
        producer: RecordProducer = target.connect(kind, settings, LastError())
        return producer

    return opener


def send(producer: RecordProducer, topic: str, records: Records) -> None:
    patience = Patience(PATIENCE)
    assert patience.enqueue(producer, topic, records) == 0
    assert patience.flush(producer) == 0


def received(broker: KafkaAdmin, topic: str, partitions: int = 3) -> list[list[tuple[bytes | None, bytes | None]]]:
    """Key and value of committed records, by partition."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "test", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    records_by_partition: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(partitions)]
    ended = 0
    while ended < partitions:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
            else:
                records_by_partition[message.partition() or 0].append((message.key(), message.value()))
    consumer.close()
    return records_by_partition


def keyed(*pairs: tuple[str | None, bytes]) -> Records:
    keys = pa.array([key for key, _ in pairs], pa.string())
    return Records(Texts.of_list([value for _, value in pairs]), Texts.of_column(keys))


@services
def test_keys_and_values_arrive_as_they_are(broker: KafkaAdmin, topic: str, opened: Opener) -> None:
    pairs = [
        ("a", b"1"),
        (None, b"no key"),
        ("", b"an empty key"),
        ("é\0\n", b"a\0b\n"),
        ("b", b""),
        ("b", b"x" * 99_999),
    ]
    send(opened(), topic, keyed(*pairs))
    expected = [(None if key is None else key.encode(), value) for key, value in pairs]
    assert sorted(pair for part in received(broker, topic) for pair in part if pair[0]) == sorted(
        pair for pair in expected if pair[0]
    )
    assert sorted(pair[1] or b"" for part in received(broker, topic) for pair in part if not pair[0]) == [
        b"an empty key",
        b"no key",
    ]


@services
def test_keys_that_are_all_empty_are_keys(broker: KafkaAdmin, topic: str, opened: Opener) -> None:
    send(opened(), topic, keyed(("", b"1"), ("", b"2")))
    # The partitioner scatters them.
    assert sorted(pair for part in received(broker, topic) for pair in part) == [(b"", b"1"), (b"", b"2")]


@services
def test_both_choose_the_partition_that_the_job_s_partitioner_says(broker: KafkaAdmin) -> None:
    records, received_by_kind = keyed(*((f"k{number % 97}", b"%d" % number) for number in range(1_000))), []
    for kind in (BatchProducer, MessageProducer):
        topic = next(_names)
        broker.create_topic(topic, 3)
        target = KafkaTarget(topic, broker.bootstrap, properties={"partitioner": "murmur2_random"})
        send(target.connect(kind, target.producer_settings({}), LastError()), topic, records)
        received_by_kind.append(received(broker, topic))
    assert received_by_kind[0] == received_by_kind[1]
    assert all(received_by_kind[0])


@services
def test_records_stay_in_order_when_the_client_s_queue_is_full(broker: KafkaAdmin, topic: str, opened: Opener) -> None:
    records = keyed(*(("k", b"%d" % number) for number in range(25_000)))
    send(opened(queue_buffering_max_messages=700), topic, records)
    (part,) = (part for part in received(broker, topic) if part)
    assert [int(value or b"-1") for _, value in part] == list(range(25_000))


@services
def test_a_record_that_the_client_refuses(topic: str, opened: Opener) -> None:
    producer = opened(message_max_bytes=2_000)
    with pytest.raises(KafkaException) as caught:
        producer.enqueue(topic, keyed(("a", b"1"), ("b", b"x" * 5_000), ("c", b"3")), 0)
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert Patience(PATIENCE).flush(producer) == 0


@services
def test_records_that_the_broker_refuses_are_failures(broker: KafkaAdmin, kind: type[Any]) -> None:
    topic = next(_names)
    broker.create_topic(topic, config={"max.message.bytes": "2000"})
    target = KafkaTarget(topic, broker.bootstrap)
    producer = target.connect(kind, target.producer_settings({}), LastError())
    send(producer, topic, keyed(("a", b"1")))
    assert producer.failures == []
    send(producer, topic, keyed(("b", b"x" * 5_000)))
    assert [(error.code(), error.str()) for error in producer.failures] == [
        (KafkaError.MSG_SIZE_TOO_LARGE, "Broker: Message size too large")
    ]


@services
def test_a_transaction_shows_its_records_and_its_marker_or_nothing(
    broker: KafkaAdmin, topic: str, opened: Opener
) -> None:
    target, group = KafkaTarget(topic, broker.bootstrap), f"{topic}-group"
    producer = opened(transactional_id=topic)
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    send(producer, topic, keyed(("k", b"aborted")))
    producer.send_offset(EpochMarker(1, "life", 1).committed(topic), group, PATIENCE)
    producer.abort_transaction(PATIENCE)
    assert EpochMarkerReader(target).newest(group) is None
    producer.begin_transaction()
    send(producer, topic, keyed(("k", b"committed")))
    marker = EpochMarker(2, "life 'é'", 7)
    producer.send_offset(marker.committed(topic), group, PATIENCE)
    producer.commit_transaction(PATIENCE)
    assert EpochMarkerReader(target).newest(group) == marker
    assert [pair for part in received(broker, topic) for pair in part] == [(b"k", b"committed")]


@services
def test_what_is_purged_is_a_failure_and_does_not_arrive(broker: KafkaAdmin, topic: str, opened: Opener) -> None:
    producer = opened(transactional_id=topic, linger_ms=100_000)
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    assert producer.enqueue(topic, keyed(("a", b"1"), ("b", b"2")), 0) == 2
    assert len(producer) == 2
    producer.purge()
    assert Patience(PATIENCE).flush(producer) == 0
    assert {error.code() for error in producer.failures} == {KafkaError._PURGE_QUEUE}
    producer.abort_transaction(PATIENCE)
    assert received(broker, topic) == [[], [], []]


@services
def test_who_has_lost_its_id_is_told_by_the_commit(topic: str, opened: Opener) -> None:
    former, next_one = opened(transactional_id=topic), opened(transactional_id=topic)
    former.init_transactions(PATIENCE)
    former.begin_transaction()
    assert former.enqueue(topic, keyed(("a", b"1")), 0) == 1
    assert Patience(PATIENCE).flush(former) == 0
    next_one.init_transactions(PATIENCE)
    with pytest.raises(KafkaException) as caught:
        former.commit_transaction(PATIENCE)
    error = caught.value.args[0]
    assert error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
    assert error.fatal()
    assert not error.retriable()


def test_a_call_out_of_turn_is_an_error_of_python_s_client_too(kind: type[Any]) -> None:
    producer: RecordProducer = kind(
        {"bootstrap.servers": NOBODY, "transactional.id": "x", "error_cb": print, "log_level": 0}
    )
    with pytest.raises(KafkaException) as caught:
        producer.begin_transaction()
    assert caught.value.args[0].code() == KafkaError._STATE


def test_nobody_answers(kind: type[Any]) -> None:
    settings = {"bootstrap.servers": NOBODY, "transactional.id": "x", "error_cb": lambda _: None, "log_level": 0}
    producer: RecordProducer = kind({**settings, "logger": logging.getLogger("silent")})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(0.2)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert caught.value.args[0].retriable()
    with pytest.raises(KafkaException):
        producer.meet_brokers("t", 0.1)


@pytest.fixture
def producer_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log of a new process."""
    librdkafka.say_once.cache_clear()
    librdkafka.library.cache_clear()
    yield caplog
    librdkafka.say_once.cache_clear()
    librdkafka.library.cache_clear()


def opened_for(**about: Any) -> type[Any]:
    target = KafkaTarget("joined", NOBODY, **about)
    return type(open_producer(target, target.producer_settings({}), LastError()))


def test_batches_are_the_usual_way_and_records_with_headers_go_one_by_one(
    producer_log: pytest.LogCaptureFixture,
) -> None:
    assert (opened_for(), opened_for(headers={"x": "column"})) == (BatchProducer, MessageProducer)
    assert producer_log.text == ""


def test_without_the_library_records_go_by_python_s_client_which_is_said_once(
    producer_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("other", 1))
    assert [opened_for(), opened_for()] == [MessageProducer, MessageProducer]
    assert [record.message for record in producer_log.records] == [
        f"Rows are written to Kafka record by record, which takes more time: version "
        f"{librdkafka_version():#x} of librdkafka is not known"
    ]


def librdkafka_version() -> int:
    return int(confluent_kafka.cimpl.libversion()[1])


def test_the_struct_is_the_one_that_rdkafka_h_describes() -> None:
    """err, rkt, partition, payload, len, key, key_len, offset, _private: nine fields in words of eight bytes."""
    assert record_producers._MESSAGE.itemsize == 9 * np.dtype(np.uint64).itemsize
