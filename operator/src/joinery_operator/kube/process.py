"""The process: logs in, checks what must be there, and works until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import kopf
import structlog
from kubernetes.aio.client import Configuration

from joinery_operator.kube import preflight
from joinery_operator.kube.api import Api
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.events import COMPONENT
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.reconciler import Reconcile
from joinery_operator.kube.watches import credentials_for_kopf, kopf_settings, load_connection, registry
from joinery_operator.settings import Settings
from joinery_runtime.errors import EnvironmentProblem

# kopf says a line per event and per handler; aiohttp's server one per request.
_QUIET = ("kopf", "aiohttp", "asyncio", "kubernetes")


def log_json(stream: TextIO = sys.stderr) -> None:
    """JSON lines on standard error, those of kopf and other libraries included. Called once in a process."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger(COMPONENT).setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


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
        async with Controller(settings, api, reconcile, metrics, socket.gethostname()) as controller:
            _log.info("the operator works", namespaces=list(settings.namespaces) or "all")
            await _watch(settings, registry(controller.on_watch_event, log_in, controller.close))
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
