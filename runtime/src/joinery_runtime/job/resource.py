"""`StreamJoin`: the whole resource, with the views of it that the engine asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from joinery_runtime.job.base import Bool, Int, Model, Text
from joinery_runtime.job.inputs import Input
from joinery_runtime.job.outputs import DeadLetter, DeadLetterKafka, Output, StoreSpec
from joinery_runtime.job.parts import path_text
from joinery_runtime.job.pods import SparkSpec
from joinery_runtime.job.rules import broken_rules
from joinery_runtime.job.sql import Table, Translation, translate
from joinery_runtime.job.steps import (
    WINDOW_COLUMNS,
    JoinStep,
    KeyPair,
    Reference,
    SelectItem,
    key_pairs,
    output_prefixes,
    parse_reference,
)
from joinery_runtime.job.types import ColumnType

API_VERSION: Literal["joinery.dev/v1alpha1"] = "joinery.dev/v1alpha1"
RULES_BROKEN = "rules_broken"  # type of the one pydantic error that carries all cross-field findings

Name = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
]


class Metadata(Model):
    # Kubernetes owns this part and adds fields of its own (uid, managedFields, ...): they are none of our business.
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")

    name: Name
    namespace: Name | None = None


class Trigger(Model):
    max_records_per_epoch: Annotated[Int, Field(ge=1)] = 500_000


class Upgrade(Model):
    """How another image or a changed job takes over: with the state, or anew without it."""

    mode: Literal["stateful", "stateless"] = "stateful"
    rollback: Literal["automatic"] = "automatic"


class StreamJoinSpec(Model):
    inputs: tuple[Input, ...]
    joins: tuple[JoinStep, ...] = ()
    select: Annotated[tuple[SelectItem, ...], Field(min_length=1)] | None = None
    sql: Annotated[Text, Field(description="A SELECT with a join, instead of joins and select.")] | None = None
    output: Output
    dead_letter: DeadLetter | None = None
    state_store: StoreSpec = StoreSpec()
    delivery: Literal["exactlyOnce", "atLeastOnce"] = "exactlyOnce"
    trigger: Trigger = Trigger()
    shards: Annotated[Int, Field(ge=1, le=4096)] = 8
    upgrade: Upgrade = Upgrade()
    suspend: Bool = False
    cleanup: Literal["retainState", "deleteState"] = "retainState"
    spark: SparkSpec = SparkSpec()


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """`source` is the input's column, `expression` an SQL expression over `input.column`s, whose type the core works
    out (`type` is None). A window's start and end (W4) have neither."""

    name: str
    source: Reference | None = None
    expression: str | None = None
    type: ColumnType | None = None


class StreamJoin(Model):
    """A valid chain of joins. Constructing one in Python applies the same rules as loading a file."""

    api_version: Literal["joinery.dev/v1alpha1"] = API_VERSION
    kind: Literal["StreamJoin"] = "StreamJoin"
    metadata: Metadata
    spec: StreamJoinSpec
    # What `kubectl get -o yaml` prints can be fed back as it is; the status is no part of the job.
    status: Annotated[None, BeforeValidator(lambda _: None), Field(exclude=True, repr=False)] = None

    @model_validator(mode="after")
    def _rules(self) -> Self:
        found = broken_rules(self.model_dump(mode="json", by_alias=True, exclude_unset=True))
        if found:
            text = "\n".join(f"{path_text(at)}: {message}" for at, message in found)
            raise PydanticCustomError(RULES_BROKEN, "{text}", {"text": text, "found": found})
        return self

    @property
    def name(self) -> str:
        """The job's name in the state store: `namespace/name`, or `name` where no namespace is given."""
        namespace = self.metadata.namespace
        return f"{namespace}/{self.metadata.name}" if namespace else self.metadata.name

    def input(self, name: str) -> Input:
        """Raises KeyError for a name that no input has."""
        return {side.name: side for side in self.spec.inputs}[name]

    def left_inputs(self, step_index: int) -> tuple[str, ...]:
        """The inputs whose rows the left side of a step holds: the first one, then what the steps before joined."""
        return (self.spec.inputs[0].name, *(step.right for step in self.joins[:step_index]))

    @staticmethod
    def keys_of(step: JoinStep) -> tuple[KeyPair, ...]:
        """The step's equalities in order; none for a join on time only (J9)."""
        return key_pairs(step)

    @property
    def joins(self) -> tuple[JoinStep, ...]:
        """`spec.joins`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        return self.spec.joins if sql is None else tuple(JoinStep.model_validate(step) for step in sql.steps)

    @property
    def select(self) -> tuple[SelectItem, ...] | None:
        """`spec.select`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        return self.spec.select if sql is None else tuple(SelectItem.model_validate(item) for item in sql.select)

    @property
    def _from_sql(self) -> Translation | None:
        if self.spec.sql is None:
            return None
        tables = (
            Table(side.name, tuple(side.types), side.event_time, side.types[side.event_time].name == "int64")
            for side in self.spec.inputs
        )
        return translate(self.spec.sql, tuple(tables))

    @property
    def windowed(self) -> bool:
        """Whether output rows carry their window's start and end (W4)."""
        return any(step.window is not None for step in self.joins)

    @property
    def has_expressions(self) -> bool:
        """Whether SQL expressions say what matches or goes out, which only the core can check."""
        return any(step.where for step in self.joins) or any(item.expression for item in self.select or ())

    @property
    def output_columns(self) -> tuple[OutputColumn, ...]:
        """What goes out, in order: the select list, else every column with its input's prefix (rule J10); a window's
        start and end come last."""
        chosen = self.select
        named = [self._selected(item) for item in chosen] if chosen else self._every_column()
        times = [OutputColumn(name, type=ColumnType("int64")) for name in WINDOW_COLUMNS if self.windowed]
        return (*named, *times)

    def _selected(self, item: SelectItem) -> OutputColumn:
        source = parse_reference(item.column) if item.column is not None else None
        if source is None:
            return OutputColumn(item.as_ or "", expression=item.expression)
        return self._column(item.as_ or source.column, source)

    def _every_column(self) -> list[OutputColumn]:
        names = [side.name for side in self.spec.inputs]
        return [
            self._column(f"{prefix}_{column}", Reference(side.name, column))
            for prefix, side in zip(output_prefixes(names), self.spec.inputs, strict=True)
            for column in side.types
        ]

    def _column(self, name: str, source: Reference) -> OutputColumn:
        return OutputColumn(name, source, type=self.input(source.input).types[source.column])

    # The three below see two inputs only; their last user (`state show`) goes over to the ones above.

    @property
    def dead_letter_kafka(self) -> DeadLetterKafka | None:
        """The dead-letter topic with its address and settings filled in, if dead letters go to Kafka."""
        target = self.spec.dead_letter.kafka if self.spec.dead_letter else None
        if target is None:
            return None
        known = (self.spec.output.kafka, *(side.kafka for side in self.spec.inputs))
        same = next((at for at in known if at and target.bootstrap_servers in {None, at.bootstrap_servers}), None)
        filled = {
            "bootstrap_servers": target.bootstrap_servers or (same.bootstrap_servers if same else None),
            "properties": target.properties if target.properties is not None else same.properties if same else {},
        }
        return target.model_copy(update=filled)
