"""One node with one installed operator for all tests here, the project's images, a Kafka and a Postgres beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from joinery_devkit.images.build import (
    failing_migration_runtime_image,
    failing_start_runtime_image,
    migrating_runtime_image,
    operator_image,
    runtime_image,
)
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.kubernetes.providers import Cluster
from joinery_runtime.core.table.segment import STATE_VERSION
from joinery_runtime.job.crd import KINDS
from kubernetes_e2e.cluster_job import ClusterJob
from kubernetes_e2e.works import Work

CHART = Path(__file__).parents[2] / "charts" / "joinery"
OPERATOR_NAMESPACE = "joinery-system"
_RUNTIME = "localhost/joinery-runtime"
_INSTALL_S = 180
DEADLINE_S = 120  # of rollouts: what fails is given up then


@dataclass(frozen=True)
class Images:
    """Names that the node knows. The later three are releases with the next state version: a migration that works, one
    that does not, and one whose driver ends before its first epoch."""

    runtime: str = f"{_RUNTIME}:test"
    migrating: str = f"{_RUNTIME}:migrating"
    failing_migration: str = f"{_RUNTIME}:failing-migration"
    failing_start: str = f"{_RUNTIME}:failing-start"
    next_version: int = STATE_VERSION + 1


@pytest.fixture(scope="session")
def images(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Images:
    for build in (
        operator_image,
        runtime_image,
        migrating_runtime_image,
        failing_migration_runtime_image,
        failing_start_runtime_image,
    ):
        archive = build(tmp_path_factory.mktemp("images"))
        cluster.load_image(archive)
        archive.unlink()
    return Images()


@pytest.fixture(scope="session")
def namespace(cluster: Cluster) -> Iterator[str]:
    """The jobs' namespace, which refuses pods that are not restricted."""
    with cluster.kubectl.namespace("joins") as name:
        level = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", name, level)
        yield name


@pytest.fixture(scope="session")
def operator(cluster: Cluster, images: Images, namespace: str) -> Iterator[None]:
    """Installed as the README says, cluster-wide, and removed in the end."""
    helm(
        cluster,
        *("upgrade", "--install", "joinery", str(CHART), "--create-namespace", "--wait", f"--timeout={_INSTALL_S}s"),
        *("--set", "image.repository=localhost/joinery-operator,image.tag=test"),
        *("--set", f"runtime.image.repository={_RUNTIME},runtime.image.tag=test"),
        *("--set", f"drivers.namespaces={{{namespace}}}"),
        *("--set", f"operator.settings.deadlineSeconds={DEADLINE_S}"),
    )
    helm(cluster, "test", "joinery")
    yield
    _delete_jobs(cluster, namespace)
    helm(cluster, "uninstall", "joinery", "--wait")


def _delete_jobs(cluster: Cluster, namespace: str) -> None:
    """What tests that failed have left. Their database is gone by now, so nothing can delete their state."""
    for kind in KINDS:
        for name in cluster.kubectl.names(kind.plural, namespace):
            retain = '{"spec": {"cleanup": "retainState"}}'
            cluster.kubectl("patch", kind.plural, name, "-n", namespace, "--type=merge", f"--patch={retain}")
        cluster.kubectl("delete", kind.plural, "--all", "-n", namespace, timeout_seconds=_INSTALL_S)


def helm(cluster: Cluster, *arguments: str) -> str:
    """In the operator's namespace."""
    command = [program("helm"), f"--kubeconfig={cluster.kubeconfig}", "--namespace", OPERATOR_NAMESPACE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = cluster.kubectl("get", "pods", "-n", OPERATOR_NAMESPACE, "-o", "yaml")
        raise AssertionError(f"helm {arguments[0]}: {done.stderr}\n{told}")
    return done.stdout


MakeJob = Callable[..., ClusterJob]


@pytest.fixture(scope="session")
def make_job(
    cluster: Cluster,
    operator: None,
    images: Images,
    namespace: str,
    cluster_kafka: KafkaBroker,
    cluster_postgres: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> MakeJob:
    """Makes a job with topics of its own, exactly once. It is applied by the test."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "state-db"},
        "stringData": {"dsn": cluster_postgres},
    }
    cluster.kubectl.apply(secret, namespace)

    def make(name: str, about: type[Work]) -> ClusterJob:
        work = about(name, cluster_kafka, cluster_postgres)
        return ClusterJob(work, namespace, cluster.kubectl, images.runtime, tmp_path_factory.mktemp(name))

    return make
