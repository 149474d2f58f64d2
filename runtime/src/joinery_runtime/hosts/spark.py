"""The tasks of an epoch as one Spark job: read, shuffle blocks by shard, join.

    parallelize(ranges) -> mapPartitions(read) -> [partitionBy(shard) -> mapPartitions(step | collect)] -> collect

The RDD form costs half of the same job as DataFrames, and blocks stay opaque bytes: the JVM never sees a record (see
docs/architecture.md, "Why an epoch loop of our own"). What stands in brackets comes once per step. Partition number
`shards` takes the reports of reading and of the steps.
"""

from __future__ import annotations

import gc
import math
import os
import re
import shutil
import sys
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkConf, SparkContext, SparkFiles, TaskContext
from pyspark.errors import PySparkException

from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary, ShardSummary, TaskFailure
from joinery_runtime.engine.protocol import choose_attempts
from joinery_runtime.engine.read_report import ReadReport
from joinery_runtime.engine.worker import Block, Worker
from joinery_runtime.errors import EnvironmentProblem, JoineryError, Superseded
from joinery_runtime.hosts.spark_security import (
    LOOPBACK,
    environment_defaults,
    on_this_machine,
    only_in_context,
    page_defaults,
    security_defaults,
)
from joinery_runtime.sources.base import Range

# Spark gives the parallelism; a worker that starts threads of its own for every task only gets slower.
WORKER_ENVIRONMENT = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}

# The JVM only moves blocks: compiling its code twice would take the cores from the tasks for a minute.
_JIT = "-XX:TieredStopAtLevel=1"

DEFAULT_CONF = {
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of a small PySpark job
    "spark.python.daemon.module": "joinery_runtime.hosts.worker_daemon",  # a cold start takes a second less
    "spark.python.worker.reuse": "true",  # workers keep consumers, connections and mapped segments
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.compress": "false",  # blocks of one epoch live for a moment
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",  # Java's cuts them into pieces of 1 KB
    "spark.kryoserializer.buffer.max": "1g",
    "spark.locality.wait": "0s",
    "spark.executor.defaultJavaOptions": _JIT,
}

_LOG = Path(__file__).with_name("log4j2.properties")

WorkerFactory = Callable[[Path], Worker]
Result = Block | ReadSummary | TaskFailure


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """How an executor process builds its worker: `digest` tells setups apart, `build` gets the cache directory; `steps`
    is how many joins follow each other. Must pickle."""

    digest: str
    build: WorkerFactory
    steps: int


class SparkHost:
    """Implements `engine.driver.Host` on a Spark context."""

    def __init__(self, context: SparkContext, setup: WorkerSetup, job: str) -> None:
        self._context, self._setup, self._job = context, setup, job

    def run(self, work: EpochWork) -> EpochOutcome:
        plan = work.plan
        results = self._results(work)
        for result in results:
            if isinstance(result, TaskFailure):
                raise result.error
        summaries = [((s.step, s.shard), s) for s in results if isinstance(s, ShardSummary)]
        (read,) = (result for result in results if isinstance(result, ReadSummary))
        return EpochOutcome(read, choose_attempts(summaries, self._setup.steps, plan.shards))

    def _results(self, work: EpochWork) -> list[Result]:
        try:
            return [result for _, result in self._job_of(work).collect()]
        except (Py4JError, ConnectionError) as error:
            raise JoineryError(
                f"Spark gave up on epoch {work.plan.epoch}", facts=_cause(error), todo=_todo(error)
            ) from error

    def _job_of(self, work: EpochWork) -> RDD[Any]:
        context, plan, setup = self._context, work.plan, self._setup
        groups = deal_ranges(plan.ranges, context.defaultParallelism)
        context.setJobDescription(f"{self._job}: epoch {plan.epoch}")
        blocks = context.parallelize(groups, max(1, len(groups))).mapPartitions(lambda tasks: _read(setup, work, tasks))
        for step in range(setup.steps):
            # Turned by one: Spark begins with the reports, whose task is short, instead of ending with it alone.
            blocks = blocks.partitionBy(plan.shards + 1, lambda number: number + 1).mapPartitionsWithIndex(
                partial(_step, setup, work, step)
            )
        return blocks


def _cause(error: Exception) -> str:
    """The last line of the Python traceback inside a Spark failure, or the failure's first line."""
    if not isinstance(error, Py4JJavaError):
        return "the driver's Java process is gone"
    lines = [line.strip() for line in str(error.java_exception.getMessage()).splitlines() if line.strip()]
    errors = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and "Traceback" not in line]
    return (errors or lines or ["no message"])[-1 if errors else 0]


_OUT_OF_MEMORY = re.compile(
    r"OutOfMemory|MemoryError|exited unexpectedly|ExecutorLostFailure|OOM|exit (code|status):? *(137|52)\b",
    re.IGNORECASE,
)


def _todo(error: Exception) -> str:
    """A process that the kernel has killed for its memory cannot say so: who has lost one is told of it."""
    said = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else ""
    if not isinstance(error, Py4JJavaError) or _OUT_OF_MEMORY.search(said):
        return (
            "Nothing of it was committed. If memory ran out, lower trigger.maxBytesPerEpoch or "
            "trigger.maxRecordsPerEpoch, or give more memory (spark.executor.memory, spark.driver.memory), and start "
            "again: a plan that is over the new limits is made smaller (docs/operations.md, Memory)"
        )
    return "Nothing of it was committed; the next start replays it"


def start_context(name: str, conf: dict[str, str], master: str | None) -> SparkContext:
    """A context with the job's own `spark.conf` over what spark-submit or `spark-defaults.conf` set, and our defaults
    under all of them. Without any master it is `local[*]`, where a task is tried four times as on a cluster."""
    if _submitted():
        SparkContext._ensure_initialized()  # then a SparkConf has what spark-submit set
    settings = SparkConf().setAppName(name)
    for key, value in conf.items():
        settings.set(key, value)
    if master is not None:
        settings.setMaster(master)
    from_file = {} if _submitted() else conf_file()
    place = str(settings.get("spark.master", from_file.get("spark.master", "")))
    for key, value in _defaults(place, from_file | dict(settings.getAll())).items():
        # All settings of a new JVM are arguments of it, which go before its file.
        if key not in from_file:
            settings.setIfMissing(key, value)
    place = str(settings.get("spark.master", place))
    environment = {**WORKER_ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, **environment_defaults(place)}
    for key, value in environment.items():
        os.environ.setdefault(key, value)
    try:
        context = _started(settings)
    except (PySparkException, Py4JError) as error:
        raise _no_start(error, place) from error
    context.setLogLevel(_log_level(place).upper())
    return context


def _started(settings: SparkConf) -> SparkContext:
    """PySpark makes all settings arguments of the JVM that it starts. Those that must be none are set once it runs."""
    arguments = SparkConf(loadDefaults=False)
    for key, value in settings.getAll():
        if not only_in_context(key):
            arguments.set(key, value)
    SparkContext._ensure_initialized(conf=arguments)
    return SparkContext(conf=settings)


def _defaults(master: str, named: Mapping[str, str]) -> dict[str, str]:
    """What nobody has set; `master` is "" where nobody named one, `named` are the settings that somebody has. Raises
    EnvironmentProblem."""
    defaults = DEFAULT_CONF | {f"spark.executorEnv.{key}": value for key, value in WORKER_ENVIRONMENT.items()}
    if not _submitted():
        logging = f"-Dlog4j2.configurationFile=file:{_LOG} -Djoinery.spark.log={_log_level(master)}"
        defaults["spark.driver.defaultJavaOptions"] = f"{_JIT} {logging}"
        if not master:
            defaults["spark.master"] = master = "local[*,4]"
    if on_this_machine(master):
        defaults["spark.driver.host"] = LOOPBACK
    return defaults | page_defaults(master) | security_defaults(master, named)


def _log_level(master: str) -> str:
    """A terminal shows errors only; a pod's log is read when something is wrong, as when no executor comes."""
    return "warn" if master.startswith("k8s://") else "error"


def conf_file() -> dict[str, str]:
    """What `spark-defaults.conf` says: in SPARK_CONF_DIR, else in `conf` of SPARK_HOME. PySpark cannot tell: before the
    JVM runs it does not read the file, and after that Spark has added settings of its own."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if folder is None:
        return {}
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    # Java's properties, of which Spark's settings use the plain part: `key value`, `key=value` or `key: value`.
    lines = [line.strip() for line in text.splitlines()]
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and line[0] not in "#!"]
    return {key: "".join(value) for key, *value in pairs}


def stop_context(context: SparkContext) -> None:
    """A context whose Java process is gone has stopped already."""
    with suppress(Py4JError, ConnectionError):
        context.stop()


def _no_start(error: PySparkException | Py4JError, master: str) -> EnvironmentProblem:
    java = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=Path(java) / "bin" if java else None)
    if java is None:
        where = "JAVA_HOME holds no bin/java" if "JAVA_HOME" in os.environ else "no java on PATH, JAVA_HOME is not set"
        return EnvironmentProblem("Spark needs Java", facts=where, todo="Install Java 17 or newer")
    reason = _cause(error) if isinstance(error, Py4JJavaError) else "its Java process ended; what it said is above"
    return EnvironmentProblem(
        f"Spark does not start with master {master}",
        facts=reason,
        todo=f"Check the master's URL, spark.conf in the job, and that {java} is version 17 or newer",
    )


def _submitted() -> bool:
    """Whether spark-submit started this process: then the JVM runs already, with a master and a log of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def deal_ranges(ranges: Sequence[Range], most: int) -> list[list[Range]]:
    """The ranges of each read task, at most `most` tasks that read about as many records. A partition is dealt to the
    same task in every epoch, as far as that allows: a process that reads it again has records of it already."""
    tasks: list[list[Range]] = [[] for _ in range(min(most, len(ranges)))]
    loads = [0] * len(tasks)
    sizes = {r.partition: max(1, r.end_exclusive - r.start) for r in ranges}
    fair = max(math.ceil(sum(sizes.values()) / max(1, len(tasks))), *sizes.values(), 0)
    # Large ones first, by powers of two: sizes that differ a little from epoch to epoch change no order.
    for planned in sorted(ranges, key=lambda r: (-sizes[r.partition].bit_length(), r.partition)):
        place, size = planned.partition, sizes[planned.partition]
        task = (zlib.crc32(f"{place.input}/{place.topic}".encode()) + place.partition) % len(tasks)
        if loads[task] + size > fair:
            task = loads.index(min(loads))
        tasks[task].append(planned)
        loads[task] += size
    return tasks


# --- inside the tasks ------------------------------------------------------------------------------------------------

# A client's call gives thousands of records, an object each. They die together, without the collector, which by its own
# thresholds would go over them dozens of times per call: that doubled the cost of reading.
_COLLECT_AFTER = 200_000

_workers: dict[str, Worker] = {}


def _worker(setup: WorkerSetup) -> Worker:
    """This process's worker. Spark reuses processes, so consumers, connections and mapped segments live on."""
    if setup.digest not in _workers:
        _workers.clear()
        _workers[setup.digest] = setup.build(_local_directory() / f"joinery-{setup.digest}")
        gc.set_threshold(_COLLECT_AFTER)
        # PySpark collects after every task, which would take 50 ms to go over all that was imported.
        gc.freeze()
    return _workers[setup.digest]


def _local_directory() -> Path:
    """Where this process may write. An executor's own folder is its working directory, which is read-only in a pod with
    a read-only root; its local directories are not."""
    own, local = Path(SparkFiles.getRootDirectory()), os.environ.get("SPARK_LOCAL_DIRS", "")
    return Path(local.split(",")[0]) if local and not own.is_absolute() else own


def _read(setup: WorkerSetup, work: EpochWork, tasks: Iterable[Sequence[Range]]) -> Iterator[tuple[int, Any]]:
    try:
        for ranges in tasks:
            yield from _worker(setup).read(work, ranges)
    except JoineryError as error:
        # To every partition: Spark may have run this task again for one of them only, with the others done already.
        for partition in range(work.plan.shards + 1):
            yield partition, TaskFailure(error)


def _step(
    setup: WorkerSetup, work: EpochWork, step: int, index: int, blocks: Iterable[tuple[int, Block | TaskFailure]]
) -> Iterator[tuple[int, Result]]:
    received: deque[Block] = deque()
    try:
        for _, block in blocks:
            if isinstance(block, TaskFailure):
                raise block.error
            received.append(block)
        # Taken out one by one: what the worker has decoded is not kept here too.
        handed = (received.popleft() for _ in range(len(received)))
        yield from _stepped(_worker(setup), work, step, (index - 1) % (work.plan.shards + 1), handed)
    except Superseded:
        raise  # Spark tries the task again, or takes the attempt that was quicker
    except JoineryError as error:
        for partition in range(work.plan.shards + 1):
            yield partition, TaskFailure(error)


def _stepped(
    worker: Worker, work: EpochWork, step: int, number: int, blocks: Iterator[Block]
) -> Iterator[tuple[int, Result]]:
    """A shard's rows, or the partition of the reports, which waits for the last step's."""
    if number < work.plan.shards:
        yield from worker.step(work, step, number, blocks, _attempt())
    elif step < worker.steps - 1:
        yield from ((number, block) for block in blocks)
    else:
        reports: list[ReadReport] = []
        for block in blocks:
            if isinstance(block, ReadReport):
                reports.append(block)
            else:
                yield number, block
        yield number, worker.collect(work, reports, _attempt())


def _attempt() -> str:
    """Unique for ever: the same task may run twice, also at once (speculation), also as a zombie."""
    context = TaskContext.get()
    return f"{context.taskAttemptId() if context else 0}-{uuid.uuid4().hex[:12]}"
