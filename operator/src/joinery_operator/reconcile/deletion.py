"""The end of a resource: with `cleanup: deleteState` its finalizer is kept until the state is deleted.

All else goes by owner references. A resource that is deleted in the foreground is left to Kubernetes first: it deletes
the children then, new ones as well, until the resource has only our finalizer left.
"""

from __future__ import annotations

from collections.abc import Iterator

from joinery_operator.children import ChildError, delete_state_pod
from joinery_operator.decision import Action, Create, Delete, SetFinalizers
from joinery_operator.reconcile.attempts import back_off
from joinery_operator.reconcile.ensure import forced, job_config_map, lost, stopped
from joinery_operator.reconcile.facts import PodFacts, Trouble
from joinery_operator.reconcile.job import Job
from joinery_operator.reconcile.look import FINALIZER, Look
from joinery_operator.reconcile.text import sentence
from joinery_runtime.job.crd import Deletion, Status

_BY_KUBERNETES = {"foregroundDeletion", "orphan"}
WAY_OUT = "To give the state up, set spec.cleanup to retainState: the resource then goes at once and its state stays"


def finalizers(look: Look) -> Iterator[Action]:
    """Of a resource that lives. What is no valid `cleanup` changes nothing."""
    wanted = {"deleteState": True, "retainState": False, None: False}.get(look.spec.get("cleanup"))
    if wanted is not None and wanted != (FINALIZER in look.finalizers):
        yield _finalizers(look, keep=wanted)


def deleted(look: Look, status: Status) -> tuple[Status, tuple[Action, ...], Trouble | None]:
    """For a resource that is being deleted: the status, what is to be done, and what keeps the state from being
    deleted."""
    if FINALIZER not in look.finalizers:
        return status, (), None
    if look.spec.get("cleanup") == "retainState" or not _has_state(look, status):
        return status, (_finalizers(look, keep=False),), None
    others = [*look.drivers.values(), *look.checks.values()]
    if not all(look.quiet(pod) for pod in others) or _BY_KUBERNETES & set(look.finalizers):
        return status, tuple(stopped(others)), None
    return _deleting(look, status, look.delete_state)


def _deleting(look: Look, status: Status, pod: PodFacts | None) -> tuple[Status, tuple[Action, ...], Trouble | None]:
    tries = status.deletion or Deletion()
    waits = tries.not_before is not None and look.now < tries.not_before
    if pod is None:
        if waits:
            return status, (), None
        status = status.model_copy(update={"deletion": tries.model_copy(update={"not_before": None})})
        created, blocked = _created(look, status)
        return status, created, blocked
    if pod.ended is None:
        return status, tuple(forced(look, [pod])), pod.trouble
    if pod.succeeded:
        return status, (_finalizers(look, keep=False),), None
    trouble = Trouble("DeleteStateFailed", sentence("the state could not be deleted", pod.failure))
    if tries.not_before is None:
        failures = tries.failures + 1
        tries = Deletion(failures=failures, not_before=look.now + back_off(look.settings, failures))
        return status.model_copy(update={"deletion": tries}), (), trouble
    again = () if waits or pod.deleted else (Delete("Pod", pod.name, pod.uid),)
    return status, again, trouble


def _created(look: Look, status: Status) -> tuple[tuple[Action, ...], Trouble | None]:
    job = _job(look, status)
    if job is None:
        return (), lost(look, status.revision or "")
    try:
        return (*job_config_map(look, job), Create(delete_state_pod(*job.parts))), None
    except ChildError as error:
        return (), Trouble("Incomplete", str(error))


def _job(look: Look, status: Status) -> Job | None:
    """What the state is of: the job in force, else what the resource asks for."""
    in_force = look.job(status.revision, status.image) if status.revision and status.image else None
    return in_force or look.wanted.job


def _has_state(look: Look, status: Status) -> bool:
    """Whether a driver was ever to start, and its state outlives it. In doubt there is some."""
    if status.driver is None and not look.drivers:
        return False
    job = _job(look, status)
    return job is None or job.durable


def _finalizers(look: Look, *, keep: bool) -> Action:
    others = tuple(each for each in look.finalizers if each != FINALIZER)
    return SetFinalizers((*others, FINALIZER) if keep else others)
