"""The tasks of an epoch as one Spark job, and the context that runs it.

    one peer:       placed_on(nothing) -> mapPartitions(whole) -> collect
    several peers:  placed_on(ranges) -> mapPartitions(read) -> [exchange by peer -> mapPartitions(step)] -> collect
    small epochs:   placed_on(nothing) -> mapPartitions(read_and_step) -> [exchange -> mapPartitions(step)] -> collect
    co-partitioned: placed_on(nothing) -> mapPartitions(share) -> [exchange to 0 -> mapPartitions(collect)] -> collect

A peer's tasks go to the same executor in every epoch (`hosts.executors`), whose consumers have fetched what comes next,
and whose caches have the segments of its shards.

The RDD form costs half of the same job as DataFrames, and blocks stay opaque bytes: the JVM never sees a record (see
docs/architecture.md, "Why an epoch loop of our own"). What stands in brackets comes once per step, or per further step
of a small epoch; where inputs are co-partitioned, only if peers may have dead letters. Without what stands in brackets,
an epoch has one stage. Spark then keeps the RDDs from epoch to epoch, and gets the epoch's work as a property of the
job (`RepeatedJob`).
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.errors import PySparkException

from joinery_runtime.engine.function_calls import ENDED_TODO, calls_in
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary, TaskFailure
from joinery_runtime.engine.read_report import read_summary
from joinery_runtime.engine.tasks import MAX_THREADS, WorkerProcesses, deal_ranges
from joinery_runtime.engine.tasks import make_outcome as epoch_outcome
from joinery_runtime.errors import EnvironmentProblem, JoineryError, is_full, no_room, says_full
from joinery_runtime.hosts.epoch_series import SeriesEndpoint, SeriesTask, SmallEpochs
from joinery_runtime.hosts.exchange_tls import (
    check_admitted,
    encryption_warnings,
    exchange_todo,
    keep_from_tasks,
    tls_settings,
)
from joinery_runtime.hosts.executors import ActiveExecutors
from joinery_runtime.hosts.java_process import JavaStart, end_new_java, image_archive, java_options
from joinery_runtime.hosts.placement import ALONE, conf_file, require_java, runs_under_spark_submit
from joinery_runtime.hosts.spark_internals import (
    exchanged_rdd,
    keep_environment_in_java,
    keep_java_names,
    logs_events,
    placed_again_rdd,
    placed_empty_rdd,
    placed_rdd,
    silence_accumulator_server,
    start_java,
)
from joinery_runtime.hosts.spark_jobs import JobNames, RepeatedJob, collect_rdd
from joinery_runtime.hosts.spark_security import (
    LOOPBACK,
    environment_defaults,
    is_local,
    is_on_this_machine,
    only_in_context,
    page_defaults,
    security_defaults,
)
from joinery_runtime.hosts.spark_tasks import (
    LettersAfterSteps,
    OneStageTask,
    PeerTask,
    WorkerSetup,
    process_for,
)

# A task's threads give the parallelism: libraries that start threads of their own for each of them only get slower. Not
# so polars, whose threads are of the whole process: with one, all tasks' calls would wait for each other.
WORKER_ENVIRONMENT = {"POLARS_MAX_THREADS": str(MAX_THREADS), "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}

# The JVM only moves blocks: compiling its code twice would take the cores from the tasks for a minute. An epoch runs
# much of Spark's code once, so a method is compiled after 10 calls: after 200, hundreds of epochs would be interpreted.
_JIT = "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.05"
# Where Spark starts beside the first epochs, on the same cores, after 40 calls: after 10, much would be compiled that
# only the start runs.
_LOCAL_JIT = "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.2"

# Little lives in the heap: blocks of one epoch. Java rejects two collectors, so a job's own choice replaces this one.
_COLLECTOR = "-XX:+UseSerialGC"

DEFAULT_CONF = {
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of a small PySpark job
    "spark.python.daemon.module": "joinery_runtime.hosts.worker_daemon",  # a cold start takes a second less
    "spark.python.worker.reuse": "true",  # workers keep consumers, connections and mapped segments
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.compress": "false",  # blocks of one epoch live for a moment
    "spark.shuffle.checksum.enabled": "false",  # Spark uses checksums only to explain a block that does not decompress
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",  # Java's cuts them into pieces of 1 KB
    "spark.kryoserializer.buffer.max": "1g",
    "spark.locality.wait": "0s",
    "spark.shuffle.reduceLocality.enabled": "false",  # else a peer that read most would get two tasks, another none
}

_COLLECTING_EPOCHS = 100
"""After an epoch with dead letters that needed a stage which collects them, as many further ones have it. Without it,
such an epoch is run twice. Where that repeats rows, all further epochs have it."""

_MOST_IN_PROPERTY = 1 << 20
"""How many characters of an epoch's work its tasks may get as properties, all together. The driver sends each task its
own; a large one is better sent as part of the stage, which executors get from each other too."""

_LOOK_S = 1.0  # how often a series looks for executors that have come or ended

_SPARKS_FILES = "Spark's own files"
_LOG = Path(__file__).with_name("log4j2.properties")


class SparkHost:
    """Implements `engine.driver.Host` on a Spark context. `warn` is told, once, when rows of co-partitioned inputs go
    from peer to peer all the same. `steps` are the words for the steps, where Spark shows what runs. With `has_series`,
    small epochs share a Spark job, whose tasks keep cores between epochs."""

    def __init__(
        self,
        context: SparkContext,
        setup: WorkerSetup,
        job: str,
        warn: Callable[[str], None] = lambda _: None,
        steps: tuple[str, ...] = (),
        *,
        has_series: bool = False,
    ) -> None:
        self._context, self._setup, self._warn = context, setup, warn
        self._warned = False
        self._collects_letters_until = 0.0
        self._cores: int | None = None
        self._processes = 1
        self._names = JobNames(context, job, steps or tuple(f"join {n + 1}" for n in range(setup.steps)))
        self._executors = ActiveExecutors(context, lambda _: process_for(setup, 1), self._names)
        self._keeps_jobs: bool | None = None  # unknown before the first epoch of one stage
        self._one_stage: tuple[tuple[str, ...], RepeatedJob] | None = None  # the peers' places, and their job
        self._small_epochs: SmallEpochs | None = None
        if has_series:
            self._small_epochs = SmallEpochs(self._run_series, self._cancel_series, warn, SeriesEndpoint.of(context))
        self._series_group = ""
        self._locations: list[str] = []  # of the executors that take part, when they were last looked at
        self._looked_at = 0.0

    def run(self, work: EpochWork) -> EpochOutcome:
        epoch = work.plan.epoch
        collects = self._setup.collects_letters or epoch < self._collects_letters_until
        try:
            outcome = self._run_epoch(work, replace(self._setup, collects_letters=collects))
        except LettersAfterSteps:
            collects = True
            outcome = self._run_epoch(work, replace(self._setup, collects_letters=True))
        if collects and outcome.read.dead_letters is not None:
            self._collects_letters_until = math.inf if self._setup.repeats_rows else epoch + 1 + _COLLECTING_EPOCHS
        return outcome

    def _run_epoch(self, work: EpochWork, setup: WorkerSetup) -> EpochOutcome:
        try:
            results = self._collect_outcomes(work, setup)
        except OSError as error:
            if not is_full(error):
                raise
            raise no_room(_SPARKS_FILES, self._local_folder, error.strerror or str(error)) from error
        for result in results:
            if isinstance(result, TaskFailure):
                raise result.error
        epoch_outcomes = [result for result in results if isinstance(result, EpochOutcome)]
        if epoch_outcomes:
            return replace(epoch_outcomes[0], runs_on="spark")
        (read,) = [result for result in results if isinstance(result, ReadSummary)] or [read_summary(results)]
        outcome = epoch_outcome(read, results, setup.steps, work.plan.shards)
        return replace(outcome, runs_on="spark")

    @property
    def cores(self) -> int:
        """Those of the newest epoch's executors. Java is asked in epochs, not at each look for records: its client
        writes a traceback to standard error where Java ends first."""
        if self._cores is None:
            with suppress(Py4JError, ConnectionError):  # the first epoch says it if Java is gone
                self._cores = self._executors.cores
        return self._cores or 1

    @property
    def processes(self) -> int:
        """Those of the newest epoch's executors; 1 before the first epoch."""
        return self._processes

    def warm(self) -> None:
        """Have a process of each executor build its worker, so that the first epoch does not wait for that. What goes
        wrong with it, the first epoch meets too, and says."""
        setup = self._setup
        with suppress(Py4JError, ConnectionError):
            executors = self._executors.locations()
            count = len(executors) or 1
            self._names.name_other_job("build workers")
            collect_rdd(self._distribute_nothing(count, executors).map(lambda _: bool(process_for(setup, 1))), count)

    @property
    def _local_folder(self) -> str:
        """Return where Spark writes, as far as the driver knows: a worker of a cluster may have a folder of its own.
        Only an error that names the folder asks for it, since Java answers, and may be gone."""
        with suppress(Py4JError, ConnectionError):
            return os.environ.get("SPARK_LOCAL_DIRS") or self._context.getConf().get("spark.local.dir") or "/tmp"
        return "the folder that spark.local.dir names"

    def try_task(self) -> None:
        """Have an executor build its worker. Raises Py4JError and ConnectionError."""
        setup = self._setup
        self._names.name_other_job("build a worker")
        collect_rdd(self._context.parallelize([None], 1).map(lambda _: bool(process_for(setup, 1))), 1)

    def _collect_outcomes(self, work: EpochWork, setup: WorkerSetup) -> list[object]:
        try:
            executors, cores = self._look_at_executors()
            self._processes, _ = _processes_and_threads(cores, len(executors))
            peers = share_out(
                work,
                cores,
                len(executors),
                routes_rows=setup.routes_rows,
                reads_once=setup.reads_once,
            )
            if peers.co_partitions and setup.repeats_rows:  # no peer knows what the others have read
                setup = replace(setup, collects_letters=True)
            task = PeerTask(setup, work, peers)
            self._warn_of_exchange(work, task.peers)
            if self._small_epochs is not None:
                if work.is_small and not work.careful and task.is_one_stage:
                    results = self._small_epochs.run(task, executors)
                    if results is not None:
                        return results
                self._small_epochs.end()
            self._names.name_epoch(work.plan.epoch)
            if task.is_one_stage:
                return self._collect_one_stage(task, executors)
            self._names.bring_work(None)
            return [result for _, result in collect_rdd(*self._staged_rdd(task, executors))]
        except (Py4JError, ConnectionError) as error:
            if interrupt := _interrupt_before(error):
                raise interrupt from None
            if (calls := calls_in(_java_message(error))) != "":
                raise JoineryError(
                    f"A function ended a Python process of Spark in epoch {work.plan.epoch}",
                    facts=calls,
                    todo=ENDED_TODO,
                ) from error
            if says_full(failure_cause(error)) or says_full(_java_message(error)):
                raise no_room(_SPARKS_FILES, self._local_folder, failure_cause(error)) from error
            raise JoineryError(
                f"Spark gave up on epoch {work.plan.epoch}", facts=failure_cause(error), todo=_failure_advice(error)
            ) from error

    def _look_at_executors(self) -> tuple[Sequence[str], int]:
        """Return where the executors are that take part, and their cores. While a series runs, Java is asked once a
        second: an executor that ends in between ends the series too."""
        series_runs = self._small_epochs is not None and self._small_epochs.running
        if not series_runs or time.monotonic() - self._looked_at > _LOOK_S:
            self._locations, self._cores = self._executors.locations(), self._executors.cores
            self._looked_at = time.monotonic()
        return self._locations, self.cores

    def _run_series(self, tasks: SeriesTask, first: PeerTask, executors: Sequence[str]) -> None:
        """Run the Spark job of a series whose first epoch this is. It ends with the series."""
        count = first.peers.count
        self._series_group = self._names.name_series(first.work.plan.epoch)
        self._name_one_stage(first.peers)
        collect_rdd(self._distribute_nothing(count, executors).mapPartitionsWithIndex(tasks.run), count)

    def _cancel_series(self) -> None:
        with suppress(Py4JError, ConnectionError):
            self._context.cancelJobGroup(self._series_group)

    def close(self) -> None:
        """End the tasks that wait for epochs."""
        if self._small_epochs is not None:
            self._small_epochs.end()

    def _warn_of_exchange(self, work: EpochWork, peers: WorkerProcesses) -> None:
        shards, partitions = work.plan.shards, work.plan.co_partitions
        meant = work.judges_inputs or self._setup.routes_rows
        if self._warned or peers.count == 1 or not partitions or peers.co_partitions or peers.reads_all or meant:
            return
        self._warned = True
        self._warn(
            f"coPartitioned: executors exchange rows all the same. {shards} shards and {partitions} partitions have "
            f"{math.gcd(shards, partitions)} as their greatest common divisor, and {peers.count} processes need one of "
            f"{peers.count} or more. Set shards to a multiple of {partitions}, if there are as many partitions as "
            "processes (docs/joins.md#co-partitioned-topics)"
        )

    def _staged_rdd(self, task: PeerTask, executors: Sequence[str]) -> tuple[RDD[Any], int]:
        """Return the last stage, and how many tasks it has."""
        count = task.peers.count
        if task.peers.co_partitions:
            shares = self._distribute_nothing(count, executors).mapPartitionsWithIndex(task.share)
            self._names.name_full_stage(collects=False)
            reports = _exchange_parcels(shares, 1, executors)
            self._names.name_collect_stage()
            return reports.mapPartitionsWithIndex(partial(task.stage, task.setup.stages)), 1
        carried: RDD[Any]
        if task.peers.reads_all:
            carried = self._distribute_nothing(count, executors).mapPartitionsWithIndex(task.read_and_step)
            self._names.name_first_stage()
        else:
            shares = deal_ranges(task.work.plan.ranges, count)
            carried = self._distribute_shares(shares, executors).mapPartitionsWithIndex(task.read)
            self._names.name_read_stage()
        for number in range(1 if task.peers.reads_all else 0, task.setup.stages):
            carried = _exchange_parcels(carried, count, executors).mapPartitionsWithIndex(partial(task.stage, number))
            self._names.name_step_stage(number)
        return carried, count

    def _collect_one_stage(self, task: PeerTask, executors: Sequence[str]) -> list[object]:
        count = task.peers.count
        self._name_one_stage(task.peers)
        if self._keeps_jobs is None:
            self._keeps_jobs = not logs_events(self._context)  # a log would have the property twice for each epoch
        text = OneStageTask.text_of(task) if self._keeps_jobs else None
        if text is None or len(text) * count > _MOST_IN_PROPERTY:
            self._names.bring_work(None)
            return collect_rdd(self._distribute_nothing(count, executors).mapPartitionsWithIndex(task.run_stage), count)
        locations = tuple(executors[n % len(executors)] if executors else "" for n in range(count))
        if self._one_stage is None or self._one_stage[0] != locations:
            tasks = self._distribute_nothing(count, executors).mapPartitionsWithIndex(OneStageTask(self._setup).run)
            self._one_stage = locations, RepeatedJob(tasks, count)
        self._names.bring_work(text)
        return self._one_stage[1].collect()

    def _name_one_stage(self, peers: WorkerProcesses) -> None:
        if peers.count == 1:
            self._names.name_full_stage()
        elif peers.co_partitions:
            self._names.name_full_stage(collects=False)
        else:
            self._names.name_first_stage()

    def _distribute_nothing(self, count: int, executors: Sequence[str]) -> RDD[Any]:
        if executors:
            return placed_empty_rdd(self._context, count, executors)
        return self._context.parallelize([None] * count, count)

    def _distribute_shares(self, shares: Sequence[object], executors: Sequence[str]) -> RDD[Any]:
        if shares and executors:
            return placed_rdd(self._context, shares, executors)
        return self._context.parallelize(shares, max(1, len(shares)))


def _exchange_parcels(sent: RDD[Any], peers: int, executors: Sequence[str]) -> RDD[Any]:
    received = exchanged_rdd(sent, peers)
    return placed_again_rdd(received, peers, executors) if executors else received


def share_out(
    work: EpochWork, cores: int, executors: int, *, routes_rows: bool = False, reads_once: bool = False
) -> WorkerProcesses:
    """One peer per executor, or per `MAX_THREADS` of its cores; never more than have something to do. `cores` are those
    of all executors. There may be no executor yet. `routes_rows` is the setup's: peers then exchange rows anyway. With
    `reads_once`, no record is read by several peers."""
    processes, threads = _processes_and_threads(cores, executors)
    peers = WorkerProcesses(min(processes, max(work.plan.shards, len(work.plan.ranges))), threads)
    # Whether an input is read wrongly (`engine.null_keys`) is judged by what all peers have read.
    exchanges = work.judges_inputs or routes_rows
    if not exchanges:
        peers = peers.without_exchange(work.plan.co_partitions, work.plan.shards)
    # A careful epoch decodes each batch in another process first.
    may_read_all = work.is_small and not work.careful and not reads_once
    return peers.each_reading_all(work.plan.shards) if may_read_all else peers


def _processes_and_threads(cores: int, executors: int) -> tuple[int, int]:
    """Return how many processes the executors have together, and how many threads each of these has."""
    executors = max(1, executors)
    executor_cores = math.ceil(cores / executors)
    processes = math.ceil(executor_cores / MAX_THREADS)
    return executors * processes, math.ceil(executor_cores / processes)


def _interrupt_before(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt after which PySpark was cleaning up when the error came: the interrupted call may have cost
    it its connection."""
    earlier: BaseException | None = error
    while earlier is not None and not isinstance(earlier, KeyboardInterrupt):
        earlier = earlier.__context__
    return earlier


def failure_cause(error: Exception) -> str:
    """Return the last line of the Python traceback inside a Spark failure, or the failure's first line."""
    if not isinstance(error, Py4JJavaError):
        return "the driver's Java process is gone"
    lines = [line.strip() for line in str(error.java_exception.getMessage()).splitlines() if line.strip()]
    errors = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and "Traceback" not in line]
    return (errors or lines or ["no message"])[-1 if errors else 0]


def _java_message(error: Exception) -> str:
    return str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else ""


_OUT_OF_MEMORY = re.compile(
    r"OutOfMemory|MemoryError|exited unexpectedly|ExecutorLostFailure|OOM|exit (code|status):? *(137|52)\b",
    re.IGNORECASE,
)


def _failure_advice(error: Exception) -> str:
    # A process that the kernel killed for its memory cannot say so, so a lost process may be one.
    message = _java_message(error)
    if not isinstance(error, Py4JJavaError) or _OUT_OF_MEMORY.search(message):
        return (
            "Nothing of it was committed. If memory ran out, lower trigger.maxBytesPerEpoch or "
            "trigger.maxRecordsPerEpoch, or give more memory (spark.executor.memory, spark.driver.memory), and start "
            "again: a plan that is over the new limits is made smaller (docs/operations.md, Memory)"
        )
    return exchange_todo(message) or "Nothing of it was committed; the next start replays it"


_VARIABLES: set[str] = set()  # environment variables that starts of a context have set in this process


@contextmanager
def restore_process() -> Iterator[None]:
    """Restore this process after a Spark that was started in the block: ends its Java process, unsets its variables."""
    try:
        with end_new_java():
            yield
    finally:
        while _VARIABLES:
            os.environ.pop(_VARIABLES.pop(), None)


_WHILE_RUNNING: WeakKeyDictionary[SparkContext, ExitStack] = WeakKeyDictionary()
"""What a context needs until it has stopped: the files of its key."""


def start_context(
    name: str,
    conf: dict[str, str],
    master: str | None,
    java: JavaStart | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> SparkContext:
    """Start a context. The job's own `spark.conf` overrides what spark-submit or `spark-defaults.conf` set, and both
    override our defaults. `java` starts the Java process if there is none. `warn` is told where encryption is slow."""
    if runs_under_spark_submit():
        start_java()  # then a SparkConf has what spark-submit set
    settings = SparkConf().setAppName(name)
    for key, value in conf.items():
        settings.set(key, value)
    if master is not None:
        settings.setMaster(master)
    from_file = {} if runs_under_spark_submit() else conf_file()
    effective_master = str(settings.get("spark.master", from_file.get("spark.master", "")))
    named = from_file | dict(settings.getAll())
    with ExitStack() as stack:
        for key, value in (
            _default_settings(effective_master, named) | tls_settings(effective_master, named, stack)
        ).items():
            # The settings of a new JVM become its arguments, which override its file.
            if key not in from_file:
                settings.setIfMissing(key, value)
        effective_master = str(settings.get("spark.master", effective_master))
        environment = {**WORKER_ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, **environment_defaults(effective_master)}
        before = set(os.environ)
        try:
            for key, value in environment.items():
                os.environ.setdefault(key, value)
            context = _create_context(settings, java or JavaStart())
        except (PySparkException, Py4JError) as error:
            raise _start_error(error, effective_master) from error
        finally:
            _VARIABLES.update(os.environ.keys() - before)
        _WHILE_RUNNING[context] = stack.pop_all()
    try:
        check_admitted(context)
    except EnvironmentProblem:
        stop_context(context)
        raise
    context.setLogLevel(_log_level(effective_master).upper())
    for warning in encryption_warnings(context):
        warn(warning)
    return context


def _create_context(settings: SparkConf, java: JavaStart) -> SparkContext:
    """Start the context. PySpark passes all settings as arguments to the JVM that it starts; settings that must not be
    arguments are set once the JVM runs."""
    arguments = SparkConf(loadDefaults=False)
    for key, value in settings.getAll():
        if not only_in_context(key):
            arguments.set(key, value)
    with java.capture_launch():
        start_java(arguments)
    try:
        context = SparkContext(conf=settings)
    except BaseException as error:
        if not isinstance(error, Exception):  # a signal
            java.give_up()
        raise
    try:
        silence_accumulator_server(context)
        keep_from_tasks(context)
        keep_environment_in_java(context)
        keep_java_names(context)
    except BaseException:
        stop_context(context)
        raise
    return context


def _default_settings(master: str, named: Mapping[str, str]) -> dict[str, str]:
    """Our defaults, for settings that nobody has set. `master` is "" if nobody named one; `named` are the settings that
    somebody has set. Raises EnvironmentProblem."""
    defaults = DEFAULT_CONF | {f"spark.executorEnv.{key}": value for key, value in WORKER_ENVIRONMENT.items()}
    archive = java_options()
    if not runs_under_spark_submit():
        if not master:
            defaults["spark.master"] = master = ALONE
        logging, jit = _log_options(_log_level(master)), _LOCAL_JIT if is_local(master) else _JIT
        defaults["spark.driver.defaultJavaOptions"] = f"{_jvm_options('driver', named, jit)} {archive} {logging}"
    in_our_image = master.startswith("k8s://") and image_archive() is not None  # executors have the driver's image
    # Of other machines nobody here knows which collector their environment names.
    knows_environment = is_on_this_machine(master) or in_our_image
    # Executors log warnings and errors, with their causes: by default Spark logs some 13 lines for each task, in every
    # epoch. An archive of the package has no file that Java could read.
    logging = f"{_log_options('warn')} -Djoinery.spark.causes=full" if _LOG.is_file() else ""
    defaults["spark.executor.defaultJavaOptions"] = (
        " ".join(filter(None, (_jvm_options("executor", named, _JIT), archive, logging))) if knows_environment else _JIT
    )
    if is_on_this_machine(master):
        defaults["spark.driver.host"] = LOOPBACK
    if master.startswith("k8s://"):
        # Else Spark ends the driver after a few pods that failed or that the API server rejects, for a quota, say. The
        # job waits for executors, and says why; an epoch fails by its tasks.
        defaults["spark.executor.maxNumFailures"] = str(2**31 - 1)
    # PySpark tells its workers of the files of `spark-submit --py-files`, but not their daemon. An executor has these
    # files in its folder.
    package = Path(__file__).parents[2]
    submitted = named.get("spark.submit.pyFiles", "").split(",")
    if package.name in {PurePosixPath(urlsplit(path).path).name for path in submitted}:
        defaults["spark.executorEnv.PYTHONPATH"] = str(package) if is_local(master) else package.name
    return defaults | page_defaults(master) | security_defaults(master, named)


_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")


def _jvm_options(process: Literal["driver", "executor"], named: Mapping[str, str], jit: str) -> str:
    """Return the options of a JVM whose environment is this process's or `spark.executorEnv`, `jit` among them."""
    settings = (f"spark.{process}.extraJavaOptions", *(f"spark.executorEnv.{name}" for name in _JAVA_VARIABLES))
    options = [*map(named.get, settings), *map(os.environ.get, _JAVA_VARIABLES)]
    chosen = any(re.search(r"-XX:\+Use\w*GC\b", text) for text in options if text)
    return jit if chosen else f"{jit} {_COLLECTOR}"


def _log_options(level: str) -> str:
    return f"-Dlog4j2.configurationFile=file:{_LOG} -Djoinery.spark.log={level}"


def _log_level(master: str) -> str:
    """Return the level of Spark's log. A terminal gets errors only. A pod's log gets warnings too: it is read when
    something is wrong, such as executors that do not come."""
    return "warn" if master.startswith("k8s://") else "error"


def stop_context(context: SparkContext) -> None:
    """Stop the context. If its Java process is gone, the context has stopped already."""
    with suppress(Py4JError, ConnectionError), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process", RuntimeWarning)
        context.stop()
    if (stack := _WHILE_RUNNING.pop(context, None)) is not None:
        stack.close()


def _start_error(error: PySparkException | Py4JError, master: str) -> EnvironmentProblem:
    try:
        java = require_java() or "its Java"
    except EnvironmentProblem as missing:
        return missing
    if says_full(_java_message(error)):
        return no_room(_SPARKS_FILES, os.environ.get("SPARK_LOCAL_DIRS") or "/tmp", failure_cause(error))
    reason = (
        failure_cause(error) if isinstance(error, Py4JJavaError) else "its Java process ended; what it said is above"
    )
    return EnvironmentProblem(
        f"Spark does not start with master {master}",
        facts=reason,
        todo=f"Check the master's URL, spark.conf in the job, and that {java} is version 17 or newer",
    )
