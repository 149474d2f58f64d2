"""How a job is, in one phase, one reason and one message: read off the status and the pods."""

from __future__ import annotations

from dataclasses import dataclass

from joinery_operator.reconcile.facts import (
    CREATE_REFUSED,
    IMAGE_PULL,
    NOT_CREATED,
    NOT_READY,
    UNSCHEDULABLE,
    PodFacts,
    Trouble,
)
from joinery_operator.reconcile.look import Look
from joinery_operator.reconcile.plan import Plan
from joinery_operator.reconcile.text import cut, listed, sentence
from joinery_runtime.job.crd import Attempt, Status
from joinery_runtime.job.crd.status import Phase

SETTLED: frozenset[Phase] = frozenset({"Running", "Suspended", "Finished", "Failed"})


@dataclass(frozen=True, slots=True)
class Situation:
    """`reason` and `message` are those of the condition Ready; `degraded` what a person should look at, if anything."""

    phase: Phase
    reason: str
    message: str
    degraded: Trouble | None = None

    @property
    def ready(self) -> bool:
        return self.phase == "Running"

    @property
    def progressing(self) -> bool:
        return self.phase not in SETTLED


def deleting(trouble: Trouble | None, way_out: str) -> Situation:
    """Of a resource that is being deleted; `trouble` keeps its state from being deleted."""
    message = sentence(trouble.reason, trouble.message) if trouble else "the driver stops, then the state is deleted"
    degraded = Trouble(trouble.reason, cut(f"{trouble.message}. {way_out}")) if trouble else None
    return Situation("Deleting", "Deleting", cut(f"{message}. {way_out}"), degraded)


def situation(look: Look, status: Status, plan: Plan | None, blocked: Trouble | None) -> Situation:
    """Of a resource that lives; `blocked`: why the pod that should run cannot be made."""
    found = _situation(look, status, plan, blocked)
    return Situation(found.phase, found.reason, cut(found.message), found.degraded or _standing(look, status))


def _standing(look: Look, status: Status) -> Trouble | None:
    """What is wrong however well the revision in force runs."""
    asked, refused = look.wanted, status.refused
    if asked.job is None:
        return Trouble(asked.reason, listed(asked.problems))
    if refused is not None:
        return Trouble(refused.reason, sentence(f"revision {refused.revision} was refused", refused.message))
    return None


def _situation(look: Look, status: Status, plan: Plan | None, blocked: Trouble | None) -> Situation:
    attempt, rollout = status.driver, status.rollout
    if (
        attempt is not None
        and attempt.outcome == "Finished"
        and rollout is None
        and attempt.revision == status.revision
    ):
        return Situation("Finished", "Finished", "all inputs have ended, and all output is written")
    if look.suspended:
        return _suspended(look)
    if status.revision is None:
        return Situation("Failed", look.wanted.reason, listed(look.wanted.problems))
    if blocked is not None:
        return Situation("Failed", blocked.reason, blocked.message, blocked)
    if attempt is None or plan is None or not plan.fits(attempt):
        return _changing(look, status)
    if attempt.outcome is not None:
        return _between(look, status, attempt)
    return _with_pod(look, status, attempt, look.drivers.get(attempt.number))


def _suspended(look: Look) -> Situation:
    if look.all_quiet():
        return Situation("Suspended", "Suspended", "spec.suspend is true: no driver runs")
    return Situation("Stopping", "Suspending", "spec.suspend is true: the driver finishes its epoch")


def _changing(look: Look, status: Status) -> Situation:
    """Another driver is to run than the one that did, once that is gone."""
    late = _late_pod(look)
    if not look.all_quiet():
        message = "the old driver finishes its epoch before another one starts"
        return Situation(_phase(status, "Stopping"), "Stopping", message, late)
    return Situation(_phase(status, "Pending"), "Starting", "the next driver is about to start")


def _late_pod(look: Look) -> Trouble | None:
    """A pod that should have been gone by now."""
    for pod in (*look.drivers.values(), *look.left_over.values()):
        if pod.deleted is not None and pod.ended is None and look.now > pod.deleted:
            limit = f"{look.settings.stuck_seconds:g} s"
            return Trouble(
                "DriverStuck",
                f"pod {pod.name} should have been gone at {pod.deleted:%H:%M:%S} UTC; the next one starts {limit} "
                "after that all the same, and the old one can commit nothing any more",
            )
    return None


def _between(look: Look, status: Status, attempt: Attempt) -> Situation:
    """The current attempt is over."""
    what = sentence(f"attempt {attempt.number} failed", attempt.reason or "", status.last_error or "")
    if attempt.outcome == "Fatal":
        if status.rollout is not None and status.rollout.stage == "RollingBack":
            return _no_way_back(status, what)
        message = f"{what}. Another attempt would fail the same way: it waits until the resource changes"
        return Situation(
            "Failed", attempt.reason or "Failed", message, Trouble(attempt.reason or "Failed", cut(message))
        )
    if attempt.outcome == "Failed":
        when = f"; the next one starts at {attempt.not_before:%H:%M:%S} UTC" if attempt.not_before else ""
        return Situation(_phase(status, "Pending"), "BackOff", cut(what) + when, Trouble("BackOff", cut(what)))
    message = f"attempt {attempt.number} was ended by others ({attempt.reason}); the next one starts"
    late = _late_pod(look)
    return Situation(_phase(status, "Pending"), "Interrupted", message, late)


def _no_way_back(status: Status, what: str) -> Situation:
    rollout = status.rollout
    savepoint = rollout.savepoint if rollout else ""
    message = (
        f"the way back to revision {status.revision} failed: {cut(what, 512)}. Nothing runs. Correct the cause and "
        f"annotate the resource with joinery.dev/restartedAt to have it tried again, or restore savepoint {savepoint} "
        f"by hand with `joinery state restore`, with image {cut(status.image or '', 256)}"
    )
    return Situation("Failed", "RollbackFailed", message, Trouble("RollbackFailed", message))


def _with_pod(look: Look, status: Status, attempt: Attempt, pod: PodFacts | None) -> Situation:
    if pod is None and (refused := look.observed.refused):
        trouble = Trouble(CREATE_REFUSED, cut(refused))
        return Situation(_phase(status, "Pending"), trouble.reason, trouble.message, trouble)
    if pod is None:
        return Situation(_phase(status, "Pending"), "Starting", f"attempt {attempt.number} is about to start")
    if pod.deleted is not None:
        message = f"pod {pod.name} is being deleted by others; another one starts when it is gone"
        return Situation(_phase(status, "Stopping"), "Stopping", message, _late_pod(look))
    if attempt.ready is not None:
        if status.rollout is not None and status.rollout.stage != "Checking":
            return Situation(
                _phase(status, "Running"), "Starting", "the new driver is ready; its first commit is awaited"
            )
        return Situation("Running", "Running", f"attempt {attempt.number} runs as pod {pod.name}")
    failed = Trouble("BackOff", cut(sentence("restarted after a failure", status.last_error or "")))
    degraded = failed if attempt.failures else None
    if pod.trouble is not None:
        return Situation(
            _phase(status, "Starting"),
            pod.trouble.reason,
            sentence(f"pod {pod.name}", pod.trouble.message),
            pod.trouble if _lasting(look, pod, pod.trouble) else degraded,
        )
    if look.over(pod.unready, look.settings.deadline_seconds):
        return Situation(_phase(status, "Starting"), NOT_READY, (late := _unready(look, pod)).message, late)
    return Situation(
        _phase(status, "Starting"),
        "Starting",
        f"pod {pod.name} is not ready: it starts and recovers, or does not answer",
        degraded,
    )


def _unready(look: Look, pod: PodFacts) -> Trouble:
    """What a kubelet waits for it tells in Events only."""
    words = (
        f"pod {pod.name} is not ready since {pod.unready:%H:%M:%S} UTC, more than "
        f"{look.settings.deadline_seconds:g} s: {pod.waits}. `kubectl describe pod {pod.name}` shows what it waits for "
        "(a Secret or volume that is missing, say), its log what it does"
    )
    return Trouble(NOT_READY, words)


def _lasting(look: Look, pod: PodFacts, trouble: Trouble) -> bool:
    """A pod that waits for a node may only wait for the cluster to grow."""
    if trouble.reason in {IMAGE_PULL, NOT_CREATED}:
        return True
    return trouble.reason == UNSCHEDULABLE and look.over(pod.created, look.settings.deadline_seconds)


def _phase(status: Status, otherwise: Phase) -> Phase:
    """A rollout's stage says more than what its driver is at."""
    stages: dict[str, Phase] = {"Stopping": "Stopping", "Starting": "Migrating", "RollingBack": "RollingBack"}
    stage = status.rollout.stage if status.rollout else None
    return stages.get(stage or "", otherwise)
