"""kopf's part: the watches. Its handlers are `on.event` only, for which it keeps nothing on the objects: no finalizer,
no annotation (docs/decisions/0007)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import kopf

from joinery_operator.observed import Manifest
from joinery_operator.shell.kinds import CHILDREN, JOBS, Resource

SELECTOR = "app.kubernetes.io/managed-by=joinery-operator,joinery.dev/role!=executor"
"""The operator's own children; executors are the drivers' affair, and other pods cost nothing."""

Told = Callable[[Resource, Manifest, bool], Awaitable[None]]


def registry(
    told: Told,
    log_in: Callable[[], Awaitable[kopf.ConnectionInfo]],
    stop: Callable[[], Awaitable[None]],
) -> kopf.OperatorRegistry:
    """`told` gets each event: the kind, the object, whether it is gone. `stop` comes after the last one."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await log_in()

    @kopf.on.cleanup(registry=made)
    async def cleanup(**_: Any) -> None:
        await stop()

    for resource in (*JOBS, *CHILDREN):
        _watch(made, resource, told)
    return made


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 60.0
    settings.networking.connect_timeout = 5.0
    for child in CHILDREN:
        settings.watching.label_selectors[child.group, child.version, child.plural] = SELECTOR
    return settings


def _watch(made: kopf.OperatorRegistry, resource: Resource, told: Told) -> None:
    async def handler(event: Any, **_: Any) -> None:
        await told(resource, cast(Manifest, event["object"]), event["type"] == "DELETED")

    kopf.on.event(resource.group, resource.version, resource.plural, registry=made, id=f"{resource.plural}-event")(
        handler
    )
