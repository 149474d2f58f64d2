"""Functions that numba compiles, with a module for each task. Only `formats.compiled.kernels` imports these modules.

Importing a module compiles its kernels, each for one signature. A kernel releases the interpreter's lock while it runs.
Its machine code is written to the first of these folders that is writable, and read from any of them:

* `__pycache__` beside its module, where `make setup` and the image's build put it;
* `$XDG_CACHE_HOME/joinery/kernels`, by default in `~/.cache`.

If neither is writable, each process compiles again. Machine code is for any processor of the architecture, so that an
image can be built on one machine and run on another. Its file name contains a hash of everything it was made from.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import platform
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

# Work on single bytes gains nothing from features that a processor has beyond its architecture (decision 21).
numba.config.CPU_NAME, numba.config.CPU_FEATURES = "generic", ""

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("joinery.kernels")

# Kernels allocate nothing, and do not own the arrays that they are given. So they need no reference counting, which
# numba's runtime (`_nrt`) does at each call of a part, by atomic instructions that make threads wait.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def part(function: F) -> F:
    """Declare a function that only kernels call, and that is compiled into them."""
    compiled: F = numba.njit(**_OPTIONS)(function)
    return compiled


def inlined(function: F) -> F:
    """Declare a part that is inlined at each call: if it is called once, or if a call costs more than its body."""
    compiled: F = numba.njit(**_OPTIONS, forceinline=True)(function)
    return compiled


def kernel(*arguments: Any) -> Callable[[F], F]:
    """Compile a function for arguments of these numba types, or loads its machine code from the cache."""

    def compiled(function: F) -> F:
        dispatcher: Any = numba.njit(**_OPTIONS)(function)
        dispatcher._cache = _MachineCode(function)
        dispatcher.compile(arguments)
        dispatcher.disable_compile()
        compiled_function: F = dispatcher
        return compiled_function

    return compiled


class _MachineCode(NullCache):  # type: ignore[misc]
    """The cache of one kernel. numba's own cache does not read a folder that it cannot write to, and ignores changes in
    the parts of a kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        source = Path(function.__code__.co_filename)
        self._folders = [source.with_name("__pycache__"), *_user_folders()]
        self._name = f"{source.stem}.{function.__name__}"
        made_by = (sys.version, numba.__version__, platform.machine())
        made_from = [path.read_bytes() for path in _sources(source.parent)]
        digest = hashlib.sha256(b"\0".join([repr(made_by).encode(), *made_from])).hexdigest()[:16]
        self._file = f"{self._name}-{digest}.kernel"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the compiled function. None if it has to be compiled."""
        target_context.refresh()
        for folder in self._folders:
            path = folder / self._file
            try:
                return CompileResult._rebuild(target_context, *pickle.loads(path.read_bytes()))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except Exception as problem:  # the file was cut short, or is something else: the kernel is compiled again
                logger.warning("%s is not usable: %s: %s", path, type(problem).__name__, problem)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compiled function where the next process finds it, if there is such a folder."""
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


def _sources(folder: Path) -> list[Path | zipfile.Path]:
    """Return the modules that kernels of this folder are made from. The folder may be in a zip, as spark-submit sends
    it."""
    archive = next((path for path in folder.parents if path.is_file()), None)
    if archive is None:
        return [*sorted({Path(__file__), *folder.glob("*.py")})]
    inside = zipfile.Path(archive, f"{folder.relative_to(archive)}/")
    return sorted((path for path in inside.iterdir() if path.suffix == ".py"), key=lambda path: path.name)


def _user_folders() -> list[Path]:
    """Return the user's cache folder; none if the user has no home. A shared folder such as /tmp would be unsafe,
    because whatever is found there is executed."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return [(Path(named) if named else Path.home() / ".cache") / "joinery" / "kernels"]
    except RuntimeError:
        return []
