"""Runs one job on Spark: opens store, sources and sinks, starts a Spark context, goes through the epoch loop."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from joinery_runtime.core.compile import compile_join
from joinery_runtime.engine.assembly import identity, idle_clock, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, Parts, compare_with_state
from joinery_runtime.engine.loop import Listener, run_until_stopped
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.hosts.shared_memory import MemoryAddress
from joinery_runtime.hosts.spark import SparkHost, WorkerSetup, start_context
from joinery_runtime.hosts.stores import PostgresAddress, open_store
from joinery_runtime.job import StreamJoin
from joinery_runtime.sinks import DEAD_LETTER_SCHEMA, dead_letter_sink, sink_for
from joinery_runtime.sinks.base import Sink, SinkWriter
from joinery_runtime.sources import Decoder, decoder_for, planner_for, reader_for
from joinery_runtime.sources.base import SourceReader


def run_job(
    job: StreamJoin, listener: Listener, stop: Event, *, master: str | None = None, warn: Callable[[str], None]
) -> None:
    """Returns when `stop` is set (after the running epoch) or all inputs have ended. `master` is a Spark master URL;
    None takes the job's `spark.conf`, what spark-submit set, or `local[*]`. Raises JoineryError."""
    spec = compile_join(job)
    who = identity(job, spec, warn)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(job, warn))
        known = store.store.record(job.name)
        if known is not None:
            compare_with_state(who, known)  # before anything of the driver that may run is touched
        sources = {side.name: planner_for(side) for side in job.spec.inputs}
        for source in sources.values():
            stack.callback(source.close)
        planner = Planner(plan_settings(job, who), sources, input_clocks(job), idle_clock(job))
        output = _prepared(
            stack,
            sink_for(job, store.address if isinstance(store.address, PostgresAddress) else None),
            spec.output_schema(),
        )
        dead_sink = dead_letter_sink(job)
        dead = None if dead_sink is None else _prepared(stack, dead_sink, DEAD_LETTER_SCHEMA)
        build = WorkerBuilder(job, store.address, output.writer(), None if dead is None else dead.writer())
        host = stack.enter_context(_spark(job, build, master))
        parts = Parts(store.store, planner, host, output, dead)
        run_until_stopped(lambda: Driver(who, spec, parts, _running_ms), planner, stop, listener)


def _prepared(stack: ExitStack, sink: Sink, schema: object) -> Sink:
    stack.callback(sink.close)
    sink.prepare(schema)
    return sink


@contextmanager
def _spark(job: StreamJoin, build: WorkerBuilder, master: str | None) -> Iterator[SparkHost]:
    context = start_context(f"joinery {job.name}", dict(job.spec.spark.conf), master)
    host = SparkHost(context, WorkerSetup(build.digest, build), job.name)
    try:
        yield host
    finally:
        host.close()


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
