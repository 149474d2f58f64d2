"""Models of `spec.inputs[]`: where records come from, how they decode, and how their event time moves."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag, ValidationInfo

from joinery_runtime.job.model.base import (
    OFF,
    Bool,
    ColumnType,
    DurationOrOff,
    EpochMs,
    FilePath,
    Int,
    Model,
    PositiveDuration,
    SecretRef,
    Setting,
    ShareOrOff,
    Text,
    TypeField,
)
from joinery_runtime.job.model.references import Path, parse_path
from joinery_runtime.job.model.time_formats import checked_format, checked_zone
from joinery_runtime.job.model.wording import listed


def _check_regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression of Python's re: {error}; correct it") from error
    return pattern


def _check_format(text: str, info: ValidationInfo) -> str:
    as_stored = isinstance(info.context, dict) and info.context.get("as_stored")
    return text if as_stored else checked_format(text)


def _check_path(text: str) -> str:
    parse_path(text)
    return text


ORIGINS = ("key", "timestamp", "partition", "offset", "topic", "envelope")
_HEADERS = "headers."


def header_of(origin: str) -> str | None:
    """Return the name of the header that an origin refers to; None for any other origin."""
    return origin.removeprefix(_HEADERS) if origin.startswith(_HEADERS) else None


def _check_origin(text: str) -> str:
    if text not in ORIGINS and not header_of(text):
        origin, _, rest = text.partition(".")
        hint = f" (did you mean from: {origin}, path: {rest}?)" if rest and origin in {"key", "envelope"} else ""
        hint = hint or (f" (did you mean {_HEADERS}{rest}?)" if rest and origin == "header" else "")
        raise ValueError(f"{text!r} is nothing that a record has{hint}; write {', '.join(ORIGINS)} or {_HEADERS}<name>")
    return text


Topic = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
TopicPattern = Annotated[Text, AfterValidator(_check_regular_expression)]
NonNegative = Annotated[Int, Field(ge=0)]

# "<...>" names a union's branch in pydantic's error locations; it is not part of the path in the file.
BRANCH_AT, BRANCH_TIME, BRANCH_OFFSETS = "<word>", "<timestamp>", "<offsets>"


class AtTimestamp(Model):
    """Per partition, the first record whose Kafka timestamp is at or after this: epoch milliseconds."""

    timestamp: EpochMs = Field(examples=["2026-01-15T10:00:00Z"])
    """The time, as RFC 3339 text with its offset or as milliseconds since 1970."""


class AtOffsets(Model):
    """Kafka offsets by partition number: the next record to read, or for `stopAt` the first one not to read."""

    offsets: Annotated[dict[Annotated[int, Field(ge=0)], NonNegative], Field(min_length=1)] = Field(
        examples=[{"0": 1200, "1": 980}]
    )
    """Offset by partition number, for example `{'0': 5}`."""


def _choose_branch(value: Any) -> str | None:
    if isinstance(value, str):
        return BRANCH_AT
    keys = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, Model) else ()
    return next((tag for key, tag in (("timestamp", BRANCH_TIME), ("offsets", BRANCH_OFFSETS)) if key in keys), None)


def _discriminate_position(values: str) -> Discriminator:
    message = f"must be {values}, {{timestamp: ...}} or {{offsets: {{'0': 5}}}}"
    return Discriminator(_choose_branch, custom_error_type="position", custom_error_message=message)


StartFrom = Annotated[
    Annotated[Literal["earliest", "latest"], Tag(BRANCH_AT)]
    | Annotated[AtTimestamp, Tag(BRANCH_TIME)]
    | Annotated[AtOffsets, Tag(BRANCH_OFFSETS)],
    _discriminate_position("earliest, latest"),
]
StopAt = Annotated[
    Annotated[Literal["latest"], Tag(BRANCH_AT)]
    | Annotated[AtTimestamp, Tag(BRANCH_TIME)]
    | Annotated[AtOffsets, Tag(BRANCH_OFFSETS)],
    _discriminate_position("latest"),
]


class KafkaInput(Model):
    """Topics of Kafka: exactly one of `topic`, `topics` and `topic_pattern`. `hosts/secrets.py` merges the settings of
    `properties_secret_ref` into `properties`."""

    bootstrap_servers: Text = Field(examples=["kafka-0:9092,kafka-1:9092"])
    """Addresses of brokers, `host:port`, separated by commas."""
    topic: Topic | None = Field(default=None, examples=["orders"])
    """The topic to read."""
    topics: Annotated[tuple[Topic, ...], Field(min_length=1)] | None = Field(
        default=None, examples=[["orders-eu", "orders-us"]]
    )
    """The topics to read as one input: their records have one format, and count as if they were in one topic. The order
    of the names has no meaning."""
    topic_pattern: TopicPattern | None = Field(default=None, examples=[r"shop\.orders\..*"])
    """A regular expression of Python's `re`: every topic whose whole name matches is read, also one that appears
    later. Topics whose names begin with two underscores never match."""
    start_from: StartFrom = Field(default="earliest", examples=["latest", {"timestamp": "2026-01-15T10:00:00Z"}])
    """Where reading begins in partitions without a stored offset: `earliest`, `latest`, `{timestamp: ...}` or
    `{offsets: {...}}`. Partitions that `offsets` does not name, and those that appear later, begin at the earliest
    record."""
    stop_at: Annotated[StopAt | None, BeforeValidator(lambda value: None if value == {} else value)] = Field(
        default=None, examples=["latest", {"offsets": {"0": 1200}}]
    )
    """Makes the input bounded: `latest` (the ends when the job first starts), `{timestamp: ...}` or `{offsets:
    {...}}`. Partitions that `offsets` does not name stop at their ends."""
    on_data_loss: Literal["fail", "continue"] = "fail"
    """When records were deleted before they were read: `fail` stops the job, `continue` counts them and continues."""
    properties: dict[str, Setting] = Field(default_factory=dict, repr=False, examples=[{"fetch.min.bytes": 65536}])
    """Settings of librdkafka by their names. Secret ones belong in `propertiesSecretRef`."""
    properties_secret_ref: SecretRef | None = None
    """A secret whose keys are names of librdkafka's settings."""

    @property
    def named_topics(self) -> frozenset[str]:
        """The topics that the job names; none for a pattern."""
        return frozenset(self.topics or ([] if self.topic is None else [self.topic]))

    @property
    def source_name(self) -> str:
        """What is read, for messages."""
        if self.topic_pattern is not None:
            return f"topics like {self.topic_pattern!r}"
        names = sorted(self.topics or [self.topic or ""])
        return f"{'topic' if len(names) == 1 else 'topics'} {listed(names)}"


class FileInput(Model):
    """Files that are read once, from start to end: a bounded input, unless their directory is watched."""

    path: FilePath = Field(examples=["data/orders/*.csv"])
    """A file, a directory (its files that are not hidden), or a pattern with `*`, `?`, `[abc]` and `**`. A relative
    path counts from the job file's folder. Files of gzip and zstd are unpacked (not Parquet)."""
    watch: Bool = False
    """Reads also each file that is moved to where `path` leads later, in order of the paths: the input never ends. A
    directory is watched without those below it, a pattern in all directories that fit. CSV then needs
    `csv: {header: false}`."""


def _check_one_byte(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in "\r\n":
        raise ValueError(f'{text!r} must be one ASCII character; write a tab as "\\t" in double quotes')
    return text


def _check_quote(value: Any) -> str:
    """Check a character or `off`. YAML 1.1, which Kubernetes reads, takes an unquoted `off` for false."""
    return OFF if value is False or value == OFF else _check_one_byte(str(value))


class CsvDialect(Model):
    """How CSV is written."""

    separator: Annotated[Text, AfterValidator(_check_one_byte)] = Field(default=",", examples=[";"])
    """The character between two fields."""
    quote: Annotated[str, BeforeValidator(_check_quote)] = Field(default='"', examples=["off"])
    """The character around fields that hold a separator or a line break, doubled inside them; `off` for none."""
    decimal: Literal[".", ","] = Field(default=".", examples=[","])
    """What stands before the fraction of a number. With a comma, numbers have no points, also none of thousands."""
    skip_initial_space: Bool = False
    """Skips blanks after a separator."""
    header: Bool = True
    """The first line of a file names its columns. Without it, and from Kafka, fields come in the schema's order."""


class History(Model):
    """Files with what came before the records of a topic: a row of the files counts if its event time is before
    `until`, a record of the topic if its event time is not (rule T12). The files are read first."""

    path: FilePath = Field(examples=["history/orders/*.jsonl"])
    """A file, a directory (its files that are not hidden), or a pattern with `*`, `?`, `[abc]` and `**`. A relative
    path counts from the job file's folder."""
    format: Literal["json", "csv", "parquet", "debezium-json"]
    """How the files are encoded. They have the columns of the input's `schema`; a column `from` something else of a
    Kafka record is a field of its name there."""
    until: EpochMs = Field(examples=["2026-01-15T10:00:00Z"])
    """The event time up to which the files are complete, as RFC 3339 text with its offset or as milliseconds since
    1970: rows of the files from this time on are not counted, nor are records of the topic from before it."""
    csv: CsvDialect | None = None
    """How CSV is written, for `format: csv`. Default: with commas, double quotes and a header."""


class SchemaRegistry(Model):
    """Confluent's Schema Registry, or one with its interface: records begin with the number of their schema.
    `hosts/secrets.py` merges the settings of `properties_secret_ref` into `properties`."""

    url: Annotated[Text, StringConstraints(pattern=r"^https?://")] = Field(examples=["http://registry:8081"])
    """Its address, `http://host:port`; several are separated by commas."""
    properties: dict[str, Setting] = Field(
        default_factory=dict, repr=False, examples=[{"ssl.ca.location": "/etc/ssl/registry.pem"}]
    )
    """Settings of confluent-kafka's registry client by their names, such as `ssl.ca.location`. Secret ones, such as
    `basic.auth.user.info`, belong in `propertiesSecretRef`."""
    properties_secret_ref: SecretRef | None = None
    """A secret whose keys are names of such settings."""


class Column(Model):
    """One column of an input's rows. The names of engine columns start with `$`, so no user column may."""

    name: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^$\x00-\x1f]")] = Field(examples=["order_id"])
    """The name, as records have it."""
    type: TypeField = Field(examples=["string"])
    """boolean, int32, int64, float, double, string, binary, decimal(p,s), date, timestamp or json."""
    path: Annotated[Text, AfterValidator(_check_path)] | None = Field(default=None, examples=["payload.after.id"])
    """Where the value is in a nested record: names and positions, for example `payload.after.id` or `items[0].sku`; a
    name with dots is quoted, `"a.b".c`. Default: the field `name` of the record itself."""
    origin: Annotated[Text, AfterValidator(_check_origin)] | None = Field(
        default=None, alias="from", examples=["headers.trace-id"]
    )
    """Which part of a Kafka record the column is, instead of its value: `key`, `timestamp`, `partition`, `offset`,
    `topic` or `headers.<name>` (the last one of that name). With `path`, a part of a key that is JSON, or Avro in the
    frame of `schemaRegistry`. `envelope`, with `path`, is a part of a Debezium change event beside the row."""

    format: Annotated[Text, AfterValidator(_check_format)] | None = Field(default=None, examples=["%d.%m.%Y %H:%M:%S"])
    """How a time is written: `s`, `ms`, `us` or `ns` (a number since 1970, of that unit), `iso` (ISO 8601, with a space
    or without an offset too) or a pattern of strptime such as `%d.%m.%Y %H:%M:%S`; of a date a pattern. `text` takes
    numbers and booleans in quotes too. Default: milliseconds or RFC 3339."""
    zone: Annotated[Text, AfterValidator(checked_zone)] | None = Field(default=None, examples=["Europe/Berlin"])
    """The time zone of times without an offset, for example `Europe/Berlin`."""

    @property
    def steps(self) -> Path:
        """From the record to the value."""
        return (self.name,) if self.path is None else parse_path(self.path)


class Watermark(Model):
    """How an input's watermark moves (docs/semantics.md#time). Durations are milliseconds here; `max_future` None takes
    any time."""

    delay: PositiveDuration = Field(default=0, examples=["10s"])
    """How far the watermark stays behind the highest event time, a duration: rows may be this much out of order."""
    idle_timeout: PositiveDuration = Field(default=60_000, examples=["5m"])
    """A partition without new records for this long (a duration) is idle, and holds the watermark back no more. 0
    switches idleness off."""
    on_idle: Literal["hold", "advance"] = "hold"
    """What an input does while all its partitions are idle: `hold` keeps its watermark, `advance` lets the other inputs
    move it."""
    max_future: DurationOrOff = Field(default=24 * 3_600_000, examples=["1h"])
    """A record goes to the dead letters if its event time is further than this (a duration) ahead of the driver's
    clock, or of its Kafka timestamp if that is earlier. `off` takes any, for times that are planned or made up."""
    late_warning: ShareOrOff = Field(default="1%", examples=["5%"])
    """Warns if at least this share of the input's newest records was dropped as late, in percent: of its last 10,000
    records, or of those of the last 5 minutes if these are more. `off` never warns."""
    explicit: Bool = False
    """Only steps of `joinery trace` raise the watermark."""

    @property
    def late_share(self) -> float | None:
        """`late_warning` as a number from 0 to 1; None: never warn."""
        return None if self.late_warning == OFF else float(self.late_warning.removesuffix("%")) / 100


class Debezium(Model):
    """Which of Debezium's change events count."""

    ops: Annotated[tuple[Literal["c", "r", "u"], ...], Field(min_length=1)] = Field(
        default=("c", "r", "u"), examples=[["c", "r"]]
    )
    """The events of a stream that are rows: `c` (created), `r` (read by a snapshot) and `u` (updated). Others are
    dropped and counted. A table takes all of them."""


class DeletedBy(Model):
    """A field that says that a record deletes its key."""

    path: Annotated[Text, AfterValidator(_check_path)] = Field(examples=["__deleted"])
    """Where the field is in a record: names and positions, as of a column."""
    value: Text = Field(default="true", examples=["true"])
    """What the field says in a record that deletes: its text, or `true`, `false` or a number as JSON writes it."""

    @property
    def steps(self) -> Path:
        """From the record to the field."""
        return parse_path(self.path)


class Table(Model):
    """An input that is a changelog: each row is the version of its `key` columns from its event time on
    (docs/semantics.md#a1).

    A record without a value deletes: its key columns come from the record's own key, its event time is the Kafka
    record's timestamp."""

    key: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(examples=[["user_id"]])
    """The columns whose latest row is a version."""
    key_format: Literal["json", "string"] = "json"
    """How the record's own key is read where the value is null (a deletion): `json` is an object with the key columns,
    `string` the one key column as text."""
    deleted_by: DeletedBy | None = Field(default=None, examples=[{"path": "__deleted", "value": "true"}])
    """A field that marks deletions, as `__deleted` does in topics that Debezium's ExtractNewRecordState has unwrapped:
    key and event time are in columns like those of every row."""


INPUT_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


class Input(Model):
    """One input: exactly one of `kafka` and `file`; before `kafka` there may be a `history`."""

    name: Annotated[str, StringConstraints(pattern=INPUT_NAME)] = Field(examples=["orders"])
    """What the rest of the job calls the input."""
    kafka: KafkaInput | None = Field(default=None, examples=[{"bootstrapServers": "kafka:9092", "topic": "orders"}])
    """Reads topics of Kafka: exactly one of `topic`, `topics` and `topic_pattern`."""
    file: FileInput | None = None
    """Reads files from start to end: a bounded input, or a directory that is watched for new ones."""
    history: History | None = None
    """Files to read before the topics of `kafka`: rows up to a time come from these, and from there on from Kafka, each
    once."""
    format: Literal["json", "csv", "avro", "protobuf", "debezium-json", "debezium-avro", "parquet"]
    """How records are encoded: `json` (an object each), `csv`, `avro` and `protobuf` (a record, or message, each),
    `debezium-json` and `debezium-avro` (change events; the columns are those of the row), or `parquet` (files)."""
    schema_registry: SchemaRegistry | None = None
    """The registry with the schemas of Avro and Protobuf records, whose first five bytes name the schema. From JSON
    records, Joinery only strips these bytes."""
    avro_schema: Text | None = Field(
        default=None,
        examples=['{"type": "record", "name": "Order", "fields": [{"name": "order_id", "type": "string"}]}'],
    )
    """The schema that records of Avro were written with, as JSON, where there is no schema registry."""
    protobuf_schema: Text | None = Field(
        default=None, examples=['syntax = "proto3"; message Order { string order_id = 1; }']
    )
    """The text of the .proto file that records of Protobuf follow, where there is no schema registry. It may import
    files of google/protobuf/."""
    protobuf_message: Text | None = Field(default=None, examples=["shop.Order"])
    """The message of `protobufSchema` that each record is, with its package or without. Default: the first of the
    file."""
    csv: CsvDialect | None = None
    """How CSV is written, for `format: csv`. Default: with commas and double quotes, and in files a header."""
    columns: Annotated[tuple[Column, ...], Field(alias="schema", min_length=1)]
    """The columns to read. Others that a record has are ignored."""
    event_time: Text = Field(examples=["ts"])
    """The column with the event time: a timestamp, or an int64 of milliseconds since 1970."""
    watermark: Watermark = Watermark()
    """How the input's watermark advances."""
    where: Text | None = Field(default=None, examples=["amount > 0"])
    """An SQL condition over the input's columns. Rows for which it is not true are dropped when they are read, and
    counted as `filtered`, also where a join puts out every row of the input."""
    debezium: Debezium | None = None
    """Which change events count, for `format: debezium-json` and `debezium-avro`."""
    table: Table | None = None
    """Makes the input a changelog, for the right side of an `asOf` step: each row is a version of its key, from its
    event time on. A record without a value deletes the key."""

    @property
    def parts(self) -> tuple[Input, ...]:
        """The inputs that are read: this one, or the branches of a union."""
        return (self,)

    @property
    def source_name(self) -> str:
        """What is read, for messages."""
        if self.kafka is not None:
            return self.kafka.source_name
        return "" if self.file is None else f"file {self.file.path}"

    @property
    def bounded(self) -> bool:
        """Whether the input ends by itself (rule T7)."""
        return (self.file is not None and not self.file.watch) or (
            self.kafka is not None and self.kafka.stop_at is not None
        )

    @property
    def change_events(self) -> bool:
        """Whether records are change events of Debezium, or the files of the history."""
        of_files = "" if self.history is None else self.history.format
        return self.format.startswith("debezium") or of_files.startswith("debezium")

    @property
    def lacks_delay(self) -> bool:
        """Whether records come from Kafka, in whatever order, and the job does not say how far out of order."""
        named = self.watermark.explicit or "delay" in self.watermark.model_fields_set
        return self.kafka is not None and not named

    @property
    def keyed(self) -> bool:
        """Whether the records' keys are needed."""
        return self.table is not None or any(column.origin == "key" for column in self.columns)

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers that columns come from."""
        names = (header_of(column.origin) for column in self.columns if column.origin is not None)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def types(self) -> dict[str, ColumnType]:
        """Column types by name, in schema order."""
        return {column.name: column.type for column in self.columns}
