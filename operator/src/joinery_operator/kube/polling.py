"""Polls the status of running drivers, and of the migrations before them: `GET http://<pod>:<port>/status`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError

from joinery_operator.decision import Manifest
from joinery_operator.kube.cache import ObjectCache, uid_of
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import JOB_KINDS, ObjectKey
from joinery_operator.manifests import MIGRATE_CONTAINER
from joinery_operator.names import ChildNames
from joinery_runtime.job.crd import DriverStatus

_TIMEOUT = aiohttp.ClientTimeout(total=3.0, sock_connect=1.5)
_CONCURRENT = 32
_LONGEST_ANSWER = 256 * 1024
_FIGURES: Mapping[str, Any] = {
    **dict.fromkeys(("epoch", "committed", "migrated", "inputs", "rows_per_second", "rows_in", "rows_out"), True),
    **dict.fromkeys(("late", "state_bytes", "hottest_keys", "executors", "tasks"), True),
    "waiting": {"reason"},  # its text may hold a figure
}


@dataclass(frozen=True, slots=True)
class DriverEndpoint:
    """A running driver, and its job."""

    job: ObjectKey
    job_uid: str
    pod_uid: str
    address: str


@dataclass(slots=True)
class _Answer:
    pod_uid: str
    status: DriverStatus
    rounds_unreported: int = 0


def current_driver(job: Manifest, cache: ObjectCache) -> Manifest | None:
    """Return the job's own pod for the attempt that the status names. A pod of that name may belong to an earlier
    job."""
    number = ((job.get("status") or {}).get("driver") or {}).get("number")
    if number is None:
        return None
    return cache.children(uid_of(job)).pods.get(ChildNames(job).driver(number))


def driver_endpoints(cache: ObjectCache, port: int) -> Iterator[DriverEndpoint]:
    """Yield where drivers, and the migrations before them, answer."""
    for kind in JOB_KINDS:
        for key in cache.keys(kind):
            job = cache.get(key)
            pod = current_driver(job, cache) if job else None
            if job is None or pod is None:
                continue
            status = pod.get("status") or {}
            restores = bool(job["status"]["driver"].get("restore"))  # such a pod does not answer
            migrates = any(
                container["name"] == MIGRATE_CONTAINER and "running" in (container.get("state") or {})
                for container in status.get("initContainerStatuses") or ()
            )
            answers = not restores and (migrates or status.get("phase") == "Running")
            if answers and (address := status.get("podIP")):
                host = f"[{address}]" if ":" in address else address
                yield DriverEndpoint(key, uid_of(job), uid_of(pod), f"http://{host}:{port}/status")


class Poller:
    """Polls drivers, as a context manager. Calls `due` with the jobs whose driver reported something new for the
    status: figures (lag, rows, watermarks) every `figures_rounds` rounds, anything else at once."""

    def __init__(
        self, cache: ObjectCache, port: int, metrics: Metrics, due: Callable[[ObjectKey], None], figures_rounds: int
    ) -> None:
        self._cache = cache
        self._port = port
        self._metrics = metrics
        self._due = due
        self._figures_rounds = figures_rounds
        self._answers: dict[str, _Answer] = {}

    async def __aenter__(self) -> Poller:
        connector = aiohttp.TCPConnector(limit=_CONCURRENT, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def last_status(self, job: Manifest) -> DriverStatus | None:
        """Return what the driver of the current attempt last reported."""
        answer = self._answers.get(uid_of(job))
        pod = current_driver(job, self._cache)
        return answer.status if answer and pod and uid_of(pod) == answer.pod_uid else None

    async def round(self) -> None:
        """Ask every driver once, some at a time."""
        endpoints = list(driver_endpoints(self._cache, self._port))
        slots = asyncio.Semaphore(_CONCURRENT)

        async def poll_driver(target: DriverEndpoint) -> None:
            async with slots:
                status = await self._ask_driver(target.address)
            if status is None:
                self._metrics.poll_failures.inc()
            else:
                self._record_report(target, status)

        await asyncio.gather(*(poll_driver(target) for target in endpoints))
        deleted_uids = {uid for uid in self._answers if self._cache.by_uid(uid) is None}
        for uid in deleted_uids - {target.job_uid for target in endpoints}:
            del self._answers[uid]

    async def _ask_driver(self, address: str) -> DriverStatus | None:
        try:
            async with self._session.get(address, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                text = await response.content.read(_LONGEST_ANSWER)
                while more := await response.content.read(_LONGEST_ANSWER):
                    text += more
                    if len(text) > _LONGEST_ANSWER:
                        return None
            return DriverStatus.model_validate_json(text)
        except (TimeoutError, aiohttp.ClientError, OSError, ValidationError):
            return None

    def _record_report(self, target: DriverEndpoint, status: DriverStatus) -> None:
        old = self._answers.get(target.job_uid)
        changes_more_than_figures = old is None or (
            (not old.status.committed and bool(status.committed))
            or old.status.model_dump(exclude=_FIGURES) != status.model_dump(exclude=_FIGURES)
        )
        if old is None or old.pod_uid != target.pod_uid or changes_more_than_figures:
            self._answers[target.job_uid] = _Answer(target.pod_uid, status)
            self._due(target.job)
            return
        old.rounds_unreported += old.status != status or old.rounds_unreported > 0
        old.status = status
        if old.rounds_unreported >= self._figures_rounds:
            old.rounds_unreported = 0
            self._due(target.job)
