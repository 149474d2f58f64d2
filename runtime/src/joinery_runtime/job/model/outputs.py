"""Models of `spec.output`, `spec.outputs`, `spec.deadLetter` and `spec.stateStore`: where rows and state go."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from joinery_runtime.job.model.base import (
    Bool,
    ByteCount,
    FilePath,
    Int,
    Length,
    Model,
    SecretKeyRef,
    SecretRef,
    Setting,
    TablePath,
    Text,
    not_yet,
)
from joinery_runtime.job.model.inputs import SchemaRegistry, Topic

ONLY_OUTPUT = "output"
"""The name of the output of a job that has `output`, and no `outputs`."""


class KafkaOutput(Model):
    """A topic to write."""

    bootstrap_servers: Text = Field(examples=["kafka-0:9092,kafka-1:9092"])
    """Addresses of brokers, `host:port`, separated by commas."""
    topic: Topic = Field(examples=["orders-paid"])
    """The topic to write. It must exist."""
    key: tuple[Text, ...] = Field(default=(), examples=[["order_id"]])
    """Output columns that make the record's key: one text column as it is, else a JSON object. Without them records
    have no key."""
    key_order: Bool = False
    """Whether rows go to the shard of their key before they are written, so that records of one key are in order within
    an epoch. Needed where `key` lacks a column of the last join's key or a group of an aggregate, and where an outer or
    anti join emits rows that its own `where` rules out."""
    headers: dict[Text, Text] = Field(default_factory=dict, examples=[{"trace-id": "trace_id"}])
    """Output columns that are written as headers too, by the header's name: text and bytes as they are, other values as
    in JSON. A null writes no header."""
    properties: dict[str, Setting] = Field(default_factory=dict, repr=False, examples=[{"linger.ms": 50}])
    """Settings of librdkafka by their names. Secret ones belong in `propertiesSecretRef`."""
    properties_secret_ref: SecretRef | None = None
    """A secret whose keys are names of librdkafka's settings."""


class PostgresOutput(Model):
    """A table. In the state store's database its rows are written in the commit's transaction; in another one, which
    `dsn` or `dsn_secret_ref` names, in a transaction right after it."""

    table: Text = Field(examples=["reports.orders_paid"])
    """The table, `name` or `schema.name`. It is created if it is missing."""
    upsert_key: tuple[Text, ...] = Field(default=(), examples=[["order_id"]])
    """Output columns by which a row replaces the one with the same values. Without them every row is inserted."""
    table_owner: Text | None = Field(default=None, examples=["reports_admin"])
    """The role that owns the table, if it is not the job's own: that role may have code run with the job's
    permissions, by triggers. A table of any other role is rejected."""
    allow_triggers: Bool = False
    """Whether the table may have triggers and rules. They run with the job's permissions. If false, such a table is
    rejected."""
    dsn: Annotated[Text | None, Field(repr=False)] = Field(default=None, examples=["postgresql://reports.db/shop"])
    """The table's database, as libpq has it: `postgresql://host/database` or `host=... dbname=...`. If absent, the
    state store's."""
    dsn_secret_ref: SecretKeyRef | None = None
    """The secret, and the key in it, that holds the dsn, instead of `dsn`."""

    @property
    def is_external(self) -> bool:
        """Whether the table is in another database than the state."""
        return self.dsn is not None or self.dsn_secret_ref is not None


FileFormat = Literal["json", "parquet"]
Timestamps = Literal["epochMillis", "rfc3339"]


class FileOutput(Model):
    """Files in a folder: some for each epoch, which are there with its commit, or, with `roll_size` or `roll_interval`,
    fewer and larger ones later."""

    path: FilePath = Field(examples=["out/orders-paid"])
    """The folder to write. A relative path counts from the job file's folder."""
    roll_size: ByteCount | None = Field(default=None, examples=["128Mi"])
    """Smaller files are held back until they have this size together, and are then merged into one. If absent, 128Mi
    where `roll_interval` is given; without both, nothing is held back."""
    roll_interval: Length | None = Field(default=None, examples=["5m"])
    """Maximum time to hold rows back, a duration. If absent, 1m where `roll_size` is given."""

    @property
    def rolling(self) -> tuple[int, int] | None:
        """Bytes and ms, None where each epoch's files are visible at once."""
        if self.roll_size is None and self.roll_interval is None:
            return None
        return self.roll_size or 128 << 20, self.roll_interval or 60_000


class ConsoleOutput(Model):
    """The driver's standard output, to try a job out."""

    rows: Annotated[Int, Field(ge=1, le=1000)] = Field(default=20, examples=[50])
    """Number of rows to show of each epoch. The others are only counted."""


LAKES = ("iceberg", "delta")
"""Outputs that are tables of Parquet files, by their fields of `Output`."""


class IcebergOutput(Model):
    """An Iceberg table, in `pip install 'joinery-runtime[lakehouse]'`. Each epoch with rows is one snapshot of it."""

    table: Annotated[Text, Field(pattern=r"^[^.]+(\.[^.]+)+$")] = Field(examples=["shop.orders_paid"])
    """The table, `namespace.name`. It is created if it is missing, and so is its namespace."""
    catalog: Text = Field(default="default", examples=["lake"])
    """The catalog's name; a SQL catalog keeps tables under it."""
    properties: dict[str, Setting] = Field(
        default_factory=dict, repr=False, examples=[{"type": "rest", "uri": "http://catalog:8181"}]
    )
    """PyIceberg's settings of the catalog and its files by their names: `type` (`sql`, `rest`), `uri`, `warehouse`,
    `s3.endpoint`. Secret ones belong in `propertiesSecretRef`."""
    properties_secret_ref: SecretRef | None = None
    """A secret whose keys are names of PyIceberg's settings."""


class DeltaOutput(Model):
    """A Delta table, in `pip install 'joinery-runtime[lakehouse]'`. Each epoch with rows is one version of it."""

    path: TablePath = Field(examples=["s3://lake/orders_paid"])
    """The table's folder, or an address of an object store (`s3://bucket/table`). The table is created if it is
    missing. A relative path counts from the job file's folder."""
    properties: dict[str, Setting] = Field(default_factory=dict, repr=False, examples=[{"AWS_REGION": "eu-central-1"}])
    """Storage options of delta-rs by their names: `AWS_REGION`, `AWS_ENDPOINT_URL`. Secret ones belong in
    `propertiesSecretRef`."""
    properties_secret_ref: SecretRef | None = None
    """A secret whose keys are names of delta-rs' storage options."""


class Output(Model):
    """Exactly one of `kafka`, `postgres`, `file`, `iceberg`, `delta` and `console`."""

    KINDS: ClassVar = ("kafka", "postgres", "file", "iceberg", "delta", "console")

    kafka: KafkaOutput | None = None
    """Writes to a topic."""
    postgres: PostgresOutput | None = None
    """Writes to a table."""
    file: FileOutput | None = None
    """Writes files into a folder."""
    iceberg: IcebergOutput | None = None
    """Appends to an Iceberg table."""
    delta: DeltaOutput | None = None
    """Appends to a Delta table."""
    console: ConsoleOutput | None = None
    """Shows the first rows of each epoch, and keeps none."""
    format: Annotated[
        Literal["json", "parquet", "avro", "protobuf"],
        not_yet("output format {}", "csv", todo="use json, parquet in files, or avro or protobuf in Kafka"),
    ] = "json"
    """How rows are encoded in Kafka and files: `json`, in files also `parquet`, in Kafka also `avro` and `protobuf`,
    by a schema registry."""
    schema_registry: SchemaRegistry | None = None
    """Where the schema of the rows is registered, as `<topic>-value`, for `format: avro` and `protobuf`. Records
    begin with its number."""
    timestamps: Timestamps = "epochMillis"
    """How JSON writes timestamps: as whole milliseconds since 1970, or as text in UTC (`rfc3339`:
    2026-01-15T10:00:00.000Z)."""
    window_times: Literal["int64", "timestamp"] = "int64"
    """The type of `window_start` and `window_end`: `int64` milliseconds since 1970, or `timestamp`, which is
    `timestamptz` in Postgres."""


class WrittenColumn(Model):
    """One column that an output has."""

    column: Text = Field(examples=["order_id"])
    """A column of the job's rows."""
    as_: Annotated[Text | None, Field(alias="as")] = Field(default=None, examples=["id"])
    """The name that the column has in this output; if absent, its own."""


class NamedOutput(Output):
    """One of several outputs: some of the job's rows, and some of their columns."""

    name: Annotated[Text, Field(max_length=40, pattern=r"^[a-z]([a-z0-9_]*[a-z0-9])?$")] = Field(examples=["unpaid"])
    """The output's name in messages, in `joinery sql` and in stored state."""
    when: Text | None = Field(default=None, examples=["amount IS NULL"])
    """An SQL condition over the job's rows, by the names of their columns: the output has the rows for which it is
    true. Without it, every row."""
    select: Annotated[tuple[WrittenColumn, ...], Field(min_length=1)] | None = None
    """The columns that the output has, in this order. If absent, every column."""

    @classmethod
    def only(cls, output: Output) -> Self:
        """Name the output of a job that has one."""
        fields = {field: getattr(output, field) for field in Output.model_fields}
        return cls.model_construct(output.model_fields_set, name=ONLY_OUTPUT, **fields)


class DeadLetterKafka(Model):
    """A topic for unusable records. What is not named here is taken from the Kafka output, else from the inputs if
    these all agree (`StreamJoin.dead_letter_kafka`); `properties` and `properties_secret_ref` go together: where one is
    named, neither is taken from elsewhere."""

    topic: Topic = Field(examples=["orders-paid.dead"])
    """The topic to write. It must exist."""
    bootstrap_servers: Text | None = Field(default=None, examples=["kafka-0:9092,kafka-1:9092"])
    """Addresses of brokers, `host:port`, separated by commas; if absent, those of the Kafka output, else of the
    inputs."""
    properties: Annotated[dict[str, Setting] | None, Field(repr=False)] = Field(
        default=None, examples=[{"linger.ms": 50}]
    )
    """Settings of librdkafka by their names; if absent, those of the same brokers elsewhere in the job."""
    properties_secret_ref: SecretRef | None = None
    """A secret whose keys are names of librdkafka's settings; goes with `properties`."""


class DeadLetter(Model):
    """Exactly one of `kafka` and `file`. The job's `delivery` holds for Kafka dead letters too; files never repeat."""

    KINDS: ClassVar = ("kafka", "file")

    kafka: DeadLetterKafka | None = None
    """Writes to a topic."""
    file: FileOutput | None = None
    """Writes files into a folder."""


class PostgresStoreSpec(Model):
    """A database and the schema in it that holds Joinery's tables: exactly one of `dsn` (it may hold a password) and
    `dsn_secret_ref`."""

    dsn: Annotated[Text | None, Field(repr=False)] = Field(default=None, examples=["postgresql://state.db/joinery"])
    """The database, as libpq has it: `postgresql://host/database` or `host=... dbname=...`."""
    dsn_secret_ref: SecretKeyRef | None = None
    """The secret, and the key in it, that holds the dsn."""
    schema_name: Annotated[Text, Field(alias="schema")] = Field(default="joinery", examples=["joinery_shop"])
    """The schema for Joinery's tables. It is created if it is missing."""
    epoch_log_retention: Length | None = Field(default=None, examples=["720h"])
    """How long committed plans and results are kept, a duration; if absent, only their number and bytes bound the
    log."""


class MemoryStoreSpec(Model):
    """State in the driver's memory: lost when the job stops."""


class PeriodicSavepoints(Model):
    """Savepoints that the driver makes by itself, named `periodic-<epoch>`."""

    every: Length = Field(examples=["1h"])
    """Time between two savepoints, a duration. Savepoints are made at checkpoints, so `checkpointInterval` is the
    shortest."""
    keep: Annotated[Int, Field(ge=1, le=1000)] = Field(default=7, examples=[24])
    """Number of savepoints to keep, the newest ones. Each keeps its segments in the database."""


class StartingSavepoint(Model):
    """A savepoint of another job of the same namespace, in the same Postgres and schema."""

    job: Text = Field(examples=["orders-paid"])
    """That job's name."""
    savepoint: Text = Field(examples=["before-the-sale"])
    """The savepoint's name."""


class StoreSpec(Model):
    """At most one of `postgres` and `memory`; with neither, an embedded Postgres."""

    KINDS: ClassVar = ("postgres", "memory")

    postgres: PostgresStoreSpec | None = None
    """A Postgres of your own."""
    memory: MemoryStoreSpec | None = None
    """Keeps the state in the driver's memory: it is lost when the job stops. Only if all tasks run on the driver's
    machine."""
    checkpoint_interval: Length = Field(default=60_000, examples=["5m"])
    """How often state is compacted, a duration: this bounds the segments that a recovery reads. Every epoch commits
    anyway."""
    savepoints: PeriodicSavepoints | None = None
    """Periodic savepoints to go back to, beside your own and those of rollouts."""
    start_from: StartingSavepoint | None = None
    """Where a job without state begins: with a copy of another job's state and offsets. A job that already has state
    keeps it, and ignores this field."""

    @property
    def kind(self) -> str:
        """One of KINDS, or `embedded`."""
        return next((name for name in self.KINDS if getattr(self, name) is not None), "embedded")
