"""Both ways to get records from Kafka: they see the same, and which one is taken."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import numpy as np
import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.kafka.kafka_bench import eventually, kafka_input, ref, send, unique
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer
from joinery_runtime.connectors.inputs import reader_for
from joinery_runtime.connectors.kafka import librdkafka
from joinery_runtime.connectors.kafka import record_clients as kafka_record_clients
from joinery_runtime.connectors.kafka.record_clients import (
    BatchClient,
    ConsumerEvent,
    MessageClient,
    RecordClient,
    open_client,
)
from joinery_runtime.connectors.kafka.settings import Cluster, LoggedErrors, consumer_settings
from joinery_runtime.connectors.source import Range
from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.formats.batch import RawBatch

services = pytest.mark.services
NOBODY = "127.0.0.1:1"
Row = tuple[str, int, int, bytes | None, bytes | None, int]  # topic, partition, offset, key, value, timestamp


def client_of(bootstrap: str, errors: LoggedErrors | None = None, **properties: str) -> RecordClient:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    kafka = kafka_input(bootstrap, "any", properties=named).kafka
    assert kafka is not None
    cluster = Cluster.of("in", kafka)
    return open_client(cluster, consumer_settings(cluster, errors or LoggedErrors(), 4), keyed=True)


@pytest.fixture
def client(broker: KafkaAdmin, way: str) -> Iterator[RecordClient]:
    with closing(client_of(broker.bootstrap)) as opened:
        assert isinstance(opened, BatchClient if way == "in batches" else MessageClient)
        yield opened


@pytest.fixture
def topic(broker: KafkaAdmin) -> str:
    name = unique("clients")
    broker.create_topic(name, 2)
    return name


def rows_of(batch: RawBatch) -> list[Row]:
    assert batch.keys is not None
    assert batch.timestamps is not None
    batch.values.validate(full=True)
    batch.keys.validate(full=True)
    partition, offsets = batch.partition, batch.offsets.tolist()
    stamps = batch.timestamps(np.arange(len(offsets))).tolist()
    columns = zip(offsets, batch.keys.to_pylist(), batch.values.to_pylist(), stamps, strict=True)
    return [(partition.topic, partition.partition, *column) for column in columns]


def fetched(
    client: RecordClient, until: Callable[[list[RawBatch], list[ConsumerEvent]], bool]
) -> tuple[list[RawBatch], list[ConsumerEvent]]:
    batches: list[RawBatch] = []
    events: list[ConsumerEvent] = []
    for _ in range(600):
        more, news = client.fetch(1_000, 0.05)
        batches += more
        events += news
        if until(batches, events):
            return batches, events
    raise AssertionError((batches, events))


def ends(count: int) -> Callable[[list[RawBatch], list[ConsumerEvent]], bool]:
    return lambda _, events: sum(event.error.code() == KafkaError._PARTITION_EOF for event in events) >= count


# --- what both see ------------------------------------------------------------------------------------------------


@services
def test_keys_values_nulls_and_timestamps_of_several_topics(broker: KafkaAdmin, client: RecordClient) -> None:
    topics = [unique("clients"), unique("clients")]
    producer = ordered_producer(broker.bootstrap)
    sent: list[Row] = []
    for name in topics:
        broker.create_topic(name, 2)
        for number in range(40):
            partition, offset = number % 2, number // 2
            key = (None, b"", b"k%d" % number)[number % 3]
            value = (b"v" * number, None, b"", "\N{SNOWMAN}".encode())[number % 4]
            producer.produce(name, value, key=key, partition=partition, timestamp=1_000 + number)
            sent.append((name, partition, offset, key, value, 1_000 + number))
    assert producer.flush(30) == 0
    client.assign({ref(name, partition): 0 for name in topics for partition in (0, 1)})
    batches, events = fetched(client, ends(4))
    assert sorted(row for batch in batches for row in rows_of(batch)) == sorted(sent)
    assert {batch.partition.input for batch in batches} == {"in"}
    reached_ends = {(event.topic, event.partition, event.offset) for event in events}
    assert reached_ends == {(name, partition, 20) for name in topics for partition in (0, 1)}


@services
def test_headers_are_read_where_the_input_names_them(broker: KafkaAdmin, topic: str, way: str) -> None:
    producer = ordered_producer(broker.bootstrap)
    for headers in ([("a", b"1"), ("b", b"2"), ("a", b"3")], None, [("a", None), ("b", b"")]):
        producer.produce(topic, b"v", partition=0, headers=headers)
    assert producer.flush(30) == 0
    schema = [
        {"name": "ts", "type": "timestamp"},
        *({"name": n, "type": "string", "from": f"headers.{n}"} for n in "ab"),
    ]
    side = kafka_input(broker.bootstrap, topic)
    side = type(side).model_validate({**side.model_dump(by_alias=True, exclude_none=True), "schema": schema})
    with closing(reader_for(side)) as reader:
        (batch,) = reader.read(Range(ref(topic), 0, 3))
    assert {name: column.to_pylist() for name, column in batch.headers.items()} == {
        "a": [b"3", None, None],
        "b": [b"2", None, b""],
    }
    assert batch.keys is None


@services
def test_partitions_are_fetched_from_where_they_are_assigned_and_only_while_they_are(
    broker: KafkaAdmin, topic: str, client: RecordClient
) -> None:
    send(broker.bootstrap, topic, [b"0", b"1", b"2"])
    client.assign({ref(topic, 0): 2, ref(topic, 1): 0})
    batches, _ = fetched(client, ends(2))
    assert [row[2:] for batch in batches for row in rows_of(batch)] == [(2, None, b"2", 1)]
    client.unassign([ref(topic, 0)])
    client.assign({ref(topic, 0): 1})
    batches, _ = fetched(client, ends(1))
    assert [row[2] for batch in batches for row in rows_of(batch)] == [1, 2]
    assert client.watermarks(ref(topic, 0), 30) == (0, 3)


@services
def test_errors_of_partitions(broker: KafkaAdmin, topic: str, way: str) -> None:
    errors = LoggedErrors()
    with closing(client_of(broker.bootstrap, errors, topic_metadata_propagation_max_ms="100")) as opened:
        opened.assign({ref(topic, 0): 7, ref("nowhere", 0): 0})
        _, (event,) = fetched(opened, lambda _, events: bool(events) and "nowhere" in str(errors))
        assert (event.topic, event.partition, event.offset) == (topic, 0, 7)
        assert (event.error.code(), event.error.retriable()) == (KafkaError._AUTO_OFFSET_RESET, False)
        assert "fetch failed due to requested offset not available on the broker" in event.error.str()
        assert str(errors) == "nowhere [0]: topic does not exist (Broker: Unknown topic or partition)"
        with pytest.raises(KafkaException, match="Failed to get watermark offsets: ") as caught:
            opened.watermarks(ref("nowhere", 0), 0.5)
    expected = {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError._TIMED_OUT}
    assert caught.value.args[0].code() in expected


def test_what_it_meets_by_the_way_is_told(way: str) -> None:
    errors = LoggedErrors()
    with closing(client_of(NOBODY, errors)) as opened:
        opened.assign({ref("any"): 0})
        batches, _ = fetched(opened, lambda *_: "Connection refused" in str(errors))
    assert batches == []


def test_a_property_that_is_not_known(way: str) -> None:
    with pytest.raises(SourceError, match=r"kafka.properties are not valid: No such configuration property: \"no.such"):
        client_of(NOBODY, no_such_name="true")
    with pytest.raises(SourceError, match=r"kafka.properties are not valid: .*security.protocol"):
        client_of(NOBODY, security_protocol="none")


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    """A broker that can be cut off, and that wants to know who reads."""
    with KafkaBroker(proxied=True, secure=True) as running:
        yield running


@services
def test_a_secure_broker(own_broker: KafkaBroker, way: str) -> None:
    topic = unique("clients")
    own_broker.create_topic(topic)
    send(own_broker.bootstrap, topic, [b"a"])
    access = own_broker.secure_access
    properties = {**access.plain, **access.secret}
    with closing(reader_for(kafka_input(access.bootstrap, topic, properties=properties))) as reader:
        assert [batch.values.to_pylist() for batch in reader.read(Range(ref(topic), 0, 1))] == [[b"a"]]
    refused = kafka_input(access.bootstrap, topic, properties={**properties, "sasl.password": "wrong"})
    with (
        closing(reader_for(refused)) as reader,
        pytest.raises(SourceError, match=f"access to topic {topic} is denied"),
    ):
        list(reader.read(Range(ref(topic), 0, 1)))


@services
def test_a_broker_that_goes_away_and_comes_back(
    own_broker: KafkaBroker, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("clients")
    own_broker.create_topic(topic)
    send(own_broker.bootstrap, topic, [b"a"])
    with closing(reader_for(kafka_input(own_broker.proxied_bootstrap, topic))) as reader:
        assert [batch.values.to_pylist() for batch in reader.read(Range(ref(topic), 0, 1))] == [[b"a"]]
        monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._STALLED_SECONDS", 2.0)
        own_broker.proxies[0].cut()
        send(own_broker.bootstrap, topic, [b"b"])
        with pytest.raises(SourceUnavailable):
            list(reader.read(Range(ref(topic), 1, 2)))
        own_broker.proxies[0].restore()
        monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._STALLED_SECONDS", 30.0)
        assert [batch.values.to_pylist() for batch in reader.read(Range(ref(topic), 1, 2))] == [[b"b"]]


@services
def test_a_reader_per_thread(broker: KafkaAdmin, topic: str, way: str) -> None:
    """As in a process whose threads read partitions of their own."""
    records = 3_000
    for partition in (0, 1):
        send(broker.bootstrap, topic, [b"%d-%d" % (partition, n) for n in range(records)], partition)

    def read(partition: int) -> list[bytes]:
        with closing(reader_for(kafka_input(broker.bootstrap, topic))) as reader:
            ranges = [Range(ref(topic, partition), start, start + 500) for start in range(0, records, 500)]
            return [
                value
                for planned_range in ranges
                for batch in reader.read(planned_range)
                for value in batch.values.to_pylist()
            ]

    with ThreadPoolExecutor(4) as threads:
        values_by_reader = list(threads.map(read, [0, 1, 0, 1]))
    assert values_by_reader == [[b"%d-%d" % (partition, n) for n in range(records)] for partition in (0, 1, 0, 1)]


def test_a_client_that_nobody_has_any_more_ends_its_threads(way: str) -> None:
    process = psutil.Process()
    gc.collect()  # clients of other tests, which a caught error may have kept
    before = {thread.id for thread in process.threads()}
    opened = client_of(NOBODY)
    its = {thread.id for thread in process.threads()} - before
    assert its
    del opened
    gc.collect()
    eventually(lambda: not its & {thread.id for thread in process.threads()})


# --- batches alone ------------------------------------------------------------------------------------------------


@services
def test_a_batch_is_no_larger_than_arrow_can_address(
    broker: KafkaAdmin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_record_clients, "_MOST_BYTES", 10)
    values = [b"x" * size for size in (4, 6, 1, 30, 0, 10, 9)]
    send(broker.bootstrap, topic, values)
    with closing(client_of(broker.bootstrap)) as opened:
        opened.assign({ref(topic): 0})
        batches, _ = fetched(opened, ends(1))
    assert [value for batch in batches for value in batch.values.to_pylist()] == values
    assert all(batch.values.nbytes < 10 + 8 * 4 or len(batch.offsets) == 1 for batch in batches)
    assert max(len(batch.offsets) for batch in batches) <= 2


@services
def test_messages_are_given_back_whatever_happens(broker: KafkaAdmin, topic: str) -> None:
    send(broker.bootstrap, topic, [b"a"] * 5)
    with closing(client_of(broker.bootstrap)) as opened:
        assert isinstance(opened, BatchClient)
        real, given_back = opened._kernel, []

        def describe(*_: Any) -> int:
            raise MemoryError

        def release(messages: np.ndarray, count: int, destroy: int) -> None:
            given_back.append(count)
            real.release(messages, count, destroy)

        opened._kernel = SimpleNamespace(describe=describe, release=release)  # type: ignore[assignment]
        opened.assign({ref(topic): 0})
        with pytest.raises(MemoryError):
            fetched(opened, ends(1))
    assert given_back[-1] > 0


# --- which one is taken -------------------------------------------------------------------------------------------


@pytest.fixture
def client_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log of a new process."""
    librdkafka.say_once.cache_clear()
    librdkafka.library.cache_clear()
    with caplog.at_level(logging.INFO, "joinery.kafka"):
        yield caplog
    librdkafka.say_once.cache_clear()
    librdkafka.library.cache_clear()


def logged_choices(client_log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.message)
        for record in client_log.records
        if record.message.startswith("Kafka is read")
    ]


def kind(**properties: str) -> type[RecordClient]:
    with closing(client_of(NOBODY, **properties)) as opened:
        return type(opened)


def test_batches_are_the_usual_way_which_is_said_once(client_log: pytest.LogCaptureFixture) -> None:
    assert [kind(), kind()] == [BatchClient, BatchClient]
    version = confluent_kafka.libversion()[0]
    assert logged_choices(client_log) == [("INFO", f"Kafka is read in batches, with librdkafka {version}")]


def test_without_its_kernel_it_is_read_record_by_record(
    client_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_record_clients, "kernels", lambda _: None)
    assert [kind(), kind()] == [MessageClient, MessageClient]
    line = "Kafka is read record by record, which takes more time: its kernel is missing"
    assert logged_choices(client_log) == [("WARNING", line)]


@pytest.mark.parametrize("version", [0x01090200, 0x03000000])
def test_a_library_of_an_unknown_version(
    client_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setitem(librdkafka._FUNCTIONS, "rd_kafka_version", (lambda *_: version,))
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("other", version))
    assert kind() is MessageClient
    assert f"version {version:#x} of librdkafka is not known" in client_log.text


def test_a_library_that_cannot_be_called(
    client_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(confluent_kafka.cimpl, "__file__", str(tmp_path / "none.so"))
    assert kind() is MessageClient
    assert "confluent-kafka's library cannot be called: " in client_log.text


def test_a_library_without_a_function(client_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(librdkafka._FUNCTIONS, "rd_kafka_of_tomorrow", (None,))
    assert kind() is MessageClient
    assert "rd_kafka_of_tomorrow" in client_log.text
