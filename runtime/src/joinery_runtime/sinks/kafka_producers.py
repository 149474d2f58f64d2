"""Producers that own a transactional id: one per thread of a process that writes, and whoever takes an id over owns it
from then on."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from joinery_runtime.errors import JoineryError, SinkError
from joinery_runtime.kafka_errors import DENIED, LastError
from joinery_runtime.sinks import kafka_target
from joinery_runtime.sinks.kafka_markers import EpochMarker
from joinery_runtime.sinks.kafka_target import KafkaTarget, Patience, enqueue, repeat

_MAX_IDLE = 9  # idle producers per process, one per thread and one for dead letters: each has three connections
_CALL_SECONDS = 5.0  # one call; it is repeated until the deadline
_CLEANUP_SECONDS = 5.0
_TAKEN_OVER = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    # The broker forgot the id: nothing was written with it for a week.
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_SETTINGS = {
    # A transaction's first requests are refused while the broker is ending the one before, for some milliseconds:
    # with the default, 100 ms, 200 rows take 106 ms when transactions follow each other closely, with this 5 to 15.
    "retry.backoff.ms": 10,
    # When all brokers are down, librdkafka 2.16 forgets them and begins anew with the addresses that it was given. The
    # coordinator of a group that it has asked before stays one of the forgotten: `send_offsets_to_transaction` waits
    # for that one without an end, also long after the brokers are back (librdkafka's issues 5456 and 5511).
    "metadata.recovery.strategy": "none",
}


class Disowned(Exception):
    """The producer's id was taken over by another one. What it has not committed is aborted."""


class OwningProducer:
    """A producer that took its transactional id over when it was made, from all before it.

    Making one, and each method but `close`, raises SinkError; methods raise Disowned too. After an error only `close`
    may be called.
    """

    def __init__(self, target: KafkaTarget, name: str) -> None:
        self.name = name
        self._target, self._errors = target, LastError()
        self._refused: KafkaError | None = None
        self._begun_at = time.monotonic()
        # The broker ends a transaction that nobody goes on with after its time; until then it holds back
        # `read_committed` readers of its partitions, unless the next attempt comes first.
        own = {"transactional.id": name, "transaction.timeout.ms": target.transaction_ms}
        settings = {**target.producer_settings(_SETTINGS), **own}
        self._producer: Producer = target.connect(Producer, settings, self._errors)
        self._meet_brokers()
        try:
            self._repeat(self._producer.init_transactions, target.delivery_seconds)
        except KafkaException as error:
            raise self._problem("no transaction can be begun", error.args[0]) from error

    def _meet_brokers(self) -> None:
        """While it is not connected, the client looks for the id's coordinator every 500 ms only: without this one
        of four producers takes that much longer. The first answer may be from the address that was given, the second
        is from the broker itself. Whatever is wrong, the next call says better."""
        with contextlib.suppress(KafkaException):
            for _ in range(2):
                self._producer.list_topics(self._target.topic, timeout=min(5.0, kafka_target.ANSWER_SECONDS))

    def begin(self) -> None:
        with self._aborting():
            self._producer.begin_transaction()
            self._begun_at = time.monotonic()

    def send(self, topic: str, chunks: Iterable[Sequence[dict[str, Any]]], group: str, marker: EpochMarker) -> None:
        """Returns when the broker has the topic's rows and the group's marker, which nobody sees yet. `chunks` are made
        while they are sent: an error that they raise ends the transaction too."""
        with self._aborting():
            unsent, seconds = 0, self._target.delivery_seconds
            for messages in chunks:
                unsent = enqueue(self._producer, topic, messages, Patience(seconds), self._note_refusal)
                if unsent:
                    break
            if not unsent:
                offsets, metadata = [marker.committed(topic)], _group_metadata(group)
                self._repeat(  # the rows are on their way meanwhile
                    lambda seconds: self._producer.send_offsets_to_transaction(offsets, metadata, seconds), seconds
                )
            unsent += Patience(seconds).flush(self._producer)
            if unsent:
                raise self._target.too_slow(unsent, self._errors)

    def _note_refusal(self, error: KafkaError | None, _: Message) -> None:
        """Keeps why the first row was refused: calls after it say no more than that the transaction has failed."""
        if error is not None and self._refused is None and error.code() not in _PURGED:
            self._refused = error

    def commit(self) -> None:
        try:
            self._repeat(self._producer.commit_transaction, self._target.delivery_seconds)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in _TAKEN_OVER:
                raise self._disowned(cause) from error
            if cause.txn_requires_abort():
                self._abort()
                raise self._problem("rows were not written", cause) from error
            raise self._target.failure(
                cause,
                self._errors,
                "it is not known whether the rows were written",
                f"transactional id {self.name}, commit: {cause.str()}",
                "Nothing is lost: the next run of the epoch asks the broker",
            ) from error

    def close(self) -> None:
        """Ends its threads and connections. An open transaction stays open until its id is taken over or its time is
        up: the client's own `close` would wait for the broker to end it, without a limit."""
        del self._producer

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if error.args[0].code() in _TAKEN_OVER:
                raise self._disowned(error.args[0]) from error
            self._abort()
            raise self._problem("rows were not written", error.args[0]) from error
        except JoineryError:
            self._abort()
            raise

    def _disowned(self, error: KafkaError) -> Disowned | SinkError:
        """The brokers take the id away also when the transaction's time is up: the next attempt would fare the same."""
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

    def _abort(self) -> None:
        """So that readers need not wait for the next attempt."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(_CLEANUP_SECONDS)
        except KafkaException as error:
            if error.args[0].code() in _TAKEN_OVER:
                raise Disowned(error.args[0].str()) from error

    def _repeat(self, call: Callable[[float], object], within_seconds: float) -> None:
        """Raises OutputUnavailable too when the client does not come back: while librdkafka 2.16 waits for the
        coordinator of a group, it heeds no time limit. The call's thread and client are left to themselves; the next
        attempt takes the id over."""
        seconds = min(_CALL_SECONDS, max(0.1, within_seconds))
        repeat(lambda: self._watched(call, seconds), _retriable, within_seconds)

    def _watched(self, call: Callable[[float], object], seconds: float) -> None:
        ended: list[BaseException | None] = []

        def calling() -> None:
            try:
                call(seconds)
                ended.append(None)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=calling, name=f"kafka {self.name}", daemon=True)
        thread.start()
        thread.join(seconds + _CALL_SECONDS)
        if not ended:
            raise self._target.away(
                "the Kafka client does not come back",
                f"transactional id {self.name}; a call has taken longer than its time limit of {seconds:.0f} s",
            )
        if ended[0] is not None:
            raise ended[0]

    def _problem(self, what: str, error: KafkaError) -> SinkError:
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)  # for what the client has to say
        error = self._refused or error
        facts = f"transactional id {self.name}: {error.str()}"
        todo = "Correct the cause; the epoch is run again"
        if error.code() in DENIED:
            todo = "Allow this user to write with transactional ids, and to read groups, that start with the job's name"
        return self._target.failure(error, self._errors, what, facts, todo)


@cache
def _group_metadata(name: str) -> object:
    """What a transaction has to know of the group whose offset it commits. Nobody joins the group, so no broker is
    asked."""
    consumer = Consumer({"group.id": name, "log_level": 0})
    try:
        metadata: object = consumer.consumer_group_metadata()
        return metadata
    finally:
        consumer.close()


def _retriable(error: KafkaError) -> bool:
    return bool(error.retriable()) and not error.txn_requires_abort()


class Producers:
    """Idle producers of a process with their settings, the one that has been idle longest dropped first.

    One that is taken is its taker's alone: of two shards that are written at once, each has a producer of its own.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[str, OwningProducer]] = []
        self._lock = threading.Lock()

    def take(self, target: KafkaTarget, job: str) -> OwningProducer | None:
        """The one that was put back last, which its brokers know best."""
        wanted = _key(target, job)
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == wanted:
                    return self._idle.pop(place)[1]
        return None

    def put(self, target: KafkaTarget, job: str, producer: OwningProducer) -> None:
        with self._lock:
            self._idle.append((_key(target, job), producer))
            dropped = self._idle.pop(0)[1] if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.close()

    def close_idle(self) -> None:
        """Ends their threads and connections. Their ids are nobody's then: the next producer has one of its own."""
        with self._lock:
            dropped, self._idle = self._idle, []
        for _, producer in dropped:
            producer.close()


def _key(target: KafkaTarget, job: str) -> str:
    return repr((job, sorted(target.client_settings().items())))


def new_id(job: str) -> str:
    """A transactional id that nobody has had; rights may be given for the prefix."""
    return f"{job}-{uuid.uuid4().hex[:12]}"


PRODUCERS = Producers()
