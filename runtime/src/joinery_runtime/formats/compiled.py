"""Loads kernels: functions compiled by numba, for work on every single record. Computes the key hash with one.

Every caller can also get the same result without its kernel: numba may be missing, or unable to compile.
`python -m joinery_runtime.formats.kernels` compiles all kernels ahead of time (`make setup`, and the image's build).
"""

from __future__ import annotations

import functools
import logging
from functools import partial
from importlib import import_module
from types import ModuleType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinery_runtime.core.table.keyhash import KeyHash, key_hash, xxh3

logger = logging.getLogger("joinery.kernels")

_PACKAGE = "joinery_runtime.formats.kernels"


@functools.cache
def kernels(name: str) -> ModuleType | None:
    """Return the compiled module `name` of `formats.kernels`. None if it cannot be compiled, which is logged once per
    process.

    The first call takes about 0.4 seconds of CPU if the machine code is cached, else some seconds.
    """
    try:
        return import_module(f"{_PACKAGE}.{name}")
    except Exception as problem:  # whatever is wrong with numba or its cache, a job runs without it
        logger.warning(
            "Kernel %s is not used: %s: %s. Results are the same, at more CPU time per record",
            name,
            type(problem).__name__,
            problem,
        )
        return None


@functools.cache
def compiled_key_hash() -> KeyHash:
    """Return a function that hashes strings in the calling thread, while Polars does so in a thread of its own
    (decision 60). It is `key_hash` itself if there is no kernel, or one whose numbers differ: the hash says where state
    lives, so a fault of a compiler must not decide it."""
    module = kernels("xxh3")
    if module is None:
        return key_hash
    # All are such as the kernel takes: with a longer one the library would be compared with itself.
    every_length = pa.array([_TEXT[:size] for size in range(module.LONGEST + 1)])
    hashes = _by_kernel(module, every_length)
    if hashes is None or not np.array_equal(hashes, xxh3(every_length)):
        logger.warning("Kernel xxh3 is not used: its hashes are not those of xxHash. Results are the same, slower")
        return key_hash
    return partial(key_hash, xxh3=partial(_hash_column, module))


_TEXT = bytes((167 * position + 13) % 256 for position in range(256))


def _hash_column(module: ModuleType, column: pa.Array) -> np.ndarray:
    if not len(column) or not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return xxh3(column)  # of 64-bit offsets, or of a fixed width
    hashes = _by_kernel(module, column)
    return xxh3(column) if hashes is None else hashes


def _by_kernel(module: ModuleType, column: pa.Array) -> NDArray[np.uint64] | None:
    """None where a text is longer than the kernel takes. `column` has 32-bit offsets, and values."""
    hashes = np.empty(len(column), np.uint64)
    _, offsets, data = column.buffers()
    first = offsets.address + 4 * column.offset
    short = module.hash_texts(first, 0 if data is None else data.address, hashes.view(np.int64))
    return hashes if short else None
