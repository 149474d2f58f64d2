"""What all Kafka writers share: the topic and how to reach it, the client's settings, and its errors made ours; and the
topic of dead letters.

In a topic of dead letters, a record's own bytes are the value, and the facts about it are headers. A record that is
larger than the topic takes is cut: the value is then its head, and two more headers have the size and the SHA-256 of
the whole. The record itself is where the facts say. So a dead letter fits into every topic, and a record never stops a
job (rule T8).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import stamina
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from joinery_runtime.connectors.kafka.errors import (
    ASK_SECONDS,
    SILENT,
    LastError,
    check_address,
    client_defaults,
    is_unavailable,
    silence_reason,
    tls_port,
)
from joinery_runtime.connectors.kafka.ordered_rows import OrderedRows
from joinery_runtime.connectors.kafka.records import Records, Texts
from joinery_runtime.connectors.sink import AttemptRows
from joinery_runtime.errors import OutputUnavailable, RecordTooLarge, SinkError
from joinery_runtime.formats.json.encode import PLAIN, JsonStyle
from joinery_runtime.formats.registry.output import SchemaOutput
from joinery_runtime.job.model.wording import counted

ANSWER_SECONDS = 15.0  # how long a broker may take to answer a question
DELIVERY_SECONDS = 120.0  # how long brokers may accept no row at all, unless the job sets delivery.timeout.ms
TRANSACTION_MS = 900_000  # the longest that brokers allow by default
BATCH_BYTES = 2**20
_TURN_SECONDS = 1.0  # how often a wait is checked for an error for which waiting does not help
_NEWS_SECONDS = 2.0  # how much later than others a broker may learn of a new topic

_DELIVERY = ("delivery.timeout.ms", "message.timeout.ms")  # one property with two names
_CHECK_LOGIN = "Check security.protocol and the sasl.* settings in kafka.properties"
TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
_CLIENT_LIMIT = 1_000_000  # librdkafka's message.max.bytes
_FIXED_BYTES, _ESCAPED = 64, 6  # of a number or a time; of a byte of text in JSON
_SHOWN_BYTES = 200
_LEAST_BATCH = 4_096
SAMPLE_BYTES = 32 << 20
RECORD_OVERHEAD = 128  # more than the bytes that a record takes besides its key, value and headers, alone in its batch

# By default, stamina reports every retry on standard output, where `joinery run` prints JSON lines.
stamina.instrumentation.set_on_retry_hooks(())

Client = TypeVar("Client")
Target = TypeVar("Target", bound="KafkaTarget")
T = TypeVar("T")

_OWNED = {
    "bootstrap.servers": "write it as bootstrapServers",
    "enable.idempotence": "it is always on",
    "transactional.id": "it is made of the job's name and the shard",
    "delivery.report.only.error": "the sink needs it",
}


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A topic to write to. `properties` are librdkafka's and may hold secrets. `key` names columns of the rows.
    `headers` maps headers to columns. Values are JSON in this `style`, or what `schema_output` makes of the rows.
    `order` are columns that a writer's rows have beside those of the records, which it sorts by them; empty: the rows
    have no such columns, and are written as they come."""

    TITLE: ClassVar[str] = "Output topic"
    MAKE_ROOM: ClassVar[str] = (
        "Raise max.message.bytes of the topic, and message.max.bytes under kafka.properties; the epoch is run again. "
        "Rows over message.max.bytes go to spec.deadLetter if the job names it, so a lower value lets it continue, too"
    )
    """What to do about rows that are too large."""

    topic: str
    bootstrap_servers: str
    key: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    style: JsonStyle = PLAIN
    schema_output: SchemaOutput | None = None
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refused = [name for name in self.properties if name in _OWNED]
        if refused:
            reasons = "; ".join(f"{name}: {_OWNED[name]}" for name in refused)
            raise self.problem(f"kafka.properties may not set {', '.join(refused)}", reasons, "Remove it")
        delivery = self._property_ms(*_DELIVERY)
        transaction = self._property_ms("transaction.timeout.ms")
        if delivery is not None and transaction is not None and delivery > transaction:
            raise self.problem(
                "kafka.properties do not go together",
                f"delivery.timeout.ms is {delivery}, and transaction.timeout.ms is {transaction}: the brokers would "
                "end a transaction before its rows have had their time",
                "Set transaction.timeout.ms to the same or more, or leave it out",
            )

    @property
    def delivery_seconds(self) -> float:
        """How long brokers may accept no row at all: the job's `delivery.timeout.ms`. Brokers that accept rows slowly,
        because of a quota, may take as long as a transaction may."""
        delivery = self._property_ms(*_DELIVERY)
        return DELIVERY_SECONDS if delivery is None else delivery / 1000

    @property
    def transaction_ms(self) -> int:
        """The time after which brokers end a transaction."""
        return self._property_ms("transaction.timeout.ms") or max(
            TRANSACTION_MS, self._property_ms(*_DELIVERY) or TRANSACTION_MS
        )

    @property
    def named_columns(self) -> Mapping[str, Collection[str]]:
        """The columns of the rows that the job names, by field of the output."""
        return {"key": self.key, "headers": self.headers.values()}

    @property
    def client_limit(self) -> int:
        """The size (key, value and headers) over which the client rejects a record."""
        limit = str(self.properties.get("message.max.bytes", _CLIENT_LIMIT))
        return (int(limit) if limit.isdecimal() else _CLIENT_LIMIT) - RECORD_OVERHEAD

    @property
    def compresses(self) -> bool:
        """Whether the job compresses records: then their size alone does not say whether the topic takes them."""
        names = ("compression.type", "compression.codec")
        return any(self.properties.get(name, "none") != "none" for name in names)

    def topic_limit(self) -> int | None:
        """Return the size over which the topic rejects a record. None if this user may not read the topic's
        settings."""
        limit = self.topic_setting("max.message.bytes")
        return None if limit is None else int(limit) - RECORD_OVERHEAD

    def topic_setting(self, name: str) -> str | None:
        """Ask for a setting of the topic. None also if this user may not read it."""
        admin: Any = self.admin(LastError())
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        (answer,) = admin.describe_configs([resource], request_timeout=ANSWER_SECONDS).values()
        try:
            return str(answer.result(ANSWER_SECONDS)[name].value)
        except (KafkaException, KeyError, TimeoutError):
            return None

    def in_order(self, rows: AttemptRows) -> AttemptRows:
        return OrderedRows(rows, self.order, self.key) if self.order else rows

    def in_batches_of(self, size: int) -> Self:
        """Return the same target for batches of at most this size: a broker rejects a batch that is larger than a
        record may be, also one of small records."""
        batch = min(size, int(self.properties.get("batch.size", size)))
        return replace(self, properties={**self.properties, "batch.size": str(batch)})

    def for_smaller_records(self) -> Self | None:
        """Return what to try after records were rejected as too large. None: nothing; the records themselves do not
        fit. Where nobody says what the topic takes, smaller and smaller batches are tried, down to one record each."""
        limit = self.topic_limit()
        batch = int(self.properties.get("batch.size", BATCH_BYTES))
        if limit is None:
            return None if batch == 1 else self.in_batches_of(batch // 16 if batch > _LEAST_BATCH else 1)
        return self.in_batches_of(limit) if limit < batch else None

    def _property_ms(self, *names: str) -> int | None:
        """Return the value of a property that has these names; None if it is not set."""
        properties = {name: self.properties[name] for name in names if name in self.properties}
        if not properties:
            return None
        if len(properties) > 1 or not all(str(value).isdecimal() and int(value) for value in properties.values()):
            facts = ", ".join(f"{name}: {value}" for name, value in properties.items())
            raise self.problem("kafka.properties are not valid", facts, "Name one of them, in milliseconds above 0")
        return int(next(iter(properties.values())))

    def client_settings(self, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return settings of a client that only asks. The job's properties override `defaults`."""
        own = {"bootstrap.servers": self.bootstrap_servers}
        return {**client_defaults(self.properties), **(defaults or {}), **self.properties, **own}

    def producer_settings(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings of a producer. The job's properties override `defaults`; both override those of all
        producers."""
        # Large requests: thousands of rows come within a millisecond. The rows of a small epoch wait for its end. The
        # queue has room for the records of one chunk of rows and the next. librdkafka's own limit, 1 GiB, would be most
        # of a task's memory.
        queue = {"queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 64 * 2**10}
        shared = {"linger.ms": 1, "batch.size": BATCH_BYTES, **queue}
        # A row may stay in the client's queue for the time of the whole transaction. `Patience` ends the wait for
        # brokers that accept nothing; brokers that accept rows slowly only slow the job down.
        own = {
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "message.timeout.ms": self.transaction_ms,
        }
        settings = {**self.client_settings({**shared, **defaults}), **own}
        settings.pop("delivery.timeout.ms", None)  # another name of the same property
        return settings

    def connect(
        self, client: Callable[[dict[str, Any]], Client], settings: Mapping[str, Any], errors: LastError
    ) -> Client:
        """Make a client, which connects later on its own. Raises SinkError for a property that librdkafka rejects."""
        try:
            return client({**settings, "error_cb": errors, "log_level": 0, "logger": SILENT})
        except KafkaException as error:
            raise self.problem("kafka.properties are not valid", error.args[0].str()) from error

    def admin(self, errors: LastError) -> AdminClient:
        """Make a client that only asks. Raises SinkError as `connect` does."""
        return self.connect(AdminClient, self.client_settings(), errors)

    def require(self, schema: pa.Schema, client: Any, errors: LastError) -> None:
        """Check that key and headers name columns of the rows, register the rows' schema, and check that the topic
        exists. Raises SinkError."""
        for setting, columns in self.named_columns.items():
            missing = [name for name in columns if name not in schema.names]
            if missing:
                todo = f"Correct output.kafka.{setting}"
                raise self.problem(f"{setting} names no output column", ", ".join(missing), todo)
        if self.schema_output is not None:
            self.schema_output.register_once()
        topics = self._read_topics(client, errors)
        deadline = time.monotonic() + _NEWS_SECONDS
        while self.topic not in topics and time.monotonic() < deadline:
            time.sleep(_NEWS_SECONDS / 10)
            topics = self._read_topics(client, errors)
        if self.topic not in topics:
            raise self.problem("it does not exist", f"the broker has {len(topics)} topics", "Create the topic")

    def records(self, rows: pa.Table | pa.RecordBatch) -> Records:
        """Make one record per row. Raises SinkError as a schema registry does."""
        values = None if self.schema_output is None else self.schema_output.register_once().encode(rows)
        return Records.of(rows, self.key, self.headers, self.style, values)

    def _read_topics(self, client: Any, errors: LastError) -> Mapping[str, Any]:
        """Ask for the topics in short turns. Stops early if a denied login is reported in between."""
        errors.forget()
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                # Asking for this topic alone would create it if the broker creates topics automatically.
                topics: Mapping[str, Any] = client.list_topics(timeout=min(_TURN_SECONDS, ANSWER_SECONDS)).topics
                return topics
            except KafkaException as error:
                client.poll(0)
                if errors.denial is not None:
                    raise self.problem("access is denied", errors.denial.str(), _CHECK_LOGIN) from error
                if time.monotonic() >= deadline:
                    secure = tls_port(self.bootstrap_servers, self.properties)
                    if secure is not None:
                        todo = "Set security.protocol: SSL (or SASL_SSL, with a login) in kafka.properties"
                        summary = "the port speaks TLS, and the job does not"
                        raise self.problem(summary, secure, todo) from error
                    raise self.silent(f"waited {ANSWER_SECONDS:.0f} s; {errors}") from error

    def silent(self, facts: str) -> OutputUnavailable:
        return self.unavailable("the Kafka broker does not answer", facts)

    def too_slow(self, rows: int, errors: LastError) -> SinkError:
        summary = f"{counted(rows, 'row', 'were')} not written, and none was for {self.delivery_seconds:.0f} s"
        return (
            self.unavailable(summary, str(errors))
            if errors.denial is None
            else self.problem(summary, str(errors), _CHECK_LOGIN)
        )

    def unavailable(self, summary: str, facts: str) -> OutputUnavailable:
        """Return an error for which waiting may help."""
        todo = check_address(self.bootstrap_servers, facts)
        return OutputUnavailable(f"{self.TITLE} {self.topic}: {summary}", facts=self._with_place(facts), todo=todo)

    def failure(self, error: KafkaError, errors: LastError, summary: str, facts: str, todo: str = "") -> SinkError:
        """Turn a client's error into ours. `todo` is for errors for which waiting does not help. A denied login shows
        only in `errors`, which the client reports in the background."""
        if error.code() in TOO_LARGE:
            return RecordTooLarge(
                f"{self.TITLE} {self.topic}: {summary}", facts=self._with_place(facts), todo=self.MAKE_ROOM
            )
        if not is_unavailable(error):
            return self.problem(summary, facts, todo)
        facts = f"{facts}; {errors}"
        return self.unavailable(summary, facts) if errors.denial is None else self.problem(summary, facts, _CHECK_LOGIN)

    def problem(self, summary: str, facts: str, todo: str = "") -> SinkError:
        return SinkError(f"{self.TITLE} {self.topic}: {summary}", facts=self._with_place(facts), todo=todo)

    def _with_place(self, facts: str) -> str:
        return f"{facts} (bootstrapServers {self.bootstrap_servers})"


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """The size over which the client rejects a record of the target, or the topic if it takes less than the client
    (`connectors.sink.RowLimit`). `output` is the output's name. `by_answers`: only the brokers' answers have shown what
    the topic takes."""

    target: KafkaTarget
    output: str
    topic_limit: int | None = None
    by_answers: bool = False

    @property
    def words(self) -> str:
        if self.by_answers:
            return f"topic {self.target.topic} takes at most {self._size_limit:,}: its brokers have rejected more"
        setting = "message.max.bytes" if self.topic_limit is None else "its max.message.bytes"
        return f"topic {self.target.topic} takes {self._size_limit:,} ({setting})"

    def at_most(self, sizes: Mapping[str, int]) -> RecordLimit:
        size = sizes.get(self.output)
        return replace(self, topic_limit=size) if size is not None and size < self.target.client_limit else self

    def rejected_above(self, sizes: Mapping[str, int]) -> RecordLimit:
        size = sizes.get(self.output)
        return self if size is None or size >= self._size_limit else replace(self, topic_limit=size, by_answers=True)

    @property
    def _size_limit(self) -> int:
        return self.target.client_limit if self.topic_limit is None else self.topic_limit

    def excess(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        # More bytes than any of the rows takes in any format, in its value, its key and its headers together.
        longest = 0.0
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            text = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
            size = pc.max(pc.binary_length(column)).as_py() or 0 if text else _FIXED_BYTES
            longest += _ESCAPED * size + len(name.encode()) + _FIXED_BYTES
        if 3 * longest <= self._size_limit:
            return None
        sizes = self.target.records(rows).sizes
        large = sizes > self._size_limit
        return np.where(large, sizes, 0) if large.any() else None


class BrokerCheck:
    """Checks whether the brokers answer, with its own client, which is made at the first check."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target, self._errors = target, LastError()
        self._client: AdminClient | None = None

    def unavailability(self) -> OutputUnavailable | None:
        if self._client is None:
            self._client = self._target.admin(self._errors)
        reason = silence_reason(self._client, self._errors, ASK_SECONDS)
        patience = f"what is being written waits for it, for {self._target.delivery_seconds:.0f} s at a time"
        return None if reason is None else self._target.silent(f"{reason}; {patience}")


def write_in_fitting_batches(
    target: Target, rows: AttemptRows, write: Callable[[Target], T], takes: Callable[[Target, Records], bool] | None
) -> T:
    """Write the rows to the target, and again as `for_smaller_records` says while the brokers reject records as too
    large. Raises RecordTooLarge that shows the row if there is no other way. `takes` tries whether the topic takes
    records, for the error's `row_limit`; None: nobody asks for it."""
    while True:
        try:
            return write(target)
        except RecordTooLarge as error:
            smaller = target.for_smaller_records()
            if smaller is None:
                shown = _largest_row_text(target, rows)
                limit = None if takes is None else _find_row_limit(target, rows, takes)
                facts = f"{error.facts}{shown}"
                raise RecordTooLarge(error.summary, facts=facts, todo=error.todo, row_limit=limit) from error
            target = smaller


def _find_row_limit(target: Target, rows: AttemptRows, takes: Callable[[Target, Records], bool]) -> int | None:
    """Find the size over which the topic rejects rows, by trying some of them. None: it takes them all by now.

    A row of a size stands for all of its size. Compressed, a larger row may be the smaller record: then rows over the
    limit are left out that the topic would take."""
    samples = _samples_by_size(target, rows)
    sizes = sorted(samples)
    rejected = next((at for at in reversed(range(len(sizes))) if not takes(target, samples[sizes[at]])), None)
    if rejected is None:
        return None
    accepted = -1
    while rejected - accepted > 1:
        middle = (accepted + rejected) // 2
        if takes(target, samples[sizes[middle]]):
            accepted = middle
        else:
            rejected = middle
    return sizes[rejected] - 1


def _samples_by_size(target: KafkaTarget, rows: AttemptRows) -> dict[int, Records]:
    """Return a record of each size, of the largest ones that have SAMPLE_BYTES together: at least one."""
    samples: dict[int, Records] = {}
    total = 0
    for batch in rows.to_batches():
        records = target.records(batch)
        for size, row in zip(*np.unique(records.sizes, return_index=True), strict=True):
            if int(size) not in samples:
                samples[int(size)] = records.only(int(row))
                total += int(size)
        while total > SAMPLE_BYTES and len(samples) > 1:
            smallest = min(samples)
            total -= smallest
            del samples[smallest]
    return samples


def _largest_row_text(target: KafkaTarget, rows: AttemptRows) -> str:
    """Return the largest of the rows in words, with its beginning, for a person who looks for where it comes from."""
    largest, beginning = 0, b""
    for batch in rows.to_batches():
        values = target.records(batch).values
        row = int(values.sizes.argmax())
        if values.sizes[row] > largest:
            largest, beginning = int(values.sizes[row]), (values.to_pylist(row, row + 1)[0] or b"")[:_SHOWN_BYTES]
    return f"; the largest row has {largest:,} bytes and begins {beginning.decode(errors='replace')}" if largest else ""


def repeat_call(call: Callable[[], object], on: Callable[[KafkaError], bool], within_seconds: float) -> None:
    """Repeat the call, until the time is up, after each KafkaException for which `on` is true."""
    for trial in stamina.retry_context(
        on=lambda error: isinstance(error, KafkaException) and on(error.args[0]),
        attempts=None,
        timeout=max(0.0, within_seconds),
        wait_initial=0.01,
        wait_max=0.5,
        wait_jitter=0.01,
    ):
        with trial:
            call()


DEAD_LETTER_FACTS = ("input", "topic", "partition", "offset", "reason")
_OF_A_CUT_RECORD = ("size", "sha256")
REASON_HEADER = "joinery.reason"
DEAD_LETTER_HEADERS = {f"joinery.{name}": name for name in (*DEAD_LETTER_FACTS, *_OF_A_CUT_RECORD)}
LONGEST_REASON = 1_000
"""Characters. A reason may show a value, and headers count for a record's size."""
_DEAD_LETTER_HEADER_BYTES = 10  # the most that a header takes besides its name and value
_LEAST_TOPIC_LIMIT = 1_024
"""Bytes: the `max.message.bytes` of a dead-letter topic that takes the facts, whatever the names of topic and input."""
_LEAST_DEAD_LETTER_BYTES = _LEAST_TOPIC_LIMIT - RECORD_OVERHEAD


@dataclass(frozen=True, slots=True)
class DeadLetterTarget(KafkaTarget):
    """`most_bytes` is the size that a record may have, with its headers; 0: what the client takes."""

    TITLE: ClassVar[str] = "Dead-letter topic"
    MAKE_ROOM: ClassVar[str] = (
        "Raise max.message.bytes of the topic, to 10000 or more: a dead letter has facts beside the record's "
        "beginning; the epoch is run again"
    )

    most_bytes: int = 0

    @classmethod
    def of(cls, topic: str, bootstrap_servers: str, properties: Mapping[str, str]) -> Self:
        return cls(topic, bootstrap_servers, properties=properties, headers=DEAD_LETTER_HEADERS)

    @property
    def named_columns(self) -> Mapping[str, Collection[str]]:
        return {}

    def records(self, rows: pa.Table | pa.RecordBatch) -> Records:
        """Make one record for each row of DEAD_LETTER_SCHEMA."""
        letters = _cut_to_fit(facts_and_value(rows), self._limit)
        return Records.of(letters, (), self.headers, values=Texts.of_column(letters["value"].combine_chunks()))

    def require(self, schema: pa.Schema, client: Any, errors: LastError) -> None:
        """Also check that the topic takes the facts of a dead letter, if this user may read its settings."""
        KafkaTarget.require(self, schema, client, errors)
        topic = self.topic_limit()
        if topic is not None and topic < _LEAST_DEAD_LETTER_BYTES:
            raise self.problem(
                f"its max.message.bytes is {topic + RECORD_OVERHEAD}",
                f"a dead letter has facts in its headers, which take up to {_LEAST_TOPIC_LIMIT} bytes",
                "Set max.message.bytes of the topic to 10000 or more",
            )

    def for_smaller_records(self) -> Self | None:
        topic = self.topic_limit()
        limit = topic if topic is not None and topic < self._limit else self._limit // 4
        return None if limit < _LEAST_DEAD_LETTER_BYTES else replace(self.in_batches_of(limit), most_bytes=limit)

    @property
    def _limit(self) -> int:
        return self.most_bytes or self.client_limit


def facts_and_value(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return the columns of dead letters that make a record: the facts, with reasons of at most LONGEST_REASON, and the
    value."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    reasons = pc.utf8_slice_codeunits(table["reason"], 0, LONGEST_REASON)
    return table.set_column(table.schema.get_field_index("reason"), "reason", reasons).select(
        [*DEAD_LETTER_FACTS, "value"]
    )


def _cut_to_fit(letters: pa.Table, limit: int) -> pa.Table:
    """Cut what makes records larger than `limit`: the value, and the reason where the facts alone are too large. Adds
    the columns that say so."""
    facts = np.full(len(letters), sum(len(name) + _DEAD_LETTER_HEADER_BYTES for name in DEAD_LETTER_HEADERS), np.int64)
    for name in DEAD_LETTER_FACTS:
        facts += pc.fill_null(pc.binary_length(letters[name].cast(pa.string())), 0).to_numpy()
    sizes = pc.fill_null(pc.binary_length(letters["value"]), 0).to_numpy()
    values, reasons = letters["value"].to_pylist(), letters["reason"].to_pylist()
    cut: dict[str, list[Any]] = {"size": [None] * len(letters), "sha256": [None] * len(letters)}
    for row in np.flatnonzero(facts + sizes > limit).tolist():
        value = values[row] or b""
        cut["size"][row], cut["sha256"][row] = len(value), sha256_of(value)
        room = limit - int(facts[row]) - len(str(len(value))) - len(cut["sha256"][row])
        values[row] = value[: max(0, room)]
        if room < 0:
            reason = reasons[row].encode()
            reasons[row] = reason[: max(0, len(reason) + room)].decode(errors="ignore")
    columns = {name: letters[name] for name in DEAD_LETTER_FACTS} | {"reason": pa.array(reasons, pa.string())}
    columns |= {"value": pa.array(values, pa.binary()), "size": pa.array(cut["size"], pa.int64())}
    return pa.table(columns | {"sha256": pa.array(cut["sha256"], pa.string())})


def sha256_of(value: bytes | None) -> str | None:
    return None if value is None else hashlib.sha256(value).hexdigest()
