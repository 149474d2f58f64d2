"""`StreamJoin`: the whole resource, with the views of it that the engine asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from joinery_runtime.job.base import Bool, Int, Model, Setting, Text
from joinery_runtime.job.inputs import Input
from joinery_runtime.job.outputs import DeadLetter, DeadLetterKafka, Output, StoreSpec
from joinery_runtime.job.parts import path_text
from joinery_runtime.job.rules import broken_rules
from joinery_runtime.job.secrets import SecretRef
from joinery_runtime.job.sql import Table, Translation, translate
from joinery_runtime.job.steps import Interval, JoinStep, Reference, SelectItem, parse_reference
from joinery_runtime.job.types import ColumnType

API_VERSION: Literal["joinery.dev/v1alpha1"] = "joinery.dev/v1alpha1"
RULES_BROKEN = "rules_broken"  # type of the one pydantic error that carries all cross-field findings

Name = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
]


Quantity = Annotated[str, StringConstraints(pattern=r"^([0-9]+m|[0-9]+(\.[0-9]{1,3})?)$", max_length=16)]
JvmMemory = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}[mMgG]$")]


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


class Toleration(Model):
    """As in a pod."""

    key: Text | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Int | None = None


class TemplateRef(SecretRef):
    """A ConfigMap that holds a pod under this key: whatever it says beyond what the operator sets is kept (volumes,
    affinity, environment, annotations)."""

    key: Text = "pod.yaml"


class Driver(Model):
    """For the operator; without meaning on a laptop. `memory` is the JVM's heap, as 1g; the pod asks for more."""

    cores: Annotated[Int, Field(ge=1)] = 1
    core_request: (
        Annotated[Quantity, Field(description="CPU that the pod requests, as 200m; default: cores.")] | None
    ) = None
    memory: JvmMemory = "1g"
    node_selector: dict[str, Setting] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    pod_template: TemplateRef | None = None


class Executor(Driver):
    """For the operator; without meaning on a laptop. With `maxInstances`, Spark adds executors up to that while
    tasks wait, and takes idle ones away down to `instances`."""

    instances: Annotated[Int, Field(ge=1)] = 2
    max_instances: Annotated[Int, Field(ge=1)] | None = None


class LocalRef(SecretRef):
    """An object of the job's namespace, by name."""


class SparkSpec(Model):
    """`conf` counts everywhere; all else is for the operator."""

    image: Text | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[LocalRef, ...] = ()
    service_account: Text | None = None
    driver: Driver = Driver()
    executor: Executor = Executor()
    conf: dict[str, Setting] = Field(default_factory=dict)


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
class KeyPair:
    """Column names of one equality: `left.<left> = right.<right>`."""

    left: str
    right: str


@dataclass(frozen=True, slots=True)
class OutputColumn:
    name: str
    source: Reference
    type: ColumnType


class StreamJoin(Model):
    """A valid interval join of two inputs. Constructing one in Python applies the same rules as loading a file."""

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

    @property
    def left(self) -> Input:
        return self.spec.inputs[0]

    @property
    def right(self) -> Input:
        return self.spec.inputs[1]

    @property
    def joins(self) -> tuple[JoinStep, ...]:
        """`spec.joins`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        return self.spec.joins if sql is None else (JoinStep.model_validate(sql.step),)

    @property
    def select(self) -> tuple[SelectItem, ...] | None:
        """`spec.select`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        return self.spec.select if sql is None else tuple(SelectItem.model_validate(item) for item in sql.select)

    @property
    def _from_sql(self) -> Translation | None:
        if self.spec.sql is None:
            return None
        left, right = (
            Table(side.name, tuple(side.types), side.event_time, side.types[side.event_time].name == "int64")
            for side in self.spec.inputs
        )
        return translate(self.spec.sql, (left, right))

    @property
    def step(self) -> JoinStep:
        return self.joins[0]

    @property
    def interval(self) -> Interval:
        interval = self.step.interval
        assert interval is not None, "broken_rules refuses a step without an interval"
        return interval

    @property
    def key_pairs(self) -> tuple[KeyPair, ...]:
        pairs = ((parse_reference(left), parse_reference(right)) for left, right in self.step.keys.items())
        return tuple(KeyPair(left.column, right.column) for left, right in pairs if left and right)

    @property
    def output_columns(self) -> tuple[OutputColumn, ...]:
        """What goes out, in order: the select list, else every column as left_<name> and right_<name> (rule J10)."""
        types = {side.name: side.types for side in self.spec.inputs}
        chosen = self.select
        named = self._selected(chosen) if chosen else self._every_column()
        return tuple(OutputColumn(name, source, types[source.input][source.column]) for name, source in named)

    def _selected(self, chosen: tuple[SelectItem, ...]) -> list[tuple[str, Reference]]:
        pairs = ((item.as_, parse_reference(item.column)) for item in chosen)
        return [(name or source.column, source) for name, source in pairs if source]

    def _every_column(self) -> list[tuple[str, Reference]]:
        return [
            (f"{prefix}_{column}", Reference(side.name, column))
            for prefix, side in (("left", self.left), ("right", self.right))
            for column in side.types
        ]

    @property
    def dead_letter_kafka(self) -> DeadLetterKafka | None:
        """The dead-letter topic with its address and settings filled in, if dead letters go to Kafka."""
        target = self.spec.dead_letter.kafka if self.spec.dead_letter else None
        if target is None:
            return None
        sources = [side for side in (self.spec.output.kafka, self.left.kafka, self.right.kafka) if side]
        same = next((side for side in sources if target.bootstrap_servers in {None, side.bootstrap_servers}), None)
        filled = {
            "bootstrap_servers": target.bootstrap_servers or (same.bootstrap_servers if same else None),
            "properties": target.properties if target.properties is not None else same.properties if same else {},
        }
        return target.model_copy(update=filled)
