"""What all Kafka writers share: the topic and how to reach it, the client's settings, rows as messages.

A value is the row as JSON, Avro or Protobuf, and columns may be headers too. The record key is the plain text where
`key` names a single string column, else a JSON object of the key columns; a record has no key where `key` is empty or
its single string column is null.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
import stamina
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from joinery_runtime.errors import OutputUnavailable, SinkError
from joinery_runtime.job.model.outputs import Timestamps
from joinery_runtime.job.model.wording import counted
from joinery_runtime.kafka_errors import SILENT, LastError, is_away, soon_back, tls_port
from joinery_runtime.sinks.encode import as_texts, rows_to_json
from joinery_runtime.sinks.schema_output import SchemaOutput

ANSWER_SECONDS = 15.0  # how long a broker may take to answer a question
DELIVERY_SECONDS = 120.0  # how long no row at all may be taken, unless the job sets delivery.timeout.ms
TRANSACTION_MS = 900_000  # the longest that brokers allow by default
_TURN_SECONDS = 1.0  # how often a wait is checked for an error that time does not heal
_NEWS_SECONDS = 2.0  # how much later one broker may hear of a new topic than another
_BATCH = 10_000  # records that are handed to the client at a time

_DELIVERY = ("delivery.timeout.ms", "message.timeout.ms")  # one property with two names
_CHECK_LOGIN = "Check security.protocol and the sasl.* settings in kafka.properties"

# By default stamina tells of every trial on standard output, where `joinery run` prints JSON lines.
stamina.instrumentation.set_on_retry_hooks(())

Client = TypeVar("Client")

_OWNED = {
    "bootstrap.servers": "write it as bootstrapServers",
    "enable.idempotence": "it is always on",
    "transactional.id": "it is made of the job's name and the shard",
    "delivery.report.only.error": "the sink needs it",
}


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A topic to write. `properties` are librdkafka's and may hold secrets; `key` names columns of the rows, and
    `headers` by the header's name; `timestamps` is how values have them."""

    topic: str
    bootstrap_servers: str
    key: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    timestamps: Timestamps = "epochMillis"
    schema_output: SchemaOutput | None = None
    """What values are instead of JSON."""
    nested: frozenset[str] = frozenset()
    """Columns that are JSON."""

    def __post_init__(self) -> None:
        refused = [name for name in self.properties if name in _OWNED]
        if refused:
            reasons = "; ".join(f"{name}: {_OWNED[name]}" for name in refused)
            raise self.problem(f"kafka.properties may not set {', '.join(refused)}", reasons, "Remove it")
        delivery = self._milliseconds(*_DELIVERY)
        transaction = self._milliseconds("transaction.timeout.ms")
        if delivery is not None and transaction is not None and delivery > transaction:
            raise self.problem(
                "kafka.properties do not go together",
                f"delivery.timeout.ms is {delivery}, and transaction.timeout.ms is {transaction}: the brokers would "
                "end a transaction before its rows have had their time",
                "Set transaction.timeout.ms to the same or more, or leave it out",
            )

    @property
    def delivery_seconds(self) -> float:
        """How long no row at all may be taken: the job's `delivery.timeout.ms`. Brokers that take rows slowly, for a
        quota, may take as long as a transaction may."""
        delivery = self._milliseconds(*_DELIVERY)
        return DELIVERY_SECONDS if delivery is None else delivery / 1000

    @property
    def transaction_ms(self) -> int:
        """The brokers end a transaction after this."""
        return self._milliseconds("transaction.timeout.ms") or max(
            TRANSACTION_MS, self._milliseconds(*_DELIVERY) or TRANSACTION_MS
        )

    def _milliseconds(self, *names: str) -> int | None:
        """The value of the property, which has these names; None where it is not set."""
        found = {name: self.properties[name] for name in names if name in self.properties}
        if not found:
            return None
        if len(found) > 1 or not all(str(value).isdecimal() and int(value) for value in found.values()):
            facts = ", ".join(f"{name}: {value}" for name, value in found.items())
            raise self.problem("kafka.properties are not valid", facts, "Name one of them, in milliseconds above 0")
        return int(next(iter(found.values())))

    def client_settings(self, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """For a client that only asks; the job's properties go over `defaults`."""
        own = {"bootstrap.servers": self.bootstrap_servers}
        return {**soon_back(self.properties), **(defaults or {}), **self.properties, **own}

    def producer_settings(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """For a producer; the job's properties go over `defaults`, and both over what all producers have."""
        # Fewer, larger requests: a task waits for all of its rows anyway. The queue holds what one chunk of rows makes
        # and the next; librdkafka's own limit, 1 GiB, would be most of a task's memory.
        queue = {"queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 64 * 2**10}
        shared = {"linger.ms": 5, "batch.size": 2**20, **queue}
        # A row in the client's queue has the time of the whole transaction: `Patience` ends the wait for brokers that
        # take nothing, and those that take rows slowly only slow the job.
        own = {
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "message.timeout.ms": self.transaction_ms,
        }
        settings = {**self.client_settings({**shared, **defaults}), **own}
        settings.pop("delivery.timeout.ms", None)  # the same property
        return settings

    def connect(
        self, client: Callable[[dict[str, Any]], Client], settings: Mapping[str, Any], errors: LastError
    ) -> Client:
        """Makes a client, which connects later, by itself; a property that librdkafka refuses is a SinkError."""
        try:
            return client({**settings, "error_cb": errors, "log_level": 0, "logger": SILENT})
        except KafkaException as error:
            raise self.problem("kafka.properties are not valid", error.args[0].str()) from error

    def require(self, schema: pa.Schema, client: Any, errors: LastError) -> None:
        """Checks that key and headers name columns of the rows and that the topic is there, and registers the schema of
        the rows. Raises SinkError."""
        for what, columns in (("key", self.key), ("headers", self.headers.values())):
            missing = [name for name in columns if name not in schema.names]
            if missing:
                todo = f"Correct output.kafka.{what}"
                raise self.problem(f"{what} names no output column", ", ".join(missing), todo)
        if self.schema_output is not None:
            self.schema_output.registered()
        topics = self._topics(client, errors)
        deadline = time.monotonic() + _NEWS_SECONDS
        while self.topic not in topics and time.monotonic() < deadline:
            time.sleep(_NEWS_SECONDS / 10)
            topics = self._topics(client, errors)
        if self.topic not in topics:
            raise self.problem("it does not exist", f"the broker has {len(topics)} topics", "Create the topic")

    def messages(self, rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
        """Rows as `enqueue` takes them. Raises SinkError as a registry of schemas does."""
        values = None if self.schema_output is None else self.schema_output.registered().encode(rows)
        return as_messages(rows, self.key, self.headers, self.timestamps, values, self.nested)

    def _topics(self, client: Any, errors: LastError) -> Mapping[str, Any]:
        """Asks in short turns: a refused login is reported between them, and needs no patience."""
        errors.forget()
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                # Asking for this topic alone would create it where the broker does that.
                topics: Mapping[str, Any] = client.list_topics(timeout=min(_TURN_SECONDS, ANSWER_SECONDS)).topics
                return topics
            except KafkaException as error:
                client.poll(0)
                if errors.denied is not None:
                    raise self.problem("access is denied", errors.denied.str(), _CHECK_LOGIN) from error
                if time.monotonic() >= deadline:
                    secure = tls_port(self.bootstrap_servers, self.properties)
                    if secure is not None:
                        todo = "Set security.protocol: SSL (or SASL_SSL, with a login) in kafka.properties"
                        what = "the port speaks TLS, and the job does not"
                        raise self.problem(what, secure, todo) from error
                    raise self.silent(f"waited {ANSWER_SECONDS:.0f} s; {errors}") from error

    def silent(self, facts: str) -> OutputUnavailable:
        return self.away("the Kafka broker does not answer", facts)

    def too_slow(self, rows: int, errors: LastError) -> SinkError:
        what = f"{counted(rows, 'row', 'were')} not written, and none was for {self.delivery_seconds:.0f} s"
        return self.away(what, str(errors)) if errors.denied is None else self.problem(what, str(errors), _CHECK_LOGIN)

    def away(self, what: str, facts: str) -> OutputUnavailable:
        """An error that waiting may mend."""
        todo = "Check bootstrapServers and that the brokers run and can be reached from here"
        return OutputUnavailable(f"Output topic {self.topic}: {what}", facts=self._with_place(facts), todo=todo)

    def failure(self, error: KafkaError, errors: LastError, what: str, facts: str, todo: str = "") -> SinkError:
        """A client's error as ours; `todo` is for one that waiting does not mend. A refused login shows only in what
        the client reports by the way."""
        if not is_away(error):
            return self.problem(what, facts, todo)
        facts = f"{facts}; {errors}"
        return self.away(what, facts) if errors.denied is None else self.problem(what, facts, _CHECK_LOGIN)

    def problem(self, what: str, facts: str, todo: str = "") -> SinkError:
        return SinkError(f"Output topic {self.topic}: {what}", facts=self._with_place(facts), todo=todo)

    def _with_place(self, facts: str) -> str:
        return f"{facts} (bootstrapServers {self.bootstrap_servers})"


def repeat(call: Callable[[], object], on: Callable[[KafkaError], bool], within_seconds: float) -> None:
    """Calls again, until the time is up, after each KafkaException that `on` says may pass."""
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


class Patience:
    """How long brokers may take no row at all. `clock` is in seconds and never goes back."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._until = clock() + seconds

    def poll(self, producer: Producer, seconds: float) -> bool:
        """Lets the client work; whether it is worth going on: rows were taken, or there is time left."""
        before = len(producer)
        producer.poll(seconds)
        if len(producer) < before:
            self._until = self._clock() + self._seconds
        return self._clock() < self._until

    def flush(self, producer: Producer) -> int:
        """Rows that are not written when the patience ends. The client's own `flush` goes on with callbacks after it
        set an exception, which Python answers with SystemError."""
        while len(producer) and self.poll(producer, 0.1):
            """Rows are being taken."""
        return len(producer)


def enqueue(
    producer: Producer,
    topic: str,
    messages: Sequence[dict[str, Any]],
    patience: Patience,
    on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
) -> int:
    """Hands messages to the client and returns how many its queue had no room for when the patience ended. Raises
    KafkaException for one that the client refuses."""
    for start in range(0, len(messages), _BATCH):
        waiting = list(messages[start : start + _BATCH])
        while waiting:
            if "headers" in waiting[0]:
                waiting = _one_by_one(producer, topic, waiting, on_delivery)
            else:
                producer.produce_batch(topic, waiting, on_delivery=on_delivery)
                waiting = _not_queued(waiting)
            if not patience.poll(producer, 0.1 if waiting else 0) and waiting:
                # Of this batch only what is not in the queue: whoever waits for the queue counts the rest of it.
                return len(waiting) + len(messages[start + _BATCH :])
    return 0


def _one_by_one(
    producer: Producer,
    topic: str,
    messages: list[dict[str, Any]],
    on_delivery: Callable[[KafkaError | None, Message], None] | None,
) -> list[dict[str, Any]]:
    """Messages that did not fit the client's queue. `produce_batch` takes no headers."""
    for place, message in enumerate(messages):
        try:
            producer.produce(topic, **message, on_delivery=on_delivery)
        except BufferError:
            return messages[place:]
    return []


def _not_queued(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages that did not fit the client's queue, which notes an error in each."""
    errors = [(message, message.pop("_error")) for message in messages if "_error" in message]
    for _, error in errors:
        if error.code() != KafkaError._QUEUE_FULL:
            raise KafkaException(error)
    return [message for message, _ in errors]


def as_messages(
    rows: pa.Table | pa.RecordBatch,
    key: Sequence[str],
    headers: Mapping[str, str] = MappingProxyType({}),
    timestamps: Timestamps = "epochMillis",
    values: Sequence[bytes] | None = None,
    nested: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Rows as `enqueue` takes them, with these values or as JSON. Either all have headers (maybe none of them) or no
    message knows of any."""
    messages: list[dict[str, Any]] = [
        {"value": value} for value in (rows_to_json(rows, timestamps, nested) if values is None else values)
    ]
    if key:
        plain = len(key) == 1 and pa.types.is_string(rows.schema.field(key[0]).type)
        keys = rows[key[0]].to_pylist() if plain else rows_to_json(rows.select(list(key)), timestamps, nested)
        for message, each in zip(messages, keys, strict=True):
            message["key"] = each
    if headers:
        columns = zip(*(as_texts(rows, column, timestamps) for column in headers.values()), strict=True)
        for message, texts in zip(messages, columns, strict=True):
            named = zip(headers, texts, strict=True)
            message["headers"] = [(name, value) for name, value in named if value is not None]
    return messages
