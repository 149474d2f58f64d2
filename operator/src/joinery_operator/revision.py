"""A revision of a job: the hash of everything that a driver sees of its resource and its pod templates, the image that
it runs, and what its manifests are built from.

The hash does not depend on the operator's release: fields at their defaults do not count, whether or not the resource
spells them out, so that a release with more fields and defaults restarts no job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joinery_operator.decision import Manifest
from joinery_operator.pod_defaults import PodDefaults
from joinery_operator.settings import Settings
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Job
from joinery_runtime.job.crd import Scale
from joinery_runtime.job.crd.status import Mode
from joinery_runtime.job.model.owner import REPLACES_OWNER, OwnerCandidate, StateOwner

RESTARTED_AT = "joinery.dev/restartedAt"
"""The annotation that `kubectl joinery restart` sets."""

PodTemplates = Mapping[str, Manifest | None]
"""ConfigMaps by name, as in `Observed.templates`; or that pods do without this one."""
WITHOUT_TEMPLATE: Manifest = {}

NOT_FOR_DRIVERS = ("suspend", "cleanup", "upgrade")
"""Fields that only the operator reads."""
_LENGTH = 10
_LONGEST_OWNER = 4096
"""As much as the status has room for; no owner's id is nearly as long."""


class ManifestError(JoineryError):
    """A child's manifest cannot be built from the resource and what it refers to. The operator reports it in a
    condition."""


@dataclass(frozen=True, slots=True)
class JobRevision:
    """One revision of a job, with everything that its manifests are built from."""

    job: Job
    resource: Manifest
    revision: str
    image: str
    settings: Settings
    templates: PodTemplates
    pod_defaults: PodDefaults
    driver: Manifest | None = None
    """The driver's pod as the revision's ConfigMap has it; None for a revision that is not stored yet, or that an
    earlier release stored without it."""

    @property
    def durable(self) -> bool:
        """Whether the state outlives the driver's pod."""
        return self.job.spec.state_store.kind == "postgres"

    @property
    def mode(self) -> Mode:
        return self.job.spec.upgrade.mode

    @property
    def owner_candidate(self) -> OwnerCandidate:
        """The resource, as it asks the state store for its state."""
        metadata = self.resource["metadata"]
        owner = StateOwner(
            cluster=self.settings.cluster,
            kind=self.resource["kind"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
        )
        return OwnerCandidate(owner=owner, replaces=replaced_owner(self.resource) or "")


def replaced_owner(resource: Manifest) -> str | None:
    """Return the owner from which the resource may take its state, if it names one."""
    value = (resource["metadata"].get("annotations") or {}).get(REPLACES_OWNER)
    return value[:_LONGEST_OWNER] if value else None


def revision_hash(
    job: Job,
    resource: Manifest,
    image: str,
    pod_templates: Mapping[str, Manifest] | None = None,
    *,
    with_naming: bool = False,
    with_scale: bool = False,
) -> str:
    """Return the hash of what a driver of this resource, with this image, would see at its start and cannot follow
    later. `pod_templates` are the pods in the job's templates; earlier releases left them out. Without `with_naming`,
    as in earlier releases, `prefixes: always` and no `prefixes` have one hash. `with_scale` makes the hash of yet
    earlier releases, whose drivers followed no changes at all."""
    spec: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_defaults=True)["spec"]
    spec = _without_fields(spec, *NOT_FOR_DRIVERS)
    if spec.get("prefixes") == "always":
        del spec["prefixes"]
    elif with_naming and job.column_naming is not None:
        spec.setdefault("prefixes", None)
    # The resolved image stands for this field: naming the image that already runs changes nothing.
    spec["spark"] = _without_fields(spec.get("spark", {}), "image")
    if not with_scale:
        spec = _without_fields(spec, "shards", "autoscale")
        if job.spec.autoscale is not None or scale_of(job).instances is not None:
            executor = _without_fields(spec["spark"].pop("executor", {}), "instances")
            spec["spark"] |= {"executor": executor} if executor else {}
    annotations = resource["metadata"].get("annotations") or {}
    seen = {"spec": spec, "image": image, "restartedAt": annotations.get(RESTARTED_AT)}
    if pod_templates:
        seen["podTemplates"] = pod_templates
    text = json.dumps(seen, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def scale_of(job: Job) -> Scale:
    """Return the scale at which the job is to run, which is not part of a revision."""
    spec, executor = job.spec, job.spec.spark.executor
    # Otherwise the driver decides how many executors there are, or Spark, between `instances` and `maxInstances`.
    fixed = spec.autoscale is None and executor.max_instances is None
    return Scale(shards=spec.shards, instances=executor.instances if fixed else None, autoscale=spec.autoscale)


def _without_fields(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def resolved_image(job: Job, settings: Settings, current_image: str | None, changed: bool) -> str:
    """Return the image of the job, else the current one, else the installation's. `changed`: the job differs from the
    current one, so it restarts anyway and takes the installation's image. Raises ManifestError if there is none."""
    if job.spec.spark.image:
        return job.spec.spark.image
    image = current_image if current_image and not changed else settings.runtime_image or current_image
    if not image:
        raise ManifestError(
            f"Job {job.name} has no image",
            facts="spec.spark.image is not set, and the operator was installed without an image for drivers",
            todo="Set spec.spark.image, or JOINERY_OPERATOR_RUNTIME_IMAGE of the operator",
        )
    return image
