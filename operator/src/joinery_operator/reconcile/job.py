"""Which job the resource asks for, and the jobs that its revisions are: what pods are made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from ruamel.yaml.error import YAMLError

from joinery_operator.children import ChildError, Templates, driver_pod
from joinery_operator.children.config import JOB_FILE
from joinery_operator.children.executor import executor_template
from joinery_operator.children.spark import defaults_file
from joinery_operator.children.yaml import from_yaml
from joinery_operator.names import Names
from joinery_operator.observed import Manifest, Observed
from joinery_operator.reconcile.namesakes import state_taken
from joinery_operator.revision import resolved_image, revision
from joinery_operator.settings import Settings
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job as Model
from joinery_runtime.job import parse_job
from joinery_runtime.job.crd import Status
from joinery_runtime.job.crd.status import Mode

_NO_STORE = (
    "spec.stateStore: name a Postgres (stateStore.postgres), or memory: {} for a job that may lose its state. The "
    "embedded Postgres, which a job without a stateStore has on a laptop, would lose all with each driver pod"
)


@dataclass(frozen=True, slots=True)
class Job:
    """One revision, with all that its pods are made from."""

    model: Model
    resource: Manifest
    revision: str
    image: str
    settings: Settings
    templates: Templates

    @property
    def durable(self) -> bool:
        """Whether its state outlives its driver's pod."""
        return self.model.spec.state_store.kind == "postgres"

    @property
    def mode(self) -> Mode:
        return self.model.spec.upgrade.mode

    @property
    def parts(self) -> tuple[Model, Manifest, str, str, Settings, Templates]:
        """What every manifest of a revision is made from, in the order that `children` takes them."""
        return self.model, self.resource, self.revision, self.image, self.settings, self.templates


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the resource asks for: a job, or the problems that keep it from being one (`reason` in one word)."""

    job: Job | None
    mode: Mode = "stateful"
    problems: tuple[str, ...] = ()
    reason: Literal["Valid", "Invalid", "Incomplete", "StateTaken"] = "Valid"


def wanted(observed: Observed, status: Status) -> Wanted:
    """Without the fields of the resource that ask for no job (`suspend`, `cleanup`)."""
    resource = observed.resource
    try:
        model: Any = observed.kind.model.model_validate(resource, by_alias=True, by_name=False)
    except ValidationError:
        return Wanted(None, problems=_problems(resource), reason="Invalid")
    if model.spec.state_store.kind == "embedded":
        return Wanted(None, problems=(_NO_STORE,), reason="Incomplete")
    if taken := state_taken(observed, model.spec.state_store.postgres):
        return Wanted(None, problems=(taken,), reason="StateTaken")
    try:
        image = _image(observed, model, status)
        job = _job(observed, model, resource, revision(observed.kind, resource, image), image)
        _trial(job)
    except ChildError as error:
        return Wanted(None, problems=(str(error),), reason="Incomplete")
    return Wanted(job, job.mode)


def stored(observed: Observed, name: str, image: str) -> Job | None:
    """The job of an earlier revision, from its ConfigMap; None when that is gone or of no use to this release."""
    found = observed.children.config_maps.get(Names(observed.resource).config_map(name))
    text = (found or {}).get("data", {}).get(JOB_FILE)
    if text is None:
        return None
    try:
        written = from_yaml(text)
        spec = written["spec"] if isinstance(written, Mapping) else None
        resource = {**observed.resource, "spec": spec}
        model: Any = observed.kind.model.model_validate(resource, by_alias=True, by_name=False)
    except (YAMLError, ValueError, KeyError):
        return None
    return _job(observed, model, resource, name, image)


def _job(observed: Observed, model: Model, resource: Manifest, name: str, image: str) -> Job:
    return Job(model, resource, name, image, observed.settings, observed.templates)


def _image(observed: Observed, model: Model, status: Status) -> str:
    """The image that was decided on for this very job when it was put in force or its rollout began, so that a new
    release of the operator with another image restarts nothing."""
    rollout = status.rollout
    known = [(status.revision, status.image), *([(rollout.revision, rollout.image)] if rollout else [])]
    for name, decided in known:
        image = model.spec.spark.image or decided
        if name and image and revision(observed.kind, observed.resource, image) == name:
            return image
    return resolved_image(model, observed.settings, status.image, changed=True)


def _trial(job: Job) -> None:
    """What neither the models nor the API server check: whether its manifests can be made. Raises ChildError."""
    model, resource, name, image, settings, templates = job.parts
    defaults_file(model, resource, image)
    executor_template(model, resource, name, settings, templates)
    driver_pod(model, resource, 1, name, image, settings, templates)


def _problems(resource: Manifest) -> tuple[str, ...]:
    about = {key: resource[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in resource}
    try:
        parse_job(json.dumps(about), resource["metadata"]["name"])
    except JobError as error:
        return tuple(f"{problem.path}: {problem.message}" for problem in error.problems)
    raise AssertionError("the models refused a resource that the loader takes")
