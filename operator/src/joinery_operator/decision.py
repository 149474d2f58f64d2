"""The values that `reconcile` takes and returns: the job or savepoint as observed at the API server and the driver, or
the end of a job, and the decision.

`kube` writes `status` first, then carries out the actions in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from joinery_operator.settings import Settings
from joinery_runtime.job.crd import BlueGreenState, DriverStatus, ResourceKind, SavepointState, Status

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""

ChildKind = Literal[
    "Pod", "ConfigMap", "Service", "NetworkPolicy", "Ingress", "HTTPRoute", "StreamJoin", "SessionWindow"
]


@dataclass(frozen=True, slots=True)
class Children:
    """The job's own objects by name, including those that are being deleted."""

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
    """The ConfigMaps of the namespace to which `podTemplate` refers, by name (None: there is none of that name), in the
    resource and in the `job.yaml` of its ConfigMaps."""
    driver: DriverStatus | None
    """What the driver of the attempt in `status` last reported, if it has answered since its pod started."""
    now: datetime
    settings: Settings
    executors: Mapping[str, Manifest] = field(default_factory=dict)
    """While the driver waits for executors: their pods, by name."""
    orphaned_drivers: Mapping[str, Manifest] = field(default_factory=dict)
    """Before the first attempt: driver pods, by name, of an earlier resource of this name."""
    create_refused: str = ""
    """Why a child could not be created, until one is: the API server's answer, or the owner of an object with the
    child's name."""
    delete_refused: Mapping[str, str] = field(default_factory=dict)
    """Why children that are still there could not be deleted, by their uid."""
    name_conflicts: Sequence[Manifest] = ()
    """The jobs of other kinds with the same name."""
    page_conflicts: Sequence[Manifest] = ()
    """Other jobs whose pages would have the same address."""
    namespace_ends: bool = False
    """Whether the namespace is being deleted, so that no pod can be created. Only looked for while the job is being
    deleted with its state."""
    permissions_end: bool = False
    """Whether the namespace is being deleted, and the operator's permissions there with it: what is not done at once is
    never done."""


EXECUTORS = "executors"
"""`Waiting.system` of a driver without executors."""


def waits_for_executors(driver: DriverStatus | None) -> bool:
    return driver is not None and driver.waiting is not None and driver.waiting.system == EXECUTORS


@dataclass(frozen=True, slots=True)
class ObservedSavepoint:
    """One savepoint at one moment."""

    resource: Manifest
    pods: Mapping[str, Manifest]
    """The savepoint's own pods by name."""
    job: Observed | None
    """The job that the savepoint names; None: this operator works on no such job."""
    now: datetime
    settings: Settings
    create_refused: str = ""
    """Why its pod could not be created, until one is."""
    delete_refused: Mapping[str, str] = field(default_factory=dict)
    """Why pods that are still there could not be deleted, by their uid."""
    namespace_ends: bool = False
    """As in `Observed`."""
    permissions_end: bool = False
    """As in `Observed`."""
    job_is_anothers: bool = False
    """Whether another operator works on the job. Only looked for while the savepoint is being deleted."""


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A place that a job of a BlueGreenJob writes, and a job that is not the BlueGreenJob's writes too."""

    job: str
    """The name of the BlueGreenJob's job."""
    place_text: str
    other: Manifest


@dataclass(frozen=True, slots=True)
class ObservedBlueGreen:
    """One BlueGreenJob at one moment."""

    resource: Manifest
    jobs: Mapping[str, Manifest]
    """The jobs of its namespace, by name, that claim to be its own or that its status names, including those that are
    being deleted."""
    now: datetime
    settings: Settings
    create_refused: str = ""
    """Why a job could not be created, until one is."""
    delete_refused: Mapping[str, str] = field(default_factory=dict)
    """Why jobs that are still there could not be deleted, by their uid."""
    patch_refused: Mapping[str, str] = field(default_factory=dict)
    """Why jobs could not be changed, by their name, until one of them is."""
    shared_places: Sequence[SharedPlace] = ()
    """As far as this operator works on the other jobs, and resources say where jobs write."""


@dataclass(frozen=True, slots=True)
class ObservedEnd:
    """A job, savepoint or BlueGreenJob that is gone."""

    resource: Manifest
    """Its last copy."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create-or-get: an existing object of that name that belongs to the resource is as good."""

    manifest: Manifest

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of the resource's own child, to repair what others changed."""

    kind: ChildKind
    name: str
    body: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes an object with its uid as precondition, so never another one of that name. An object that is already gone
    is as good. `grace_seconds` None: the object's own."""

    kind: ChildKind
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Sets the resource's whole list of finalizers."""

    finalizers: tuple[str, ...]


Action = Create | Patch | Delete | SetFinalizers


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the resource."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    outlives_namespace: bool = False
    """The resource's namespace is being deleted, and all of its Events: this one is about the operator's own pod."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do. `status` None: it stays as it is. After `again_after` seconds, reconcile again even if nothing
    happens."""

    status: Status | SavepointState | BlueGreenState | None
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    again_after: float | None = None
