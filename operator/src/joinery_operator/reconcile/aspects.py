"""One condition of a status, before it has its times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from joinery_operator.reconcile.reasons import cut
from joinery_runtime.job.crd import Condition

_MESSAGE = 4096


@dataclass(frozen=True, slots=True)
class Aspect:
    """A condition without its times."""

    type: str
    status: str
    reason: str
    message: str

    def as_condition(self, before: Iterable[Condition], generation: int | None, now: datetime) -> Condition:
        """Return the condition, whose time changes only with its status. `before` are the conditions so far."""
        old = find_condition(before, self.type)
        since = old.last_transition_time if old is not None and old.status == self.status else now
        return Condition.model_validate(
            {
                "type": self.type,
                "status": self.status,
                "observed_generation": generation,
                "last_transition_time": since,
                "reason": as_reason(self.reason),
                "message": cut(self.message, _MESSAGE),
            }
        )


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)


def as_reason(text: str) -> str:
    """Return the text in a form that Kubernetes allows as a reason: some reasons come from pods and errors."""
    word = "".join(
        character for character in text if character.isascii() and (character.isalnum() or character == "_")
    )[:128].lstrip("0123456789_")
    return word or "Unknown"
