"""Jobs for the operator that the run has installed on its cluster, on a Kafka and a Postgres beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.node.cluster_job import ClusterJob
from e2e.node.installation import OPERATOR
from e2e.node.works import Work
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.kubernetes.providers import KubernetesCluster
from joinery_devkit.services import address_of

MakeJob = Callable[[str, type[Work]], ClusterJob]


@pytest.fixture(scope="session")
def make_job(
    cluster: KubernetesCluster,
    cluster_image: Callable[[str], str],
    cluster_kafka: KafkaAdmin,
    cluster_postgres: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> MakeJob:
    """Makes a job with topics of its own, exactly once. It is applied by the test."""
    namespace, image = address_of(OPERATOR), cluster_image("runtime")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "state-db"},
        "stringData": {"dsn": cluster_postgres},
    }
    cluster.kubectl.apply(secret, namespace)

    def make(name: str, about: type[Work]) -> ClusterJob:
        work = about(name, cluster_kafka, cluster_postgres)
        return ClusterJob(work, namespace, cluster.kubectl, image, tmp_path_factory.mktemp(name))

    return make


@pytest.fixture(scope="session")
def migrating(cluster_image: Callable[[str], str]) -> str:
    """The image of a release with the next state version and a migration to it."""
    return cluster_image("migrating")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lives take longest, so they begin first, each with a worker of its own."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
