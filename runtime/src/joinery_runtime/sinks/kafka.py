"""Kafka topics, at least once: rows are there when a task's `write` returns, before the epoch commits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from joinery_runtime.errors import SinkError
from joinery_runtime.kafka_errors import LastError, is_away
from joinery_runtime.sinks.base import Attempt, Receipt, Rows, Takeover
from joinery_runtime.sinks.kafka_target import KafkaTarget, Patience, as_messages, enqueue


class _Client:
    """A producer and what it last complained of."""

    def __init__(self, target: KafkaTarget) -> None:
        self.errors = LastError()
        self.producer: Producer = target.connect(Producer, _settings(target), self.errors)


_clients: dict[str, _Client] = {}
_clients_lock = threading.Lock()


def _settings(target: KafkaTarget) -> dict[str, Any]:
    return target.producer_settings({})


def _client(target: KafkaTarget) -> _Client:
    """The process's client for these settings, kept alive: a new one has to find and ask the brokers first."""
    key = _client_key(target)
    with _clients_lock:
        if key not in _clients:
            _clients[key] = _Client(target)
        return _clients[key]


def _client_key(target: KafkaTarget) -> str:
    return repr(sorted(_settings(target).items()))


@dataclass(frozen=True, slots=True)
class KafkaWriter:
    """Task half."""

    target: KafkaTarget

    def write(self, attempt: Attempt, rows: Rows) -> Receipt:
        try:
            count = self._send(_client(self.target), rows)
        except SinkError:
            with _clients_lock:  # an idempotent producer that lost rows may refuse all others
                _clients.pop(_client_key(self.target), None)
            raise
        return {"attempt": str(attempt.id), "rows": count}

    def _send(self, client: _Client, rows: Rows) -> int:
        """Enqueues chunk after chunk and waits once, at the end, until the broker has all of them; returns how many."""
        failures: list[KafkaError] = []
        count = unsent = 0

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            for batch in rows.to_batches():
                messages = as_messages(batch, self.target.key)
                # Made anew: brokers are not to blame for the time that a chunk's rows took to be made.
                patience = Patience(self.target.delivery_seconds)
                unsent += enqueue(client.producer, self.target.topic, messages, patience, delivered)
                count += batch.num_rows
                if unsent or failures:
                    break
        except KafkaException as error:
            raise self._failure(client, error.args) from error
        unsent += Patience(self.target.delivery_seconds).flush(client.producer)
        if failures:
            raise self._failure(client, failures)
        if unsent:
            raise self.target.too_slow(unsent, client.errors)
        return count

    def _failure(self, client: _Client, failures: Sequence[KafkaError]) -> SinkError:
        # A row that is refused comes before those that had to wait for their turn.
        first = next((error for error in failures if not is_away(error)), failures[0])
        what = f"{len(failures)} rows were not written"
        return self.target.failure(first, client.errors, what, first.str(), "Correct the cause; the epoch is run again")


class KafkaSink:
    """Driver half: has nothing to do at the commit."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target = target

    def prepare(self, schema: pa.Schema) -> None:
        client = _client(self._target)
        self._target.require(schema, client.producer, client.errors)

    def writer(self) -> KafkaWriter:
        return KafkaWriter(self._target)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are in the topic already."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are in the topic already."""

    def recover(self, takeover: Takeover) -> bool:
        """What attempts without a commit wrote stays: at least once, whatever the plan becomes."""
        return False

    def close(self) -> None:
        """The process keeps its producer."""
