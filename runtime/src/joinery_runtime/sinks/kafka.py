"""Kafka topics, at least once: rows are there when a task's `write` returns, before the epoch commits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from joinery_runtime.errors import SinkError
from joinery_runtime.job.model.wording import counted
from joinery_runtime.kafka_errors import LastError, is_away
from joinery_runtime.sinks.base import Attempt, AttemptRows, HasNoJobMarker, Receipt, Takeover
from joinery_runtime.sinks.kafka_target import KafkaTarget, Patience, enqueue


class _Client:
    """A producer and what it last complained of."""

    def __init__(self, target: KafkaTarget) -> None:
        self.errors = LastError()
        self.producer: Producer = target.connect(Producer, _settings(target), self.errors)


class _Clients(threading.local):
    """A thread's clients by their settings, kept alive: a new one has to find and ask the brokers first. Not the
    process's: a thread that waits for its rows would be handed what became of another one's."""

    def __init__(self) -> None:
        self._open: dict[str, _Client] = {}

    def get(self, target: KafkaTarget) -> _Client:
        key = _key(target)
        if key not in self._open:
            self._open[key] = _Client(target)
        return self._open[key]

    def drop(self, target: KafkaTarget) -> None:
        self._open.pop(_key(target), None)


_clients = _Clients()


def _settings(target: KafkaTarget) -> dict[str, Any]:
    return target.producer_settings({})


def _key(target: KafkaTarget) -> str:
    return repr(sorted(_settings(target).items()))


@dataclass(frozen=True, slots=True)
class KafkaWriter:
    """Task half."""

    target: KafkaTarget

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        try:
            count = self._send(_clients.get(self.target), rows)
        except SinkError:
            _clients.drop(self.target)  # an idempotent producer that lost rows may refuse all others
            raise
        return {"attempt": str(attempt.id), "rows": count}

    def _send(self, client: _Client, rows: AttemptRows) -> int:
        """Enqueues chunk after chunk and waits once, at the end, until the broker has all of them; returns how many."""
        failures: list[KafkaError] = []
        count = unsent = 0

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            for batch in rows.to_batches():
                messages = self.target.messages(batch)
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
        what = f"{counted(len(failures), 'row', 'were')} not written"
        return self.target.failure(first, client.errors, what, first.str(), "Correct the cause; the epoch is run again")


class KafkaSink(HasNoJobMarker):
    """Driver half: has nothing to do at the commit."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target = target

    def prepare(self, schema: pa.Schema) -> None:
        client = _clients.get(self._target)
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
