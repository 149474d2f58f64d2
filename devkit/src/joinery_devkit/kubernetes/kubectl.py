"""Runs kubectl with a kubeconfig, and makes small pods for the cluster's own tests."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.kubernetes.certificates import write_kubeconfig

Object = Mapping[str, Any]
_TIMEOUT_SECONDS = 480.0  # for what hangs: a busy machine takes its time
_POLL_SECONDS = 0.1


class KubectlFailed(AssertionError):
    """kubectl failed; `message` is what it printed."""

    def __init__(self, command: str, message: str) -> None:
        self.message = message
        super().__init__(f"{command}: {message}")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl for the cluster and user that `kubeconfig` names."""

    kubeconfig: Path

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = _TIMEOUT_SECONDS) -> str:
        """Run kubectl with these arguments, and return what it prints. Raises KubectlFailed."""
        done = self._run(arguments, stdin, timeout_seconds)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}", done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def _run(
        self, arguments: Sequence[str], stdin: str | None = None, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )

    def may(self, *request: str) -> bool:
        """Whether the user has that right: the arguments of `kubectl auth can-i`. A right counts some time after what
        grants it was made. Raises KubectlFailed if there is no answer."""
        done = self._run(["auth", "can-i", *request])
        answer = done.stdout.strip()
        if answer != "yes" and answer.partition(" ")[0] != "no":  # `no - REASON` while a role is not known yet
            raise KubectlFailed(f"kubectl auth can-i {' '.join(request)}", done.stderr.strip() or answer)
        return answer == "yes"

    def restrict(self, namespace: str) -> None:
        """Make the namespace reject pods that are not restricted. Returns once it does: the API server learns of a
        label some time after it has answered."""
        self("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")

        def rejects() -> bool:
            try:
                manifest = yaml.safe_dump(pod("unrestricted", "any"))
                self("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=manifest)
            except KubectlFailed as rejection:
                return "violates PodSecurity" in rejection.message
            return False

        wait_until("the namespace rejects pods that are not restricted", rejects)

    def apply(self, objects: Path | Object | Sequence[Object], namespace: str | None = None) -> str:
        """Apply, server-side, a file or folder of manifests, or objects. If `namespace` is given, none of them may
        name a namespace."""
        command = ["apply", "--server-side", "--force-conflicts", "-f"]
        if namespace is not None:
            command.insert(1, f"--namespace={namespace}")
        if isinstance(objects, Path):
            return self(*command, str(objects))
        many = [objects] if isinstance(objects, Mapping) else objects
        return self(*command, "-", stdin=yaml.safe_dump_all(many))

    def define(self, crds: Path | Mapping[str, Any]) -> None:
        """Apply CustomResourceDefinitions, and wait until the API server accepts objects of their kinds."""
        self.apply(crds)
        self.await_definitions()

    def await_definitions(self) -> None:
        """Wait until the API server accepts objects of every kind that is defined, and names the kind to clients: it
        does that a moment later.

        Does not use `kubectl wait`, which fails for a definition that has no conditions yet.
        """

        def all_established() -> bool:
            defined = self.list("crd")
            named = self("api-resources", "-o", "name").split()  # always asks the server, for later calls too
            established = {
                crd["metadata"]["name"]
                for crd in defined
                for condition in crd.get("status", {}).get("conditions") or ()
                if condition["type"] == "Established" and condition["status"] == "True"
            }
            return {crd["metadata"]["name"] for crd in defined} <= established & set(named)

        wait_until("the API server takes the definitions", all_established)

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any] | None:
        """Return the object; None if there is none."""
        text = self("get", kind, name, "--namespace", namespace, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text else None

    def list(self, kind: str, namespace: str = "default", selector: str = "") -> list[dict[str, Any]]:
        text = self("get", kind, "--namespace", namespace, f"--selector={selector}", "-o", "json")
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    def names(self, kind: str, namespace: str = "default", selector: str = "") -> Sequence[str]:
        return [manifest["metadata"]["name"] for manifest in self.list(kind, namespace, selector)]

    @contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """Yield a new namespace, which is deleted afterwards (and may take a while to be gone)."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self("create", "namespace", name)
        try:
            # A controller makes it a moment later, and without it the server rejects pods.
            wait_until("the namespace has its service account", lambda: self.get("serviceaccount", "default", name))
            yield name
        finally:
            self("delete", "namespace", name, "--wait=false", "--ignore-not-found")

    def log_in_as(self, service_account: str, namespace: str, target: Path) -> Kubectl:
        """kubectl as a ServiceAccount, whose kubeconfig (with a token for an hour) is written to `target`."""
        token = self("create", "token", service_account, "--namespace", namespace, "--duration=1h").strip()
        view = json.loads(self("config", "view", "--raw", "--minify", "-o", "json"))
        cluster = view["clusters"][0]["cluster"]
        authority = cluster["certificate-authority-data"]
        return Kubectl(write_kubeconfig(target, cluster["server"], authority, {"token": token}, namespace))


def wait_until(
    condition: str, met: Callable[[], object], seconds: float = 240.0, *, poll_seconds: float = _POLL_SECONDS
) -> None:
    """Poll `met` until it is true. Raises TimeoutError, naming `condition`, if it is not true within `seconds`.
    These are for what hangs: a busy machine takes its time. What `met` looks up may not be there yet: a status gets
    its fields one after another."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if met():
                return
            missing = ""
        except LookupError as error:
            missing = f", {error!r}"
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition}: not within {seconds:.0f} s{missing}")
        time.sleep(poll_seconds)


# Pods of one container that runs a command


def pod(name: str, image: str, *command: str, labels: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    """Return a pod with one container; `container` has further fields of the container."""
    fields = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command), **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [fields]},
    }


def phase(kubectl: Kubectl, name: str, namespace: str) -> str:
    manifest = kubectl.get("pod", name, namespace)
    assert manifest is not None
    return str(manifest["status"].get("phase"))


def log_of(kubectl: Kubectl, name: str, namespace: str) -> str:
    """Return the log of a pod, once it has succeeded."""
    wait_until("the pod ends", lambda: phase(kubectl, name, namespace) in ("Succeeded", "Failed"))
    log = kubectl("logs", name, "-n", namespace)
    assert phase(kubectl, name, namespace) == "Succeeded", log
    return log
