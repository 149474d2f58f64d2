"""The commit protocol as pure decisions: what was observed in, a decision out. Nothing here touches a store or a clock.

    acquire -> recover -> [plan] -> run (stage, output) -> commit -> publish -> ...

* The record that a driver finds decides its next action (`next_action`): a pending plan is replayed unchanged.
* One attempt per shard counts: `choose_attempts` takes exactly one summary of every planned shard.
* The shards must get exactly what was read (`check_arrivals`), and a bad record needs somewhere to go (`reject_dead`).
* A commit whose outcome is unknown is resolved by looking (`resolve_commit`), never by guessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from joinery_runtime.engine.messages import EpochOutcome
from joinery_runtime.errors import AggregateError, RecordError, SourceError, StateError
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state.store import JobRecord


class Action(Enum):
    REPLAY = "replay the pending plan"
    PLAN = "make a plan"


def next_action(record: JobRecord) -> Action:
    """Return what a driver that holds this record does next: it replays a plan for the next epoch, and ignores an older
    one."""
    if record.plan is not None and record.plan["epoch"] == record.epoch + 1:
        return Action.REPLAY
    return Action.PLAN


class CommitResult(Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    FENCED = "fenced"


def resolve_commit(observed: JobRecord | None, generation: int, epoch: int) -> CommitResult:
    """Decide what became of a commit of `epoch` by `generation` that got no answer.

    A newer generation means FENCED, whether or not the epoch was committed: its driver has recovered from what the
    store holds.
    """
    if observed is None or observed.generation != generation:
        return CommitResult.FENCED
    return CommitResult.COMMITTED if observed.epoch >= epoch else CommitResult.NOT_COMMITTED


Summary = TypeVar("Summary")
Task = tuple[int, int]  # a step and a shard


def choose_attempts(summaries: Iterable[tuple[Task, Summary]], steps: int, shards: int) -> Mapping[Task, Summary]:
    """Return one summary per step and shard. Spark returns one result per task; anything else breaks an invariant and
    must not be committed."""
    chosen: dict[Task, Summary] = {}
    for task, summary in summaries:
        if task in chosen:
            raise StateError(
                f"two results for {_task_name(task)} of one epoch", todo="Report this: nothing was committed"
            )
        chosen[task] = summary
    missing = sorted({(step, shard) for step in range(steps) for shard in range(shards)} - set(chosen))
    if missing:
        facts = ", ".join(map(_task_name, missing))
        raise StateError(f"no result for {facts}", todo="Report this: nothing was committed")
    return chosen


def _task_name(task: Task) -> str:
    return f"step {task[0] + 1}, shard {task[1]}"


def check_arrivals(outcome: EpochOutcome) -> None:
    """Raise SourceError unless the shards got exactly what was read: a read task that ran twice must have given the
    same rows both times. The same holds for a step's task whose rows the next step has taken."""
    read = sum(r.rows for r in outcome.read.partitions)
    joined = sum(s.rows_in for s in outcome.shards.values())
    if read != joined:
        raise SourceError(
            "A range of an input had different records when it was read again",
            facts=f"{counted(read, 'row', 'were')} read, the shards got {joined}; nothing of the epoch was committed",
            todo="Start the job again. If the error stays, records of the planned ranges were deleted",
        )
    handed = sum(s.rows_handed for s in outcome.shards.values())
    received = sum(s.rows_taken for s in outcome.shards.values())
    if handed != received:
        raise StateError(
            "A step of an epoch produced different rows when it was run again",
            facts=f"{counted(handed, 'row', 'were')} handed on, the next step got {received}; nothing of the epoch was "
            "committed",
            todo="Start the job again: it replays the epoch",
        )


def reject_dead(outcome: EpochOutcome) -> None:
    for read in outcome.read.partitions:
        if read.dead:
            advice = (
                f'If such event times are right, give input {read.partition.input} watermark: {{maxFuture: "off"}}. '
                if read.dropped.get("future")
                else ""
            )
            raise _unusable_error(read.partition.input, read.first_dead, read.dead, advice)
    for summary in outcome.shards.values():
        if summary.first_unfit:
            raise AggregateError(
                f"A value of the aggregate in step {summary.step + 1} does not fit",
                facts=f"{summary.first_unfit}; nothing of the epoch was committed",
                todo="Name an output for such rows under spec.deadLetter, or raise `limit` where that is the reason. "
                "Then start the job again. See docs/semantics.md#s7",
            )
        for name, count in summary.dead.items():
            raise _unusable_error(name, summary.first_dead, count)


def _unusable_error(name: str, first: str, count: int, advice: str = "") -> RecordError:
    return RecordError(
        f"input {name} has records that cannot be used",
        facts=f"the first is {first} ({count} in this epoch); nothing of the epoch was committed",
        todo=f"{advice}If the records are as they should be, correct the input's format or schema; else name an output "
        "for them under spec.deadLetter. Then start the job again",
    )
