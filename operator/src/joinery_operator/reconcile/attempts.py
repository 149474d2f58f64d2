"""Driver pods: one attempt after another, never two at a time."""

from __future__ import annotations

from datetime import datetime, timedelta

from joinery_operator.reconcile.facts import PodFacts
from joinery_operator.reconcile.look import Look
from joinery_operator.reconcile.plan import Plan
from joinery_operator.reconcile.text import cut
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import Attempt, Status

FOR_GOOD = {"Finished", "Fatal"}


def seen(look: Look, status: Status, plan: Plan | None) -> Status:
    """The status with what became of the current attempt."""
    attempt = status.driver
    if attempt is None or attempt.outcome is not None:
        return status
    pod = look.drivers.get(attempt.number)
    intended = plan is not None and plan.fits(attempt)
    if pod is None:
        if attempt.pod_uid is None and intended:
            return status  # it is still to be created
        return _set(status, _vanished(look, attempt, intended))
    attempt = _watched(look, attempt, pod)
    if not look.quiet(pod):
        return _set(status, attempt)
    ended = _ended(look, attempt, pod, intended)
    told = pod.failure if ended.outcome in {"Failed", "Fatal"} else ""
    return _set(status, ended, last_error=cut(told) or status.last_error)


def advanced(look: Look, status: Status, plan: Plan | None) -> Status:
    """The status with the next attempt, when one is planned and due and nothing else can run any more."""
    attempt = status.driver
    if plan is None or (attempt is not None and not due(look, attempt, plan)) or not look.all_quiet():
        return status
    last = max([0, *look.drivers, *look.left_over, attempt.number if attempt else 0])
    again = attempt is not None and plan.fits(attempt)
    new = Attempt(
        number=last + 1,
        revision=plan.revision,
        image=plan.image,
        created=look.now,
        failures=attempt.failures if attempt and again else 0,
        migrate=plan.migrate,
        anew=plan.anew,
        restore=plan.restore,
    )
    return _set(status, new)


def due(look: Look, attempt: Attempt, plan: Plan) -> bool:
    """Whether another attempt may begin after this one."""
    if attempt.outcome is None:
        return False
    if not plan.fits(attempt):
        return True
    return attempt.outcome not in FOR_GOOD and not (attempt.not_before and look.now < attempt.not_before)


def forgiven(status: Status) -> Status:
    """Failures count no more: what the resource asks for has changed."""
    attempt = status.driver
    if attempt is None:
        return status
    outcome = "Failed" if attempt.outcome == "Fatal" else attempt.outcome
    return _set(status, attempt.model_copy(update={"failures": 0, "not_before": None, "outcome": outcome}))


def back_off(settings: Settings, failures: int) -> timedelta:
    """How long after that many failures in a row."""
    doubled = settings.backoff_first_seconds * 2.0 ** min(max(failures - 1, 0), 32)
    return timedelta(seconds=min(doubled, settings.backoff_last_seconds))


def _set(status: Status, attempt: Attempt, **more: object) -> Status:
    return status.model_copy(update={"driver": attempt, **more})


def _watched(look: Look, attempt: Attempt, pod: PodFacts) -> Attempt:
    ready = (attempt.ready or pod.ready) if pod.ready is not None and pod.deleted is None else None
    if pod.ended is not None:
        ready = attempt.ready  # the last thing that is known
    healthy = ready is not None and look.over(ready, look.settings.healthy_seconds)
    failures = 0 if healthy else attempt.failures
    return attempt.model_copy(update={"pod_uid": pod.uid, "ready": ready, "failures": failures})


def _vanished(look: Look, attempt: Attempt, intended: bool) -> Attempt:
    """Its pod is gone without a word: others deleted it, unless nobody wanted it any more."""
    if not intended:
        return attempt.model_copy(update={"outcome": "Stopped", "reason": None, "not_before": None})
    return _interrupted(look, attempt, "PodDeleted")


def _ended(look: Look, attempt: Attempt, pod: PodFacts, intended: bool) -> Attempt:
    ending = pod.ending
    if ending is not None and ending.outcome == "finished":
        return attempt.model_copy(update={"outcome": "Finished", "reason": None})
    if ending is not None and ending.outcome == "failed" and not ending.retry:
        return attempt.model_copy(update={"outcome": "Fatal", "reason": _word(pod.cause)})
    if not intended:
        return attempt.model_copy(update={"outcome": "Stopped", "reason": None, "not_before": None})
    stopped = ending is not None and ending.outcome == "stopped"
    if pod.deleted is not None or pod.taken_away or stopped:
        return _interrupted(look, attempt, pod.cause if pod.taken_away else "PodDeleted" if pod.deleted else "Stopped")
    return _failed(look, attempt, pod)


def _interrupted(look: Look, attempt: Attempt, reason: str) -> Attempt:
    """No failure, so the next attempt starts at once; what is taken away at its very start, again and again, is not to
    fill the cluster with pods."""
    not_before = attempt.created + timedelta(seconds=look.settings.backoff_first_seconds)
    return attempt.model_copy(
        update={
            "outcome": "Interrupted",
            "reason": _word(reason),
            "not_before": not_before if not_before > look.now else None,
        }
    )


def _failed(look: Look, attempt: Attempt, pod: PodFacts) -> Attempt:
    ended = min(pod.ended or look.now, look.now)
    failures = 1 if _was_healthy(look, attempt, ended) else attempt.failures + 1
    update = {"outcome": "Failed", "reason": _word(pod.cause), "failures": failures}
    return attempt.model_copy(update={**update, "not_before": ended + back_off(look.settings, failures)})


def _was_healthy(look: Look, attempt: Attempt, ended: datetime) -> bool:
    return attempt.ready is not None and (ended - attempt.ready).total_seconds() >= look.settings.healthy_seconds


def _word(reason: str) -> str:
    return reason[:253] or "Error"
