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
Mode = Literal["stateful", "shadow", "stateless"]
Count = Annotated[int, Field(ge=0)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Words = Annotated[str, StringConstraints(max_length=4096)]
# A Go duration as `format_duration` writes it: rounded for people, so text.
DurationText = Annotated[str, StringConstraints(max_length=64)]


class Condition(Model):
    """As metav1.Condition: one aspect of the job's state, and since when."""

    type: Annotated[str, StringConstraints(max_length=316, pattern=r"^[A-Za-z]([A-Za-z0-9]*[A-Za-z0-9])?$")]
    """Which aspect, for example Ready."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    observed_generation: Count | None = None
    """The metadata.generation that the condition is about."""
    last_transition_time: datetime
    """When `status` last changed."""
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """Why, in one word."""
    message: Annotated[str, StringConstraints(max_length=32_768)]
    """Why, in words, and what to do."""


class InputStatus(Model):
    """One input as of the last committed epoch."""

    name: Word
    """The input's name."""
    lag: Count | None = None
    """Records that are there and not read yet."""
    watermark: datetime | None = None
    """The input's watermark; missing while nothing was read."""
    watermark_delay: DurationText | None = None
    """How far the watermark is behind the clock, as 12s."""
    rows_per_second: Count | None = None
    """Records read per second, over the last 30 seconds."""
    idle: bool | None = None
    """All partitions are idle."""
    ended: bool | None = None
    """The input was read to its end."""
    late: Count | None = None
    """Rows that came too late, since the job's state began."""
    late_by: DurationText | None = None
    """How far behind the watermark the latest of them was: so much more watermark.delay keeps all."""
    after_eviction: Count | None = None
    """Rows that came when partners of them may have left the state already."""
    warning: Words | None = None
    """What looks wrong with the input's newest records: none can be used, none has a value for a column, or event times
    most likely count seconds. Missing where nothing does."""


class HotKey(Model):
    """A join key with many rows in the state."""

    key: Words
    """The key's values."""
    rows: Count
    """Its rows in the state."""


class SavepointStatus(Model):
    """A pinned epoch that the job can be returned to."""

    name: Word
    """The savepoint's name."""
    epoch: Count
    """The epoch that it pins."""
    time: datetime
    """When it was made."""


class ScalingStatus(Model):
    """How the running driver became wider or narrower last."""

    shards: Count
    """Shards of an epoch from then on."""
    executors: Count | None = None
    """Executors that were asked for; missing where Spark decides."""
    reason: Words
    """Why, in words."""
    time: datetime
    """When."""


class DriverAttempt(Model):
    """The driver pod: written before it is created, so that it is created once."""

    number: Count
    """Counts the driver pods of the job."""
    revision: Word
    """The revision that it runs."""
    image: Words
    """The image that it runs."""
    created: datetime
    """When the attempt was decided."""
    pod_uid: Word | None = None
    """The pod's uid, once it was seen."""
    ready: datetime | None = None
    """Since when; the back-off begins anew after a healthy time."""
    outcome: Outcome | None = None
    """How it ended: Fatal would only fail again, Interrupted is no failure."""
    reason: Word | None = None
    """Why it ended, as IncompatibleState or OOMKilled."""
    failures: Count = 0
    """Attempts in a row that failed."""
    interruptions: Count = 0
    """Attempts in a row that others ended."""
    not_before: datetime | None = None
    """The next attempt waits until then."""
    initialized: bool = False
    """Whether its first containers have ended well."""
    again: bool = False
    """It ended for good, and the resource has changed since: the same is tried once more."""
    restore: Word | None = None
    """The savepoint that it returns to; it does nothing else."""
    migrate: Word | None = None
    """The savepoint that it pinned before it migrated."""
    anew: bool = False
    """Whether it left the old state behind."""


class Restorer(Model):
    """The revision whose image returns to a savepoint, where that in force cannot."""

    revision: Word
    """The revision that the resource asked for."""
    image: Words
    """Its image."""


class Rollout(Model):
    """Another revision on its way."""

    revision: Word
    """The revision that is on its way."""
    image: Words
    """Its image."""
    mode: Mode = "stateful"
    """Whether it takes the state over."""
    stage: Stage
    """How far it has come."""
    since: datetime
    """When the stage began."""
    progressed: datetime | None = None
    """When the stage last got further; missing while the job is suspended."""
    steps: Count = 0
    """How far it got: steps of the stage's pod that are done."""
    segments: Count = 0
    """Segments of the state that are migrated."""
    lifted: bool = False
    """The new driver was ready for the whole deadline, and waits for records: there is no deadline any more."""
    savepoint: Word | None = None
    """What a rollback returns to."""
    restorer: Restorer | None = None
    """What returns to the savepoint, where the revision in force cannot."""
    reason: Words = ""
    """What keeps the stage from ending well."""


class Refusal(Model):
    """A revision that was refused or rolled back; it is not tried again in this mode."""

    revision: Word
    """The revision."""
    mode: Mode = "stateful"
    """The mode in which it was tried."""
    reason: Literal[
        "IncompatibleState", "RowsDiffer", "CheckFailed", "MigrationFailed", "StartFailed", "DeadlineExceeded"
    ]
    """Why, in one word."""
    message: Words
    """Why, in words, and what to do."""


class Deletion(Model):
    """Tries to delete the job's state, of a resource that is being deleted."""

    failures: Count = 0
    """Tries in a row that failed."""
    not_before: datetime | None = None
    """The next try waits until then."""


class Status(Model):
    """What the operator knows of the job. Written by it only."""

    phase: Phase | None = None
    """Where the job is in its life."""
    observed_generation: Count | None = None
    """The metadata.generation that the rest of the status is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))] = ()
    """Valid, Ready and more, as other Kubernetes resources have them."""
    revision: Word | None = None
    """The revision of the job that is in force."""
    image: Words | None = None
    """The image that is in force."""
    proved: datetime | None = None
    """When the revision in force was first ready; no rollout returns to others."""
    target_revision: Word | None = None
    """The revision that the resource asks for."""
    held: bool = False
    """The revision in force starts no driver until the resource asks for it, or another one is in force."""
    driver: DriverAttempt | None = None
    """The driver pod."""
    rollout: Rollout | None = None
    """Another revision on its way."""
    refused: Refusal | None = None
    """A revision that was refused or rolled back."""
    deletion: Deletion | None = None
    """What the deletion of the job's state waits for."""
    reported: datetime | None = None
    """When the driver's figures below were written."""
    job_generation: Count | None = None
    """The fencing generation of the driver that runs, counted in the state store."""
    epoch: Count | None = None
    """The last committed epoch."""
    inputs: Annotated[tuple[InputStatus, ...], Field(max_length=16, json_schema_extra=list_map("name"))] = ()
    """The inputs as of the last committed epoch."""
    lag: Count | None = None
    """Records not read yet, over all inputs."""
    rows_per_second: Count | None = None
    """Records read per second, over all inputs and the last 30 seconds."""
    watermark_delay: DurationText | None = None
    """How far the slowest input's watermark is behind the clock, as 12s."""
    rows_in: Count | None = None
    """Rows read since the job's state began."""
    rows_out: Count | None = None
    """Rows written since the job's state began."""
    late: Count | None = None
    """Rows that came too late, since the job's state began."""
    state_bytes: Count | None = None
    """Stored bytes of the state."""
    hottest_keys: Annotated[tuple[HotKey, ...], Field(max_length=10)] = ()
    """The keys with the most rows in the state."""
    last_savepoint: SavepointStatus | None = None
    """The newest savepoint."""
    last_error: Words | None = None
    """The trouble that the driver waits out, or how it ended."""
    executors: Count | None = None
    """Executors that run."""
    selector: Words | None = None
    """The label selector of the executors' pods, for a HorizontalPodAutoscaler."""
    scaling: ScalingStatus | None = None
    """How the running driver became wider or narrower last."""
    page: Words | None = None
    """The address of the job's page, where the installation has one."""
