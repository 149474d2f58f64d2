"""Builds the job that the resource asks for, and the earlier revisions that are still needed."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from joinery_operator.decision import Manifest, Observed
from joinery_operator.manifests import (
    ManifestError,
    check_manifests,
    forbidden_requests,
    pods_in_templates,
    spark_problems,
    stored_driver,
    stored_job,
    stored_pod_defaults,
    stored_templates,
)
from joinery_operator.names import ChildNames
from joinery_operator.pod_defaults import pod_defaults
from joinery_operator.reconcile.places import state_place_text
from joinery_operator.revision import JobRevision, resolved_image, revision_hash
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job, PostgresStoreSpec, connection_warnings, expression_problems, load_stored
from joinery_runtime.job.crd import Status
from joinery_runtime.job.crd.status import Mode

_VOLATILE = {"resourceVersion", "generation", "managedFields", "finalizers", "deletionTimestamp"}
"""The metadata on which neither a job nor its manifests depend."""
_NO_STORE = (
    "spec.stateStore: name a Postgres (stateStore.postgres). The embedded Postgres, which a job without a stateStore "
    "has on a laptop, would lose all with each driver pod"
)


@dataclass(frozen=True, slots=True)
class DesiredJob:
    """What the resource asks for: a job, or the problems that keep it from being one (`reason` is one word)."""

    job: JobRevision | None
    mode: Mode = "stateful"
    problems: tuple[str, ...] = ()
    reason: Literal["Valid", "Invalid", "Incomplete", "NotAllowed", "StateTaken"] = "Valid"
    warnings: tuple[str, ...] = ()
    """What the author of a job should change in it, although it runs as it is."""


_REMEMBERED = 2_000
# By the resource's uid: what the last validation read, and what it gave.
_validated: OrderedDict[str, tuple[object, DesiredJob]] = OrderedDict()


def desired_job(observed: Observed, status: Status) -> DesiredJob:
    """Return the job that the resource asks for. It is validated when something that it depends on has changed, which
    is ten times as much work as the rest of a reconcile: at a new generation, with other templates or settings, and,
    because a process remembers it, with another release."""
    uid, inputs = observed.resource["metadata"]["uid"], _validation_inputs(observed, status)
    last_inputs, desired = _validated.pop(uid, (None, None))
    if desired is None or last_inputs != inputs:
        desired = validated_job(observed, status)
    _validated[uid] = inputs, desired
    if len(_validated) > _REMEMBERED:
        _validated.popitem(last=False)
    if desired.job is None:
        return desired
    return replace(desired, job=replace(desired.job, resource=observed.resource))


def _validation_inputs(observed: Observed, status: Status) -> object:
    """Everything that `validated_job` reads, in a form that later changes of the objects do not reach."""
    resource, rollout = observed.resource, status.rollout
    metadata = {name: field for name, field in resource["metadata"].items() if name not in _VOLATILE}
    conflicts = [
        (age(other), _written_location(other), (other.get("status") or {}).get("statePlace"))
        for other in observed.name_conflicts
    ]
    config_maps = [(name, manifest["metadata"]["uid"]) for name, manifest in observed.children.config_maps.items()]
    fields = (resource["apiVersion"], resource["kind"], metadata, resource.get("spec"), observed.templates)
    decided = (status.revision, status.image, status.state_place, rollout and (rollout.revision, rollout.image))
    try:
        return json.dumps((*fields, decided, conflicts, config_maps)), observed.settings
    except RecursionError:
        return object()  # equal to nothing: the validation names the place that is nested too deep


def validated_job(observed: Observed, status: Status) -> DesiredJob:
    """Validate the job that the resource asks for. `suspend` and `cleanup` are not part of a job, and do not matter."""
    resource = observed.resource
    try:
        stored = load_stored(resource)
        job: Any = stored.job
        # Checks only what is asked for now: a stored revision that an earlier release accepted can still be started.
        problems = list(map(str, [*expression_problems(job), *spark_problems(job.spec.spark)]))
    except JobError as error:
        problems = [f"{problem.path}: {problem.message}" for problem in error.problems]
    except Exception as error:
        problems = [f"spec: cannot be checked ({type(error).__name__}: {error}); write it in a simpler way"]
    if problems:
        return DesiredJob(None, problems=tuple(problems), reason="Invalid")
    if job.spec.state_store.kind == "embedded":
        return DesiredJob(None, problems=(_NO_STORE,), reason="Incomplete")
    if conflict := _state_conflict(observed, job, status):
        return DesiredJob(None, problems=(conflict,), reason="StateTaken")
    try:
        image = _image(observed, job, status)
        # Another release of the operator must not restart jobs: a revision keeps the name that an earlier release gave
        # it, until the resource asks for another scale, which a driver of that release cannot follow.
        names = _revision_names(observed, job, image)
        in_use = {status.revision, *([status.rollout.revision] if status.rollout else [])}
        name = next((name for name in names if name in in_use), names[0])
        config_map = observed.children.config_maps.get(ChildNames(resource).config_map(name))
        defaults = (
            pod_defaults(observed.settings.pod_defaults) if config_map is None else stored_pod_defaults(config_map)
        )
        driver = stored_driver(config_map)
        revision = JobRevision(job, resource, name, image, observed.settings, observed.templates, defaults, driver)
        if not_allowed := tuple(map(str, forbidden_requests(revision))):
            return DesiredJob(None, problems=not_allowed, reason="NotAllowed")
        check_manifests(revision)
    except ManifestError as error:
        return DesiredJob(None, problems=(str(error),), reason="Incomplete")
    return DesiredJob(revision, revision.mode, warnings=(*stored.warnings, *connection_warnings(job)))


def stored_revision(observed: Observed, name: str, image: str) -> JobRevision | None:
    """Return an earlier revision, from its ConfigMap; None if that is gone, or this release cannot use it."""
    config_map = observed.children.config_maps.get(ChildNames(observed.resource).config_map(name))
    stored = stored_job(config_map, observed.kind, observed.resource)
    if stored is None:
        return None
    templates = stored_templates(config_map)
    # An earlier release stored no templates: its revisions take them as they are now.
    templates = observed.templates if templates is None else templates
    defaults, driver = stored_pod_defaults(config_map), stored_driver(config_map)
    return JobRevision(*stored, name, image, observed.settings, templates, defaults, driver)


def _revision_names(observed: Observed, job: Job, image: str) -> tuple[str, ...]:
    """Return the name that this release gives, and those of earlier ones."""
    resource, templates = observed.resource, pods_in_templates(job.spec.spark, observed.templates)
    return (
        revision_hash(job, resource, image, templates, with_naming=True),
        revision_hash(job, resource, image, templates),
        revision_hash(job, resource, image),
        revision_hash(job, resource, image, with_scale=True),
    )


def _image(observed: Observed, job: Job, status: Status) -> str:
    """Return the image that was chosen for this very job when it became current or its rollout began, so that a new
    release of the operator with another image restarts nothing."""
    rollout = status.rollout
    decided = [(status.revision, status.image), *([(rollout.revision, rollout.image)] if rollout else [])]
    for name, its_image in decided:
        image = job.spec.spark.image or its_image
        if name and image and name in _revision_names(observed, job, image):
            return image
    return resolved_image(job, observed.settings, status.image, changed=True)


# Jobs of different kinds may have the same name, but a store finds a state by `namespace/name` alone, so only one of
# them can have it. The state's signature would reject the second job's driver, but before that the second job could be
# told to delete the state, or to leave it behind. So the state belongs to the resource whose current revision keeps it
# there, else to the older resource, and the other one asks for nothing.


def _state_conflict(observed: Observed, job: Job, status: Status) -> str | None:
    """Return what to tell a job whose state in this store belongs to another resource; None if the state is its own."""
    store, resource = job.spec.state_store.postgres, observed.resource
    if store is None:
        return None
    location = state_place_text(job.spec)
    for other in observed.name_conflicts:
        other_status = other.get("status")
        other_has_state = isinstance(other_status, Mapping) and other_status.get("statePlace") == location
        if other_has_state != (status.state_place == location):
            verb = "has" if other_has_state else None
        else:
            same_location = _written_location(other) == _location(store.model_dump(by_alias=True))
            verb = "is older and keeps" if same_location and age(other) < age(resource) else None
        if verb:
            name = f"{resource['metadata']['namespace']}/{resource['metadata']['name']}"
            return (
                f"{other['kind']} {name} {verb} its state in the same Postgres and schema, where a state "
                "is found by namespace and name alone: give one of the two jobs another name, or another "
                "spec.stateStore.postgres.schema"
            )
    return None


def age(resource: Manifest) -> tuple[str, str, str, str]:
    """Return a sort key that is less for an older resource. The kind, then the name, decides between two of the same
    second."""
    metadata = resource["metadata"]
    return metadata.get("creationTimestamp", ""), resource["kind"], metadata["namespace"], metadata["name"]


def _written_location(resource: Manifest) -> tuple[object, ...] | None:
    """Return where a resource as written, valid or not, keeps its state; None if not in a Postgres."""
    section: Any = resource
    for step in ("spec", "stateStore", "postgres"):
        section = section.get(step) if isinstance(section, Mapping) else None
    return _location(section) if isinstance(section, Mapping) else None


def _location(store: Mapping[str, Any]) -> tuple[object, ...]:
    ref = store.get("dsnSecretRef")
    secret = (ref.get("name"), ref.get("key")) if isinstance(ref, Mapping) else None
    return store.get("dsn"), secret, store.get("schema", PostgresStoreSpec.model_fields["schema_name"].default)
