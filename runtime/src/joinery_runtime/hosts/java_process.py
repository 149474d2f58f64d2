"""Starts the Java process of Spark's driver as PySpark does, but knows the process from its first moment: a start that
nobody waits for any longer is killed by its pid, and a start that a signal cuts short leaves no process behind. Also
finds the class archive (made by `class_archive`) that shortens the start.

PySpark is imported where Java starts: a job that needs no Spark imports this module for its signals.
"""

from __future__ import annotations

import hashlib
import logging
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

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.background_call import BackgroundCall

# Silences the JVM's message, on standard output, that it cannot use the archive. Its other warnings stay.
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off:stderr -Xlog:class+path=off:stderr"

_PATIENCE_S = 10.0  # Spark's shutdown hooks remove its temporary folders within a second
_launching = threading.Lock()
_under_way: set[subprocess.Popen[bytes]] = set()

# Spark's scripts end in `exec java ...`, and bash prefers a function named `exec` to its builtin. This function
# - leaves out an incubating module, which Spark's launcher adds for MLlib's linear algebra: a JVM with an incubating
#   module prints a warning that no option turns off;
# - writes the class path so that a JVM accepts the image's archive: the jars sorted, and behind them the folder of
#   settings, which Spark puts first.
_EXEC = """() {
  local words=() word previous= jars folder=${SPARK_CONF_DIR:-$SPARK_HOME/conf}
  for word; do
    if [[ $previous == -cp && $* == *-XX:SharedArchiveFile=*/joinery/image.jsa* ]]; then
      jars=$(LC_ALL=C && printf '%s:' "$SPARK_HOME"/jars/*.jar)
      word=:$word:
      word=${word/:"${folder%/}/":/:}
      word=${word/:"$SPARK_HOME/jars/*":/:$jars}
      word=${word#:}$folder
    fi
    previous=$word
    if [[ $word == --add-modules=jdk.incubator.vector ]]; then unset -f exec; else words+=("$word"); fi
  done
  builtin exec "${words[@]}"
}"""


# PySpark has Python run in the forked child, to ignore Ctrl-C there. The child first destroys what belongs to the other
# threads, and may die of it: of a client of Kafka, say. Bash, which Spark's scripts need anyway, ignores Ctrl-C as
# well, and then becomes the script.
_IGNORE_INTERRUPTS = ("bash", "-c", 'trap "" INT; builtin exec "$0" "$@"')


def kill_starts() -> None:
    """Kill the Java processes that are being started. To be called when this process ends, and before an exception cuts
    a start short: PySpark then removes the folder to which Java writes its address, and a Java that cannot write there
    prints a traceback and never ends. Spark's empty temporary folder may stay."""
    for process in list(_under_way):
        process.kill()


@contextmanager
def end_new_java() -> Iterator[None]:
    """End a Java process that was started in the block if no context runs on it after the block: its system properties
    would become settings of the next context."""
    from joinery_runtime.hosts import spark_internals  # noqa: PLC0415

    before = spark_internals.current_java_gateway()
    try:
        yield
    finally:
        gateway = spark_internals.current_java_gateway()
        if gateway is not None and gateway is not before and not spark_internals.context_is_active():
            process = spark_internals.java_process()
            spark_internals.forget_java()
            if process is not None:
                _end_process(process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Keep what py4j logs out of the root logger. A call that Java's end cuts off raises an error, and py4j prints its
    traceback there besides."""
    return record.module != "java_gateway"


class JavaStart:
    """One start of a Java process. Another thread may call `give_up` at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = False
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def capture_launch(self) -> Iterator[None]:
        """Take the process that PySpark launches in the block for this start. The launch raises EnvironmentProblem
        after `give_up`."""
        from joinery_runtime.hosts.spark_internals import launch_java_with  # noqa: PLC0415

        with _launching, launch_java_with(self._start_process):
            try:
                yield
                with self._lock:
                    self._reject_if_given_up()
            except BaseException:
                self.give_up()
                raise
            finally:
                _under_way.difference_update({self._process})

    def give_up(self) -> None:
        """End the process if this start has made one; calls into it then fail."""
        with self._lock:
            self._given_up = True
        if self._process is not None:
            logging.getLogger().addFilter(_is_not_py4j)
            self._silence_log()
            _end_process(self._process)

    def _silence_log(self) -> None:
        """Turn off Java's log: a context that is being made when Java ends says that it cannot be made."""
        from joinery_runtime.hosts.spark_internals import current_java_gateway, java_process  # noqa: PLC0415

        gateway = current_java_gateway()
        if gateway is None or java_process() is not self._process:
            return  # Java has not answered, so nobody has asked it for a context

        def turn_off() -> None:
            log4j = gateway.jvm.org.apache.logging.log4j
            log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)

        # A signal may have cut short a call of this thread, whose answer is still to come on the thread's connection.
        BackgroundCall(turn_off, "joinery-java-silence").join(_PATIENCE_S)

    def forget(self) -> None:
        """Make PySpark forget the process, so that the next start makes a new one. To be called after `give_up`, once
        nobody calls into the process any more."""
        from joinery_runtime.hosts.spark_internals import forget_java, java_process  # noqa: PLC0415

        if self._process is not None and java_process() is self._process:
            forget_java()

    def _start_process(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options["env"] |= {"BASH_FUNC_exec%%": _EXEC}
        options.pop("preexec_fn", None)

        def launch() -> subprocess.Popen[bytes]:
            with self._lock:
                self._reject_if_given_up()
                self._process = subprocess.Popen([*_IGNORE_INTERRUPTS, *command], **options)
                _under_way.add(self._process)
                return self._process

        # In another thread than the main one, which a signal cuts short, a process that has begun is always known.
        return BackgroundCall(launch, "joinery-java-launch").result()

    def _reject_if_given_up(self) -> None:
        if self._given_up:
            raise EnvironmentProblem("The start of Spark was given up", facts="the job has ended")


# --- the archive of classes -------------------------------------------------------------------------------------------


def java_options() -> str:
    """Return the options with which Spark's JVM uses the archive; empty if there is no archive."""
    archive = image_archive() or archive_path()
    if archive is None or not archive.exists():
        return ""
    return f"-XX:SharedArchiveFile={shlex.quote(str(archive))} {_QUIET}"


def image_archive() -> Path | None:
    """Return the archive that the runtime image has for drivers and executors (images/classes.py); None outside of
    it."""
    archive = Path(sys.prefix, "share", "joinery", "image.jsa")
    return archive if archive.exists() else None


def archive_path() -> Path | None:
    """Return the path of the archive for this Python environment's Spark and the Java that it will run on. None if
    there can be no archive: SPARK_HOME names another Spark, or Java does not state its version."""
    import pyspark  # noqa: PLC0415

    java_home, spark_home = os.environ.get("JAVA_HOME"), os.environ.get("SPARK_HOME")
    java = Path(java_home, "bin", "java") if java_home else shutil.which("java")  # that Spark's scripts choose
    if java is None or (spark_home and Path(spark_home) != Path(pyspark.__file__).parent):
        return None
    try:
        release = Path(java).resolve().parents[1].joinpath("release").read_text(encoding="utf-8")
    except OSError:
        return None
    key = hashlib.sha256(f"{version('pyspark')}\n{release}".encode()).hexdigest()[:12]
    return Path(sys.prefix, "share", "joinery", f"spark-{key}.jsa")
