"""The jobs of a BlueGreenJob: what its template asks for, whether that may run beside the others, how far one of them
is behind another, and their manifests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, Literal

from pydantic import ValidationError

from joinery_operator.decision import Create, Manifest, ObservedBlueGreen, Patch
from joinery_operator.names import (
    CHILD_JOB_ANNOTATION,
    CHILD_PAUSE_ANNOTATION,
    CHILD_ROLE_LABEL,
    controls,
    digest_of,
    owner_reference,
)
from joinery_operator.outputs import place_of
from joinery_operator.reconcile.context import PauseScope, pause_scope, read_status
from joinery_operator.reconcile.places import MOST_OUTPUTS, written_outputs
from joinery_operator.settings import LabelSelector
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job, expression_problems, load_stored
from joinery_runtime.job.crd import BlueGreenSpec, BlueGreenState, CandidateJob, OutputStatus, Status
from joinery_runtime.job.model.base import PLAIN_NUMBERS
from joinery_runtime.job.model.draft import dig, path_text
from joinery_runtime.job.model.input_rules import GROUP_SETTINGS
from joinery_runtime.job.model.resource import API_VERSION

RETAIN_STATE, DELETE_STATE = "retainState", "deleteState"
Role = Literal["active", "candidate", "old", "retired"]
_PAUSES = {"rollouts": "rollouts", "everything": "all"}
_REMEMBERED = 1_000
MOST_JOBS, _MOST_PLACES = 32, 10_000
"""How many jobs and places the status has room for."""
_TOO_DEEP = ""
"""Stands for the text of a resource that is nested deeper than Python recurses."""


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
    def jobs(self) -> Mapping[str, Manifest]:
        """The resource's own jobs by name, including those that are being deleted."""
        return {name: job for name, job in self.observed.jobs.items() if self._is_own(name, job)}

    @cached_property
    def foreign_jobs(self) -> Mapping[str, Manifest]:
        """Jobs by name that claim to be the resource's own, and are not: such as the copy of one."""
        return {name: job for name, job in self.observed.jobs.items() if name not in self.jobs}

    def _is_own(self, name: str, job: Manifest) -> bool:
        """Return whether the operator has created a job for this resource. Whoever may create jobs can write all that a
        job has, but not the status that lists its uid. A job that is not listed yet has never had a driver: it is
        created suspended."""
        listed = next((listed for listed in self.state.jobs if listed.name == name), None)
        if listed is not None and listed.uid == job["metadata"]["uid"]:
            return True
        annotations = job["metadata"].get("annotations") or {}
        if not controls(self.observed.resource, job) or annotations.get(CHILD_JOB_ANNOTATION) != name:
            return False
        if self.state.active is None and not self.state.conditions:
            return True  # the status was lost
        if listed is not None and listed.deletes_state:
            return False
        names = {*running(self.state), *(past.name for past in self.state.retired)}
        if name not in names or (job.get("status") or {}).get("driver") is not None:
            return False
        # A job of the other kind, or with other outputs, is not the one that was created under this name.
        return name == job_name(self.observed.resource, job["kind"], outputs_of(job))

    def is_lost(self, name: str) -> bool:
        """Return whether a job was deleted, or is being deleted, together with its state."""
        listed = next((listed for listed in self.state.jobs if listed.name == name), None)
        if listed is None or not listed.deletes_state:
            return False
        job = self.jobs.get(name)
        return job is None or bool(job["metadata"].get("deletionTimestamp"))

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
        """Return the status of a job; an empty one if there is no such job."""
        job = self.jobs.get(name or "")
        return Status() if job is None else read_status(job)

    def stable_at(self, candidate: CandidateJob) -> datetime | None:
        """Return when the candidate has been stable for long enough; None: it is not stable now."""
        if self.spec is None or candidate.stable_since is None:
            return None
        if self.status_of(candidate.name).phase == "Finished":
            return candidate.stable_since
        return candidate.stable_since + timedelta(milliseconds=self.spec.stable_for)


def has_room(ctx: BlueGreenContext, state: BlueGreenState) -> bool:
    """Return whether the status can list one job more. A job that it does not list would count as somebody else's."""
    return len({*ctx.jobs, *running(state)}) < MOST_JOBS


def running(state: BlueGreenState) -> dict[str, Role]:
    """Return the jobs that run, by name, with their roles: the active one first."""
    roles: dict[str, Role] = {} if state.active is None else {state.active: "active"}
    if state.candidate is not None:
        roles[state.candidate.name] = "candidate"
    return roles | {old.name: "old" for old in state.old}


def requested_job(resource: Manifest) -> RequestedJob | tuple[str, ...]:
    """Return the job that the template asks for, or everything that is wrong with the template."""
    template = resource["spec"]["template"]
    kind, spec = template.get("kind", "StreamJoin"), template["spec"]
    job = _load(_as_text(kind, spec, resource))
    if isinstance(job, tuple):
        return tuple(f"spec.template.{problem}" for problem in job)
    outputs = written_outputs(job)
    if problems := tuple(_template_problems(job, spec, outputs)):
        return problems
    return RequestedJob(kind, job_name(resource, kind, outputs), spec, outputs)


def job_name(resource: Manifest, kind: str, outputs: Iterable[OutputStatus]) -> str:
    """Return the name of the job of this kind that writes these outputs."""
    digest = digest_of(json.dumps([kind, sorted(_targets(outputs))]))
    return f"{resource['metadata']['name']}-{digest}"


def outputs_of(job: Manifest) -> tuple[OutputStatus, ...]:
    """Return where a job writes, also before its driver has started."""
    loaded = _load(_as_text(job["kind"], job["spec"], job))
    return read_status(job).outputs if isinstance(loaded, tuple) else written_outputs(loaded)


def shared_places(outputs: Iterable[OutputStatus], other_outputs: Iterable[OutputStatus]) -> list[str]:
    """Return the places in words that both write to. Another broker or database makes no other place: its name alone
    would tell readers."""
    return [f"{kind} {target}" for kind, target in sorted(_targets(outputs) & _targets(other_outputs))]


def desired_spec(spec: Mapping[str, Any], job: Manifest | None, *, suspended: bool, cleanup: str) -> dict[str, Any]:
    """Return the spec of a job's resource. Its number of executors is its own if `spec` names none: an autoscaler may
    set it."""
    desired = {**spec, "suspend": suspended, "cleanup": cleanup}
    instances = dig(job, "spec", "spark", "executor", "instances")
    if instances is not None and dig(spec, "spark", "executor", "instances") is None:
        spark = dict(desired.get("spark") or {})
        desired["spark"] = {**spark, "executor": {**(spark.get("executor") or {}), "instances": instances}}
    return desired


def create_action(ctx: BlueGreenContext, kind: str, name: str, role: Role, spec: Mapping[str, Any]) -> Create:
    """Create the job's resource."""
    resource = ctx.observed.resource
    metadata = {
        "name": name,
        "namespace": resource["metadata"]["namespace"],
        "labels": _labels(ctx, role),
        "annotations": {CHILD_JOB_ANNOTATION: name, **_pause_annotation(ctx)},
        "ownerReferences": [owner_reference(resource)],
    }
    return Create({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})


def patch_action(ctx: BlueGreenContext, job: Manifest, role: Role, spec: Mapping[str, Any]) -> Patch | None:
    """Correct the job's resource; None if it is as it should be."""
    resource, metadata = ctx.observed.resource, job["metadata"]
    changes: dict[str, Any] = _pause_change(ctx, job)
    if (metadata.get("annotations") or {}).get(CHILD_JOB_ANNOTATION) != metadata["name"]:
        changes.setdefault("annotations", {})[CHILD_JOB_ANNOTATION] = metadata["name"]
    job_labels = metadata.get("labels") or {}
    if lacking := {label: text for label, text in _labels(ctx, role).items() if job_labels.get(label) != text}:
        changes["labels"] = lacking
    if not controls(resource, job):
        references = metadata.get("ownerReferences") or []
        owner = owner_reference(resource)
        changes["ownerReferences"] = [owner, *(other for other in references if other["uid"] != owner["uid"])]
    body = {"metadata": changes} if changes else {}
    if differs(job, spec):
        body["spec"] = _merge_patch(job["spec"], spec)
    return _patch(job, body)


def pause_action(ctx: BlueGreenContext, job: Manifest) -> Patch | None:
    """Let the job know what its BlueGreenJob pauses; None if it does."""
    changes = _pause_change(ctx, job)
    return _patch(job, {"metadata": changes} if changes else {})


def _patch(job: Manifest, body: dict[str, Any]) -> Patch | None:
    """Return a patch of this very job: the API server rejects it for another one of its name."""
    if not body:
        return None
    body["metadata"] = {"uid": job["metadata"]["uid"], **body.get("metadata", {})}
    return Patch(job["kind"], job["metadata"]["name"], body)


def differs(job: Manifest, spec: Mapping[str, Any]) -> bool:
    """Return whether a job's resource asks for something else than `spec`."""
    return _canonical(_as_text(job["kind"], job["spec"], job)) != _canonical(_as_text(job["kind"], spec, job))


def _labels(ctx: BlueGreenContext, role: Role) -> dict[str, str]:
    """Return the labels that the operator sets. It has to select a job by the labels by which it selects the
    resource."""
    own_labels = ctx.metadata.get("labels") or {}
    requirements = LabelSelector.parsed(ctx.observed.settings.owner_selector).requirements
    return {CHILD_ROLE_LABEL: role, **{key: own_labels[key] for key, _, _ in requirements if key in own_labels}}


def _pause_annotation(ctx: BlueGreenContext) -> dict[str, str]:
    return {} if ctx.pause_scope == "nothing" else {CHILD_PAUSE_ANNOTATION: _PAUSES[ctx.pause_scope]}


def _pause_change(ctx: BlueGreenContext, job: Manifest) -> dict[str, Any]:
    scope_text = _pause_annotation(ctx).get(CHILD_PAUSE_ANNOTATION)
    if (job["metadata"].get("annotations") or {}).get(CHILD_PAUSE_ANNOTATION) == scope_text:
        return {}
    return {"annotations": {CHILD_PAUSE_ANNOTATION: scope_text}}


def is_healthy(job: Manifest) -> bool:
    """Return whether a job runs what its resource asks for, and nothing is wrong with it. The status of a job that
    somebody has paused may be out of date."""
    status, metadata = read_status(job), job["metadata"]
    conditions = {condition.type: condition.status for condition in status.conditions}
    return (
        not metadata.get("deletionTimestamp")
        and pause_scope(job) == "nothing"
        and status.phase in {"Running", "Finished"}
        and status.observed_generation == metadata.get("generation")
        and (conditions.get("Ready"), conditions.get("UpToDate")) == ("True", "True")
        and conditions.get("Degraded") != "True"
        and conditions.get("Valid") != "False"
    )


def has_caught_up(candidate: Status, active: Status, limit: timedelta) -> bool:
    """Return whether each watermark of the candidate is at most `limit` behind the active job's. Inputs are compared by
    name; an input that the active job lacks, with the slowest of its inputs."""
    watermarks = {input_status.name: input_status.watermark for input_status in active.inputs}
    slowest = min((watermark for watermark in watermarks.values() if watermark is not None), default=None)
    for input_status in candidate.inputs:
        reference = watermarks.get(input_status.name, slowest)
        if reference is None or input_status.ended:
            continue
        if input_status.watermark is None or reference - input_status.watermark > limit:
            return False
    return bool(candidate.inputs)


def lags_no_more(candidate: Status, active: Status) -> bool:
    """Return whether no input of the candidate has more unread records than the same input of the active job. Inputs
    that the active job lacks are compared in total, as far as anything is known of that job."""
    active_lags = {input_status.name: input_status.lag for input_status in active.inputs}
    candidate_lags = {input_status.name: input_status.lag for input_status in candidate.inputs}
    known_lags = [lag for lag in active_lags.values() if lag is not None]
    lags = [lag for lag in candidate_lags.values() if lag is not None]
    if len(lags) < len(candidate_lags) or not known_lags:
        return len(lags) == len(candidate_lags)
    if candidate_lags.keys() <= active_lags.keys():
        return all(
            lag <= limit
            for name, lag in candidate_lags.items()
            if lag is not None and (limit := active_lags[name]) is not None
        )
    return sum(lags) <= sum(known_lags)


def _template_problems(job: Job, spec: Mapping[str, Any], outputs: tuple[OutputStatus, ...]) -> Iterator[str]:
    if "suspend" in spec:
        yield "spec.template.spec.suspend: is one job's; write spec.suspend, which suspends all of them"
    if job.spec.state_store.kind != "postgres":
        yield "spec.template.spec.stateStore: name a Postgres (stateStore.postgres), where each job has its own state"
    if not _targets(outputs):
        yield (
            "spec.template.spec.output: a console has no place that another job could differ from; name a topic, a "
            "table or a folder"
        )
    if len(job.outputs) > MOST_OUTPUTS:
        yield (
            f"spec.template.spec.outputs: has {len(job.outputs)} outputs, and the status has room for the places of "
            f"{MOST_OUTPUTS}; divide the job"
        )
    for source, input_path in zip(job.declared_inputs, job.input_places, strict=True):
        named = [name for name in GROUP_SETTINGS if source.kafka is not None and name in source.kafka.properties]
        if named:
            path = path_text(("spec", "template", "spec", *input_path, "kafka", "properties"))
            yield (
                f"{path}: names {' and '.join(named)}, and two jobs in one group "
                "would divide the partitions; leave it out, then each job has a group of its own"
            )


def place_digests(outputs: Iterable[OutputStatus]) -> list[str]:
    """Return a digest of each place, by which the status remembers many places."""
    return [digest_of(json.dumps(target)) for target in sorted(_targets(outputs))]


def _targets(outputs: Iterable[OutputStatus]) -> set[tuple[str, str]]:
    return {(output.kind, place_of(output.kind, output.target)) for output in outputs if output.target is not None}


def _as_text(kind: str, spec: Mapping[str, Any], resource: Manifest) -> str:
    metadata = {"name": resource["metadata"]["name"], "namespace": resource["metadata"]["namespace"]}
    try:
        return json.dumps({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}, sort_keys=True)
    except RecursionError:
        return _TOO_DEEP


@lru_cache(maxsize=_REMEMBERED)
def _load(text: str) -> Job | tuple[str, ...]:
    """Return the job in a resource, or its problems. Validation is most of a reconcile's work, and figures change
    often."""
    if text == _TOO_DEEP:
        return ("spec: is nested too deep to be checked; write it in a simpler way",)
    try:
        job: Any = load_stored(json.loads(text)).job
        return tuple(map(str, expression_problems(job))) or job
    except JobError as error:
        return tuple(f"{problem.path}: {problem.message}" for problem in error.problems)
    except Exception as error:
        return (f"spec: cannot be checked ({type(error).__name__}: {error}); write it in a simpler way",)


@lru_cache(maxsize=_REMEMBERED)
def _canonical(text: str) -> str:
    """Return a resource without what the API server fills in, so that two that mean the same are equal."""
    job = _load(text)
    return text if isinstance(job, tuple) else job.model_dump_json(by_alias=True, exclude_defaults=True)


def _merge_patch(actual: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch that turns `actual` into `desired`."""
    patch: dict[str, Any] = {name: None for name in actual if name not in desired}
    for name, value in desired.items():
        old = actual.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := _merge_patch(old, value):
                patch[name] = inner
        elif old != value:
            patch[name] = value
    return patch


def conflict(job: RequestedJob, state: BlueGreenState) -> str | None:
    """Return why the job cannot run beside those that run, or after those that ended; None if it can."""
    for past in state.retired:
        shared = shared_places(job.outputs, past.outputs)
        if shared or past.name == job.name:
            return (
                f"spec.template: writes to {', '.join(shared) or 'the places'}, where job {past.name} wrote until "
                f"{past.ended:%Y-%m-%d %H:%M} UTC. Its state is deleted, so its rows would be written again: name "
                "other places"
            )
    written = {digest: f"{output.kind} {output.target}" for output in job.outputs for digest in place_digests([output])}
    if repeated := [text for digest, text in written.items() if digest in state.earlier_places]:
        return (
            f"spec.template: writes to {', '.join(repeated)}, where an earlier job of this resource wrote. Its "
            "state is deleted, so its rows would be written again: name other places"
        )
    remembered = len(state.earlier_places)
    remembered += sum(len(past.outputs) for past in state.retired) + sum(len(listed.outputs) for listed in state.jobs)
    if remembered + len(written) > _MOST_PLACES:
        return (
            f"spec.template: the jobs of this resource have written to {remembered} places, and its status remembers "
            f"at most {_MOST_PLACES:,}, so that none of them is written again. Start another BlueGreenJob, with "
            "outputs of its own"
        )
    for other in state.jobs:
        if other.name != job.name and (shared := shared_places(job.outputs, other.outputs)):
            return (
                f"spec.template: writes to {', '.join(shared)}, as job {other.name} does, but not to exactly its "
                "outputs. Name other places for all outputs, which runs the edit beside that job; or name exactly that "
                "job's places, which changes it"
            )
    return None
