"""The `BlueGreenJob` resource: a job whose edits that name other outputs run beside it first, in a job of their own."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from joinery_runtime.job.crd.shapes import list_map
from joinery_runtime.job.crd.status import Condition, Count, Generation, OutputStatus, Phase, Word
from joinery_runtime.job.model.base import Length, Model, PositiveDuration
from joinery_runtime.job.model.resource import API_VERSION, Metadata

BlueGreenPhase = Literal[Phase, "Beside", "AwaitingSwitch", "KeepingOld"]


class JobTemplate(Model):
    """The job that is asked for."""

    kind: Literal["StreamJoin", "SessionWindow"] = "StreamJoin"
    """The job's kind."""
    spec: Annotated[
        dict[str, Any],
        WithJsonSchema({"type": "object", "examples": [{"sql": "SELECT ..."}]}),  # `definition` has the fields
    ]
    """The job's spec, as in a resource of that kind. An edit that leaves every output's place as it is changes the job
    that runs; an edit that gives every output another place starts a second job beside it."""


class BlueGreenSpec(Model):
    """The job, and when readers change to an edit of it."""

    template: JobTemplate
    """The job that is asked for."""
    switch: Literal["manual", "automatic"] = "manual"
    """`manual` waits for `kubectl joinery rollout switch` once the second job is stable, `automatic` switches then."""
    caught_up: Length = Field(default=30_000, examples=["1m"])
    """How far the second job's watermarks may be behind those of the first, a duration."""
    stable_for: PositiveDuration = Field(default=600_000, examples=["1h"])
    """How long the second job has to be ready and caught up without a restart, a duration."""
    keep_old: PositiveDuration = Field(default=3_600_000, examples=["24h"])
    """How long the first job keeps running after the switch, a duration. Until then the way back is a switch, too."""
    suspend: bool = False
    """Stops the drivers of all of its jobs after their running epochs, until it is false again."""


class CandidateJob(Model):
    """The second job."""

    name: Word = Field(examples=["orders-paid-5f2c9a1e04"])
    """The name of its resource."""
    since: datetime = Field(examples=["2026-01-15T10:00:00Z"])
    """When it was asked for."""
    stable_since: datetime | None = Field(default=None, examples=["2026-01-15T10:20:00Z"])
    """Since when it is ready and caught up."""
    attempt: Count | None = Field(default=None, examples=[1])
    """The driver that has been stable since then."""
    generation: Count | None = Field(default=None, examples=[1])
    """Its resource's metadata.generation of that time."""


class ChildJob(Model):
    """A job that the operator has created."""

    kind: Literal["StreamJoin", "SessionWindow"] = "StreamJoin"
    """The kind of its resource."""
    name: Word = Field(examples=["orders-paid-5f2c9a1e04"])
    """The name of its resource."""
    uid: Word = Field(examples=["5a3f2f0e-8c1d-4a57-9d1b-0b6a2c9d7e11"])
    """The metadata.uid of its resource: another resource of that name is not this job."""
    deletes_state: bool = False
    """Whether its state is deleted together with its resource. Such a job is not created again, because it would write
    all rows again."""
    outputs: Annotated[tuple[OutputStatus, ...], Field(max_length=64)] = ()
    """Where it writes."""


class OldJob(Model):
    """A job that ran before a switch, and still runs."""

    name: Word = Field(examples=["orders-paid-0d41b7a9c2"])
    """The name of its resource."""
    until: datetime = Field(examples=["2026-01-16T10:00:00Z"])
    """When it ends, and its state is deleted."""


class RetiredJob(Model):
    """A job that ended. Its outputs stay as they are."""

    name: Word = Field(examples=["orders-paid-0d41b7a9c2"])
    """The name that its resource had."""
    outputs: Annotated[tuple[OutputStatus, ...], Field(max_length=64)] = ()
    """Where it wrote: no other job may write there, because rows would be repeated."""
    ended: datetime = Field(examples=["2026-01-16T10:00:00Z"])
    """When it was ended."""


class BlueGreenState(Model):
    """Which job readers read, and how far another one is."""

    phase: BlueGreenPhase | None = None
    """Beside (a second job catches up), AwaitingSwitch, KeepingOld, or else the phase of the active job."""
    observed_generation: Generation | None = Field(default=None, examples=[1])
    """The metadata.generation that the rest of the status is about; -1 until the operator has seen the resource."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))] = ()
    """Valid, Ready, Degraded, Progressing, UpToDate, Paused and OutputsShared (another job writes to an output as
    well), and for tools Reconciling and Stalled."""
    active: Word | None = Field(default=None, examples=["orders-paid-0d41b7a9c2"])
    """The job whose outputs are to be read."""
    outputs: Annotated[tuple[OutputStatus, ...], Field(max_length=64, json_schema_extra=list_map("name"))] = ()
    """Where the active job writes: what readers read."""
    candidate: CandidateJob | None = None
    """The second job, until the switch."""
    old: Annotated[tuple[OldJob, ...], Field(max_length=4)] = ()
    """Jobs that were active and still run, the oldest first."""
    jobs: Annotated[tuple[ChildJob, ...], Field(max_length=32, json_schema_extra=list_map("name"))] = ()
    """The jobs that exist, or that are to be created again. A driver of a job starts once the job is listed here."""
    retired: Annotated[tuple[RetiredJob, ...], Field(max_length=16)] = ()
    """The last 16 jobs that ended, the oldest first."""
    earlier_places: Annotated[tuple[Word, ...], Field(max_length=10_000)] = Field(
        default=(), examples=[["0d41b7a9c2", "5f2c9a1e04"]]
    )
    """Sorted digests of places of jobs before `retired`: no job writes there."""


class BlueGreenJob(Model):
    """A job whose edits run beside it, with state and outputs of their own, until readers switch."""

    api_version: Literal["joinery.dev/v1alpha1"] = API_VERSION
    kind: Literal["BlueGreenJob"] = "BlueGreenJob"
    metadata: Metadata
    spec: BlueGreenSpec
