"""Loads kernels: functions compiled by numba, for work on every single record.

Every caller can also get the same result without its kernel: numba may be missing, or unable to compile.
`python -m joinery_runtime.formats.kernels` compiles all kernels ahead of time (`make setup`, and the image's build).
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from types import ModuleType

logger = logging.getLogger("joinery.kernels")

_PACKAGE = "joinery_runtime.formats.kernels"


@functools.cache
def kernels(name: str) -> ModuleType | None:
    """The compiled module `name` of `formats.kernels`. None if it cannot be compiled, which is logged once per process.

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
