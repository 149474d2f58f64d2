"""Driver pods: decides which one is to run, and starts one attempt after another, never two at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from joinery_operator.names import digest_of
from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import INCOMPATIBLE, STATE_TAKEN, cut, sentence
from joinery_operator.reconcile.rollout_table import STAGES, DriverRole, stage_of
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import DriverAttempt, Rollout, Status

OFTEN_INTERRUPTED = 3
"""This many attempts in a row that others ended count as a fault."""

_LIFE = 6
"""How many hex digits represent one life of a resource in a savepoint's name."""
_HEALTHY = {"failures": 0, "interruptions": 0}


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """The driver that is to run. `migrate` is the savepoint that its init container pins before it migrates the state
    (with `abandon_state`: leaves it behind). With `restore` no driver runs: the pod returns to that savepoint and
    ends."""

    revision: str
    image: str
    migrate: str | None = None
    abandon_state: bool = False
    restore: str | None = None

    def fits(self, attempt: DriverAttempt) -> bool:
        """Return whether the attempt does what is planned. What its init container once did is no reason to end it
        later."""
        before = (self.migrate, self.abandon_state)
        same_target = (attempt.revision, attempt.restore) == (self.revision, self.restore)
        return same_target and before in {(None, False), (attempt.migrate, attempt.anew)}


def planned_driver(ctx: ReconcileContext, status: Status) -> DriverPlan | None:
    """Which driver is to run now; None if none is."""
    if ctx.suspended or status.revision is None or status.image is None:
        return None
    rollout = status.rollout
    driver = STAGES[stage_of(status)].driver
    if driver is DriverRole.NONE:
        return None
    if driver is DriverRole.MIGRATES and rollout:
        return DriverPlan(rollout.revision, rollout.image, rollout.savepoint, rollout.mode == "stateless")
    if driver is DriverRole.RESTORES and rollout:
        return DriverPlan(*restoring_revision(status, rollout), restore=rollout.savepoint)
    if status.held:
        return None
    attempt, revision, image = status.driver, status.revision, status.image
    if status.proved is not None or attempt is None or attempt.revision != revision:
        return DriverPlan(revision, image)
    # A job that never ran here may find state of an earlier job that does not fit. Then the resource says whether to
    # leave that state behind; the savepoint keeps its name, so that a second attempt does not do so again.
    if attempt.anew:
        return DriverPlan(revision, image, attempt.migrate, abandon_state=True)
    if attempt.reason == INCOMPATIBLE and attempt.outcome is not None and ctx.desired.mode == "stateless":
        return DriverPlan(revision, image, savepoint_name(ctx, revision, attempt), abandon_state=True)
    return DriverPlan(revision, image)


def restoring_revision(status: Status, rollout: Rollout) -> tuple[str, str]:
    """Revision and image of the pod that returns to the rollout's savepoint."""
    by = rollout.restorer
    return (by.revision, by.image) if by is not None else (status.revision or "", status.image or "")


def savepoint_name(ctx: ReconcileContext, revision: str, attempt: DriverAttempt | None) -> str:
    """Return a new savepoint name each time: a rollout must not return to the pin of an earlier try of the same
    revision, nor to that of an earlier resource of this name, whose attempts were also counted from 1."""
    life = digest_of(ctx.metadata["uid"])[:_LIFE]
    return f"rollout-{revision}-{life}-{attempt.number + 1 if attempt else 1}"


def observe_attempt(ctx: ReconcileContext, status: Status, plan: DriverPlan | None) -> Status:
    """Return the status with the outcome of the current attempt, if it has ended."""
    attempt = status.driver
    if attempt is None or attempt.outcome is not None:
        return status
    pod = ctx.drivers.get(attempt.number)
    planned = plan is not None and plan.fits(attempt)
    if pod is None:
        if attempt.pod_uid is None and planned:
            return status  # the pod is yet to be created
        # Others deleted the pod, unless it was no longer planned.
        return _with_attempt(status, _as_interrupted(ctx, attempt, "PodDeleted") if planned else _as_stopped(attempt))
    attempt = _observe_running(ctx, attempt, pod)
    if not ctx.is_inactive(pod):
        return _with_attempt(status, attempt)
    ended = _with_outcome(ctx, attempt, pod, planned)
    error = pod.end_message if ended.outcome in {"Failed", "Fatal"} else ""
    if ended.outcome == "Interrupted" and pod.disruption is not None:
        error = sentence(pod.disruption.reason, pod.disruption.message)
    return _with_attempt(status, ended, last_error=cut(error) or status.last_error)


def next_attempt(ctx: ReconcileContext, status: Status, plan: DriverPlan | None) -> Status:
    """Return the status with the next attempt, if one is planned and due, and no other driver can run any more."""
    attempt = status.driver
    if plan is None or (attempt is not None and not _is_due(ctx, attempt, plan)) or not ctx.all_drivers_inactive():
        return status
    last = max([0, *ctx.drivers, *ctx.orphaned_drivers, attempt.number if attempt else 0])
    is_retry = attempt is not None and plan.fits(attempt)
    new = DriverAttempt(
        number=last + 1,
        revision=plan.revision,
        image=plan.image,
        created=ctx.now,
        failures=attempt.failures if attempt and is_retry else 0,
        interruptions=attempt.interruptions if attempt and is_retry else 0,
        migrate=plan.migrate,
        anew=plan.abandon_state,
        restore=plan.restore,
        replaces=ctx.replaced_owner,
    )
    return _with_attempt(status, new)


def _is_due(ctx: ReconcileContext, attempt: DriverAttempt, plan: DriverPlan) -> bool:
    """Return whether another attempt may start after this one."""
    if attempt.outcome is None:
        return False
    if not plan.fits(attempt):
        return True
    if attempt.again:
        return True
    is_taken = attempt.outcome == "Fatal" and attempt.reason == STATE_TAKEN
    if attempt.outcome in {"Finished", "Fatal"} and not (is_taken and ctx.names_another_owner(attempt.replaces)):
        return False
    return not (attempt.not_before and ctx.now < attempt.not_before)


def reset_failures(status: Status) -> Status:
    """Return the status without its failures, because the resource asks for something else."""
    attempt = status.driver
    if attempt is None:
        return status
    may_retry = attempt.again or attempt.outcome == "Fatal"
    return _with_attempt(status, attempt.model_copy(update={**_HEALTHY, "not_before": None, "again": may_retry}))


def back_off(settings: Settings, failures: int) -> timedelta:
    """Return the pause after this many failures in a row."""
    doubled = settings.backoff_first_seconds * 2.0 ** min(max(failures - 1, 0), 32)
    return timedelta(seconds=min(doubled, settings.backoff_last_seconds))


def _with_attempt(status: Status, attempt: DriverAttempt, **more: object) -> Status:
    return status.model_copy(update={"driver": attempt, **more})


def _observe_running(ctx: ReconcileContext, attempt: DriverAttempt, pod: PodObservation) -> DriverAttempt:
    """Return the attempt with what is seen of its pod, by the operator's clock: that of the node may be minutes off."""
    ready = (attempt.ready or ctx.now) if pod.ready and pod.deletion_time is None else None
    if pod.ended_at is not None:
        ready = attempt.ready  # the last known time
    update: dict[str, object] = {
        "pod_uid": pod.uid,
        "initialized": attempt.initialized or pod.initialized,
        "ready": ready,
    }
    if ctx.has_committed(attempt):
        # A job that gets further between evictions is not one whose pods are all evicted.
        update["interruptions"] = 0
    if ready is not None and pod.ended_at is None and ctx.has_elapsed(ready, ctx.settings.healthy_seconds):
        update |= _HEALTHY
    return attempt.model_copy(update=update)


def _with_outcome(ctx: ReconcileContext, attempt: DriverAttempt, pod: PodObservation, planned: bool) -> DriverAttempt:
    ending = pod.ending
    if ending is not None and ending.outcome == "finished":
        return attempt.model_copy(update={"outcome": "Finished", "reason": None})
    if ending is not None and ending.outcome == "failed" and not ending.retry:
        if pod.end_reason == STATE_TAKEN and ctx.replaced_owner is not None:
            # Another resource owns the state: an annotation that was not tried starts one more. With definitions of an
            # earlier release, the API server drops `replaces` from the status, and each annotation looks untried: the
            # back-off keeps these attempts few.
            attempt = _as_failed(ctx, attempt, pod)
        return attempt.model_copy(update={"outcome": "Fatal", "reason": _status_reason(pod.end_reason)})
    if not planned:
        return _as_stopped(attempt)
    stopped = ending is not None and ending.outcome == "stopped"
    if pod.disruption is not None:
        return _as_interrupted(ctx, attempt, pod.disruption.reason)
    if pod.deletion_time is not None or stopped:
        return _as_interrupted(ctx, attempt, "PodDeleted" if pod.deletion_time else "Stopped")
    return _as_failed(ctx, attempt, pod)


def _as_stopped(attempt: DriverAttempt) -> DriverAttempt:
    return attempt.model_copy(update={"outcome": "Stopped", "reason": None, "not_before": None})


def _as_interrupted(ctx: ReconcileContext, attempt: DriverAttempt, reason: str) -> DriverAttempt:
    """Return the attempt after others ended it. That is no failure, so the next attempt starts at once, but never twice
    within the first back-off. From the second interruption in a row on there is a back-off, so that a node that evicts
    every pod does not fill the cluster with pods."""
    interruptions = attempt.interruptions + 1
    not_before = attempt.created + timedelta(seconds=ctx.settings.backoff_first_seconds)
    if interruptions > 1:
        not_before = ctx.now + back_off(ctx.settings, interruptions - 1)
    return attempt.model_copy(
        update={
            "outcome": "Interrupted",
            "reason": _status_reason(reason),
            "interruptions": interruptions,
            "not_before": not_before if not_before > ctx.now else None,
        }
    )


def _as_failed(ctx: ReconcileContext, attempt: DriverAttempt, pod: PodObservation) -> DriverAttempt:
    # Those before a healthy time do not count any more (`_observe_running`).
    failures = attempt.failures + 1
    update = {"outcome": "Failed", "reason": _status_reason(pod.end_reason), "failures": failures}
    return attempt.model_copy(update={**update, "not_before": ctx.now + back_off(ctx.settings, failures)})


def _status_reason(reason: str) -> str:
    return reason[:253] or "Error"
