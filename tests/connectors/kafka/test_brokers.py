"""Three brokers of which one dies or stops: what is written stays, and output comes exactly once, whether the one led
the topic, the marks or the transactions."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer

from connectors.rows import attempt
from e2e.kill_harness import topic_rows
from joinery_devkit.kafka import KafkaCluster
from joinery_runtime.connectors.kafka.producers import Producers
from joinery_runtime.connectors.kafka.target import KafkaTarget
from joinery_runtime.connectors.kafka.transactions import KafkaTransactionsSink, PartNames, PartWrite
from joinery_runtime.errors import SinkError, Superseded

pytestmark = [pytest.mark.services, pytest.mark.slow]
_names = (f"survives-{number}" for number in count())
TRIES = 8


@pytest.fixture(scope="module")
def cluster():
    with KafkaCluster(3) as running:
        yield running


def written(cluster, topic, target, names, epoch, on_point=lambda _: None):
    """Tries as Spark does: attempts one after the other, with the claims of the epoch."""
    claims: dict[str, str] = {}

    def claim(name, owner, replacing):
        fresh = name not in claims
        if fresh or claims[name] == replacing:
            claims[name] = owner
        return None if fresh else claims[name]

    process = Producers()
    for number in range(TRIES):
        this_attempt = attempt(epoch, name=f"a{number}", claim=claim, reach=on_point if number == 0 else lambda _: None)
        try:
            PartWrite(target, names, this_attempt, pa.table({"n": [10 * epoch, 10 * epoch + 1]}), process).run()
            return
        except (SinkError, Superseded):
            process = Producers()
    raise AssertionError(f"epoch {epoch} was not written in {TRIES} tries")


@pytest.mark.parametrize("role", ["the topic", "__consumer_offsets", "__transaction_state"])
def test_a_broker_that_dies_in_the_middle_of_a_transaction(cluster, role) -> None:
    topic = next(_names)
    cluster.create_topic(topic, replication_factor=3)
    target, names = KafkaTarget(topic, cluster.bootstrap), PartNames(f"job-{topic}")
    KafkaTransactionsSink(target, names).prepare(pa.schema({"n": pa.int64()}))
    written(cluster, topic, target, names, 1)
    victim = cluster.leader(topic if role == "the topic" else role)

    def kill(point: str) -> None:
        if point == "transaction-sent":
            cluster.kill(victim)

    written(cluster, topic, target, names, 2, kill)
    cluster.start(victim)
    written(cluster, topic, target, names, 3)
    rows = topic_rows(cluster.bootstrap, topic)
    assert sorted(row["n"] for row in rows) == [10, 11, 20, 21, 30, 31]


def test_records_and_coordinators_outlive_any_one_broker(cluster) -> None:
    topic = next(_names)
    cluster.create_topic(topic, replication_factor=3)

    def write(value: bytes) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
        producer.produce(topic, value)
        assert producer.flush(60) == 0

    write(b"a")
    for end in (cluster.kill, cluster.stop):
        leader = cluster.leader(topic)
        end(leader)
        assert leader not in cluster.pids
        write(b"b")
        assert cluster.leader(topic) != leader
        cluster.start(leader)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([topic])
    assert [message.value() for message in consumer.consume(3, 60)] == [b"a", b"b", b"b"]
    consumer.close()
    Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "x", "log_level": 0}).init_transactions(30)
