"""The end of a resource: with `cleanup: deleteState` its finalizer is kept until the state is deleted.

Everything else goes by owner references. A resource that is deleted in the foreground is left to Kubernetes first: it
deletes the children, new ones as well, until the resource has only our finalizer left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from joinery_operator.decision import Action, Create, Delete, SetFinalizers
from joinery_operator.manifests import ManifestError, delete_state_pod
from joinery_operator.reconcile.children import delete_stuck, job_config_map, lost, stop
from joinery_operator.reconcile.context import FINALIZER, ReconcileContext
from joinery_operator.reconcile.driver import back_off
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import INCOMPLETE, Fault, sentence
from joinery_operator.revision import JobRevision
from joinery_runtime.job.crd import Deletion, Status

_BY_KUBERNETES = {"foregroundDeletion", "orphan"}
WAY_OUT = "To give the state up, set spec.cleanup to retainState: the resource then goes at once and its state stays"


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """`fault`: what keeps the state from being deleted."""

    status: Status
    actions: tuple[Action, ...] = ()
    fault: Fault | None = None


def finalizer_actions(ctx: ReconcileContext) -> Iterator[Action]:
    """For a resource that lives. An invalid `cleanup` changes nothing."""
    keep = {"deleteState": True, "retainState": False, None: False}.get(ctx.spec.get("cleanup"))
    if keep is not None and keep != (FINALIZER in ctx.finalizers):
        yield _set_finalizer(ctx, keep=keep)


def delete_state(ctx: ReconcileContext, status: Status) -> DeletionStep:
    """For a resource that is being deleted and has the finalizer."""
    if ctx.spec.get("cleanup") == "retainState" or not _has_state(ctx, status):
        return DeletionStep(status, (_set_finalizer(ctx, keep=False),))
    others = [*ctx.drivers.values(), *ctx.checks.values()]
    if not all(ctx.is_inactive(pod) for pod in others) or _BY_KUBERNETES & set(ctx.finalizers):
        return DeletionStep(status, tuple(stop(others)))
    return _run_pod(ctx, status, ctx.delete_state)


def _run_pod(ctx: ReconcileContext, status: Status, pod: PodObservation | None) -> DeletionStep:
    tries = status.deletion or Deletion()
    waits = tries.not_before is not None and ctx.now < tries.not_before
    if pod is None:
        if waits:
            return DeletionStep(status)
        return _create_pod(ctx, status.model_copy(update={"deletion": tries.model_copy(update={"not_before": None})}))
    if pod.ended_at is None:
        return DeletionStep(status, tuple(delete_stuck(ctx, [pod])), pod.fault)
    if pod.succeeded:
        return DeletionStep(status, (_set_finalizer(ctx, keep=False),))
    fault = Fault("DeleteStateFailed", sentence("the state could not be deleted", pod.end_message))
    if tries.not_before is None:
        failures = tries.failures + 1
        tries = Deletion(failures=failures, not_before=ctx.now + back_off(ctx.settings, failures))
        return DeletionStep(status.model_copy(update={"deletion": tries}), fault=fault)
    again = () if waits or pod.deletion_time else (Delete("Pod", pod.name, pod.uid),)
    return DeletionStep(status, again, fault)


def _create_pod(ctx: ReconcileContext, status: Status) -> DeletionStep:
    revision = _revision(ctx, status)
    if revision is None:
        return DeletionStep(status, fault=lost(ctx, status.revision or ""))
    try:
        return DeletionStep(status, (*job_config_map(ctx, revision), Create(delete_state_pod(revision))))
    except ManifestError as error:
        return DeletionStep(status, fault=Fault(INCOMPLETE, str(error)))


def _revision(ctx: ReconcileContext, status: Status) -> JobRevision | None:
    """What the state belongs to: the revision in force, else what the resource asks for."""
    return ctx.revision(status.revision, status.image) or ctx.desired.job


def _has_state(ctx: ReconcileContext, status: Status) -> bool:
    """Whether a driver was ever to start, and its state outlives it. In doubt there is some."""
    if status.driver is None and not ctx.drivers:
        return False
    revision = _revision(ctx, status)
    return revision is None or revision.durable


def _set_finalizer(ctx: ReconcileContext, *, keep: bool) -> Action:
    others = tuple(each for each in ctx.finalizers if each != FINALIZER)
    return SetFinalizers((*others, FINALIZER) if keep else others)
