"""The fast tier: etcd and kube-apiserver with TLS, RBAC and service accounts on loopback, ready in seconds.

It needs no root, and several can run at once. There is no node, so pods stay pending. The controllers that the tests
rely on run too: they follow ownerReferences, empty deleted namespaces and create service accounts.
"""

from __future__ import annotations

import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from joinery_devkit.kubernetes import binaries
from joinery_devkit.kubernetes.control_plane import ADMIN, ControlPlane
from joinery_devkit.kubernetes.kubectl import Kubectl
from joinery_devkit.processes import ChildProcess, free_port
from joinery_runtime.errors import EnvironmentProblem

_START_SECONDS = 90.0
_POLL_SECONDS = 0.05
CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
)


class ApiServer:
    """The API server, as a context manager; `kubeconfig` is an administrator's. Ends with this process, however that
    ends.

    `controllers` are those that kube-controller-manager runs beside it, with these `options`; none if empty.
    """

    def __init__(self, controllers: Sequence[str] = CONTROLLERS, options: Sequence[str] = ()) -> None:
        self._controllers = tuple(controllers)
        self._controller_options = tuple(options)
        self._stack = ExitStack()
        self._processes: dict[str, ChildProcess] = {}

    def __enter__(self) -> Self:
        binaries.build(binaries.API_TIER)
        with self._stack as stack:
            self.directory = Path(tempfile.mkdtemp(prefix="joinery-api-"))
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self._plane = ControlPlane(self.directory, "127.0.0.1", free_port(), free_port(), free_port())
            self._plane.make_logins(scheduler=False)
            self._start("etcd", self._plane.etcd())
            # Loopback addresses cannot be endpoints of the Service `kubernetes`, which nobody here uses.
            self._start("kube-apiserver", self._plane.api_server("--endpoint-reconciler-type=none"))
            self._wait_until_ready()
            if self._controllers:
                manager = self._plane.controller_manager(self._controllers)
                self._start("kube-controller-manager", [*manager, *self._controller_options])
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return self._plane.url

    @property
    def kubeconfig(self) -> Path:
        return self._plane.kubeconfig(ADMIN)

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.kubeconfig)

    def _start(self, name: str, command: Sequence[str]) -> None:
        process = ChildProcess(command, self.directory / f"{name}.log")
        self._stack.callback(process.kill)  # its data is thrown away anyway
        self._processes[name] = process

    def _wait_until_ready(self) -> None:
        context = admin_context(self._plane)
        deadline = time.monotonic() + _START_SECONDS
        while not is_ready(self.url, context):
            for name, process in self._processes.items():
                if not process.running() or time.monotonic() > deadline:
                    facts = f"{name} ended" if not process.running() else f"not ready after {_START_SECONDS:.0f} s"
                    raise EnvironmentProblem(
                        "The tests' API server does not start", facts=f"{facts}; it said:\n{process.log_tail()}"
                    )
            time.sleep(_POLL_SECONDS)


def admin_context(plane: ControlPlane) -> ssl.SSLContext:
    """Return the administrator's login at the API server of `plane`."""
    context = ssl.create_default_context(cafile=str(plane.pki / "ca.crt"))
    context.load_cert_chain(plane.pki / f"{ADMIN}.crt", plane.pki / f"{ADMIN}.key")
    return context


def is_ready(url: str, context: ssl.SSLContext) -> bool:
    """Whether the API server at `url` reports that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
