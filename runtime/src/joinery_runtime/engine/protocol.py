"""The commit protocol as pure decisions: observed facts in, a decision out. Nothing here touches a store or a clock.

    acquire -> recover -> [plan] -> run (stage, output) -> commit -> publish -> ...

* What a driver finds decides what it does next (`next_action`): a pending plan is replayed as it stands.
* One attempt per shard counts: `choose_attempts` takes exactly one summary of every shard that was planned.
* A commit whose outcome is unknown is resolved by looking (`resolve_commit`), never by guessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from joinery_runtime.errors import StateError
from joinery_runtime.state.store import JobRecord


class Action(Enum):
    REPLAY = "replay the pending plan"
    PLAN = "make a plan"


def next_action(record: JobRecord) -> Action:
    """What a driver that holds this record does: a plan for the next epoch is replayed, an older one is history."""
    if record.plan is not None and record.plan["epoch"] == record.epoch + 1:
        return Action.REPLAY
    return Action.PLAN


class Outcome(Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    FENCED = "fenced"


def resolve_commit(observed: JobRecord | None, generation: int, epoch: int) -> Outcome:
    """What became of a commit of `epoch` by `generation` that ended without an answer.

    A newer generation means fenced, whether the epoch went in or not: its driver has recovered from what is there.
    """
    if observed is None or observed.generation != generation:
        return Outcome.FENCED
    return Outcome.COMMITTED if observed.epoch >= epoch else Outcome.NOT_COMMITTED


Summary = TypeVar("Summary")


def choose_attempts(summaries: Iterable[tuple[int, Summary]], expected: Iterable[int]) -> Mapping[int, Summary]:
    """One summary per expected shard. Spark returns one result per partition; anything else is a broken invariant
    that must not be committed."""
    chosen: dict[int, Summary] = {}
    for shard, summary in summaries:
        if shard in chosen:
            raise StateError(f"two results for shard {shard} of one epoch", todo="Report this: nothing was committed")
        chosen[shard] = summary
    missing = sorted(set(expected) - set(chosen))
    if missing:
        raise StateError(f"no result for shards {missing}", todo="Report this: nothing was committed")
    return chosen
