"""The rollout of another revision: checked, put in the old one's place, and taken back when it does not start.

Each reconcile classifies what it observes and carries out one row of `rollout_table`. A stage ends by observations
alone, so that an operator that died in it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.driver import savepoint_name
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import COMMITTED_SINCE, CREATE_REFUSED, INCOMPATIBLE, Fault, cut, sentence
from joinery_operator.reconcile.rollout_table import (
    STAGES,
    Act,
    Asked,
    AtStake,
    Check,
    Deadline,
    Mode,
    NewDriver,
    NewStore,
    OldDriver,
    Refused,
    Restore,
    RolloutObservation,
    RolloutStage,
    Suspend,
    Transition,
    row_for,
    stage_of,
)
from joinery_operator.revision import JobRevision
from joinery_runtime.job.crd import DriverAttempt, Refusal, Rollout, Status


def advance_rollout(ctx: ReconcileContext, status: Status) -> Status:
    """The status with the rollout one step further, if it can go one."""
    execution = _Execution(ctx, status, row_for(classify(ctx, status)))
    return _ACTS[execution.row.act](execution)


def record_proof(ctx: ReconcileContext, status: Status) -> Status:
    """The status with the time at which the revision in force was first ready."""
    attempt = status.driver
    if status.proved is not None or attempt is None or attempt.revision != status.revision:
        return status
    if attempt.ready is None and attempt.outcome != "Finished" and not _committed(ctx, attempt):
        return status
    return status.model_copy(update={"proved": ctx.now})


def deadline(ctx: ReconcileContext, status: Status) -> datetime | None:
    """When time alone ends the stage."""
    rollout = status.rollout
    if rollout is None or not STAGES[stage_of(status)].has_deadline or ctx.suspended:
        return None
    return rollout.since + timedelta(seconds=ctx.settings.deadline_seconds)


def refuses(status: Status, revision: JobRevision, mode: str) -> bool:
    refused = status.refused
    return refused is not None and (refused.revision, refused.mode) == (revision.revision, mode)


def check_due(ctx: ReconcileContext, pod: PodObservation) -> bool:
    """Whether a check pod that ended without a result is to be made anew."""
    if pod.ended_at is None or pod.check_result is not None:
        return False
    return ctx.elapsed(pod.ended_at, ctx.settings.backoff_first_seconds)


# What was observed, as the table has it


def classify(ctx: ReconcileContext, status: Status) -> RolloutObservation:
    rollout, suspend = status.rollout, Suspend.YES if ctx.suspended else Suspend.NO
    if rollout is None:
        return _classify_stable(ctx, status, suspend)
    stage, asked = stage_of(status), _asked(ctx, rollout)
    passed = ctx.elapsed(rollout.since, ctx.settings.deadline_seconds)
    over = Deadline.PASSED if passed else Deadline.AHEAD
    match stage:
        case RolloutStage.CHECKING:
            check = _check(ctx.check(rollout))
            return RolloutObservation(
                stage, asked=asked, suspend=suspend, mode=Mode(rollout.mode), check=check, deadline=over
            )
        case RolloutStage.STOPPING:
            old = status.driver
            gone = (old is None or old.outcome is not None) and ctx.all_drivers_inactive()
            return RolloutObservation(
                stage, asked=asked, suspend=suspend, old_driver=OldDriver.GONE if gone else OldDriver.ACTIVE
            )
        case RolloutStage.STARTING:
            new_driver = _new_driver(ctx, _attempt_of(status, rollout))
            return RolloutObservation(stage, asked=asked, suspend=suspend, new_driver=new_driver, deadline=over)
        case _:
            return RolloutObservation(stage, restore=_restore(ctx, status.driver, rollout))


def _classify_stable(ctx: ReconcileContext, status: Status, suspend: Suspend) -> RolloutObservation:
    new, mode = ctx.desired.job, ctx.desired.mode
    if new is None or new.revision == status.revision:
        return RolloutObservation(RolloutStage.STABLE, asked=Asked.SAME)
    in_memory = NewStore.GIVES_UP if mode == "stateless" else NewStore.IN_MEMORY
    return RolloutObservation(
        RolloutStage.STABLE,
        asked=Asked.ANOTHER,
        at_stake=AtStake.STATE if _has_durable_state(ctx, status) else AtStake.NOTHING,
        new_store=NewStore.KEEPS if new.durable else in_memory,
        suspend=suspend,
        refused=Refused.YES if refuses(status, new, mode) else Refused.NO,
    )


def _has_durable_state(ctx: ReconcileContext, status: Status) -> bool:
    """Whether the revision in force was ready, with state that outlives a pod. In doubt it has some."""
    if status.revision is None or status.image is None or status.proved is None:
        return False
    old = ctx.revision(status.revision, status.image)
    return old is None or old.durable


def _asked(ctx: ReconcileContext, rollout: Rollout) -> Asked:
    new = ctx.desired.job
    another = new is not None and (new.revision, ctx.desired.mode) != (rollout.revision, rollout.mode)
    return Asked.ANOTHER if another else Asked.SAME


def _check(pod: PodObservation | None) -> Check:
    if pod is None:
        return Check.NOTHING_YET
    if pod.check_result is not None:
        if not pod.check_result.fits:
            return Check.MISFIT
        return Check.FITS if pod.check_result.epoch is not None else Check.NO_STATE
    if pod.ended_at is None or pod.ending is None or pod.ending.retry:
        return Check.NOTHING_YET
    return Check.INCOMPATIBLE if pod.ending.kind == INCOMPATIBLE else Check.FAILED


def _attempt_of(status: Status, rollout: Rollout) -> DriverAttempt | None:
    """The current attempt, if it migrates for this rollout."""
    attempt = status.driver
    return attempt if attempt is not None and attempt.migrate == rollout.savepoint else None


def _new_driver(ctx: ReconcileContext, attempt: DriverAttempt | None) -> NewDriver:
    if attempt is None:
        return NewDriver.NONE
    if attempt.outcome == "Finished" or _committed(ctx, attempt):
        return NewDriver.COMMITTED
    if attempt.outcome == "Stopped":
        return NewDriver.STOPPED
    if attempt.outcome == "Fatal":
        if attempt.reason == INCOMPATIBLE:
            return NewDriver.MISFIT
        pod = ctx.drivers.get(attempt.number)
        return NewDriver.NOT_MIGRATED if pod is not None and not pod.initialized else NewDriver.FAILED
    return NewDriver.READY if attempt.ready is not None and attempt.outcome is None else NewDriver.UNDERWAY


def _restore(ctx: ReconcileContext, attempt: DriverAttempt | None, rollout: Rollout) -> Restore:
    if attempt is None or attempt.restore != rollout.savepoint:
        return Restore.UNDERWAY
    if attempt.outcome == "Fatal" and attempt.reason == COMMITTED_SINCE:
        return Restore.COMMITTED_SINCE
    pod = ctx.drivers.get(attempt.number)
    restored = attempt.outcome == "Finished" or attempt.ready is not None or (pod is not None and pod.initialized)
    return Restore.RESTORED if restored else Restore.UNDERWAY


def _committed(ctx: ReconcileContext, attempt: DriverAttempt) -> bool:
    reported = ctx.driver_status(attempt)
    return reported is not None and reported.committed > 0


# What a row does


@dataclass(frozen=True, slots=True)
class _Execution:
    """One row that is carried out: each method returns the status after it."""

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
        return self._with(rollout=self._changed(reason=_check_message(self.ctx, self.rollout) or self.rollout.reason))

    def take_over(self) -> Status:
        return self._with(revision=self.new.revision, image=self.new.image, proved=None, refused=None)

    def begin(self) -> Status:
        new, mode = self.new, self.ctx.desired.mode
        rollout = Rollout(revision=new.revision, image=new.image, mode=mode, stage="Checking", since=self.ctx.now)
        return self._with(rollout=rollout)

    def refuse(self) -> Status:
        return self._with(rollout=None, refused=self._refusal())

    def stop(self) -> Status:
        pod = self.ctx.check(self.rollout)
        warnings = pod.check_result.warnings if pod is not None and pod.check_result is not None else ()
        return self._with(rollout=self._entered(reason=cut("; ".join(warnings))))

    def start(self) -> Status:
        savepoint = savepoint_name(self.ctx, self.rollout.revision, self.status.driver)
        return self._with(rollout=self._entered(savepoint=savepoint))

    def drop(self) -> Status:
        return advance_rollout(self.ctx, self._with(rollout=None))

    def restart_clock(self) -> Status:
        return self._with(rollout=self._changed(since=self.ctx.now))

    def roll_back(self) -> Status:
        return self._with(rollout=self._entered(reason="the resource asks for another job now"))

    def refuse_and_roll_back(self) -> Status:
        reason = sentence(self.row.refused or "", cut(self._why_refused(), 512))
        return self._with(rollout=self._entered(reason=reason), refused=self._refusal())

    def complete(self) -> Status:
        new = self.rollout
        return self._with(revision=new.revision, image=new.image, proved=self.ctx.now, rollout=None, refused=None)

    def keep(self) -> Status:
        return self._with(rollout=None)

    def _with(self, **update: object) -> Status:
        return self.status.model_copy(update=update)

    def _changed(self, **update: object) -> Rollout:
        return self.rollout.model_copy(update=update)

    def _entered(self, **update: object) -> Rollout:
        return self._changed(**{"stage": self.row.to.value, "since": self.ctx.now, "reason": "", **update})

    def _refusal(self) -> Refusal:
        rollout = self.status.rollout
        revision, mode = (rollout or self.new).revision, rollout.mode if rollout else self.ctx.desired.mode
        message = cut(self._why_refused() or self.row.refused or "")
        return Refusal.model_validate(
            {"revision": revision, "mode": mode, "reason": self.row.refused, "message": message}
        )

    def _why_refused(self) -> str:
        if self.row.stage is RolloutStage.STABLE:
            return (
                f"the job's state is in Postgres, and spec.stateStore.{self.new.job.spec.state_store.kind} keeps none: "
                "all of it would be left behind. Name the Postgres again (stateStore.postgres), or set upgrade.mode: "
                "stateless to start anew without the state"
            )
        if self.row.stage is RolloutStage.CHECKING:
            return _check_refusal(self.ctx, self.rollout)
        if self.row.refused == "DeadlineExceeded":
            return _not_ready(self.ctx, self.status, _attempt_of(self.status, self.rollout))
        return self.status.last_error or ""


_ACTS: Mapping[Act, Callable[[_Execution], Status]] = {
    Act.WAIT: _Execution.wait,
    Act.REPORT: _Execution.report,
    Act.TAKE_OVER: _Execution.take_over,
    Act.BEGIN: _Execution.begin,
    Act.REFUSE: _Execution.refuse,
    Act.STOP: _Execution.stop,
    Act.START: _Execution.start,
    Act.DROP: _Execution.drop,
    Act.RESTART_CLOCK: _Execution.restart_clock,
    Act.ROLL_BACK: _Execution.roll_back,
    Act.REFUSE_AND_ROLL_BACK: _Execution.refuse_and_roll_back,
    Act.COMPLETE: _Execution.complete,
    Act.KEEP: _Execution.keep,
}


# Why a revision is refused


def _check_refusal(ctx: ReconcileContext, rollout: Rollout) -> str:
    pod = ctx.check(rollout)
    match _check(pod):
        case Check.NO_STATE:
            return _no_state(ctx, rollout)
        case Check.MISFIT if pod is not None and pod.check_result is not None:
            return "; ".join(pod.check_result.refused)
        case Check.NOTHING_YET:
            limit = f"no result within {ctx.settings.deadline_seconds:g} s"
            return sentence(limit, _check_message(ctx, rollout) or rollout.reason)
        case _:
            return _check_message(ctx, rollout)


def _check_message(ctx: ReconcileContext, rollout: Rollout) -> str:
    """What keeps the check from a result."""
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
        "start anew without the state"
    )


def _not_ready(ctx: ReconcileContext, status: Status, attempt: DriverAttempt | None) -> str:
    limit = f"not ready within {ctx.settings.deadline_seconds:g} s"
    pod = ctx.drivers.get(attempt.number) if attempt else None
    refused = Fault(CREATE_REFUSED, ctx.observed.create_refused) if ctx.observed.create_refused else None
    fault = pod.fault if pod else refused
    if fault is not None:
        return sentence(limit, fault.reason, fault.message)
    failed = attempt is not None and attempt.failures > 0
    return sentence(limit, (status.last_error or "") if failed else "")
