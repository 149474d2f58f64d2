import pytest
from confluent_kafka import Consumer, Producer

from joinery_devkit.kafka import KafkaCluster

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster():
    with KafkaCluster(3) as running:
        running.create_topic("t", replication_factor=3)
        yield running


def write(cluster, value):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    producer.produce("t", value)
    assert producer.flush(60) == 0


def values(cluster, count):
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe(["t"])
    messages = consumer.consume(count, 60)
    consumer.close()
    return [message.value() for message in messages]


def test_records_and_coordinators_outlive_any_one_broker(cluster):
    write(cluster, b"a")
    for end in (cluster.kill, cluster.stop):
        leader = cluster.leader("t")
        end(leader)
        assert leader not in cluster.pids
        write(cluster, b"b")
        assert cluster.leader("t") != leader
        cluster.start(leader)
    assert values(cluster, 3) == [b"a", b"b", b"b"]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "x", "log_level": 0})
    producer.init_transactions(30)
