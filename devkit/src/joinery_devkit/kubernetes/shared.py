"""The services of a whole cluster that the processes of a test run share: the cluster, its images, and the broker and
the Postgres that its pods reach. For joinery_devkit.services, in the process that started the run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from joinery_devkit.images.build import RELEASES, image_name, operator_image, release_image, runtime_image
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kubernetes.providers import KubernetesCluster, join_cluster, open_cluster
from joinery_devkit.postgres import postgres_at
from joinery_devkit.services import Starter, address_of

CLUSTER, CLUSTER_KAFKA, CLUSTER_POSTGRES = "cluster", "cluster's Kafka", "cluster's Postgres"
_RUNTIME_ARCHIVE = "archive of the runtime's image"


def image_service(kind: str) -> str:
    return f"cluster's image {kind}"


def cluster_services() -> Mapping[str, Starter]:
    """Return the services by the name that `address_of` takes. The address of an image is its name."""
    servers = {
        CLUSTER: _serve_cluster,
        CLUSTER_KAFKA: _serve_kafka,
        CLUSTER_POSTGRES: _serve_postgres,
        _RUNTIME_ARCHIVE: _runtime_archive,
    }
    return {
        **servers,
        **{image_service(kind): partial(_load_image, kind) for kind in ("operator", "runtime", *RELEASES)},
    }


def _joined_cluster() -> KubernetesCluster:
    return join_cluster(address_of(CLUSTER))


@contextmanager
def _serve_cluster() -> Iterator[str]:
    with open_cluster() as cluster:
        yield cluster.address


@contextmanager
def _serve_kafka() -> Iterator[str]:
    with KafkaBroker(host=_joined_cluster().host_address) as broker:
        yield broker.bootstrap


@contextmanager
def _serve_postgres() -> Iterator[str]:
    with postgres_at(_joined_cluster().host_address) as dsn:
        yield dsn


@contextmanager
def _runtime_archive() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="joinery-images-") as folder:
        yield str(runtime_image(Path(folder)))


@contextmanager
def _load_image(kind: str) -> Iterator[str]:
    """Build an image and load it. The build runs while the cluster comes up, if somebody else waits for that."""
    with tempfile.TemporaryDirectory(prefix="joinery-images-") as folder:
        archive = operator_image(Path(folder)) if kind == "operator" else Path(address_of(_RUNTIME_ARCHIVE))
        if kind in RELEASES:
            archive = release_image(kind, archive)
        _joined_cluster().load_image(archive)
    yield image_name(kind)
