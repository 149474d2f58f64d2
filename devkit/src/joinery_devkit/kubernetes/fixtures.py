"""The fixtures of the tests that need a Kubernetes; tests/conftest.py names this module as a plugin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.postgres import postgres_at
from joinery_devkit.kubernetes.providers import Cluster, open_cluster


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """The API server tier; each test makes a namespace of its own (`api_namespace`)."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def api_namespace(api_server: ApiServer) -> Iterator[str]:
    """The name of a namespace of this test's own on `api_server`."""
    with api_server.kubectl.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A whole Kubernetes, where pods run; each test makes a namespace of its own (`cluster_namespace`)."""
    with open_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster_namespace(cluster: Cluster) -> Iterator[str]:
    """The name of a namespace of this test's own on `cluster`."""
    with cluster.kubectl.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def cluster_kafka(cluster: Cluster) -> Iterator[KafkaBroker]:
    """A broker on this machine that the pods of `cluster` reach at its `bootstrap`, and tests as well."""
    with KafkaBroker(host=cluster.host_address) as broker:
        yield broker


@pytest.fixture(scope="session")
def cluster_postgres(cluster: Cluster) -> Iterator[str]:
    """The DSN of a Postgres on this machine that the pods of `cluster` reach, and tests as well."""
    with postgres_at(cluster.host_address) as dsn:
        yield dsn
