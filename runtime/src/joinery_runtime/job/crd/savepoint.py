"""The `Savepoint` resource: the state of a job of its namespace, pinned in the job's state store under the resource's
name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from joinery_runtime.job.crd.shapes import list_map
from joinery_runtime.job.crd.status import Condition, Count, Generation, Words
from joinery_runtime.job.model.base import Model
from joinery_runtime.job.model.resource import API_VERSION, Metadata, Name

SavepointPhase = Literal["Pending", "Completed", "Failed", "Deleting"]


class SavepointOf(Model):
    """A job of the savepoint's namespace."""

    kind: Literal["StreamJoin", "SessionWindow"] = "StreamJoin"
    """The job's kind."""
    name: Name = Field(examples=["orders-paid"])
    """The job's name."""


class SavepointSpec(Model):
    """Whose state is pinned, and for how long."""

    job: SavepointOf
    """The job whose state is pinned. It cannot be changed: another savepoint is another resource."""
    cleanup: Literal["delete", "retain"] = "delete"
    """What becomes of the pinned state with the resource: `delete` unpins it in the state store, `retain` leaves it
    there, for `kubectl joinery state JOB savepoint NAME --delete`."""


class SavepointResult(Model):
    """What was pinned, as `joinery state savepoint --idempotent` says it at its end."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")

    epoch: Count
    """The committed epoch of the pinned state."""
    time: datetime
    """When it was pinned, by the state store's clock."""
    rows: Count
    """Rows of state."""
    bytes: Count
    """Bytes of state, as stored."""


class SavepointState(Model):
    """How far the savepoint is."""

    phase: SavepointPhase | None = None
    """Pending, Completed, Failed (it is tried again) or Deleting."""
    observed_generation: Generation | None = Field(default=None, examples=[1])
    """The metadata.generation that the rest of the status is about; -1 until the operator has seen the resource."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))] = ()
    """Ready, and for tools Reconciling and Stalled."""
    epoch: Count | None = Field(default=None, examples=[8120])
    """The committed epoch of the pinned state."""
    time: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """When it was pinned, by the state store's clock."""
    rows: Count | None = Field(default=None, examples=[1_204_000])
    """Rows of state."""
    bytes: Count | None = Field(default=None, examples=[93_400_000])
    """Bytes of state, as stored."""
    failures: Count = Field(default=0, examples=[1])
    """Tries that failed in a row."""
    not_before: datetime | None = Field(default=None, examples=["2026-01-15T10:00:00Z"])
    """When the next try is due."""
    last_error: Words | None = Field(default=None, examples=["the state store does not answer"])
    """Why the last try failed."""


class Savepoint(Model):
    """The state of a job, pinned under this resource's name, to return to or to start another job from."""

    api_version: Literal["joinery.dev/v1alpha1"] = API_VERSION
    kind: Literal["Savepoint"] = "Savepoint"
    metadata: Metadata
    spec: SavepointSpec
