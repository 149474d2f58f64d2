"""Programs of this package that are written in Go: each is built once from its pinned modules, and cached."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from joinery_devkit.environment import cache_directory, locked
from joinery_devkit.kubernetes.binaries import go_command
from joinery_runtime.errors import EnvironmentProblem

_ERROR_LENGTH = 2000


def built_program(module: Path, package: str = ".") -> Path:
    """The path of the program that a package of this Go module is. Concurrent callers wait for the first. Raises
    EnvironmentProblem if Go is missing or the build fails."""
    sources = b"\0".join(path.read_bytes() for path in sorted(module.rglob("*.*")))
    folder = f"{module.parent.name}-{hashlib.sha256(sources).hexdigest()[:8]}"
    program = cache_directory() / folder / (module / package).resolve().name
    with locked(program.with_suffix(".lock")):
        if not program.exists():
            _build(module, package, program)
    return program


def _build(module: Path, package: str, program: Path) -> None:
    print(f"joinery: building {program.name}, once (minutes)", file=sys.stderr, flush=True)
    partial = program.with_suffix(".partial")
    # As in kubernetes.binaries, so that what both need is compiled once.
    options = ["-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-s -w"]
    done = subprocess.run(
        [go_command(), "build", *options, "-o", str(partial), f"./{package}"],
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOGC": "400", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise EnvironmentProblem(
            f"{program.name} cannot be built",
            facts=f"go build ended with {done.returncode}:\n{done.stderr[-_ERROR_LENGTH:]}",
            todo="If it cannot download modules, check `go env GOPROXY` and the network",
        )
    partial.rename(program)
