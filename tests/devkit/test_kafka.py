import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.topics import ordered_producer
from joinery_runtime.errors import EnvironmentProblem

pytestmark = pytest.mark.services

LONG_AGO, FAR_AHEAD = 5, 4_000_000_000_000


@pytest.fixture
def consumer(kafka_broker):
    client = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": "devkit"})
    yield client
    client.close()


def write(broker, topic, values, **fields):
    producer = ordered_producer(broker.bootstrap)
    for value in values:
        producer.produce(topic, value, partition=0, **fields)
    assert producer.flush(30) == 0


def test_topics_have_the_partitions_asked_for(kafka_broker, consumer):
    kafka_broker.create_topic("devkit-three", partitions=3, config={"cleanup.policy": "compact"})
    assert sorted(consumer.list_topics("devkit-three").topics["devkit-three"].partitions) == [0, 1, 2]


def test_topics_are_not_made_by_accident(kafka_broker, consumer):
    with pytest.raises(KafkaException, match="_UNKNOWN_PARTITION"):
        consumer.get_watermark_offsets(TopicPartition("devkit-nobody-made-it", 0), timeout=30)


def test_a_deleted_topic_is_gone_and_its_name_free(kafka_broker, consumer):
    kafka_broker.create_topic("devkit-again")
    write(kafka_broker, "devkit-again", ["a"])
    kafka_broker.delete_topic("devkit-again")
    kafka_broker.create_topic("devkit-again")
    assert consumer.get_watermark_offsets(TopicPartition("devkit-again", 0), timeout=30) == (0, 0)


def test_records_can_be_deleted_from_the_front(kafka_broker, consumer):
    kafka_broker.create_topic("devkit-cut")
    write(kafka_broker, "devkit-cut", ["a", "b", "c"])
    kafka_broker.delete_records("devkit-cut", 0, before_offset=2)
    assert consumer.get_watermark_offsets(TopicPartition("devkit-cut", 0), timeout=30) == (2, 3)


@pytest.mark.parametrize("timestamp", [LONG_AGO, FAR_AHEAD])
def test_records_of_any_time_are_accepted(kafka_broker, consumer, timestamp):
    topic = f"devkit-time-{timestamp}"
    kafka_broker.create_topic(topic)
    write(kafka_broker, topic, ["a"], timestamp=timestamp)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(30).timestamp()[1] == timestamp


@pytest.mark.slow
def test_stopped_or_killed_it_comes_back_with_its_data(tmp_path):
    with KafkaBroker(tmp_path / "broker") as broker:
        broker.create_topic("kept")
        for end in (broker.stop, broker.kill):
            write(broker, "kept", ["a"])
            end()
            assert broker.pid is None
            broker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        assert consumer.get_watermark_offsets(TopicPartition("kept", 0), timeout=30) == (0, 2)
        consumer.close()
    assert (tmp_path / "broker" / "server.log").exists()


@pytest.mark.slow
def test_a_temporary_directory_is_removed():
    with KafkaBroker() as broker:
        assert (broker.directory / "server.properties").exists()
    assert not broker.directory.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num.io.threads", "none", r"cannot format.*num\.io\.threads.*log are in {path}"),
        ("authorizer.class.name", "no.such.Class", r"does not start: it ended; .*ClassNotFound.* no\.such\.Class"),
    ],
    ids=["refused", "ends while starting"],
)
def test_a_bad_setting_is_explained_and_nothing_is_left_running(tmp_path, name, value, message):
    broker = KafkaBroker(tmp_path, properties={name: value})
    with pytest.raises(EnvironmentProblem, match="(?s)" + message.format(path=tmp_path)):
        broker.start()
    assert broker.pid is None
