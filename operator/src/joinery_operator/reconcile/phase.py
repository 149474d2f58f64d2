"""Derives the job's phase, with one reason and one message, from the status and the pods."""

from __future__ import annotations

from dataclasses import dataclass, replace

from joinery_operator.decision import EXECUTORS
from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.driver import OFTEN_INTERRUPTED, DriverPlan
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import (
    CREATE_REFUSED,
    IMAGE_PULL,
    NOT_CREATED,
    NOT_READY,
    UNSCHEDULABLE,
    Fault,
    cut,
    listed,
    sentence,
)
from joinery_operator.reconcile.rollout import blocking_reason, way_out
from joinery_operator.reconcile.rollout_observation import is_paused
from joinery_operator.reconcile.rollout_table import STAGES, stage_of
from joinery_runtime.job.crd import DriverAttempt, Status
from joinery_runtime.job.crd.status import Phase

WAITS_FOR = {
    "executors": "WaitingForExecutors",
    "input": "WaitingForInput",
    "output": "WaitingForOutput",
    "store": "WaitingForStateStore",
}
"""The reason for each kind of outside system that is unavailable."""

SETTLED: frozenset[Phase] = frozenset({"Running", "Suspended", "Finished", "Failed"})


@dataclass(frozen=True, slots=True)
class JobPhase:
    """A job's phase. `reason` and `message` are those of the condition Ready; `degraded` is what a person should fix,
    if anything. `waits`: the driver runs, but no epoch makes progress."""

    phase: Phase
    reason: str
    message: str
    degraded: Fault | None = None
    waits: bool = False

    @property
    def ready(self) -> bool:
        """Whether the job is as it should be: it runs, has finished, or is suspended."""
        return self.phase in {"Running", "Finished", "Suspended"} and not self.waits

    @property
    def progressing(self) -> bool:
        return self.phase not in SETTLED


def deletion_phase(fault: Fault | None, way_out: str) -> JobPhase:
    """Return the phase of a resource that is being deleted; `fault` keeps its state from being deleted."""
    message = sentence(fault.reason, fault.message) if fault else "the driver stops, then the state is deleted"
    degraded = Fault(fault.reason, cut(f"{fault.message}. {way_out}")) if fault else None
    return JobPhase("Deleting", "Deleting", cut(f"{message}. {way_out}"), degraded)


def job_phase(
    ctx: ReconcileContext,
    status: Status,
    plan: DriverPlan | None,
    blocked: Fault | None,
    *,
    creates: bool,
    undeleted: Fault | None,
) -> JobPhase:
    """Return the phase of a resource that is not being deleted. `blocked`: why the pod that should run cannot be
    created; `creates`: whether a child is missing; `undeleted`: why one that should be gone is there."""
    phase = _driver_phase(ctx, status, plan, blocked)
    lasting = _lasting_fault(ctx, status)
    degraded = phase.degraded or lasting
    if lasting is not None and phase.ready:
        # `kubectl get` shows the reason of Ready. It must not say Running to a user whose edit was rejected.
        phase = replace(phase, reason=lasting.reason, message=f"{phase.message}. {lasting.message}")
    if degraded is None and creates and (refused := ctx.observed.create_refused):
        # A driver may run even though its Service, or the check of another revision, cannot be created.
        degraded = Fault(CREATE_REFUSED, cut(refused))
    if undeleted is not None:
        words = f". {undeleted.message}"
        degraded = replace(degraded, message=degraded.message + words) if degraded is not None else undeleted
        if not phase.ready:
            phase = replace(phase, message=phase.message + words)
    return JobPhase(phase.phase, phase.reason, cut(phase.message), degraded, phase.waits)


def _lasting_fault(ctx: ReconcileContext, status: Status) -> Fault | None:
    """Return what is wrong even while the current revision runs well; None if nothing is."""
    desired, refused = ctx.desired, status.refused
    if desired.job is None:
        return Fault(desired.reason, listed(desired.problems))
    if refused is not None:
        return Fault(refused.reason, sentence(f"revision {refused.revision} was rejected", refused.message))
    return None


def _driver_phase(ctx: ReconcileContext, status: Status, plan: DriverPlan | None, blocked: Fault | None) -> JobPhase:
    attempt, rollout = status.driver, status.rollout
    if (
        attempt is not None
        and attempt.outcome == "Finished"
        and rollout is None
        and not attempt.restore
        and attempt.revision == status.revision
    ):
        return JobPhase("Finished", "Finished", "all inputs have ended, and all output is written")
    if ctx.suspended:
        if ctx.all_drivers_inactive():
            return JobPhase("Suspended", "Suspended", "spec.suspend is true: no driver runs")
        return JobPhase("Stopping", "Suspending", "spec.suspend is true: the driver finishes its epoch")
    if status.revision is None:
        return JobPhase("Failed", ctx.desired.reason, listed(ctx.desired.problems))
    if words := blocking_reason(ctx, status):
        # A stage of the rollout needs a person.
        stage = rollout.stage if rollout is not None else ""
        reason = {"Stopping": "DriverStuck", "Starting": "StartFailed"}.get(stage, "RollbackFailed")
        return JobPhase("Stopping" if stage == "Stopping" else "Failed", reason, words, Fault(reason, cut(words)))
    if blocked is not None:
        return JobPhase("Failed", blocked.reason, blocked.message, blocked)
    if status.held and plan is None and (rollout is None or rollout.stage == "Checking"):
        return _held_phase(ctx, status)
    if attempt is None or plan is None or not plan.fits(attempt):
        if ctx.all_drivers_inactive():
            return JobPhase(_phase(status, "Pending"), "Starting", "the next driver is about to start")
        message = "the old driver finishes its epoch before another one starts"
        return JobPhase(_phase(status, "Stopping"), "Stopping", message, _overdue_pod_fault(ctx))
    if attempt.outcome is not None:
        return _phase_after_attempt(ctx, status, attempt)
    return _phase_with_pod(ctx, status, attempt, ctx.drivers.get(attempt.number))


def _held_phase(ctx: ReconcileContext, status: Status) -> JobPhase:
    """Return the phase while nothing runs, because the resource asks for another job than the one that was suspended or
    failed for good."""
    rollout = status.rollout
    if rollout is not None:
        message = sentence(f"revision {rollout.revision} is being checked", rollout.reason)
        return JobPhase(
            "Pending", "Checking", f"{message}. No driver runs until the check has passed. {way_out(status)}"
        )
    fault = _lasting_fault(ctx, status)
    if fault is None:
        waits = "is checked once rollouts are no longer paused" if is_paused(ctx, status) else "is about to be checked"
        return JobPhase("Pending", "Starting", f"the job that is asked for now {waits}")
    to_do = f"Nothing runs: correct the job, or apply that of revision {status.revision} to have it start again"
    message = f"{cut(fault.message, 512)}. {to_do}"
    return JobPhase("Failed", fault.reason, message, Fault(fault.reason, message))


def _overdue_pod_fault(ctx: ReconcileContext) -> Fault | None:
    """Return the fault of a driver pod that should have been gone by now, if there is one."""
    for pod in (*ctx.drivers.values(), *ctx.orphaned_drivers.values()):
        stuck_at = pod.stuck_at(ctx.settings.stuck_seconds)
        if pod.deletion_time is None or stuck_at is None or pod.ended_at is not None:
            continue
        if ctx.now > pod.deletion_time:
            limit = f"{(stuck_at - pod.deletion_time).total_seconds():g} s"
            return Fault(
                "DriverStuck",
                f"pod {pod.name} should have been gone at {pod.deletion_time:%H:%M:%S} UTC; the next one starts "
                f"{limit} after that all the same, and the old one can commit nothing any more",
            )
    return None


def _phase_after_attempt(ctx: ReconcileContext, status: Status, attempt: DriverAttempt) -> JobPhase:
    """Return the phase after the current attempt has ended."""
    failure = sentence(f"attempt {attempt.number} failed", attempt.reason or "", status.last_error or "")
    if attempt.outcome == "Fatal":
        message = f"{failure}. Another attempt would fail the same way: it waits until the resource changes"
        return JobPhase("Failed", attempt.reason or "Failed", message, Fault(attempt.reason or "Failed", cut(message)))
    if attempt.outcome == "Failed":
        when = f"; the next one starts at {attempt.not_before:%H:%M:%S} UTC" if attempt.not_before else ""
        return JobPhase(_phase(status, "Pending"), "BackOff", cut(failure) + when, Fault("BackOff", cut(failure)))
    when = f" at {attempt.not_before:%H:%M:%S} UTC" if attempt.not_before else ""
    pod = ctx.drivers.get(attempt.number)
    detail = pod.disruption.message if pod is not None and pod.disruption is not None else ""
    reason = sentence(attempt.reason or "", cut(detail, 512))
    message = f"attempt {attempt.number} was ended by others ({reason}); the next one starts{when}"
    return JobPhase(
        _phase(status, "Pending"), "Interrupted", message, _overdue_pod_fault(ctx) or _interruption_fault(attempt)
    )


def _interruption_fault(attempt: DriverAttempt) -> Fault | None:
    if attempt.interruptions < OFTEN_INTERRUPTED:
        return None
    words = f"others ended {attempt.interruptions} attempts in a row (an eviction, a drain, a deletion)"
    return Fault("Interrupted", f"{words}: see the Events of the pods and their nodes, and spec.spark.driver.memory")


def _phase_with_pod(
    ctx: ReconcileContext, status: Status, attempt: DriverAttempt, pod: PodObservation | None
) -> JobPhase:
    if pod is None and (refused := ctx.observed.create_refused):
        fault = Fault(CREATE_REFUSED, cut(refused))
        return JobPhase(_phase(status, "Pending"), fault.reason, fault.message, fault)
    failed = Fault("BackOff", cut(sentence("restarted after a failure", status.last_error or "")))
    degraded = failed if attempt.failures else _interruption_fault(attempt)
    if pod is None:
        return JobPhase(_phase(status, "Pending"), "Starting", f"attempt {attempt.number} is about to start", degraded)
    if pod.deletion_time is not None:
        message = f"pod {pod.name} is being deleted by others; another one starts when it is gone"
        return JobPhase(_phase(status, "Stopping"), "Stopping", message, _overdue_pod_fault(ctx))
    if attempt.restore and pod.fault is None:
        return JobPhase("RollingBack", "RollingBack", f"pod {pod.name} returns to savepoint {attempt.restore}")
    if pod.fault is None and (waiting := ctx.waiting(attempt)) is not None:
        since = f"pod {pod.name} waits since {waiting.since:%H:%M:%S} UTC, and continues by itself"
        words = sentence(since, waiting.reason, ctx.executor_faults(waiting))
        fault = Fault(WAITS_FOR.get(waiting.system, "Waiting"), cut(words))
        phase = _phase(status, "Running" if attempt.ready is not None else "Starting")
        # Executors take a while to start, and a cluster to grow.
        soon = waiting.system == EXECUTORS and not ctx.has_elapsed(waiting.since, ctx.deadline_seconds)
        return JobPhase(phase, fault.reason, fault.message, degraded if soon else fault, waits=True)
    if attempt.ready is not None:
        rollout = status.rollout
        if rollout is not None and rollout.lifted:
            waits = f"no record has come yet, and until the first commit there is a way back to {status.revision}"
            return JobPhase("Running", "Running", f"attempt {attempt.number} runs as pod {pod.name}: {waits}")
        if rollout is not None and rollout.stage != "Checking":
            return JobPhase(
                _phase(status, "Running"), "Starting", "the new driver is ready; its first commit is awaited"
            )
        return JobPhase("Running", "Running", f"attempt {attempt.number} runs as pod {pod.name}")
    if pod.fault is not None:
        # A pod without a node may only wait for the cluster to grow.
        overdue = pod.fault.reason == UNSCHEDULABLE and ctx.has_elapsed(pod.created_at, ctx.deadline_seconds)
        lasts = overdue or pod.fault.reason in {IMAGE_PULL, NOT_CREATED}
        return JobPhase(
            _phase(status, "Starting"),
            pod.fault.reason,
            sentence(f"pod {pod.name}", pod.fault.message),
            pod.fault if lasts else degraded,
        )
    if ctx.has_elapsed(ctx.not_ready_since(pod), ctx.deadline_seconds):
        fault = not_ready_fault(ctx, pod)
        return JobPhase(_phase(status, "Starting"), fault.reason, fault.message, fault)
    return JobPhase(
        _phase(status, "Starting"),
        "Starting",
        f"pod {pod.name} is not ready: it starts and recovers, or does not answer",
        degraded,
    )


def not_ready_fault(ctx: ReconcileContext, pod: PodObservation) -> Fault:
    """Return the fault of a pod that is not ready. What the kubelet waits for is only in its Events."""
    words = (
        f"pod {pod.name} is not ready since {ctx.not_ready_since(pod):%H:%M:%S} UTC, more than "
        f"{ctx.deadline_text}: {pod.waiting_for}. `kubectl describe pod {pod.name}` shows what "
        "it waits for (a Secret or volume that is missing, say), its log what it does"
    )
    return Fault(NOT_READY, words)


def _phase(status: Status, otherwise: Phase) -> Phase:
    """Return the phase of the rollout's stage, which says more than its driver's, until the driver counts as
    started."""
    if status.rollout is not None and status.rollout.lifted:
        return otherwise
    return STAGES[stage_of(status)].phase or otherwise
