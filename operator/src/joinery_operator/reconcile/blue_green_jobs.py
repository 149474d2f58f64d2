"""The jobs of a BlueGreenJob: what its template asks for, whether that may run beside the others, how far one of them
is behind another, and their manifests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from pydantic import ValidationError

from joinery_operator.decision import Create, Manifest, ObservedBlueGreen, Patch
from joinery_operator.names import digest_of, owner_reference
from joinery_operator.reconcile.context import PauseScope, pause_scope, read_status
from joinery_operator.reconcile.places import written_outputs
from joinery_operator.settings import LabelSelector
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job, expression_problems, load_stored
from joinery_runtime.job.crd import BlueGreenSpec, BlueGreenState, CandidateJob, OutputStatus, Status
from joinery_runtime.job.model.base import PLAIN_NUMBERS
from joinery_runtime.job.model.resource import API_VERSION

RETAIN_STATE, DELETE_STATE = "retainState", "deleteState"
_GROUPS = ("group.id", "group.instance.id")
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """The job that the template asks for, and the name of its resource: that of the BlueGreenJob, and a digest of the
    job's kind and the places of its outputs. So jobs with the same outputs are one resource, with one state and one
    driver."""

    kind: str
    name: str
    spec: Mapping[str, Any]
    outputs: tuple[OutputStatus, ...]


@dataclass(frozen=True)
class BlueGreenContext:
    """What one reconcile works on. `state` is the resource's status as it was found."""

    observed: ObservedBlueGreen
    state: BlueGreenState

    @property
    def now(self) -> datetime:
        return self.observed.now

    @property
    def metadata(self) -> Manifest:
        metadata: Manifest = self.observed.resource["metadata"]
        return metadata

    @property
    def suspended(self) -> bool:
        return self.observed.resource["spec"].get("suspend") is True

    @property
    def pause_scope(self) -> PauseScope:
        return pause_scope(self.observed.resource)

    @cached_property
    def spec(self) -> BlueGreenSpec | None:
        """None: another release's definition allowed what this one does not know."""
        try:
            return BlueGreenSpec.model_validate(self.observed.resource["spec"], context=PLAIN_NUMBERS)
        except ValidationError:
            return None

    @cached_property
    def requested(self) -> RequestedJob | tuple[str, ...]:
        """The job that the template asks for, or everything that keeps it from being run."""
        if self.spec is None:
            return ("spec: has a field or a value that this release of the operator does not know",)
        return requested_job(self.observed.resource)

    def status_of(self, name: str | None) -> Status:
        """The status of a job; an empty one if there is no such job."""
        job = self.observed.jobs.get(name or "")
        return Status() if job is None else read_status(job)

    def stable_at(self, candidate: CandidateJob) -> datetime | None:
        """When the candidate has been stable for long enough; None: it is not stable now."""
        if self.spec is None or candidate.stable_since is None:
            return None
        if self.status_of(candidate.name).phase == "Finished":
            return candidate.stable_since
        return candidate.stable_since + timedelta(milliseconds=self.spec.stable_for)


def requested_job(resource: Manifest) -> RequestedJob | tuple[str, ...]:
    """The job that the template asks for, or everything that is wrong with the template."""
    template = resource["spec"]["template"]
    kind, spec, name = template.get("kind", "StreamJoin"), template["spec"], resource["metadata"]["name"]
    job = _load(_as_text(kind, spec, resource))
    if isinstance(job, tuple):
        return tuple(f"spec.template.{problem}" for problem in job)
    outputs = written_outputs(job)
    if problems := tuple(_template_problems(job, spec, outputs)):
        return problems
    digest = digest_of(json.dumps([kind, sorted(_places(outputs))]))
    return RequestedJob(kind, f"{name}-{digest}", spec, outputs)


def outputs_of(job: Manifest) -> tuple[OutputStatus, ...]:
    """Where a job writes, also before its driver has started."""
    loaded = _load(_as_text(job["kind"], job["spec"], job))
    return read_status(job).outputs if isinstance(loaded, tuple) else written_outputs(loaded)


def shared_places(outputs: Iterable[OutputStatus], others: Iterable[OutputStatus]) -> list[str]:
    """The places in words that both write to. Another broker or database makes no other place: its name alone would
    tell readers."""
    return [f"{kind} {target}" for kind, target in sorted(_places(outputs) & _places(others))]


def desired_spec(
    spec: Mapping[str, Any], job: Manifest | None, *, suspended: bool, cleanup: str | None
) -> dict[str, Any]:
    """The spec of a job's resource. Its number of executors is its own if `spec` names none: an autoscaler may set it.
    `cleanup` None: as in `spec`."""
    desired = {**spec, "suspend": suspended, "cleanup": cleanup or spec.get("cleanup", RETAIN_STATE)}
    instances = _value_at(job or {}, "spec", "spark", "executor", "instances")
    if instances is not None and _value_at(spec, "spark", "executor", "instances") is None:
        spark = dict(desired.get("spark") or {})
        desired["spark"] = {**spark, "executor": {**(spark.get("executor") or {}), "instances": instances}}
    return desired


def job_action(
    observed: ObservedBlueGreen, kind: str, name: str, spec: Mapping[str, Any], job: Manifest | None
) -> Create | Patch | None:
    """Create the job's resource, or correct it; None if it is as it should be."""
    resource = observed.resource
    # The operator has to select the job by the labels by which it selects the resource.
    own_labels = resource["metadata"].get("labels") or {}
    requirements = LabelSelector.parsed(observed.settings.owner_selector).requirements
    labels = {key: own_labels[key] for key, _, _ in requirements if key in own_labels}
    if job is None:
        metadata = {
            "name": name,
            "namespace": resource["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(resource)],
        }
        return Create({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
    body: dict[str, Any] = {}
    job_labels = job["metadata"].get("labels") or {}
    if lacking := {label: value for label, value in labels.items() if job_labels.get(label) != value}:
        body["metadata"] = {"labels": lacking}
    if _canonical(_as_text(kind, job["spec"], job)) != _canonical(_as_text(kind, spec, job)):
        body["spec"] = _merge_patch(job["spec"], spec)
    return Patch(kind, name, body) if body else None  # type: ignore[arg-type]


def is_healthy(job: Manifest) -> bool:
    """Whether a job runs what its resource asks for, and nothing is wrong with it."""
    status, metadata = read_status(job), job["metadata"]
    conditions = {condition.type: condition.status for condition in status.conditions}
    return (
        not metadata.get("deletionTimestamp")
        and status.phase in {"Running", "Finished"}
        and status.observed_generation == metadata.get("generation")
        and (conditions.get("Ready"), conditions.get("UpToDate")) == ("True", "True")
        and conditions.get("Degraded") != "True"
        and conditions.get("Valid") != "False"
    )


def has_caught_up(candidate: Status, active: Status, limit: timedelta) -> bool:
    """Whether each watermark of the candidate is at most `limit` behind the active job's. Inputs are compared by name;
    an input that the active job lacks, with the slowest of its inputs."""
    theirs = {input_status.name: input_status.watermark for input_status in active.inputs}
    slowest = min((watermark for watermark in theirs.values() if watermark is not None), default=None)
    for input_status in candidate.inputs:
        reference = theirs.get(input_status.name, slowest)
        if reference is None or input_status.ended:
            continue
        if input_status.watermark is None or reference - input_status.watermark > limit:
            return False
    return bool(candidate.inputs)


def lags_no_more(candidate: Status, active: Status) -> bool:
    """Whether no input of the candidate has more unread records than the same input of the active job."""
    theirs = {input_status.name: input_status.lag for input_status in active.inputs}
    return all(
        input_status.lag is not None and input_status.lag <= limit
        for input_status in candidate.inputs
        if (limit := theirs.get(input_status.name)) is not None
    )


def _template_problems(job: Job, spec: Mapping[str, Any], outputs: tuple[OutputStatus, ...]) -> Iterator[str]:
    if "suspend" in spec:
        yield "spec.template.spec.suspend: is one job's; write spec.suspend, which suspends all of them"
    if job.spec.state_store.kind != "postgres":
        yield "spec.template.spec.stateStore: name a Postgres (stateStore.postgres), where each job has its own state"
    if not _places(outputs):
        yield (
            "spec.template.spec.output: a console has no place that another job could differ from; name a topic, a "
            "table or a folder"
        )
    for index, source in enumerate(job.inputs):
        named = [name for name in _GROUPS if source.kafka is not None and name in source.kafka.properties]
        if named:
            path = "input" if "input" in spec else f"inputs[{index}]"
            yield (
                f"spec.template.spec.{path}.kafka.properties: names {' and '.join(named)}, and two jobs in one group "
                "would divide the partitions; leave it out, then each job has a group of its own"
            )


def _places(outputs: Iterable[OutputStatus]) -> set[tuple[str, str]]:
    return {(output.kind, output.target) for output in outputs if output.target is not None}


def _as_text(kind: str, spec: Mapping[str, Any], resource: Manifest) -> str:
    metadata = {"name": resource["metadata"]["name"], "namespace": resource["metadata"]["namespace"]}
    return json.dumps({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}, sort_keys=True)


@lru_cache(maxsize=_REMEMBERED)
def _load(text: str) -> Job | tuple[str, ...]:
    """The job in a resource, or its problems. Validation is most of a reconcile's work, and figures change often."""
    try:
        job: Any = load_stored(json.loads(text)).job
        return tuple(map(str, expression_problems(job))) or job
    except JobError as error:
        return tuple(f"{problem.path}: {problem.message}" for problem in error.problems)
    except Exception as error:
        return (f"spec: cannot be checked ({type(error).__name__}: {error}); write it in a simpler way",)


@lru_cache(maxsize=_REMEMBERED)
def _canonical(text: str) -> str:
    """A resource without what the API server fills in, so that two that mean the same are equal."""
    job = _load(text)
    return text if isinstance(job, tuple) else job.model_dump_json(by_alias=True, exclude_defaults=True)


def _merge_patch(actual: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch that turns `actual` into `desired`."""
    patch: dict[str, Any] = {name: None for name in actual if name not in desired}
    for name, value in desired.items():
        old = actual.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := _merge_patch(old, value):
                patch[name] = inner
        elif old != value:
            patch[name] = value
    return patch


def _value_at(document: object, *path: str) -> object:
    for step in path:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


def conflict(job: RequestedJob, state: BlueGreenState, jobs: Mapping[str, Manifest]) -> str | None:
    """Why the job cannot run beside those that run, or after those that ended; None if it can."""
    for name, manifest in jobs.items():
        if name != job.name and (shared := shared_places(job.outputs, outputs_of(manifest))):
            return (
                f"spec.template: writes to {', '.join(shared)}, as job {name} does, but not to exactly its outputs. "
                "Name other places for all outputs, which runs the edit beside that job; or name exactly that job's "
                "places, which changes it"
            )
    for retired in state.retired:
        if shared := shared_places(job.outputs, retired.outputs):
            return (
                f"spec.template: writes to {', '.join(shared)}, where job {retired.name} wrote until "
                f"{retired.ended:%Y-%m-%d %H:%M} UTC. Its state is deleted, so its rows would be written again: name "
                "other places"
            )
    return None
