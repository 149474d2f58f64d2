"""The whole shell on an API server in memory, without kopf: the test is the watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from joinery_devkit.processes import free_port
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.reconciler import Reconcile
from joinery_operator.kube.resources import BY_KIND
from joinery_operator.observed import Manifest
from joinery_operator.settings import Settings
from operator_world.memory_server import MemoryApi, MemoryServer
from operator_world.stand_in import reconcile

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def controller_on(
    server: MemoryServer, decide: Reconcile = reconcile, clock: Callable[[], float] | None = None
) -> AsyncIterator[Controller]:
    metrics = Metrics()
    async with MemoryApi(server, metrics) as api:
        settings = Settings(metrics_port=free_port(), poll_seconds=1000.0)
        loop = asyncio.get_running_loop()
        async with Controller(settings, api, decide, metrics, clock=clock or loop.time, now=lambda: NOW) as controller:
            yield controller


async def settled(controller: Controller) -> None:
    """Until no job waits for a look."""
    while controller.feed.queue.waiting() or controller.feed.queue.running():
        await asyncio.sleep(0)


def tell(controller: Controller, manifest: Manifest, deleted: bool = False) -> Awaitable[None]:
    """An event of a watch."""
    return controller.on_watch_event(BY_KIND[manifest["kind"]], manifest, deleted)
