"""Provides the whole cluster of the end-to-end tests. The first of these that is available:

1. `JOINERY_E2E_KUBECONFIG` names the kubeconfig of an existing cluster. Tests create and delete namespaces, CRDs and
   cluster roles, so a KUBECONFIG that happens to be set is no consent: set JOINERY_E2E_KUBECONFIG=$KUBECONFIG.
   `JOINERY_E2E_LOAD_IMAGE` is a command that loads an image into the cluster; the path of an OCI archive is appended.
   `JOINERY_E2E_HOST` is an address of this machine that the cluster's pods reach.
2. The node that `python -m joinery_devkit.kubernetes up` keeps.
3. kind, if kind and a running Docker are installed.
4. A node of our own for this run (needs Linux and root).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

from joinery_devkit.kubernetes.kubectl import Kubectl
from joinery_devkit.kubernetes.node import Node, node_cluster
from joinery_runtime.errors import EnvironmentProblem

KUBECONFIG, LOAD_IMAGE, HOST = "JOINERY_E2E_KUBECONFIG", "JOINERY_E2E_LOAD_IMAGE", "JOINERY_E2E_HOST"

_READY_SECONDS = 180


class KubernetesCluster(Protocol):
    """A Kubernetes with nodes, on which tests have administrator rights."""

    @property
    def kubeconfig(self) -> Path: ...

    @property
    def kubectl(self) -> Kubectl: ...

    @property
    def host_address(self) -> str:
        """An address of this machine that pods reach. Raises EnvironmentProblem if none is known."""

    @property
    def address(self) -> str:
        """The address for `join_cluster` in another process, while the cluster is open."""

    def load_image(self, archive: Path) -> None:
        """Load the image in an OCI archive on every node, under the name in the archive. Pods use it with
        `imagePullPolicy: Never` or `IfNotPresent`."""


def open_cluster() -> AbstractContextManager[KubernetesCluster]:
    """Return the cluster for this run; what was made for it is removed at the end of the block."""
    if KUBECONFIG in os.environ:
        return existing_cluster()
    if not Node().detached and kind_is_here():
        return kind_cluster()
    return node_cluster()


def join_cluster(address: str) -> KubernetesCluster:
    """Return the cluster that another process has opened."""
    provider, _, where = address.partition(" ")
    if provider == "node":
        return Node(Path(where))
    if provider == "kind":
        name, _, kubeconfig = where.partition(" ")
        return KindCluster(name, Path(kubeconfig))
    return ExistingCluster(Path(where))


@dataclass(frozen=True, slots=True)
class ExistingCluster:
    """A cluster that somebody else runs."""

    kubeconfig: Path

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.kubeconfig)

    @property
    def host_address(self) -> str:
        return _require_setting(HOST, "an address of this machine that the cluster's pods reach")

    @property
    def address(self) -> str:
        return f"existing {self.kubeconfig}"

    def load_image(self, archive: Path) -> None:
        command = _require_setting(
            LOAD_IMAGE, "a command that gives the cluster an image, such as `minikube image load`"
        )
        _run([*shlex.split(command), str(archive)])


@contextmanager
def existing_cluster() -> Iterator[ExistingCluster]:
    kubeconfig = Path(os.environ[KUBECONFIG]).expanduser()
    if not kubeconfig.is_file():
        raise EnvironmentProblem(
            f"{KUBECONFIG} names no kubeconfig",
            facts=f"{str(kubeconfig)!r} is not a file",
            todo=f"Set it to one file, or unset it to have a cluster made (see {__file__})",
        )
    yield ExistingCluster(kubeconfig.resolve())


@dataclass(frozen=True, slots=True)
class KindCluster:
    """A cluster in Docker containers, made by kind."""

    name: str
    kubeconfig: Path

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.kubeconfig)

    @property
    def host_address(self) -> str:
        """This machine's address in the network of kind's containers."""
        gateways = _run(["docker", "network", "inspect", "kind", "--format={{range .IPAM.Config}}{{.Gateway}} {{end}}"])
        return next(gateway for gateway in gateways.split() if ip_address(gateway).version == 4)

    @property
    def address(self) -> str:
        return f"kind {self.name} {self.kubeconfig}"

    def load_image(self, archive: Path) -> None:
        _run(["kind", "load", "image-archive", str(archive), f"--name={self.name}"])


def kind_is_here() -> bool:
    """Whether kind is installed and Docker answers."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    docker = subprocess.run(["docker", "version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return docker.returncode == 0


@contextmanager
def kind_cluster(*options: str) -> Iterator[KindCluster]:
    """Yield a new cluster; `options` are further options of `kind create cluster`, such as --image."""
    with tempfile.TemporaryDirectory(prefix="joinery-kind-") as directory:
        cluster = KindCluster(f"joinery-{uuid.uuid4().hex[:8]}", Path(directory) / "kubeconfig")
        selection = [f"--name={cluster.name}", f"--kubeconfig={cluster.kubeconfig}"]
        delete = ["kind", "delete", "cluster", *selection]
        try:
            _run(["kind", "create", "cluster", *selection, f"--wait={_READY_SECONDS}s", *options])
            # kind does not wait for the DNS of services.
            dns = ["rollout", "status", "deployment/coredns", "--namespace=kube-system"]
            cluster.kubectl(*dns, timeout_seconds=_READY_SECONDS)
            yield cluster
        except BaseException:
            subprocess.run(delete, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            raise
        _run(delete)


def _require_setting(name: str, meaning: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise EnvironmentProblem(
            f"A test needs more than {KUBECONFIG}", facts=f"{name} is not set", todo=f"Set it to {meaning}"
        )
    return value


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(
            "The tests' cluster does not do what it was told",
            facts=f"`{shlex.join(command)}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()}",
        )
    return done.stdout
