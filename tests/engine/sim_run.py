"""Runs of the simulated world: a small one that is disturbed at a chosen call, and what every run must end with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from budget import LARGE
from engine import sim_kafka
from engine.audit import Auditor
from engine.sim_process import Fault
from engine.simulation import DriverProcess, World
from joinery_runtime.core.table import compaction

Record = tuple[str, int, str | None, int]  # input, partition, key, jitter


def small_world(patch: pytest.MonkeyPatch) -> None:
    """The Kafka sink runs on simulated topics. Short runs have few segments; they shall be merged all the same."""
    sim_kafka.install(patch)
    patch.setattr(compaction, "FAN_IN", 3)
    patch.setattr(compaction, "CHECKPOINT_FAN_IN", 2)
    patch.setattr(compaction, "EPOCH_BYTES", 0)


class Run:
    """A world with its auditor and its folder."""

    def __init__(self, world_type: type[World] = World, *, from_latest: bool = False) -> None:
        self._folder = TemporaryDirectory(prefix="joinery-model-")
        self._records = 0
        self._broken = False
        self.world = world_type(Path(self._folder.name), from_latest=from_latest)
        self.auditor = Auditor(self.world)

    @contextmanager
    def watched(self) -> Iterator[World]:
        """After a failure the run cannot be finished any more."""
        try:
            yield self.world
        except BaseException:
            self._broken = True
            raise

    def append(self, records: Sequence[Record]) -> None:
        """Event times move on with the number of records; `jitter` moves one of them, in milliseconds."""
        for name, partition, key, jitter in records:
            self._records += 1
            count = len(self.world.topics[name].partitions)
            ts = 1_000 + int(self._records * self.world.pace_ms) + jitter
            self.world.append(name, partition % count, key, ts, identifier=self._records)

    def append_known(self, records: Sequence[Record]) -> None:
        """Without those of inputs that the job does not have."""
        self.append([record for record in records if record[0] in self.world.topics])

    def take_over(self, shards: int, machine: int) -> DriverProcess:
        """A restart whose recovery nothing disturbs: it must sweep what was left behind."""
        with self.watched() as world:
            driver = world.start_driver(shards, machine)
            world.run_to(driver, "recovered")
            self.auditor.check()
            self.auditor.check_swept()
            return driver

    def finish(self) -> None:
        """The inputs end: one more driver must read them to the end, whatever the zombies do meanwhile and after."""
        if self._broken:
            return
        self.world.end_inputs()
        last = self.take_over(2, 0)
        for zombie in [process for process in self.world.alive if process is not last]:
            self.world.run_to(last, "store.commit")
            self.world.run_to(zombie, "end")
            self.auditor.check()
        self.world.run_to(last, "end")
        for zombie in self.world.alive:
            self.world.run_to(zombie, "end")
        self.auditor.check()
        self.auditor.check_complete()

    def close(self) -> None:
        self.world.close()
        self._folder.cleanup()


@contextmanager
def run(world_type: type[World] = World) -> Iterator[Run]:
    running = Run(world_type)
    try:
        yield running
        running.finish()
    finally:
        running.close()


# --- a small run that is disturbed -----------------------------------------------------------------------------------

FIRST: list[Record] = [
    ("orders", 0, "a", 0), ("payments", 0, "a", 0), ("orders", 1, "b", 0), ("orders", 0, None, 0),
    ("payments", 0, "b", 3), ("payments", 0, "a", -1), ("orders", 1, "a", 2), ("orders", 0, "b", 1),
    ("refunds", 0, "a", -10), ("refunds", 0, "c", 0),
]  # fmt: skip
LATER: list[Record] = [
    ("orders", 0, "a", 0),
    ("payments", 0, "b", -300),
    ("payments", 0, "a", 2),
    ("orders", 1, "b", 0),
    ("refunds", 0, "b", 0),
]


def crashed_epoch(running: Run) -> DriverProcess:
    """A driver on a new machine that finds a committed epoch whose files are not there yet and a pending plan of which
    some is done, with more records to come."""
    world = running.world
    running.append_known(FIRST)
    if world.sink_type.with_topic:
        world.topics["payments"].append(0, b"not JSON")
    first = world.start_driver(2, 0)
    world.run_to(first, "output.publish")
    world.step(first, Fault.CRASH_BEFORE)
    running.append_known(LATER)
    second = world.start_driver(2, 0)
    world.run_to(second, world.killed_at)
    second.kill()
    running.append_known(LATER)
    if world.sink_type.with_topic:
        world.topics["orders"].append(0, b"not JSON either")
        world.topics["orders"].append(1, None)
    world.now_ms += 70
    return world.start_driver(3, 1, world.next_max_records)


@cache
def calls_of_a_recovery(world_type: type[World] = World) -> list[tuple[str, frozenset[Fault]]]:
    """What the driver does from its start until it is idle for the second time, and what may befall each call."""
    calls: list[tuple[str, frozenset[Fault]]] = []
    with run(world_type) as running:
        driver = crashed_epoch(running)
        while [call_name for call_name, _ in calls].count("idle") < 2:
            calls.append((driver.at, driver.faults))
            step(running, driver)
    return calls


def step(running: Run, driver: DriverProcess) -> None:
    """One call; an idle driver gets records, so that its next plan is not made by a commit."""
    if driver.at == "idle":
        running.append_known(LATER)
    running.world.step(driver)


def in_order(faults: frozenset[Fault]) -> list[Fault]:
    """Crashes last: hypothesis tries the first ones more often, and the others leave more to go wrong."""
    return [fault for fault in reversed(Fault) if fault in faults]


@contextmanager
def run_to_call(number: int, what: object, world_type: type[World] = World) -> Iterator[tuple[Run, DriverProcess]]:
    try:
        with run(world_type) as running:
            driver = crashed_epoch(running)
            for _ in range(number):
                step(running, driver)
            with running.watched():
                yield running, driver
    except BaseException as error:
        error.add_note(f"at call {number} ({calls_of_a_recovery(world_type)[number][0]}): {what}")
        raise


OUTAGE = frozenset({Fault.FAIL_BEFORE, Fault.FAIL_AFTER})


def faults_to_try(world_type: type[World]) -> list[tuple[int, Fault]]:
    """Calls by number, and what befalls them. A crash after a call is the same as a crash before the next one."""
    calls = calls_of_a_recovery(world_type)
    every_call = LARGE or world_type.every_call
    pairs: dict[tuple[str, Fault], list[int]] = defaultdict(list)
    for number, (call_name, faults) in enumerate(calls):
        for fault in in_order(faults - {Fault.CRASH_AFTER}):
            pairs[call_name, fault].append(number)
    chosen = [
        (number, fault)
        for turn, ((_, fault), numbers) in enumerate(pairs.items())
        if every_call or turn % world_type.pace_of_faults == 0
        # Of the calls of a kind another one for each fault, so that together they meet as many calls as they can.
        for number in (numbers if every_call else [numbers[turn % len(numbers)]])
    ]
    return sorted(chosen, key=lambda pair: pair[0])


def single_faults(world_type: type[World], *, strays_first: bool = False) -> int:
    """How many were tried."""
    chosen = [
        (number, fault)
        for number, fault in faults_to_try(world_type)
        if not strays_first or fault in (Fault.DELAYED, Fault.DUPLICATE)
    ]
    for number, fault in chosen:
        with run_to_call(number, fault, world_type) as (running, driver):
            running.world.step(driver, fault)
            running.auditor.check()
            for stray in running.world.strays if strays_first else []:
                running.world.run_to(stray, "end")
            running.auditor.check()
            running.world.run_to(driver, "idle")
            running.auditor.check()
    return len(chosen)


OUTAGE_CALLS = 7  # failures in a row: the driver recovers several times in vain


def outages(world_type: type[World]) -> int:
    """How many were tried: one call of each kind, and of those to the brokers every call in the large budget, one of
    six in the small one. The world's drivers wait."""
    chosen = {(number, fault) for number, fault in faults_to_try(world_type) if fault in OUTAGE}
    for number, (call_name, faults) in enumerate(calls_of_a_recovery(world_type)):
        possible = [fault for fault in in_order(faults) if fault in OUTAGE]
        if possible and not call_name.startswith("store.") and (LARGE or number % 6 == 0):
            chosen |= {(number, fault) for fault in (possible if LARGE else [possible[number // 6 % len(possible)]])}
    for number, fault in sorted(chosen, key=lambda pair: (pair[0], pair[1].name)):
        with run_to_call(number, fault, world_type) as (running, driver):
            system, left = driver.at.split(".")[0], OUTAGE_CALLS if number % 2 else 0
            running.world.step(driver, fault)
            running.auditor.check()
            while left and driver.at != "idle":
                unavailable = driver.at.startswith(f"{system}.") and Fault.FAIL_BEFORE in driver.faults
                left -= unavailable
                running.world.step(driver, Fault.FAIL_BEFORE if unavailable else Fault.NONE)
                running.auditor.check()
            running.world.run_to(driver, "idle")
            assert not driver.done
            running.auditor.check()
    return len(chosen)


SUCCESSORS_AT = ("store.sweep", "store.commit", "idle")


def zombies(successor_at: str, world_type: type[World] = World, *, last_first: bool = False) -> int:
    """How many calls a driver slept at: all, or for each place of the successor others, far apart."""
    pace = 1 if LARGE or world_type.every_call else world_type.pace_of_zombies
    first = 1 + SUCCESSORS_AT.index(successor_at) * pace // len(SUCCESSORS_AT)
    numbers = range(first, len(calls_of_a_recovery(world_type)), pace)
    for number in reversed(numbers) if last_first else numbers:
        with run_to_call(number, f"wakes when its successor is at {successor_at}", world_type) as (running, zombie):
            successor = running.world.start_driver(1, 0)
            running.world.run_to(successor, successor_at)
            running.auditor.check()
            running.world.end_inputs()
            running.world.run_to(zombie, "end")
            running.auditor.check()
            running.world.run_to(successor, "end")
            running.auditor.check()
    return len(numbers)
