"""Makes an archive of the Java classes that Spark loads at its start. A JVM maps the archive instead of reading and
verifying each class, which halves the time that a driver takes to start (docs/decisions/0024, 0064).

`python -m joinery_runtime.hosts.class_archive` makes it, once per Python environment and Java; `make setup` does so. A
JVM starts without the archive if it is missing, or was made by another Java or from other jars.
"""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from pathlib import Path

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.java_process import archive_path
from joinery_runtime.hosts.spark import start_context, stop_context
from joinery_runtime.hosts.spark_internals import java_process


def make_archive() -> Path | None:
    """Make the archive again, from the beginning. Returns None if there can be no archive, or if the JVM made none.
    Raises EnvironmentProblem if Spark does not start."""
    archive = archive_path()
    if archive is None:
        return None
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)  # a JVM that uses an archive makes none
    partial = archive.with_suffix(f".{uuid.uuid4().hex}")
    options = f"-XX:ArchiveClassesAtExit={shlex.quote(str(partial))} -Xlog:disable"
    try:
        context = start_context("class archive", {"spark.driver.extraJavaOptions": options}, "local[1]")
        context.parallelize([1], 1).map(str).collect()
        stop_context(context)
        java = java_process()
        assert java is not None, "it has just started here"
        assert java.stdin is not None, "PySpark opens a pipe"
        java.stdin.close()  # Java ends when its input does
        if java.wait() != 0 or not partial.exists():
            return None
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # a truncated archive crashes a JVM
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return archive


if __name__ == "__main__":
    try:
        reason = "" if make_archive() else "this Java or this Spark has none"
    except EnvironmentProblem as problem:
        reason = str(problem)
    if reason:
        print(f"joinery: no archive of Java classes was made, Spark starts without: {reason}", file=sys.stderr)  # noqa: T201
