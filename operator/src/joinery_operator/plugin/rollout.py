"""`kubectl joinery rollout`: waits for another revision, returns to an earlier job, lists revisions, switches to the
second job of a BlueGreenJob, pauses."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from copy import deepcopy
from enum import IntEnum
from typing import Annotated, Any

from cyclopts import App, Parameter

from joinery_operator.manifests import JOB_FILE
from joinery_operator.manifests.yaml import from_yaml
from joinery_operator.names import PAUSE_ANNOTATION, SWITCH_ANNOTATION, ChildNames
from joinery_operator.plugin.kubectl import (
    JobResource,
    KubectlTarget,
    find_job,
    find_job_or_blue_green,
    read_config_map,
)
from joinery_operator.plugin.report import align_columns
from joinery_operator.revision import NOT_FOR_DRIVERS
from joinery_runtime.errors import JoineryError
from joinery_runtime.job.crd import BLUE_GREEN, KINDS
from joinery_runtime.job.model.duration import parse_duration

rollout = App(name="rollout", help="Wait for a rollout, return to an earlier job, list revisions, pause rollouts.")

JobName = Annotated[str, Parameter(help=f"The job's name, or with its kind as in {KINDS[0].short}/NAME.")]
_HERE = KubectlTarget()
_POLL = 1.0  # seconds


class RolloutVerdict(IntEnum):
    """How far the job is from what its resource asks for: the exit code of `rollout status`."""

    UP_TO_DATE = 0
    FAILED = 1
    TIMED_OUT = 3
    HELD_BACK = 4


@rollout.command
def status(job: JobName, /, *, wait: bool = True, timeout: str | None = None, target: KubectlTarget = _HERE) -> int:
    """Wait until what a job's resource asks for is rolled out. Exit codes: 0 it is; 1 it was rejected or rolled back,
    or has failed; 3 not within --timeout; 4 it is paused or suspended, or awaits `rollout switch`.

    Parameters
    ----------
    wait
        Without it, say how far the rollout is: 3 if it is not over.
    timeout
        How long to wait, as 15m. Without it, as long as it takes.
    """
    try:
        deadline = None if timeout is None else time.monotonic() + parse_duration(timeout) / 1000
    except ValueError as error:
        raise JoineryError(f"--timeout {timeout}", facts=str(error)) from None
    last_text = ""
    while True:
        job_resource = find_job_or_blue_green(target, job)
        verdict, reason = _rollout_verdict(job_resource)
        text = f"{job_resource.resource['kind']} {job_resource.name}: {reason}"
        if text != last_text:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            last_text = text
        if verdict is not None:
            return verdict
        if not wait or (deadline is not None and time.monotonic() >= deadline):
            return RolloutVerdict.TIMED_OUT
        time.sleep(_POLL)


@rollout.command
def history(job: JobName, /, *, revision: str | None = None, target: KubectlTarget = _HERE) -> None:
    """List the job's revisions that worked, newest first; of a BlueGreenJob the jobs, and where each writes.

    Parameters
    ----------
    revision
        Print the job of this revision instead.
    """
    job_resource = find_job_or_blue_green(target, job)
    if job_resource.resource["kind"] == BLUE_GREEN.name:
        _print_jobs(job_resource, revision)
        return
    if revision is not None:
        sys.stdout.write(_stored_text(target, job_resource, revision))
        return
    status = job_resource.status
    rollout, refused = status.get("rollout"), status.get("refused")
    rows = [["REVISION", "STATE", "SINCE", "UNTIL", "IMAGE"]]
    if refused:
        rows.append([refused["revision"], refused["reason"], "-", "-", "-"])
    if rollout and rollout["revision"] != (refused or {}).get("revision"):
        rows.append([rollout["revision"], rollout["stage"], rollout["since"], "-", rollout["image"]])
    if status.get("revision"):
        since = status.get("proved") or "never ready"
        rows.append([status["revision"], "current", since, "-", status.get("image", "-")])
    for past in reversed(status.get("history", ())):
        rows.append([past["revision"], "earlier", past["since"], past["until"], past["image"]])
    for line in align_columns(rows):
        sys.stdout.write(f"{line.strip()}\n")


@rollout.command
def undo(job: JobName, /, *, to_revision: str | None = None, target: KubectlTarget = _HERE) -> int:
    """Set the job's spec back to that of the revision before. A rollout that is under way, or was rejected, returns to
    the current revision. What is not part of a revision stays: suspend, cleanup, upgrade and the scale. A BlueGreenJob
    gives its second job up or, after a switch, returns to the old job while that runs; else its active job returns to
    the revision before.

    Parameters
    ----------
    to_revision
        The revision to return to, one of `rollout history`.
    """
    job_resource = find_job_or_blue_green(target, job)
    if job_resource.resource["kind"] == BLUE_GREEN.name:
        return _undo_blue_green(target, job_resource, to_revision)
    job_resource.check_spec_is_its_own("rollout undo")
    revision, spec = _earlier_spec(target, job_resource, to_revision)
    sys.stdout.write(f"{job_resource.name}: back to the job of revision {revision}\n")
    return _replace(target, job_resource, "/spec", spec)


@rollout.command
def switch(job: JobName, /, *, target: KubectlTarget = _HERE) -> int:
    """Let readers of a BlueGreenJob switch to the job that runs beside the active one, once that is stable."""
    job_resource = find_job(target, job, (BLUE_GREEN,))
    candidate = job_resource.status.get("candidate")
    if candidate is None:
        raise JoineryError(
            f"BlueGreenJob {job_resource.name} has no second job",
            facts=f"its status names none beside {job_resource.status.get('active') or 'the first one'}",
            todo="Edit spec.template so that each output has another place",
        )
    if _conditions(job_resource).get("UpToDate", {}).get("reason") != "AwaitingSwitch":
        sys.stderr.write("joinery: it is not stable yet; readers switch when it is\n")
    # An edit after this look at the second job's output needs another one.
    generation = job_resource.resource["metadata"]["generation"]
    return _annotate(target, job_resource, f"{SWITCH_ANNOTATION}={candidate['name']}@{generation}")


def _undo_blue_green(target: KubectlTarget, blue_green: JobResource, to_revision: str | None) -> int:
    """Set the template to the active job, if a second one runs or the template is rejected; else to the last job before
    the active one, while that runs; else to the active job's revision before."""
    status, template = blue_green.status, blue_green.resource["spec"]["template"]
    conditions = _conditions(blue_green)
    active, earlier = status.get("active"), None
    if active is None:
        raise JoineryError(f"BlueGreenJob {blue_green.name} has no job yet", todo="Edit spec.template")
    if to_revision is None:
        if status.get("candidate") is not None or conditions.get("Valid", {}).get("status") == "False":
            earlier = active
        elif conditions.get("UpToDate", {}).get("status") != "False":
            earlier = next((old["name"] for old in reversed(status.get("old", ()))), None)
    job = find_job(target, earlier or active)
    if earlier is not None:
        text, spec = f"job {earlier}", deepcopy(job.resource["spec"])
    else:
        revision, spec = _earlier_spec(target, job, to_revision)
        text = f"the job of revision {revision}"
        if "instances" not in template["spec"].get("spark", {}).get("executor", {}):
            spec.get("spark", {}).get("executor", {}).pop("instances", None)  # an autoscaler's
    # What the operator decides of a job is no part of the template.
    spec.pop("suspend", None)
    _copy_fields(template["spec"], spec, "cleanup")
    sys.stdout.write(f"{blue_green.name}: back to {text}\n")
    return _replace(target, blue_green, "/spec/template", {"kind": job.resource["kind"], "spec": spec})


def _print_jobs(job: JobResource, revision: str | None) -> None:
    if revision is not None:
        raise JoineryError("A BlueGreenJob has no revisions", todo="`kubectl get` its jobs, which the history names")
    status = job.status
    rows = [["JOB", "STATE", "UNTIL", "OUTPUTS"]]
    if (candidate := status.get("candidate")) is not None:
        rows.append([candidate["name"], "candidate", "-", "-"])
    if status.get("active"):
        rows.append([status["active"], "active", "-", _outputs_text(status)])
    rows += [[old["name"], "old", old["until"], "-"] for old in reversed(status.get("old", ()))]
    rows += [
        [past["name"], "retired", past["ended"], _outputs_text(past)] for past in reversed(status.get("retired", ()))
    ]
    for line in align_columns(rows):
        sys.stdout.write(f"{line.strip()}\n")


def _outputs_text(status: Mapping[str, Any]) -> str:
    return ", ".join(f"{output['kind']} {output.get('target', '-')}" for output in status.get("outputs", ())) or "-"


def _replace(target: KubectlTarget, job_resource: JobResource, path: str, value: object) -> int:
    """Replace a part of the resource. Whoever has edited the resource meanwhile does not lose the edit."""
    version = job_resource.resource["metadata"]["resourceVersion"]
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": path, "value": value},
    ]
    return target.run(
        "patch",
        job_resource.reference,
        f"--namespace={job_resource.namespace}",
        "--type=json",
        f"--patch={json.dumps(patch)}",
    )


@rollout.command
def pause(job: JobName, /, *, target: KubectlTarget = _HERE) -> int:
    """Let no rollout begin. The current revision keeps running, and is restarted if it fails."""
    return _set_annotation(target, job, f"{PAUSE_ANNOTATION}=rollouts")


@rollout.command
def resume(job: JobName, /, *, target: KubectlTarget = _HERE) -> int:
    """Let rollouts begin again: what the resource asks for is checked and rolled out."""
    return _set_annotation(target, job, f"{PAUSE_ANNOTATION}-")


def _set_annotation(target: KubectlTarget, job: str, annotation: str) -> int:
    return _annotate(target, find_job_or_blue_green(target, job), annotation)


def _annotate(target: KubectlTarget, job_resource: JobResource, annotation: str) -> int:
    namespace_option = f"--namespace={job_resource.namespace}"
    return target.run("annotate", job_resource.reference, namespace_option, "--overwrite", annotation)


def _conditions(job: JobResource) -> dict[str, Any]:
    return {condition["type"]: condition for condition in job.status.get("conditions", ())}


def _rollout_verdict(job: JobResource) -> tuple[RolloutVerdict | None, str]:
    """Return how the wait for a rollout ends; None: it does not yet. And why."""
    metadata, status = job.resource["metadata"], job.status
    conditions = _conditions(job)
    paused = conditions.get("Paused")
    if paused is not None and paused["reason"] == "Everything":
        return RolloutVerdict.HELD_BACK, f"Paused: {paused['message']}"
    if status.get("observedGeneration") != metadata.get("generation"):
        return None, "waiting for the operator to see the last change"
    up_to_date = conditions.get("UpToDate")
    if up_to_date is None:
        return None, "waiting for an operator that reports the condition UpToDate"
    text = f"{up_to_date['reason']}: {up_to_date['message']}"
    if up_to_date["status"] == "True":
        return RolloutVerdict.UP_TO_DATE, text
    # The pipeline's next step should find the old revision running.
    rolls_back = (status.get("rollout") or {}).get("stage") == "RollingBack" and status.get("phase") != "Failed"
    if conditions.get("Stalled", {}).get("status") == "True" and not rolls_back:
        return RolloutVerdict.FAILED, text
    waits = up_to_date["reason"] in {"RolloutsPaused", "Suspended", "AwaitingSwitch"}
    return (RolloutVerdict.HELD_BACK if waits else None), text


def _earlier_spec(target: KubectlTarget, job: JobResource, to_revision: str | None) -> tuple[str, dict[str, Any]]:
    """Return the revision to return to, and its spec: the first that differs, since a restart makes a revision too."""
    status = job.status
    images: dict[str, str | None] = {past["revision"]: past["image"] for past in reversed(status.get("history", ()))}
    current = status.get("revision")
    if current and (to_revision is not None or status.get("targetRevision") != current):
        images = {current: None, **images}  # None: the operator knows its image
    if to_revision is not None and to_revision not in images:
        raise JoineryError(
            f"Job {job.name} has no revision {to_revision}",
            facts=f"it has {', '.join(images) or 'none'}",
            todo="`kubectl joinery rollout history` lists them",
        )
    if not images:
        raise JoineryError(
            f"Job {job.name} has no earlier revision",
            facts="no other revision of it was ready since its operator keeps a history",
            todo="Apply the earlier job",
        )
    revisions = list(images) if to_revision is None else [to_revision]
    for revision in revisions:
        image, spec = images[revision], _restored_spec(target, job, revision)
        if spec == job.resource["spec"] and image in {None, status.get("image")}:
            continue
        if image is not None and not spec.get("spark", {}).get("image"):
            # The installation's image may be another one by now.
            spec.setdefault("spark", {})["image"] = image
            sys.stderr.write(f"joinery: spec.spark.image is {image}, which that revision ran without naming it\n")
        return revision, spec
    raise JoineryError(
        f"Job {job.name} has the spec of revision {revisions[0]} already",
        todo="`kubectl joinery rollout history` lists others. Revisions may also differ by a restart or a pod template",
    )


def _stored_text(target: KubectlTarget, job: JobResource, revision: str) -> str:
    name = ChildNames(job.resource).config_map(revision)
    config_map = read_config_map(target, job, name)
    if config_map is None:
        raise JoineryError(
            f"The job of revision {revision} is not known",
            facts=f"ConfigMap {name} is missing in namespace {job.namespace}",
            todo="`kubectl joinery rollout history` lists the revisions whose jobs are kept",
        )
    return str(config_map["data"][JOB_FILE])


def _restored_spec(target: KubectlTarget, job: JobResource, revision: str) -> dict[str, Any]:
    """Return the spec of an earlier revision, with what is not part of a revision as it is now."""
    stored: Any = from_yaml(_stored_text(target, job, revision))
    now, spec = job.resource["spec"], stored["spec"]
    _copy_fields(now, spec, *NOT_FOR_DRIVERS, "shards", "autoscale")
    executor = spec.get("spark", {}).get("executor", {})
    executor_now = now.get("spark", {}).get("executor", {})
    if "maxInstances" not in executor and "maxInstances" not in executor_now:
        _copy_fields(executor_now, executor, "instances")
        if executor:
            spec.setdefault("spark", {})["executor"] = executor
    return dict(spec)


def _copy_fields(source: Mapping[str, Any], target: dict[str, Any], *names: str) -> None:
    for name in names:
        target.pop(name, None)
        if name in source:
            target[name] = deepcopy(source[name])
