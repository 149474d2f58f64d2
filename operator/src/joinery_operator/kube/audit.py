"""What the operator asks for again and again, because no watch reports it.

kopf ends a connection that falls silent, and reconnects. A restarted watch does not report what was deleted in between,
so audits list everything again. And the end of a namespace has to be known before it takes the operator's permissions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import structlog

from joinery_operator.decision import Manifest
from joinery_operator.kube.api import Api, ApiError, NotFound
from joinery_operator.kube.apply import complete_manifest
from joinery_operator.kube.cache import ObjectCache, key_of, uid_of, version_of
from joinery_operator.kube.events import COMPONENT
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import NAMESPACE, OWNERS, WATCHED, ApiResource, ObjectKey
from joinery_operator.kube.watches import SELECTOR
from joinery_operator.settings import Settings

_log = structlog.get_logger(COMPONENT)

_OUR_FINALIZERS = "joinery.dev/"


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
        """Read everything. Nothing may be decided before that: objects missing from the cache would be taken for
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
        """Run one audit of all kinds. A namespace that cannot be listed (it may be deleted, and the operator's
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
            await self._correct_cache(resource, key)

    async def _correct_cache(self, resource: ApiResource, key: ObjectKey) -> None:
        cached = self._cache.get(key)
        owner = self._cache.owner_of(cached, key.kind) if cached is not None else None
        blue_green = self._cache.blue_green_of(cached, key.kind) if cached is not None else None
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
            for due in (owner, blue_green):
                if due is not None:
                    self._due(due)
            is_deleted = cached is not None and (newest is None or uid_of(newest) != uid_of(cached))
            if resource in OWNERS and cached is not None and is_deleted:
                await self._ended(cached)

    def _selector(self, resource: ApiResource) -> str:
        return self._owner_selector if resource in OWNERS else SELECTOR


def has_our_finalizer(resource: Manifest) -> bool:
    finalizers = resource["metadata"].get("finalizers") or ()
    return any(finalizer.startswith(_OUR_FINALIZERS) for finalizer in finalizers)


class EndingNamespaces:
    """Which of `namespaces`, where the operator has permissions by a Role, are being deleted as of the last round. It
    calls `due` with the jobs and Savepoints of those that have begun to end or were created again.

    Kubernetes deletes the RoleBinding along with everything else there, so the operator has to let its resources go
    before. The namespace controller waits for 5 s (`namespaceDeletionGracePeriod`) before it deletes anything. A Role
    in a namespace allows `get` of that namespace, and no Role allows `watch`."""

    def __init__(
        self, api: Api, namespaces: Sequence[str], cache: ObjectCache, due: Callable[[ObjectKey], None]
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._cache = cache
        self._due = due
        self._ending: set[str] = set()
        self._unreadable: set[str] = set()

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._ending

    async def round(self) -> None:
        """Ask about each namespace in which a resource has a finalizer of the operator's, or that was ending."""
        owners: defaultdict[str, list[ObjectKey]] = defaultdict(list)
        with_finalizer = set()
        for kind in OWNERS:
            for key in self._cache.keys(kind.kind):
                owners[key.namespace].append(key)
                if (resource := self._cache.get(key)) is not None and has_our_finalizer(resource):
                    with_finalizer.add(key.namespace)
        for namespace in self._namespaces:
            if (
                namespace not in with_finalizer | self._ending
                or (ends := await self._is_being_deleted(namespace)) is None
            ):
                continue
            if ends != (namespace in self._ending):
                _log.warning("a namespace ends" if ends else "a namespace is there again", namespace=namespace)
                (self._ending.add if ends else self._ending.discard)(namespace)
                for key in owners[namespace]:
                    self._due(key)

    async def _is_being_deleted(self, namespace: str) -> bool | None:
        """Return whether the namespace is being deleted; None if that is unknown: the namespace is gone, or
        unreadable."""
        try:
            manifest = await self._api.get(NAMESPACE, None, namespace)
        except ApiError as error:
            if namespace not in self._unreadable and namespace not in self._ending:
                self._unreadable.add(namespace)
                _log.warning(
                    "the operator may not see whether a namespace is being deleted, which its jobs with cleanup: "
                    "deleteState would keep in Terminating",
                    namespace=namespace,
                    error=str(error),
                )
            return None
        self._unreadable.discard(namespace)
        return bool(manifest["metadata"].get("deletionTimestamp"))
