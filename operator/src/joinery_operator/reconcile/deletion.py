"""The deletion of a resource: with `cleanup: deleteState` its finalizer stays until the state is deleted.

Everything else is deleted by owner references. Of a resource that is deleted in the foreground, Kubernetes
first deletes the children, even new ones, until the resource has no finalizer but ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from joinery_operator.decision import Action, Create, Delete, Event, Manifest, Observed, SetFinalizers
from joinery_operator.manifests import ManifestError, delete_state_pod
from joinery_operator.reconcile.children import delete_stuck, job_config_map, make_room, stop
from joinery_operator.reconcile.context import FINALIZER, ReconcileContext, read_status
from joinery_operator.reconcile.driver import back_off
from joinery_operator.reconcile.phase import not_ready_fault
from joinery_operator.reconcile.places import state_place_text
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import (
    CREATE_REFUSED,
    INCOMPLETE,
    REVISION_LOST,
    STATE_ELSEWHERE,
    STATE_TAKEN,
    Fault,
    cut,
    sentence,
)
from joinery_operator.revision import WITHOUT_TEMPLATE, JobRevision
from joinery_runtime.job.crd import Deletion, Status

_PLACE, _PROBLEMS = 192, 320
_GONE_WITH_ITS_POD = {"memory", "embedded"}
_BY_KUBERNETES = {"foregroundDeletion", "orphan"}
WAY_OUT = "To give the state up, set spec.cleanup to retainState: the resource then goes at once and its state stays"


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """One step of a deletion. `fault`: what keeps the state from being deleted."""

    status: Status
    actions: tuple[Action, ...] = ()
    fault: Fault | None = None
    events: tuple[Event, ...] = ()


def finalizer_actions(ctx: ReconcileContext) -> Iterator[Action]:
    """Set or remove the finalizer of a resource that is not being deleted. An invalid `cleanup` changes nothing."""
    keep = {"deleteState": True, "retainState": False, None: False}.get(ctx.spec.get("cleanup"))
    if keep is not None and keep != (FINALIZER in ctx.finalizers):
        yield _set_finalizer(ctx, keep=keep)


def left_behind_events(resource: Manifest) -> Iterator[Event]:
    """Say of a job that is gone that its state stays, against what it asked for: it was deleted before the operator had
    set its finalizer. A job that the operator lets go is `Deleting` before."""
    status = read_status(resource)
    deletes_state = (resource.get("spec") or {}).get("cleanup") == "deleteState"
    if (
        not deletes_state
        or status.driver is None
        or status.phase == "Deleting"
        or status.state_place in _GONE_WITH_ITS_POD
    ):
        return
    yield _left_behind(
        resource,
        status,
        f"the job was deleted before it had the finalizer {FINALIZER}, without which cleanup: deleteState deletes "
        "nothing",
    )


def _left_behind(resource: Manifest, status: Status, reason: str) -> Event:
    metadata = resource["metadata"]
    location = cut(status.state_place or "the place that spec.stateStore names", _PLACE)
    return Event(
        "Warning",
        "StateLeftBehind",
        f"the state of {resource['kind']} {metadata['namespace']}/{metadata['name']} stays in {location}: {reason}. A "
        "job of this name continues with that state. To delete it, run `joinery state delete JOB.yaml --yes` where "
        f"Postgres can be reached, with metadata.namespace: {metadata['namespace']} in the file; `joinery state "
        "orphans` lists such states",
    )


def without_lost_templates(observed: Observed) -> Observed:
    """Return the observation with an empty template for each that is missing. A chart or an application that is removed
    as a whole takes its pod templates along, and where the state is does not depend on them."""
    templates = {
        name: WITHOUT_TEMPLATE if template is None else template for name, template in observed.templates.items()
    }
    return replace(observed, templates=templates)


def delete_state(ctx: ReconcileContext, status: Status) -> DeletionStep:
    """Return the next step for a resource that is being deleted and has the finalizer."""
    if ctx.spec.get("cleanup") == "retainState" or not _has_state(ctx, status):
        return DeletionStep(status, (_set_finalizer(ctx, keep=False),))
    job_pods = _job_pods(ctx)
    if not all(ctx.is_inactive(pod) for pod in job_pods) or _BY_KUBERNETES & set(ctx.finalizers):
        return DeletionStep(status, tuple(stop(job_pods)))
    tries, pod = status.deletion or Deletion(), ctx.delete_state
    waits = tries.not_before is not None and ctx.now < tries.not_before
    if ctx.observed.namespace_ends and (pod is None or (pod.ended_at is not None and not pod.succeeded)):
        return release(ctx, status)
    if pod is None:
        if waits:
            return DeletionStep(status)
        return _create_pod(ctx, status.model_copy(update={"deletion": tries.model_copy(update={"not_before": None})}))
    if pod.ended_at is None:
        late = not pod.started and ctx.has_elapsed(pod.created_at, ctx.deadline_seconds)
        fault = pod.fault or (not_ready_fault(ctx, pod) if late else None)
        return DeletionStep(status, tuple(delete_stuck(ctx, [pod])), fault)
    if pod.succeeded:
        return DeletionStep(status, (_set_finalizer(ctx, keep=False),))
    if pod.ending is not None and pod.ending.kind == STATE_TAKEN:
        stays = Event("Warning", STATE_TAKEN, cut(sentence("nothing was deleted", pod.end_message)))
        return DeletionStep(status, (_set_finalizer(ctx, keep=False),), events=(stays,))
    fault = Fault("DeleteStateFailed", sentence("the state could not be deleted", pod.end_message))
    if tries.not_before is None:
        failures = tries.failures + 1
        tries = Deletion(failures=failures, not_before=ctx.now + back_off(ctx.settings, failures))
        return DeletionStep(status.model_copy(update={"deletion": tries}), fault=fault)
    retry = () if waits or pod.deletion_time else (Delete("Pod", pod.name, pod.uid),)
    return DeletionStep(status, retry, fault)


def release(ctx: ReconcileContext, status: Status) -> DeletionStep:
    """Let a job go whose namespace is being deleted, and say that its state stays, if it was to be deleted."""
    done = ctx.delete_state is not None and ctx.delete_state.succeeded
    left: tuple[Event, ...] = ()
    if ctx.spec.get("cleanup") != "retainState" and not done and _has_state(ctx, status):
        reason = f"namespace {ctx.metadata['namespace']} is being deleted, so no pod can delete it"
        left = (replace(_left_behind(ctx.observed.resource, status, reason), outlives_namespace=True),)
    return DeletionStep(status, (_set_finalizer(ctx, keep=False),), events=left)


def _job_pods(ctx: ReconcileContext) -> list[PodObservation]:
    return [*ctx.drivers.values(), *ctx.checks.values()]


def _create_pod(ctx: ReconcileContext, status: Status) -> DeletionStep:
    revision = _revision(ctx, status)
    if revision is None:
        return DeletionStep(status, fault=_unreachable_fault(ctx, status))
    refused = ctx.observed.create_refused
    fault = Fault(CREATE_REFUSED, refused) if refused else None
    try:
        pods = (*make_room(ctx, _job_pods(ctx)), *job_config_map(ctx, revision), Create(delete_state_pod(revision)))
        return DeletionStep(status, pods, fault)
    except ManifestError as error:
        return DeletionStep(status, fault=Fault(INCOMPLETE, str(error)))


def _revision(ctx: ReconcileContext, status: Status) -> JobRevision | None:
    """Return the revision to which the state belongs: the current one. If its ConfigMap is missing (a deletion in the
    foreground begins with that), returns the one that the resource asks for, if it keeps its state in the same place:
    elsewhere there may be the state of another job."""
    current, desired = ctx.revision(status.revision, status.image), ctx.desired.job
    if current is not None or desired is None or status.revision is None:
        return current or desired
    return desired if state_place_text(desired.job.spec) == status.state_place else None


def _unreachable_fault(ctx: ReconcileContext, status: Status) -> Fault:
    """Return why no pod can delete the state, and what helps."""
    name, desired = ctx.names.config_map(status.revision or ""), ctx.desired
    location = cut(status.state_place or "", _PLACE)
    loss = f"ConfigMap {name} of the current revision is missing"
    if desired.job is None:
        problems = cut("; ".join(desired.problems), _PROBLEMS)
        where = f", with its state in {location}" if location else " as it was"
        return Fault(
            REVISION_LOST,
            f"{loss}, and the resource is no valid job: {problems}. Correct the resource{where}: it can be edited "
            "while it is being deleted",
        )
    elsewhere = cut(state_place_text(desired.job.job.spec), _PLACE)
    if not location:
        return Fault(
            REVISION_LOST,
            f"{loss}, nothing says where it kept its state, and the resource has changed since: nothing is deleted in "
            f"{elsewhere}. Set the resource back to what ran: it can be edited while it is being deleted",
        )
    return Fault(
        STATE_ELSEWHERE,
        f"{loss}. The state is in {location}; the resource asks for {elsewhere} now, where nothing is deleted: it may "
        "hold another job's state. Set spec.stateStore back: it can be edited while the resource is being deleted",
    )


def _has_state(ctx: ReconcileContext, status: Status) -> bool:
    """Return whether a driver was ever to start, with state that outlives it. If that is unknown, assumes that there is
    state."""
    if status.driver is None and not ctx.drivers:
        return False
    current = ctx.revision(status.revision, status.image)
    if current is None and status.state_place in _GONE_WITH_ITS_POD:
        return False
    revision = _revision(ctx, status)
    return revision is None or revision.durable


def _set_finalizer(ctx: ReconcileContext, *, keep: bool) -> Action:
    other_finalizers = tuple(finalizer for finalizer in ctx.finalizers if finalizer != FINALIZER)
    return SetFinalizers((*other_finalizers, FINALIZER) if keep else other_finalizers)
