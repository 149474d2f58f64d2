"""Checks what the machine needs: Java, Python, access to package registries. Each lack is an EnvironmentProblem."""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joinery_runtime.errors import EnvironmentProblem, JoineryError

MIN_JAVA = 17
MIN_PYTHON = (3, 11)
GET_JAVA = (
    f"Install a JDK or JRE {MIN_JAVA} or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) and put `java` on PATH or set JAVA_HOME"
)


def cache_directory() -> Path:
    """Return the directory for downloads that outlive a checkout: `$XDG_CACHE_HOME/joinery`, by default
    `~/.cache/joinery`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "joinery"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on the file, for which other processes on this machine wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@functools.cache
def java_command() -> str:
    """Return the path of a `java` that is new enough for Spark and Kafka."""
    if home := os.environ.get("JAVA_HOME"):
        java = str(Path(home) / "bin" / "java")
        if not Path(java).is_file():
            raise EnvironmentProblem("JAVA_HOME holds no Java", facts=f"{java} does not exist", todo=GET_JAVA)
    else:
        java = shutil.which("java") or ""
        if not java:
            facts = "no `java` on PATH and JAVA_HOME is not set"
            raise EnvironmentProblem("Java is missing", facts=facts, todo=GET_JAVA)
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = parse_java_version(java, done.stdout + done.stderr)
    if version < MIN_JAVA:
        raise EnvironmentProblem("Java is too old", facts=f"{java} is version {version}", todo=GET_JAVA)
    return java


def java_compiler() -> str:
    """Return the path of the `javac` beside that `java`."""
    compiler = Path(java_command()).resolve().with_name("javac")
    if not compiler.exists():
        raise EnvironmentProblem("Java has no compiler", facts=f"{compiler} does not exist", todo=GET_JAVA)
    return str(compiler)


def parse_java_version(java: str, banner: str) -> int:
    """Return the feature release in what `java -version` prints; "1.8.0_392" is 8."""
    # macOS has a /usr/bin/java that prints no version, only where to get Java.
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    if match is None:
        facts = f"{java} -version printed {banner.strip()!r}"
        raise EnvironmentProblem("Java does not run", facts=facts, todo=GET_JAVA)
    return int(match.group(1))


def require_python() -> None:
    if sys.version_info < MIN_PYTHON:
        raise EnvironmentProblem(
            "Python is too old",
            facts=f"{sys.executable} is {sys.version_info.major}.{sys.version_info.minor}",
            todo=f"Use Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer",
        )


def main() -> int:
    """Check everything that needs no running service; the Makefile's first step."""
    try:
        require_python()
        java_command()
    except JoineryError as problem:
        print(f"joinery: {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
