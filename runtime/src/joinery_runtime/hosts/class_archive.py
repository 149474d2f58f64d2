"""An archive of the Java classes that a start of Spark loads, which a JVM maps instead of reading and verifying each of
them: a driver's start takes half of the time (docs/decisions/0024).

`python -m joinery_runtime.hosts.class_archive` makes it, once per Python environment and Java; `make setup` does so. A
JVM goes on without an archive that is missing, or was made by another Java or of other jars.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import uuid
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from joinery_runtime.errors import EnvironmentProblem

# A JVM that cannot use the archive would say so on standard output. Its other warnings stay.
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off:stderr -Xlog:class+path=off:stderr"


def java_options() -> str:
    """Options for a JVM of Spark's; none where there is no archive."""
    archive = archive_path()
    if archive is None or not archive.exists():
        return ""
    return f"-XX:SharedArchiveFile={shlex.quote(str(archive))} {_QUIET}"


def archive_path() -> Path | None:
    """The archive of this Python environment's Spark and the Java that it will run on. None where there can be none:
    another Spark is named, or Java does not say its version."""
    release, home = _release(), os.environ.get("SPARK_HOME")
    if release is None or (home and Path(home) != _own_spark()):
        return None
    key = hashlib.sha256(f"{version('pyspark')}\n{release}".encode()).hexdigest()[:12]
    return Path(sys.prefix, "share", "joinery", f"spark-{key}.jsa")


def _own_spark() -> Path | None:
    """The folder of pyspark, found without importing it."""
    spec = find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _release() -> str | None:
    """What the Java home that Spark's scripts choose says of itself."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        return Path(java).resolve().parents[1].joinpath("release").read_text(encoding="utf-8")
    except OSError:
        return None


def make() -> Path | None:
    """Makes the archive anew. None where there can be none, or the JVM made none. Raises EnvironmentProblem where Spark
    does not start."""
    # pyspark is not imported by who only asks for options.
    from pyspark import SparkContext  # noqa: PLC0415

    from joinery_runtime.hosts.spark import start_context, stop_context  # noqa: PLC0415

    archive = archive_path()
    if archive is None:
        return None
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)  # a JVM that uses one makes none
    partial = archive.with_suffix(f".{uuid.uuid4().hex}")
    options = f"-XX:ArchiveClassesAtExit={shlex.quote(str(partial))} -Xlog:disable"
    try:
        context = start_context("class archive", {"spark.driver.extraJavaOptions": options}, "local[1]")
        context.parallelize([1], 1).map(str).collect()
        stop_context(context)
        java = SparkContext._gateway.proc
        java.stdin.close()  # it ends with its input
        if java.wait() != 0 or not partial.exists():
            return None
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # a JVM does not survive an archive that was cut off
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return archive


if __name__ == "__main__":
    try:
        why = "" if make() else "this Java or this Spark has none"
    except EnvironmentProblem as problem:
        why = str(problem)
    if why:
        print(f"joinery: no archive of Java classes was made, Spark starts without: {why}", file=sys.stderr)  # noqa: T201
