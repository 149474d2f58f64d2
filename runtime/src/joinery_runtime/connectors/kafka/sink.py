"""Kafka topics, at least once: rows are in the topic when a task's `write` returns, before the epoch commits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from joinery_runtime.connectors.kafka.errors import LastError, is_unavailable
from joinery_runtime.connectors.kafka.record_producers import Patience, open_producer
from joinery_runtime.connectors.kafka.records import Records
from joinery_runtime.connectors.kafka.target import TOO_LARGE, BrokerCheck, KafkaTarget, write_in_fitting_batches
from joinery_runtime.connectors.sink import Attempt, AttemptRows, NamesNoStore, Receipt, RecoveryContext
from joinery_runtime.errors import SinkError, Unavailable
from joinery_runtime.job.model.wording import counted


class _Client:
    """A producer and its last error."""

    def __init__(self, target: KafkaTarget) -> None:
        self.errors = LastError()
        self.producer = open_producer(target, target.producer_settings({}), self.errors)


class _Clients(threading.local):
    """A thread's clients by their settings. They stay open, because a new one first has to find and ask the brokers.
    Threads do not share them: one that waits for its rows would get the delivery reports of another's."""

    def __init__(self) -> None:
        self._open: dict[str, _Client] = {}

    def get(self, target: KafkaTarget) -> _Client:
        key = _client_key(target)
        if key not in self._open:
            self._open[key] = _Client(target)
        return self._open[key]

    def drop(self, target: KafkaTarget) -> None:
        self._open.pop(_client_key(target), None)

    def close_all(self) -> None:
        """End the threads and connections of this thread's clients."""
        self._open.clear()


CLIENTS = _Clients()


def _client_key(target: KafkaTarget) -> str:
    return repr((bool(target.headers), sorted(target.producer_settings({}).items())))


def _takes(target: KafkaTarget, records: Records) -> bool:
    """Say whether the topic takes these records. If it does, they are in it, and come once more."""
    client = _Client(target)
    try:
        Patience(target.delivery_seconds).enqueue(client.producer, target.topic, records)
    except KafkaException as error:
        if error.args[0].code() in TOO_LARGE:
            return False
        raise target.failure(error.args[0], client.errors, "a row was not written", error.args[0].str()) from error
    unsent = Patience(target.delivery_seconds).flush(client.producer)
    failures = client.producer.failures
    if failures and failures[0].code() not in TOO_LARGE:
        raise target.failure(failures[0], client.errors, "a row was not written", failures[0].str())
    if unsent:
        raise target.too_slow(unsent, client.errors)
    return not failures


@dataclass(frozen=True, slots=True)
class KafkaWriter:
    """The task half."""

    target: KafkaTarget

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        rows = self.target.in_order(rows)
        takes = None if attempt.row_limits is None else _takes
        count = write_in_fitting_batches(self.target, rows, lambda target: KafkaWriter(target).write_once(rows), takes)
        return {"attempt": str(attempt.id), "rows": count}

    def write_once(self, rows: AttemptRows) -> int:
        """Write the rows to this very target. Returns the row count."""
        try:
            return self._send_rows(CLIENTS.get(self.target), rows)
        except SinkError:
            CLIENTS.drop(self.target)  # an idempotent producer that lost rows may reject all others
            raise

    def _send_rows(self, client: _Client, rows: AttemptRows) -> int:
        """Enqueue chunk after chunk, and wait once, at the end, until the broker has all. Returns the row count."""
        failures = client.producer.failures
        failures.clear()
        count = unsent = 0
        try:
            for batch in rows.to_batches():
                records = self.target.records(batch)
                # A new one for each chunk: the brokers are not to blame for the time it took to make the chunk's rows.
                patience = Patience(self.target.delivery_seconds)
                unsent += patience.enqueue(client.producer, self.target.topic, records)
                count += batch.num_rows
                if unsent or failures:
                    break
        except KafkaException as error:
            raise self._send_error(client, error.args) from error
        unsent += Patience(self.target.delivery_seconds).flush(client.producer)
        if failures:
            raise self._send_error(client, failures)
        if unsent:
            raise self.target.too_slow(unsent, client.errors)
        return count

    def _send_error(self, client: _Client, failures: Sequence[KafkaError]) -> SinkError:
        # A rejected row is a better reason than rows that had to wait.
        first = next((error for error in failures if not is_unavailable(error)), failures[0])
        summary = f"{counted(len(failures), 'row', 'were')} not written"
        return self.target.failure(
            first, client.errors, summary, first.str(), "Correct the cause; the epoch is run again"
        )


class KafkaSink(NamesNoStore):
    """The driver half, which has nothing to do at the commit."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target, self._check = target, BrokerCheck(target)

    def prepare(self, schema: pa.Schema) -> None:
        errors = LastError()
        self._target.require(schema, self._target.admin(errors), errors)

    def writer(self) -> KafkaWriter:
        return KafkaWriter(self._target)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: rows are in the topic already."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: rows are in the topic already."""

    def recover(self, recovery: RecoveryContext) -> bool:
        """Return False. Rows of attempts without a commit stay (at least once), whatever becomes of the plan."""
        return False

    def unavailability(self) -> Unavailable | None:
        return self._check.unavailability()

    def close(self) -> None:
        """Do nothing: the process keeps its producers."""
