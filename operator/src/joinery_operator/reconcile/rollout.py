"""Rolls out another revision: checks it, puts it in place of the old one, and takes it back if it does not start.

Each reconcile classifies what it observes and carries out one row of `rollout_table`. Observations alone end a stage,
so an operator that died in one resumes where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from joinery_operator.decision import EXECUTORS
from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.driver import reset_failures, savepoint_name
from joinery_operator.reconcile.places import names_new_system
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import cut, sentence
from joinery_operator.reconcile.rollout_observation import (
    classify,
    classify_desired,
    is_rejected,
    migrating_attempt,
)
from joinery_operator.reconcile.rollout_reasons import check_rejection, progress_problem, waiting_reason
from joinery_operator.reconcile.rollout_table import (
    STAGES,
    Act,
    Desired,
    RolloutStage,
    Transition,
    row_for,
    stage_of,
)
from joinery_operator.revision import JobRevision
from joinery_runtime.job.crd import PastRevision, Refusal, Rollout, Status
from joinery_runtime.job.crd.status import RestoringRevision


def advance_rollout(ctx: ReconcileContext, status: Status) -> Status:
    """Advance the rollout by one step, if possible, and return the new status."""
    execution = _Execution(ctx, status, row_for(classify(ctx, status)))
    return _ACTS[execution.row.act](execution)


def record_target(ctx: ReconcileContext, status: Status) -> Status:
    """Return the status after a change of the resource: what was given up is tried again at once. A resource that is no
    valid job changes nothing."""
    job = ctx.desired.job
    if job is None:
        return status
    changed = status.observed_generation not in {None, ctx.metadata.get("generation")}
    if changed or job.revision != status.target_revision:
        status = reset_failures(status)
    refused = status.refused if is_rejected(status, job, ctx.desired.mode) else None
    # Without `replaces` it is unknown what was tried: an earlier release wrote the status, or the API server dropped
    # the field because the definitions are of one. Only an edit tries such a revision again, or each reconcile would.
    if refused is not None and refused.replaces is not None and ctx.names_another_owner(refused.replaces):
        refused = None
    return status.model_copy(update={"refused": refused, "target_revision": job.revision})


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
    continues = desired is Desired.ROLLOUT and stage_of(status) in {RolloutStage.STARTING, RolloutStage.ROLLING_BACK}
    if ctx.suspended or (failed and is_current and desired in {Desired.ANOTHER, Desired.ROLLOUT} and not continues):
        return status.model_copy(update={"held": True})
    return status.model_copy(update={"held": False}) if desired is Desired.CURRENT or continues else status


def record_progress(ctx: ReconcileContext, status: Status) -> Status:
    """Return the status with how far the stage of its rollout got. The deadline counts from the last progress, and not
    while the job is suspended, or its driver waits for a system that is unavailable and no other revision would get
    further."""
    rollout = status.rollout
    if rollout is None:
        return status
    if ctx.suspended or _waits_for_known_system(ctx, status, rollout):
        return without_deadline(status)
    before = {name: getattr(rollout, name) for name in _NOTHING_DONE}
    best = {name: max(count, before[name]) for name, count in _count_progress(ctx, status, rollout).items()}
    if rollout.progressed is not None and best == before:
        return status
    update = {"progressed": ctx.now, **best}
    return status.model_copy(update={"rollout": rollout.model_copy(update=update)})


def without_deadline(status: Status) -> Status:
    """Return the status while its rollout stands still: the deadline counts from the moment at which it continues."""
    rollout = status.rollout
    if rollout is None or rollout.progressed is None:
        return status
    return status.model_copy(update={"rollout": rollout.model_copy(update={"progressed": None})})


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


def is_check_due(ctx: ReconcileContext, pod: PodObservation) -> bool:
    """Return whether a check pod that ended without a result is due for another try."""
    if pod.ended_at is None or pod.check_result is not None:
        return False
    # The clock of its node may be ahead or behind, by more than the deadline.
    since = pod.ended_at if pod.created_at <= pod.ended_at <= ctx.now else pod.created_at
    return ctx.has_elapsed(since, ctx.settings.backoff_first_seconds)


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


def _count_progress(ctx: ReconcileContext, status: Status, rollout: Rollout) -> dict[str, int]:
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


_HISTORY = 5
"""How many earlier revisions `kubectl joinery rollout undo` can return to. Each keeps its ConfigMap."""


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
            rollout=self._update_rollout(reason=waiting_reason(self.ctx, self.status) or self.rollout.reason)
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
        reason = sentence(self.row.rejected_as or "", cut(self._rejection_message(), 512))
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
        asks_for_another = new is self.status.rollout and classify_desired(self.ctx, self.status) is not Desired.ROLLOUT
        return self._update(**revision_fields, refused=None, rollout=None, held=self.status.held and asks_for_another)

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
        message = cut(self._rejection_message() or self.row.rejected_as or "")
        return Refusal.model_validate(
            {
                "revision": revision,
                "mode": mode,
                "reason": self.row.rejected_as,
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
            return check_rejection(self.ctx, self.rollout)
        if self.row.rejected_as == "DeadlineExceeded":
            return progress_problem(self.ctx, self.status, migrating_attempt(self.status, self.rollout))
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
