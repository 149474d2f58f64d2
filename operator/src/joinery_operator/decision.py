"""What `reconcile` gets and returns: the observed job or savepoint, as the API server and the driver reported it, and
the decision.

`kube` writes `status` first, then carries the actions out in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from joinery_operator.settings import Settings
from joinery_runtime.job.crd import DriverStatus, ResourceKind, SavepointState, Status

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""

ChildKind = Literal["Pod", "ConfigMap", "Service", "NetworkPolicy", "Ingress", "HTTPRoute"]


@dataclass(frozen=True, slots=True)
class Children:
    """The job's own objects by name, those that are being deleted included."""

    pods: Mapping[str, Manifest] = field(default_factory=dict)
    config_maps: Mapping[str, Manifest] = field(default_factory=dict)
    services: Mapping[str, Manifest] = field(default_factory=dict)
    network_policies: Mapping[str, Manifest] = field(default_factory=dict)
    ingresses: Mapping[str, Manifest] = field(default_factory=dict)
    http_routes: Mapping[str, Manifest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """One job at one moment."""

    kind: ResourceKind
    resource: Manifest
    children: Children
    templates: Mapping[str, Manifest | None]
    """The ConfigMaps of the namespace that `podTemplate` refers to, by name (None: there is none of that name): those
    of the resource, and those of the `job.yaml` in its ConfigMaps."""
    driver: DriverStatus | None
    """What the driver of the attempt in `status` last reported, if it answered since that pod started."""
    now: datetime
    settings: Settings
    orphaned_drivers: Mapping[str, Manifest] = field(default_factory=dict)
    """Before the first attempt: driver pods, by name, of an earlier resource of this name."""
    create_refused: str = ""
    """Why a child could not be created last, until one is: what the API server said, or whose object has its name."""
    name_conflicts: Sequence[Manifest] = ()
    """The jobs of other kinds with its name."""


@dataclass(frozen=True, slots=True)
class ObservedSavepoint:
    """One savepoint at one moment."""

    resource: Manifest
    pods: Mapping[str, Manifest]
    """Its own pods by name."""
    job: Observed | None
    """The job that it names; None: there is none."""
    now: datetime
    settings: Settings
    create_refused: str = ""
    """Why its pod could not be created last, until one is."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create-or-get: an object of that name that belongs to the resource already is what was wanted."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of the resource's own child, to repair what others changed."""

    kind: ChildKind
    name: str
    body: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """With the uid as precondition: never another object of that name. Gone already is as good. `grace_seconds` None:
    the object's own."""

    kind: ChildKind
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

    status: Status | SavepointState | None
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    again_after: float | None = None
