"""Kafka topics, at least once: rows are there when a task's `write` returns, before the epoch commits.

A value is the row as JSON. The record key is the plain text where `key` names a single string column, else a JSON
object of the key columns; a record has no key where `key` is empty or its single string column is null.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from joinery_runtime.errors import SinkError
from joinery_runtime.sinks.base import AttemptId, Receipt
from joinery_runtime.sinks.encode import rows_to_json

_ANSWER_SECONDS = 15.0  # how long a broker may take to say which topics it has
_DELIVERY_SECONDS = 60.0  # how long all rows of an attempt may take
_BATCH = 10_000  # records that are handed to the client at a time

_OWNED = {
    "bootstrap.servers": "write it as bootstrapServers",
    "enable.idempotence": "it is always on",
    "transactional.id": "output is at least once",
    "delivery.report.only.error": "the sink needs it",
}


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A topic to write. `properties` are librdkafka's and may hold secrets; `key` names columns of the rows."""

    topic: str
    bootstrap_servers: str
    key: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        refused = [name for name in self.properties if name in _OWNED]
        if refused:
            reasons = "; ".join(f"{name}: {_OWNED[name]}" for name in refused)
            raise self.problem(f"kafka.properties may not set {', '.join(refused)}", reasons, "Remove it")

    def settings(self) -> dict[str, Any]:
        return {
            # Fewer, larger requests: a task waits for all of its rows anyway.
            "linger.ms": 5,
            "batch.size": 2**20,
            "queue.buffering.max.messages": 500_000,
            "message.timeout.ms": int(_DELIVERY_SECONDS * 1000),
            **self.properties,
            "bootstrap.servers": self.bootstrap_servers,
            "enable.idempotence": True,
            "delivery.report.only.error": True,
        }

    def problem(self, what: str, facts: str, todo: str = "") -> SinkError:
        return SinkError(
            f"Output topic {self.topic}: {what}",
            facts=f"{facts} (bootstrapServers {self.bootstrap_servers})",
            todo=todo,
        )


class _Client:
    """A producer and the newest error that it reported by the way."""

    def __init__(self, target: KafkaTarget) -> None:
        self._error: KafkaError | None = None
        try:
            self.producer = Producer({**target.settings(), "error_cb": self._note, "log_level": 0})
        except KafkaException as error:
            raise target.problem("kafka.properties are not valid", error.args[0].str()) from error

    def _note(self, error: KafkaError) -> None:
        if self._error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than the others
            self._error = error

    @property
    def complaint(self) -> str:
        return self._error.str() if self._error is not None else "no answer at all"


_clients: dict[str, _Client] = {}
_clients_lock = threading.Lock()


def _client(target: KafkaTarget) -> _Client:
    """The process's client for these settings, kept alive: a new one has to find and ask the brokers first."""
    name = _name(target)
    with _clients_lock:
        if name not in _clients:
            _clients[name] = _Client(target)
        return _clients[name]


def _forget(target: KafkaTarget) -> None:
    """After a failure: an idempotent producer that lost rows may refuse all others."""
    with _clients_lock:
        _clients.pop(_name(target), None)


def _name(target: KafkaTarget) -> str:
    return repr(sorted(target.settings().items()))


@dataclass(frozen=True, slots=True)
class KafkaWriter:
    """Task half."""

    target: KafkaTarget

    def write(self, attempt: AttemptId, rows: pa.Table) -> Receipt:
        try:
            self._send(_client(self.target), _messages(rows, self.target.key))
        except SinkError:
            _forget(self.target)
            raise
        return {"attempt": str(attempt), "rows": rows.num_rows}

    def _send(self, client: _Client, messages: list[dict[str, Any]]) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        deadline = time.monotonic() + _DELIVERY_SECONDS
        for start in range(0, len(messages), _BATCH):
            waiting = messages[start : start + _BATCH]
            while waiting:
                client.producer.produce_batch(self.target.topic, waiting, on_delivery=delivered)
                waiting = self._not_queued(waiting)
                client.producer.poll(0.1 if waiting else 0)
                if waiting and time.monotonic() > deadline:
                    raise self._too_slow(client, len(messages) - start)
        left = client.producer.flush(max(0.0, deadline - time.monotonic()))
        if failures:
            raise self._failure(failures)
        if left:
            raise self._too_slow(client, left)

    def _not_queued(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages that did not fit the client's queue, which notes an error in each."""
        errors = [(message, message.pop("_error")) for message in messages if "_error" in message]
        hopeless = [error for _, error in errors if error.code() != KafkaError._QUEUE_FULL]
        if hopeless:
            raise self._failure(hopeless)
        return [message for message, _ in errors]

    def _failure(self, failures: Sequence[KafkaError]) -> SinkError:
        what = f"{len(failures)} rows were not written"
        return self.target.problem(what, failures[0].str(), "Correct the cause; the epoch is run again")

    def _too_slow(self, client: _Client, waiting: int) -> SinkError:
        return self.target.problem(
            f"{waiting} rows were not written within {_DELIVERY_SECONDS:.0f} s",
            client.complaint,
            "Check that the broker runs and can be reached from here",
        )


class KafkaSink:
    """Driver half: has nothing to do at the commit."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target = target

    def prepare(self, schema: pa.Schema) -> None:
        target, client = self._target, _client(self._target)
        missing = [name for name in target.key if name not in schema.names]
        if missing:
            raise target.problem("the key names no output column", ", ".join(missing), "Correct output.kafka.key")
        try:
            # Asking for this topic alone would create it where the broker does that.
            topics = client.producer.list_topics(timeout=_ANSWER_SECONDS).topics
        except KafkaException as error:
            client.producer.poll(0)
            raise target.problem(
                "the Kafka broker does not answer",
                f"waited {_ANSWER_SECONDS:.0f} s; {client.complaint}",
                "Check bootstrapServers and that the broker runs and can be reached from here",
            ) from error
        if target.topic not in topics:
            raise target.problem("it does not exist", f"the broker has {len(topics)} topics", "Create the topic")

    def writer(self) -> KafkaWriter:
        return KafkaWriter(self._target)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are in the topic already."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are in the topic already."""

    def recover(self, generation: int, committed_epoch: int) -> None:
        """What attempts without a commit wrote stays: at least once."""

    def close(self) -> None:
        """The process keeps its producer."""


def _messages(rows: pa.Table, key: Sequence[str]) -> list[dict[str, Any]]:
    values = rows_to_json(rows)
    if not key:
        return [{"value": value} for value in values]
    return [{"value": value, "key": name} for value, name in zip(values, _keys(rows, key), strict=True)]


def _keys(rows: pa.Table, key: Sequence[str]) -> list[Any]:
    if len(key) == 1 and pa.types.is_string(rows.schema.field(key[0]).type):
        names: list[Any] = rows[key[0]].to_pylist()
        return names
    return list(rows_to_json(rows.select(list(key))))
