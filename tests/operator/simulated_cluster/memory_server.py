"""An API server in memory, as far as the operator's own calls go (versions, conflicts, uids, owners, finalizers), and
the operator's controller on it, without kopf: the test is the watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes.aio.client import Configuration

from joinery_devkit.processes import free_port
from joinery_operator.decision import Manifest
from joinery_operator.kube.api import Api, ApiResponse
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.reconciler import Reconcile
from joinery_operator.kube.resources import BY_KIND, ApiResource
from joinery_operator.settings import Settings
from simulated_cluster.resources import copied
from simulated_cluster.small_reconcile import reconcile

_BY_PLURAL = {resource.plural: resource for resource in BY_KIND.values()}
Id = tuple[str, str, str]  # plural, namespace, name


class MemoryServer:
    """`calls` are the requests so far, as "POST pods"; `before` is called with each before it is served, and may return
    an answer in its place."""

    def __init__(self) -> None:
        self.objects: dict[Id, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.before: Callable[[str, str], tuple[int, Any] | None] = lambda method, path: None
        self._versions = count(1)
        self._uids = count(1)

    def add(self, manifest: Manifest) -> dict[str, Any]:
        """Puts an object in, as a user would."""
        status, body = self._create(BY_KIND[manifest["kind"]], manifest["metadata"]["namespace"], manifest)
        assert status == 201, body
        return body

    def change(self, kind: str, namespace: str, name: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Changes an object, as a user or the kubelet would."""
        stored = self.objects[BY_KIND[kind].plural, namespace, name]
        change(stored)
        return copied(self._touched(stored))

    def remove(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return self._touched(self.objects.pop((BY_KIND[kind].plural, namespace, name)))

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return copied(self.objects.get((BY_KIND[kind].plural, namespace, name)))

    def names(self, kind: str) -> list[str]:
        return sorted(name for plural, _, name in self.objects if plural == BY_KIND[kind].plural)

    def serve(self, method: str, address: str, body: Manifest | None) -> tuple[int, Any]:
        url = urlsplit(address)
        parts = url.path.strip("/").split("/")[2 if url.path.startswith("/api/") else 3 :]
        namespace = parts[1] if parts[:1] == ["namespaces"] else ""
        plural, name, subresource = [*(parts[2:] if namespace else parts), "", "", ""][:3]
        self.calls.append(f"{method} {plural}{'/' if subresource else ''}{subresource}")
        instead = self.before(method, url.path)
        if instead is not None:
            return instead
        if not plural:
            return 200, {"resources": [{"name": resource_plural} for resource_plural in _BY_PLURAL]}
        if plural == "selfsubjectaccessreviews":
            return 201, {"status": {"allowed": True}}
        body = copied(body)
        resource = _BY_PLURAL[plural]
        match method:
            case "POST" if "dryRun" in parse_qs(url.query):
                return 201, body
            case "POST":
                return self._create(resource, namespace, body or {})
            case "GET" if not name:
                return self._list(resource, namespace, "resourceVersion" in parse_qs(url.query))
        stored = self.objects.get((plural, namespace, name))
        if stored is None:
            return _refusal(404, "NotFound", f'{plural} "{name}" not found')
        match method:
            case "PUT":
                return self._replace(stored, body or {}, subresource or "spec")
            case "PATCH":
                return self._patch((plural, namespace, name), stored, body or {})
            case "DELETE":
                return self._delete((plural, namespace, name), stored, body or {})
        return 200, copied(stored)

    def _create(self, resource: ApiResource, namespace: str, body: Manifest) -> tuple[int, Any]:
        created = json.loads(json.dumps(body))
        key = (resource.plural, namespace, created["metadata"]["name"])
        if key in self.objects:
            return _refusal(409, "AlreadyExists", f'{resource.plural} "{key[2]}" already exists')
        created["metadata"] |= {"namespace": namespace, "uid": f"uid-{next(self._uids)}", "generation": 1}
        self.objects[key] = created
        return 201, copied(self._touched(created))

    def _list(self, resource: ApiResource, namespace: str, metadata_only: bool) -> tuple[int, Any]:
        items = [
            {"metadata": manifest["metadata"]} if metadata_only else manifest
            for (plural, its_namespace, _), manifest in self.objects.items()
            if plural == resource.plural and namespace in {"", its_namespace}
        ]
        # As the real one: a list of metadata without items has null there.
        listed = None if metadata_only and not items else items
        return 200, copied({"metadata": {"resourceVersion": str(next(self._versions))}, "items": listed})

    def _replace(self, stored: dict[str, Any], body: Manifest, part: str) -> tuple[int, Any]:
        if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            return _refusal(409, "Conflict", "the object has been modified")
        stored[part] = body[part]
        return 200, copied(self._touched(stored))

    def _patch(self, key: Id, stored: dict[str, Any], body: Manifest) -> tuple[int, Any]:
        resource_version = body.get("metadata", {}).get("resourceVersion")
        if resource_version is not None and resource_version != stored["metadata"]["resourceVersion"]:
            return _refusal(409, "Conflict", "the object has been modified")
        _merge(stored, body)
        if stored["metadata"].get("deletionTimestamp") and not stored["metadata"].get("finalizers"):
            del self.objects[key]
        return 200, copied(self._touched(stored))

    def _delete(self, key: Id, stored: dict[str, Any], body: Manifest) -> tuple[int, Any]:
        uid = stored["metadata"]["uid"]
        if body.get("preconditions", {}).get("uid", uid) != uid:
            return _refusal(409, "Conflict", "the UID in the precondition does not match")
        if stored["kind"] == "Pod" and (stored.get("status") or {}).get("phase") == "Running":
            stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return 200, copied(self._touched(stored))
        del self.objects[key]
        return 200, {"kind": "Status", "status": "Success"}

    def _touched(self, stored: dict[str, Any]) -> dict[str, Any]:
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        return stored


class MemoryApi(Api):
    """The operator's client, whose requests go to a MemoryServer. `pauses` are those between tries."""

    def __init__(self, server: MemoryServer, metrics: Metrics | None = None) -> None:
        self.pauses: list[float] = []
        self.server = server
        super().__init__(Configuration(), metrics or Metrics(), self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def _send(self, method: str, address: str, headers: dict[str, str], body: Manifest | None) -> ApiResponse:
        return ApiResponse(*self.server.serve(method, address, body))


def _merge(target: dict[str, Any], patch: Manifest) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(name, {}), value)
        else:
            target[name] = value


def _refusal(code: int, reason: str, message: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message}


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def controller_on(
    server: MemoryServer, decide: Reconcile = reconcile, clock: Callable[[], float] | None = None, page_url: str = ""
) -> AsyncIterator[Controller]:
    metrics = Metrics()
    async with MemoryApi(server, metrics) as api:
        settings = Settings(metrics_port=free_port(), poll_seconds=1000.0, page_url=page_url)
        loop = asyncio.get_running_loop()
        async with Controller(settings, api, decide, metrics, clock=clock or loop.time, now=lambda: NOW) as controller:
            yield controller


async def settled(controller: Controller) -> None:
    """Waits until no reconcile is due or running."""
    while controller.feed.queue.waiting() or controller.feed.queue.running():
        await asyncio.sleep(0)


def tell(controller: Controller, manifest: Manifest, deleted: bool = False) -> Awaitable[None]:
    """An event of a watch."""
    return controller.on_watch_event(BY_KIND[manifest["kind"]], manifest, deleted)
