"""Fixtures of the tests that need a Kubernetes. tests/conftest.py loads this module as a plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.providers import KubernetesCluster, join_cluster
from joinery_devkit.kubernetes.shared import CLUSTER, CLUSTER_KAFKA, CLUSTER_POSTGRES, image_service
from joinery_devkit.services import address_of


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """Yield the API server tier; each test makes a namespace of its own (`api_namespace`)."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def api_namespace(api_server: ApiServer) -> Iterator[str]:
    """Yield the name of a namespace of this test's own on `api_server`."""
    with api_server.kubectl.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def cluster() -> KubernetesCluster:
    """Return a whole Kubernetes, where pods run; each test makes a namespace of its own (`cluster_namespace`)."""
    return join_cluster(address_of(CLUSTER))


@pytest.fixture
def cluster_namespace(cluster: KubernetesCluster) -> Iterator[str]:
    """Yield the name of a namespace of this test's own on `cluster`."""
    with cluster.kubectl.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def cluster_image() -> Callable[[str], str]:
    """Return the name of an image of the product that the cluster has, for "operator", "runtime" or a release."""
    return lambda kind: address_of(image_service(kind))


@pytest.fixture(scope="session")
def cluster_kafka() -> KafkaAdmin:
    """Return a broker on this machine that both the pods of `cluster` and tests reach at its `bootstrap`."""
    return KafkaAdmin(address_of(CLUSTER_KAFKA))


@pytest.fixture(scope="session")
def cluster_postgres() -> str:
    """Return the DSN of a Postgres on this machine that both the pods of `cluster` and tests reach."""
    return address_of(CLUSTER_POSTGRES)
