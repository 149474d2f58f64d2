"""Models of `status`: what the operator writes of a job, bounded. Every field may be missing: a job reports what it
has."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from joinery_runtime.job.crd.shapes import list_map
from joinery_runtime.job.model.base import Model

Phase = Literal[
    "Pending",
    "Starting",
    "Running",
    "Migrating",
    "RollingBack",
    "Stopping",
    "Suspended",
    "Finished",
    "Failed",
    "Deleting",
]
Stage = Literal["Checking", "Stopping", "Starting", "RollingBack"]
Outcome = Literal["Finished", "Failed", "Fatal", "Interrupted", "Stopped"]
Mode = Literal["stateful", "stateless"]
Count = Annotated[int, Field(ge=0)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Words = Annotated[str, StringConstraints(max_length=4096)]
# A Go duration as `format_duration` writes it: rounded for people, so text.
DurationText = Annotated[str, StringConstraints(max_length=64)]


class Condition(Model):
    """As metav1.Condition: one aspect of the job's state, and since when."""

    type: Annotated[str, StringConstraints(max_length=316, pattern=r"^[A-Za-z]([A-Za-z0-9]*[A-Za-z0-9])?$")]
    status: Literal["True", "False", "Unknown"]
    observed_generation: Count | None = None
    last_transition_time: datetime
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    message: Annotated[str, StringConstraints(max_length=32_768)]


class InputStatus(Model):
    """One input as of the last committed epoch."""

    name: Word
    lag: Annotated[Count | None, Field(description="Records that are there and not read yet.")] = None
    watermark: Annotated[datetime | None, Field(description="Missing while nothing was read.")] = None
    watermark_delay: Annotated[
        DurationText | None, Field(description="How far the watermark is behind the clock, as 12s.")
    ] = None
    rows_per_second: Count | None = None
    idle: bool | None = None
    ended: bool | None = None
    late: Annotated[Count | None, Field(description="Rows that came too late, since the job's state began.")] = None
    late_by: Annotated[
        DurationText | None,
        Field(
            description="How far behind the watermark the latest of them was: so much more watermark.delay keeps all."
        ),
    ] = None
    after_eviction: Annotated[
        Count | None, Field(description="Rows that came when partners of them may have left the state already.")
    ] = None


class HotKey(Model):
    """A join key with many rows in the state."""

    key: Words
    rows: Count


class SavepointStatus(Model):
    """A pinned epoch that the job can be returned to."""

    name: Word
    epoch: Count
    time: datetime


class DriverAttempt(Model):
    """The driver pod: written before it is created, so that it is created once."""

    number: Count
    revision: Word
    image: Words
    created: datetime
    pod_uid: Annotated[Word | None, Field(description="The pod's uid, once it was seen.")] = None
    ready: Annotated[
        datetime | None, Field(description="Since when; the back-off begins anew after a healthy time.")
    ] = None
    outcome: Annotated[
        Outcome | None, Field(description="How it ended: Fatal would only fail again, Interrupted is no failure.")
    ] = None
    reason: Annotated[Word | None, Field(description="Why it ended, as IncompatibleState or OOMKilled.")] = None
    failures: Annotated[Count, Field(description="Attempts in a row that failed.")] = 0
    not_before: Annotated[datetime | None, Field(description="The next attempt waits until then.")] = None
    restore: Annotated[Word | None, Field(description="The savepoint that it began with, when it rolled back.")] = None
    migrate: Annotated[Word | None, Field(description="The savepoint that it pinned before it migrated.")] = None
    anew: Annotated[bool, Field(description="Whether it left the old state behind.")] = False


class Rollout(Model):
    """Another revision on its way."""

    revision: Word
    image: Words
    mode: Mode = "stateful"
    stage: Stage
    since: Annotated[datetime, Field(description="When the stage began.")]
    savepoint: Annotated[Word | None, Field(description="What a rollback returns to.")] = None
    reason: Annotated[Words, Field(description="What keeps the stage from ending well.")] = ""


class Refusal(Model):
    """A revision that was refused or rolled back; it is not tried again in this mode."""

    revision: Word
    mode: Mode = "stateful"
    reason: Literal["IncompatibleState", "CheckFailed", "MigrationFailed", "StartFailed", "DeadlineExceeded"]
    message: Words


class Deletion(Model):
    """Tries to delete the job's state, of a resource that is being deleted."""

    failures: Count = 0
    not_before: Annotated[datetime | None, Field(description="The next try waits until then.")] = None


class Status(Model):
    """What the operator knows of the job. Written by it only."""

    phase: Phase | None = None
    observed_generation: Annotated[
        Count | None, Field(description="The metadata.generation that the rest of the status is about.")
    ] = None
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))] = ()
    revision: Annotated[Word | None, Field(description="The revision of the job that is in force.")] = None
    image: Annotated[Words | None, Field(description="The image that is in force.")] = None
    proved: Annotated[
        datetime | None, Field(description="When the revision in force was first ready; no rollout returns to others.")
    ] = None
    target_revision: Annotated[Word | None, Field(description="The revision that the resource asks for.")] = None
    driver: DriverAttempt | None = None
    rollout: Rollout | None = None
    refused: Refusal | None = None
    deletion: Deletion | None = None
    reported: Annotated[datetime | None, Field(description="When the driver's figures below were written.")] = None
    job_generation: Annotated[
        Count | None, Field(description="The fencing generation of the driver that runs, counted in the state store.")
    ] = None
    epoch: Annotated[Count | None, Field(description="The last committed epoch.")] = None
    inputs: Annotated[tuple[InputStatus, ...], Field(max_length=16, json_schema_extra=list_map("name"))] = ()
    lag: Annotated[Count | None, Field(description="Records not read yet, over all inputs.")] = None
    rows_per_second: Annotated[Count | None, Field(description="Rows read, over all inputs.")] = None
    watermark_delay: Annotated[
        DurationText | None, Field(description="How far the slowest input's watermark is behind the clock, as 12s.")
    ] = None
    rows_in: Annotated[Count | None, Field(description="Rows read since the job's state began.")] = None
    rows_out: Annotated[Count | None, Field(description="Rows written since the job's state began.")] = None
    late: Annotated[Count | None, Field(description="Rows that came too late, since the job's state began.")] = None
    state_bytes: Count | None = None
    hottest_keys: Annotated[tuple[HotKey, ...], Field(max_length=10)] = ()
    last_savepoint: SavepointStatus | None = None
    last_error: Words | None = None
    executors: Annotated[Count | None, Field(description="Executors that run.")] = None
