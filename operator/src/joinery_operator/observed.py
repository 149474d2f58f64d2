"""All that reconcile looks at: values, as the API server and the driver reported them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from joinery_operator.settings import Settings
from joinery_runtime.job.crd import DriverStatus, ResourceKind

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True)
class Children:
    """The job's own objects by name, those that are being deleted included."""

    pods: Mapping[str, Manifest] = field(default_factory=dict)
    config_maps: Mapping[str, Manifest] = field(default_factory=dict)
    services: Mapping[str, Manifest] = field(default_factory=dict)


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
    """What the API server said when it last refused to create a child, until it creates one."""
    name_conflicts: Sequence[Manifest] = ()
    """The jobs of other kinds with its name."""
