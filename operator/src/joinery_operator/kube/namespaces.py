"""Notices that a namespace is being deleted in which the operator has permissions by a Role.

Kubernetes deletes the RoleBinding along with everything else there, so the operator has to let its resources go before.
The namespace controller waits for 5 s (`namespaceDeletionGracePeriod`) before it deletes anything. A Role in a namespace
allows `get` of that namespace, and no Role allows `watch`, so the operator asks every second where it has a finalizer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import structlog

from joinery_operator.decision import Manifest
from joinery_operator.kube.api import Api, ApiError
from joinery_operator.kube.cache import ObjectCache
from joinery_operator.kube.events import COMPONENT
from joinery_operator.kube.resources import NAMESPACE, OWNERS, ObjectKey

_log = structlog.get_logger(COMPONENT)

_OUR_FINALIZERS = "joinery.dev/"


def has_our_finalizer(resource: Manifest) -> bool:
    finalizers = resource["metadata"].get("finalizers") or ()
    return any(finalizer.startswith(_OUR_FINALIZERS) for finalizer in finalizers)


class EndingNamespaces:
    """Which of `namespaces` are being deleted, as of the last round. `enqueue` gets the jobs and Savepoints of those
    that have begun to end or were created again."""

    def __init__(
        self, api: Api, namespaces: Sequence[str], cache: ObjectCache, enqueue: Callable[[ObjectKey], None]
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._cache = cache
        self._enqueue = enqueue
        self._ending: set[str] = set()
        self._unreadable: set[str] = set()

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._ending

    async def round(self) -> None:
        """Asks about each namespace in which a resource has a finalizer of the operator's, or that was ending."""
        owners: defaultdict[str, list[ObjectKey]] = defaultdict(list)
        with_finalizer = set()
        for key in (key for kind in OWNERS for key in self._cache.keys(kind.kind)):
            owners[key.namespace].append(key)
            if (resource := self._cache.get(key)) is not None and has_our_finalizer(resource):
                with_finalizer.add(key.namespace)
        for namespace in self._namespaces:
            if namespace not in with_finalizer | self._ending or (ends := await self._ends(namespace)) is None:
                continue
            if ends != (namespace in self._ending):
                _log.warning("a namespace ends" if ends else "a namespace is there again", namespace=namespace)
                (self._ending.add if ends else self._ending.discard)(namespace)
                for key in owners[namespace]:
                    self._enqueue(key)

    async def _ends(self, namespace: str) -> bool | None:
        """Whether the namespace is being deleted; None if that is unknown: the namespace is gone, or unreadable."""
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
