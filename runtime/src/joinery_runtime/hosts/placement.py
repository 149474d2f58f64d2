"""Decides which Spark a job runs on, and where its epochs run, before Spark starts.

| Spark | epochs run |
|---|---|
| none (`joinery run --local`) | in the driver's process |
| on the driver's machine | in the driver's process until Spark has started, then on Spark (docs/decisions/0064) |
| on the driver's machine, and JOINERY_WAIT_FOR_SPARK is set | on Spark |
| on other machines | on Spark: the driver may lack what its executors have, above all memory |
| has started: the caller's, or this run's before an edit of the job | on Spark |

Imports no PySpark: that would take a tenth of a start.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from joinery_runtime.engine.tasks import MAX_THREADS
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.spark_security import is_on_this_machine

WAIT_FOR_SPARK = "JOINERY_WAIT_FOR_SPARK"
"""The environment variable that makes every epoch run on Spark when it is set: for tests and measurements."""


@dataclass(frozen=True, slots=True)
class EpochPlacement:
    """Where the epochs run. `master` is Spark's; "" while only spark-submit knows it."""

    master: str
    begins_in_driver: bool
    uses_spark: bool

    @classmethod
    def of(
        cls, conf: Mapping[str, str], master: str | None, *, local: bool = False, started_on: str | None = None
    ) -> Self:
        """`conf` is the job's `spark.conf`, and `master` overrides it. `started_on` is the master of a Spark that has
        started; with `local` there is no Spark."""
        if local:
            return cls(ALONE, begins_in_driver=True, uses_spark=False)
        if started_on is not None:
            return cls(started_on, begins_in_driver=False, uses_spark=True)
        named = master_of(conf, master)
        starts_late = is_on_this_machine(named) and not os.environ.get(WAIT_FOR_SPARK)
        return cls(named, begins_in_driver=starts_late, uses_spark=True)

    @property
    def cores(self) -> int:
        """How many tasks a master on this machine runs at a time. Epochs in the driver have as many, so that plans do
        not change when Spark takes over."""
        machine_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if local_cluster := re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", self.master):
            return int(local_cluster[1]) * int(local_cluster[2])
        local = re.match(r"local\[\s*(\d+|\*)", self.master)
        if local is None:
            return 1
        return machine_cores if local[1] == "*" else int(local[1])

    @property
    def threads(self) -> int:
        """How many threads an epoch in the driver has."""
        return min(self.cores, MAX_THREADS)


ALONE = "local[*,4]"
"""The master where nobody names one: a task is tried four times, as on a cluster."""


def master_of(conf: Mapping[str, str], master: str | None) -> str:
    """Return the master that `start_context` will use; "" if spark-submit has set it."""
    if master is not None:
        return master
    named = conf.get("spark.master")
    if named is None and not runs_under_spark_submit():
        named = conf_file().get("spark.master", ALONE)
    return named or ""


def conf_file() -> dict[str, str]:
    """Read `spark-defaults.conf` in SPARK_CONF_DIR, else in `conf` of SPARK_HOME. PySpark cannot tell these settings:
    before the JVM runs it does not read the file, and after that Spark has added settings of its own."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if folder is None:
        return {}
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    # The format is Java's properties. Spark's settings use plain lines of it: `key value`, `key=value`, `key: value`.
    lines = [line.strip() for line in text.splitlines()]
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and line[0] not in "#!"]
    return {key: "".join(value) for key, *value in pairs}


def require_java() -> str | None:
    """Return the path of the Java that Spark would start; None if spark-submit has started one. Raises
    EnvironmentProblem if there is no Java."""
    if runs_under_spark_submit():
        return None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=Path(home) / "bin" if home else None)
    if java is None:
        where = "JAVA_HOME holds no bin/java" if "JAVA_HOME" in os.environ else "no java on PATH, JAVA_HOME is not set"
        raise EnvironmentProblem(
            "Spark needs Java",
            facts=where,
            todo="Install Java 17 or newer; or run the job in this process, without Spark: joinery run --local, in "
            "Python run(job, local=True)",
        )
    return java


def runs_under_spark_submit() -> bool:
    """Return whether spark-submit started this process. Then the JVM already runs, with a master and a log of its
    own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def stop_with_spark_submit() -> None:
    """Send this process a SIGTERM as soon as spark-submit, its parent, have ended. Spark ends with it, and a job that
    has nothing to read would not notice."""
    parent = os.pidfd_open(os.getppid())

    def wait() -> None:
        select.select([parent], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="joinery-spark-submit", daemon=True).start()
