"""What reconcile says is to be done. `kube` writes `status` first, then carries the actions out in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joinery_operator.observed import Manifest
from joinery_runtime.job.crd import Status


@dataclass(frozen=True, slots=True)
class Create:
    """Create-or-get: an object of that name that belongs to the job already is what was wanted."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of the job's own child, to repair what others changed."""

    kind: Literal["Pod", "ConfigMap", "Service"]
    name: str
    body: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """With the uid as precondition: never another object of that name. Gone already is as good. `grace_seconds` None:
    the object's own."""

    kind: Literal["Pod", "ConfigMap", "Service"]
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """The resource's whole list."""

    finalizers: tuple[str, ...]


Action = Create | Patch | Delete | SetFinalizers


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the resource."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`status` None: it stays as it is. `again_after` seconds: reconcile again then even if nothing happens."""

    status: Status | None
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    again_after: float | None = None
