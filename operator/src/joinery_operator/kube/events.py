"""Writes Kubernetes Events about jobs. As in other controllers, a repeated Event increases the count of the existing
one, and one object gets a limited number of Events at a time."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from joinery_operator.decision import Event, Manifest
from joinery_operator.kube.api import Api, ApiError, NotFound
from joinery_operator.kube.cache import uid_of
from joinery_operator.kube.resources import EVENT, POD

COMPONENT = "joinery-operator"
_REMEMBERED = 2_000
_LONGEST_MESSAGE = 1_024
_LONGEST_NAME = 200
_BURST, _ANOTHER_SECONDS = 25, 300.0
"""As many Events about one object as kubelets and controllers tell at once, and how soon they tell another one then."""

_log = structlog.get_logger(COMPONENT)


@dataclass(slots=True)
class _Recorded:
    name: str
    count: int


@dataclass(slots=True)
class _Allowance:
    """How many Events about one object may be told, as of then."""

    tokens: float
    then: datetime

    def take(self, now: datetime) -> bool:
        """Use up one Event, and return whether there was one left."""
        gained = max((now - self.then).total_seconds(), 0.0) / _ANOTHER_SECONDS
        self.tokens, self.then = min(self.tokens + gained, float(_BURST)), now
        is_left = self.tokens >= 1
        self.tokens -= is_left
        return is_left


class EventRecorder:
    """Writes Events. `instance` is this operator's name (its pod); `now` returns the time in UTC. `pod` is the
    operator's own pod (namespace/name/uid), for Events that outlive a namespace; "": such Events are only logged."""

    def __init__(self, api: Api, instance: str, now: Callable[[], datetime], pod: str = "") -> None:
        self._pod: Manifest | None = None
        if pod:
            namespace, name, uid = pod.split("/")
            metadata = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": ""}
            self._pod = {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": metadata}
        self._api = api
        self._instance = instance
        self._now = now
        self._recorded: OrderedDict[str, _Recorded] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    async def record(self, job: Manifest, event: Event) -> None:
        """Write an Event, unless its object has used up its allowance. Never raises ApiError: a failure to write an
        Event must not stop a job."""
        if event.outlives_namespace:
            if self._pod is None:
                return
            job = self._pod
        allowance = self._allowances.pop(uid_of(job), None) or _Allowance(_BURST, self._now())
        self._allowances[uid_of(job)] = allowance
        if len(self._allowances) > _REMEMBERED:
            self._allowances.popitem(last=False)
        if not allowance.take(self._now()):
            return
        identity = (uid_of(job), event.type, event.reason, event.message)
        digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()
        recorded = self._recorded.get(digest)
        try:
            if recorded is not None:
                body = {"count": recorded.count + 1, "lastTimestamp": self._time()}
                with suppress(NotFound):  # Events live for an hour
                    await self._api.patch(EVENT, job["metadata"]["namespace"], recorded.name, body)
                    recorded.count += 1
                    self._recorded.move_to_end(digest)
                    return
            created = await self._api.create(EVENT, job["metadata"]["namespace"], self._event(job, event, digest))
        except ApiError as error:
            _log.warning("an Event could not be written", job=job["metadata"]["name"], error=str(error))
            return
        self._recorded[digest] = _Recorded(created["metadata"]["name"], 1)
        if len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)

    def _event(self, job: Manifest, event: Event, digest: str) -> dict[str, Any]:
        metadata = job["metadata"]
        moment = f"{int(self._now().timestamp() * 1_000_000):x}"
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {
                "name": f"{metadata['name'][:_LONGEST_NAME]}.{digest[:8]}{moment}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": job["apiVersion"],
                "kind": job["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_LONGEST_MESSAGE],
            "count": 1,
            "firstTimestamp": self._time(),
            "lastTimestamp": self._time(),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }

    def _time(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
