"""Tells in words whether the operator works, as `/healthz` and `/readyz` beside `/metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import ObjectKey
from joinery_runtime.errors import EnvironmentProblem

# A reconcile makes only a few calls, each limited to about 90 s with all its retries.
HUNG_SECONDS = 600.0


class Health:
    """The operator's health. `running` are the jobs that are being reconciled, and since when; `clock` is in
    seconds."""

    def __init__(self, running: Callable[[], Mapping[ObjectKey, float]], clock: Callable[[], float]) -> None:
        self._running = running
        self._clock = clock
        self.synced = False
        self.ended: list[str] = []

    def live(self) -> Collection[str]:
        """Return the problems that only a restart can fix."""
        now = self._clock()
        hung = [
            f"the reconcile of {key} has run for {now - since:.0f} s"
            for key, since in self._running().items()
            if now - since > HUNG_SECONDS
        ]
        return [*hung, *self.ended]

    def ready(self) -> Collection[str]:
        return [] if self.synced else ["the objects of the cluster have not been read yet"]


_LONGEST_LIST = 20


class ProbeServer:
    """Serves probes and metrics, as a context manager. `collect` updates the gauges before they are read."""

    def __init__(self, port: int, health: Health, metrics: Metrics, collect: Callable[[], None]) -> None:
        self._port = port
        self._health = health
        self._metrics = metrics
        self._collect = collect

    async def __aenter__(self) -> ProbeServer:
        async def serve_metrics(_: web.Request) -> web.Response:
            self._collect()
            text = generate_latest(self._metrics.registry)
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

        application = web.Application()
        application.router.add_get("/metrics", serve_metrics)
        application.router.add_get("/healthz", _probe_handler(self._health.live))
        application.router.add_get("/readyz", _probe_handler(self._health.ready))
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, None, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise EnvironmentProblem(
                f"Port {self._port} for metrics and probes cannot be used",
                facts=str(error),
                todo="Set JOINERY_OPERATOR_METRICS_PORT to a free one",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def _probe_handler(find_problems: Callable[[], Collection[str]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve_probe(_: web.Request) -> web.Response:
        if not (problems := find_problems()):
            return web.Response(text="ok\n")
        return web.Response(status=503, text="\n".join(list(problems)[:_LONGEST_LIST]) + "\n")

    return serve_probe
