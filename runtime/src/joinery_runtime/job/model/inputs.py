"""Models of `spec.inputs[]`: where records come from, how they decode, and how their event time moves."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag

from joinery_runtime.job.model.base import (
    Bool,
    DurationOrOff,
    EpochMs,
    FilePath,
    Int,
    Model,
    PositiveDuration,
    Setting,
    Text,
    TypeField,
    not_yet,
)
from joinery_runtime.job.model.secrets import SecretRef
from joinery_runtime.job.model.types import ColumnType


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression of Python's re: {error}; correct it") from error
    return pattern


Topic = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
TopicPattern = Annotated[Text, AfterValidator(_regular_expression)]
NonNegative = Annotated[Int, Field(ge=0)]

# "<...>" marks a union's branch in pydantic's error locations; it is no part of the path in the file.
BRANCH_AT, BRANCH_TIME, BRANCH_OFFSETS = "<word>", "<timestamp>", "<offsets>"


class AtTimestamp(Model):
    """Per partition, the first record whose Kafka timestamp is at or after this: epoch milliseconds."""

    timestamp: EpochMs


class AtOffsets(Model):
    """Kafka offsets by partition number: the next record to read, or for `stopAt` the first one not to read."""

    offsets: Annotated[dict[Annotated[int, Field(ge=0)], NonNegative], Field(min_length=1)]


def _branch(value: Any) -> str | None:
    if isinstance(value, str):
        return BRANCH_AT
    keys = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, Model) else ()
    return next((tag for key, tag in (("timestamp", BRANCH_TIME), ("offsets", BRANCH_OFFSETS)) if key in keys), None)


def _position(values: str) -> Discriminator:
    message = f"must be {values}, {{timestamp: ...}} or {{offsets: {{'0': 5}}}}"
    return Discriminator(_branch, custom_error_type="position", custom_error_message=message)


StartFrom = Annotated[
    Annotated[Literal["earliest", "latest"], Tag(BRANCH_AT)]
    | Annotated[AtTimestamp, Tag(BRANCH_TIME)]
    | Annotated[AtOffsets, Tag(BRANCH_OFFSETS)],
    _position("earliest, latest"),
]
StopAt = Annotated[
    Annotated[Literal["latest"], Tag(BRANCH_AT)]
    | Annotated[AtTimestamp, Tag(BRANCH_TIME)]
    | Annotated[AtOffsets, Tag(BRANCH_OFFSETS)],
    _position("latest"),
]


class KafkaInput(Model):
    """A Kafka topic, or all topics whose whole names match a regular expression of Python's `re` (internal ones, which
    begin with two underscores, never do): exactly one of `topic` and `topic_pattern`. `start_from` counts only for
    partitions without a stored offset; partitions that its `offsets` do not name, and those that appear later, start at
    the earliest record. `stop_at` makes the input bounded; partitions that its `offsets` do not name stop at their end
    when the job first starts. `properties` are librdkafka's; those that are secret belong in the secret that
    `properties_secret_ref` names (`hosts/secrets.py` merges them)."""

    bootstrap_servers: Text
    topic: Topic | None = None
    topic_pattern: TopicPattern | None = None
    start_from: StartFrom = "earliest"
    stop_at: Annotated[StopAt | None, BeforeValidator(lambda value: None if value == {} else value)] = None
    on_data_loss: Literal["fail", "continue"] = "fail"
    properties: dict[str, Setting] = Field(default_factory=dict, repr=False)
    properties_secret_ref: SecretRef | None = None

    @property
    def topics(self) -> str:
        """What is read, for messages."""
        return f"topic {self.topic}" if self.topic_pattern is None else f"topics like {self.topic_pattern!r}"


class FileInput(Model):
    """A file read once from start to end: a bounded input. A relative path counts from the job file's folder."""

    path: FilePath


class Column(Model):
    """One column of an input's rows. The names of engine columns start with `$`, so no user column may."""

    name: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^$\x00-\x1f]")]
    type: TypeField


class Watermark(Model):
    """How an input's watermark moves (docs/semantics.md#time). `idle_timeout` 0 switches idleness off. A record whose
    event time is more than `max_future` ahead goes to the dead letters and moves nothing; "off" takes any. With
    `explicit` only the steps of `joinery trace` raise the watermark."""

    delay: PositiveDuration = 0
    idle_timeout: PositiveDuration = 60_000
    on_idle: Literal["hold", "advance"] = "hold"
    max_future: DurationOrOff = 24 * 3_600_000
    explicit: Bool = False


class Table(Model):
    """An input that is a changelog: each row is the version of its `key` columns from its event time on
    (docs/semantics.md#a1).

    A record without a value deletes: its key columns come from the record's own key, read by `key_format` (`json`: an
    object that has them; `string`: the one key column as text), its event time is the Kafka record's timestamp."""

    key: Annotated[tuple[Text, ...], Field(min_length=1)]
    key_format: Literal["json", "string"] = "json"


class Input(Model):
    """One input: exactly one of `kafka` and `file`. `event_time` names a timestamp or int64 (milliseconds) column.
    `table` is for the right input of an as-of step."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    kafka: KafkaInput | None = None
    file: FileInput | None = None
    format: Annotated[
        Literal["json", "csv"], not_yet("format {}", "avro", "protobuf", "parquet", todo="use json or csv")
    ]
    columns: Annotated[tuple[Column, ...], Field(alias="schema", min_length=1)]
    event_time: Text
    watermark: Watermark = Watermark()
    table: Table | None = None

    @property
    def bounded(self) -> bool:
        """Whether the input ends by itself (rule T7)."""
        return self.file is not None or (self.kafka is not None and self.kafka.stop_at is not None)

    @property
    def types(self) -> dict[str, ColumnType]:
        """Column types by name, in schema order."""
        return {column.name: column.type for column in self.columns}
