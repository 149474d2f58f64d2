"""How a reader gets records from Kafka: in batches that a kernel takes apart, or record by record with Python's client.

Both see the same: which one a process uses is a matter of time only (decision 20).
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from joinery_runtime.sources.base import PartitionRef, RawBatch
from joinery_runtime.sources.compiled import kernels
from joinery_runtime.sources.kafka_client import Cluster, connect, logger
from joinery_runtime.sources.librdkafka import Handle, UnknownLibrary, address, library

MOST_RECORDS = 10_000  # that one call may ask for
_MOST_BYTES = 1 << 30  # of values in a batch: Arrow's offsets are of 32 bits


@dataclass(frozen=True, slots=True)
class ConsumerEvent:
    """The news that a partition's end was reached (at `offset`), or an error: of a partition, or, without a topic, of
    the client as a whole."""

    error: KafkaError
    topic: str | None = None
    partition: int = -1
    offset: int = -1


class RecordClient(Protocol):
    """A consumer that reads the partitions assigned to it, used by one thread at a time. It raises KafkaException; what
    it meets by the way it tells to the settings' `error_cb`, within `fetch`."""

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        """Fetches these partitions as well, from these offsets."""
        ...

    def unassign(self, refs: Iterable[PartitionRef]) -> None: ...

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        """Waits until there are `most` (up to MOST_RECORDS) records and events, or the time is over."""
        ...

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        """The offsets of the earliest record there is and of the next one to come, asked of the broker."""
        ...

    def close(self) -> None: ...


def open_client(
    cluster: Cluster, settings: dict[str, Any], *, keyed: bool, headers: tuple[str, ...] = ()
) -> RecordClient:
    """A client for these settings of Python's client; `keyed`: batches have the records' keys too, and `headers`: these
    headers."""
    try:
        version, kernel = library().rd_kafka_version(), kernels("messages")
    except UnknownLibrary as unknown:
        return _by_record(cluster, settings, keyed, headers, str(unknown))
    if kernel is None:
        return _by_record(cluster, settings, keyed, headers, "its kernel is missing")
    number = f"{version >> 24}.{version >> 16 & 0xFF}.{version >> 8 & 0xFF}"
    _say(logging.INFO, f"Kafka is read in batches, with librdkafka {number}")
    return BatchClient(cluster.input, connect(Handle, settings, cluster), kernel, keyed, headers)


def _by_record(
    cluster: Cluster, settings: dict[str, Any], keyed: bool, headers: tuple[str, ...], why: str
) -> RecordClient:
    _say(logging.WARNING, f"Kafka is read record by record, which takes more time: {why}")
    return MessageClient(cluster.input, connect(Consumer, settings, cluster), keyed, headers)


@functools.cache
def _say(level: int, line: str) -> None:
    """Once per process."""
    logger.log(level, "%s", line)


class BatchClient:
    """librdkafka's own batches. The kernel copies the records into Arrow arrays and gives the messages back."""

    def __init__(
        self, name: str, handle: Handle, kernel: ModuleType, keyed: bool, headers: tuple[str, ...] = ()
    ) -> None:
        self._input, self._handle, self._kernel, self._keyed = name, handle, kernel, keyed
        self._headers = headers
        self._timestamp, self._destroy = address("rd_kafka_message_timestamp"), address("rd_kafka_message_destroy")
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
            return self._taken(count)
        finally:
            self._kernel.release(self._messages, count, self._destroy)

    def _taken(self, count: int) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        batches: list[RawBatch] = []
        events: list[ConsumerEvent] = []
        offsets, stamps = np.empty((2, count), np.int64)
        facts = (offsets, stamps, self._starts, self._value_bytes, self._key_bytes)
        runs = self._kernel.describe(self._messages, count, _MOST_BYTES, self._timestamp, *facts)
        for run, (start, stop) in enumerate(pairwise(self._starts[: runs + 1].tolist())):
            message = _Message.from_address(int(self._messages[start]))
            topic = self._handle.topic_of(message.topic)
            if message.err:
                error = self._handle.error_of(int(self._messages[start]), message.err)
                events.append(ConsumerEvent(error, topic, message.partition, message.offset))
                continue
            assert topic is not None, "a record is of a topic"
            batches.append(
                RawBatch(
                    PartitionRef(self._input, topic, message.partition),
                    # Copied, so that a small batch that is kept does not keep all others of its time.
                    offsets[start:stop].copy(),
                    self._gathered(start, stop, int(self._value_bytes[run]), keys=False),
                    self._gathered(start, stop, int(self._key_bytes[run]), keys=True) if self._keyed else None,
                    stamps[start:stop].copy().__getitem__,
                    headers={name: self._header(start, stop, name) for name in self._headers},
                )
            )
        return batches, events

    def _header(self, start: int, stop: int, name: str) -> pa.BinaryArray:
        """Record by record: few inputs ask for headers, and these cost a microsecond each."""
        return _binary(self._handle.header_of(message, name) for message in self._messages[start:stop].tolist())

    def _gathered(self, start: int, stop: int, size: int, *, keys: bool) -> pa.BinaryArray:
        records = stop - start
        data, offsets = pa.allocate_buffer(size), np.empty(records + 1, np.int32)
        valid = np.zeros((records + 7) // 8, np.uint8)
        nulls = self._kernel.gather(self._messages, start, stop, keys, offsets, data.address, valid)
        buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), data]
        return pa.Array.from_buffers(pa.binary(), records, buffers, nulls)


class _Message(ctypes.Structure):
    """`rd_kafka_message_t`; the kernel knows it too."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class MessageClient:
    """Python's client, which makes an object of each record."""

    def __init__(self, name: str, consumer: Any, keyed: bool, headers: tuple[str, ...] = ()) -> None:
        self._input, self._consumer, self._keyed, self._headers = name, consumer, keyed, headers
        self._ever: set[tuple[str, int]] = set()  # what was assigned at some time

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        self._ever |= {(ref.topic, ref.partition) for ref in at}
        self._consumer.incremental_assign([TopicPartition(ref.topic, ref.partition, at) for ref, at in at.items()])

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        self._consumer.incremental_unassign([TopicPartition(ref.topic, ref.partition) for ref in refs])

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        place = TopicPartition(ref.topic, ref.partition)
        earliest, latest = self._consumer.get_watermark_offsets(place, seconds, cached=False)
        return int(earliest), int(latest)

    def close(self) -> None:
        self._consumer.close()

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        messages = self._consumer.consume(most, seconds)
        events: list[ConsumerEvent] = []
        if any(map(Message.error, messages)):
            failed = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
            events = [ConsumerEvent(each.error(), each.topic(), each.partition(), each.offset()) for each in failed]
        return [self._batch(run) for run in self._runs(messages)], events

    def _runs(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """Pieces that are of one partition each. A record is only asked for its topic and partition where there may be
        several."""
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

    def _batch(self, run: Sequence[Message]) -> RawBatch:
        keys = _binary(map(Message.key, run)) if self._keyed else None
        stamps = np.fromiter((message.timestamp()[1] for message in run), np.int64, len(run))
        return RawBatch(
            PartitionRef(self._input, run[0].topic(), run[0].partition()),
            np.fromiter(map(Message.offset, run), np.int64, len(run)),
            _binary(map(Message.value, run)),
            keys,
            stamps.__getitem__,
            headers={name: _binary(_last(message, name) for message in run) for name in self._headers},
        )


def _last(message: Message, name: str) -> bytes | None:
    """The last header of that name."""
    found = [value for each, value in message.headers() or () if each == name]
    return found[-1] if found else None


def _binary(values: Iterable[bytes | None]) -> pa.BinaryArray:
    return pa.array(list(values), pa.binary())
