"""What was observed of a rollout, in the terms of `rollout_table`."""

from __future__ import annotations

from datetime import datetime, timedelta

from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.driver import restoring_revision
from joinery_operator.reconcile.places import state_place
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import COMMITTED_SINCE, INCOMPATIBLE
from joinery_operator.reconcile.rollout_table import (
    AtStake,
    Check,
    Deadline,
    Desired,
    Helper,
    Mode,
    NewDriver,
    NewStore,
    OldDriver,
    Rejected,
    Restore,
    Restorer,
    Rollback,
    RolloutObservation,
    RolloutStage,
    Suspend,
    stage_of,
)
from joinery_operator.revision import JobRevision
from joinery_runtime.job.crd import DriverAttempt, Rollout, Status


def classify(ctx: ReconcileContext, status: Status) -> RolloutObservation:
    """Return what the table's rows ask about: for each stage, the dimensions that may end it."""
    rollout, stage, desired = status.rollout, stage_of(status), classify_desired(ctx, status)
    suspend = Suspend.YES if ctx.suspended else Suspend.NO
    if is_paused(ctx, status):
        suspend = Suspend.PAUSED
    if rollout is None:
        return _classify_stable(ctx, status, desired, suspend)
    over = _classify_deadline(ctx, status)
    match stage:
        case RolloutStage.CHECKING:
            return RolloutObservation(
                stage,
                desired=desired,
                suspend=suspend,
                mode=Mode.STATELESS if rollout.mode == "stateless" else Mode.STATEFUL,
                check=classify_check(ctx.check(rollout)),
                deadline=over,
            )
        case RolloutStage.STOPPING:
            old = status.driver
            old_ended = (old is None or old.outcome is not None) and ctx.all_drivers_inactive()
            old_driver = OldDriver.GONE if old_ended else OldDriver.ACTIVE
            return RolloutObservation(stage, desired=desired, suspend=suspend, old_driver=old_driver, deadline=over)
        case RolloutStage.STARTING:
            return RolloutObservation(
                stage,
                desired=desired,
                suspend=suspend,
                new_driver=_classify_new_driver(ctx, migrating_attempt(status, rollout)),
                rollback=Rollback(ctx.upgrade.rollback),
                deadline=Deadline.LIFTED if rollout.lifted else over,
            )
        case _:
            new, restorer = ctx.desired.job, Restorer.CURRENT
            if (by := rollout.restorer) is not None:
                is_desired = new is not None and (new.revision, new.image) == (by.revision, by.image)
                restorer = Restorer.ASKED if is_desired else Restorer.PAST
            return RolloutObservation(
                stage,
                desired=desired,
                suspend=suspend,
                restore=_classify_restore(ctx, status, rollout),
                restorer=restorer,
                helper=classify_helper(ctx, status, rollout),
            )


def _classify_stable(ctx: ReconcileContext, status: Status, desired: Desired, suspend: Suspend) -> RolloutObservation:
    new, mode = ctx.desired.job, ctx.desired.mode
    if new is None or desired is Desired.CURRENT:
        return RolloutObservation(RolloutStage.STABLE, desired=desired)
    in_memory = NewStore.GIVES_UP if mode == "stateless" else NewStore.IN_MEMORY
    was_ready = status.revision is not None and status.image is not None and status.proved is not None
    old = ctx.revision(status.revision, status.image)  # None: whether its state outlives a pod is unknown
    return RolloutObservation(
        RolloutStage.STABLE,
        desired=desired,
        at_stake=AtStake.STATE if was_ready and (old is None or old.durable) else AtStake.NOTHING,
        new_store=NewStore.KEEPS if new.durable else in_memory,
        suspend=suspend,
        rejected=Rejected.YES if is_rejected(status, new, mode) else Rejected.NO,
    )


def classify_desired(ctx: ReconcileContext, status: Status) -> Desired:
    new, rollout = ctx.desired.job, status.rollout
    if new is None:
        return Desired.NOTHING
    if rollout is not None and (new.revision, ctx.desired.mode) == (rollout.revision, rollout.mode):
        return Desired.ROLLOUT
    is_current = (new.revision, new.image) == (status.revision, status.image)
    return Desired.CURRENT if is_current else Desired.ANOTHER


def is_paused(ctx: ReconcileContext, status: Status) -> bool:
    """Return whether the annotation joinery.dev/pause keeps a rollout from beginning, or from stopping the old driver.
    The first revision is no rollout."""
    early = stage_of(status) in {RolloutStage.STABLE, RolloutStage.CHECKING, RolloutStage.STOPPING}
    return ctx.pause_scope == "rollouts" and early and status.revision is not None and not ctx.suspended


def is_rejected(status: Status, revision: JobRevision, mode: str) -> bool:
    refused = status.refused
    return refused is not None and (refused.revision, refused.mode) == (revision.revision, mode)


def deadline(ctx: ReconcileContext, status: Status) -> datetime | None:
    """Return when time alone ends the stage; None if it does not."""
    rollout = status.rollout
    if rollout is None or rollout.lifted or rollout.progressed is None:
        return None
    return rollout.progressed + timedelta(seconds=ctx.deadline_seconds + comparison_seconds(ctx, rollout))


def comparison_seconds(ctx: ReconcileContext, rollout: Rollout) -> float:
    """Return how long the check may wait for epochs of the running job without making progress."""
    compares = rollout.stage == "Checking" and rollout.mode == "shadow"
    return ctx.upgrade.shadow.within / 1000 if compares else 0.0


def _classify_deadline(ctx: ReconcileContext, status: Status) -> Deadline:
    end = deadline(ctx, status)
    return Deadline.PASSED if end is not None and ctx.now >= end else Deadline.AHEAD


def classify_check(pod: PodObservation | None) -> Check:
    if pod is None:
        return Check.NOTHING_YET
    if pod.check_result is not None:
        if not pod.check_result.fits:
            return Check.DIFFERS if pod.check_result.rows_differ else Check.MISFIT
        return Check.FITS if pod.check_result.epoch is not None else Check.NO_STATE
    if pod.ended_at is None or pod.ending is None or pod.ending.retry:
        return Check.NOTHING_YET
    return Check.INCOMPATIBLE if pod.ending.kind == INCOMPATIBLE else Check.FAILED


def migrating_attempt(status: Status, rollout: Rollout) -> DriverAttempt | None:
    """Return the current attempt, if it migrates for this rollout."""
    attempt = status.driver
    return attempt if attempt is not None and attempt.migrate == rollout.savepoint else None


def _classify_new_driver(ctx: ReconcileContext, attempt: DriverAttempt | None) -> NewDriver:
    if attempt is None:
        return NewDriver.NONE
    if attempt.outcome == "Finished" or ctx.has_committed(attempt):
        return NewDriver.COMMITTED
    if attempt.outcome == "Fatal":
        if attempt.reason == INCOMPATIBLE:
            return NewDriver.MISFIT
        return NewDriver.FAILED if attempt.initialized else NewDriver.NOT_MIGRATED
    return NewDriver.READY if attempt.ready is not None and attempt.outcome is None else NewDriver.UNDERWAY


def _classify_restore(ctx: ReconcileContext, status: Status, rollout: Rollout) -> Restore:
    attempt, (revision, image) = status.driver, restoring_revision(status, rollout)
    has_pod = False
    if attempt is not None and attempt.restore == rollout.savepoint:
        if attempt.outcome == "Finished":
            return Restore.RESTORED
        if attempt.outcome == "Fatal" and attempt.reason == COMMITTED_SINCE:
            return Restore.COMMITTED_SINCE
        if attempt.revision == revision:
            if attempt.outcome == "Fatal":
                return Restore.STUCK
            has_pod = attempt.number in ctx.drivers
    lost = not has_pod and ctx.revision(revision, image) is None
    return Restore.STUCK if lost or _classify_deadline(ctx, status) is Deadline.PASSED else Restore.UNDERWAY


def classify_helper(ctx: ReconcileContext, status: Status, rollout: Rollout) -> Helper:
    """Return whether the revision asked for could return to the savepoint. If no earlier revision is known any more,
    the resource decides."""
    new = ctx.desired.job
    if new is None:
        return Helper.UNABLE
    if not new.durable:
        return Helper.GIVES_UP if new.mode == "stateless" else Helper.UNABLE
    known_revision = ctx.revision(rollout.revision, rollout.image) or ctx.revision(status.revision, status.image)
    same_location = known_revision is None or state_place(known_revision.job.spec) == state_place(new.job.spec)
    return Helper.ABLE if same_location else Helper.UNABLE
