import pytest
from confluent_kafka import Consumer, TopicPartition

from joinery_devkit.kafka_admin import GroupRow, describe_groups
from joinery_devkit.topics import ordered_producer
from joinery_runtime.errors import EnvironmentProblem

pytestmark = pytest.mark.services


def test_a_group_with_a_member_as_kafka_s_own_tool_sees_it(kafka_broker):
    kafka_broker.create_topic("tools-lag", partitions=2)
    producer = ordered_producer(kafka_broker.bootstrap)
    for _ in range(5):
        producer.produce("tools-lag", b"x", partition=1)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": "tools", "enable.auto.commit": False})
    consumer.subscribe(["tools-lag"])
    while len(consumer.assignment()) < 2:
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("tools-lag", 1, 3)], asynchronous=False)
    member = consumer.memberid()
    assert describe_groups(kafka_broker.bootstrap, "tools") == [
        GroupRow("tools-lag", 0, None, 0, None, member),
        GroupRow("tools-lag", 1, 3, 5, 2, member),
    ]
    consumer.close()
    assert describe_groups(kafka_broker.bootstrap, "tools") == [GroupRow("tools-lag", 1, 3, 5, 2, None)]


def test_a_group_that_is_not_there(kafka_broker):
    assert describe_groups(kafka_broker.bootstrap, "tools-nobody") == []


def test_a_tool_that_fails_says_why():
    with pytest.raises(EnvironmentProblem, match=r"(?s)kafka-consumer-groups failed: .*bootstrap"):
        describe_groups("not an address", "g")
