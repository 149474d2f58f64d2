"""The process: logs in, checks what must be there, and works until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import kopf
import structlog
from kubernetes.aio.client import Configuration

from joinery_operator.settings import Settings
from joinery_operator.shell import preflight
from joinery_operator.shell.api import Api
from joinery_operator.shell.connection import credentials_for_kopf, load_connection
from joinery_operator.shell.metrics import Metrics
from joinery_operator.shell.recorder import COMPONENT
from joinery_operator.shell.shell import Shell
from joinery_operator.shell.watches import kopf_settings, registry
from joinery_operator.shell.worker import Reconcile
from joinery_runtime.errors import EnvironmentProblem

_log = structlog.get_logger(COMPONENT)

MakeApi = Callable[[Configuration, Metrics], Api]


async def serve(
    settings: Settings, reconcile: Reconcile, kubeconfig: Path | None = None, make_api: MakeApi = Api
) -> None:
    """Returns after SIGTERM or SIGINT. Raises EnvironmentProblem for what keeps it from starting, CancelledError for a
    signal before that."""
    _cancel_at_signals()
    configuration = await load_connection(kubeconfig)

    async def log_in() -> kopf.ConnectionInfo:
        # kopf asks again when its token is no longer taken; a kubeconfig's login may then give another one.
        configuration.api_key.update((await load_connection(kubeconfig)).api_key)
        return await credentials_for_kopf(configuration)

    metrics = Metrics()
    async with make_api(configuration, metrics) as api:
        await preflight.check(api, settings.namespaces)
        async with Shell(settings, api, reconcile, metrics, socket.gethostname()) as shell:
            _log.info("the operator works", namespaces=list(settings.namespaces) or "all")
            await _watch(settings, registry(shell.told, log_in, shell.close))
    _log.info("the operator has ended")


def _cancel_at_signals() -> None:
    """Until kopf puts its own handlers in their place; the first process of a container would ignore SIGTERM."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)


async def _watch(settings: Settings, handlers: kopf.OperatorRegistry) -> None:
    """Until SIGTERM. Raises EnvironmentProblem when kopf gives up, which is for Kubernetes to start the pod anew."""
    try:
        await kopf.operator(
            registry=handlers,
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
        )
    except Exception as error:
        _log.exception("the watches have ended")
        raise EnvironmentProblem(
            "The operator can no longer watch the API server", facts=repr(error), todo="Start it again"
        ) from error
