"""Pods reach the broker and the Postgres that run beside the cluster, with the clients that the runtime uses."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.kubernetes.kubectl import log_of, pod
from joinery_devkit.kubernetes.providers import KubernetesCluster
from joinery_devkit.topics import ordered_producer, read_topic

pytestmark = pytest.mark.node

RunPython = Callable[[str, str], str]

ECHO = """
import sys
from confluent_kafka import Consumer, Producer

servers = {"bootstrap.servers": sys.argv[1]}
producer = Producer({**servers, "enable.idempotence": True})
producer.produce("from-pod", b"said in a pod")
assert producer.flush(240) == 0
consumer = Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest"})
consumer.subscribe(["to-pod"])
message = consumer.poll(240)
print(message.value().decode())
consumer.close()
"""
WRITE = """
import sys
import psycopg

with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("CREATE TABLE from_pod AS SELECT 'said in a pod' AS said")
"""


@pytest.fixture
def run_python(cluster: KubernetesCluster, cluster_image: Callable[[str], str], cluster_namespace: str) -> RunPython:
    """Gives what a program prints in a pod with the runtime's image."""
    image = cluster_image("runtime")

    def run(program: str, argument: str) -> str:
        cluster.kubectl.apply(pod("client", image, "python3", "-c", program, argument), cluster_namespace)
        return log_of(cluster.kubectl, "client", cluster_namespace)

    return run


def test_a_pod_writes_to_the_broker_and_reads_from_it(run_python: RunPython, cluster_kafka: KafkaAdmin) -> None:
    for topic in ("from-pod", "to-pod"):
        cluster_kafka.create_topic(topic)
    producer = ordered_producer(cluster_kafka.bootstrap)
    producer.produce("to-pod", b"said outside")
    assert producer.flush(30) == 0

    heard = run_python(ECHO, cluster_kafka.bootstrap)

    assert heard == "said outside\n"
    assert [record.value for record in read_topic(cluster_kafka.bootstrap, "from-pod")] == [b"said in a pod"]


def test_a_pod_writes_to_the_postgres(run_python: RunPython, cluster_postgres: str) -> None:
    run_python(WRITE, cluster_postgres)

    with psycopg.connect(cluster_postgres) as connection:
        assert connection.execute("SELECT said FROM from_pod").fetchall() == [("said in a pod",)]


def test_the_postgres_takes_nobody_without_the_password(cluster_postgres: str) -> None:
    before, _, after = cluster_postgres.rpartition("@")
    user = before.rpartition(":")[0]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"{user}:wrong@{after}")
