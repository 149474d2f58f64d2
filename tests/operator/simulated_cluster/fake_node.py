"""A fake node on a real API server: a kubelet that reports pods as running, and drivers that answer polls."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import load_kube_config

from joinery_operator.kube.resources import BY_KIND, CHILDREN, INGRESS, JOBS
from joinery_operator.kube.watches import SELECTOR
from joinery_runtime.job.crd import DriverStatus

_POLL_SECONDS = 0.2


def _time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refused(AssertionError):
    """The API server did not do it; `code` says why."""

    def __init__(self, what: str, code: int, text: str) -> None:
        self.code = code
        super().__init__(f"{what}: {code} {text}")


class ApiServerClient:
    """Raw calls, without waiting for a kubectl to start. For one thread at a time."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        configuration = Configuration()
        load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
        self._client = ApiClient(configuration)
        self._host = configuration.host

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        headers = {"Accept": "application/json", "Content-Type": kind}
        answer = self._client.call_api(method, self._host + path, headers, body)
        text = answer.read()
        if answer.status >= 300:
            raise Refused(f"{method} {path}", answer.status, text.decode())
        return json.loads(text)

    def create(self, manifest: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        created: dict[str, Any] = self.call("POST", BY_KIND[manifest["kind"]].path(namespace), manifest)
        return created

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            manifest: dict[str, Any] = self.call("GET", BY_KIND[kind].path(namespace, name))
        except Refused as error:
            if error.code == 404:
                return None
            raise
        return manifest

    def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.call("GET", BY_KIND[kind].path(namespace) + f"?labelSelector={selector}")[
            "items"
        ]
        return items

    def names(self, kind: str, namespace: str) -> list[str]:
        return sorted(manifest["metadata"]["name"] for manifest in self.list(kind, namespace))

    def patch(self, kind: str, namespace: str, name: str, body: Mapping[str, Any], subresource: str = "") -> Any:
        path = BY_KIND[kind].path(namespace, name, subresource)
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str, grace_seconds: int | None = None) -> None:
        """Gone already is as good."""
        body = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self.call("DELETE", BY_KIND[kind].path(namespace, name), body)
        except Refused as error:
            if error.code != 404:
                raise

    def ours(self, namespace: str) -> dict[str, list[str]]:
        """What there is of the jobs and of the operator's children."""
        names_by_kind = {job.kind: self.names(job.kind, namespace) for job in JOBS}
        for child in (*CHILDREN, INGRESS):
            items = self.list(child.kind, namespace, SELECTOR.replace("!=", "%21%3D").replace("=", "%3D", 1))
            names_by_kind[child.kind] = sorted(manifest["metadata"]["name"] for manifest in items)
        return names_by_kind


class FakeKubelet:
    """Runs the pods of a namespace, in that it says so: each is bound, gets an address of 127.0.0.0/8 and is running;
    what is being deleted goes. `endings` says how a pod ends instead, as its termination message, by name."""

    def __init__(
        self, kubeconfig: Path, namespace: str | None, runs: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._cluster = ApiServerClient(kubeconfig)
        self._namespace = namespace
        self._runs = runs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._addresses = 0
        self.created: dict[str, str] = {}  # names of all pods that it saw, by uid
        self.pods_by_address: dict[str, Mapping[str, Any]] = {}
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                path = BY_KIND["Pod"].path(self._namespace)
                for pod in self._cluster.call("GET", path)["items"]:
                    self._advance(pod)
            except Refused as error:
                if error.code not in {404, 409}:
                    self.error = error
            except BaseException as error:
                self.error = error
                return

    def _advance(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        self.created.setdefault(metadata["uid"], name)
        if metadata.get("deletionTimestamp"):
            self._cluster.delete("Pod", namespace, name, grace_seconds=0)
        elif not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": "pretended"}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            self._cluster.call("POST", BY_KIND["Pod"].path(namespace, name, "binding"), body)
        elif pod["status"]["phase"] == "Pending" and self._runs(name):
            self._addresses += 1
            address = f"127.1.{self._addresses // 250}.{self._addresses % 250 + 1}"
            self.pods_by_address[address] = pod
            run_pod(self._cluster, pod, address)


def run_pod(cluster: ApiServerClient, pod: Mapping[str, Any], address: str) -> None:
    containers = [
        {**_container(container), "ready": True, "started": True, "state": {"running": {"startedAt": _time()}}}
        for container in pod["spec"]["containers"]
    ]
    initial = [
        {**_container(container), "ready": True, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
        for container in pod["spec"].get("initContainers", ())
    ]
    since = {"status": "True", "lastTransitionTime": _time()}
    ready = [{"type": kind, **since} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
    status |= {"containerStatuses": containers, "initContainerStatuses": initial, "startTime": _time()}
    _set(cluster, pod, status)


def end_pod(cluster: ApiServerClient, pod: Mapping[str, Any], exit_code: int, message: str = "") -> None:
    """All its containers end with that termination message."""
    ended = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "message": message}
    ended |= {"startedAt": _time(), "finishedAt": _time()}
    containers = [
        {**_container(container), "ready": False, "state": {"terminated": ended}}
        for container in pod["spec"]["containers"]
    ]
    _set(cluster, pod, {"phase": "Failed" if exit_code else "Succeeded", "containerStatuses": containers})


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}


def _set(cluster: ApiServerClient, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    metadata = pod["metadata"]
    cluster.patch("Pod", metadata["namespace"], metadata["name"], {"status": status}, "status")


Answer = Callable[[str], Mapping[str, Any] | None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """An operator that no longer waits for the answer is no error."""


class FakeDrivers:
    """A context manager. `answer(address)` is what the driver at that address (127.x.y.z) says, in DriverStatus's
    fields; None: it is not there yet."""

    def __init__(self, answer: Answer) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status = answer(self.headers["Host"].rpartition(":")[0]) if self.path == "/status" else None
                self.send_response(503 if status is None else 200)
                self.end_headers()
                if status is not None:
                    self.wfile.write(DriverStatus(**status).model_dump_json(by_alias=True).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("0.0.0.0", 0), Handler)
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
