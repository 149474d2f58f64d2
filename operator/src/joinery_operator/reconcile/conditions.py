"""Conditions of a status, and the Events of its transitions."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_operator.decision import Event
from joinery_operator.manifests import page_url
from joinery_operator.names import PAUSE_ANNOTATION
from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.phase import JobPhase
from joinery_operator.reconcile.reasons import (
    INCOMPATIBLE,
    Aspect,
    Fault,
    as_reason,
    cut,
    find_condition,
    listed,
    sentence,
)
from joinery_operator.reconcile.rollout import way_out
from joinery_operator.reconcile.rollout_observation import is_paused
from joinery_runtime.job.crd import Condition, Status
from joinery_runtime.job.model.wording import listed as listed_words

IN_MEMORY = "StateInMemory"
ADDRESS_TAKEN = "AddressTaken"
LATE_ROWS = "LateRows"
UP_TO_DATE = "UpToDate"
PAUSED = "Paused"

_FORGETS = (
    "spec.stateStore is memory: the state is lost with each driver pod, and every start reads the inputs from the "
    "beginning; name a Postgres (stateStore.postgres) to keep it"
)
_ROLLOUTS_PAUSED = "RolloutsPaused"


def with_conditions(ctx: ReconcileContext, status: Status, job: JobPhase) -> Status:
    """Return the status with phase, conditions, and the generation to which they apply."""
    desired, rollout = ctx.desired, status.rollout
    progressing = Aspect("Progressing", "True" if job.progressing else "False", job.reason, job.message)
    if rollout is not None and not rollout.lifted and job.phase not in {"Suspended", "Finished", "Failed"}:
        message = f"{sentence(f'revision {rollout.revision}', cut(rollout.reason))}. {way_out(status)}"
        progressing = Aspect("Progressing", "True", f"Rollout{rollout.stage}", message)
    up_to_date = _up_to_date_aspect(ctx, status, job)
    page: list[Aspect] = []
    if (owner := ctx.page_owner) is not None:
        address = page_url(ctx.observed.resource, ctx.settings)
        older = f"{owner['kind']} {owner['metadata']['namespace']}/{owner['metadata']['name']}"
        message = (
            f"{address} is the page of {older}, which is older: addresses have hyphens for dots, and tell no kinds "
            "apart. This job runs without an address for browsers: give it another name, or use kubectl port-forward"
        )
        page = [Aspect("PageAddress", "False", ADDRESS_TAKEN, message)]
    degraded = job.degraded or Fault("AsExpected", "")
    aspects = (
        Aspect("Ready", "True" if job.ready else "False", job.reason, job.message),
        progressing,
        Aspect("Degraded", "True" if job.degraded else "False", degraded.reason, degraded.message),
        _state_compatible_aspect(ctx, status),
        Aspect(
            "Valid", "True" if desired.job else "False", desired.reason, listed(desired.problems or desired.warnings)
        ),
        *_kstatus_aspects(ctx, status, job, up_to_date if up_to_date.reason == _ROLLOUTS_PAUSED else progressing),
        up_to_date,
        *page,
        *_pause_aspect(ctx),
    )
    conditions = tuple(_make_condition(ctx, aspect) for aspect in aspects)
    update = {"phase": job.phase, "conditions": conditions, "observed_generation": ctx.metadata.get("generation")}
    return status.model_copy(update=update)


def with_pause(ctx: ReconcileContext, status: Status) -> Status:
    """Return the status with the condition that says why the operator leaves it so."""
    old = tuple(condition for condition in status.conditions if condition.type != PAUSED)
    added = tuple(_make_condition(ctx, aspect) for aspect in _pause_aspect(ctx))
    return status.model_copy(update={"conditions": (*old, *added)})


def with_late_rows(ctx: ReconcileContext, status: Status) -> Status:
    """Add the condition that follows from the driver's figures, which the status has to have."""
    other_conditions = tuple(condition for condition in status.conditions if condition.type != LATE_ROWS)
    # Inputs only: a message with figures would change the status all the time.
    late = [input_status.name for input_status in status.inputs if input_status.late_warning]
    aspect = Aspect(LATE_ROWS, "False", "AsExpected", "")
    if late:
        message = (
            f"many of the newest records of {listed_words(late)} are dropped as late (watermark.lateWarning): they are "
            "missing in the output. status.inputs[].lateWarning says how many, and which watermark.delay would have "
            "kept them"
        )
        aspect = Aspect(LATE_ROWS, "True", "DroppedAsLate", message)
    return status.model_copy(update={"conditions": (*other_conditions, _make_condition(ctx, aspect))})


def events(old: Status, new: Status) -> Iterator[Event]:
    """Yield what has changed, for people who watch the job."""
    refused = new.refused
    if refused is not None and refused != old.refused:
        yield _make_event("Warning", refused.reason, f"revision {refused.revision} was rejected: {refused.message}")
    if new.rollout and (old.rollout is None or old.rollout.stage != new.rollout.stage):
        message = sentence(f"revision {new.rollout.revision}, {new.rollout.image}", new.rollout.reason)
        yield _make_event("Normal", f"Rollout{new.rollout.stage}", message)
    if old.revision is not None and new.revision != old.revision:
        yield _make_event("Normal", "RolledOut", f"revision {new.revision} is now current, {new.image}")
    if _reason_of(new, "StateCompatible") == IN_MEMORY != _reason_of(old, "StateCompatible"):
        yield _make_event("Warning", IN_MEMORY, _FORGETS)
    page_address = _condition_of(new, "PageAddress")
    if page_address is not None and _condition_of(old, "PageAddress") is None:
        yield _make_event("Warning", page_address.reason, page_address.message)
    paused = _condition_of(new, PAUSED)
    if paused is not None and _reason_of(old, PAUSED) != paused.reason:
        yield _make_event("Normal", "Paused", paused.message)
    if paused is None and _condition_of(old, PAUSED) is not None:
        yield _make_event("Normal", "Resumed", f"the annotation {PAUSE_ANNOTATION} is gone: the operator works again")
    late = _condition_of(new, LATE_ROWS)
    if late is not None and late.status == "True" and _reason_of(old, LATE_ROWS) != late.reason:
        yield _make_event("Warning", late.reason, late.message)
    if new.scaling is not None and new.scaling != old.scaling:
        yield _make_event("Normal", "Rescaled", new.scaling.reason)
    valid, was_valid = _condition_of(new, "Valid"), _condition_of(old, "Valid")
    warned = was_valid.message if was_valid is not None else ""
    if valid is not None and valid.status == "True" and valid.message not in {"", warned}:
        yield _make_event("Warning", "DurationWithoutUnit", valid.message)
    before, after = _condition_of(old, "Ready"), _condition_of(new, "Ready")
    failed = new.driver is not None and new.driver.outcome in {"Failed", "Fatal"} and new.driver != old.driver
    if after is not None and (before is None or before.reason != after.reason or failed):
        degraded = _condition_of(new, "Degraded")
        bad = degraded is not None and degraded.status == "True" and degraded.reason == after.reason
        yield _make_event("Warning" if bad else "Normal", after.reason, after.message)


def _kstatus_aspects(
    ctx: ReconcileContext, status: Status, job: JobPhase, progressing: Aspect
) -> tuple[Aspect, Aspect]:
    """Return the conditions for tools that do not know Joinery (kstatus: Flux, kubectl plugins). Stalled: only a person
    can help. A job that runs while another revision is checked is not yet where its resource wants it."""
    stalled = job.phase == "Failed" or ctx.desired.job is None or status.refused is not None
    reason, message = (job.degraded.reason, job.degraded.message) if job.degraded else (job.reason, job.message)
    going = (progressing.status == "True" or progressing.reason == _ROLLOUTS_PAUSED) and not stalled
    return (
        Aspect("Reconciling", "True" if going else "False", progressing.reason, progressing.message if going else ""),
        Aspect("Stalled", "True" if stalled else "False", reason, message if stalled else ""),
    )


def _up_to_date_aspect(ctx: ReconcileContext, status: Status, job: JobPhase) -> Aspect:
    """Return whether what the resource asks for has been rolled out, for whoever waits for it (a pipeline). Whether it
    still runs is another matter: Ready."""
    desired, rollout, refused = ctx.desired, status.rollout, status.refused
    if desired.job is None:
        return Aspect(UP_TO_DATE, "False", desired.reason, listed(desired.problems))
    if refused is not None:
        return Aspect(
            UP_TO_DATE, "False", refused.reason, sentence(f"revision {refused.revision} was rejected", refused.message)
        )
    target = f"revision {desired.job.revision}"
    if rollout is not None and rollout.revision == desired.job.revision and rollout.lifted:
        message = f"{target} runs; until its first commit there is a way back to {status.revision}"
        return Aspect(UP_TO_DATE, "True", "AwaitsFirstCommit", message)
    if rollout is not None:
        message = sentence(f"revision {rollout.revision}", cut(rollout.reason))
        return Aspect(UP_TO_DATE, "False", f"Rollout{rollout.stage}", message)
    if desired.job.revision != status.revision:
        if ctx.suspended:
            return Aspect(UP_TO_DATE, "False", "Suspended", f"{target} is rolled out once the job resumes")
        if is_paused(ctx, status):
            return Aspect(UP_TO_DATE, "False", _ROLLOUTS_PAUSED, f"{target} waits. {ctx.unpause_text}")
        return Aspect(UP_TO_DATE, "False", "RolloutPending", f"{target} is about to be rolled out")
    if status.proved is None and not ctx.suspended:
        return Aspect(UP_TO_DATE, "False", job.reason, f"{target} was never ready: {job.message}")
    return Aspect(UP_TO_DATE, "True", "RolledOut", f"{target} is current")


def _pause_aspect(ctx: ReconcileContext) -> Iterator[Aspect]:
    """Only for a job that its author has paused."""
    if ctx.pause_scope == "rollouts":
        message = "no rollout begins; the current revision keeps running, and is restarted if it fails"
        yield Aspect(PAUSED, "True", "Rollouts", f"{message}. {ctx.unpause_text}")
    elif ctx.pause_scope == "everything":
        message = (
            "the operator leaves the job alone: it starts, repairs and deletes none of its objects, whatever becomes "
            "of them, and sees no edit. Only the job's deletion is carried out"
        )
        yield Aspect(PAUSED, "True", "Everything", f"{message}. {ctx.unpause_text}")


def _state_compatible_aspect(ctx: ReconcileContext, status: Status) -> Aspect:
    refused, attempt = status.refused, status.driver
    if refused is not None and refused.reason in {INCOMPATIBLE, "MigrationFailed"}:
        return Aspect("StateCompatible", "False", refused.reason, refused.message)
    if attempt is not None and attempt.outcome == "Fatal" and attempt.reason == INCOMPATIBLE:
        return Aspect("StateCompatible", "False", INCOMPATIBLE, status.last_error or "")
    revision = ctx.revision(status.revision, status.image)
    if revision is not None and revision.job.spec.state_store.kind == "memory":
        return Aspect("StateCompatible", "True" if status.proved else "Unknown", IN_MEMORY, _FORGETS)
    if status.proved is not None:
        return Aspect("StateCompatible", "True", "InUse", "the current revision runs on the state")
    return Aspect("StateCompatible", "Unknown", "NotStarted", "no driver of this revision was ready yet")


def _make_condition(ctx: ReconcileContext, new: Aspect) -> Condition:
    return new.as_condition(ctx.status.conditions, ctx.metadata.get("generation"), ctx.now)


def _condition_of(status: Status, type_: str) -> Condition | None:
    return find_condition(status.conditions, type_)


def _reason_of(status: Status, type_: str) -> str | None:
    condition = _condition_of(status, type_)
    return condition.reason if condition is not None else None


def _make_event(kind: str, reason: str, message: str) -> Event:
    return Event("Warning" if kind == "Warning" else "Normal", as_reason(reason), cut(message))
