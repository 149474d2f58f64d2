"""`reconcile_savepoint`: decides what to do about a Savepoint. Pure, like `reconcile`.

A pod with the job's own image and secrets pins the state, beside a running driver or while the job is suspended. With
`cleanup: delete` another pod unpins it before the resource is deleted. Both may run twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from joinery_operator.decision import (
    Action,
    Create,
    Decision,
    Delete,
    Event,
    Manifest,
    ObservedSavepoint,
    SetFinalizers,
)
from joinery_operator.manifests import ManifestError, savepoint_pod
from joinery_operator.names import ChildNames
from joinery_operator.reconcile.children import deletion_fault
from joinery_operator.reconcile.context import FINALIZER as DELETE_STATE
from joinery_operator.reconcile.context import read_known_fields, read_status
from joinery_operator.reconcile.desired import stored_revision
from joinery_operator.reconcile.driver import back_off
from joinery_operator.reconcile.pods import PodObservation, observe_pod
from joinery_operator.reconcile.reasons import CREATE_REFUSED, INCOMPLETE, REVISION_LOST, Fault, cut, sentence
from joinery_operator.revision import JobRevision
from joinery_operator.settings import CLASS_LABEL
from joinery_runtime.job.crd import Condition, SavepointState
from joinery_runtime.job.crd.savepoint import SavepointPhase
from joinery_runtime.job.model.wording import counted

FINALIZER = "joinery.dev/delete-savepoint"
_STATE_GOES, _STATE_GONE = "StateBeingDeleted", "StateDeleted"
_JOB_MISSING, _NOT_STARTED, _IN_MEMORY = "JobMissing", "JobNotStarted", "StateInMemory"
_JOB_IS_ANOTHERS = "JobOfAnotherOperator"
_NO_STATE = {_JOB_MISSING, _NOT_STARTED, _IN_MEMORY}
_NOTHING_MADE = {*_NO_STATE, _STATE_GOES, _STATE_GONE, REVISION_LOST, INCOMPLETE, CREATE_REFUSED}
_WAY_OUT = "To leave it in the state store, set spec.cleanup to retain: the resource then goes at once"


def reconcile_savepoint(observed: ObservedSavepoint) -> Decision:
    """Decide. Never raises for anything that a user, a cluster or another release may have written."""
    status = read_known_fields(SavepointState, observed.resource)
    if observed.permissions_end:
        return _release(observed, status)
    if observed.resource["metadata"].get("deletionTimestamp"):
        return _reconcile_deleted(observed, status)
    if status.phase == "Completed":
        actions = (*_set_finalizer(observed), *(_delete(pod) for pod in _pods(observed).values()))
        reason, message = _completion(observed, status)
        return _decision(observed, status, "Completed", reason, message, actions)
    return _run_pod(observed, status, delete=False)


def left_behind_events(resource: Manifest) -> Iterator[Event]:
    """Say of a Savepoint that is gone that the state store still has its savepoint, against what it asked for: it was
    deleted before the operator had set its finalizer. One that the operator lets go is `Deleting` before."""
    status = read_known_fields(SavepointState, resource)
    if _cleanup(resource) == "retain" or status.phase == "Deleting" or _ready_reason(status) in _NOTHING_MADE:
        return
    yield _left_behind(
        resource,
        status,
        f"the Savepoint was deleted before it had the finalizer {FINALIZER}, without which cleanup: delete deletes "
        "nothing",
    )


def _ready_reason(status: SavepointState) -> str:
    return next((condition.reason for condition in status.conditions if condition.type == "Ready"), _NOT_STARTED)


def _left_behind(resource: Manifest, status: SavepointState, reason: str) -> Event:
    metadata, job_ref = resource["metadata"], resource["spec"]["job"]
    stays = "stays" if status.epoch is not None else "stays, if its pod has made it,"
    name, job = metadata["name"], job_ref["name"]
    return Event(
        "Warning",
        "SavepointLeftBehind",
        f"savepoint {name} of {job_ref['kind']} {metadata['namespace']}/{job} {stays} in the state store: {reason}. To "
        f"delete it, run `kubectl joinery state {job} savepoint {name} --delete`, or without the job `joinery state "
        f"savepoint JOB.yaml {name} --delete` where Postgres can be reached, with metadata.namespace: "
        f"{metadata['namespace']} in the file",
    )


def _completion(observed: ObservedSavepoint, status: SavepointState) -> tuple[str, str]:
    """Reason and message of a savepoint that was made: whether the state that holds it goes, or is gone, with its job.
    Once the job is gone, only what was seen before tells. A job that is there and lives is then another one."""
    job_ref = observed.resource["spec"]["job"]
    name, pinned = f"{job_ref['kind']} {job_ref['name']}", _pinned_text(status)
    job = observed.job.resource if observed.job is not None else None
    before = {condition.reason for condition in status.conditions}
    if _STATE_GONE not in before and job is not None and job["metadata"].get("deletionTimestamp"):
        with_state = DELETE_STATE in (job["metadata"].get("finalizers") or ())
        if with_state and (job.get("spec") or {}).get("cleanup") != "retainState":
            return (
                _STATE_GOES,
                f"{name} is being deleted with its state (cleanup: deleteState), and so is this: {pinned}",
            )
    elif before & {_STATE_GOES, _STATE_GONE}:
        return _STATE_GONE, (
            f"{name} was deleted with its state (cleanup: deleteState), and this with it: {pinned}. "
            "Delete this Savepoint: nothing can return to it"
        )
    return "Completed", pinned


def _reconcile_deleted(observed: ObservedSavepoint, status: SavepointState) -> Decision:
    if FINALIZER not in _finalizers(observed):
        return Decision(None)
    release = _remove_finalizer(observed)
    if _cleanup(observed.resource) == "retain":
        return Decision(None, (release,))
    revision = _current_revision(observed)
    if isinstance(revision, Fault) and revision.reason in _NO_STATE:
        # Whoever deleted the job has decided about its state, and nothing remains that could reach the state.
        retained = Event(
            "Warning", "SavepointRetained", f"{revision.message}; if there is still state, it keeps this one"
        )
        # `left_behind_events` sees by the phase that the operator has let it go.
        return Decision(status.model_copy(update={"phase": "Deleting"}), (release,), (retained,))
    making = _pods(observed).get(_name(observed, delete=False))
    if making is not None:
        # The pod that pins must not do so again after the other one has unpinned. On a dead node nothing waits for it.
        stuck = observed.settings.stuck_seconds
        stop = _delete(making, grace_seconds=0 if making.is_stuck(observed.now, stuck) else None)
        message = "the pod that pins ends first"
        return _decision(
            observed, status, "Deleting", "Stopping", message, (stop,), again_after=_until_stuck(observed, making)
        )
    done = _pods(observed).get(_name(observed, delete=True))
    if done is not None and done.succeeded:
        return Decision(None, (release,))
    if observed.namespace_ends and (done is None or done.ended_at is not None):
        return _release(observed, status)
    return _run_pod(observed, status, delete=True)


def _until_stuck(observed: ObservedSavepoint, pod: PodObservation) -> float:
    """Return the seconds after which a pod that ends may count as one that nothing ends."""
    stuck_at = pod.stuck_at(observed.settings.stuck_seconds)
    return observed.settings.stuck_seconds if stuck_at is None else max(0.0, (stuck_at - observed.now).total_seconds())


def _release(observed: ObservedSavepoint, status: SavepointState) -> Decision:
    """Let a Savepoint go whose namespace is being deleted, and say that the state store keeps its savepoint."""
    if FINALIZER not in _finalizers(observed):
        return Decision(None)
    done = _pods(observed).get(_name(observed, delete=True))
    nothing_is_pinned = (done is not None and done.succeeded) or _ready_reason(status) in {*_NO_STATE, _STATE_GONE}
    left: tuple[Event, ...] = ()
    if _cleanup(observed.resource) == "delete" and not nothing_is_pinned:
        namespace = observed.resource["metadata"]["namespace"]
        event = _left_behind(
            observed.resource, status, f"namespace {namespace} is being deleted, so no pod can delete it"
        )
        left = (replace(event, outlives_namespace=True),)
    # `left_behind_events` sees by the phase that the operator has let it go.
    return Decision(status.model_copy(update={"phase": "Deleting"}), (_remove_finalizer(observed),), left)


def _remove_finalizer(observed: ObservedSavepoint) -> SetFinalizers:
    return SetFinalizers(tuple(finalizer for finalizer in _finalizers(observed) if finalizer != FINALIZER))


def _run_pod(observed: ObservedSavepoint, status: SavepointState, *, delete: bool) -> Decision:
    """One step of a pod that pins or unpins: creates it, watches it, judges it, and creates it again after a
    failure."""
    phase: SavepointPhase = "Deleting" if delete else "Pending"
    pod = _pods(observed).get(_name(observed, delete=delete))
    if pod is None:
        return _create(observed, status, phase, delete=delete)
    if pod.ended_at is None:
        stuck = observed.settings.stuck_seconds
        actions = (_delete(pod, grace_seconds=0),) if pod.is_stuck(observed.now, stuck) else ()
        revision = None if pod.started or pod.deletion_time else _current_revision(observed)
        if isinstance(revision, Fault):
            # A pod that has not started waits for ever for the ConfigMap that went with the job.
            return _decision(observed, status, phase, revision.reason, revision.message, (_delete(pod),))
        fault = pod.fault or Fault("Running", "its pod starts or runs")
        again_after = _until_stuck(observed, pod) if pod.deletion_time and not actions else None
        return _decision(observed, status, phase, fault.reason, fault.message, actions, again_after=again_after)
    if (savepoint := pod.savepoint) is not None and pod.succeeded and not delete:
        status = SavepointState(epoch=savepoint.epoch, time=savepoint.time, rows=savepoint.rows, bytes=savepoint.bytes)
        done = (*_set_finalizer(observed), _delete(pod))
        return _decision(observed, status, "Completed", "Completed", _pinned_text(status), done)
    return _handle_failure(observed, status, pod, phase)


def _create(observed: ObservedSavepoint, status: SavepointState, phase: SavepointPhase, *, delete: bool) -> Decision:
    poll = observed.settings.poll_seconds
    if status.not_before is not None and observed.now < status.not_before:
        return Decision(None, again_after=(status.not_before - observed.now).total_seconds())
    status = status.model_copy(update={"not_before": None})
    revision = _current_revision(observed)
    if isinstance(revision, Fault):
        return _decision(observed, status, phase, revision.reason, revision.message, again_after=poll)
    try:
        manifest = savepoint_pod(revision, observed.resource, delete=delete)
    except ManifestError as error:
        return _decision(observed, status, phase, INCOMPLETE, str(error), again_after=poll)
    actions: tuple[Action, ...] = (Create(manifest),)
    if not delete:
        # Before anything is pinned.
        actions = (*_set_finalizer(observed), *actions)
    if observed.create_refused:
        return _decision(observed, status, phase, CREATE_REFUSED, observed.create_refused, actions)
    return _decision(observed, status, phase, "Running", "its pod is made", actions)


def _pinned_text(status: SavepointState) -> str:
    return f"epoch {status.epoch}: {counted(status.rows or 0, 'row')}, {status.bytes or 0:,} bytes"


def _handle_failure(
    observed: ObservedSavepoint, status: SavepointState, pod: PodObservation, phase: SavepointPhase
) -> Decision:
    """Count the failure first, and delete the pod when the next try is due. `not_before` tells the two apart, so
    that what is counted does not depend on the clocks of nodes."""
    failed: SavepointPhase = "Failed" if phase == "Pending" else phase
    if status.not_before is not None:
        wait = (status.not_before - observed.now).total_seconds()
        if wait > 0:
            return Decision(None, again_after=wait)
        return _decision(observed, status, failed, "Failed", status.last_error or "", (_delete(pod),))
    failures = status.failures + 1
    pause: timedelta = back_off(observed.settings, failures)
    text = cut(pod.end_message) or "its pod reported nothing"
    status = status.model_copy(update={"failures": failures, "not_before": observed.now + pause, "last_error": text})
    return _decision(observed, status, failed, "Failed", text, again_after=pause.total_seconds())


def _current_revision(observed: ObservedSavepoint) -> JobRevision | Fault:
    """Return the job's current revision, whose pod can reach the state; or why there is none yet."""
    job_ref = observed.resource["spec"]["job"]
    kind, name = job_ref["kind"], job_ref["name"]
    if observed.job_is_anothers:
        return Fault(
            _JOB_IS_ANOTHERS,
            f"another operator works on {kind} {name}, and only that operator can delete this savepoint from the state "
            f"store: give this Savepoint the labels of its job ({CLASS_LABEL})",
        )
    if observed.job is None:
        return Fault(
            _JOB_MISSING,
            f"there is no {kind} {name} in this namespace, or another operator works on it: a savepoint needs the "
            f"labels of its job ({CLASS_LABEL})",
        )
    job = read_status(observed.job.resource)
    if job.revision is None or job.image is None:
        return Fault(_NOT_STARTED, f"no driver of {kind} {name} has started, so it has no state yet")
    revision = stored_revision(observed.job, job.revision, job.image)
    if revision is None:
        return Fault(REVISION_LOST, f"the ConfigMap of revision {job.revision} of {kind} {name} is missing")
    if not revision.durable:
        return Fault(_IN_MEMORY, f"{kind} {name} keeps its state in memory; name a Postgres under stateStore")
    return revision


def _decision(
    observed: ObservedSavepoint,
    status: SavepointState,
    phase: SavepointPhase,
    reason: str,
    message: str,
    actions: tuple[Action, ...] = (),
    *,
    again_after: float | None = None,
) -> Decision:
    """Return the decision with phase and conditions, including those of kstatus."""
    old = read_known_fields(SavepointState, observed.resource)
    generation = observed.resource["metadata"].get("generation")
    going, failed = phase in {"Pending", "Deleting"} and reason != "Failed", reason in {"Failed", _STATE_GONE}
    aspects = {"Ready": reason == "Completed", "Reconciling": going, "Stalled": failed}
    if (stays := deletion_fault(actions, observed.delete_refused)) is not None:
        message = f"{message}. {stays.message}"
    if phase == "Deleting":
        message = sentence(message, _WAY_OUT)
    before = {condition.type: condition for condition in old.conditions}
    conditions = tuple(
        Condition.model_validate(
            {
                "type": type_,
                "status": str(holds),
                "observed_generation": generation,
                "last_transition_time": before[type_].last_transition_time
                if type_ in before and before[type_].status == str(holds)
                else observed.now,
                "reason": reason,
                "message": cut(message) if holds or type_ == "Ready" else "",
            }
        )
        for type_, holds in aspects.items()
    )
    new = status.model_copy(update={"phase": phase, "conditions": conditions, "observed_generation": generation})
    ready = before.get("Ready")
    events = (
        ()
        if ready is not None and ready.reason == reason and status.failures == old.failures
        else (Event("Warning" if failed else "Normal", reason, cut(message)),)
    )
    return Decision(None if new == old else new, actions, events, again_after)


def _pods(observed: ObservedSavepoint) -> dict[str, PodObservation]:
    return {name: observe_pod(pod) for name, pod in observed.pods.items()}


def _name(observed: ObservedSavepoint, *, delete: bool) -> str:
    return ChildNames(observed.resource).savepoint("delete" if delete else "create")


def _cleanup(resource: Manifest) -> str:
    return str(resource["spec"].get("cleanup", "delete"))


def _finalizers(observed: ObservedSavepoint) -> tuple[str, ...]:
    return tuple(observed.resource["metadata"].get("finalizers") or ())


def _set_finalizer(observed: ObservedSavepoint) -> Iterator[Action]:
    """For a resource that lives: what `cleanup` says may change at any time."""
    needs_finalizer, finalizers = _cleanup(observed.resource) == "delete", _finalizers(observed)
    if needs_finalizer != (FINALIZER in finalizers):
        yield SetFinalizers((*finalizers, FINALIZER)) if needs_finalizer else _remove_finalizer(observed)


def _delete(pod: PodObservation, grace_seconds: int | None = None) -> Delete:
    return Delete("Pod", pod.name, pod.uid, grace_seconds)
