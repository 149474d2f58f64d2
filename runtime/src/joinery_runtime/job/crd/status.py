"""Models of `status`: what the operator writes about a job, bounded. Every field may be missing: a job reports what it
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
Generation = Annotated[int, Field(ge=-1)]
UNSEEN = {"observedGeneration": -1}
"""The default that the API server fills in for a status that was never written. Without it, kstatus would take a new
resource for one that is as it should be."""
Word = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Words = Annotated[str, StringConstraints(max_length=4096)]
# A Go duration as `format_duration` writes it: rounded for people, so text.
DurationText = Annotated[str, StringConstraints(max_length=64)]


class Condition(Model):
    """As metav1.Condition: one aspect of the job's state, and since when."""

    type: Annotated[str, StringConstraints(max_length=316, pattern=r"^[A-Za-z]([A-Za-z0-9]*[A-Za-z0-9])?$")] = Field(
        examples=["Ready"]
    )
    """Which aspect, for example Ready."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    observed_generation: Count | None = Field(default=None, examples=[3])
    """The metadata.generation that the condition is about."""
    last_transition_time: datetime = Field(examples=["2026-01-15T10:00:00Z"])
    """When `status` last changed."""
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ] = Field(examples=["Running"])
    """Why, in one word."""
    message: Annotated[str, StringConstraints(max_length=32_768)] = Field(examples=["The driver commits epochs."])
    """Why, in words, and what to do."""


class InputStatus(Model):
    """One input as of the last committed epoch."""

    name: Word = Field(examples=["orders"])
    """The input's name."""
    lag: Count | None = Field(default=None, examples=[1200])
    """Records that are there and not read yet."""
    watermark: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """The input's watermark; missing while nothing was read."""
    watermark_delay: DurationText | None = Field(default=None, examples=["12s"])
    """How far the watermark is behind the clock, as 12s."""
    rows_per_second: Count | None = Field(default=None, examples=[8400])
    """Records read per second, over the last 30 seconds."""
    idle: bool | None = None
    """All partitions are idle."""
    ended: bool | None = None
    """The input was read to its end."""
    late: Count | None = Field(default=None, examples=[17])
    """Rows that came too late, since the job's state began."""
    late_by: DurationText | None = Field(default=None, examples=["4s"])
    """How far behind the watermark the latest of them was: this much more watermark.delay would have kept all."""
    late_warning: Words | None = Field(
        default=None, examples=["493 of the newest 600 records of orders (82 %) were dropped as late"]
    )
    """How many of the input's newest records were dropped as late, and which watermark.delay would have kept them.
    Missing while they are fewer than watermark.lateWarning."""
    after_eviction: Count | None = Field(default=None, examples=[2])
    """Rows that came when partners of them may have left the state already."""
    warning: Words | None = Field(default=None, examples=["no record has a value for column amount"])
    """What looks wrong with the input's newest records: none can be used, none has a value for a column, or event times
    most likely count seconds. Missing where nothing does."""


class OutputStatus(Model):
    """An output that the current revision writes."""

    name: Word = Field(examples=["output"])
    """The output's name; `output` where the job has one."""
    kind: Word = Field(examples=["kafka"])
    """The kind of system, as in the spec: kafka, postgres, file, iceberg, delta or console."""
    target: Words | None = Field(default=None, examples=["orders-paid"])
    """The topic, the table or the folder; missing for the console."""


class HotKey(Model):
    """A join key with many rows in the state."""

    key: Words = Field(examples=["order_id=o-17"])
    """The key's values."""
    rows: Count = Field(examples=[120_000])
    """Its rows in the state."""


class SavepointStatus(Model):
    """A pinned epoch that the job can be returned to."""

    name: Word = Field(examples=["periodic-8100"])
    """The savepoint's name."""
    epoch: Count = Field(examples=[8100])
    """The epoch that it pins."""
    time: datetime = Field(examples=["2026-01-15T10:00:00Z"])
    """When it was made."""


class ScalingStatus(Model):
    """How a driver became wider or narrower last."""

    shards: Count = Field(examples=[16])
    """The most shards of an epoch from then on."""
    executors: Count | None = Field(default=None, examples=[4])
    """Executors that were asked for; missing where Spark decides."""
    reason: Words = Field(examples=["executors were busy for 91 % of their time"])
    """Why, in words."""
    time: datetime = Field(examples=["2026-01-15T10:00:00Z"])
    """When."""


class DriverAttempt(Model):
    """The driver pod: written before it is created, so that it is created once."""

    number: Count = Field(examples=[4])
    """Counts the driver pods of the job."""
    revision: Word = Field(examples=["5f2c9a1e"])
    """The revision that it runs."""
    image: Words = Field(examples=["joinery-runtime:0.1.0"])
    """The image that it runs."""
    created: datetime = Field(examples=["2026-01-15T10:00:00Z"])
    """When the attempt was decided."""
    pod_uid: Word | None = Field(default=None, examples=["0a4e6e5c-6a0f-4f5e-8f4d-4b1f0f5f2b7a"])
    """The pod's uid, once it was seen."""
    ready: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """Since when; the back-off begins again after a healthy time."""
    outcome: Outcome | None = None
    """How it ended: Fatal would only fail again, Interrupted is no failure."""
    reason: Word | None = Field(default=None, examples=["OOMKilled"])
    """Why it ended, as IncompatibleState or OOMKilled."""
    failures: Count = Field(default=0, examples=[1])
    """Attempts in a row that failed."""
    interruptions: Count = Field(default=0, examples=[1])
    """Attempts in a row that others ended."""
    not_before: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """The next attempt waits until then."""
    initialized: bool = False
    """Whether its first containers have ended well."""
    again: bool = False
    """It ended for good, and the resource has changed since: the same is tried once more."""
    restore: Word | None = Field(default=None, examples=["rollout-5f2c9a1e-3-4"])
    """The savepoint that it returns to; it does nothing else."""
    migrate: Word | None = Field(default=None, examples=["rollout-5f2c9a1e-3-4"])
    """The savepoint that it pinned before it migrated."""
    anew: bool = False
    """Whether it left the old state behind."""
    replaces: Words | None = Field(default=None, examples=["0a4e6e5c/jobs/orders/4f5e8f4d@17"])
    """The owner from which it might take the state: the annotation joinery.dev/replacesOwner of that time."""


class RestoringRevision(Model):
    """The revision whose image returns to a savepoint if the current one cannot."""

    revision: Word = Field(examples=["8d01b7c4"])
    """The revision that the resource asked for."""
    image: Words = Field(examples=["joinery-runtime:0.2.0"])
    """Its image."""


class Rollout(Model):
    """Another revision on its way."""

    revision: Word = Field(examples=["8d01b7c4"])
    """The revision that is on its way."""
    image: Words = Field(examples=["joinery-runtime:0.2.0"])
    """Its image."""
    mode: Mode = "stateful"
    """Whether it takes the state over."""
    stage: Stage
    """How far it has come."""
    since: datetime = Field(examples=["2026-01-15T10:00:00Z"])
    """When the stage began."""
    progressed: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """When the stage last got further; missing while the job is suspended or paused."""
    steps: Count = Field(default=0, examples=[2])
    """How far it got: steps of the stage's pod that are done."""
    segments: Count = Field(default=0, examples=[140])
    """Segments of the state that are migrated."""
    tasks: Count = Field(default=0, examples=[35])
    """Tasks of Spark that have ended in the new driver's first epoch."""
    lifted: bool = False
    """The new driver was ready for the whole deadline, and waits for records: there is no deadline any more."""
    savepoint: Word | None = Field(default=None, examples=["rollout-8d01b7c4-3-5"])
    """What a rollback returns to."""
    restorer: RestoringRevision | None = None
    """What returns to the savepoint if the current revision cannot."""
    reason: Words = Field(default="", examples=["the image cannot be pulled"])
    """What keeps the stage from ending well."""


class Refusal(Model):
    """A revision that was rejected or rolled back; it is not tried again in this mode."""

    revision: Word = Field(examples=["8d01b7c4"])
    """The revision."""
    mode: Mode = "stateful"
    """The mode in which it was tried."""
    reason: Literal[
        "IncompatibleState", "RowsDiffer", "CheckFailed", "MigrationFailed", "StartFailed", "DeadlineExceeded"
    ]
    """Why, in one word."""
    message: Words = Field(
        examples=["The keys differ from those of the state; set upgrade.mode: stateless to leave it behind."]
    )
    """Why, in words, and what to do."""
    replaces: Words | None = Field(default=None, examples=["0a4e6e5c/jobs/orders/4f5e8f4d@17"])
    """The annotation joinery.dev/replacesOwner of that time; empty if there was none."""


class PastRevision(Model):
    """An earlier revision of the job that worked. `kubectl joinery rollout undo` returns to its job."""

    revision: Word = Field(examples=["5f2c9a1e"])
    """The revision."""
    image: Words = Field(examples=["joinery-runtime:0.1.0"])
    """Its image."""
    since: datetime = Field(examples=["2026-01-15T10:00:00Z"])
    """When it was first ready."""
    until: datetime = Field(examples=["2026-01-16T10:00:00Z"])
    """When another revision became current."""


class Deletion(Model):
    """Tries to delete the job's state, of a resource that is being deleted."""

    failures: Count = Field(default=0, examples=[1])
    """Tries in a row that failed."""
    not_before: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """The next try waits until then."""


class Status(Model):
    """What the operator knows of the job. Written by it only."""

    phase: Phase | None = None
    """Where the job is in its life."""
    observed_generation: Generation | None = Field(default=None, examples=[3])
    """The metadata.generation that the rest of the status is about; -1 until the operator has seen the resource."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))] = ()
    """Valid, Ready and more, as other Kubernetes resources have them."""
    revision: Word | None = Field(default=None, examples=["5f2c9a1e"])
    """The current revision of the job."""
    image: Words | None = Field(default=None, examples=["joinery-runtime:0.1.0"])
    """The current image."""
    proved: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """When the current revision was first ready; no rollout returns to others."""
    state_place: Words | None = Field(default=None, examples=["schema joinery of postgresql://state.db/joinery"])
    """Where the current revision keeps its state, without passwords: no deletion deletes state elsewhere."""
    outputs: Annotated[tuple[OutputStatus, ...], Field(max_length=64, json_schema_extra=list_map("name"))] = ()
    """Where the current revision writes, at most 64 outputs. While another one is rolled out or was rejected, that is
    not where the spec says."""
    target_revision: Word | None = Field(default=None, examples=["8d01b7c4"])
    """The revision that the resource asks for."""
    history: Annotated[tuple[PastRevision, ...], Field(max_length=10)] = ()
    """Earlier revisions that worked, oldest first; the ConfigMap of each is kept."""
    held: bool = False
    """The current revision starts no driver until the resource asks for it, or another revision becomes current."""
    driver: DriverAttempt | None = None
    """The driver pod."""
    rollout: Rollout | None = None
    """Another revision on its way."""
    refused: Refusal | None = None
    """A revision that was rejected or rolled back."""
    deletion: Deletion | None = None
    """What the deletion of the job's state waits for."""
    reported: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """When the driver's figures below were written."""
    job_generation: Count | None = Field(default=None, examples=[7])
    """The fencing generation of the driver that runs, counted in the state store."""
    epoch: Count | None = Field(default=None, examples=[8123])
    """The last committed epoch."""
    inputs: Annotated[tuple[InputStatus, ...], Field(max_length=16, json_schema_extra=list_map("name"))] = ()
    """The inputs as of the last committed epoch."""
    lag: Count | None = Field(default=None, examples=[1200])
    """Records not read yet, over all inputs."""
    rows_per_second: Count | None = Field(default=None, examples=[8400])
    """Records read per second, over all inputs and the last 30 seconds."""
    watermark_delay: DurationText | None = Field(default=None, examples=["12s"])
    """How far the slowest input's watermark is behind the clock, as 12s."""
    rows_in: Count | None = Field(default=None, examples=[9_000_000])
    """Rows read since the job's state began."""
    rows_out: Count | None = Field(default=None, examples=[8_200_000])
    """Rows written since the job's state began."""
    late: Count | None = Field(default=None, examples=[17])
    """Rows that came too late, since the job's state began."""
    state_bytes: Count | None = Field(default=None, examples=[93_400_000])
    """Stored bytes of the state."""
    hottest_keys: Annotated[tuple[HotKey, ...], Field(max_length=10)] = ()
    """The keys with the most rows in the state."""
    last_savepoint: SavepointStatus | None = None
    """The newest savepoint."""
    last_error: Words | None = Field(default=None, examples=["Kafka of input orders is unavailable"])
    """The trouble that the driver waits out, or how it ended."""
    executors: Count | None = Field(default=None, examples=[4])
    """Executors that run."""
    selector: Words | None = Field(default=None, examples=["joinery.dev/job=orders-paid,joinery.dev/role=executor"])
    """The label selector of the executors' pods, for a HorizontalPodAutoscaler."""
    scaling: ScalingStatus | None = None
    """How the running driver became wider or narrower last."""
    page: Words | None = Field(default=None, examples=["https://joinery.example.com/shop/orders-paid"])
    """The address of the job's page, where the installation has one."""


FIGURES = (
    "reported",
    "epoch",
    "inputs",
    "lag",
    "rows_per_second",
    "watermark_delay",
    "rows_in",
    "rows_out",
    "late",
    "state_bytes",
    "hottest_keys",
    "executors",
)
"""The fields of a Status that a running driver changes all the time."""
