"""A condition of a status before it has its times, and the reasons and messages of conditions. Messages are bounded,
because what others report may have any length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from joinery_runtime.job.crd import Condition

# Reasons of a pod that does not run.
IMAGE_PULL = "ImagePullFailed"
NOT_READY = "NotReady"
CREATE_REFUSED = "CreateRefused"
DELETE_REFUSED = "DeleteRefused"
PATCH_REFUSED = "PatchRefused"
UNSCHEDULABLE = "Unschedulable"
NOT_CREATED = "ContainerNotCreated"
NODE_UNREACHABLE = "NodeUnreachable"

# Reasons of a revision whose manifests cannot be built.
REVISION_LOST = "RevisionLost"
INCOMPLETE = "Incomplete"
NOT_ALLOWED = "NotAllowed"

# The reason of a deletion that would delete another state than that of the job.
STATE_ELSEWHERE = "StateElsewhere"

# Values of `Ending.kind` from the runtime's commands and drivers.
INCOMPATIBLE: Final = "IncompatibleState"
"""The job does not fit its state."""
STATE_TAKEN: Final = "StateTaken"
"""The state belongs to another resource."""
COMMITTED_SINCE = "CommittedSince"
"""A restore is rejected because an epoch was committed after the savepoint."""

MESSAGE = 1024
"""The most characters of one message."""
_PROBLEMS = 16
_LONGEST_MESSAGE = 4096  # of a condition, which may list several


@dataclass(frozen=True, slots=True)
class Fault:
    """What keeps a pod from running, in Kubernetes' own words."""

    reason: str
    message: str


def cut(text: str, limit: int = MESSAGE) -> str:
    """Cut a text to at most `limit` characters. Leaves out the middle, because the ends of an error say most."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head = (limit - 5) // 2
    return f"{text[:head]} ... {text[-(limit - 5 - head) :]}"


def sentence(*parts: str) -> str:
    """Return the parts that are not empty, joined by ": "."""
    return ": ".join(part for part in parts if part)


def listed(problems: Sequence[str]) -> str:
    """One problem per line, and how many more there are."""
    shown = [cut(problem, MESSAGE // 4) for problem in problems[:_PROBLEMS]]
    more = len(problems) - len(shown)
    return "\n".join([*shown, f"and {more} more"] if more else shown)


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
                "message": cut(self.message, _LONGEST_MESSAGE),
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
