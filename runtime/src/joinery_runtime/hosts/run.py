"""Runs one job: opens store, sources and sinks, starts a Spark context unless all epochs run here, runs the epoch loop.

PySpark is imported where Spark starts. Many jobs end before that, and each restart of a driver would wait for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa
from py4j.protocol import Py4JError

from joinery_runtime.connectors.dead_letters import DEAD_LETTER_SCHEMA
from joinery_runtime.connectors.inputs import check_registry, planner_for
from joinery_runtime.connectors.outputs import dead_letter_sink, sink_for, topic_row_limit
from joinery_runtime.connectors.sink import Sink
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.engine.assembly import identity, idle_clock, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, DriverParts, Host
from joinery_runtime.engine.idleness import IdleClock
from joinery_runtime.engine.job_state import compare_with_state
from joinery_runtime.engine.loop import JobListener, Outages, run_until_stopped
from joinery_runtime.engine.plan import input_states
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.protocol import Action, next_action
from joinery_runtime.engine.tasks import MAX_THREADS
from joinery_runtime.errors import (
    EnvironmentProblem,
    IncompatibleState,
    JoineryError,
    Unavailable,
)
from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.driver_epochs import (
    DriverEpochs,
    cores_of,
    local_host,
    may_run_in_driver,
)
from joinery_runtime.hosts.edits import EarlierDefinition, attribute_errors_to_edit, input_change_warnings
from joinery_runtime.hosts.java_process import JavaStart
from joinery_runtime.hosts.own_secrets import IN_A_POD, lacks_secrets, private_copy, without_secrets
from joinery_runtime.hosts.scale import Rescaler
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.shared_memory import MemoryStoreAddress, check_memory_store, serve
from joinery_runtime.hosts.spark_master import ALONE, master_of, require_java
from joinery_runtime.hosts.spark_progress import spark_listener
from joinery_runtime.hosts.status import Board
from joinery_runtime.hosts.status.history import JobDescription
from joinery_runtime.hosts.stores import OpenStore, PostgresStoreAddress, candidate_of, open_store
from joinery_runtime.hosts.worker_builder import WorkerBuilder, load_kernels
from joinery_runtime.job import Job, PostgresStoreSpec, under_definition, with_stored_names
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.owner import OwnerCandidate, check_candidate
from joinery_runtime.state.decisions import is_new
from joinery_runtime.state.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from joinery_runtime.hosts.spark import SparkHost
    from joinery_runtime.hosts.status.executors import SparkWatch


@dataclass(frozen=True, slots=True)
class _Caller:
    """What the code that runs the job passed in."""

    listener: JobListener
    stop: Event
    outages: Outages
    warn: Callable[[str], None]
    board: Board | None
    once: bool = False
    local: bool = False
    candidate: OwnerCandidate | None = None


def run_job(
    job: Job,
    listener: JobListener,
    stop: Event,
    *,
    master: str | None = None,
    warn: Callable[[str], None],
    board: Board | None = None,
    patient: bool = False,
    once: bool = False,
    session: SparkSession | SparkContext | None = None,
    local: bool = False,
) -> Job:
    """Runs the job until `stop` is set (after the running epoch) or all inputs have ended; with `once`, until
    everything that is there at the start has been read, which does not end an input.

    `master` is a Spark master URL; None takes the job's `spark.conf`, what spark-submit set, or `local[*]`. With a
    `session`, every epoch runs on that session, which the job does not stop. With `local`, every epoch runs in this
    process, and there is no Spark. The job waits for an outside system that stops answering. It waits for one that does
    not answer at the start only if it is `patient`: interactive use fails fast, because a wrong address is the
    likeliest cause. Returns the job with the names that its columns have. Raises JoineryError.
    """
    filled = with_secrets(job)
    if board is not None:
        listener = board.outage_listener(listener)
    caller = _Caller(listener, stop, Outages(listener, stop), warn, board, once, local, candidate_of(job))
    with ExitStack() as stack:
        context = None
        if session is not None:
            from joinery_runtime.hosts.given_spark import session_context  # noqa: PLC0415

            context = stack.enter_context(session_context(session, filled.spec.spark.conf))
        elif not local and _another_context_runs():
            raise EnvironmentProblem(
                "A Spark context runs in this process already",
                facts="there can be one",
                todo="Have the job run on it, with run(job, spark=session), or stop it",
            )
        spark_master = master_of(filled.spec.spark.conf, master)
        if not local:
            check_memory_store(filled, spark_master if context is None else context.master)
        if local or (context is None and may_run_in_driver(spark_master)):
            # Loads the kernels while a Postgres starts, rather than in the first epoch.
            stack.callback(BackgroundCall(lambda: load_kernels(filled), "joinery-kernels").join)
        if not patient:
            return _JobRun(stack.enter_context(open_store(filled, warn)), stack, master, caller, context).start(job)
        opened = caller.outages.retry_until_available(lambda: stack.enter_context(open_store(filled, warn)))
        if opened is not None:
            run = _JobRun(opened, stack, master, caller, context)
            return caller.outages.retry_until_available(lambda: run.start(job)) or job
        return job


class _JobRun:
    """Runs a job and keeps what outlasts an edit of it: the store, and Spark once it has started."""

    def __init__(
        self,
        opened: OpenStore,
        stack: ExitStack,
        master: str | None,
        caller: _Caller,
        context: SparkContext | None = None,
    ) -> None:
        """`context` belongs to the caller, who stops it."""
        self.store = opened.store
        self._address, self._stack, self._master, self._caller = opened.address, stack, master, caller
        self._context = context
        self._memory: MemoryStoreAddress | None = None
        self._watch: SparkWatch | None = None

    def start(self, job: Job) -> Job:
        """Finishes what an earlier definition of the job began, then runs the job, and returns it with the names that
        its columns have. May be called again."""
        record = self.store.record(job.name)
        if record is not None and self._caller.candidate is not None:
            check_candidate(job.name, record.owner, self._caller.candidate)
        begin = job.spec.state_store.start_from
        begins = begin is not None and (record is None or is_new(record))
        if begin is not None and begins:
            record = self.store.start_from(job.name, job.name_beside(begin.job), begin.savepoint)
        if record is not None:
            # Compares before touching anything of a driver that may be running.
            try:
                job = with_stored_names(job, record.definition)
                job_identity = identity(job, compile_job(job), self._caller.warn)
                compare_with_state(job_identity, record)
            except IncompatibleState:
                if begins:
                    self.store.delete_job(job.name)
                raise
            if record.definition is not None and not job_identity.defines(record):
                before = under_definition(job, record.definition)
                earlier = EarlierDefinition(before, record, self.store, self._address, self._caller.warn)
                if not earlier.drop_first_plan():
                    for words in input_change_warnings(before, job):
                        self._caller.warn(words)
                    self.settle(earlier)
        if self._caller.board is not None:
            self._caller.board.description = JobDescription.of(job)
        if not self._caller.stop.is_set():
            self.run_epochs(job, settle=False)
        return job

    def settle(self, earlier: EarlierDefinition) -> None:
        """Finishes what was begun before the job was edited, under the definition of that time: the planned epoch, and
        the output of the newest one. Raises JoineryError."""
        with attribute_errors_to_edit(earlier.job):
            if next_action(earlier.record) is Action.REPLAY or earlier.publish_newest():
                self.run_epochs(earlier.job, settle=True)

    def run_epochs(self, referring: Job, *, settle: bool) -> None:
        """Runs the epochs of a job that refers to its secrets; with `settle` only those that are already planned. After
        a stop, begins nothing."""
        job, stop = with_secrets(referring), self._caller.stop
        pipeline = compile_job(job)
        job_identity = identity(job, pipeline, self._caller.warn, self._caller.candidate)
        for side in job.inputs:
            check_registry(side)
        with ExitStack() as stack:
            once = self._caller.once and not settle
            inputs = [_without_latest_stop(side) for side in job.inputs] if once else job.inputs
            store = self.store.identity()
            sources = {side.name: planner_for(side, job.name, store, once=once) for side in inputs}
            for source in sources.values():
                stack.callback(source.close)
            idle = idle_clock(job)
            planner = Planner(plan_settings(job, job_identity), sources, input_clocks(job), idle, once=once)
            planner.check_sources(input_states(sources, self.store.record(job.name)))
            output = self._prepare_sink(
                stack, referring, "output", sink_for(job, self._address), pipeline.output_schema()
            )
            dead_sink = dead_letter_sink(job)
            dead = (
                None
                if dead_sink is None
                else self._prepare_sink(stack, referring, "deadLetter", dead_sink, DEAD_LETTER_SCHEMA)
            )
            host = self._host(referring, job, pipeline, stack, settle=settle)
            savepoints = job.spec.state_store.savepoints
            parts = DriverParts(self.store, planner, host, output, dead, savepoints, topic_row_limit(job))
            if stop.is_set():
                return
            listener = self._recording_listener(job.name, idle, settle=settle)
            if not settle:
                listener = Rescaler(job.spec, planner, lambda: self._context, listener).as_listener()
            posting = spark_listener(job, store.id, lambda: self._context, listener, self._caller.warn)
            with self._ignore_cancelled_epoch(), posting as listener:
                run_until_stopped(
                    lambda: Driver(
                        job_identity,
                        pipeline,
                        parts,
                        now_ms=lambda: time.monotonic_ns() // 1_000_000,
                        wall_ms=lambda: time.time_ns() // 1_000_000,
                    ),
                    stop,
                    listener,
                    self._caller.outages,
                    settle=settle,
                )

    def _prepare_sink(
        self, stack: ExitStack, job: Job, part: Literal["output", "deadLetter"], sink: Sink, schema: pa.Schema
    ) -> Sink:
        stack.callback(sink.close)
        recreated, record = sink.prepare(schema), self.store.record(job.name)
        if recreated is not None and record is not None and record.committed and part in (record.definition or {}):
            assert record.definition is not None, "it has the part"
            before = under_definition(job, record.definition).spec
            earlier, now = (spec.output if part == "output" else spec.dead_letter for spec in (before, job.spec))
            if earlier == now:  # otherwise the edit names another place, where nothing has been yet
                self._caller.warn(
                    f"An output was missing and has been recreated: {recreated}. Rows of epochs up to "
                    f"{record.committed} are not written again. To write all rows again, stop the job and start it "
                    "with new state: joinery state delete JOB.yaml --yes"
                )
        return sink

    def _host(self, referring: Job, job: Job, pipeline: Pipeline, stack: ExitStack, *, settle: bool) -> Host:
        master = ALONE if self._caller.local else master_of(job.spec.spark.conf, self._master)
        threads = min(cores_of(master), MAX_THREADS)

        def open_local_host() -> AbstractContextManager[Host]:
            return local_host(_with_store(job, self._address), self.store, self._address, threads)

        if self._caller.local:
            epochs = DriverEpochs(open_local_host, None, cores_of(master))
            stack.callback(epochs.close)
            return epochs
        java = JavaStart()

        def open_spark_host() -> SparkHost:
            from joinery_runtime.hosts.spark import SparkHost  # noqa: PLC0415
            from joinery_runtime.hosts.spark_jobs import step_names  # noqa: PLC0415
            from joinery_runtime.hosts.spark_tasks import WorkerSetup  # noqa: PLC0415

            context = self._spark(job, java)
            build = self._builder(referring, context, stack)
            setup = WorkerSetup(build.digest, build, len(pipeline.steps), pipeline.finds_late_records)
            host = SparkHost(context, setup, job.name, self._caller.warn, step_names(job))
            if self._watch is not None:
                self._watch.begin_trial(None if settle else host.try_task)
            return host

        def open_warm_spark_host() -> Host:
            host = open_spark_host()
            if not start_is_over.is_set():
                host.warm()
            return host

        def end_start(kind: type[BaseException] | None, *_: object) -> None:
            start_is_over.set()
            # After both, the job continues on this Spark.
            continues = settle or (kind is not None and issubclass(kind, Unavailable))
            if not spark.done and not continues:
                java.give_up()
                spark.join()
                java.forget()
                return
            if self._context is not None:
                with suppress(Py4JError, ConnectionError):
                    self._context.cancelAllJobs()
            spark.join()

        if self._context is not None or not may_run_in_driver(master):
            return open_spark_host()
        require_java()  # before the first epoch, so that nothing is committed without it
        start_is_over = Event()
        # The start runs in another thread. What is open here has to stay open until that thread has ended.
        spark = BackgroundCall(open_warm_spark_host, "joinery-spark-start")
        stack.push(end_start)
        epochs = DriverEpochs(open_local_host, spark, cores_of(master))
        stack.callback(epochs.close)
        return epochs

    def _builder(self, job: Job, context: SparkContext, stack: ExitStack) -> WorkerBuilder:
        """The worker builder that is sent to workers. It has no secrets, only the places where they are."""
        if self._address is None and self._memory is None:
            check_memory_store(job, context.master)  # of spark-submit, which is known from here on
            serving = serve(cast(MemoryStore, self.store))
            self._memory = self._stack.enter_context(serving)
        job = _with_store(job, self._address)
        sent = without_secrets(job)
        if not lacks_secrets(sent):
            return WorkerBuilder(sent, None, self._memory)
        in_pods = context.master.startswith("k8s://")
        return WorkerBuilder(sent, IN_A_POD if in_pods else stack.enter_context(private_copy(job)), self._memory)

    def _recording_listener(self, name: str, idle: IdleClock, *, settle: bool) -> JobListener:
        board, listener = self._caller.board, self._caller.listener
        if board is None:
            return listener
        return board.recording_listener(
            listener, idle=idle.idle, savepoints=lambda: self.store.savepoints(name), settle=settle
        )

    @contextmanager
    def _ignore_cancelled_epoch(self) -> Iterator[None]:
        """Suppresses the error of an epoch that was cancelled because the job had no executors when it was stopped. The
        next start replays that epoch."""
        try:
            yield
        except JoineryError:
            if self._watch is None or not self._watch.gave_up:
                raise

    def _spark(self, job: Job, java: JavaStart) -> SparkContext:
        if self._context is None:
            from joinery_runtime.hosts.spark import start_context, stop_context  # noqa: PLC0415
            from joinery_runtime.hosts.status.executors import SparkWatch, run_watch  # noqa: PLC0415

            conf, warn = dict(job.spec.spark.conf), self._caller.warn
            self._context = start_context(f"joinery {job.name}", conf, self._master, java, warn)
            self._stack.callback(stop_context, self._context)
            if self._caller.board is not None:
                self._watch = SparkWatch(self._context, self._caller.board, self._caller.stop, self._caller.warn)
                self._stack.enter_context(run_watch(self._watch))
        return self._context


def _another_context_runs() -> bool:
    if "pyspark" not in sys.modules:
        return False  # and PySpark stays out of a process that may need no Spark
    from joinery_runtime.hosts.spark_internals import context_is_active  # noqa: PLC0415

    return context_is_active()


def _without_latest_stop(side: Input) -> Input:
    """The input without `stopAt: latest`: the first run that sees such a stop stores its offsets, and all later runs
    would end there."""
    if side.kafka is None or side.kafka.stop_at != "latest":
        return side
    return side.model_copy(update={"kafka": side.kafka.model_copy(update={"stop_at": None})})


def _with_store(job: Job, address: PostgresStoreAddress | None) -> Job:
    """The job with the address of its store, even if that is the embedded one."""
    store = job.spec.state_store
    if address is None or store.postgres is not None:
        return job
    named = store.model_copy(update={"postgres": PostgresStoreSpec(dsn=address.dsn, schema_name=address.schema)})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"state_store": named})})
