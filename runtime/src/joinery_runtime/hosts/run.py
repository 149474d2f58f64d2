"""Runs one job: opens its store, sources, sinks and host, finishes what an earlier definition began, runs epochs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from joinery_runtime.connectors.sink import DEAD_LETTER_SCHEMA, Sink
from joinery_runtime.engine.driver import DriverParts
from joinery_runtime.engine.job_state import compare_with_state
from joinery_runtime.engine.loop import JobListener, Outages, run_until_stopped
from joinery_runtime.engine.plan import input_states
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.protocol import Action, next_action
from joinery_runtime.engine.source_snapshot import IdleClock
from joinery_runtime.errors import EnvironmentProblem, IncompatibleState, JoineryError
from joinery_runtime.hosts.background_call import BackgroundCall, run_at_once
from joinery_runtime.hosts.edits import EarlierDefinition, attribute_errors_to_edit, input_change_warnings
from joinery_runtime.hosts.placement import EpochPlacement
from joinery_runtime.hosts.python_functions import source_change_warnings, with_functions
from joinery_runtime.hosts.run_spark import RunSpark
from joinery_runtime.hosts.scale import Rescaler
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.shared_memory import check_memory_store
from joinery_runtime.hosts.spark_progress import spark_listener
from joinery_runtime.hosts.status.board import Board
from joinery_runtime.hosts.status.snapshot import JobDescription
from joinery_runtime.hosts.stores import OpenStore, candidate_of, open_store
from joinery_runtime.hosts.wiring import Wiring
from joinery_runtime.hosts.worker_builder import load_kernels
from joinery_runtime.job import Job, under_definition, with_stored_names
from joinery_runtime.job.model.owner import OwnerCandidate, check_candidate
from joinery_runtime.state.decisions import is_new

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


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
    py_files: Sequence[Path] = (),
) -> Job:
    """Run the job until `stop` is set (after the running epoch) or all inputs have ended; with `once`, until
    everything that is there at the start has been read, which does not end an input.

    `master` is a Spark master URL; None takes the job's `spark.conf`, what spark-submit set, or `local[*]`. With a
    `session`, every epoch runs on that session, which the job does not stop. With `local`, every epoch runs in this
    process, and there is no Spark. `py_files` bring modules to Spark's workers; this process can import them already.
    The job waits for an outside system that stops answering. It waits for one that does not answer at the start only
    if it is `patient`: interactive use fails fast, because a wrong address is the likeliest cause. Returns the job with
    the names that its columns have. Raises JoineryError.
    """
    job = with_functions(job)
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
        started_on = None if context is None else context.master
        placement = EpochPlacement.of(filled.spec.spark.conf, master, local=local, started_on=started_on)
        if placement.uses_spark:
            check_memory_store(filled, placement.master)
        if placement.begins_in_driver:
            # Loads the kernels while a Postgres starts, rather than in the first epoch.
            stack.callback(BackgroundCall(lambda: load_kernels(filled.inputs), "joinery-kernels").join)
        if not patient:
            opened = stack.enter_context(open_store(filled, warn))
            return _JobRun(opened, stack, master, caller, context, py_files).start(job)
        opened_later = caller.outages.retry_until_available(lambda: stack.enter_context(open_store(filled, warn)))
        if opened_later is not None:
            run = _JobRun(opened_later, stack, master, caller, context, py_files)
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
        py_files: Sequence[Path] = (),
    ) -> None:
        """`context` belongs to the caller, who stops it."""
        self.store = opened.store
        self._address, self._master, self._caller = opened.address, master, caller
        self._spark = RunSpark(opened, stack, master, caller.stop, caller.warn, caller.board, context, py_files)

    def start(self, job: Job) -> Job:
        """Finish what an earlier definition of the job began, then run the job, and return it with the names that its
        columns have. May be called again."""
        record = self.store.record(job.name)
        if record is not None and self._caller.candidate is not None:
            check_candidate(job.name, record.owner, self._caller.candidate)
        begin = job.spec.state_store.start_from
        begins = begin is not None and (record is None or is_new(record))
        if begin is not None and begins:
            record = self.store.start_from(job.name, job.name_beside(begin.job), begin.savepoint)
        # Compares before touching anything of a driver that may be running.
        try:
            job = job if record is None else with_stored_names(job, record.definition)
            wiring = Wiring.of(job, self._caller.warn, self._caller.candidate)
            if record is not None:
                compare_with_state(wiring.identity, record)
        except IncompatibleState:
            if begins:
                self.store.delete_job(job.name)
            raise
        if record is not None and record.definition is not None and not wiring.identity.defines(record):
            before = under_definition(job, record.definition)
            earlier = EarlierDefinition(before, record, self.store, self._address, self._caller.warn)
            if not earlier.drop_first_plan():
                for words in (*input_change_warnings(before, job), *source_change_warnings(before, job)):
                    self._caller.warn(words)
                self.settle(earlier)
        if self._caller.board is not None:
            self._caller.board.description = JobDescription.of(job)
        if not self._caller.stop.is_set():
            self.run_epochs(wiring, settle=False)
        return job

    def settle(self, earlier: EarlierDefinition) -> None:
        """Finish what was begun before the job was edited, under the definition of that time: the planned epoch, and
        the output of the newest one. Raises JoineryError."""
        with attribute_errors_to_edit(earlier.job):
            if next_action(earlier.record) is Action.REPLAY or earlier.publish_newest():
                wiring = Wiring.of(earlier.job, self._caller.warn, self._caller.candidate)
                self.run_epochs(wiring, settle=True)

    def run_epochs(self, wiring: Wiring, *, settle: bool) -> None:
        """Run the epochs of one definition of the job; with `settle` only those that are already planned. After a
        stop, begins nothing."""
        caller, spark = self._caller, self._spark
        wiring.check_registries()
        with ExitStack() as stack:
            once = caller.once and not settle
            store = self.store.identity()
            sources = wiring.sources(store, once=once)
            for source in sources.values():
                stack.callback(source.close)
            idle = IdleClock(wiring.idle_timeouts)
            # A plan waits for answers of brokers, so the inputs are asked at once.
            threads = stack.enter_context(ThreadPoolExecutor(max(1, len(sources) - 1), "joinery-planner"))
            run_calls = partial(run_at_once, threads)
            planner = Planner(wiring.plan_settings, sources, wiring.clocks, idle, once=once, run_calls=run_calls)
            planner.check_sources(input_states(sources, self.store.record(wiring.name)))
            outputs, job = wiring.tasks.outputs, wiring.referring
            output = self._prepare_sink(stack, job, "output", outputs.sink(self._address), outputs.schema)
            dead = outputs.dead_letter_sink()
            if dead is not None:
                self._prepare_sink(stack, job, "deadLetter", dead, DEAD_LETTER_SCHEMA)
            started_on = None if spark.context is None else spark.context.master
            placement = EpochPlacement.of(
                wiring.spec.spark.conf, self._master, local=caller.local, started_on=started_on
            )
            host = spark.open_host(wiring, placement, stack, settle=settle)
            savepoints = wiring.spec.state_store.savepoints
            parts = DriverParts(self.store, planner, host, output, dead, savepoints, outputs.topic_row_limits())
            if caller.stop.is_set():
                return
            listener = self._recording_listener(wiring.name, idle, settle=settle)
            if not settle:
                rescaler = Rescaler(wiring.spec, planner, lambda: spark.context, listener, spark.end_waiting_tasks)
                listener = rescaler.as_listener()
            posting = spark_listener(wiring.query, store.id, lambda: spark.context, listener, caller.warn)
            with self._ignore_cancelled_epoch(), posting as listener:
                run_until_stopped(lambda: wiring.driver(parts), caller.stop, listener, caller.outages, settle=settle)

    def _prepare_sink(
        self, stack: ExitStack, job: Job, part: Literal["output", "deadLetter"], sink: Sink, schema: pa.Schema
    ) -> Sink:
        stack.callback(sink.close)
        recreated, record = sink.prepare(schema), self.store.record(job.name)
        defined = None if record is None or not record.committed else record.definition
        is_named = defined is not None and (part == "output" or part in defined)
        if recreated is not None and record is not None and defined is not None and is_named:
            before = under_definition(job, defined)
            earlier, now = (
                version.outputs if part == "output" else version.spec.dead_letter for version in (before, job)
            )
            if earlier == now:  # otherwise the edit names another place, where nothing has been yet
                self._caller.warn(
                    f"An output was not there and has been created: {recreated}. Rows of epochs up to "
                    f"{record.committed} are not written again. To write all rows again, stop the job and start it "
                    "with new state: joinery state delete JOB.yaml --yes"
                )
        return sink

    def _recording_listener(self, name: str, idle: IdleClock, *, settle: bool) -> JobListener:
        board, listener = self._caller.board, self._caller.listener
        if board is None:
            return listener
        return board.recording_listener(
            listener, idle=idle.idle, savepoints=lambda: self.store.savepoints(name), settle=settle
        )

    @contextmanager
    def _ignore_cancelled_epoch(self) -> Iterator[None]:
        """Suppress the error of an epoch that was cancelled because the job had no executors when it was stopped. The
        next start replays that epoch."""
        try:
            yield
        except JoineryError:
            if not self._spark.gave_up:
                raise


def _another_context_runs() -> bool:
    if "pyspark" not in sys.modules:
        return False  # and PySpark stays out of a process that may need no Spark
    from joinery_runtime.hosts.spark_internals import context_is_active  # noqa: PLC0415

    return context_is_active()
