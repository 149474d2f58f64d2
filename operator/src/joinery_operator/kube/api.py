"""Calls to the API server: raw objects, bounded in time and number, retried where that may help.

Each call is idempotent: creates meet the existing object, deletes name a uid, and writes of the resource name the
resourceVersion on which they were decided.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from joinery_operator.decision import Manifest
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import CONFIG_MAP, ApiResource
from joinery_runtime.errors import JoineryError

_TIMEOUT = aiohttp.ClientTimeout(total=20.0, sock_connect=5.0)
_PAUSES = (0.2, 1.0, 3.0)
_LONGEST_PAUSE = 10.0
_AT_ONCE = 16
_MERGE_PATCH = "application/merge-patch+json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Sleep = Callable[[float], Awaitable[None]]


_NAMESPACE_ENDS = "NamespaceTerminating"


class ApiError(JoineryError):
    """The API server rejected a call, or gave no answer (`code` 0). `reason` is the API server's, such as
    AlreadyExists, and `causes` are the reasons of its details."""

    def __init__(self, call: str, code: int, reason: str, message: str, causes: frozenset[str] = frozenset()) -> None:
        self.code, self.reason, self.message, self.causes = code, reason, message, causes
        is_forbidden = code == 403 and "cannot" in message
        todo = "Give the operator's role that permission (chart value rbac)" if is_forbidden else ""
        super().__init__(call, facts=f"{code or 'no answer'} {reason}: {message}", todo=todo)

    def __reduce__(self) -> tuple[object, ...]:
        return (ApiError, (self.summary, self.code, self.reason, self.message, self.causes))


class NotFound(ApiError):
    """There is no such object."""


class Conflict(ApiError):
    """The object is not the one that the caller expected (resourceVersion, uid), or its name is taken."""


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """The answer to one request. Status 0: there was no answer."""

    status: int
    body: Any
    retry_after: str | None = None


class Api:
    """The client, as a context manager. `sleep` waits between retries."""

    def __init__(self, configuration: Configuration, metrics: Metrics, sleep: Sleep = asyncio.sleep) -> None:
        self._configuration = configuration
        self._metrics = metrics
        self._sleep = sleep
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Api:
        self._client = ApiClient(self._configuration)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, resource: ApiResource, namespace: str | None, name: str) -> Manifest:
        return await self._call("GET", resource, resource.path(namespace, name))

    async def list(
        self, resource: ApiResource, namespace: str | None, selector: str = "", *, metadata_only: bool = False
    ) -> Manifest:
        """Return the list object. With `metadata_only` the items have only metadata, from the API server's own
        cache."""
        query = {"labelSelector": selector} if selector else {}
        if metadata_only:
            query["resourceVersion"] = "0"
        accept = _METADATA_ONLY if metadata_only else "application/json"
        path = resource.path(namespace)
        answer = await self._call("GET", resource, path, query=query, accept=accept, verb="list")
        # An empty list of metadata has `items: null`.
        return {**answer, "items": answer.get("items") or []}

    async def create(self, resource: ApiResource, namespace: str, manifest: Manifest) -> Manifest:
        return await self._call("POST", resource, resource.path(namespace), manifest)

    async def namespace_ends(self, namespace: str) -> bool:
        """Return whether the namespace is being deleted, so that nothing can be created in it any more. A dry run says
        so to an operator that may not read namespaces."""
        manifest = {"apiVersion": "v1", "kind": CONFIG_MAP.kind, "metadata": {"name": "joinery-dry-run"}}
        try:
            await self._call("POST", CONFIG_MAP, CONFIG_MAP.path(namespace), manifest, query={"dryRun": "All"})
        except ApiError as error:
            return _NAMESPACE_ENDS in error.causes
        return False

    async def patch(self, resource: ApiResource, namespace: str, name: str, body: Manifest) -> Manifest:
        """Apply a merge patch."""
        return await self._call("PATCH", resource, resource.path(namespace, name), body, content_type=_MERGE_PATCH)

    async def replace_status(self, resource: ApiResource, manifest: Manifest) -> Manifest:
        """Write the `status` of the given resource. Raises Conflict if the resource has changed since its
        resourceVersion."""
        metadata = manifest["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], "status")
        return await self._call("PUT", resource, path, manifest)

    async def replace(self, resource: ApiResource, manifest: Manifest) -> Manifest:
        """Write the given object. Raises Conflict if it has changed since its resourceVersion."""
        metadata = manifest["metadata"]
        return await self._call("PUT", resource, resource.path(metadata["namespace"], metadata["name"]), manifest)

    async def delete(
        self, resource: ApiResource, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Manifest:
        """Delete the object. Returns it with its deletionTimestamp or, if it is gone, a Status or a copy without a
        resourceVersion."""
        body: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        return await self._call("DELETE", resource, resource.path(namespace, name), body)

    async def has_permission(
        self, resource: ApiResource, namespace: str | None, verb: str, subresource: str = "", name: str = ""
    ) -> bool:
        """Return whether the operator has this permission. Anybody may ask the API server."""
        attributes = {
            "namespace": namespace or "",
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": subresource,
            "name": name,
        }
        review = ApiResource("SelfSubjectAccessReview", "selfsubjectaccessreviews", "authorization.k8s.io")
        body = {
            "apiVersion": review.api_version,
            "kind": review.kind,
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._call("POST", review, review.path(None), body)
        return bool(answer["status"]["allowed"])

    async def is_served(self, resource: ApiResource) -> bool:
        """Return whether the API server knows the kind."""
        root = f"/apis/{resource.group}/{resource.version}"
        try:
            answer = await self._call("GET", resource, root, verb="discover")
        except NotFound:
            return False
        return any(api_resource["name"] == resource.plural for api_resource in answer["resources"])

    async def _call(
        self,
        method: str,
        resource: ApiResource,
        path: str,
        body: Manifest | None = None,
        *,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        verb: str = "",
    ) -> Manifest:
        # The path of a create does not say which object.
        name = (body or {}).get("metadata", {}).get("name") if method == "POST" else None
        call = f"{method} {path} ({name})" if name else f"{method} {path}"
        address = f"{path}?{urlencode(query)}" if query else path
        headers = {"Accept": accept, "Content-Type": content_type}
        verb = verb or method.lower()
        for pause in (*_PAUSES, None):
            async with self._slots:
                start = monotonic()
                answer = await self._send(method, address, headers, body)
                self._metrics.api_calls.labels(verb, resource.kind, str(answer.status)).inc()
                self._metrics.api_seconds.labels(verb).observe(monotonic() - start)
            if 200 <= answer.status < 300:
                manifest: Manifest = answer.body
                return manifest
            retriable = answer.status in {0, 401, 429} or answer.status >= 500
            if pause is None or not retriable:
                error = {404: NotFound, 409: Conflict}.get(answer.status, ApiError)
                details = answer.body if isinstance(answer.body, Mapping) else {}
                causes = (details.get("details") or {}).get("causes") or ()
                reasons = frozenset(str(cause.get("reason")) for cause in causes)
                raise error(call, answer.status, details.get("reason", ""), details.get("message", ""), reasons)
            retry_after = answer.retry_after
            await self._sleep(
                min(max(pause, float(retry_after) if retry_after and retry_after.isdigit() else 0.0), _LONGEST_PAUSE)
            )
        raise AssertionError("the last try has ended the loop")

    async def _send(self, method: str, address: str, headers: dict[str, str], body: Manifest | None) -> ApiResponse:
        """Send one request. The response has status 0 if there was no answer."""
        configuration = self._configuration
        sent = dict(headers)
        if token := await configuration.get_api_key_with_prefix("BearerToken"):
            sent["Authorization"] = token
        elif configuration.username:
            sent["Authorization"] = configuration.get_basic_auth_token() or ""
        url = configuration.host + address
        try:
            response = await self._client.call_api(method, url, sent, body, _request_timeout=_TIMEOUT)
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return ApiResponse(
                0, {"reason": type(error).__name__, "message": str(error) or f"within {_TIMEOUT.total} s"}
            )
        try:
            parsed: Any = json.loads(text)
        except ValueError:
            parsed = {"reason": "NotJson", "message": text[:200].decode(errors="replace")}
        return ApiResponse(response.status, parsed, response.headers.get("Retry-After"))
