"""Another revision on its way: checked, put in the old one's place, and taken back when it does not start.

A stage ends by facts alone, so that an operator that died in it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from joinery_operator.reconcile.facts import CREATE_REFUSED, PodFacts, Trouble
from joinery_operator.reconcile.job import Job
from joinery_operator.reconcile.look import Look
from joinery_operator.reconcile.plan import INCOMPATIBLE, savepoint_name
from joinery_operator.reconcile.text import cut, sentence
from joinery_runtime.job.crd import Attempt, Refusal, Rollout, Status

COMMITTED_SINCE = "CommittedSince"
"""`Ending.kind` of a restore that is refused because an epoch was committed after the savepoint."""


def rolled(look: Look, status: Status) -> Status:
    """The status with the rollout one step further, if it can go one."""
    rollout = status.rollout
    if rollout is None:
        return _begun(look, status)
    stages: dict[str, Callable[[Look, Status, Rollout], Status]] = {
        "Checking": _checking,
        "Stopping": _stopping,
        "Starting": _starting,
        "RollingBack": _rolling_back,
    }
    return stages[rollout.stage](look, status, rollout)


def proved(look: Look, status: Status) -> Status:
    """The status with the time at which the revision in force was first ready."""
    attempt = status.driver
    if status.proved is not None or attempt is None or attempt.revision != status.revision:
        return status
    if attempt.ready is None and attempt.outcome != "Finished" and not _committed(look, attempt):
        return status
    return status.model_copy(update={"proved": look.now})


def deadline(look: Look, status: Status) -> datetime | None:
    """When time alone ends the stage."""
    rollout = status.rollout
    if rollout is None or rollout.stage not in {"Checking", "Starting"} or look.suspended:
        return None
    return rollout.since + timedelta(seconds=look.settings.deadline_seconds)


def refuses(status: Status, job: Job, mode: str) -> bool:
    refused = status.refused
    return refused is not None and (refused.revision, refused.mode) == (job.revision, mode)


def check_due(look: Look, pod: PodFacts) -> bool:
    """Whether a check pod that told nothing is to be made anew."""
    return pod.ended is not None and pod.check is None and look.over(pod.ended, look.settings.backoff_first_seconds)


def _begun(look: Look, status: Status) -> Status:
    job = look.wanted.job
    if job is None or job.revision == status.revision:
        return status
    kept, given_up = _has_kept_state(look, status), not job.durable and look.wanted.mode == "stateless"
    if not kept or given_up:
        # Nothing that could be lost or returned to: the first start, or one that never was ready.
        return status.model_copy(update={"revision": job.revision, "image": job.image, "proved": None, "refused": None})
    if look.suspended or refuses(status, job, look.wanted.mode):
        return status
    rollout = _checking_of(look, job)
    return _at(status, rollout) if job.durable else _refused(status, rollout, INCOMPATIBLE, _not_kept(job))


def _has_kept_state(look: Look, status: Status) -> bool:
    """Whether the revision in force was ready, with state that outlives a pod. In doubt it has some."""
    if status.revision is None or status.image is None or status.proved is None:
        return False
    old = look.job(status.revision, status.image)
    return old is None or old.durable


def _not_kept(job: Job) -> str:
    return (
        f"the job's state is in Postgres, and spec.stateStore.{job.model.spec.state_store.kind} keeps none: all of it "
        "would be left behind. Name the Postgres again (stateStore.postgres), or set upgrade.mode: stateless to start "
        "anew without the state"
    )


def _checking_of(look: Look, job: Job) -> Rollout:
    return Rollout(revision=job.revision, image=job.image, mode=look.wanted.mode, stage="Checking", since=look.now)


def _another_is_wanted(look: Look, rollout: Rollout) -> bool:
    """A resource that is no valid job asks for nothing else."""
    job = look.wanted.job
    return job is not None and (job.revision, look.wanted.mode) != (rollout.revision, rollout.mode)


def _anew(look: Look, status: Status) -> Status:
    """Nothing of the rollout has happened to the state: what is asked for now is another matter."""
    return _begun(look, _at(status, None))


def _checking(look: Look, status: Status, rollout: Rollout) -> Status:
    if look.suspended or _another_is_wanted(look, rollout):
        return _anew(look, status)
    pod = look.check(rollout)
    if pod is not None and pod.check is not None:
        if pod.check.fits and pod.check.epoch is None and rollout.mode == "stateful":
            return _refused(status, rollout, INCOMPATIBLE, _no_state(look, rollout))
        if pod.check.fits or rollout.mode == "stateless":
            warnings = cut("; ".join(pod.check.warnings))
            return _at(status, _next(look, rollout, "Stopping", reason=warnings))
        return _refused(status, rollout, "IncompatibleState", "; ".join(pod.check.refused))
    why = _check_trouble(pod) if pod is not None else look.observed.refused
    if pod is not None and pod.ended is not None and pod.ending is not None and not pod.ending.retry:
        reason = INCOMPATIBLE if pod.ending.kind == INCOMPATIBLE else "CheckFailed"
        return _refused(status, rollout, reason, why)
    why = why or rollout.reason
    if look.over(rollout.since, look.settings.deadline_seconds):
        seconds = f"{look.settings.deadline_seconds:g} s"
        return _refused(status, rollout, "CheckFailed", sentence(f"no result within {seconds}", why))
    return _at(status, rollout.model_copy(update={"reason": why}))


def _no_state(look: Look, rollout: Rollout) -> str:
    """The revision in force has state somewhere else: the new one would begin with none."""
    job = look.job(rollout.revision, rollout.image)
    store = job.model.spec.state_store.postgres if job else None
    where = "where spec.stateStore points to"
    if store is not None:
        secret = store.dsn_secret_ref
        dsn = f"dsnSecretRef {secret.name}/{secret.key}" if secret else "spec.stateStore.postgres.dsn"
        where = f"in schema {store.schema_name} at {dsn}"
    return (
        f"there is no state of this job {where}; move it with `joinery state move`, or set upgrade.mode: stateless to "
        "start anew without the state"
    )


def _check_trouble(pod: PodFacts) -> str:
    if pod.ended is not None:
        return sentence("the check pod failed", pod.failure)
    return sentence(pod.trouble.reason, pod.trouble.message) if pod.trouble else ""


def _stopping(look: Look, status: Status, rollout: Rollout) -> Status:
    if look.suspended or _another_is_wanted(look, rollout):
        return _anew(look, status)
    attempt = status.driver
    if (attempt is not None and attempt.outcome is None) or not look.all_quiet():
        return status
    return _at(status, _next(look, rollout, "Starting", savepoint=savepoint_name(look, rollout.revision, attempt)))


def _starting(look: Look, status: Status, rollout: Rollout) -> Status:
    attempt = status.driver
    current = attempt if attempt is not None and attempt.migrate == rollout.savepoint else None
    if current is not None and (current.outcome == "Finished" or _committed(look, current)):
        return _done(look, status, rollout)
    if _another_is_wanted(look, rollout):
        if current is None:
            return _anew(look, status)
        return _at(status, _next(look, rollout, "RollingBack", reason="the resource asks for another job now"))
    if look.suspended:
        return status
    if current is not None and current.outcome == "Stopped":
        # It was suspended: its time starts again.
        return _at(status, rollout.model_copy(update={"since": look.now}))
    if current is not None and current.outcome == "Fatal":
        return _taken_back(look, status, rollout, _fatal_reason(look, current), status.last_error or "")
    if not look.over(rollout.since, look.settings.deadline_seconds):
        return status
    if current is not None and current.ready is not None and current.outcome is None:
        return _done(look, status, rollout)
    return _taken_back(look, status, rollout, "DeadlineExceeded", _not_ready(look, status, current))


def _rolling_back(look: Look, status: Status, rollout: Rollout) -> Status:
    attempt = status.driver
    if attempt is None or attempt.restore != rollout.savepoint:
        return status
    pod = look.drivers.get(attempt.number)
    if attempt.outcome == "Fatal" and attempt.reason == COMMITTED_SINCE:
        # It had committed after all, unseen: there is no way back, and no need of one.
        return _done(look, status, rollout)
    if attempt.outcome == "Finished" or attempt.ready is not None or (pod is not None and pod.initialized):
        return _at(status, None)
    return status


def _committed(look: Look, attempt: Attempt) -> bool:
    said = look.driver_status(attempt)
    return said is not None and said.committed > 0


def _fatal_reason(look: Look, attempt: Attempt) -> str:
    pod = look.drivers.get(attempt.number)
    if attempt.reason == INCOMPATIBLE:
        return INCOMPATIBLE
    return "MigrationFailed" if pod is not None and not pod.initialized else "StartFailed"


def _not_ready(look: Look, status: Status, attempt: Attempt | None) -> str:
    pod = look.drivers.get(attempt.number) if attempt else None
    trouble = pod.trouble if pod else _refused_pod(look)
    seconds = f"{look.settings.deadline_seconds:g} s"
    if trouble is not None:
        return sentence(f"not ready within {seconds}", trouble.reason, trouble.message)
    failed = attempt is not None and attempt.failures > 0
    return sentence(f"not ready within {seconds}", (status.last_error or "") if failed else "")


def _refused_pod(look: Look) -> Trouble | None:
    return Trouble(CREATE_REFUSED, look.observed.refused) if look.observed.refused else None


def _next(look: Look, rollout: Rollout, stage: str, **more: object) -> Rollout:
    return rollout.model_copy(update={"stage": stage, "since": look.now, "reason": "", **more})


def _at(status: Status, rollout: Rollout | None) -> Status:
    return status.model_copy(update={"rollout": rollout})


def _done(look: Look, status: Status, rollout: Rollout) -> Status:
    return status.model_copy(
        update={
            "revision": rollout.revision,
            "image": rollout.image,
            "proved": look.now,
            "rollout": None,
            "refused": None,
        }
    )


def _refusal(rollout: Rollout, reason: str, message: str) -> Refusal:
    return Refusal.model_validate(
        {"revision": rollout.revision, "mode": rollout.mode, "reason": reason, "message": cut(message or reason)}
    )


def _refused(status: Status, rollout: Rollout, reason: str, message: str) -> Status:
    refusal = _refusal(rollout, reason, message)
    return status.model_copy(update={"rollout": None, "refused": refusal})


def _taken_back(look: Look, status: Status, rollout: Rollout, reason: str, message: str) -> Status:
    """The new driver failed for good, or for too long."""
    refusal = _refusal(rollout, reason, message)
    attempt = status.driver
    if attempt is None or attempt.migrate != rollout.savepoint:
        return status.model_copy(update={"rollout": None, "refused": refusal})
    back = _next(look, rollout, "RollingBack", reason=sentence(reason, cut(message, 512)))
    return status.model_copy(update={"rollout": back, "refused": refusal})
