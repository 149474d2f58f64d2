"""The whole node: a Kubernetes of one node on this machine, with containerd, kubelet, kube-proxy, kube-router
and CoreDNS.

It runs in namespaces of its own (sandbox.py) and needs root, Linux and Debian's packages. One per machine.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from joinery_devkit.environment import cache_directory
from joinery_devkit.kubernetes import binaries, machine, packages
from joinery_devkit.kubernetes.api_server import admin_context, is_ready
from joinery_devkit.kubernetes.control_plane import ADMIN, SERVICE_NETWORK
from joinery_devkit.kubernetes.kubectl import Kubectl
from joinery_devkit.kubernetes.node_plan import (
    HOST_ADDRESS,
    NODE_ADDRESS,
    NODE_NAME,
    POD_NETWORK,
    NodePlan,
    node_images,
)
from joinery_devkit.kubernetes.sandbox import Sandbox
from joinery_runtime.errors import EnvironmentProblem

_LINK = "joinery0"
_START_SECONDS = 480.0  # for what hangs
_POLL_SECONDS = 0.1
_HIDDEN = ("/var/lib", "/var/log", "/run", "/var/run")  # the sandbox has its own


class Node:
    """The node, with `up` and `down`. In between, `kubeconfig` is an administrator's, and pods reach this machine at
    `host_address`."""

    host_address = HOST_ADDRESS

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = (directory or cache_directory() / "node").resolve()
        self._sandbox = Sandbox(self.directory, _LINK)
        self._plan = NodePlan(self.directory)

    @property
    def kubeconfig(self) -> Path:
        return self._plan.plane.kubeconfig(ADMIN)

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.kubeconfig)

    @property
    def address(self) -> str:
        return f"node {self.directory}"

    @property
    def detached(self) -> bool:
        """Whether the node is up and stays up until `down`, whoever brought it up."""
        return self._sandbox.detached

    def up(self, *, detached: bool = False) -> None:
        """Bring up a new node, after removing what remains of an earlier one.

        The node ends with this process unless it is `detached`. Raises EnvironmentProblem if the machine cannot run it.
        """
        _check_machine(self.directory)
        packages.install(packages.NODE_PACKAGES)
        binaries.build(binaries.WHOLE_NODE)
        self.down()
        if cgroups := machine.pod_cgroups():
            raise EnvironmentProblem(
                "This machine runs a Kubernetes node already",
                facts=f"there are cgroups of pods: {', '.join(map(str, cgroups))}",
                todo="Stop that node, or use its cluster: JOINERY_E2E_KUBECONFIG=<its kubeconfig>",
            )
        try:
            self._sandbox.start(detached)
            self._plan.write()
            self._bring_up()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End the node, and remove its state and logs. Does nothing if there is none."""
        if self._sandbox.stop():
            machine.remove_pod_cgroups()

    def load_image(self, archive: Path) -> None:
        """Load the image in an OCI archive on the node, under the name in the archive."""
        self._sandbox.run(["ctr", "--namespace=k8s.io", "images", "import", "-"], stdin=archive)

    def _bring_up(self) -> None:
        self._sandbox.connect(HOST_ADDRESS, NODE_ADDRESS, [POD_NETWORK, SERVICE_NETWORK])
        self._spawn_services(self._plan.first_services())
        self._wait("containerd", self._containerd_answers)
        for archive in node_images(self.directory):
            self.load_image(archive)
            archive.unlink()
        context = admin_context(self._plan.plane)
        self._wait("kube-apiserver", lambda: is_ready(self._plan.plane.url, context))
        self._spawn_services(self._plan.second_services())
        for manifest in (self._plan.coredns, self._plan.kube_router):
            self.kubectl.apply(manifest)
        self._wait("kubelet", self._node_is_ready)
        self._spawn_services(self._plan.third_services())
        self._wait("kube-router", self._policies_are_enforced)
        self._wait("kubelet", self._dns_is_ready)

    def _spawn_services(self, services: Mapping[str, list[str]]) -> None:
        for name, command in services.items():
            self._sandbox.spawn(name, command)

    def _containerd_answers(self) -> bool:
        try:
            self._sandbox.run(["ctr", "version"])
        except EnvironmentProblem:
            return False
        return True

    def _node_is_ready(self) -> bool:
        node = self.kubectl.get("node", NODE_NAME)
        conditions = node["status"].get("conditions", []) if node else []
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _policies_are_enforced(self) -> bool:
        """Whether packets between pods pass through the NetworkPolicy controller's chain."""
        return "-j KUBE-ROUTER-FORWARD" in self._sandbox.run(["iptables", "--list-rules", "FORWARD"])

    def _dns_is_ready(self) -> bool:
        deployment = self.kubectl.get("deployment", "coredns", "kube-system")
        return deployment is not None and deployment["status"].get("availableReplicas", 0) > 0

    def _wait(self, service: str, met: Callable[[], bool]) -> None:
        """Wait until `met` is true. `service` is the one whose log most likely says why that takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while not met():
            ended = self._sandbox.ended_service()
            if ended or time.monotonic() > deadline:
                facts = f"{ended} ended" if ended else f"{service} is not ready after {_START_SECONDS:.0f} s"
                words = self._sandbox.last_words(ended or service)
                raise EnvironmentProblem(
                    "The tests' Kubernetes node does not start", facts=f"{facts}; its last words:\n{words}"
                )
            time.sleep(_POLL_SECONDS)


@contextmanager
def node_cluster() -> Iterator[Node]:
    """Yield a node that is up: that of `python -m joinery_devkit.kubernetes up`, or one that ends with the block.

    Raises EnvironmentProblem if another process has one that is not detached.
    """
    node = Node()
    if node.detached:
        yield node
        return
    with only_one():
        node.up()
        try:
            yield node
        finally:
            node.down()


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock for bringing the machine's node up or down."""
    lock = cache_directory() / "node.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise EnvironmentProblem(
                "Somebody else has this machine's Kubernetes node",
                facts=f"process {handle.read().strip()} holds {lock}",
                todo="Wait for its end. All share a node of `python -m joinery_devkit.kubernetes up`",
            ) from None
        handle.truncate(0)
        print(os.getpid(), file=handle, flush=True)
        yield


def _check_machine(directory: Path) -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise EnvironmentProblem(
            "The tests' Kubernetes node cannot run here",
            facts=f"it needs Linux and root; this is {sys.platform}, user {os.geteuid()}",
            todo="Install Docker and kind, or name a cluster: JOINERY_E2E_KUBECONFIG=<its kubeconfig>",
        )
    if any(directory.is_relative_to(hidden) for hidden in _HIDDEN):
        raise EnvironmentProblem(
            "The tests' Kubernetes node cannot keep its state there",
            facts=f"{directory} is below {', '.join(_HIDDEN)}",
            todo="Set XDG_CACHE_HOME to another folder",
        )
