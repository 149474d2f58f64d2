"""The operator on the run's cluster, installed by Helm as the README says, for all processes of a test run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from joinery_devkit.images.build import TAG
from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.kubernetes.providers import KubernetesCluster, join_cluster
from joinery_devkit.kubernetes.shared import CLUSTER, CLUSTER_KAFKA, CLUSTER_POSTGRES, image_service
from joinery_devkit.services import address_of
from joinery_runtime.job.crd import BLUE_GREEN, KINDS, SAVEPOINT

OPERATOR = "operator"
CHART = Path(__file__).parents[3] / "charts" / "joinery"
OPERATOR_NAMESPACE = "joinery-system"
_RUNTIME = "localhost/joinery-runtime"
_INSTALL_S = 480


@contextmanager
def installed_operator() -> Iterator[str]:
    """The jobs' namespace, which refuses pods that are not restricted. Nothing is left in the end."""
    parts = (image_service("operator"), image_service("runtime"), CLUSTER_KAFKA, CLUSTER_POSTGRES)
    with ThreadPoolExecutor(len(parts)) as pool:  # images are built while the node comes up
        list(pool.map(address_of, parts))
    cluster = join_cluster(address_of(CLUSTER))
    with cluster.kubectl.namespace("jobs") as namespace:
        cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        _helm(
            cluster,
            *("upgrade", "--install", "joinery", str(CHART), "--create-namespace", "--wait"),
            f"--timeout={_INSTALL_S}s",
            *("--set", f"image.repository=localhost/joinery-operator,image.tag={TAG}"),
            *("--set", f"runtime.image.repository={_RUNTIME},runtime.image.tag={TAG}"),
            *("--set", f"drivers.namespaces={{{namespace}}}"),
        )
        _helm(cluster, "test", "joinery")
        yield namespace
        _delete_jobs(cluster, namespace)
        _helm(cluster, "uninstall", "joinery", "--wait")


def jobs_policies(cluster: KubernetesCluster, *, enabled: bool) -> None:
    """Upgrades the installation to one that makes NetworkPolicies for jobs, or none."""
    setting = f"networkPolicy.jobs.enabled={str(enabled).lower()}"
    options = ("--reset-then-reuse-values", "--set", setting, "--wait", f"--timeout={_INSTALL_S}s")
    _helm(cluster, "upgrade", "joinery", str(CHART), *options)


def _delete_jobs(cluster: KubernetesCluster, namespace: str) -> None:
    """What tests that failed have left. Their database may be gone by now, so nothing can delete their state."""
    # First, because it would create its jobs again, and without them, because their states stay.
    blue_greens = ("delete", BLUE_GREEN.plural, "--all", "--cascade=orphan", "-n", namespace)
    cluster.kubectl(*blue_greens, timeout_seconds=_INSTALL_S)
    retained = {SAVEPOINT.plural: "retain", **{kind.plural: "retainState" for kind in KINDS}}
    for plural, cleanup in retained.items():
        for name in cluster.kubectl.names(plural, namespace):
            retain = json.dumps({"spec": {"cleanup": cleanup}})
            cluster.kubectl("patch", plural, name, "-n", namespace, "--type=merge", f"--patch={retain}")
        cluster.kubectl("delete", plural, "--all", "-n", namespace, timeout_seconds=_INSTALL_S)


def _helm(cluster: KubernetesCluster, *arguments: str) -> str:
    """In the operator's namespace."""
    command = [program("helm"), f"--kubeconfig={cluster.kubeconfig}", "--namespace", OPERATOR_NAMESPACE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pods = cluster.kubectl("get", "pods", "-n", OPERATOR_NAMESPACE, "-o", "yaml")
        raise AssertionError(f"helm {arguments[0]}: {done.stderr}\n{pods}")
    return done.stdout
