"""librdkafka itself, called through ctypes: the library that confluent-kafka brings and has loaded already.

Python's client makes an object of each record. The library hands over a batch of them as an array of pointers, which a
kernel takes apart (`kernels/messages.py`). Only what is public and documented in `rdkafka.h` is used.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from joinery_runtime.sources.base import PartitionRef

# Whose structs are known. Their layout is part of the library's ABI, which a new major version may break.
_KNOWN_VERSIONS = range(0x02000000, 0x03000000)
_CONSUMER = 1
_TEXT_BYTES = 512

_ErrorCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)


class _TopicPartition(ctypes.Structure):
    """`rd_kafka_topic_partition_t`."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    )


# Of each function that is called: what it returns, and its arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "rd_kafka_version": (c_int,),
    "rd_kafka_conf_new": (c_void_p,),
    "rd_kafka_conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "rd_kafka_conf_set_error_cb": (None, c_void_p, _ErrorCallback),
    "rd_kafka_conf_destroy": (None, c_void_p),
    "rd_kafka_new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "rd_kafka_poll_set_consumer": (c_int, c_void_p),
    "rd_kafka_queue_get_consumer": (c_void_p, c_void_p),
    "rd_kafka_queue_destroy": (None, c_void_p),
    "rd_kafka_consumer_close": (c_int, c_void_p),
    "rd_kafka_destroy": (None, c_void_p),
    "rd_kafka_topic_partition_list_new": (c_void_p, c_int),
    "rd_kafka_topic_partition_list_add": (ctypes.POINTER(_TopicPartition), c_void_p, c_char_p, c_int32),
    "rd_kafka_topic_partition_list_destroy": (None, c_void_p),
    "rd_kafka_incremental_assign": (c_void_p, c_void_p, c_void_p),
    "rd_kafka_incremental_unassign": (c_void_p, c_void_p, c_void_p),
    "rd_kafka_query_watermark_offsets": (c_int, c_void_p, c_char_p, c_int32, c_void_p, c_void_p, c_int),
    "rd_kafka_consume_batch_queue": (c_ssize_t, c_void_p, c_int, c_void_p, c_size_t),
    "rd_kafka_message_errstr": (c_char_p, c_void_p),
    "rd_kafka_message_timestamp": (c_int64, c_void_p, c_void_p),
    "rd_kafka_message_headers": (c_int, c_void_p, ctypes.POINTER(c_void_p)),
    "rd_kafka_header_get_last": (c_int, c_void_p, c_char_p, ctypes.POINTER(c_void_p), ctypes.POINTER(c_size_t)),
    "rd_kafka_message_destroy": (None, c_void_p),
    "rd_kafka_topic_name": (c_char_p, c_void_p),
    "rd_kafka_last_error": (c_int,),
    "rd_kafka_fatal_error": (c_int, c_void_p, c_char_p, c_size_t),
    "rd_kafka_err2str": (c_char_p, c_int),
    "rd_kafka_error_code": (c_int, c_void_p),
    "rd_kafka_error_string": (c_char_p, c_void_p),
    "rd_kafka_error_destroy": (None, c_void_p),
}


class UnknownLibrary(Exception):
    """The library cannot be called from here; the text says why."""


@functools.cache
def library() -> Any:
    """The library with its functions typed, once per process. Calls release the interpreter's lock. Raises
    UnknownLibrary."""
    if ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        raise UnknownLibrary("this processor has other words than 64 bits, lowest byte first")
    try:
        # Wherever the extension module has librdkafka from: its symbols include those of what it was linked with.
        found = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name, (returns, *arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = returns, arguments
    except (AttributeError, OSError) as problem:
        raise UnknownLibrary(f"confluent-kafka's library cannot be called: {problem}") from problem
    version = found.rd_kafka_version()
    if version != confluent_kafka.libversion()[1] or version not in _KNOWN_VERSIONS:
        raise UnknownLibrary(f"version {version:#x} of librdkafka is not known")
    return found


def address(name: str) -> int:
    """Where a function of the library is, for kernels."""
    return int(ctypes.cast(getattr(library(), name), c_void_p).value or 0)


class Handle:
    """A consumer of the library, which reads the partitions that are assigned to it. Settings are those of Python's
    client; of what that would call back, only `error_cb` is known. What it raises is what Python's client raises.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._library = library()
        # Called by the thread that waits for records.
        callback = _ErrorCallback(functools.partial(_report, settings["error_cb"]))
        self._client = self._new({name: value for name, value in settings.items() if name != "error_cb"}, callback)
        self._library.rd_kafka_poll_set_consumer(self._client)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)
        # It is also closed when nobody has it any more, or the process ends. The library has no more than the
        # callback's address, so the callback is kept until then.
        self.close = weakref.finalize(self, _close, self._library, self._client, self._queue, callback)

    def _new(self, settings: Mapping[str, Any], callback: Any) -> int:
        text, configuration = ctypes.create_string_buffer(_TEXT_BYTES), self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set_error_cb(configuration, callback)
        code, client = KafkaError._INVALID_ARG, None
        # As Python's client does it: a plugin may bring properties of its own.
        ordered = sorted(settings.items(), key=lambda setting: setting[0] != "plugin.library.paths")
        values = ((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in ordered)
        if all(
            self._library.rd_kafka_conf_set(configuration, name.encode(), value.encode(), text, _TEXT_BYTES) == 0
            for name, value in values
        ):
            client = self._library.rd_kafka_new(_CONSUMER, configuration, text, _TEXT_BYTES)
            code = self._library.rd_kafka_last_error()
        if client is None:
            self._library.rd_kafka_conf_destroy(configuration)
            raise KafkaException(KafkaError(code, text.value.decode()))
        return int(client)

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        """Fetches these as well, from these offsets."""
        self._change(self._library.rd_kafka_incremental_assign, at.items())

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        self._change(self._library.rd_kafka_incremental_unassign, [(ref, 0) for ref in refs])

    def _change(self, change: Callable[[int, int], int | None], places: Iterable[tuple[PartitionRef, int]]) -> None:
        found = self._library.rd_kafka_topic_partition_list_new(0)
        for ref, offset in places:
            added = self._library.rd_kafka_topic_partition_list_add(found, ref.topic.encode(), ref.partition)
            added.contents.offset = offset
        error = change(self._client, found)
        self._library.rd_kafka_topic_partition_list_destroy(found)
        if error is not None:
            code, text = self._library.rd_kafka_error_code(error), self._library.rd_kafka_error_string(error)
            self._library.rd_kafka_error_destroy(error)
            raise KafkaException(KafkaError(code, text.decode()))

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        """The offsets of the earliest record there is and of the next one to come, asked of the broker."""
        low, high = c_int64(), c_int64()
        code = self._library.rd_kafka_query_watermark_offsets(
            self._client, ref.topic.encode(), ref.partition, ctypes.byref(low), ctypes.byref(high), int(seconds * 1000)
        )
        if code != 0:
            reason = self._library.rd_kafka_err2str(code).decode()
            raise KafkaException(KafkaError(code, f"Failed to get watermark offsets: {reason}"))
        return low.value, high.value

    def consume(self, messages: int, most: int, seconds: float) -> int:
        """Waits until there are `most` records or events, or the time is over. Fills in the array at the address
        `messages` and returns how many came: they are the caller's to give back."""
        count = int(self._library.rd_kafka_consume_batch_queue(self._queue, int(seconds * 1000), messages, most))
        if count < 0:
            code = self._library.rd_kafka_last_error()
            raise KafkaException(KafkaError(code, self._library.rd_kafka_err2str(code).decode()))
        return count

    def topic_of(self, topic: int) -> str | None:
        """The name of a message's topic; an error of the client as a whole has none."""
        return str(self._library.rd_kafka_topic_name(topic), "utf-8") if topic else None

    def header_of(self, message: int, name: str) -> bytes | None:
        """The last header of that name; None where there is none, or it has no value."""
        headers, value, size = c_void_p(), c_void_p(), c_size_t()
        if self._library.rd_kafka_message_headers(message, ctypes.byref(headers)) != 0:
            return None
        found = (ctypes.byref(value), ctypes.byref(size))
        if self._library.rd_kafka_header_get_last(headers, name.encode(), *found) != 0 or value.value is None:
            return None
        return ctypes.string_at(value.value, size.value)

    def error_of(self, message: int, code: int) -> KafkaError:
        return KafkaError(code, (self._library.rd_kafka_message_errstr(message) or b"").decode(errors="replace"))


def _report(
    errors: Callable[[KafkaError], None], client: int, code: int, reason: bytes | None, _opaque: int | None
) -> None:
    """What the library meets by the way, as Python's client passes it on."""
    fatal = code == KafkaError._FATAL
    if fatal:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code, reason = library().rd_kafka_fatal_error(client, text, _TEXT_BYTES), text.value
    errors(KafkaError(code, (reason or b"").decode(errors="replace"), fatal=fatal))


def _close(known: Any, client: int, queue: int, _callback: Any) -> None:
    known.rd_kafka_consumer_close(client)
    known.rd_kafka_queue_destroy(queue)
    known.rd_kafka_destroy(client)
