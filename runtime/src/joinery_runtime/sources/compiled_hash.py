"""The key hash with strings hashed by a kernel, in the thread that asks: Polars hands them to a thread of its own, and
the caller waits (docs/decisions/0060)."""

from __future__ import annotations

import functools
import logging
from functools import partial
from types import ModuleType

import numpy as np
import pyarrow as pa

from joinery_runtime.core.table.keyhash import KeyHash, key_hash, xxh3
from joinery_runtime.sources.compiled import kernels

logger = logging.getLogger("joinery.kernels")


@functools.cache
def compiled_key_hash() -> KeyHash:
    """The same numbers as `key_hash`, which it is where there is no kernel, or one whose numbers differ: the hash says
    where state lives, so a fault of a compiler must not decide it."""
    module = kernels("xxh3")
    if module is None:
        return key_hash
    compiled = partial(_xxh3, module)
    every_length = pa.array([_TEXT[:size] for size in range(len(_TEXT) + 1)])
    if not np.array_equal(compiled(every_length), xxh3(every_length)):
        logger.warning("Kernel xxh3 is not used: its hashes are not those of xxHash. Results are the same, slower")
        return key_hash
    return partial(key_hash, xxh3=compiled)


_TEXT = bytes(range(1, 130))


def _xxh3(module: ModuleType, column: pa.Array) -> np.ndarray:
    if not len(column) or not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return xxh3(column)  # of 64-bit offsets, or of a fixed width
    hashes = np.empty(len(column), np.uint64)
    _, offsets, data = column.buffers()
    first = offsets.address + 4 * column.offset
    short = module.hash_texts(first, 0 if data is None else data.address, hashes.view(np.int64))
    return hashes if short else xxh3(column)
