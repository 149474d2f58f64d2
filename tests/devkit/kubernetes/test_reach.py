"""Pods reach the broker and the Postgres that run beside the cluster, with the clients that the runtime uses."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka import Producer

from joinery_devkit.images.build import runtime_image
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kubernetes.pods import log_of, pod
from joinery_devkit.kubernetes.providers import Cluster
from joinery_devkit.topics import read_topic

pytestmark = pytest.mark.node

IMAGE = "localhost/joinery-runtime:test"
ECHO = """
import sys
from confluent_kafka import Consumer, Producer

servers = {"bootstrap.servers": sys.argv[1]}
producer = Producer(servers)
producer.produce("from-pod", b"said in a pod")
assert producer.flush(30) == 0
consumer = Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest"})
consumer.subscribe(["to-pod"])
message = consumer.poll(30)
print(message.value().decode())
consumer.close()
"""
WRITE = """
import sys
import psycopg

with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("CREATE TABLE from_pod AS SELECT 'said in a pod' AS said")
"""


@pytest.fixture(scope="module")
def runtime(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The cluster, which knows the runtime's image."""
    cluster.load_image(runtime_image(tmp_path_factory.mktemp("images")))
    return cluster


def run_python(cluster: Cluster, namespace: str, program: str, argument: str) -> str:
    cluster.kubectl.apply(pod("client", IMAGE, "python3", "-c", program, argument), namespace)
    return log_of(cluster.kubectl, "client", namespace)


def test_a_pod_writes_to_the_broker_and_reads_from_it(
    runtime: Cluster, cluster_namespace: str, cluster_kafka: KafkaBroker
) -> None:
    for topic in ("from-pod", "to-pod"):
        cluster_kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": cluster_kafka.bootstrap})
    producer.produce("to-pod", b"said outside")
    assert producer.flush(30) == 0

    heard = run_python(runtime, cluster_namespace, ECHO, cluster_kafka.bootstrap)

    assert heard == "said outside\n"
    assert [record.value for record in read_topic(cluster_kafka.bootstrap, "from-pod")] == [b"said in a pod"]


def test_a_pod_writes_to_the_postgres(runtime: Cluster, cluster_namespace: str, cluster_postgres: str) -> None:
    run_python(runtime, cluster_namespace, WRITE, cluster_postgres)

    with psycopg.connect(cluster_postgres) as connection:
        assert connection.execute("SELECT said FROM from_pod").fetchall() == [("said in a pod",)]


def test_the_postgres_takes_nobody_without_the_password(cluster_postgres: str) -> None:
    before, _, after = cluster_postgres.rpartition("@")
    user = before.rpartition(":")[0]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"{user}:wrong@{after}")
