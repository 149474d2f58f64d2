"""Loads kernels: functions that numba compiles, for what has to be done to each record.

Every caller has a way without its kernel, which gives the same result: numba may be missing, or unable to compile.
`python -m joinery_runtime.sources.kernels` compiles all of them ahead (`make setup`, and the image's build).
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from types import ModuleType

logger = logging.getLogger("joinery.kernels")

_PACKAGE = "joinery_runtime.sources.kernels"


@functools.cache
def kernels(name: str) -> ModuleType | None:
    """The module `name` of `sources.kernels`, compiled; None where that cannot be, which is logged once per process.

    The first call costs about 0.4 seconds of CPU with a cache of what was compiled, seconds without one.
    """
    try:
        return import_module(f"{_PACKAGE}.{name}")
    except Exception as problem:  # whatever ails numba or its cache, a job runs without
        logger.warning(
            "Kernel %s is not used: %s: %s. Results are the same, at more CPU time per record",
            name,
            type(problem).__name__,
            problem,
        )
        return None
