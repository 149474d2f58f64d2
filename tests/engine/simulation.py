"""A world in memory in which the real driver, planner, worker and store run, one call through a port at a time.

Every driver and every stray task attempt is a `Process`: a thread that stops before each call through a port (store,
sink, source, task) until the test lets it go on, with or without a `Fault`. Only one thread runs at any time, so the
same choices give the same run. A process that is left alone is a zombie that may go on at any later time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from engine.sim_process import CRASHES, FAILURES, IN_TASK, LOSSES, Crash, Fault, Process, TaskLost, call
from engine.sim_sink import SimSink, Transaction
from joinery_runtime.core.compile import compile_join
from joinery_runtime.core.schema import arrow_schema
from joinery_runtime.core.segment import SegmentMeta
from joinery_runtime.engine.assembly import identity, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, Parts
from joinery_runtime.engine.identity import JobIdentity
from joinery_runtime.engine.idleness import IdleClock
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ShardSummary
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.protocol import choose_attempts
from joinery_runtime.engine.worker import Block, ReadReport, RowBlock, Worker, WorkerParts
from joinery_runtime.errors import SinkError, SourceError, StateError, StoreUnavailable, Superseded
from joinery_runtime.job import StreamJoin, parse_job
from joinery_runtime.sources.base import Bounds, Exclusive, Known, PartitionRef, Range, RawBatch
from joinery_runtime.sources.records import BadRecord, Decoded
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, EpochRecord, JobRecord, Json, Standing

T = TypeVar("T")

SCHEMA = "[{name: id, type: int64}, {name: k, type: string}, {name: ts, type: timestamp}]"
JOB = f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: simulated}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "nowhere:1", topic: orders}}
      format: json
      schema: {SCHEMA}
      eventTime: ts
      watermark: {{delay: 5, idleTimeout: 40}}
    - name: payments
      kafka: {{bootstrapServers: "nowhere:1", topic: payments}}
      format: json
      schema: {SCHEMA}
      eventTime: ts
      watermark: {{delay: 3, idleTimeout: 40}}
  joins:
    - right: payments
      type: inner
      keys: {{orders.k: payments.k}}
      interval: {{of: orders, lower: -40, upper: 80}}
  select: [{{column: orders.id, as: order}}, {{column: payments.id, as: payment}}]
  output: {{file: {{path: out.jsonl}}, format: json}}
  deadLetter: {{file: {{path: dead.jsonl}}}}
  stateStore: {{memory: {{}}, checkpointInterval: 60}}
  trigger: {{maxRecordsPerEpoch: 6}}
  shards: 2
"""
INPUTS = ("orders", "payments")
PARTITIONS = {"orders": 2, "payments": 1}


INJECTED = (Crash, TaskLost, StoreUnavailable, SinkError, SourceError)
TOO_MANY_STEPS = 5_000


# --- the log: inputs and partitions that only grow --------------------------------------------------------------------


@dataclass(slots=True)
class Topic(Exclusive):
    """One input: planner and reader in one. A value of None is an offset without a record (a control record)."""

    name: str
    partitions: list[list[bytes | None]]
    from_latest: bool = False
    final: bool = False

    def append(self, partition: int, value: bytes | None) -> None:
        self.partitions[partition].append(value)

    def bounds(self, known: Known) -> list[Bounds]:
        return call("source.bounds", CRASHES | {Fault.FAIL_BEFORE}, lambda: self._bounds(known.offsets), _source_error)

    def _bounds(self, positions: Mapping[PartitionRef, int]) -> list[Bounds]:
        refs = [PartitionRef(self.name, self.name, p) for p in range(len(self.partitions))]
        ends = [len(values) for values in self.partitions]
        starts = ends if self.from_latest else [0] * len(ends)
        return [Bounds(r, positions.get(r, s), e, self.final) for r, s, e in zip(refs, starts, ends, strict=True)]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def read(self, planned: Range) -> Iterator[RawBatch]:
        yield call("source.read", IN_TASK, lambda: self._read(planned), _source_error)

    def _read(self, planned: Range) -> RawBatch:
        values = self.partitions[planned.partition.partition][planned.start : planned.end_exclusive]
        offsets = [planned.start + i for i, value in enumerate(values) if value is not None]
        present = [value for value in values if value is not None]
        return RawBatch(planned.partition, np.array(offsets, dtype=np.int64), pa.array(present, pa.binary()))

    def close(self) -> None:
        """Nothing is open."""


def _source_error() -> SourceError:
    return SourceError("the simulated broker does not answer")


@dataclass(frozen=True, slots=True)
class PlainDecoder:
    schema: pa.Schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows = [_parsed(value) for value in values.to_pylist()]
        good = [i for i, row in enumerate(rows) if row is not None]
        bad = [BadRecord(i, "not JSON") for i, row in enumerate(rows) if row is None]
        table = pa.Table.from_pylist([row for row in rows if row is not None], schema=self.schema)
        return Decoded(table, np.array(good, dtype=np.int64), bad)


def _parsed(value: bytes) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = json.loads(value)
    except ValueError:
        return None
    return row


@dataclass(frozen=True, slots=True)
class Inputs:
    topics: Mapping[str, Topic]
    decoders: Mapping[str, PlainDecoder]

    def reader(self, name: str) -> Topic:
        return self.topics[name]

    def decoder(self, name: str) -> PlainDecoder:
        return self.decoders[name]


# --- the store --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that took effect, and the job's newest generation at that moment."""

    generation: int
    newest: int
    commit: EpochCommit


@dataclass(slots=True)
class Journal:
    """What really happened to the store, whatever its callers were told."""

    generation: int = 0
    commits: list[Committed] = field(default_factory=list)
    plans: dict[int, list[Json]] = field(default_factory=lambda: defaultdict(list))
    staged: set[str] = field(default_factory=set)
    swept: int = 0


class SimStore(MemoryStore):
    """The real in-memory store behind a network that fails, with a journal."""

    def __init__(self, spawn: Callable[[str, Callable[[], None]], None]) -> None:
        super().__init__(clock=lambda: 0)
        self._spawn = spawn
        self.journal = Journal()

    def acquire(self, job: str) -> JobRecord:
        return call("store.acquire", FAILURES, lambda: self.do_acquire(job))

    def do_acquire(self, job: str) -> JobRecord:
        record = super().acquire(job)
        self.journal.generation = record.generation
        return record

    def record(self, job: str) -> JobRecord | None:
        find = super().record
        return call("store.record", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def newest_epoch(self, job: str) -> EpochRecord | None:
        find = super().newest_epoch
        return call("store.newest_epoch", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def claim(self, job: str, expected: Standing, name: str, owner: str, instead_of: str | None = None) -> str | None:
        claim, holders = super().claim, []
        self._change("store.claim", IN_TASK, lambda _: holders.append(claim(job, expected, name, owner, instead_of)))
        return holders[0]

    def standing(self, job: str) -> Standing | None:
        find = super().standing
        return call("store.standing", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def claims(self, job: str) -> dict[str, str]:
        find = super().claims
        return call("store.claims", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def release_claims(self, job: str, generation: int) -> None:
        release = super().release_claims
        self._change("store.release_claims", FAILURES, lambda _: release(job, generation))

    def write_plan(self, job: str, generation: int, plan: Json, definition: Json) -> None:
        self._change("store.write_plan", FAILURES, lambda _: self.do_write_plan(job, generation, plan, definition))

    def do_write_plan(self, job: str, generation: int, plan: Json, definition: Json) -> None:
        super().write_plan(job, generation, plan, definition)
        self.journal.plans[plan["epoch"]].append(plan)

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        self._change("store.stage", IN_TASK, lambda _: self.do_stage(job, segments))

    def do_stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        super().stage(job, segments)
        self.journal.staged |= {meta.key for meta, _ in segments}

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        find = super().read_segments
        return call("store.read_segments", IN_TASK - {Fault.FAIL_AFTER}, lambda: find(job, keys))

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        self._change(
            "store.commit", FAILURES | {Fault.ABORT}, lambda abort: self.transact(job, generation, commit, abort)
        )

    def transact(self, job: str, generation: int, commit: EpochCommit, abort: bool) -> None:
        """A commit as a database does it: what the effects did is visible when all of it is, or never."""
        transaction = Transaction()
        effects = [_in(transaction, effect) for effect in commit.effects]
        self.do_commit(job, generation, replace(commit, effects=[*effects, _fail] if abort else effects))
        for action in transaction.actions:
            action()
        self.journal.commits.append(Committed(generation, self.journal.generation, commit))
        if commit.next_plan is not None:
            self.journal.plans[commit.epoch + 1].append(commit.next_plan)

    def do_commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        super().commit(job, generation, commit)

    def sweep(self, job: str, generation: int) -> int:
        self._change("store.sweep", FAILURES, lambda _: self.do_sweep(job, generation))
        return 0

    def do_sweep(self, job: str, generation: int) -> None:
        self.journal.swept += super().sweep(job, generation)

    def _change(self, at: str, faults: frozenset[Fault], change: Callable[[bool], None]) -> None:
        faulty: list[Fault] = []

        def aside(fault: Fault) -> None:
            faulty.append(fault)
            if fault is Fault.DELAYED:
                self._spawn(f"delayed {at}", lambda: change(False))

        call(at, faults | {Fault.DELAYED}, lambda: change(Fault.ABORT in faulty), aside=aside)


def _in(transaction: Transaction, effect: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda _: effect(transaction)


def _fail(_: Any) -> None:
    raise SinkError("the simulated table cannot take the rows")


# --- tasks ------------------------------------------------------------------------------------------------------------


class SimHost:
    """Runs an epoch's tasks as Spark does: a lost one again under a new attempt, some of them twice at a time."""

    def __init__(
        self,
        new_worker: Callable[[], Worker],
        attempts: Iterator[int],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._new_worker, self._attempts, self._spawn = new_worker, attempts, spawn
        self._worker = new_worker()
        self.merged = 0  # segments that shards replaced

    def run(self, work: EpochWork) -> EpochOutcome:
        rows: dict[int, list[RowBlock]] = defaultdict(list)
        reports: list[ReadReport] = []
        for planned in work.plan.ranges:
            for shard, block in self.task(partial(_read, work, planned)):
                if isinstance(block, ReadReport):
                    reports.append(block)
                else:
                    rows[shard].append(block)
        shards = range(work.plan.shards)
        joined = [(shard, self.task(partial(_join, work, shard, rows[shard]))) for shard in shards]
        read = self.task(lambda worker, attempt: worker.collect(work, reports, attempt))
        self.merged += sum(len(summary.replaced) for _, summary in joined)
        return EpochOutcome(read, choose_attempts(joined, shards))

    def task(self, body: Callable[[Worker, str], T]) -> T:
        """One task: as many attempts as it takes, of which one counts."""
        while True:
            try:
                return self._attempt(body)
            except (TaskLost, Superseded):
                continue

    def _attempt(self, body: Callable[[Worker, str], T]) -> T:
        call("task.start", IN_TASK - {Fault.FAIL_AFTER} | {Fault.DUPLICATE}, lambda: None, aside=self._duplicate(body))
        result = body(self._worker, self.name_attempt())
        call("task.result", LOSSES | CRASHES, lambda: None)
        return result

    def _duplicate(self, body: Callable[[Worker, str], object]) -> Callable[[Fault], None]:
        def stray() -> None:
            body(self._new_worker(), self.name_attempt())

        return lambda fault: self._spawn("stray attempt", stray) if fault is Fault.DUPLICATE else None

    def name_attempt(self) -> str:
        return f"a{next(self._attempts)}"


def _read(work: EpochWork, planned: Range, worker: Worker, attempt: str) -> list[tuple[int, Block]]:
    return list(worker.read(work, [planned]))


def _join(work: EpochWork, shard: int, rows: Sequence[RowBlock], worker: Worker, attempt: str) -> ShardSummary:
    return worker.join(work, shard, rows, attempt)


# --- the whole world --------------------------------------------------------------------------------------------------


class DriverProcess(Process):
    """One driver from its start to its end. It never starts over: that is another driver's work."""

    def __init__(self, name: str, driver: Driver, planner: Planner) -> None:
        self.driver, self.planner = driver, planner
        super().__init__(name, self._drive)

    def _drive(self) -> None:
        self.driver.recover()
        call("recovered", CRASHES, lambda: None)
        while True:
            plan = self.driver.plan()
            if plan is not None:
                self.driver.commit(plan, self.driver.run(plan))
            elif self.planner.finished:
                return
            else:
                call("idle", CRASHES, lambda: None)


@cache
def simulated_job() -> StreamJoin:
    return parse_job(JOB, "simulated.yaml")


class World:
    """Everything that outlives a driver, and the processes that run or ran. The class attributes are the parts that
    a test may replace by broken ones."""

    store_type: type[SimStore] = SimStore
    sink_type: type[SimSink] = SimSink
    host_type: type[SimHost] = SimHost
    driver_type: type[Driver] = Driver

    def __init__(self, cache: Path, *, from_latest: bool = False) -> None:
        self.job = simulated_job()
        self.spec = compile_join(self.job)
        self.topics = {n: Topic(n, [[] for _ in range(PARTITIONS[n])], from_latest) for n in INPUTS}
        self.store = self.store_type(self.spawn)
        self.output, self.dead = self.sink_type("output", self.spawn), self.sink_type("dead", self.spawn)
        self.drivers: list[DriverProcess] = []
        self.strays: list[Process] = []
        self.hosts: list[SimHost] = []
        self.now_ms = 0
        self.seen: Counter[tuple[str, Fault]] = Counter()
        self.fenced: Counter[str] = Counter()
        self._cache = cache
        self._attempts = iter(range(1_000_000))

    @property
    def processes(self) -> list[Process]:
        return [*self.drivers, *self.strays]

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.done]

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        self.strays.append(Process(name, body))

    def start_driver(self, shards: int, machine: int) -> DriverProcess:
        """A new driver; those that are alive go on as zombies. Drivers on one `machine` share a cache directory."""
        driver, planner = self.new_driver(shards, machine)
        self.drivers.append(DriverProcess(f"driver {len(self.drivers) + 1}", driver, planner))
        return self.drivers[-1]

    def new_driver(
        self, shards: int = 2, machine: int = 0, *, who: JobIdentity | None = None, dead_letters: bool = True
    ) -> tuple[Driver, Planner]:
        """A driver and its planner, not in a process of their own."""
        who = who or self.identity
        settings = replace(plan_settings(self.job, who), shards=shards)
        idle = IdleClock({side.name: side.watermark.idle_timeout for side in self.job.spec.inputs})
        planner = Planner(settings, self.topics, input_clocks(self.job), idle)
        dead = self.dead if dead_letters else None
        host = self.host_type(lambda: self._worker(machine, dead), self._attempts, self.spawn)
        self.hosts.append(host)
        parts = Parts(self.store, planner, host, self.output, dead)
        return self.driver_type(who, self.spec, parts, now_ms=lambda: self.now_ms), planner

    @property
    def identity(self) -> JobIdentity:
        return identity(self.job, self.spec, lambda _: None)

    def _worker(self, machine: int, dead: SimSink | None) -> Worker:
        decoders = {side.name: PlainDecoder(arrow_schema(side.columns)) for side in self.job.spec.inputs}
        parts = WorkerParts(
            job=self.job.name,
            spec=self.spec,
            inputs=Inputs(self.topics, decoders),
            store=self.store,
            output=self.output.writer(),
            dead_letters=None if dead is None else dead.writer(),
            cache=self._cache / str(machine),
        )
        return Worker(parts)

    def append(self, name: str, partition: int, key: str | None, ts: int, *, identifier: int) -> None:
        value = {"id": identifier, "k": key, "ts": ts}
        self.topics[name].append(partition, json.dumps(value).encode())

    def end_inputs(self) -> None:
        for topic in self.topics.values():
            topic.final = True

    # --- stepping -----------------------------------------------------------------------------------------------------

    def step(self, process: Process, fault: Fault = Fault.NONE) -> None:
        """One call of a process that has not ended, with this fault. Raises AssertionError for an end that is not
        explained by the faults or by being a zombie."""
        if fault is not Fault.NONE:
            self.seen[process.at, fault] += 1
        process.step(fault)
        if process.done and process.error is not None:
            self._judge(process, process.error)

    def run_to(self, process: Process, place: str) -> None:
        """Until the process is about to make this call, has ended, or has found nothing to do."""
        if not process.done and process.at == "idle":
            self.step(process)
        for _ in range(TOO_MANY_STEPS):
            if process.done or process.at in (place, "idle"):
                return
            self.step(process)
        raise AssertionError(f"{process.name} does not come to {place}")

    def _judge(self, process: Process, error: BaseException) -> None:
        zombie = not isinstance(process, DriverProcess) or process.driver.generation != self.store.journal.generation
        if zombie and isinstance(error, StateError | Superseded):
            self.fenced[type(error).__name__] += 1
        elif not (process.injected and isinstance(error, INJECTED)):
            raise AssertionError(f"{process.name} ended with {error!r}") from error

    def close(self) -> None:
        for process in self.processes:
            process.kill()
