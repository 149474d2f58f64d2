"""What an epoch's tasks read and handed on, checked before anything is committed."""

from __future__ import annotations

from joinery_runtime.engine.messages import EpochOutcome
from joinery_runtime.errors import RecordError, SourceError, StateError


def check_arrivals(outcome: EpochOutcome) -> None:
    """What was read is what the shards got: a read task that ran twice must have given the same both times. So must a
    step's task, of which the next step has taken the rows."""
    read = sum(r.rows for r in outcome.read.partitions)
    joined = sum(s.rows_in for s in outcome.shards.values())
    if read != joined:
        raise SourceError(
            "A range of an input gave other records when it was read again",
            facts=f"{read} rows were read, the shards got {joined}; nothing of the epoch was committed",
            todo="Start the job again; if it stays so, records of the planned ranges have been deleted meanwhile",
        )
    handed = sum(s.rows_handed for s in outcome.shards.values())
    taken = sum(s.rows_taken for s in outcome.shards.values())
    if handed != taken:
        raise StateError(
            "A step of an epoch made other rows when it was run again",
            facts=f"{handed} rows were handed on, the next step got {taken}; nothing of the epoch was committed",
            todo="Start the job again: it replays the epoch",
        )


def refuse_dead(outcome: EpochOutcome) -> None:
    for read in outcome.read.partitions:
        if read.dead:
            raise RecordError(
                f"input {read.partition.input} has records that cannot be used",
                facts=f"the first is {read.first_dead} ({read.dead} in this epoch); nothing of the epoch was committed",
                todo="Name an output for such records under spec.deadLetter and start the job again",
            )
