"""What an epoch's tasks read, checked before anything is committed."""

from __future__ import annotations

from joinery_runtime.engine.messages import EpochOutcome
from joinery_runtime.errors import RecordError, SourceError


def check_arrivals(outcome: EpochOutcome) -> None:
    """What was read is what the shards got: a read task that ran twice must have given the same both times."""
    read = sum(r.rows for r in outcome.read.partitions)
    joined = sum(s.rows_in for s in outcome.shards.values())
    if read != joined:
        raise SourceError(
            "A range of an input gave other records when it was read again",
            facts=f"{read} rows were read, the shards got {joined}; nothing of the epoch was committed",
            todo="Start the job again; if it stays so, records of the planned ranges have been deleted meanwhile",
        )


def refuse_dead(outcome: EpochOutcome) -> None:
    for read in outcome.read.partitions:
        if read.dead:
            raise RecordError(
                f"input {read.partition.input} has records that cannot be used",
                facts=f"the first is {read.first_dead} ({read.dead} in this epoch); nothing of the epoch was committed",
                todo="Name an output for such records under spec.deadLetter and start the job again",
            )
