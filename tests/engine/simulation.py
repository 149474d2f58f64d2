"""A world in memory in which the real driver, planner, worker and store run, one call through a port at a time.

Every driver and every stray task attempt is a `Process`: a thread that stops before each call through a port (store,
sink, source, task) until the test lets it go on, with or without a `Fault`. Only one thread runs at any time, so the
same choices give the same run. A process that is left alone is a zombie that may go on at any later time.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import ClassVar

from engine.sim_host import SimHost
from engine.sim_jobs import (
    AGGREGATED,
    AS_OF,
    CHAIN,
    CO_PARTITIONED,
    FULL,
    HOPPING,
    INNER,
    PARTITIONS,
    SESSIONS,
    compiled,
    parsed,
)
from engine.sim_process import CRASHES, Crash, Fault, Process, TaskLost, call
from engine.sim_sink import NoTopic, SimSink
from engine.sim_store import SimStore
from engine.sim_topics import Inputs, PlainDecoder, Topic
from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.engine.assembly import identity, idle_clock, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, DriverParts
from joinery_runtime.engine.job_state import JobIdentity
from joinery_runtime.engine.loop import JobListener, Outage, Outages, run_until_stopped
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.errors import SinkError, StateError, Superseded, Unavailable

INJECTED = (Crash, TaskLost, Unavailable, SinkError)
TOO_MANY_STEPS = 5_000


class DriverProcess(Process):
    """One driver from its start to its end. It never starts over: that is another driver's work."""

    ends_with = INJECTED

    def __init__(self, name: str, make_driver: Callable[[], Driver]) -> None:
        self.driver = make_driver()
        self._make_driver = make_driver
        super().__init__(name, self._drive)

    def _drive(self) -> None:
        self.driver.recover()
        call("recovered", CRASHES, lambda: None)
        while True:
            plan = self.driver.plan()
            if plan is not None:
                self.driver.commit(plan, self.driver.run(plan))
            elif self.driver.sources.finished:
                return
            else:
                call("idle", CRASHES, lambda: None)


class PatientProcess(DriverProcess):
    """A driver process as `joinery run` is one: it waits for what is away, and recovers without a new process."""

    ends_with = (Crash, TaskLost)

    def _drive(self) -> None:
        stop = _Stop()
        listener = JobListener(
            started=lambda _: call("recovered", CRASHES, lambda: None),
            committed=lambda _: None,
            retrying=lambda *_: None,
            waiting=stop.expect_an_outage,
        )
        run_until_stopped(self._next_driver, stop, listener, Outages(listener, stop, lambda: 0.0))

    def _next_driver(self) -> Driver:
        self.driver = self._make_driver()
        return self.driver


class _Stop(Event):
    """Never set; a pause lasts until the test lets the process go on."""

    def __init__(self) -> None:
        super().__init__()
        self._place = "idle"

    def expect_an_outage(self, _: Outage) -> None:
        self._place = "waiting"

    def wait(self, timeout: float | None = None) -> bool:
        call_name, self._place = self._place, "idle"
        call(call_name, CRASHES, lambda: None)
        return False


class World:
    """Everything that outlives a driver, and the processes that run or ran. The class attributes are the parts that
    a test may replace by broken ones."""

    store_type: type[SimStore] = SimStore
    sink_type: type[SimSink] = SimSink
    host_type: type[SimHost] = SimHost
    driver_type: type[Driver] = Driver
    process_type: type[DriverProcess] = DriverProcess
    worker_type: type[Worker] = Worker
    job_text: str = INNER
    partitions: ClassVar[Mapping[str, int]] = PARTITIONS
    pace_ms: float = 0.5  # event time from record to record
    every_call = False  # whether each fault is tried at every call of a run, and a driver sleeps at each
    pace_of_zombies = 10  # or at one call of so many
    pace_of_faults = 1  # and of the faults of a kind of call, one of so many is tried
    killed_at = "store.commit"  # where the driver before the one that is disturbed ends
    next_max_records: int | None = None  # what the disturbed one may plan, where the job says more

    def __init__(self, cache: Path, *, from_latest: bool = False) -> None:
        self.job = parsed(self.job_text)
        self.pipeline = compiled(self.job_text)
        names = [side.name for side in self.job.inputs]
        self.topics = {n: Topic(n, [[] for _ in range(self.partitions[n])], from_latest) for n in names}
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

    def start_driver(self, shards: int, machine: int, max_records: int | None = None) -> DriverProcess:
        """A new driver; those that are alive go on as zombies. Drivers on one `machine` share a cache directory."""
        make_driver = self._drivers(shards, machine, self.identity, max_records=max_records)
        self.drivers.append(self.process_type(f"driver {len(self.drivers) + 1}", make_driver))
        return self.drivers[-1]

    def new_driver(
        self,
        shards: int = 2,
        machine: int = 0,
        *,
        who: JobIdentity | None = None,
        dead_letters: bool = True,
        max_records: int | None = None,
    ) -> Driver:
        """A driver that is not in a process of its own."""
        who = who or self.identity
        return self._drivers(shards, machine, who, dead_letters=dead_letters, max_records=max_records)()

    def _drivers(
        self,
        shards: int,
        machine: int,
        who: JobIdentity,
        *,
        dead_letters: bool = True,
        max_records: int | None = None,
    ) -> Callable[[], Driver]:
        """What makes the drivers of a process, one after the other."""
        settings = replace(plan_settings(self.job, who), shards=shards)
        if max_records is not None:
            settings = replace(settings, budget=replace(settings.budget, records=max_records))
        planner = Planner(settings, self.topics, input_clocks(self.job), idle_clock(self.job))
        dead = self.dead if dead_letters else None
        host = self.host_type(lambda: self._worker(machine, dead), self._attempts, self.spawn)
        self.hosts.append(host)
        parts = DriverParts(self.store, planner, host, self.output, dead, self.job.spec.state_store.savepoints)

        def make() -> Driver:
            return self.driver_type(who, self.pipeline, parts, now_ms=lambda: self.now_ms, wall_ms=lambda: None)

        return make

    @property
    def identity(self) -> JobIdentity:
        return identity(self.job, self.pipeline, lambda _: None)

    def _worker(self, machine: int, dead: SimSink | None) -> Worker:
        sides = self.job.inputs
        decoders = {side.name: PlainDecoder(arrow_schema(side.columns), side.table is not None) for side in sides}
        parts = WorkerParts(
            job=self.job.name,
            pipeline=self.pipeline,
            inputs=Inputs(self.topics, decoders),
            store=self.store,
            output=self.output.writer(),
            dead_letters=None if dead is None else dead.writer(),
            cache=self._cache / str(machine),
        )
        return self.worker_type(parts)

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

    def run_to(self, process: Process, call_name: str) -> None:
        """Until the process is about to make this call, has ended, or has found nothing to do."""
        if not process.done and process.at == "idle":
            self.step(process)
        for _ in range(TOO_MANY_STEPS):
            if process.done or process.at in (call_name, "idle"):
                return
            self.step(process)
        raise AssertionError(f"{process.name} does not come to {call_name}")

    def _judge(self, process: Process, error: BaseException) -> None:
        zombie = not isinstance(process, DriverProcess) or process.driver.generation != self.store.journal.generation
        if zombie and isinstance(error, StateError | Superseded):
            self.fenced[type(error).__name__] += 1
        elif not (process.injected and isinstance(error, process.ends_with)):
            raise AssertionError(f"{process.name} ended with {error!r}") from error

    def close(self) -> None:
        for process in self.processes:
            process.kill()


class ShrinkingWorld(World):
    """What one driver has planned is too much for the next one, which has seen nothing of it in the output."""

    killed_at = "store.stage"
    next_max_records = 2
    pace_of_zombies = 20
    pace_of_faults = 2


class FullWorld(World):
    """Rows are flagged, closed and padded. Where they go is tested with `World`."""

    sink_type = NoTopic
    job_text = FULL
    pace_ms = 4
    pace_of_zombies = 20
    pace_of_faults = 2


class CoPartitionedWorld(FullWorld):
    """A key's records are in the partition where the partitioner puts it."""

    job_text = CO_PARTITIONED
    partitions: ClassVar[Mapping[str, int]] = {"orders": 4, "payments": 2}

    def append(self, name: str, partition: int, key: str | None, ts: int, *, identifier: int) -> None:
        key_partition = partition if key is None else zlib.crc32(key.encode()) % self.partitions[name]
        super().append(name, key_partition, key, ts, identifier=identifier)


class ChainWorld(World):
    """What one step closes the next one keeps."""

    sink_type = NoTopic
    job_text = CHAIN
    pace_ms = 4
    pace_of_zombies = 20
    pace_of_faults = 2


class WindowWorld(FullWorld):
    """Segments hold windows that are closed and others that are not."""

    job_text = HOPPING


class SessionWorld(FullWorld):
    """Segments are gone when the tasks say so, not by their times."""

    job_text = SESSIONS


class AsOfWorld(FullWorld):
    """Rows wait, and one side is kept without end."""

    job_text = AS_OF


class AggregateWorld(FullWorld):
    """Sessions of one input grow, merge, go out again and are taken back; some reach the cap."""

    job_text = AGGREGATED
