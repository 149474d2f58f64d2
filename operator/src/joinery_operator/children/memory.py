"""How much memory a pod asks for: request and limit are the same, so that nothing is killed for what others use."""

from __future__ import annotations

import re

from joinery_operator.children.errors import ChildError

# What a JVM needs beside its heap: Spark's own rule for JVM jobs.
_LEAST_OVERHEAD = 384
_OVERHEAD_FACTOR = 0.10
# A Python process of Joinery (Arrow, Polars, librdkafka, libpq) and the data of what it works at: the driver is one,
# and an executor has one per core. Segments of the state are mapped files, which give way under pressure.
_PYTHON_PROCESS = 512

_SIZE = re.compile(r"([0-9]+)([kmgtp]?)b?", re.IGNORECASE)
_MIB = {"k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3}


def mebibytes(text: str, setting: str) -> int:
    """A size as Spark's memory settings have it: 512m, 2g, a plain number is MiB. Raises ChildError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ChildError(
            f"{setting} is no size", facts=f"it is {text!r}", todo="Write a whole number and k, m, g or t, as 512m"
        )
    return int(int(found[1]) * _MIB[found[2].lower()])


def overhead(heap: int, python_processes: int) -> int:
    """MiB beside a heap of `heap` MiB."""
    return max(_LEAST_OVERHEAD, int(heap * _OVERHEAD_FACTOR)) + _PYTHON_PROCESS * python_processes
