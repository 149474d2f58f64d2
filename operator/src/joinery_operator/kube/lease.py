"""The Lease of an operator with several replicas: the one that holds it works, the others stand by.

As client-go's leader election: the holder renews the Lease, and a replica that has seen no renewal for the Lease's
duration, by its own clock, takes it. Unlike there, a holder that cannot reach the API server does not stop: it can do
nothing anyway, and for a moment two operators do no harm (docs/decisions/0007).
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from time import monotonic

import structlog

from joinery_operator.decision import Manifest
from joinery_operator.kube.api import Api, ApiError, Conflict, NotFound
from joinery_operator.kube.events import COMPONENT
from joinery_operator.kube.resources import LEASE
from joinery_operator.settings import Settings
from joinery_runtime.errors import EnvironmentProblem

_log = structlog.get_logger(COMPONENT)

LEASE_SECONDS = 10
RENEW_SECONDS = 3.0
POLL_SECONDS = 2.0
_CALL_SECONDS = 4.0
"""The client's own retries would outlast the Lease."""


class OperatorLease:
    """The Lease `namespace/name`, for one replica. `lost` ends when another replica has taken it. `clock` is in
    seconds, `now` the time in UTC."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        now: Callable[[], datetime],
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._namespace, self._name, self._identity = namespace, name, identity
        self._now, self._clock, self._sleep = now, clock, sleep
        self._written: Manifest | None = None
        self._observed: tuple[object, ...] = ()
        self._observed_at = 0.0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost.cancel()

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease, and then renew it in the background."""
        if not self.lost.done():
            return

        async def renew_until_lost() -> None:
            while True:
                await self._sleep(RENEW_SECONDS)
                if await self._try_to_hold() is False:
                    return

        while await self._try_to_hold() is not True:
            await self._sleep(POLL_SECONDS)
        self.lost = asyncio.create_task(renew_until_lost(), name="renewals of the Lease")

    async def release(self) -> None:
        """Give the Lease up, if this replica holds it, so that another one need not wait for its end."""
        self.lost.cancel()
        lease, self._written = self._written, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(LEASE, {**lease, "spec": spec})
        except (ApiError, TimeoutError) as error:
            _log.warning("the Lease could not be released: the next operator waits for its end", error=str(error))

    async def _try_to_hold(self) -> bool | None:
        """Return whether this replica holds the Lease now, which it takes or renews if it may; None if that is
        unknown."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                lease = self._written or await self._read_or_create()
                spec = dict(lease["spec"])
                holder = spec.get("holderIdentity")
                if (observed := (holder, spec.get("renewTime"), spec.get("leaseTransitions"))) != self._observed:
                    self._observed, self._observed_at = observed, self._clock()
                ends = self._observed_at + (spec.get("leaseDurationSeconds") or LEASE_SECONDS)
                if holder and holder != self._identity and self._clock() < ends:
                    return False
                now = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
                spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
                if holder != self._identity:
                    spec |= {"acquireTime": now, "leaseTransitions": (spec.get("leaseTransitions") or 0) + 1}
                self._written = await self._api.replace(LEASE, {**lease, "spec": spec})
                return True
        except (Conflict, NotFound):
            self._written = None  # another replica has written it, or a person has
            return None
        except (ApiError, TimeoutError) as error:
            _log.warning("the Lease could not be read or renewed", error=str(error) or f"within {_CALL_SECONDS:g} s")
            return None

    async def _read_or_create(self) -> Manifest:
        """Read the Lease, or create one that nobody holds."""
        try:
            return await self._api.get(LEASE, self._namespace, self._name)
        except NotFound:
            metadata = {"name": self._name, "namespace": self._namespace}
            manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": {}}
            return await self._api.create(LEASE, self._namespace, manifest)


async def shared_lease(settings: Settings, api: Api, now: Callable[[], datetime]) -> OperatorLease | None:
    """Return the Lease that the replicas share; None if there is one replica. Raises EnvironmentProblem if permissions
    on it are missing."""
    if not settings.lease:
        return None
    namespace, name = settings.lease.split("/")
    needed = {"create": "", "get": name, "update": name}  # no rule can name what does not exist yet
    missing = [
        verb for verb, on_name in needed.items() if not await api.has_permission(LEASE, namespace, verb, name=on_name)
    ]
    if missing:
        raise EnvironmentProblem(
            "The operator's service account lacks permissions",
            facts=f"{', '.join(missing)} {LEASE.plural}.{LEASE.group} {name} in namespace {namespace}",
            todo="Bind it to the chart's role there (rbac.create), or run one replica (operator.replicas: 1)",
        )
    # As a pod keeps its name when its container starts again.
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    return OperatorLease(api, namespace, name, identity, now)
