"""Which driver is to run, by what the status says."""

from __future__ import annotations

from dataclasses import dataclass

from joinery_operator.names import digest_of
from joinery_operator.reconcile.look import Look
from joinery_runtime.job.crd import Attempt, Status

INCOMPATIBLE = "IncompatibleState"
"""`Ending.kind` of a driver whose job does not fit its state."""

_LIFE = 6
"""Hex digits that stand for one life of a resource in a savepoint's name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run, and what its first container does before: `migrate` (`anew`: without the state) or `restore`."""

    revision: str
    image: str
    migrate: str | None = None
    anew: bool = False
    restore: str | None = None

    def fits(self, attempt: Attempt) -> bool:
        """Whether the attempt does what is planned. What its first container did is no reason to end it later."""
        before = (self.migrate, self.anew, self.restore)
        return attempt.revision == self.revision and before in {
            (None, False, None),
            (attempt.migrate, attempt.anew, attempt.restore),
        }


def plan(look: Look, status: Status) -> Plan | None:
    """Which revision is to run now; None: none."""
    if look.suspended or status.revision is None or status.image is None:
        return None
    rollout = status.rollout
    match rollout.stage if rollout else None:
        case "Stopping":
            return None
        case "Starting" if rollout:
            return Plan(rollout.revision, rollout.image, rollout.savepoint, rollout.mode == "stateless")
        case "RollingBack" if rollout:
            return Plan(status.revision, status.image, restore=rollout.savepoint)
        case _:
            return _in_force(look, status, status.revision, status.image)


def _in_force(look: Look, status: Status, revision: str, image: str) -> Plan:
    """A job that never ran here may find state of an earlier one that does not fit. Its resource says then whether to
    leave that behind; the savepoint's name stays, so that a second attempt does not do it again."""
    attempt = status.driver
    if status.proved is not None or attempt is None or attempt.revision != revision:
        return Plan(revision, image)
    if attempt.anew:
        return Plan(revision, image, attempt.migrate, anew=True)
    if attempt.reason == INCOMPATIBLE and attempt.outcome is not None and look.wanted.mode == "stateless":
        return Plan(revision, image, savepoint_name(look, revision, attempt), anew=True)
    return Plan(revision, image)


def savepoint_name(look: Look, revision: str, attempt: Attempt | None) -> str:
    """Another one each time: a pin of an earlier try of the same revision is not what this one returns to. Neither is
    one of an earlier resource of this name, whose attempts were counted from 1 as well."""
    life = digest_of(look.metadata["uid"])[:_LIFE]
    return f"rollout-{revision}-{life}-{attempt.number + 1 if attempt else 1}"
