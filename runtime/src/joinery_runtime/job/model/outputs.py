"""Models of `spec.output`, `spec.deadLetter` and `spec.stateStore`: where rows and state go."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from joinery_runtime.job.model.base import FilePath, Model, PositiveDuration, Setting, Text, not_yet
from joinery_runtime.job.model.inputs import Topic
from joinery_runtime.job.model.secrets import SecretKeyRef, SecretRef


class KafkaOutput(Model):
    """A topic to write; `key` names the output columns that make the record key, as a JSON object."""

    bootstrap_servers: Text
    topic: Topic
    key: tuple[Text, ...] = ()
    properties: dict[str, Setting] = Field(default_factory=dict, repr=False)
    properties_secret_ref: SecretRef | None = None


class PostgresOutput(Model):
    """A table in the state store's database, written in the commit's transaction. With `upsert_key` (output columns) a
    row replaces the one with the same key. `dsn` may only repeat the state store's."""

    table: Text
    upsert_key: tuple[Text, ...] = ()
    dsn: Annotated[str | None, Field(repr=False)] = None


class FileOutput(Model):
    """JSON lines. A relative path counts from the job file's folder."""

    path: FilePath


class Output(Model):
    """Exactly one of `kafka`, `postgres` and `file`."""

    KINDS: ClassVar = ("kafka", "postgres", "file")

    kafka: KafkaOutput | None = None
    postgres: PostgresOutput | None = None
    file: FileOutput | None = None
    format: Annotated[
        Literal["json"], not_yet("output format {}", "csv", "avro", "protobuf", "parquet", todo="use json")
    ] = "json"


class DeadLetterKafka(Model):
    """A topic for unusable records. What is not named here is taken from the Kafka output, else from the inputs if
    these all agree (`StreamJoin.dead_letter_kafka`); `properties` and `properties_secret_ref` go together: where one is
    named, neither is taken from elsewhere."""

    topic: Topic
    bootstrap_servers: Text | None = None
    properties: Annotated[dict[str, Setting] | None, Field(repr=False)] = None
    properties_secret_ref: SecretRef | None = None


class DeadLetter(Model):
    """Exactly one of `kafka` and `file`. The job's `delivery` holds for Kafka dead letters too; files never repeat."""

    KINDS: ClassVar = ("kafka", "file")

    kafka: DeadLetterKafka | None = None
    file: FileOutput | None = None


class PostgresStoreSpec(Model):
    """A database and the schema in it that holds Joinery's tables. `dsn` is libpq's, and may hold a password; exactly
    one of it and `dsn_secret_ref` is named. `epoch_log_retention` (milliseconds) is how long committed plans and
    results are kept; without it their number and bytes alone bound the log."""

    dsn: Annotated[Text | None, Field(repr=False)] = None
    dsn_secret_ref: SecretKeyRef | None = None
    schema_name: Annotated[Text, Field(alias="schema")] = "joinery"
    epoch_log_retention: Annotated[PositiveDuration, Field(gt=0)] | None = None


class MemoryStoreSpec(Model):
    """State in the driver's memory: lost when the job stops."""


class StoreSpec(Model):
    """At most one of `postgres` and `memory`; with neither, an embedded Postgres. `checkpoint_interval` (milliseconds)
    bounds the small segments that a recovery reads, by compaction; every epoch commits anyway."""

    KINDS: ClassVar = ("postgres", "memory")

    postgres: PostgresStoreSpec | None = None
    memory: MemoryStoreSpec | None = None
    checkpoint_interval: Annotated[PositiveDuration, Field(gt=0)] = 60_000

    @property
    def kind(self) -> str:
        """One of KINDS, or `embedded`."""
        return next((name for name in self.KINDS if getattr(self, name) is not None), "embedded")
