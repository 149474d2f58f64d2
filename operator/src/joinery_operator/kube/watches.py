"""Logs in to the API server, once for the operator's own calls and for kopf, and sets up the watches, which kopf runs.

kopf has `on.event` handlers only, for which it stores nothing on the objects: no finalizer, no annotation
(docs/decisions/0007)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import kopf
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from joinery_operator.decision import Manifest
from joinery_operator.kube.resources import ALL_CHILDREN, OWNERS, WATCHED, ApiResource
from joinery_runtime.errors import EnvironmentProblem


async def load_connection(kubeconfig: Path | None) -> Configuration:
    """Load the given kubeconfig (or `$KUBECONFIG`), else the pod's service account. In a pod the token is read again
    every minute. Raises EnvironmentProblem."""
    configuration = Configuration()
    config_file = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG", "")
    try:
        if config_file:
            await load_kube_config(config_file=config_file, client_configuration=configuration)
        else:
            load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        source = f"kubeconfig {config_file}" if config_file else "not in a pod, and no kubeconfig is given"
        raise EnvironmentProblem(
            "The operator cannot log in to Kubernetes",
            facts=f"{source}: {error}",
            todo="Run it in a cluster with a service account, or name a kubeconfig with --kubeconfig",
        ) from error
    return configuration


async def credentials_for_kopf(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the same login in kopf's form. kopf asks again when the API server no longer accepts the token."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme.capitalize() or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )


SELECTOR = "app.kubernetes.io/managed-by=joinery-operator,joinery.dev/role!=executor"
"""Selects the operator's own children. Executors belong to the drivers, and other pods are not watched at all."""

OnWatchEvent = Callable[[ApiResource, Manifest, bool], Awaitable[None]]


def registry(
    on_event: OnWatchEvent,
    log_in: Callable[[], Awaitable[kopf.ConnectionInfo]],
    stop: Callable[[], Awaitable[None]],
    watched: Sequence[ApiResource] = WATCHED,
) -> kopf.OperatorRegistry:
    """kopf's registry. `on_event` gets each event: the kind, the object, whether it is gone. `stop` is called after the
    last event."""
    operator_registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=operator_registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await log_in()

    @kopf.on.cleanup(registry=operator_registry)
    async def cleanup(**_: Any) -> None:
        await stop()

    # kopf passes a `resource` of its own by name.
    async def pass_event(resource: ApiResource, /, event: Any, **_: Any) -> None:
        await on_event(resource, cast(Manifest, event["object"]), event["type"] == "DELETED")

    for resource in watched:
        names = (resource.group, resource.version, resource.plural)
        watch = kopf.on.event(*names, registry=operator_registry, id=f"{resource.plural}-event")
        watch(partial(pass_event, resource))
    return operator_registry


def kopf_settings(owner_selector: str) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 60.0
    settings.networking.connect_timeout = 5.0
    for child in ALL_CHILDREN:
        settings.watching.label_selectors[child.group, child.version, child.plural] = SELECTOR
    for owner in OWNERS:
        settings.watching.label_selectors[owner.group, owner.version, owner.plural] = owner_selector
    return settings
