"""`reconcile_savepoint`: what is to be done about a Savepoint. Pure, as `reconcile` is.

A pod with the job's own image and secrets pins the state, beside a driver that runs or while the job is suspended, and
with `cleanup: delete` another one unpins it before the resource goes. Both may run twice.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import ValidationError

from joinery_operator.decision import Action, Create, Decision, Delete, Event, ObservedSavepoint, SetFinalizers
from joinery_operator.manifests import ManifestError, savepoint_pod
from joinery_operator.names import ChildNames
from joinery_operator.reconcile.context import read_status
from joinery_operator.reconcile.desired import stored_revision
from joinery_operator.reconcile.driver import back_off
from joinery_operator.reconcile.pods import PodObservation, observe_pod
from joinery_operator.reconcile.reasons import CREATE_REFUSED, INCOMPLETE, Fault, cut, sentence
from joinery_operator.revision import JobRevision
from joinery_runtime.job.crd import Condition, SavepointState
from joinery_runtime.job.crd.savepoint import SavepointPhase
from joinery_runtime.job.model.wording import counted

FINALIZER = "joinery.dev/delete-savepoint"
_JOB_MISSING, _NOT_STARTED, _IN_MEMORY = "JobMissing", "JobNotStarted", "StateInMemory"
_NO_STATE = {_JOB_MISSING, _NOT_STARTED, _IN_MEMORY}
_WAY_OUT = "To leave it in the state store, set spec.cleanup to retain: the resource then goes at once"


def reconcile_savepoint(observed: ObservedSavepoint) -> Decision:
    """Never raises for anything that a user, a cluster or another release may have written."""
    status = _read(observed)
    if observed.resource["metadata"].get("deletionTimestamp"):
        return _deleted(observed, status)
    if status.phase == "Completed":
        return Decision(None, tuple(_delete(pod) for pod in _pods(observed).values()))
    return _try(observed, status, delete=False)


def _deleted(observed: ObservedSavepoint, status: SavepointState) -> Decision:
    if FINALIZER not in _finalizers(observed):
        return Decision(None)
    release = SetFinalizers(tuple(each for each in _finalizers(observed) if each != FINALIZER))
    if _cleanup(observed) == "retain":
        return Decision(None, (release,))
    revision = _revision(observed)
    if isinstance(revision, Fault) and revision.reason in _NO_STATE:
        # Whoever deleted the job has decided about its state, and nothing is left that could reach it.
        kept = Event("Warning", "SavepointRetained", f"{revision.message}; if there is still state, it keeps this one")
        return Decision(None, (release,), (kept,))
    making = _pods(observed).get(_name(observed, delete=False))
    if making is not None:
        # It must not pin again what is unpinned.
        return _said(observed, status, "Deleting", "Stopping", "the pod that pins ends first", (_delete(making),))
    done = _pods(observed).get(_name(observed, delete=True))
    if done is not None and done.succeeded:
        return Decision(None, (release,))
    return _try(observed, status, delete=True)


def _try(observed: ObservedSavepoint, status: SavepointState, *, delete: bool) -> Decision:
    """One step of a pod that pins or unpins: made, watched, judged, and made again after a failure."""
    phase: SavepointPhase = "Deleting" if delete else "Pending"
    pod = _pods(observed).get(_name(observed, delete=delete))
    if pod is None:
        return _create(observed, status, phase, delete=delete)
    if pod.ended_at is None:
        if pod.stuck(observed.now, observed.settings.stuck_seconds):
            return Decision(None, (_delete(pod, grace_seconds=0),))
        fault = pod.fault or Fault("Running", "its pod starts or runs")
        again = observed.settings.stuck_seconds if pod.deletion_time else None
        return _said(observed, status, phase, fault.reason, fault.message, again_after=again)
    if pod.savepoint is not None and pod.succeeded and not delete:
        return _completed(observed, pod)
    return _failed(observed, status, pod, phase)


def _create(observed: ObservedSavepoint, status: SavepointState, phase: SavepointPhase, *, delete: bool) -> Decision:
    poll = observed.settings.poll_seconds
    if status.not_before is not None and observed.now < status.not_before:
        return Decision(None, again_after=(status.not_before - observed.now).total_seconds())
    revision = _revision(observed)
    if isinstance(revision, Fault):
        return _said(observed, status, phase, revision.reason, revision.message, again_after=poll)
    try:
        manifest = savepoint_pod(revision, observed.resource, delete=delete)
    except ManifestError as error:
        return _said(observed, status, phase, INCOMPLETE, str(error), again_after=poll)
    actions: tuple[Action, ...] = (Create(manifest),)
    if not delete and (_cleanup(observed) == "delete") != (FINALIZER in _finalizers(observed)):
        others = tuple(each for each in _finalizers(observed) if each != FINALIZER)
        wanted = (*others, FINALIZER) if _cleanup(observed) == "delete" else others
        # Before anything is pinned.
        actions = (SetFinalizers(wanted), *actions)
    if observed.create_refused:
        return _said(observed, status, phase, CREATE_REFUSED, observed.create_refused, actions)
    return _said(observed, status, phase, "Running", "its pod is made", actions)


def _completed(observed: ObservedSavepoint, pod: PodObservation) -> Decision:
    made = pod.savepoint
    assert made is not None, "its pod has told it"
    status = SavepointState(epoch=made.epoch, time=made.time, rows=made.rows, bytes=made.bytes)
    message = f"epoch {made.epoch}: {counted(made.rows, 'row')}, {made.bytes:,} bytes"
    return _said(observed, status, "Completed", "Completed", message, (_delete(pod),))


def _failed(
    observed: ObservedSavepoint, status: SavepointState, pod: PodObservation, phase: SavepointPhase
) -> Decision:
    """Counts the failure first, deletes the pod when the next try is due."""
    if status.not_before is not None and pod.ended_at is not None and status.not_before > pod.ended_at:
        wait = (status.not_before - observed.now).total_seconds()
        return Decision(None, () if wait > 0 else (_delete(pod),), again_after=max(wait, 0.0) or None)
    failures = status.failures + 1
    pause: timedelta = back_off(observed.settings, failures)
    text = cut(pod.end_message) or "its pod told nothing"
    status = status.model_copy(update={"failures": failures, "not_before": observed.now + pause, "last_error": text})
    failed: SavepointPhase = "Failed" if phase == "Pending" else phase
    return _said(observed, status, failed, "Failed", text, again_after=pause.total_seconds())


def _revision(observed: ObservedSavepoint) -> JobRevision | Fault:
    """What reaches the job's state: its revision in force; or why nothing does yet."""
    asked = observed.resource["spec"]["job"]
    kind, name = asked["kind"], asked["name"]
    if observed.job is None:
        return Fault(_JOB_MISSING, f"there is no {kind} {name} in this namespace")
    job = read_status(observed.job.resource)
    if job.revision is None or job.image is None:
        return Fault(_NOT_STARTED, f"no driver of {kind} {name} has started, so it has no state yet")
    revision = stored_revision(observed.job, job.revision, job.image)
    if revision is None:
        return Fault("RevisionLost", f"the ConfigMap of revision {job.revision} of {kind} {name} is gone")
    if not revision.durable:
        return Fault(_IN_MEMORY, f"{kind} {name} keeps its state in memory; name a Postgres under stateStore")
    return revision


def _said(
    observed: ObservedSavepoint,
    status: SavepointState,
    phase: SavepointPhase,
    reason: str,
    message: str,
    actions: tuple[Action, ...] = (),
    *,
    again_after: float | None = None,
) -> Decision:
    """The decision with phase and conditions, those of kstatus among them."""
    old = _read(observed)
    generation = observed.resource["metadata"].get("generation")
    going, failed = phase in {"Pending", "Deleting"} and reason != "Failed", reason == "Failed"
    aspects = {"Ready": phase == "Completed", "Reconciling": going, "Stalled": failed}
    if phase == "Deleting":
        message = sentence(message, _WAY_OUT)
    before = {each.type: each for each in old.conditions}
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
    told = (
        ()
        if ready is not None and ready.reason == reason and status.failures == old.failures
        else (Event("Warning" if failed else "Normal", reason, cut(message)),)
    )
    return Decision(None if new == old else new, actions, told, again_after)


def _read(observed: ObservedSavepoint) -> SavepointState:
    """Without what another release wrote and this one cannot read."""
    try:
        return SavepointState.model_validate(observed.resource.get("status") or {})
    except ValidationError:
        return SavepointState()


def _pods(observed: ObservedSavepoint) -> dict[str, PodObservation]:
    return {name: observe_pod(pod) for name, pod in observed.pods.items()}


def _name(observed: ObservedSavepoint, *, delete: bool) -> str:
    return ChildNames(observed.resource).savepoint("delete" if delete else "create")


def _cleanup(observed: ObservedSavepoint) -> str:
    return str(observed.resource["spec"].get("cleanup", "delete"))


def _finalizers(observed: ObservedSavepoint) -> tuple[str, ...]:
    return tuple(observed.resource["metadata"].get("finalizers") or ())


def _delete(pod: PodObservation, grace_seconds: int | None = None) -> Delete:
    return Delete("Pod", pod.name, pod.uid, grace_seconds)
