"""Clients that fetch records from Kafka: in batches that a kernel takes apart, or record by record by Python's client.

Both return the same records; they differ only in speed (decision 20).
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from joinery_runtime.connectors.kafka.librdkafka import (
    CONSUMER,
    MessageStruct,
    UnknownLibrary,
    error_of,
    function_address,
    library,
    message_error,
    new_client,
    partition_list,
    raise_error,
    say_once,
)
from joinery_runtime.connectors.kafka.settings import Cluster, connect
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.compiled import kernels

MOST_RECORDS = 10_000  # the most records that one call may ask for
_MOST_BYTES = 1 << 30  # of values in a batch: Arrow's offsets have 32 bits


@dataclass(frozen=True, slots=True)
class ConsumerEvent:
    """A partition's end was reached (at `offset`), or an error occurred: in a partition or, without a topic, in the
    client as a whole."""

    error: KafkaError
    topic: str | None = None
    partition: int = -1
    offset: int = -1


class RecordClient(Protocol):
    """A consumer that reads the partitions assigned to it. One thread uses it at a time. It raises KafkaException, and
    reports background errors to the settings' `error_cb` during `fetch`."""

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        """Add these partitions, from these offsets."""
        ...

    def unassign(self, refs: Iterable[PartitionRef]) -> None: ...

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        """Wait for `most` (up to MOST_RECORDS) records and events, or until the time is over."""
        ...

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        """Ask the broker for the offsets of the earliest record and of the next one to come."""
        ...

    def close(self) -> None: ...


def open_client(
    cluster: Cluster, settings: dict[str, Any], *, keyed: bool, headers: tuple[str, ...] = ()
) -> RecordClient:
    """Open a client with these settings, which are those of Python's client. `keyed`: batches also have the records'
    keys. `headers`: the headers that batches have."""
    try:
        version, kernel = library().rd_kafka_version(), kernels("messages")
    except UnknownLibrary as unknown:
        return _by_record(cluster, settings, keyed, headers, str(unknown))
    if kernel is None:
        return _by_record(cluster, settings, keyed, headers, "its kernel is missing")
    number = f"{version >> 24}.{version >> 16 & 0xFF}.{version >> 8 & 0xFF}"
    say_once(logging.INFO, f"Kafka is read in batches, with librdkafka {number}")
    return BatchClient(cluster.input, connect(ConsumerHandle, settings, cluster), kernel, keyed, headers)


def _by_record(
    cluster: Cluster, settings: dict[str, Any], keyed: bool, headers: tuple[str, ...], reason: str
) -> RecordClient:
    say_once(logging.WARNING, f"Kafka is read record by record, which takes more time: {reason}")
    return MessageClient(cluster.input, connect(Consumer, settings, cluster), keyed, headers)


class BatchClient:
    """Fetches librdkafka's own batches. The kernel copies the records into Arrow arrays and frees the messages."""

    def __init__(
        self, name: str, handle: ConsumerHandle, kernel: ModuleType, keyed: bool, headers: tuple[str, ...] = ()
    ) -> None:
        self._input, self._handle, self._kernel, self._keyed = name, handle, kernel, keyed
        self._headers = headers
        self._timestamp, self._destroy = (
            function_address("rd_kafka_message_timestamp"),
            function_address("rd_kafka_message_destroy"),
        )
        self._messages = np.zeros(MOST_RECORDS, np.int64)  # addresses
        self._starts = np.empty(MOST_RECORDS + 1, np.int64)
        self._value_bytes, self._key_bytes = np.empty((2, MOST_RECORDS), np.int64)

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        self._handle.assign(at)

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        self._handle.unassign(refs)

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        return self._handle.watermarks(ref, seconds)

    def close(self) -> None:
        self._handle.close()

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        count = self._handle.consume(self._messages.ctypes.data, most, seconds)
        try:
            return self._convert_messages(count)
        finally:
            self._kernel.release(self._messages, count, self._destroy)

    def _convert_messages(self, count: int) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        batches: list[RawBatch] = []
        events: list[ConsumerEvent] = []
        offsets, stamps = np.empty((2, count), np.int64)
        columns = (offsets, stamps, self._starts, self._value_bytes, self._key_bytes)
        runs = self._kernel.describe(self._messages, count, _MOST_BYTES, self._timestamp, *columns)
        for run, (start, stop) in enumerate(pairwise(self._starts[: runs + 1].tolist())):
            message = MessageStruct.from_address(int(self._messages[start]))
            topic = self._handle.topic_of(message.topic)
            if message.err:
                error = message_error(int(self._messages[start]), message.err)
                events.append(ConsumerEvent(error, topic, message.partition, message.offset))
                continue
            assert topic is not None, "a record is of a topic"
            batches.append(
                RawBatch(
                    PartitionRef(self._input, topic, message.partition),
                    # A copy: otherwise keeping a small batch would keep all others of this call in memory.
                    offsets[start:stop].copy(),
                    self._gather_bytes(start, stop, int(self._value_bytes[run]), keys=False),
                    self._gather_bytes(start, stop, int(self._key_bytes[run]), keys=True) if self._keyed else None,
                    stamps[start:stop].copy().__getitem__,
                    # Record by record: few inputs need headers, and one costs a microsecond.
                    headers={
                        name: _binary_array(
                            self._handle.header_of(record, name) for record in self._messages[start:stop].tolist()
                        )
                        for name in self._headers
                    },
                )
            )
        return batches, events

    def _gather_bytes(self, start: int, stop: int, size: int, *, keys: bool) -> pa.BinaryArray:
        records = stop - start
        data, offsets = pa.allocate_buffer(size), np.empty(records + 1, np.int32)
        valid = np.zeros((records + 7) // 8, np.uint8)
        nulls = self._kernel.gather(self._messages, start, stop, keys, offsets, data.address, valid)
        buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), data]
        return pa.Array.from_buffers(pa.binary(), records, buffers, nulls)


class MessageClient:
    """Fetches with Python's client, which creates an object for each record."""

    def __init__(self, name: str, consumer: Any, keyed: bool, headers: tuple[str, ...] = ()) -> None:
        self._input, self._consumer, self._keyed, self._headers = name, consumer, keyed, headers
        self._ever: set[tuple[str, int]] = set()  # topics and partitions that were assigned at any time

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        self._ever |= {(ref.topic, ref.partition) for ref in at}
        self._consumer.incremental_assign([TopicPartition(ref.topic, ref.partition, at) for ref, at in at.items()])

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        self._consumer.incremental_unassign([TopicPartition(ref.topic, ref.partition) for ref in refs])

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        partition = TopicPartition(ref.topic, ref.partition)
        earliest, latest = self._consumer.get_watermark_offsets(partition, seconds, cached=False)
        return int(earliest), int(latest)

    def close(self) -> None:
        self._consumer.close()

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        messages = self._consumer.consume(most, seconds)
        events: list[ConsumerEvent] = []
        if any(map(Message.error, messages)):
            failed = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
            events = [
                ConsumerEvent(message.error(), message.topic(), message.partition(), message.offset())
                for message in failed
            ]
        return [self._make_batch(run) for run in self._cut_runs(messages)], events

    def _cut_runs(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """Cut messages into runs of one partition each. Asks a record for its topic and partition only where there may
        be several."""
        if not messages:
            return []
        if len(self._ever) == 1:
            return [messages]
        changes = np.diff(np.fromiter(map(Message.partition, messages), np.int64, len(messages))) != 0
        if len({topic for topic, _ in self._ever}) > 1:
            topics = list(map(Message.topic, messages))
            changes |= np.fromiter(map(str.__ne__, topics, topics[1:]), np.bool_, len(messages) - 1)
        cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(messages)]
        return [messages[start:end] for start, end in pairwise(cuts)]

    def _make_batch(self, run: Sequence[Message]) -> RawBatch:
        keys = _binary_array(map(Message.key, run)) if self._keyed else None
        stamps = np.fromiter((message.timestamp()[1] for message in run), np.int64, len(run))
        return RawBatch(
            PartitionRef(self._input, run[0].topic(), run[0].partition()),
            np.fromiter(map(Message.offset, run), np.int64, len(run)),
            _binary_array(map(Message.value, run)),
            keys,
            stamps.__getitem__,
            headers={name: _binary_array(_last_header(message, name) for message in run) for name in self._headers},
        )


def _last_header(message: Message, name: str) -> bytes | None:
    """Return the value of the last header with this name."""
    values = [value for header_name, value in message.headers() or () if header_name == name]
    return values[-1] if values else None


def _binary_array(values: Iterable[bytes | None]) -> pa.BinaryArray:
    return pa.array(list(values), pa.binary())


class ConsumerHandle:
    """A consumer of the library, which reads the partitions assigned to it. It takes the settings of Python's client
    and raises the same exceptions.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._library = library()
        self._client, callbacks = new_client(CONSUMER, settings)
        self._library.rd_kafka_poll_set_consumer(self._client)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)
        # This also closes it when it is garbage-collected or the process ends.
        self.close = weakref.finalize(self, _close_consumer, self._library, self._client, self._queue, callbacks)

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        """Add these partitions, from these offsets."""
        self._change_assignment(self._library.rd_kafka_incremental_assign, at.items())

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        self._change_assignment(self._library.rd_kafka_incremental_unassign, [(ref, 0) for ref in refs])

    def _change_assignment(
        self, change: Callable[[int, int], int | None], positions: Iterable[tuple[PartitionRef, int]]
    ) -> None:
        with partition_list((ref.topic, ref.partition, offset, None) for ref, offset in positions) as partitions:
            raise_error(change(self._client, partitions))

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        """Ask the broker for the offsets of the earliest record and of the next one to come."""
        low, high = c_int64(), c_int64()
        code = self._library.rd_kafka_query_watermark_offsets(
            self._client, ref.topic.encode(), ref.partition, ctypes.byref(low), ctypes.byref(high), int(seconds * 1000)
        )
        if code != 0:
            raise KafkaException(error_of(code, "Failed to get watermark offsets"))
        return low.value, high.value

    def consume(self, messages: int, most: int, seconds: float) -> int:
        """Wait for `most` records or events, or until the time is over. Fills the array at the address `messages` and
        returns how many came. The caller has to free these."""
        count = int(self._library.rd_kafka_consume_batch_queue(self._queue, int(seconds * 1000), messages, most))
        if count < 0:
            raise KafkaException(error_of(self._library.rd_kafka_last_error()))
        return count

    def topic_of(self, topic: int) -> str | None:
        """Return the name of a message's topic. An error of the client as a whole has none."""
        return str(self._library.rd_kafka_topic_name(topic), "utf-8") if topic else None

    def header_of(self, message: int, name: str) -> bytes | None:
        """Return the value of the last header with this name. None without such a header or value."""
        headers, value, size = c_void_p(), c_void_p(), c_size_t()
        if self._library.rd_kafka_message_headers(message, ctypes.byref(headers)) != 0:
            return None
        out_parameters = (ctypes.byref(value), ctypes.byref(size))
        if self._library.rd_kafka_header_get_last(headers, name.encode(), *out_parameters) != 0 or value.value is None:
            return None
        return ctypes.string_at(value.value, size.value)


def _close_consumer(library: Any, client: int, queue: int, _callbacks: object) -> None:
    library.rd_kafka_consumer_close(client)
    library.rd_kafka_queue_destroy(queue)
    library.rd_kafka_destroy(client)
