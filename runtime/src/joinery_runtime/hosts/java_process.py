"""The Java process of Spark's driver half, as PySpark starts it, but known from its first moment: a start that nobody
waits for any longer is ended by its pid, and one that a signal cuts short leaves no process behind.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext, java_gateway

from joinery_runtime.errors import EnvironmentProblem

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
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

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
