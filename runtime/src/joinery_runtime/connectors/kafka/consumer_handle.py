"""A librdkafka consumer, called directly, which returns records in batches (docs/decisions/0020)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_int64, c_size_t, c_void_p
from typing import Any

from confluent_kafka import KafkaException

from joinery_runtime.connectors.kafka.librdkafka import CONSUMER, check, error_of, library, new_client, partition_list
from joinery_runtime.formats.batch import PartitionRef


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
        self.close = weakref.finalize(self, _close, self._library, self._client, self._queue, callbacks)

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        """Adds these partitions, from these offsets."""
        self._change(self._library.rd_kafka_incremental_assign, at.items())

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        self._change(self._library.rd_kafka_incremental_unassign, [(ref, 0) for ref in refs])

    def _change(self, change: Callable[[int, int], int | None], positions: Iterable[tuple[PartitionRef, int]]) -> None:
        with partition_list((ref.topic, ref.partition, offset, None) for ref, offset in positions) as partitions:
            check(change(self._client, partitions))

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        """Asks the broker for the offsets of the earliest record and of the next one to come."""
        low, high = c_int64(), c_int64()
        code = self._library.rd_kafka_query_watermark_offsets(
            self._client, ref.topic.encode(), ref.partition, ctypes.byref(low), ctypes.byref(high), int(seconds * 1000)
        )
        if code != 0:
            raise KafkaException(error_of(code, "Failed to get watermark offsets"))
        return low.value, high.value

    def consume(self, messages: int, most: int, seconds: float) -> int:
        """Waits for `most` records or events, or until the time is over. Fills the array at the address `messages` and
        returns how many came. The caller has to free these."""
        count = int(self._library.rd_kafka_consume_batch_queue(self._queue, int(seconds * 1000), messages, most))
        if count < 0:
            raise KafkaException(error_of(self._library.rd_kafka_last_error()))
        return count

    def topic_of(self, topic: int) -> str | None:
        """The name of a message's topic. An error of the client as a whole has none."""
        return str(self._library.rd_kafka_topic_name(topic), "utf-8") if topic else None

    def header_of(self, message: int, name: str) -> bytes | None:
        """The value of the last header with this name. None without such a header or value."""
        headers, value, size = c_void_p(), c_void_p(), c_size_t()
        if self._library.rd_kafka_message_headers(message, ctypes.byref(headers)) != 0:
            return None
        out_parameters = (ctypes.byref(value), ctypes.byref(size))
        if self._library.rd_kafka_header_get_last(headers, name.encode(), *out_parameters) != 0 or value.value is None:
            return None
        return ctypes.string_at(value.value, size.value)


def _close(library: Any, client: int, queue: int, _callbacks: object) -> None:
    library.rd_kafka_consumer_close(client)
    library.rd_kafka_queue_destroy(queue)
    library.rd_kafka_destroy(client)
