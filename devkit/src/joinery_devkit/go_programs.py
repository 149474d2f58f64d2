"""Programs of this package that are written in Go: each is built once from its pinned modules, and cached."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from joinery_devkit.environment import cache_directory, locked
from joinery_devkit.kubernetes.binaries import go_build, go_command


def built_program(module: Path, package: str = ".") -> Path:
    """The path of the program that a package of this Go module is. Concurrent callers wait for the first. Raises
    EnvironmentProblem if Go is missing or the build fails."""
    sources = b"\0".join(path.read_bytes() for path in sorted(module.rglob("*.*")))
    folder = f"{module.parent.name}-{hashlib.sha256(sources).hexdigest()[:8]}"
    program = cache_directory() / folder / (module / package).resolve().name
    with locked(program.with_suffix(".lock")):
        if not program.exists():
            _build_program(module, package, program)
    return program


def _build_program(module: Path, package: str, program: Path) -> None:
    go = go_command()
    print(f"joinery: building {program.name}, once (minutes)", file=sys.stderr, flush=True)
    partial = program.with_suffix(".partial")
    go_build(go, module, str(partial), [f"./{package}"], what=program.name)
    partial.rename(program)
