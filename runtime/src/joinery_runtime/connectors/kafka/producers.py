"""Producers that own a transactional id: one for each thread of a process that writes. Whoever takes over an id owns it
from then on."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator

from confluent_kafka import KafkaError, KafkaException

from joinery_runtime.connectors.kafka import target as kafka_target
from joinery_runtime.connectors.kafka.errors import DENIED, LastError
from joinery_runtime.connectors.kafka.markers import EpochMarker
from joinery_runtime.connectors.kafka.record_producers import Patience, open_producer
from joinery_runtime.connectors.kafka.records import Records
from joinery_runtime.connectors.kafka.target import TOO_LARGE, KafkaTarget, repeat_call
from joinery_runtime.errors import JoineryError, SinkError

_MAX_IDLE = 9  # idle producers per process: one per thread and one for dead letters; each has three connections
_CALL_SECONDS = 5.0  # for one call, which is repeated until the deadline
_CLEANUP_SECONDS = 5.0
_TURN_SECONDS = 0.1  # how often a call that takes its time is checked for rejected rows
_TAKEN_OVER = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    # The broker has forgotten the id, because nothing was written with it for a week.
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_SETTINGS = {
    # For some milliseconds, the broker rejects a transaction's first requests while it ends the one before. If
    # transactions follow each other closely, 200 rows take 106 ms with the default (100 ms), and 5 to 15 with this.
    "retry.backoff.ms": 10,
    # When all brokers are down, librdkafka 2.16 forgets them and starts over with the addresses that it was given. But
    # a group's coordinator that it asked before remains one of the forgotten brokers: `send_offsets_to_transaction`
    # waits for it for ever, even long after the brokers are back (librdkafka's issues 5456 and 5511).
    "metadata.recovery.strategy": "none",
}


class Disowned(Exception):
    """Another producer took over this one's id. Whatever this one has not committed is aborted."""


class OwningProducer:
    """A producer that, at its creation, took over its transactional id from all earlier ones.

    The constructor, and each method but `close`, raises SinkError. Methods also raise Disowned. After an error, only
    `close` may be called.
    """

    def __init__(self, target: KafkaTarget, name: str) -> None:
        self.name = name
        self._target, self._errors = target, LastError()
        self._begun_at = time.monotonic()
        # The broker ends an abandoned transaction when its time is up. Until then it holds back `read_committed`
        # readers of its partitions, unless the next attempt comes first.
        own = {"transactional.id": name, "transaction.timeout.ms": target.transaction_ms}
        settings = {**target.producer_settings(_SETTINGS), **own}
        self._producer = open_producer(target, settings, self._errors)
        # While the client is not connected, it looks for the id's coordinator only every 500 ms: without this, one in
        # four producers takes that much longer. The first answer may come from the address that was given, the second
        # comes from the broker itself. The next call reports errors better.
        with contextlib.suppress(KafkaException):
            for _ in range(2):
                self._producer.meet_brokers(target.topic, min(5.0, kafka_target.ANSWER_SECONDS))
        try:
            self._repeat_call(self._producer.init_transactions, target.delivery_seconds)
        except KafkaException as error:
            raise self._sink_error("no transaction can be begun", error.args[0]) from error

    def begin(self) -> None:
        with self._abort_on_error():
            self._producer.begin_transaction()
            self._begun_at = time.monotonic()

    def send(self, topic: str, chunks: Iterable[Records], group: str, marker: EpochMarker) -> None:
        """Send the topic's rows and the group's marker. Returns when the broker has them; nobody sees them yet.
        `chunks` are made while they are sent: an error in making them also ends the transaction."""
        with self._abort_on_error():
            unsent, seconds = 0, self._target.delivery_seconds
            for records in chunks:
                unsent = Patience(seconds).enqueue(self._producer, topic, records)
                if unsent:
                    break
            if not unsent:
                offset = marker.committed(topic)
                # Meanwhile the rows are on their way.
                self._repeat_call(lambda seconds: self._producer.send_offset(offset, group, seconds), seconds)
            unsent += Patience(seconds).flush(self._producer, until_refused=True)
            if self._producer.failures:
                raise KafkaException(self._producer.failures[0])
            if unsent:
                raise self._target.too_slow(unsent, self._errors)

    def takes(self, topic: str, records: Records) -> bool:
        """Say whether the topic takes these records, which nobody sees. Afterwards, only `close` may be called."""
        with self._abort_on_error():
            self._producer.begin_transaction()
            self._begun_at = time.monotonic()
            try:
                unsent = Patience(self._target.delivery_seconds).enqueue(self._producer, topic, records)
            except KafkaException as error:
                if error.args[0].code() not in TOO_LARGE:
                    raise
                self._abort_transaction()
                return False
            unsent += Patience(self._target.delivery_seconds).flush(self._producer, until_refused=True)
            failures = [error for error in self._producer.failures if error.code() not in _PURGED]
            if unsent and not failures:
                raise self._target.too_slow(unsent, self._errors)
            if failures and failures[0].code() not in TOO_LARGE:
                raise KafkaException(failures[0])
            self._abort_transaction()
            return not failures

    def commit(self) -> None:
        try:
            self._repeat_call(self._producer.commit_transaction, self._target.delivery_seconds)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in _TAKEN_OVER:
                raise self._disowned_error(cause) from error
            if cause.txn_requires_abort():
                self._abort_transaction()
                raise self._sink_error("rows were not written", cause) from error
            raise self._target.failure(
                cause,
                self._errors,
                "it is not known whether the rows were written",
                f"transactional id {self.name}, commit: {cause.str()}",
                "Nothing is lost: the next run of the epoch asks the broker",
            ) from error

    def close(self) -> None:
        """End the client's threads and connections. An open transaction stays open until its id is taken over or its
        time is up. The client's own `close` would wait, without limit, for the broker to end it."""
        del self._producer

    @contextlib.contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if error.args[0].code() in _TAKEN_OVER:
                raise self._disowned_error(error.args[0]) from error
            self._abort_transaction()
            raise self._sink_error("rows were not written", error.args[0]) from error
        except JoineryError:
            self._abort_transaction()
            raise

    def _disowned_error(self, error: KafkaError) -> Disowned | SinkError:
        """Return the error for a lost id: Disowned, or SinkError if the brokers took the id because the transaction's
        time was up. Then the next attempt would end in the same way."""
        seconds = time.monotonic() - self._begun_at
        if seconds < self._target.transaction_ms / 1000:
            return Disowned(error.str())
        return self._target.problem(
            "the brokers ended the transaction, which took too long",
            f"transactional id {self.name}: {error.str()}; it took {seconds:.0f} s, transaction.timeout.ms is "
            f"{self._target.transaction_ms}",
            "Raise transaction.timeout.ms under properties (and transaction.max.timeout.ms of the brokers), raise the "
            "quota, or set a smaller maxBytesPerEpoch",
        )

    def _abort_transaction(self) -> None:
        """Abort the transaction, so that readers need not wait for the next attempt."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(_CLEANUP_SECONDS)
        except KafkaException as error:
            if error.args[0].code() in _TAKEN_OVER:
                raise Disowned(error.args[0].str()) from error

    def _repeat_call(self, call: Callable[[float], object], within_seconds: float) -> None:
        """Repeat a call while its error is retriable. Also raises OutputUnavailable if the client does not return:
        while librdkafka 2.16 waits for a group's coordinator, it ignores time limits. The call's thread and client are
        then abandoned, as those of a call during which a row is rejected; the next attempt takes over the id."""
        seconds = min(_CALL_SECONDS, max(0.1, within_seconds))

        def is_retriable(error: KafkaError) -> bool:
            return bool(error.retriable()) and not error.txn_requires_abort()

        repeat_call(lambda: self._watch_call(call, seconds), is_retriable, within_seconds)

    def _watch_call(self, call: Callable[[float], object], seconds: float) -> None:
        ended: list[BaseException | None] = []

        def call_and_note() -> None:
            try:
                call(seconds)
                ended.append(None)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=call_and_note, name=f"kafka {self.name}", daemon=True)
        thread.start()
        deadline = time.monotonic() + seconds + _CALL_SECONDS
        while thread.is_alive() and time.monotonic() < deadline and not self._producer.failures:
            thread.join(_TURN_SECONDS)
            if thread.is_alive():
                self._producer.poll(0)  # a rejected row can keep a call from ending
        if not ended and self._producer.failures:
            raise KafkaException(self._producer.failures[0])
        if not ended:
            raise self._target.unavailable(
                "the Kafka client does not come back",
                f"transactional id {self.name}; a call has taken longer than its time limit of {seconds:.0f} s",
            )
        if ended[0] is not None:
            raise ended[0]

    def _sink_error(self, summary: str, error: KafkaError) -> SinkError:
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)  # to receive pending errors
        # Calls after the first rejection say only that the transaction has failed.
        error = next((failure for failure in self._producer.failures if failure.code() not in _PURGED), error)
        facts = f"transactional id {self.name}: {error.str()}"
        todo = "Correct the cause; the epoch is run again"
        if error.code() in DENIED:
            todo = "Allow this user to write with transactional ids, and to read groups, that start with the job's name"
        return self._target.failure(error, self._errors, summary, facts, todo)


class Producers:
    """The idle producers of a process, with their settings. The one that has been idle longest is dropped first.

    A taken producer belongs to its taker alone: two shards that are written at once use two producers.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[str, OwningProducer]] = []
        self._lock = threading.Lock()

    def take(self, target: KafkaTarget, job: str) -> OwningProducer | None:
        """Take the producer that was put back last, which its brokers know best."""
        key = _producer_key(target, job)
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index][0] == key:
                    return self._idle.pop(index)[1]
        return None

    def put(self, target: KafkaTarget, job: str, producer: OwningProducer) -> None:
        with self._lock:
            self._idle.append((_producer_key(target, job), producer))
            dropped = self._idle.pop(0)[1] if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.close()

    def close_idle(self) -> None:
        """End the idle producers' threads and connections. Nobody uses their ids again: a new producer gets a new
        one."""
        with self._lock:
            dropped, self._idle = self._idle, []
        for _, producer in dropped:
            producer.close()


def _producer_key(target: KafkaTarget, job: str) -> str:
    # A producer names its topic in its errors.
    return repr((job, target.topic, bool(target.headers), sorted(target.client_settings().items())))


def new_id(job: str) -> str:
    """Return a transactional id that nobody has used. Rights may be granted for its prefix."""
    return f"{job}-{uuid.uuid4().hex[:12]}"


PRODUCERS = Producers()
