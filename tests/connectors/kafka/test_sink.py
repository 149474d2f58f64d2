"""The Kafka sink against a real broker."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from itertools import count

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from connectors.rows import attempt
from formats.registry import registry
from joinery_runtime.connectors.kafka import record_producers
from joinery_runtime.connectors.kafka import sink as kafka
from joinery_runtime.connectors.kafka.librdkafka import UnknownLibrary
from joinery_runtime.connectors.kafka.record_producers import Patience
from joinery_runtime.connectors.kafka.sink import KafkaSink
from joinery_runtime.connectors.kafka.target import KafkaTarget
from joinery_runtime.connectors.kafka.transactions import KafkaTransactionsSink, PartNames
from joinery_runtime.errors import OutputUnavailable, SinkError
from joinery_runtime.formats.avro.encode import AvroOutput

pytestmark = pytest.mark.services
_names = (f"sink-{number}" for number in count())
ROWS = pa.table({"k": ["a", None, "c"], "n": [1, 2, 3]})


@pytest.fixture(autouse=True, params=["in batches", "record by record"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How records are handed to librdkafka."""

    def unknown() -> None:
        raise UnknownLibrary("of a test")

    if request.param == "record by record":
        monkeypatch.setattr(record_producers, "library", unknown)
    monkeypatch.setattr(kafka, "CLIENTS", kafka._Clients())


@pytest.fixture
def topic(broker) -> str:
    name = next(_names)
    broker.create_topic(name)
    return name


def written(broker, topic: str, expected: int) -> list[tuple[bytes | None, object]]:
    return [(message.key(), json.loads(message.value())) for message in consumed(broker, topic, expected)]


def consumed(broker, topic: str, expected: int, ends: int | None = None) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(expected, 60)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1] == (ends or expected)
    consumer.close()
    return messages


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ((), [None, None, None]),
        (("k",), [b"a", None, b"c"]),
        (("n",), [b'{"n":1}', b'{"n":2}', b'{"n":3}']),
        (("n", "k"), [b'{"n":1,"k":"a"}', b'{"n":2,"k":null}', b'{"n":3,"k":"c"}']),
    ],
)
def test_rows_and_keys(broker, topic, key, keys) -> None:
    sink = KafkaSink(KafkaTarget(topic, broker.bootstrap, key))
    sink.prepare(ROWS.schema)
    writer = pickle.loads(pickle.dumps(sink.writer()))
    assert writer.write(attempt(), ROWS)["rows"] == 3
    assert written(broker, topic, 3) == list(zip(keys, ROWS.to_pylist(), strict=True))


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
def test_rows_as_avro_begin_with_the_number_of_their_schema(broker, topic, delivery) -> None:
    with registry() as served:
        target = KafkaTarget(topic, broker.bootstrap, ("k",), schema_output=AvroOutput(topic, ROWS.schema, served.url))
        once = delivery == "exactlyOnce"
        sink = KafkaTransactionsSink(target, PartNames(topic)) if once else KafkaSink(target)
        sink.prepare(ROWS.schema)
        writer = pickle.loads(pickle.dumps(sink.writer()))
        assert writer.write(attempt(), ROWS)["rows"] == 3
        number = served.subjects[f"{topic}-value", 1]
        schema = fastavro.parse_schema(json.loads(served.schemas[number]["schema"]))
    received = []
    for message in consumed(broker, topic, 3, ends=4 if once else 3):  # a transaction ends with a mark
        assert message.value()[:5] == b"\0" + number.to_bytes(4)
        received.append((message.key(), fastavro.schemaless_reader(io.BytesIO(message.value()[5:]), schema, None)))
    assert received == list(zip([b"a", None, b"c"], ROWS.to_pylist(), strict=True))


def test_headers(broker, topic) -> None:
    """More than the client's queue holds, in order."""
    rows = pa.table({"k": ["a", None] * 1_000, "n": range(2_000)})
    properties = {"queue.buffering.max.messages": "1000"}
    sink = KafkaSink(KafkaTarget(topic, broker.bootstrap, ("k",), properties, {"kind": "k", "number": "n"}))
    sink.prepare(rows.schema)
    writer = pickle.loads(pickle.dumps(sink.writer()))
    assert writer.write(attempt(), rows)["rows"] == 2_000
    first, second, *_, last = consumed(broker, topic, 2_000)
    assert (first.headers(), first.key()) == ([("kind", b"a"), ("number", b"0")], b"a")
    assert (second.headers(), second.key()) == ([("number", b"1")], None)
    assert json.loads(last.value()) == {"k": None, "n": 1_999}
    with pytest.raises(SinkError, match="headers names no output column: z"):
        KafkaSink(KafkaTarget(topic, broker.bootstrap, headers={"x": "z"})).prepare(rows.schema)


def test_more_rows_than_the_client_s_queue_holds(broker, topic) -> None:
    target = KafkaTarget(topic, broker.bootstrap, properties={"queue.buffering.max.messages": "1000"})
    KafkaSink(target).writer().write(attempt(), pa.table({"n": range(25_000)}))
    assert [value["n"] for _, value in written(broker, topic, 25_000)] == list(range(25_000))


def test_the_broker_is_waited_for_once_however_many_chunks_there_are(broker, topic, monkeypatch) -> None:
    flushes: list[int] = []
    flush = Patience.flush
    monkeypatch.setattr(Patience, "flush", lambda self, producer: flushes.append(1) or flush(self, producer))
    chunks = pa.table({"n": pa.chunked_array([[1], [2, 3], [4]])})
    assert KafkaSink(KafkaTarget(topic, broker.bootstrap)).writer().write(attempt(), chunks)["rows"] == 4
    assert [value for _, value in written(broker, topic, 4)] == [{"n": n} for n in (1, 2, 3, 4)]
    assert len(flushes) == 1


def test_no_rows(broker, topic) -> None:
    assert KafkaSink(KafkaTarget(topic, broker.bootstrap)).writer().write(attempt(), ROWS.slice(0, 0))["rows"] == 0


def test_a_missing_topic_and_a_missing_key_column(broker, topic) -> None:
    with pytest.raises(SinkError, match="Output topic nowhere: it does not exist"):
        KafkaSink(KafkaTarget("nowhere", broker.bootstrap)).prepare(ROWS.schema)
    with pytest.raises(SinkError, match="key names no output column: z"):
        KafkaSink(KafkaTarget(topic, broker.bootstrap, ("z",))).prepare(ROWS.schema)


def test_rows_that_the_broker_refuses_and_writing_after_that(broker) -> None:
    name = next(_names)
    broker.create_topic(name, config={"max.message.bytes": "2000"})
    writer = KafkaSink(KafkaTarget(name, broker.bootstrap)).writer()
    limits = r"Raise max\.message\.bytes of the topic, and message\.max\.bytes under kafka\.properties"
    with pytest.raises(SinkError, match=rf"Output topic {name}: 1 row was not written: .*too large.*{limits}"):
        writer.write(attempt(), pa.table({"text": ["x" * 10_000]}))
    writer.write(attempt(name="b"), pa.table({"text": ["x"]}))
    assert [value for _, value in written(broker, name, 1)] == [{"text": "x"}]


@pytest.fixture
def impatient(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.target.ANSWER_SECONDS", 3.0)
    monkeypatch.setattr("joinery_runtime.connectors.kafka.target.DELIVERY_SECONDS", 1.0)
    return None


def test_no_broker(impatient) -> None:
    sink = KafkaSink(KafkaTarget("any", "127.0.0.1:1"))
    with pytest.raises(OutputUnavailable, match=r"does not answer: waited 3 s; .*Connection refused"):
        sink.prepare(ROWS.schema)
    with pytest.raises(OutputUnavailable, match=r"Output topic any: .*rows were not written"):
        sink.writer().write(attempt(), ROWS)


@pytest.mark.parametrize("name", ["enable.idempotence", "transactional.id"])
def test_properties_that_are_ours(name: str) -> None:
    with pytest.raises(SinkError, match=f"may not set {name}"):
        KafkaTarget("any", "127.0.0.1:1", properties={name: "x"})


def test_an_unknown_property() -> None:
    sink = KafkaSink(KafkaTarget("any", "127.0.0.1:1", properties={"no.such.name": "x"}))
    with pytest.raises(SinkError, match="No such configuration property"):
        sink.prepare(ROWS.schema)
