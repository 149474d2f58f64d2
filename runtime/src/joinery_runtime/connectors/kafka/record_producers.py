"""Clients that write records to Kafka: librdkafka itself, which takes batches, or Python's client, record by record,
for records with headers and where the library cannot be called (docs/decisions/0061). Both do the same, and raise the
exceptions of Python's client.
"""

from __future__ import annotations

import ctypes
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from joinery_runtime.connectors.kafka.errors import LastError
from joinery_runtime.connectors.kafka.librdkafka import (
    PRODUCER,
    MessageStruct,
    UnknownLibrary,
    error_of,
    library,
    new_client,
    partition_list,
    raise_error,
    say_once,
)
from joinery_runtime.connectors.kafka.records import Records, Texts
from joinery_runtime.connectors.kafka.target import KafkaTarget

_BATCH = 10_000  # records that are handed to the client at a time
# How often a wait checks for deliveries, which, unlike failures, do not wake it. The first checks are closer: the few
# rows of a small epoch are written within milliseconds.
_FIRST_TURN_SECONDS, _TURN_SECONDS = 0.001, 0.005
_ANY_PARTITION = -1  # the partitioner of the job's properties decides
_COPY = 2  # RD_KAFKA_MSG_F_COPY
_QUEUED_AND_SENT = 1 | 2  # RD_KAFKA_PURGE_F_QUEUE, RD_KAFKA_PURGE_F_INFLIGHT
_MESSAGE = np.dtype(MessageStruct)

_SOMEWHERE = np.zeros(1, np.uint8)


class RecordProducer(Protocol):
    """A Kafka producer. One thread uses it at a time. During `poll`, `failures` gets the error of each record that was
    not delivered; the user empties it. Time limits are in seconds."""

    failures: list[KafkaError]

    def __len__(self) -> int:
        """Return the number of records that are not delivered yet."""
        ...

    def poll(self, seconds: float) -> object:
        """Wait for deliveries and errors, at most `seconds`."""
        ...

    def enqueue(self, topic: str, records: Records, start: int) -> int:
        """Hand over some thousand records, from number `start`. Returns the number of the first record that was not
        taken: the client takes fewer if its queue is full. Raises KafkaException for a record that it rejects."""
        ...

    def meet_brokers(self, topic: str, seconds: float) -> None:
        """Ask for the topic's metadata, which connects the client."""
        ...

    def init_transactions(self, seconds: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def send_offset(self, offset: TopicPartition, group: str, seconds: float) -> None:
        """Add to the transaction the commit of an offset, for a group that nobody joins."""
        ...

    def commit_transaction(self, seconds: float) -> None: ...

    def abort_transaction(self, seconds: float) -> None: ...

    def purge(self) -> None:
        """Drop all records that are not delivered yet."""
        ...


def open_producer(target: KafkaTarget, settings: Mapping[str, Any], errors: LastError) -> RecordProducer:
    """Make a producer for the target's records, which connects later on its own. Raises SinkError for a property that
    librdkafka rejects."""
    if not target.headers:  # a batch cannot have headers
        try:
            library()
        except UnknownLibrary as unknown:
            say_once(logging.WARNING, f"Rows are written to Kafka record by record, which takes more time: {unknown}")
        else:
            return target.connect(BatchProducer, settings, errors)
    return target.connect(MessageProducer, settings, errors)


class BatchProducer:
    """librdkafka's own producer. It copies records from their buffers."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.failures: list[KafkaError] = []
        failures = self.failures

        def on_failed(message: int) -> None:
            if code := MessageStruct.from_address(message).err:
                failures.append(error_of(code))

        self._library, self._topics = library(), dict[str, int]()
        self._client, callbacks = new_client(PRODUCER, settings, on_failed)
        # A call that does not return keeps its client alive, as with Python's. A process that ends waits for no client.
        weakref.finalize(self, _destroy_client, self._library, self._client, self._topics, callbacks).atexit = False

    def __len__(self) -> int:
        return int(self._library.rd_kafka_outq_len(self._client))

    def poll(self, seconds: float) -> None:
        self._library.rd_kafka_poll(self._client, _milliseconds(seconds))

    def enqueue(self, topic: str, records: Records, start: int) -> int:
        end = min(start + _BATCH, len(records))
        messages = np.zeros(end - start, _MESSAGE)
        _point_messages(messages, "payload", "len", records.values, start, end)
        if records.keys is not None:
            _point_messages(messages, "key", "key_len", records.keys, start, end)
        accepted = int(
            self._library.rd_kafka_produce_batch(
                self._topic_handle(topic), _ANY_PARTITION, _COPY, messages.ctypes.data, len(messages)
            )
        )
        if accepted < len(messages):
            errors = messages["err"]
            # If the queue is full, the library takes no later record of the batch either, so the order stays.
            refused = errors[(errors != 0) & (errors != KafkaError._QUEUE_FULL)]
            if len(refused):
                raise KafkaException(error_of(int(refused[0])))
        return start + accepted

    def _topic_handle(self, name: str) -> int:
        if name not in self._topics:
            topic = self._library.rd_kafka_topic_new(self._client, name.encode(), None)
            if topic is None:
                raise KafkaException(error_of(self._library.rd_kafka_last_error()))
            self._topics[name] = topic
        return self._topics[name]

    def meet_brokers(self, topic: str, seconds: float) -> None:
        metadata = ctypes.c_void_p()
        metadata_ref = ctypes.byref(metadata)
        code = self._library.rd_kafka_metadata(
            self._client, 0, self._topic_handle(topic), metadata_ref, _milliseconds(seconds)
        )
        if code:
            raise KafkaException(error_of(code))
        self._library.rd_kafka_metadata_destroy(metadata)

    def init_transactions(self, seconds: float) -> None:
        raise_error(self._library.rd_kafka_init_transactions(self._client, _milliseconds(seconds)))

    def begin_transaction(self) -> None:
        raise_error(self._library.rd_kafka_begin_transaction(self._client))

    def send_offset(self, offset: TopicPartition, group: str, seconds: float) -> None:
        metadata = None if offset.metadata is None else offset.metadata.encode()
        member = self._library.rd_kafka_consumer_group_metadata_new(group.encode())
        try:
            with partition_list([(offset.topic, offset.partition, offset.offset, metadata)]) as offsets:
                send = self._library.rd_kafka_send_offsets_to_transaction
                raise_error(send(self._client, offsets, member, _milliseconds(seconds)))
        finally:
            self._library.rd_kafka_consumer_group_metadata_destroy(member)

    def commit_transaction(self, seconds: float) -> None:
        raise_error(self._library.rd_kafka_commit_transaction(self._client, _milliseconds(seconds)))

    def abort_transaction(self, seconds: float) -> None:
        raise_error(self._library.rd_kafka_abort_transaction(self._client, _milliseconds(seconds)))

    def purge(self) -> None:
        code = self._library.rd_kafka_purge(self._client, _QUEUED_AND_SENT)
        if code:
            raise KafkaException(error_of(code))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _point_messages(messages: npt.NDArray[Any], pointer: str, size: str, texts: Texts, start: int, end: int) -> None:
    """Make the messages point at texts `start` to `end` (exclusive)."""
    sizes, null = texts.sizes[start:end], texts.sizes[start:end] < 0
    # The address of an empty buffer may be 0, which would turn each empty text into null.
    at = texts.starts[start:end] + (texts.data.ctypes.data or _SOMEWHERE.ctypes.data)
    messages[pointer], messages[size] = np.where(null, 0, at), np.where(null, 0, sizes)


def _destroy_client(library: Any, client: int, topics: Mapping[str, int], _callbacks: object) -> None:
    for topic in topics.values():
        library.rd_kafka_topic_destroy(topic)
    library.rd_kafka_destroy(client)


class MessageProducer:
    """Python's client."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.failures: list[KafkaError] = []
        self._client = Producer(settings)

    def __len__(self) -> int:
        return len(self._client)

    def poll(self, seconds: float) -> None:
        self._client.poll(seconds)

    def enqueue(self, topic: str, records: Records, start: int) -> int:
        messages = records.messages(start, min(start + _BATCH, len(records)))
        if records.headers is not None:  # `produce_batch` does not take them
            for index, message in enumerate(messages):
                try:
                    self._client.produce(topic, **message, on_delivery=self._on_delivered)
                except BufferError:
                    return start + index
            return start + len(messages)
        self._client.produce_batch(topic, messages, on_delivery=self._on_delivered)
        # The client notes an error in each message that it has not taken.
        errors = [message["_error"] for message in messages if "_error" in message]
        for error in errors:
            if error.code() != KafkaError._QUEUE_FULL:
                raise KafkaException(error)
        return start + len(messages) - len(errors)

    def _on_delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failures.append(error)

    def meet_brokers(self, topic: str, seconds: float) -> None:
        self._client.list_topics(topic, timeout=seconds)

    def init_transactions(self, seconds: float) -> None:
        self._client.init_transactions(seconds)

    def begin_transaction(self) -> None:
        self._client.begin_transaction()

    def send_offset(self, offset: TopicPartition, group: str, seconds: float) -> None:
        self._client.send_offsets_to_transaction([offset], _group_metadata(group), seconds)

    def commit_transaction(self, seconds: float) -> None:
        self._client.commit_transaction(seconds)

    def abort_transaction(self, seconds: float) -> None:
        self._client.abort_transaction(seconds)

    def purge(self) -> None:
        self._client.purge()


@cache
def _group_metadata(name: str) -> object:
    """Return the metadata that a transaction needs of the group whose offset it commits. Nobody joins the group, so
    this asks no broker."""
    consumer = Consumer({"group.id": name, "log_level": 0})
    try:
        metadata: object = consumer.consumer_group_metadata()
        return metadata
    finally:
        consumer.close()


class Patience:
    """Limits how long brokers may accept no row at all. `clock` is in seconds and never goes back."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._until = clock() + seconds

    def poll(self, producer: RecordProducer, seconds: float) -> bool:
        """Let the client work. Returns whether to continue: rows were accepted, or there is more time."""
        before = len(producer)
        producer.poll(seconds)
        if len(producer) < before:
            self._until = self._clock() + self._seconds
        return self._clock() < self._until

    def flush(self, producer: RecordProducer, *, until_refused: bool = False) -> int:
        """Wait until all rows are written or the patience ends; with `until_refused`, only until a row was rejected:
        the rows after it would wait for the end of their transaction. Returns the number of unwritten rows. The
        client's own `flush` knows no patience."""
        turn = _FIRST_TURN_SECONDS
        while len(producer) and not (until_refused and producer.failures) and self.poll(producer, turn):
            turn = min(_TURN_SECONDS, turn + _FIRST_TURN_SECONDS)
        return len(producer)

    def enqueue(self, producer: RecordProducer, topic: str, records: Records) -> int:
        """Hand records to the client. Returns the number for which its queue had no room when the patience ended.
        Raises KafkaException for a record that the client rejects."""
        index = 0
        while index < len(records):
            before, index = index, producer.enqueue(topic, records, index)
            full = index < min(before + _BATCH, len(records))
            if not self.poll(producer, _TURN_SECONDS if full else 0) and full:
                break
        return len(records) - index
