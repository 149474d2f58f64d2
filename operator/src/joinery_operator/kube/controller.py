"""All parts of the operator in one process, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import structlog

from joinery_operator.decision import Manifest
from joinery_operator.kube.api import Api, ApiError
from joinery_operator.kube.apply import Applier, complete_manifest, current_copy
from joinery_operator.kube.audit import Auditor, EndingNamespaces
from joinery_operator.kube.cache import (
    ObjectCache,
    blue_greens_beside,
    key_of,
    name_conflicts,
    page_conflicts,
    savepoints_of,
    uid_of,
)
from joinery_operator.kube.events import COMPONENT, EventRecorder
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.polling import Poller
from joinery_operator.kube.probes import Health, ProbeServer
from joinery_operator.kube.reconciler import JobReconciler, Observer, PodTemplateCache, Reconcile
from joinery_operator.kube.resources import OWNERS, WATCHED, ApiResource, ObjectKey
from joinery_operator.kube.workqueue import WorkQueueFeed
from joinery_operator.settings import Settings

WORKERS = 8
AUDIT_SECONDS = 60.0
NAMESPACE_SECONDS = 1.0
# kopf lists again after the controller did, and no watch reports what was deleted in between.
FIRST_AUDIT_SECONDS = 5.0
STOP_SECONDS = 20.0

_log = structlog.get_logger(COMPONENT)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Controller:
    """Runs the operator, as a context manager: on entry it has read everything, and works. Watches report through
    `on_watch_event`.

    `instance` is this operator's name in Events; `clock` returns seconds, `now` the time in UTC.
    """

    def __init__(
        self,
        settings: Settings,
        api: Api,
        reconcile: Reconcile,
        metrics: Metrics,
        instance: str = COMPONENT,
        clock: Callable[[], float] = monotonic,
        now: Callable[[], datetime] = utc_now,
        watched: Sequence[ApiResource] = WATCHED,
    ) -> None:
        self._settings = settings
        self._api = api
        self._metrics = metrics
        self._now = now
        self.watched = watched
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self._stopping = False
        self.cache = ObjectCache(settings.selects)
        self.feed: WorkQueueFeed[ObjectKey] = WorkQueueFeed(clock)
        figures_rounds = max(1, round(settings.figures_seconds / settings.poll_seconds))
        self.poller = Poller(self.cache, settings.status_port, metrics, self.feed.add, figures_rounds)
        self.health = Health(self.feed.queue.running, clock)
        self._ending_namespaces = EndingNamespaces(api, settings.namespaces, self.cache, self.feed.add)
        templates = PodTemplateCache(api, clock)
        observer = Observer(settings, api, self.cache, templates, self.poller, self._ending_namespaces, now)
        self._reconciler = JobReconciler(
            reconcile,
            observer,
            Applier(api, self.cache),
            EventRecorder(api, instance, now, settings.pod),
            self.cache,
            metrics,
            self.feed.add,
        )
        self.auditor = Auditor(api, settings, self.cache, self._enqueue, self._reconciler.report_end, metrics, watched)

    async def __aenter__(self) -> Controller:
        async with self._stack as stack:
            await stack.enter_async_context(
                ProbeServer(self._settings.metrics_port, self.health, self._metrics, self._collect)
            )
            await stack.enter_async_context(self.poller)
            await self.auditor.fill()
            self.health.synced = True
            self._workers = [
                self._start_task(f"worker {number}", self._reconcile_queued()) for number in range(WORKERS)
            ]
            poll, seconds = self.poller.round, self._settings.poll_seconds
            self._tasks = [
                self._start_task("polls of drivers", self._run_every(seconds, seconds, poll)),
                self._start_task("audits", self._run_every(FIRST_AUDIT_SECONDS, AUDIT_SECONDS, self.auditor.round)),
            ]
            if self._settings.namespaces:  # a ClusterRole stays when a namespace ends
                ends = self._run_every(NAMESPACE_SECONDS, NAMESPACE_SECONDS, self._ending_namespaces.round)
                self._tasks.append(self._start_task("the ends of namespaces", ends))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Start no more reconciles, and let running ones finish (20 s at most). The next operator does the rest."""
        self._stopping = True
        self.feed.close()
        for task in self._tasks:
            task.cancel()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=STOP_SECONDS)
            for task in late:
                _log.warning("a reconcile did not end in time", task=task.get_name())
                task.cancel()
        await asyncio.gather(*self._tasks, *self._workers, return_exceptions=True)
        await self._stack.aclose()
        # The process may stand by from here on. The replica that works tells of the jobs.
        self._metrics.healthy.set(0)
        self._metrics.set_jobs(())

    async def on_watch_event(self, resource: ApiResource, manifest: Manifest, deleted: bool) -> None:
        """Take an event of a watch."""
        self._metrics.watch_events.labels(resource.kind).inc()
        self._metrics.watch_time.labels(resource.kind).set(self._now().timestamp())
        complete = complete_manifest(manifest, resource)
        key = key_of(complete, resource.kind)
        # What lost the labels by which it is watched disappears from the watch, but still exists. So may an object that
        # is being deleted: a finalizer or a grace period keeps it.
        if deleted:
            try:
                current = await current_copy(self._api, resource, key, uid_of(complete))
            except ApiError:
                current = complete  # the next audit asks again
            if current is not None:
                complete, deleted = current, False
        owner = self.cache.owner_of(complete, resource.kind)
        blue_green = self.cache.blue_green_of(complete, resource.kind)
        before = None if deleted else self.cache.get(key)
        concerns_blue_greens = self.cache.concerns_blue_greens(before, complete, resource.kind)
        if self.cache.apply_watch_event(complete, resource.kind, deleted) and owner is not None:
            self._enqueue(owner, blue_greens=concerns_blue_greens)
            if blue_green is not None and concerns_blue_greens:
                self.feed.add(blue_green)
        if deleted and resource in OWNERS:
            # The last copy comes with the watch: a reconcile that met the end before knows an older one.
            await self._reconciler.report_end(complete)

    def _enqueue(self, owner: ObjectKey, *, blue_greens: bool = True) -> None:
        """Queue a resource that has changed, and what may depend on it: jobs of other kinds with its name, jobs whose
        pages would have its address, and the savepoints of a job that ends. With `blue_greens`, also the BlueGreenJob
        of a job, and those whose jobs write where it writes."""
        cached = self.cache.get(owner)
        ends = cached is None or cached["metadata"].get("deletionTimestamp")
        dependents = {*name_conflicts(owner, self.cache), *page_conflicts(owner, self.cache, self._settings)}
        if ends:
            dependents.update(savepoints_of(owner, self.cache))
        if blue_greens:
            dependents.update(blue_greens_beside(owner, self.cache))
            if cached is not None and (blue_green := self.cache.blue_green_of(cached, owner.kind)) is not None:
                dependents.add(blue_green)
        for key in (owner, *sorted(dependents)):
            self.feed.add(key)

    async def _reconcile_queued(self) -> None:
        while (key := await self.feed.take()) is not None:
            try:
                result = await self._reconciler.run(key)
            except Exception:
                # The reconciler has reported the error.
                self.feed.retry(key)
            else:
                end = self.feed.retry if result.failed else self.feed.finish
                end(key, result.again_after)

    async def _run_every(self, first: float, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(first)
        while True:
            try:
                await act()
            except Exception:
                _log.exception("a regular task failed; it is tried again", task=act.__qualname__)
            await asyncio.sleep(seconds)

    def _start_task(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)

        def record_end(_: asyncio.Task[None]) -> None:
            if not self._stopping:
                self.health.ended.append(f"{name} has ended")

        task.add_done_callback(record_end)
        return task

    def _collect(self) -> None:
        self._metrics.queue_depth.set(self.feed.queue.waiting())
        self._metrics.healthy.set(not self.health.live() and not self.health.ready())
        self._metrics.set_jobs(self.cache.jobs(), self.cache.blue_greens())
        for kind, number in self.cache.count(resource.kind for resource in self.watched).items():
            self._metrics.objects.labels(kind).set(number)
