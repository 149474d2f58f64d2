"""The Java process of Spark's driver half, as PySpark starts it, but known from its first moment: a start that nobody
waits for any longer is ended by its pid, and one that a signal cuts short leaves no process behind. And the archive of
classes that makes its start shorter, which `class_archive` makes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark import SparkContext, java_gateway

from joinery_runtime.errors import EnvironmentProblem

# A JVM that cannot use the archive would say so on standard output. Its other warnings stay.
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off:stderr -Xlog:class+path=off:stderr"

_PATIENCE_S = 10.0  # Spark's hooks remove its temporary folders within one
_launching = threading.Lock()
_under_way: set[subprocess.Popen[bytes]] = set()

# Spark's launcher adds an incubating module for the linear algebra of MLlib, and a JVM with one prints a warning that
# no option takes away. Its scripts end in `exec java ...`: bash prefers a function to its builtin of that name.
_WITHOUT_MODULE = """() {
  local kept=() word
  for word; do
    if [[ $word == --add-modules=jdk.incubator.vector ]]; then unset -f exec; else kept+=("$word"); fi
  done
  builtin exec "${kept[@]}"
}"""


def kill_starts() -> None:
    """Kills the Java processes that are being started. To be called where this process ends, or leaves a start, without
    `give_up`: PySpark has then removed the folder that Java writes its address to, and a Java that cannot write there
    never ends."""
    for process in list(_under_way):
        process.kill()


@contextmanager
def ended_afterwards() -> Iterator[None]:
    """A Java process that is started in the block, and on which no context runs after it, ends with it: its system
    properties would be settings of the next context."""
    before = SparkContext._gateway
    try:
        yield
    finally:
        gateway = SparkContext._gateway
        if gateway is not None and gateway is not before and SparkContext._active_spark_context is None:
            SparkContext._gateway = SparkContext._jvm = None
            if gateway.proc is not None:
                _end(gateway.proc)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class JavaStart:
    """One start of a Java process. `give_up` may be called by another thread, at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = False
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def made_here(self) -> Iterator[None]:
        """The process that PySpark's launch makes in the block is this start's. The launch raises EnvironmentProblem
        once it was given up."""
        with _launching:
            # PySpark tells of the process only once the process has answered.
            original = java_gateway.Popen
            java_gateway.Popen = self._popen
            try:
                yield
            except BaseException:
                self.give_up()
                raise
            finally:
                java_gateway.Popen = original
                _under_way.difference_update({self._process})

    def give_up(self) -> None:
        """Ends the process if this start has made one; calls into it fail."""
        with self._lock:
            self._given_up = True
        if self._process is not None:
            _end(self._process)

    def forget(self) -> None:
        """After `give_up`, once nobody calls into the process any more: the next start makes a new one."""
        gateway = SparkContext._gateway
        if gateway is not None and self._process is not None and gateway.proc is self._process:
            SparkContext._gateway = SparkContext._jvm = None

    def _popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options["env"] |= {"BASH_FUNC_exec%%": _WITHOUT_MODULE}
        with self._lock:
            if self._given_up:
                raise EnvironmentProblem("The start of Spark was given up", facts="the job has ended")
            self._process = subprocess.Popen(command, **options)
            _under_way.add(self._process)
            return self._process


# --- the archive of classes -------------------------------------------------------------------------------------------


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
    if release is None or (home and Path(home) != Path(java_gateway.__file__).parent):
        return None
    key = hashlib.sha256(f"{version('pyspark')}\n{release}".encode()).hexdigest()[:12]
    return Path(sys.prefix, "share", "joinery", f"spark-{key}.jsa")


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
