"""Takes apart what Kafka's C client returns, an array of `rd_kafka_message_t *`, without a Python object per record.

The struct is public and has not changed within librdkafka 1 and 2:

    err (int32), topic (pointer), partition (int32), payload, len, key, key_len, offset (int64), private
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from joinery_runtime.formats.kernels import inlined, kernel
from joinery_runtime.formats.kernels.memory import call, copy, load64

_ERROR, _TOPIC, _PARTITION, _VALUE, _KEY, _OFFSET = 0, 8, 16, 24, 40, 56  # bytes; a length follows its pointer


@inlined
def _low(word: int) -> int:
    """Return the int32 in the lower half of a word. The upper half may hold anything."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


Ints = npt.NDArray[np.int64]
_INTS = types.Array(types.int64, 1, "C")


@kernel(_INTS, types.int64, types.int64, types.int64, _INTS, _INTS, _INTS, _INTS, _INTS)
def describe(
    messages: Ints,
    count: int,
    most_bytes: int,
    timestamp: int,
    offsets: Ints,
    stamps: Ints,
    starts: Ints,
    value_bytes: Ints,
    key_bytes: Ints,
) -> int:
    """Fill in the offset and timestamp of each of `count` messages, and cut them into runs: messages of one partition
    with at most `most_bytes` of values and of keys, or a single error. Returns the number of runs. Fills in where each
    starts (the element after the last run is `count`), and how many bytes its values and its keys have."""
    runs, topic, partition, failed = 0, 0, 0, True
    for i in range(count):
        message = messages[i]
        offsets[i] = load64(message + _OFFSET)
        stamps[i] = call(timestamp, message, 0)
        size, key = load64(message + _VALUE + 8), load64(message + _KEY + 8)
        error = _low(load64(message + _ERROR)) != 0
        new_topic, new_partition = load64(message + _TOPIC), _low(load64(message + _PARTITION))
        if (
            failed
            or error
            or new_topic != topic
            or new_partition != partition
            or value_bytes[runs - 1] + size > most_bytes
            or key_bytes[runs - 1] + key > most_bytes
        ):
            starts[runs], value_bytes[runs], key_bytes[runs] = i, 0, 0
            runs, topic, partition, failed = runs + 1, new_topic, new_partition, error
        value_bytes[runs - 1] += size
        key_bytes[runs - 1] += key
    starts[runs] = count
    return runs


_OFFSETS = types.Array(types.int32, 1, "C")
_BITS = types.Array(types.uint8, 1, "C")


@kernel(_INTS, types.int64, types.int64, types.boolean, _OFFSETS, types.int64, _BITS)
def gather(messages: Ints, start: int, stop: int, keys: bool, offsets: np.ndarray, data: int, valid: np.ndarray) -> int:
    """Copy the values, or the keys, of these messages one after another to the address `data`. Fills in where each
    begins (int32[n + 1]), and which are not null (one bit each; `valid` is zeros). Returns the number of nulls."""
    field = _KEY if keys else _VALUE
    nulls, end = 0, 0
    offsets[0] = 0
    for i in range(start, stop):
        pointer, size = load64(messages[i] + field), load64(messages[i] + field + 8)
        at = i - start
        if pointer == 0:
            nulls += 1
        else:
            copy(data + end, pointer, size)
            valid[at >> 3] |= 1 << (at & 7)
            end += size
        offsets[at + 1] = end
    return nulls


@kernel(_INTS, types.int64, types.int64)
def release(messages: Ints, count: int, destroy: int) -> None:
    """Free messages of the client."""
    for i in range(count):
        call(destroy, messages[i], 0)
