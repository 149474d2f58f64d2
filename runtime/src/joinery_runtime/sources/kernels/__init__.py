"""What numba compiles: a module here is about one thing, and is imported by `sources.compiled.kernels` only.

A kernel is compiled when its module is imported, for the one signature that it names, and releases the interpreter's
lock while it runs. Its machine code is kept in the first of these folders that can be written to, and taken from any:

* `__pycache__` beside its module, where `make setup` and the image's build have it put;
* `$XDG_CACHE_HOME/joinery/kernels`, by default in `~/.cache`.

Where neither can be written to, each process compiles anew. Machine code is made for any processor of the architecture,
so that an image may be built on one and run on another; what it was made from is part of its name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

# Byte by byte work has no use for what a processor may have beyond its architecture (decision 21).
numba.config.CPU_NAME, numba.config.CPU_FEATURES = "generic", ""

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("joinery.kernels")

# Kernels allocate nothing, and own none of the arrays that they are given: without numba's runtime (`_nrt`) no
# references are counted. It counts them at each call of a part, by atomic instructions for which threads wait.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def part(function: F) -> F:
    """A function that only kernels call, and that is compiled into them."""
    compiled: F = numba.njit(**_OPTIONS)(function)
    return compiled


def inlined(function: F) -> F:
    """A part that is compiled into the place of each call: where it is called once, or a call costs more than it."""
    compiled: F = numba.njit(**_OPTIONS, forceinline=True)(function)
    return compiled


def kernel(*arguments: Any) -> Callable[[F], F]:
    """Compiles a function for arguments of these numba types, or takes its machine code from the cache."""

    def compiled(function: F) -> F:
        dispatcher: Any = numba.njit(**_OPTIONS)(function)
        dispatcher._cache = _MachineCode(function)
        dispatcher.compile(arguments)
        dispatcher.disable_compile()
        found: F = dispatcher
        return found

    return compiled


class _MachineCode(NullCache):  # type: ignore[misc]
    """The cache of one kernel. numba's own one would not read a folder that it cannot write to, and takes no notice of
    a change in the parts of a kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        source = Path(function.__code__.co_filename)
        self._folders = [source.with_name("__pycache__"), *_of_the_user()]
        self._name = f"{source.stem}.{function.__name__}"
        made_by = (sys.version, numba.__version__, platform.machine())
        made_from = [path.read_bytes() for path in sorted({Path(__file__), *source.parent.glob("*.py")})]
        digest = hashlib.sha256(b"\0".join([repr(made_by).encode(), *made_from])).hexdigest()[:16]
        self._file = f"{self._name}-{digest}.kernel"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None if it has to be compiled."""
        target_context.refresh()
        for folder in self._folders:
            path = folder / self._file
            try:
                return CompileResult._rebuild(target_context, *pickle.loads(path.read_bytes()))
            except FileNotFoundError:
                continue
            except Exception as problem:  # a file that was cut short, or is not what it seems: compiled anew
                logger.warning("%s is not usable: %s: %s", path, type(problem).__name__, problem)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps it where the next process finds it, if there is such a place."""
        content = dumps(data._reduce())
        for folder in self._folders:
            part = folder / f"{self._file}.{os.getpid()}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                part.write_bytes(content)
                part.rename(folder / self._file)
            except OSError:
                with suppress(OSError):
                    part.unlink()
                continue
            for earlier in set(folder.glob(f"{self._name}-*.kernel")) - {folder / self._file}:
                earlier.unlink(missing_ok=True)
            return


def _of_the_user() -> list[Path]:
    """The user's cache; nowhere if the user has no home. A shared folder such as /tmp would not do: what is found there
    is run."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return [(Path(named) if named else Path.home() / ".cache") / "joinery" / "kernels"]
    except RuntimeError:
        return []
