"""Audits list everything again, and correct what no watch has reported.

kopf ends a connection that falls silent, and reconnects. A restarted watch does not report what was deleted in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from joinery_operator.decision import Manifest
from joinery_operator.kube.api import Api, ApiError, NotFound
from joinery_operator.kube.apply import complete_manifest
from joinery_operator.kube.cache import ObjectCache, key_of, uid_of, version_of
from joinery_operator.kube.events import COMPONENT
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import OWNERS, WATCHED, ApiResource, ObjectKey
from joinery_operator.kube.watches import SELECTOR
from joinery_operator.settings import Settings

_log = structlog.get_logger(COMPONENT)


class Auditor:
    """Audits the namespaces of the settings, or all of them if none is given. Calls `due` with the jobs and savepoints
    to reconcile, and `ended` with the last known copies of those that are gone."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        cache: ObjectCache,
        due: Callable[[ObjectKey], None],
        ended: Callable[[Manifest], Awaitable[None]],
        metrics: Metrics,
        watched: Sequence[ApiResource] = WATCHED,
    ) -> None:
        self._api = api
        self._namespaces: Sequence[str | None] = settings.namespaces or (None,)
        self._owner_selector = settings.owner_selector
        self._cache = cache
        self._due = due
        self._ended = ended
        self._metrics = metrics
        self._watched = watched

    async def fill(self) -> None:
        """Reads everything. Nothing may be decided before that: objects missing from the cache would be taken for
        deleted."""
        for resource in self._watched:
            for namespace in self._namespaces:
                listed = await self._api.list(resource, namespace, self._selector(resource))
                for item in listed["items"]:
                    self._cache.put(complete_manifest(item, resource), resource.kind)
        for resource in OWNERS:
            for key in self._cache.keys(resource.kind):
                self._due(key)

    async def round(self) -> None:
        """Runs one audit of all kinds. A namespace that cannot be listed (it may be deleted, and the operator's
        permissions with it) does not stop the audit of the others."""
        for namespace in self._namespaces:
            try:
                with self._metrics.audit_failures.count_exceptions():
                    for resource in self._watched:
                        await self._audit(resource, namespace)
            except ApiError as error:
                _log.warning("an audit could not be made", namespace=namespace or "all", error=str(error))

    async def _audit(self, resource: ApiResource, namespace: str | None) -> None:
        answer = await self._api.list(resource, namespace, self._selector(resource), metadata_only=True)
        listed = {key_of(item, resource.kind): version_of(item) for item in answer["items"]}
        cached_versions = {
            key: version_of(cached)
            for key in self._cache.keys(resource.kind)
            if namespace in (None, key.namespace) and (cached := self._cache.get(key)) is not None
        }
        changed = [key for key, version in listed.items() if cached_versions.get(key, -1) < version]
        # The list may come from the API server's cache, and be older than what a watch has delivered.
        deleted = [
            key for key, version in cached_versions.items() if key not in listed and version <= version_of(answer)
        ]
        for key in (*changed, *deleted):
            await self._correct(resource, key)

    async def _correct(self, resource: ApiResource, key: ObjectKey) -> None:
        cached = self._cache.get(key)
        owner = self._cache.owner_of(cached, key.kind) if cached is not None else None
        newest = None
        try:
            newest = await self._api.get(resource, key.namespace, key.name)
        except NotFound:
            missed = cached is not None and self._cache.remove(key, uid_of(cached))
        else:
            # A child that lost the label by which it is listed still exists, unchanged.
            complete = complete_manifest(newest, resource)
            missed = self._cache.put(complete, resource.kind)
            owner = self._cache.owner_of(complete, resource.kind)
        if missed:
            self._metrics.missed.labels(resource.kind).inc()
            _log.info("an audit found what no watch has reported", object=str(key), gone=self._cache.get(key) is None)
            if owner is not None:
                self._due(owner)
            is_deleted = cached is not None and (newest is None or uid_of(newest) != uid_of(cached))
            if resource in OWNERS and cached is not None and is_deleted:
                await self._ended(cached)

    def _selector(self, resource: ApiResource) -> str:
        return self._owner_selector if resource in OWNERS else SELECTOR
