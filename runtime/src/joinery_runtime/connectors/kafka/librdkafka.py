"""Calls librdkafka directly, through ctypes: the library that confluent-kafka brings and has already loaded.

Python's client creates an object for each record. The library itself returns a batch as an array of pointers, and takes
a batch as an array of structs. This module uses only what is public and documented in `rdkafka.h`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

# Versions whose structs are known. Struct layout is part of the library's ABI, which a new major version may break.
_KNOWN_VERSIONS = range(0x02000000, 0x03000000)
PRODUCER, CONSUMER = 0, 1
"""`rd_kafka_type_t`."""
_TEXT_BYTES = 512

_ErrorCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
_DeliveryCallback = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)


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


class MessageStruct(ctypes.Structure):
    """`rd_kafka_message_t`. The kernel that takes messages apart also relies on this layout."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


# For each function that is called: its return type, then its argument types.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "rd_kafka_version": (c_int,),
    "rd_kafka_conf_new": (c_void_p,),
    "rd_kafka_conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "rd_kafka_conf_set_error_cb": (None, c_void_p, _ErrorCallback),
    "rd_kafka_conf_set_dr_msg_cb": (None, c_void_p, _DeliveryCallback),
    "rd_kafka_conf_set_log_cb": (None, c_void_p, c_void_p),
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
    "rd_kafka_poll": (c_int, c_void_p, c_int),
    "rd_kafka_purge": (c_int, c_void_p, c_int),
    "rd_kafka_outq_len": (c_int, c_void_p),
    "rd_kafka_topic_new": (c_void_p, c_void_p, c_char_p, c_void_p),
    "rd_kafka_topic_destroy": (None, c_void_p),
    "rd_kafka_produce_batch": (c_int, c_void_p, c_int32, c_int, c_void_p, c_int),
    "rd_kafka_metadata": (c_int, c_void_p, c_int, c_void_p, ctypes.POINTER(c_void_p), c_int),
    "rd_kafka_metadata_destroy": (None, c_void_p),
    "rd_kafka_init_transactions": (c_void_p, c_void_p, c_int),
    "rd_kafka_begin_transaction": (c_void_p, c_void_p),
    "rd_kafka_send_offsets_to_transaction": (c_void_p, c_void_p, c_void_p, c_void_p, c_int),
    "rd_kafka_commit_transaction": (c_void_p, c_void_p, c_int),
    "rd_kafka_abort_transaction": (c_void_p, c_void_p, c_int),
    "rd_kafka_consumer_group_metadata_new": (c_void_p, c_char_p),
    "rd_kafka_consumer_group_metadata_destroy": (None, c_void_p),
    "rd_kafka_error_code": (c_int, c_void_p),
    "rd_kafka_error_is_retriable": (c_int, c_void_p),
    "rd_kafka_error_is_fatal": (c_int, c_void_p),
    "rd_kafka_error_txn_requires_abort": (c_int, c_void_p),
    "rd_kafka_error_string": (c_char_p, c_void_p),
    "rd_kafka_error_destroy": (None, c_void_p),
}


class UnknownLibrary(Exception):
    """The library cannot be called from this process. The text says why."""


@functools.cache
def library() -> Any:
    """Load the library and types its functions, once per process. Calls release the interpreter's lock. Raises
    UnknownLibrary."""
    if ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        raise UnknownLibrary("this processor has other words than 64 bits, lowest byte first")
    try:
        # Symbols of the extension module include those of the librdkafka with which it was linked, wherever that is.
        loaded = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name, (returns, *arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = returns, arguments
    except (AttributeError, OSError) as problem:
        raise UnknownLibrary(f"confluent-kafka's library cannot be called: {problem}") from problem
    version = loaded.rd_kafka_version()
    if version != confluent_kafka.libversion()[1] or version not in _KNOWN_VERSIONS:
        raise UnknownLibrary(f"version {version:#x} of librdkafka is not known")
    return loaded


@functools.cache
def say_once(level: int, line: str) -> None:
    """Log how this process calls the library. Each line appears once."""
    logging.getLogger("joinery.kafka").log(level, "%s", line)


def function_address(name: str) -> int:
    """Return the address of a function of the library, for kernels."""
    return int(ctypes.cast(getattr(library(), name), c_void_p).value or 0)


def new_client(
    kind: int, settings: Mapping[str, Any], on_failed: Callable[[int], None] | None = None
) -> tuple[int, tuple[Any, ...]]:
    """Create a client. Returns it with its callbacks, which must live as long as the client: the library holds only
    their addresses.

    `settings` are those of Python's client. Of the callbacks among them, only `error_cb` is supported. `on_failed` gets
    the address of each message that was not delivered. The library calls both in the thread that polls. Raises the
    KafkaException that Python's client would raise."""
    rdkafka, text = library(), ctypes.create_string_buffer(_TEXT_BYTES)
    configuration = rdkafka.rd_kafka_conf_new()
    callbacks: tuple[Any, ...] = (_ErrorCallback(functools.partial(_report_error, settings["error_cb"])),)
    rdkafka.rd_kafka_conf_set_error_cb(configuration, callbacks[0])
    if on_failed is not None:
        callbacks += (_DeliveryCallback(lambda _client, message, _opaque: on_failed(message)),)
        rdkafka.rd_kafka_conf_set_dr_msg_cb(configuration, callbacks[1])
    # Even at log_level 0, the library would print that a client was fenced, which `error_cb` is told as well.
    rdkafka.rd_kafka_conf_set_log_cb(configuration, None)
    code, client = KafkaError._INVALID_ARG, None
    # Plugins come first, as in Python's client, because they may define properties of their own.
    ordered = sorted(settings.items(), key=lambda setting: setting[0] != "plugin.library.paths")
    values = (
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in ordered
        if name not in ("error_cb", "logger")
    )
    if all(
        rdkafka.rd_kafka_conf_set(configuration, name.encode(), value.encode(), text, _TEXT_BYTES) == 0
        for name, value in values
    ):
        client = rdkafka.rd_kafka_new(kind, configuration, text, _TEXT_BYTES)
        code = rdkafka.rd_kafka_last_error()
    if client is None:
        rdkafka.rd_kafka_conf_destroy(configuration)
        raise KafkaException(KafkaError(code, text.value.decode()))
    return int(client), callbacks


def raise_error(error: int | None) -> None:
    """Raise the KafkaException for an `rd_kafka_error_t *` (None: no error) and frees it."""
    if error is None:
        return
    rdkafka = library()
    raised = KafkaError(
        rdkafka.rd_kafka_error_code(error),
        rdkafka.rd_kafka_error_string(error).decode(errors="replace"),
        fatal=bool(rdkafka.rd_kafka_error_is_fatal(error)),
        retriable=bool(rdkafka.rd_kafka_error_is_retriable(error)),
        txn_requires_abort=bool(rdkafka.rd_kafka_error_txn_requires_abort(error)),
    )
    rdkafka.rd_kafka_error_destroy(error)
    raise KafkaException(raised)


def error_of(code: int, context: str = "") -> KafkaError:
    """Return the KafkaError for a code, with `context` and the library's description."""
    reason = library().rd_kafka_err2str(code).decode()
    return KafkaError(code, f"{context}: {reason}" if context else reason)


def message_error(message: int, code: int) -> KafkaError:
    """Return the KafkaError for a consumed `rd_kafka_message_t *` with this code. Not for a produced message: as its
    error text, the library would return the payload."""
    return KafkaError(code, (library().rd_kafka_message_errstr(message) or b"").decode(errors="replace"))


@contextmanager
def partition_list(partitions: Iterable[tuple[str, int, int, bytes | None]]) -> Iterator[int]:
    """Make an `rd_kafka_topic_partition_list_t *` of topics, partitions, offsets and metadata, for calls that copy
    it."""
    rdkafka, listed, metadata_buffers = library(), list(partitions), []
    pointer = rdkafka.rd_kafka_topic_partition_list_new(len(listed))  # with this size, it is not moved while it grows
    try:
        for topic, partition, offset, metadata in listed:
            added = rdkafka.rd_kafka_topic_partition_list_add(pointer, topic.encode(), partition).contents
            added.offset = offset
            if metadata is not None:
                # The size includes the terminating zero byte: the library copies that many bytes and looks for it.
                metadata_buffers.append((added, ctypes.create_string_buffer(metadata)))
                added.metadata, added.metadata_size = ctypes.addressof(metadata_buffers[-1][1]), len(metadata) + 1
        yield pointer
    finally:
        for added, _ in metadata_buffers:
            added.metadata, added.metadata_size = None, 0  # else the library would free memory that Python owns
        rdkafka.rd_kafka_topic_partition_list_destroy(pointer)


def _report_error(
    errors: Callable[[KafkaError], None], client: int, code: int, reason: bytes | None, _opaque: int | None
) -> None:
    """Pass an error that the library met in the background to `error_cb`, as Python's client does."""
    fatal = code == KafkaError._FATAL
    if fatal:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code, reason = library().rd_kafka_fatal_error(client, text, _TEXT_BYTES), text.value
    errors(KafkaError(code, (reason or b"").decode(errors="replace"), fatal=fatal))
