"""Runs the operator's process: logs in, checks the environment, and works until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

import kopf
import structlog
from kubernetes.aio.client import Configuration

from joinery_operator.kube.api import Api, ApiError
from joinery_operator.kube.cache import uid_of
from joinery_operator.kube.controller import Controller, utc_now
from joinery_operator.kube.events import COMPONENT
from joinery_operator.kube.lease import OperatorLease, shared_lease
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.probes import Health, ProbeServer
from joinery_operator.kube.reconciler import Reconcile
from joinery_operator.kube.resources import (
    BLUE_GREEN,
    CHILDREN,
    EVENT,
    HTTP_ROUTE,
    INGRESS,
    JOBS,
    NAMESPACE,
    PAGE_KINDS,
    SAVEPOINT,
    SECURITY_CONTEXT_CONSTRAINTS,
    WATCHED,
    ApiResource,
)
from joinery_operator.kube.watches import credentials_for_kopf, kopf_settings, load_connection, registry
from joinery_operator.pod_defaults import PodSecurity, pod_defaults
from joinery_operator.settings import Settings
from joinery_runtime.errors import EnvironmentProblem

# kopf logs a line per event and per handler; aiohttp's server one per request.
_QUIET = ("kopf", "aiohttp", "asyncio", "kubernetes")


def log_json(stream: TextIO = sys.stderr) -> None:
    """Set up logging as JSON lines on standard error, including kopf and other libraries. Called once in a process."""
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

_KOPF_STOP_SECONDS = 10.0
_STAND_BY_SECONDS = 1.0
"""A replica that has to wait no longer for its Lease is not told to stand by."""
REGAIN_SECONDS = 30.0
"""How often the operator asks whether it has permissions again in namespaces that it excludes."""

_SYSTEM = "kube-system"

MakeApi = Callable[[Configuration, Metrics], Api]
LogIn = Callable[[], Awaitable[kopf.ConnectionInfo]]


async def serve(
    settings: Settings, reconcile: Reconcile, kubeconfig: Path | None = None, make_api: MakeApi = Api
) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises EnvironmentProblem if it cannot start, and CancelledError for a
    signal before it has started."""
    _cancel_at_signals()
    configuration = await load_connection(kubeconfig)

    async def log_in() -> kopf.ConnectionInfo:
        # kopf asks again when its token is no longer accepted; a kubeconfig's login may then give another one.
        configuration.api_key.update((await load_connection(kubeconfig)).api_key)
        return await credentials_for_kopf(configuration)

    metrics = Metrics()
    async with make_api(configuration, metrics) as api, AsyncExitStack() as stack:
        usable = await check_environment(api, settings.namespaces, metrics)
        settings = await with_cluster_defaults(api, settings)
        settings = replace(settings, cluster=settings.cluster or await cluster_uid(api))
        lease = await shared_lease(settings, api, utc_now)
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if lease is not None:
            stack.push_async_callback(lease.release)
        while True:
            if lease is not None:
                await _stand_by(lease, settings, metrics)
                lost = lease.lost
            metrics.leader.set(1)
            current_settings = replace(settings, namespaces=usable)
            watched = (*WATCHED, *await watched_page_kinds(api, current_settings))
            if not await watches_blue_green(api, current_settings):
                watched = tuple(resource for resource in watched if resource != BLUE_GREEN)
            excluded = [name for name in settings.namespaces if name not in usable]
            async with Controller(
                current_settings, api, reconcile, metrics, socket.gethostname(), watched=watched
            ) as controller:
                _log.info("the operator works", namespaces=list(usable) or "all")
                regained = wait_until_regained(api, excluded, settings)
                ended = await _watch(current_settings, controller, log_in, regained, lost)
            if ended is None:
                break
            if isinstance(ended, _LeaseLost):
                _log.warning("another replica has taken the Lease: this one stands by", lease=settings.lease)
                continue
            if isinstance(ended, Exception):
                # kopf gives up if a single namespace is forbidden; the operator continues at once without it.
                before, usable = usable, await check_environment(api, usable, metrics)
                if usable == before:
                    raise EnvironmentProblem(
                        "The operator can no longer watch the API server", facts=repr(ended), todo="Start it again"
                    ) from ended
                continue
            for name in ended:
                metrics.excluded.labels(name).set(0)
                _log.info("the operator works again in a namespace that was excluded", namespace=name)
            usable = tuple(name for name in settings.namespaces if name in {*usable, *ended})
    _log.info("the operator has ended")


def _handle_signals(act: Callable[[], object]) -> None:
    """Install a handler of SIGTERM, which the first process of a container would ignore without one."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, act)


def _cancel_at_signals() -> None:
    """Cancel the task at a signal, until the watches have handlers of their own."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    _handle_signals(task.cancel)


class _LeaseLost(Exception):
    """Another replica works now."""


async def _stand_by(lease: OperatorLease, settings: Settings, metrics: Metrics) -> None:
    """Return once this replica is to work. Until then it answers probes, as one that is ready to."""
    acquired = asyncio.ensure_future(lease.acquire())
    try:
        await asyncio.wait({acquired}, timeout=_STAND_BY_SECONDS)
        if not acquired.done():
            metrics.leader.set(0)
            _log.info("the operator stands by", lease=settings.lease)
            health = Health(dict, monotonic)
            health.synced = True
            async with ProbeServer(settings.metrics_port, health, metrics, lambda: None):
                await acquired
        acquired.result()
    finally:
        acquired.cancel()


async def wait_until_regained(api: Api, excluded: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Wait until the operator has all of its permissions again in some of these namespaces, and return those: a
    namespace and the operator's role in it were created again."""
    permissions = (
        *PERMISSIONS,
        *(permission for kind in _wanted_page_kinds(settings) for permission in page_permissions(kind)),
    )
    while True:
        await asyncio.sleep(REGAIN_SECONDS)
        try:
            lacking = {namespace for namespace, _ in await _missing_permissions(api, excluded, permissions)}
        except ApiError as error:
            _log.warning("the permissions in excluded namespaces could not be checked", error=str(error))
            continue
        if back := tuple(name for name in excluded if name not in lacking):
            return back


async def _watch(
    settings: Settings,
    controller: Controller,
    log_in: LogIn,
    regained: Coroutine[None, None, tuple[str, ...]],
    lost: asyncio.Future[None],
) -> tuple[str, ...] | Exception | None:
    """Watch until `regained` yields further namespaces, which it returns; until `lost` ends (_LeaseLost); until SIGTERM
    (None); or until kopf gives up, and returns why."""
    closed, stop, terminated = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def close() -> None:
        await controller.close()
        closed.set()

    def terminate() -> None:
        terminated.set()
        stop.set()

    watching = asyncio.create_task(
        _run_kopf(
            registry(controller.on_watch_event, log_in, close, controller.watched), settings, stop, at_signal=terminate
        )
    )
    closing, regaining = asyncio.create_task(closed.wait()), asyncio.create_task(regained)
    ended: tuple[str, ...] | Exception | None = None
    ends: set[asyncio.Future[Any]] = {watching, closing, regaining, lost}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if regaining.done():
            ended = regaining.result()
        elif lost.done():
            lost.result()
            ended = _LeaseLost()
        if ended is not None:
            stop.set()
        # kopf 1.45 may then wait for ever for a login from a part of it that has ended.
        await asyncio.wait_for(watching, _KOPF_STOP_SECONDS)
    except Exception as error:
        if ended is None and not terminated.is_set():
            _log.exception("the watches have ended")
            ended = error
    finally:
        for task in (closing, regaining, watching):
            task.cancel()
    if terminated.is_set():
        return None
    if ended is not None:
        _cancel_at_signals()
    return ended


async def _run_kopf(
    handlers: kopf.OperatorRegistry, settings: Settings, stop: asyncio.Event, at_signal: Callable[[], None]
) -> None:
    """Watch until `stop` is set, as `kopf.operator` does, whose handlers forget a signal that comes while it stops for
    other reasons."""
    other_tasks = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=handlers,
        settings=kopf_settings(settings.owner_selector),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        stop_flag=stop,
    )
    _handle_signals(at_signal)
    await kopf.run_tasks(tasks, ignored=other_tasks)


# What the operator needs before it starts. Each lack is an error that says what to do


@dataclass(frozen=True, slots=True)
class Permission:
    resource: ApiResource
    verb: str
    subresource: str = ""

    def __str__(self) -> str:
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"{self.verb} {self.resource.plural}{group}{'/' if self.subresource else ''}{self.subresource}"


_OF_CHILDREN = ("get", "list", "watch", "create", "patch", "delete")
_OF_OWNERS = ("get", "list", "watch", "patch")
_REQUIRED_OWNERS = (*JOBS, SAVEPOINT)
PERMISSIONS: Sequence[Permission] = (
    *(Permission(owner, verb) for owner in _REQUIRED_OWNERS for verb in _OF_OWNERS),
    *(Permission(owner, "update", "status") for owner in _REQUIRED_OWNERS),
    *(Permission(child, verb) for child in CHILDREN for verb in _OF_CHILDREN),
    *(Permission(EVENT, verb) for verb in ("create", "patch")),
)
"""The permissions that the operator needs in each of its namespaces. If the API server checks owner references, it also
needs `update` of the owners' subresource `finalizers`."""


BLUE_GREEN_PERMISSIONS: Sequence[Permission] = (
    *(Permission(BLUE_GREEN, verb) for verb in _OF_OWNERS),
    Permission(BLUE_GREEN, "update", "status"),
    *(Permission(job, verb) for job in JOBS for verb in ("create", "delete")),
)
"""What the operator needs, in each of its namespaces, to work on BlueGreenJobs."""


def page_permissions(kind: ApiResource) -> Sequence[Permission]:
    """Return the permissions needed if jobs' pages have objects of this kind."""
    return tuple(Permission(kind, verb) for verb in _OF_CHILDREN)


async def check_environment(api: Api, namespaces: Sequence[str], metrics: Metrics) -> tuple[str, ...]:
    """Return the namespaces to work in. Raises EnvironmentProblem if the API server does not answer, or if CRDs or
    permissions are missing; the error names all missing permissions."""
    try:
        missing = [owner for owner in _REQUIRED_OWNERS if not await api.is_served(owner)]
    except ApiError as error:
        raise EnvironmentProblem(
            "The API server does not answer the operator",
            facts=str(error),
            todo="Check the address and the login in its kubeconfig or service account",
        ) from error
    if missing:
        raise EnvironmentProblem(
            "Joinery's CustomResourceDefinitions are missing",
            facts=", ".join(f"{owner.plural}.{owner.group} ({owner.version})" for owner in missing),
            todo="Apply them (folder crds/, or `joinery crds | kubectl apply --server-side -f -`), then start again",
        )
    refused = await _missing_permissions(api, namespaces or (None,), PERMISSIONS)
    lacking = Counter(namespace for namespace, _ in refused)
    # A namespace without any permission was usually deleted, and its RoleBinding with it. It is excluded, because kopf
    # ends all watches if a single namespace is forbidden.
    usable = tuple(name for name in dict.fromkeys(namespaces) if lacking[name] < len(PERMISSIONS))
    needed = [f"{permission} in {_scope_text(name)}" for name, permission in refused if not usable or name in usable]
    if needed:
        raise EnvironmentProblem(
            "The operator's service account lacks permissions",
            facts="; ".join(needed),
            todo="Bind it to the chart's role there, or set JOINERY_OPERATOR_NAMESPACES to where it has them",
        )
    for namespace in namespaces:
        excluded = namespace not in usable
        metrics.excluded.labels(namespace).set(excluded)
        if excluded:
            _log.warning(
                "a namespace is excluded, because the operator has no permissions there; it works in the others",
                namespace=namespace,
                todo="take a deleted namespace out of watch.namespaces, or make it and its RoleBinding again (helm "
                "upgrade): the operator then works on it by itself",
            )
    return usable


async def with_cluster_defaults(api: Api, settings: Settings) -> Settings:
    """Return the settings, without the image's user in OpenShift, which gives each namespace users and groups of its
    own and rejects pods with others. What the installation says counts. Raises ApiError."""
    defaults = pod_defaults(settings.pod_defaults)
    if defaults.pod_security is not None or not await api.is_served(SECURITY_CONTEXT_CONSTRAINTS):
        return settings
    defaults = defaults.model_copy(update={"pod_security": PodSecurity()})
    return replace(settings, pod_defaults=defaults.model_dump_json(by_alias=True, exclude_none=True))


async def cluster_uid(api: Api) -> str:
    """Return the uid of the namespace kube-system, which stands for the cluster. Raises EnvironmentProblem."""
    try:
        return uid_of(await api.get(NAMESPACE, None, _SYSTEM))
    except ApiError as error:
        raise EnvironmentProblem(
            "The operator does not know its cluster, which owns the states of its jobs",
            facts=str(error),
            todo=f"Allow it to get the namespace {_SYSTEM} (rbac.create of the chart does), or set cluster of the "
            "chart: a name that no other cluster with the same Postgres has, and that never changes",
        ) from error


def _wanted_page_kinds(settings: Settings) -> tuple[ApiResource, ...]:
    setting_of_kind = {INGRESS: settings.page_ingress, HTTP_ROUTE: settings.page_route}
    return tuple(kind for kind in PAGE_KINDS if setting_of_kind[kind])


async def watched_page_kinds(api: Api, settings: Settings) -> tuple[ApiResource, ...]:
    """Return which of the kinds that lead to jobs' pages are watched: those that the installation wants, and others if
    that is possible, so that objects of an earlier setting are deleted. Raises EnvironmentProblem."""
    required, watched = _wanted_page_kinds(settings), list[ApiResource]()
    for kind in PAGE_KINDS:
        chart_value = "jobPage.ingress" if kind == INGRESS else "jobPage.httpRoute"
        served = await api.is_served(kind)
        if kind in required and not served:
            remedy = "Enable that API in kube-apiserver" if kind == INGRESS else "Install the Gateway API"
            raise EnvironmentProblem(
                f"The API server serves no {kind.plural}",
                facts=f"{kind.plural}.{kind.group} ({kind.version}) is missing",
                todo=f"{remedy}, or turn {chart_value} of the chart off",
            )
        namespaces = (settings.namespaces or (None,)) if served else ()
        missing = await _missing_permissions(api, namespaces, page_permissions(kind))
        refused = dict.fromkeys(namespace for namespace, _ in missing)
        if kind in required and refused:
            scopes = ", ".join(map(_scope_text, refused))
            raise EnvironmentProblem(
                "The operator's service account lacks permissions",
                facts=f"{', '.join(_OF_CHILDREN)} {kind.plural}.{kind.group} in {scopes}",
                todo=f"Bind it to the chart's role there, or turn {chart_value} of the chart off",
            )
        if served and not refused:
            watched.append(kind)
    return tuple(watched)


async def watches_blue_green(api: Api, settings: Settings) -> bool:
    """Return whether the operator can work on BlueGreenJobs. An installation of an earlier release has neither the
    definition nor the permissions, and needs neither for its jobs. Says what is missing."""
    if not await api.is_served(BLUE_GREEN):
        _log.warning(
            "BlueGreenJobs are left alone: their definition is missing",
            todo="to use them, apply it (folder crds/, or `joinery crds | kubectl apply --server-side -f -`), and "
            "restart the operator",
        )
        return False
    refused = await _missing_permissions(api, settings.namespaces or (None,), BLUE_GREEN_PERMISSIONS)
    if refused:
        _log.warning(
            "BlueGreenJobs are left alone: the operator's service account lacks permissions",
            missing="; ".join(f"{permission} in {_scope_text(name)}" for name, permission in refused),
            todo="to use them, bind it to the chart's role there, and restart the operator",
        )
    return not refused


async def _missing_permissions(
    api: Api, namespaces: Sequence[str | None], permissions: Sequence[Permission]
) -> list[tuple[str | None, Permission]]:
    """Return which of these permissions the operator lacks, and where (None: in all namespaces). Raises ApiError."""
    requirements = [(namespace, permission) for namespace in namespaces for permission in permissions]
    answers = await asyncio.gather(
        *(
            api.has_permission(permission.resource, namespace, permission.verb, permission.subresource)
            for namespace, permission in requirements
        )
    )
    return [requirement for requirement, allowed in zip(requirements, answers, strict=True) if not allowed]


def _scope_text(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "all namespaces"
