"""Compiles and starts the peers that are Java programs: one source file each, in `java/`."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from joinery_devkit.environment import java_command, java_compiler
from joinery_devkit.jars import class_path

LOG4J_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"
_SOURCES = Path(__file__).parent / "java"
_CACHE = Path(__file__).parents[1] / ".cache"


def java_program(program: str, jars: Path, options: Sequence[str]) -> list[str]:
    """Return the command line of a program, without its arguments; compiled when its source is new. All peers have the
    collector that costs least per row."""
    source = _SOURCES / f"{program}.java"
    key = hashlib.sha256(source.read_bytes() + str(jars).encode()).hexdigest()[:12]
    folder = _CACHE / f"{program}-{key}"
    if not folder.is_dir():
        compiler = java_compiler()
        _CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as work:
            built = Path(work) / "classes"
            subprocess.run([compiler, "-d", str(built), "-cp", class_path(jars), str(source)], check=True)
            built.rename(folder)
    classes = f"{folder}:{class_path(jars)}"
    return [java_command(), "-XX:+UseParallelGC", *options, "-Dlog4j2.level=WARN", "-cp", classes, program]
