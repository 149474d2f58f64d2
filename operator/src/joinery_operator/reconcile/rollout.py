"""Rolls out another revision: checks it, puts it in place of the old one, and takes it back if it does not start.

Each reconcile classifies what it observes and carries out one row of `rollout_table`. Observations alone end a stage,
so an operator that died in one resumes where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from joinery_operator.decision import EXECUTORS
from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.driver import restoring_revision, savepoint_name
from joinery_operator.reconcile.places import names_new_system, state_place
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import COMMITTED_SINCE, CREATE_REFUSED, INCOMPATIBLE, Fault, cut, sentence
from joinery_operator.reconcile.rollout_table import (
    STAGES,
    Act,
    AtStake,
    Check,
    Deadline,
    Desired,
    Helper,
    Mode,
    NewDriver,
    NewStore,
    OldDriver,
    Refused,
    Restore,
    Restorer,
    Rollback,
    RolloutObservation,
    RolloutStage,
    Suspend,
    Transition,
    row_for,
    stage_of,
)
from joinery_operator.revision import JobRevision
from joinery_runtime.job.crd import DriverAttempt, PastRevision, Refusal, Rollout, Status
from joinery_runtime.job.crd.status import RestoringRevision
from joinery_runtime.job.model.duration import format_duration


def advance_rollout(ctx: ReconcileContext, status: Status) -> Status:
    """Return the status with the rollout one step further, if there is a step to take."""
    status = _with_progress(ctx, status)
    execution = _Execution(ctx, status, row_for(classify(ctx, status)))
    return _ACTS[execution.row.act](execution)


def record_proof(ctx: ReconcileContext, status: Status) -> Status:
    """Return the status with the time at which the current revision was first seen to be ready."""
    attempt = status.driver
    if status.proved is not None or attempt is None or attempt.restore or attempt.revision != status.revision:
        return status
    if attempt.ready is None and attempt.outcome != "Finished" and not ctx.has_committed(attempt):
        return status
    return status.model_copy(update={"proved": ctx.now})


def record_hold(ctx: ReconcileContext, status: Status) -> Status:
    """Return the status with whether the current revision may start a driver (`held`: it may not). After a suspension
    or a fatal end, it may only if the resource asks for that revision: if the resource asks for another job, that job
    is checked before anything runs."""
    attempt, desired = status.driver, classify_desired(ctx, status)
    failed = attempt is not None and attempt.outcome == "Fatal" and not attempt.restore
    is_current = attempt is not None and attempt.revision == status.revision
    goes_on = desired is Desired.ROLLOUT and stage_of(status) in {RolloutStage.STARTING, RolloutStage.ROLLING_BACK}
    if ctx.suspended or (failed and is_current and desired in {Desired.ANOTHER, Desired.ROLLOUT} and not goes_on):
        return status.model_copy(update={"held": True})
    return status.model_copy(update={"held": False}) if desired is Desired.CURRENT or goes_on else status


def deadline(ctx: ReconcileContext, status: Status) -> datetime | None:
    """Return when time alone ends the stage; None if it does not."""
    rollout = status.rollout
    if rollout is None or rollout.lifted or rollout.progressed is None:
        return None
    return rollout.progressed + timedelta(seconds=ctx.deadline_seconds + _comparison_seconds(ctx, rollout))


def without_deadline(status: Status) -> Status:
    """Return the status while its rollout stands still: the deadline counts from the moment at which it continues."""
    rollout = status.rollout
    if rollout is None or rollout.progressed is None:
        return status
    return status.model_copy(update={"rollout": rollout.model_copy(update={"progressed": None})})


def _comparison_seconds(ctx: ReconcileContext, rollout: Rollout) -> float:
    """How long the check may wait for epochs of the running job without making progress."""
    compares = rollout.stage == "Checking" and rollout.mode == "shadow"
    return ctx.upgrade.shadow.within / 1000 if compares else 0.0


def blocking_reason(ctx: ReconcileContext, status: Status) -> str:
    """Return why a stage that changes the state does not end, and the way out; empty while it makes progress."""
    if status.rollout is None or status.rollout.stage == "Checking":
        return ""
    if row_for(classify(ctx, status)).act is not Act.REPORT:
        return ""
    return f"{status.rollout.reason}. {way_out(status)}"


def way_out(status: Status) -> str:
    """Return what a person can do to leave the stage, whatever holds it up."""
    return STAGES[stage_of(status)].way_out.format(revision=status.revision)


def is_paused(ctx: ReconcileContext, status: Status) -> bool:
    """Return whether the annotation joinery.dev/pause keeps a rollout from beginning, or from stopping the old driver.
    The first revision is no rollout."""
    early = stage_of(status) in {RolloutStage.STABLE, RolloutStage.CHECKING, RolloutStage.STOPPING}
    return ctx.pause_scope == "rollouts" and early and status.revision is not None and not ctx.suspended


def is_rejected(status: Status, revision: JobRevision, mode: str) -> bool:
    refused = status.refused
    return refused is not None and (refused.revision, refused.mode) == (revision.revision, mode)


def is_check_due(ctx: ReconcileContext, pod: PodObservation) -> bool:
    """Return whether a check pod that ended without a result is due for another try."""
    if pod.ended_at is None or pod.check_result is not None:
        return False
    # The clock of its node may be ahead or behind, by more than the deadline.
    since = pod.ended_at if pod.created_at <= pod.ended_at <= ctx.now else pod.created_at
    return ctx.has_elapsed(since, ctx.settings.backoff_first_seconds)


# --- how far the stage got --------------------------------------------------------------------------------------------


def _with_progress(ctx: ReconcileContext, status: Status) -> Status:
    """Return the status with how far the stage of its rollout got. The deadline counts from the last progress, and not
    while the job is suspended, or its driver waits for a system that is unavailable and no other revision would get
    further."""
    rollout = status.rollout
    if rollout is None:
        return status
    if ctx.suspended or _waits_for_known_system(ctx, status, rollout):
        return without_deadline(status)
    before = {name: getattr(rollout, name) for name in _NOTHING_DONE}
    best = {name: max(count, before[name]) for name, count in _progress(ctx, status, rollout).items()}
    if rollout.progressed is not None and best == before:
        return status
    update = {"progressed": ctx.now, **best}
    return status.model_copy(update={"rollout": rollout.model_copy(update=update)})


def _waits_for_known_system(ctx: ReconcileContext, status: Status, rollout: Rollout) -> bool:
    """Return whether the driver waits for a system that the current revision names as well: a new address may be wrong,
    and what prevents executors is most often the edit. In doubt, the current revision names it."""
    attempt = status.driver
    waiting = ctx.waiting(attempt) if attempt is not None else None
    if attempt is None or waiting is None or waiting.system == EXECUTORS:
        return False
    new, old = ctx.revision(rollout.revision, rollout.image), ctx.revision(status.revision, status.image)
    if attempt.revision != rollout.revision or new is None or old is None:
        return True
    return not names_new_system(new.job, old.job, waiting.system)


_NOTHING_DONE: Mapping[str, int] = {"steps": 0, "segments": 0, "tasks": 0}
"""How far a stage is at its beginning, as the rollout's fields: steps of its pod, segments that it has migrated, and
tasks of the new driver's first epoch."""


def _progress(ctx: ReconcileContext, status: Status, rollout: Rollout) -> dict[str, int]:
    """Count what the stage's pod has done, by field of the rollout."""
    if rollout.stage == "Checking":
        pod = ctx.check(rollout)
        return {**_NOTHING_DONE, "steps": pod.steps if pod else 0}
    attempt = status.driver
    if attempt is None or rollout.savepoint is None or rollout.savepoint not in {attempt.migrate, attempt.restore}:
        return dict(_NOTHING_DONE)
    pod, reported = ctx.drivers.get(attempt.number), ctx.driver_status(attempt)
    return {
        "steps": pod.steps if pod else 0,
        "segments": (reported.migrated or 0) if reported else 0,
        "tasks": (reported.tasks or 0) if reported else 0,
    }


# --- what was observed, in the terms of the table ---------------------------------------------------------------------


def classify_desired(ctx: ReconcileContext, status: Status) -> Desired:
    new, rollout = ctx.desired.job, status.rollout
    if new is None:
        return Desired.NOTHING
    if rollout is not None and (new.revision, ctx.desired.mode) == (rollout.revision, rollout.mode):
        return Desired.ROLLOUT
    is_current = (new.revision, new.image) == (status.revision, status.image)
    return Desired.CURRENT if is_current else Desired.ANOTHER


def classify(ctx: ReconcileContext, status: Status) -> RolloutObservation:
    rollout, stage, desired = status.rollout, stage_of(status), classify_desired(ctx, status)
    suspend = Suspend.YES if ctx.suspended else Suspend.NO
    if is_paused(ctx, status):
        suspend = Suspend.PAUSED
    if rollout is None:
        return _classify_stable(ctx, status, desired, suspend)
    over = _deadline(ctx, status)
    match stage:
        case RolloutStage.CHECKING:
            return RolloutObservation(
                stage,
                desired=desired,
                suspend=suspend,
                mode=Mode.STATELESS if rollout.mode == "stateless" else Mode.STATEFUL,
                check=_check(ctx.check(rollout)),
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
                new_driver=_new_driver(ctx, _attempt_of(status, rollout)),
                rollback=Rollback(ctx.upgrade.rollback),
                deadline=Deadline.LIFTED if rollout.lifted else over,
            )
        case _:
            return RolloutObservation(
                stage,
                desired=desired,
                suspend=suspend,
                restore=_restore(ctx, status, rollout),
                restorer=_restorer(ctx, rollout),
                helper=_helper_for_restore(ctx, status, rollout),
            )


def _deadline(ctx: ReconcileContext, status: Status) -> Deadline:
    end = deadline(ctx, status)
    return Deadline.PASSED if end is not None and ctx.now >= end else Deadline.AHEAD


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
        refused=Refused.YES if is_rejected(status, new, mode) else Refused.NO,
    )


def _check(pod: PodObservation | None) -> Check:
    if pod is None:
        return Check.NOTHING_YET
    if pod.check_result is not None:
        if not pod.check_result.fits:
            return Check.DIFFERS if pod.check_result.rows_differ else Check.MISFIT
        return Check.FITS if pod.check_result.epoch is not None else Check.NO_STATE
    if pod.ended_at is None or pod.ending is None or pod.ending.retry:
        return Check.NOTHING_YET
    return Check.INCOMPATIBLE if pod.ending.kind == INCOMPATIBLE else Check.FAILED


def _attempt_of(status: Status, rollout: Rollout) -> DriverAttempt | None:
    """Return the current attempt, if it migrates for this rollout."""
    attempt = status.driver
    return attempt if attempt is not None and attempt.migrate == rollout.savepoint else None


def _new_driver(ctx: ReconcileContext, attempt: DriverAttempt | None) -> NewDriver:
    if attempt is None:
        return NewDriver.NONE
    if attempt.outcome == "Finished" or ctx.has_committed(attempt):
        return NewDriver.COMMITTED
    if attempt.outcome == "Fatal":
        if attempt.reason == INCOMPATIBLE:
            return NewDriver.MISFIT
        return NewDriver.FAILED if attempt.initialized else NewDriver.NOT_MIGRATED
    return NewDriver.READY if attempt.ready is not None and attempt.outcome is None else NewDriver.UNDERWAY


def _restore(ctx: ReconcileContext, status: Status, rollout: Rollout) -> Restore:
    attempt, (revision, image) = status.driver, restoring_revision(status, rollout)
    restoring_attempt = attempt if attempt is not None and attempt.restore == rollout.savepoint else None
    if restoring_attempt is not None and restoring_attempt.outcome == "Finished":
        return Restore.RESTORED
    if (
        restoring_attempt is not None
        and restoring_attempt.outcome == "Fatal"
        and restoring_attempt.reason == COMMITTED_SINCE
    ):
        return Restore.COMMITTED_SINCE
    current = restoring_attempt is not None and restoring_attempt.revision == revision
    failed = current and restoring_attempt is not None and restoring_attempt.outcome == "Fatal"
    has_pod = current and restoring_attempt is not None and restoring_attempt.number in ctx.drivers
    lost = not has_pod and ctx.revision(revision, image) is None
    return Restore.STUCK if failed or lost or _deadline(ctx, status) is Deadline.PASSED else Restore.UNDERWAY


def _restorer(ctx: ReconcileContext, rollout: Rollout) -> Restorer:
    new, by = ctx.desired.job, rollout.restorer
    if by is None:
        return Restorer.CURRENT
    is_desired = new is not None and (new.revision, new.image) == (by.revision, by.image)
    return Restorer.ASKED if is_desired else Restorer.PAST


def _helper_for_restore(ctx: ReconcileContext, status: Status, rollout: Rollout) -> Helper:
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


_HISTORY = 5
"""How many earlier revisions `kubectl joinery rollout undo` can return to. Each keeps its ConfigMap."""


# --- what a row does --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Execution:
    """Carries out one row: each method returns the status after it."""

    ctx: ReconcileContext
    status: Status
    row: Transition

    @property
    def rollout(self) -> Rollout:
        assert self.status.rollout is not None, "only stages of a rollout have such rows"
        return self.status.rollout

    @property
    def new(self) -> JobRevision:
        assert self.ctx.desired.job is not None, "only what asks for another revision has such rows"
        return self.ctx.desired.job

    def wait(self) -> Status:
        return self.status

    def report(self) -> Status:
        return self._update(
            rollout=self._update_rollout(reason=_waiting_reason(self.ctx, self.status) or self.rollout.reason)
        )

    def take_over(self) -> Status:
        return self._make_current(self.new, proved=None)

    def begin(self) -> Status:
        new, mode = self.new, self.ctx.desired.mode
        now = self.ctx.now
        rollout = Rollout(
            revision=new.revision, image=new.image, mode=mode, stage="Checking", since=now, progressed=now
        )
        return self._update(rollout=rollout)

    def reject(self) -> Status:
        return self._update(rollout=None, refused=self._refusal())

    def stop(self) -> Status:
        pod = self.ctx.check(self.rollout)
        warnings = pod.check_result.warnings if pod is not None and pod.check_result is not None else ()
        return self._update(rollout=self._enter_stage(reason=cut("; ".join(warnings))))

    def start(self) -> Status:
        savepoint = savepoint_name(self.ctx, self.rollout.revision, self.status.driver)
        return self._update(rollout=self._enter_stage(savepoint=savepoint))

    def drop(self) -> Status:
        return advance_rollout(self.ctx, self._update(rollout=None))

    def lift(self) -> Status:
        return self._update(rollout=self._update_rollout(lifted=True))

    def restore_with_desired(self) -> Status:
        new = self.new
        wants_current = classify_desired(self.ctx, self.status) is Desired.CURRENT
        by = None if wants_current else RestoringRevision(revision=new.revision, image=new.image)
        return self._update(rollout=self._enter_stage(restorer=by))

    def roll_back(self) -> Status:
        return self._update(rollout=self._enter_stage(reason="the resource asks for another job now"))

    def reject_and_roll_back(self) -> Status:
        reason = sentence(self.row.refused or "", cut(self._rejection_message(), 512))
        return self._update(rollout=self._enter_stage(reason=reason), refused=self._refusal())

    def complete(self) -> Status:
        return self._make_current(self.rollout, proved=self.ctx.now)

    def go_forward(self) -> Status:
        return self._make_current(self.rollout, proved=None)

    def keep(self) -> Status:
        # A restorer means that the resource asks for another revision, which did what the current one could not do. It
        # is checked first.
        return self._update(rollout=None, held=self.status.held or self.rollout.restorer is not None)

    def _make_current(self, new: JobRevision | Rollout, *, proved: datetime | None) -> Status:
        old, history = self.status, self.status.history
        if old.revision is not None and old.image is not None and old.proved is not None:  # else nothing to return to
            ended = PastRevision(revision=old.revision, image=old.image, since=old.proved, until=self.ctx.now)
            history = (*(past for past in history if past.revision != old.revision), ended)
        history = tuple(past for past in history if past.revision != new.revision)[-_HISTORY:]
        revision_fields = {"revision": new.revision, "image": new.image, "proved": proved, "history": history}
        # This rollout may have committed unseen before a suspension. If the resource asks for something else by now,
        # that is checked before anything runs.
        of_another = new is self.status.rollout and classify_desired(self.ctx, self.status) is not Desired.ROLLOUT
        return self._update(**revision_fields, refused=None, rollout=None, held=self.status.held and of_another)

    def _update(self, **update: object) -> Status:
        return self.status.model_copy(update=update)

    def _update_rollout(self, **update: object) -> Rollout:
        return self.rollout.model_copy(update=update)

    def _enter_stage(self, **update: object) -> Rollout:
        begun = {"since": self.ctx.now, "progressed": self.ctx.now, "lifted": False, **_NOTHING_DONE}
        return self._update_rollout(**{"stage": self.row.to.value, **begun, "reason": "", **update})

    def _refusal(self) -> Refusal:
        rollout = self.status.rollout
        revision, mode = (rollout or self.new).revision, rollout.mode if rollout else self.ctx.desired.mode
        message = cut(self._rejection_message() or self.row.refused or "")
        return Refusal.model_validate(
            {
                "revision": revision,
                "mode": mode,
                "reason": self.row.refused,
                "message": message,
                "replaces": self.ctx.replaced_owner or "",
            }
        )

    def _rejection_message(self) -> str:
        if self.row.stage is RolloutStage.STABLE:
            return (
                f"the job's state is in Postgres, and spec.stateStore.{self.new.job.spec.state_store.kind} keeps none: "
                "all of it would be left behind. Name the Postgres again (stateStore.postgres), or set upgrade.mode: "
                "stateless to start from the beginning without the state"
            )
        if self.row.stage is RolloutStage.CHECKING:
            return _check_refusal(self.ctx, self.rollout)
        if self.row.refused == "DeadlineExceeded":
            return _progress_problem(self.ctx, self.status, _attempt_of(self.status, self.rollout))
        return self.status.last_error or ""


_ACTS: Mapping[Act, Callable[[_Execution], Status]] = {
    Act.WAIT: _Execution.wait,
    Act.REPORT: _Execution.report,
    Act.TAKE_OVER: _Execution.take_over,
    Act.BEGIN: _Execution.begin,
    Act.REJECT: _Execution.reject,
    Act.STOP: _Execution.stop,
    Act.START: _Execution.start,
    Act.DROP: _Execution.drop,
    Act.LIFT: _Execution.lift,
    Act.ROLL_BACK: _Execution.roll_back,
    Act.REJECT_AND_ROLL_BACK: _Execution.reject_and_roll_back,
    Act.RESTORE_WITH_DESIRED: _Execution.restore_with_desired,
    Act.COMPLETE: _Execution.complete,
    Act.GO_FORWARD: _Execution.go_forward,
    Act.KEEP: _Execution.keep,
}


# --- why a revision is rejected ---------------------------------------------------------------------------------------


def _check_refusal(ctx: ReconcileContext, rollout: Rollout) -> str:
    pod = ctx.check(rollout)
    match _check(pod):
        case Check.NO_STATE:
            return _no_state(ctx, rollout)
        case Check.MISFIT | Check.DIFFERS if pod is not None and pod.check_result is not None:
            return "; ".join(pod.check_result.refused)
        case Check.NOTHING_YET:
            limit = f"no result, and no progress for {ctx.deadline_text}"
            if compared := _comparison_seconds(ctx, rollout):
                limit += f" and {format_duration(round(compared * 1000))} (upgrade.shadow.within)"
            return sentence(limit, _check_message(ctx, rollout) or rollout.reason)
        case _:
            return _check_message(ctx, rollout)


def _waiting_reason(ctx: ReconcileContext, status: Status) -> str:
    """Return why the stage has not ended."""
    assert status.rollout is not None, "only stages of a rollout have such rows"
    match stage_of(status):
        case RolloutStage.CHECKING:
            return _check_message(ctx, status.rollout)
        case RolloutStage.STOPPING:
            waits = (_active_pod_text(ctx, pod) for pod in (*ctx.drivers.values(), *ctx.orphaned_drivers.values()))
            return (
                f"the old driver has not ended within {ctx.deadline_text}: {cut('; '.join(filter(None, waits)), 512)}"
            )
        case RolloutStage.STARTING:
            attempt = status.driver
            is_fatal = attempt is not None and attempt.outcome == "Fatal"
            problem = (status.last_error or "") if is_fatal else _progress_problem(ctx, status, attempt)
            return cut(
                sentence(problem, "upgrade.rollback is manual")
                + ". Set it to automatic to return to the savepoint; any other change tries again"
            )
        case _:
            return _restore_problem(ctx, status, status.rollout)


def _active_pod_text(ctx: ReconcileContext, pod: PodObservation) -> str:
    if ctx.is_inactive(pod):
        return ""
    if pod.deletion_time is None:
        return f"pod {pod.name} is not being deleted yet"
    given_up = pod.deletion_time + timedelta(seconds=ctx.settings.stuck_seconds)
    return f"pod {pod.name} is taken for dead at {given_up:%H:%M:%S} UTC, and then the rollout continues"


def _restore_problem(ctx: ReconcileContext, status: Status, rollout: Rollout) -> str:
    revision, image = restoring_revision(status, rollout)
    attempt = status.driver
    if attempt is not None and attempt.restore and attempt.outcome == "Fatal":
        reason = status.last_error or ""
    elif ctx.revision(revision, image) is None:
        reason = f"its ConfigMap {ctx.names.config_map(revision)} is missing"
    else:
        reason = _progress_problem(ctx, status, attempt)
    elsewhere = ""
    if classify_desired(ctx, status) is Desired.ANOTHER and _helper_for_restore(ctx, status, rollout) is Helper.UNABLE:
        elsewhere = "; the job that is asked for now cannot, because it keeps its state elsewhere"
    return (
        f"the return to savepoint {rollout.savepoint} with revision {revision} and image {cut(image, 256)} is stuck: "
        f"{cut(reason, 512)}{elsewhere}"
    )


def _check_message(ctx: ReconcileContext, rollout: Rollout) -> str:
    """Return why the check has no result."""
    pod = ctx.check(rollout)
    if pod is None:
        return ctx.observed.create_refused
    if pod.ended_at is not None:
        return sentence("the check pod failed", pod.end_message)
    return sentence(pod.fault.reason, pod.fault.message) if pod.fault else ""


def _no_state(ctx: ReconcileContext, rollout: Rollout) -> str:
    new = ctx.revision(rollout.revision, rollout.image)
    store = new.job.spec.state_store.postgres if new else None
    where = "where spec.stateStore points to"
    if store is not None:
        secret = store.dsn_secret_ref
        dsn = f"dsnSecretRef {secret.name}/{secret.key}" if secret else "spec.stateStore.postgres.dsn"
        where = f"in schema {store.schema_name} at {dsn}"
    return (
        f"there is no state of this job {where}; move it with `joinery state move`, or set upgrade.mode: stateless to "
        "start from the beginning without the state"
    )


def _progress_problem(ctx: ReconcileContext, status: Status, attempt: DriverAttempt | None) -> str:
    limit = f"no progress for {ctx.deadline_text}"
    pod = ctx.drivers.get(attempt.number) if attempt else None
    refused = Fault(CREATE_REFUSED, ctx.observed.create_refused) if ctx.observed.create_refused else None
    fault = pod.fault if pod else refused
    if fault is not None:
        return sentence(limit, fault.reason, fault.message)
    waiting = ctx.waiting(attempt) if attempt else None
    failed = attempt is not None and attempt.failures > 0
    if waiting is not None:
        return sentence(limit, waiting.reason, ctx.executor_faults(waiting))
    return sentence(limit, (status.last_error or "") if failed else "")
