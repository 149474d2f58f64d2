"""Runs one job on Spark: opens store, sources and sinks, starts a Spark context, goes through the epoch loop."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from pyspark import SparkContext

from joinery_runtime.core.compile import compile_join
from joinery_runtime.engine.assembly import identity, idle_clock, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, Parts
from joinery_runtime.engine.identity import compare_with_state
from joinery_runtime.engine.loop import Listener, run_until_stopped
from joinery_runtime.engine.plan import input_states
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.protocol import Action, next_action
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.errors import JoineryError, RecordError, SinkError, SourceError
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.shared_memory import MemoryAddress
from joinery_runtime.hosts.spark import SparkHost, WorkerSetup, start_context, stop_context
from joinery_runtime.hosts.stores import OpenStore, PostgresAddress, open_store
from joinery_runtime.job import StreamJoin, under_definition
from joinery_runtime.sinks import DEAD_LETTER_SCHEMA, dead_letter_sink, sink_for
from joinery_runtime.sinks.base import Sink, SinkWriter
from joinery_runtime.sources import Decoder, decoder_for, planner_for, reader_for
from joinery_runtime.sources.base import SourceReader
from joinery_runtime.state.store import JobRecord


def run_job(
    job: StreamJoin, listener: Listener, stop: Event, *, master: str | None = None, warn: Callable[[str], None]
) -> None:
    """Returns when `stop` is set (after the running epoch) or all inputs have ended. `master` is a Spark master URL;
    None takes the job's `spark.conf`, what spark-submit set, or `local[*]`. Raises JoineryError."""
    job = with_secrets(job)
    with ExitStack() as stack:
        run = _JobRun(stack.enter_context(open_store(job, warn)), stack, master, listener, stop, warn)
        known = run.store.record(job.name)
        if known is not None:
            # Before anything of the driver that may run is touched.
            who = identity(job, compile_join(job), warn)
            compare_with_state(who, known)
            if known.definition is not None and not who.defines(known):
                run.settle(under_definition(job, known.definition), known)
        if not stop.is_set():
            run.go(job, settle=False)


class _JobRun:
    """What lasts from one definition of a job to the next: the store, and Spark once it has started."""

    def __init__(
        self,
        opened: OpenStore,
        stack: ExitStack,
        master: str | None,
        listener: Listener,
        stop: Event,
        warn: Callable[[str], None],
    ) -> None:
        self.store = opened.store
        self._address, self._stack, self._master = opened.address, stack, master
        self._listener, self._stop, self._warn = listener, stop, warn
        self._context: SparkContext | None = None

    def settle(self, earlier: StreamJoin, known: JobRecord) -> None:
        """Ends what was begun before the job was edited, as it was then: the planned epoch, and the output of the
        newest one. Raises JoineryError."""
        try:
            if next_action(known) is Action.REPLAY:
                self.go(earlier, settle=True)
            else:
                self._publish(earlier)
        except (SourceError, SinkError, RecordError) as error:
            raise JoineryError(
                f"Job {earlier.name} was edited, and what was begun before that cannot be ended",
                facts=str(error),
                todo="Mend that, or undo the edit. To give the planned epoch up, run `joinery state reset` with "
                "--drop-planned; those of its rows that are in Kafka already will repeat",
            ) from error

    def _publish(self, earlier: StreamJoin) -> None:
        newest = self.store.newest_epoch(earlier.name)
        for kind, sink in (
            ("output", sink_for(earlier, self._table_store)),
            ("dead_letters", dead_letter_sink(earlier)),
        ):
            if newest is not None and sink is not None:
                sink.publish(newest.epoch, newest.result.get(kind, []))
                sink.close()

    @property
    def _table_store(self) -> PostgresAddress | None:
        return self._address if isinstance(self._address, PostgresAddress) else None

    def go(self, job: StreamJoin, *, settle: bool) -> None:
        """Runs the job's epochs; with `settle` only those that are planned already."""
        spec = compile_join(job)
        who = identity(job, spec, self._warn)
        with ExitStack() as stack:
            sources = {side.name: planner_for(side, job.name) for side in job.spec.inputs}
            for source in sources.values():
                stack.callback(source.close)
            planner = Planner(plan_settings(job, who), sources, input_clocks(job), idle_clock(job))
            planner.look(input_states(sources, self.store.record(job.name)))
            output = _prepared(stack, sink_for(job, self._table_store), spec.output_schema())
            dead_sink = dead_letter_sink(job)
            dead = None if dead_sink is None else _prepared(stack, dead_sink, DEAD_LETTER_SCHEMA)
            build = WorkerBuilder(job, self._address, output.writer(), None if dead is None else dead.writer())
            host = SparkHost(self._spark(job), WorkerSetup(build.digest, build), job.name)
            parts = Parts(self.store, planner, host, output, dead)
            run_until_stopped(
                lambda: Driver(who, spec, parts, _running_ms), planner, self._stop, self._listener, settle=settle
            )

    def _spark(self, job: StreamJoin) -> SparkContext:
        if self._context is None:
            self._context = start_context(f"joinery {job.name}", dict(job.spec.spark.conf), self._master)
            self._stack.callback(stop_context, self._context)
        return self._context


def _prepared(stack: ExitStack, sink: Sink, schema: object) -> Sink:
    stack.callback(sink.close)
    sink.prepare(schema)
    return sink


def _running_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class WorkerBuilder:
    """Builds an executor process's worker from values that pickle."""

    job: StreamJoin
    store: PostgresAddress | MemoryAddress
    output: SinkWriter
    dead_letters: SinkWriter | None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.job.model_dump_json().encode()).hexdigest()[:12]

    def __call__(self, cache: Path) -> Worker:
        spec = compile_join(self.job)
        store = self.store.connect()
        return Worker(WorkerParts(self.job.name, spec, _Inputs(self.job), store, self.output, self.dead_letters, cache))


class _Inputs:
    """Readers and decoders of a worker, opened at first use and kept."""

    def __init__(self, job: StreamJoin) -> None:
        self._sides = {side.name: side for side in job.spec.inputs}
        self._readers: dict[str, SourceReader] = {}
        self._decoders: dict[str, Decoder] = {}

    def reader(self, name: str) -> SourceReader:
        if name not in self._readers:
            self._readers[name] = reader_for(self._sides[name])
        return self._readers[name]

    def decoder(self, name: str) -> Decoder:
        if name not in self._decoders:
            self._decoders[name] = decoder_for(self._sides[name])
        return self._decoders[name]
