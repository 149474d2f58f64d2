"""Conditions of a status, and the Events of its transitions."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_operator.decision import Event
from joinery_operator.reconcile.look import Look
from joinery_operator.reconcile.plan import INCOMPATIBLE
from joinery_operator.reconcile.situation import Situation
from joinery_operator.reconcile.text import cut, listed, sentence
from joinery_runtime.job.crd import Condition, Status

IN_MEMORY = "StateInMemory"

_MESSAGE = 4096
_FORGETS = (
    "spec.stateStore is memory: the state is lost with each driver pod, and every start reads the inputs anew; name a "
    "Postgres (stateStore.postgres) to keep it"
)


def with_conditions(look: Look, status: Status, found: Situation) -> Status:
    """The status with phase, conditions and the generation that they are about."""
    conditions = tuple(
        _condition(look, type_, value, reason, message)
        for type_, value, reason, message in (
            _ready(found),
            _progressing(status, found),
            _degraded(found),
            _state_compatible(look, status),
            _valid(look),
        )
    )
    update = {"phase": found.phase, "conditions": conditions, "observed_generation": look.metadata.get("generation")}
    return status.model_copy(update=update)


def events(old: Status, new: Status) -> Iterator[Event]:
    """What has changed, for people who watch."""
    refused = new.refused
    if refused is not None and refused != old.refused:
        yield _event("Warning", refused.reason, f"revision {refused.revision} was refused: {refused.message}")
    if new.rollout and (old.rollout is None or old.rollout.stage != new.rollout.stage):
        message = sentence(f"revision {new.rollout.revision}, {new.rollout.image}", new.rollout.reason)
        yield _event("Normal", f"Rollout{new.rollout.stage}", message)
    if old.revision is not None and new.revision != old.revision:
        yield _event("Normal", "RolledOut", f"revision {new.revision} is in force, {new.image}")
    if _reason_of(new, "StateCompatible") == IN_MEMORY != _reason_of(old, "StateCompatible"):
        yield _event("Warning", IN_MEMORY, _FORGETS)
    before, after = _of(old, "Ready"), _of(new, "Ready")
    failed = new.driver is not None and new.driver.outcome in {"Failed", "Fatal"} and new.driver != old.driver
    if after is not None and (before is None or before.reason != after.reason or failed):
        degraded = _of(new, "Degraded")
        bad = degraded is not None and degraded.status == "True" and degraded.reason == after.reason
        yield _event("Warning" if bad else "Normal", after.reason, after.message)


def _ready(found: Situation) -> tuple[str, str, str, str]:
    return "Ready", "True" if found.ready else "False", found.reason, found.message


def _progressing(status: Status, found: Situation) -> tuple[str, str, str, str]:
    rollout = status.rollout
    if rollout is not None and found.phase not in {"Suspended", "Finished", "Failed"}:
        message = sentence(f"revision {rollout.revision}", rollout.reason)
        return "Progressing", "True", f"Rollout{rollout.stage}", message
    return "Progressing", "True" if found.progressing else "False", found.reason, found.message


def _degraded(found: Situation) -> tuple[str, str, str, str]:
    if found.degraded is None:
        return "Degraded", "False", "AsExpected", ""
    return "Degraded", "True", found.degraded.reason, found.degraded.message


def _state_compatible(look: Look, status: Status) -> tuple[str, str, str, str]:
    refused, attempt = status.refused, status.driver
    if refused is not None and refused.reason in {INCOMPATIBLE, "MigrationFailed"}:
        return "StateCompatible", "False", refused.reason, refused.message
    if attempt is not None and attempt.outcome == "Fatal" and attempt.reason == INCOMPATIBLE:
        return "StateCompatible", "False", INCOMPATIBLE, status.last_error or ""
    if _in_memory(look, status):
        return "StateCompatible", "True" if status.proved else "Unknown", IN_MEMORY, _FORGETS
    if status.proved is not None:
        return "StateCompatible", "True", "InUse", "the revision in force runs on the state"
    return "StateCompatible", "Unknown", "NotStarted", "no driver of this revision was ready yet"


def _in_memory(look: Look, status: Status) -> bool:
    job = look.job(status.revision, status.image) if status.revision and status.image else None
    return job is not None and job.model.spec.state_store.kind == "memory"


def _valid(look: Look) -> tuple[str, str, str, str]:
    asked = look.wanted
    return "Valid", "True" if asked.job else "False", asked.reason, listed(asked.problems)


def _condition(look: Look, type_: str, value: str, reason: str, message: str) -> Condition:
    old = _of(look.status, type_)
    since = old.last_transition_time if old is not None and old.status == value else look.now
    return Condition.model_validate(
        {
            "type": type_,
            "status": value,
            "observed_generation": look.metadata.get("generation"),
            "last_transition_time": since,
            "reason": _reason(reason),
            "message": cut(message, _MESSAGE),
        }
    )


def _reason(text: str) -> str:
    """A word as Kubernetes allows it: reasons come from pods and errors, too."""
    word = "".join(each for each in text if each.isascii() and (each.isalnum() or each == "_"))[:128].lstrip(
        "0123456789_"
    )
    return word or "Unknown"


def _of(status: Status, type_: str) -> Condition | None:
    return next((each for each in status.conditions if each.type == type_), None)


def _reason_of(status: Status, type_: str) -> str | None:
    found = _of(status, type_)
    return found.reason if found is not None else None


def _event(kind: str, reason: str, message: str) -> Event:
    return Event("Warning" if kind == "Warning" else "Normal", _reason(reason), cut(message))
