"""The commit protocol, checked: any interleaving of drivers, zombies, crashes, retries and lost answers.

`engine.simulation` is a world in which the real driver, planner, worker and memory store run one call at a time,
`engine.audit` says what must hold after every step. First every single fault and every single zombie is tried at every
single call; then a hypothesis state machine mixes them. The mutants at the end prove that a broken protocol is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import sim_kafka
from engine.audit import Auditor
from engine.sim_kafka import GroupMark, Row, SimTopic
from engine.sim_process import Fault, Process
from engine.sim_sink import SimSink
from engine.simulation import INPUTS, DriverProcess, SimHost, SimStore, World
from joinery_runtime.core import compaction
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import StoreUnavailable
from joinery_runtime.sinks.base import AttemptId, Receipt, Takeover
from joinery_runtime.sinks.kafka_marks import Mark
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, JobRecord

Record = tuple[str, int, str | None, int]

ALIVE_AT_MOST = 4

# Calls of a driver and its tasks, in the order in which they come.
PLACES = (
    "start", "store.acquire", "store.sweep", "store.newest_epoch", "store.claims", "output.recover", "dead.recover",
    "store.release_claims", "recovered", "source.bounds", "store.write_plan", "task.start", "source.read",
    "task.result", "store.stage", "output.write", "output.own", "store.claim", "output.mark", "output.send",
    "output.commit", "dead.write", "dead.own", "dead.mark", "dead.send", "dead.commit", "store.commit", "store.record",
    "output.publish", "dead.publish", "idle",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Kafka sink runs on simulated topics. Short runs have few segments; they shall be merged all the same."""
    sim_kafka.install(monkeypatch)
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    monkeypatch.setattr(compaction, "CHECKPOINT_FAN_IN", 2)


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
            ts = 1_000 + self._records // 2 + jitter
            self.world.append(name, partition % count, key, ts, identifier=self._records)

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


# --- every fault at every call ----------------------------------------------------------------------------------------

FIRST: list[Record] = [
    ("orders", 0, "a", 0), ("payments", 0, "a", 0), ("orders", 1, "b", 0), ("orders", 0, None, 0),
    ("payments", 0, "b", 3), ("payments", 0, "a", -1), ("orders", 1, "a", 2), ("orders", 0, "b", 1),
]  # fmt: skip
LATER: list[Record] = [
    ("orders", 0, "a", 0),
    ("payments", 0, "b", -300),
    ("payments", 0, "a", 2),
    ("orders", 1, "b", 0),
]


def crashed_epoch(running: Run, *, from_latest: bool = False) -> DriverProcess:
    """A driver on a new machine that finds a committed epoch whose files are not there yet and a pending plan of which
    some is done, with more records to come."""
    world = running.world
    running.append(FIRST)
    world.topics["payments"].append(0, b"not JSON")
    first = world.start_driver(2, 0)
    world.run_to(first, "output.publish")
    world.step(first, Fault.CRASH_BEFORE)
    running.append(LATER)
    second = world.start_driver(2, 0)
    world.run_to(second, "store.commit")
    second.kill()
    running.append(LATER)
    world.topics["orders"].append(0, b"not JSON either")
    world.topics["orders"].append(1, None)
    world.now_ms += 70
    return world.start_driver(3, 1)


@cache
def calls_of_a_recovery() -> list[tuple[str, frozenset[Fault]]]:
    """What the driver does from its start until it is idle for the second time, and what may befall each call."""
    calls: list[tuple[str, frozenset[Fault]]] = []
    with run() as running:
        driver = crashed_epoch(running)
        while [place for place, _ in calls].count("idle") < 2:
            calls.append((driver.at, driver.faults))
            step(running, driver)
    return calls


def step(running: Run, driver: DriverProcess) -> None:
    """One call; an idle driver gets records, so that its next plan is not made by a commit."""
    if driver.at == "idle":
        running.append(LATER)
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
        error.add_note(f"at call {number} ({calls_of_a_recovery()[number][0]}): {what}")
        raise


def test_the_small_run_makes_every_call() -> None:
    assert {place for place, _ in calls_of_a_recovery()} >= set(PLACES) - {"store.record"}
    assert set().union(*(faults for _, faults in calls_of_a_recovery())) == set(Fault) - {Fault.NONE}


@pytest.mark.parametrize("strays_first", [False, True], ids=["strays-late", "strays-early"])
def test_any_single_fault_at_any_call(strays_first: bool) -> None:
    """`strays_first`: what was delayed or runs twice comes through before the next driver starts, or after."""
    tried = 0
    for number, (_, faults) in enumerate(calls_of_a_recovery()):
        # A crash after a call is the same as a crash before the next one.
        for fault in in_order(faults - {Fault.CRASH_AFTER}):
            if strays_first and fault not in (Fault.DELAYED, Fault.DUPLICATE):
                continue
            with run_to_call(number, fault) as (running, driver):
                running.world.step(driver, fault)
                running.auditor.check()
                for stray in running.world.strays if strays_first else []:
                    running.world.run_to(stray, "end")
                running.auditor.check()
                running.world.run_to(driver, "idle")
                running.auditor.check()
            tried += 1
    assert tried > (25 if strays_first else 350)


@pytest.mark.parametrize("successor_at", ["store.sweep", "store.commit", "idle"])
def test_a_driver_that_sleeps_at_any_call_and_wakes_as_a_zombie(successor_at: str) -> None:
    zombies(successor_at)


def zombies(successor_at: str, world_type: type[World] = World) -> None:
    for number in range(1, len(calls_of_a_recovery())):
        with run_to_call(number, f"wakes when its successor is at {successor_at}", world_type) as (running, zombie):
            successor = running.world.start_driver(1, 0)
            running.world.run_to(successor, successor_at)
            running.auditor.check()
            running.world.end_inputs()
            running.world.run_to(zombie, "end")
            running.auditor.check()
            running.world.run_to(successor, "end")
            running.auditor.check()


# --- any mixture ------------------------------------------------------------------------------------------------------

JITTER = st.sampled_from([*range(-6, 7), -300, -90, 60, 200])
KEYS = st.sampled_from(["a", "a", "a", "b", "b", "c", None])
RECORDS = st.lists(st.tuples(st.sampled_from(INPUTS), st.integers(0, 9), KEYS, JITTER), min_size=1, max_size=8)
WHO = st.integers(0, 5)  # 0 is the newest driver
COMMIT_FAULTS = frozenset({Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.DELAYED, Fault.ABORT, Fault.CRASH_AFTER})
TASK_FAULTS = (
    ("task.start", Fault.DUPLICATE),
    ("store.stage", Fault.LOST_AFTER),
    ("output.write", Fault.LOST_AFTER),
    ("task.result", Fault.LOST_AFTER),
    ("dead.write", Fault.LOST_AFTER),
    ("source.read", Fault.LOST_BEFORE),
    ("store.stage", Fault.DELAYED),
    ("output.write", Fault.FAIL_AFTER),
    ("output.send", Fault.LOST_AFTER),
    ("output.commit", Fault.LOST_AFTER),
    ("output.commit", Fault.FAIL_AFTER),
    ("output.commit", Fault.DELAYED),
    ("dead.commit", Fault.LOST_AFTER),
)


class CommitProtocol(RuleBasedStateMachine):
    """Rules are what the world may do; each leaves every process stopped before its next call."""

    world_type: ClassVar[type[World]] = World
    seen: ClassVar[Counter[str]] = Counter()
    fenced: ClassVar[Counter[str]] = Counter()

    running: Run | None = None

    @property
    def world(self) -> World:
        assert self.running is not None, "begin comes first"
        return self.running.world

    @initialize(from_latest=st.booleans(), records=RECORDS, shards=st.integers(1, 3))
    def begin(self, from_latest: bool, records: Sequence[Record], shards: int) -> None:
        self.running = Run(self.world_type, from_latest=from_latest)
        self.running.append(records)
        self.world.start_driver(shards, 0)

    # --- the world ----------------------------------------------------------------------------------------------------

    @rule(records=RECORDS)
    def append(self, records: Sequence[Record]) -> None:
        assert self.running is not None
        self.running.append(records)

    @rule(name=st.sampled_from(INPUTS), value=st.sampled_from([b"not JSON", None]))
    def append_oddity(self, name: str, value: bytes | None) -> None:
        """A record that cannot be used, or an offset without a record."""
        self.world.topics[name].append(0, value)

    @precondition(lambda self: sum(len(topic.partitions) for topic in self.world.topics.values()) < 5)
    @rule(name=st.sampled_from(INPUTS))
    def add_partition(self, name: str) -> None:
        self.world.topics[name].partitions.append([])

    @rule(ms=st.sampled_from([10, 45, 70]))
    def pass_time(self, ms: int) -> None:
        self.world.now_ms += ms

    # --- processes ----------------------------------------------------------------------------------------------------

    @rule(shards=st.integers(1, 3), machine=st.integers(0, 1))
    def start_driver(self, shards: int, machine: int) -> None:
        """The drivers before live on as zombies, except the oldest when there are too many."""
        with self._watched() as world:
            world.start_driver(shards, machine)
            for driver in [driver for driver in world.drivers if not driver.done][:-ALIVE_AT_MOST]:
                driver.kill()

    @rule(shards=st.integers(1, 3), machine=st.integers(0, 1))
    def take_over(self, shards: int, machine: int) -> None:
        assert self.running is not None
        self.running.take_over(shards, machine)

    @rule(who=WHO, steps=st.integers(1, 12))
    def go_on(self, who: int, steps: int) -> None:
        with self._process(who) as process:
            for _ in range(steps):
                if not process.done:
                    self.world.step(process)

    @rule(who=WHO, place=st.sampled_from(PLACES))
    def go_on_to(self, who: int, place: str) -> None:
        with self._process(who) as process:
            self.world.run_to(process, place)

    @rule(who=WHO, place=st.sampled_from(PLACES), data=st.data())
    def fail_at(self, who: int, place: str, data: st.DataObject) -> None:
        with self._process(who) as process:
            self.world.run_to(process, place)
            if not process.done:
                self.world.step(process, data.draw(st.sampled_from(in_order(process.faults))))

    @rule(records=RECORDS, fault=st.sampled_from(in_order(COMMIT_FAULTS)), then=st.integers(0, 6))
    def disturb_commit(self, records: Sequence[Record], fault: Fault, then: int) -> None:
        self._disturb(records, "store.commit", fault, then)

    @rule(records=RECORDS, fault=st.sampled_from(TASK_FAULTS), then=st.integers(0, 6))
    def disturb_task(self, records: Sequence[Record], fault: tuple[str, Fault], then: int) -> None:
        self._disturb(records, *fault, then)

    def _disturb(self, records: Sequence[Record], place: str, fault: Fault, then: int) -> None:
        """The newest driver gets something to do, a fault on the way, and `then` some more calls."""
        self.append(records)
        with self._process(0) as process:
            self.world.run_to(process, place)
            if fault in process.faults and not process.done:
                self.world.step(process, fault)
            for _ in range(then):
                if not process.done:
                    self.world.step(process)

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def everything_holds(self) -> None:
        if self.running is not None:
            with self._watched():
                self.running.auditor.check()

    def teardown(self) -> None:
        if self.running is None:
            return
        try:
            self.running.finish()
            self._count(self.running)
        finally:
            self.running.close()

    def _count(self, running: Run) -> None:
        auditor, merged = running.auditor, sum(host.merged for host in running.world.hosts)
        self.seen.update(epochs=auditor.epochs, pairs=auditor.pairs, late=auditor.late)
        self.seen.update(merged=merged, retired=auditor.retired)
        self.seen.update({fault.name: count for (_, fault), count in running.world.seen.items()})
        self.fenced.update(running.world.fenced)

    @contextmanager
    def _watched(self) -> Iterator[World]:
        assert self.running is not None
        with self.running.watched() as world:
            yield world

    @contextmanager
    def _process(self, who: int) -> Iterator[Process]:
        """A process that has not ended; the newest driver is started again if it has."""
        with self._watched() as world:
            if world.drivers[-1].done:
                world.start_driver(2, 0)
            newest = world.drivers[-1]
            alive = [newest, *(process for process in reversed(world.alive) if process is not newest)]
            yield alive[who % len(alive)]


def profile(examples: int, steps: int, *phases: Phase) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=phases or (Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def test_any_mixture_of_faults_and_zombies() -> None:
    CommitProtocol.seen.clear()
    CommitProtocol.fenced.clear()
    run_state_machine_as_test(CommitProtocol, settings=profile(120, 30))
    print(CommitProtocol.seen, CommitProtocol.fenced)
    assert CommitProtocol.seen.keys() >= {fault.name for fault in Fault} - {Fault.NONE.name}
    assert CommitProtocol.seen["epochs"] > 400
    assert CommitProtocol.seen["pairs"] > 400
    assert min(CommitProtocol.seen[what] for what in ("late", "merged", "retired")) > 10
    assert CommitProtocol.fenced["Fenced"] > 100


# --- broken protocols, which must be found ----------------------------------------------------------------------------


class NoFence(SimStore):
    """Commits whoever asks, under whatever generation is the newest."""

    def do_commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        super().do_commit(job, self.journal.generation, commit)


class NoGenerations(SimStore):
    """Every driver gets the same generation."""

    def do_acquire(self, job: str) -> JobRecord:
        if self.journal.generation == 0:
            return super().do_acquire(job)
        record = MemoryStore.record(self, job)
        assert record is not None
        return record


class EffectsApart(SimStore):
    """The sinks' part of a commit is a transaction of its own."""

    def do_commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        super().do_commit(job, generation, replace(commit, effects=()))
        for effect in commit.effects:
            effect(None)


class NeverSweeps(SimStore):
    def do_sweep(self, job: str, generation: int) -> None:
        """Leaves everything where it is."""


class ForgetsThePlan(Driver):
    """Plans anew after a restart."""

    def recover(self, previous: int | None = None) -> None:
        super().recover(previous)
        self._pending = None


class ChangesThePlan(Driver):
    """Replays the pending plan with another number of shards."""

    def recover(self, previous: int | None = None) -> None:
        super().recover(previous)
        if self._pending is not None:
            self._pending = replace(self._pending, shards=self._pending.shards + 1)


class PlansInMemory(Driver):
    """Runs a plan that the store has not seen."""

    def plan(self, *, always: bool = False) -> EpochPlan | None:
        if self._pending is None:
            self._pending = self._parts.planner.plan(self._epoch + 1, self.inputs, self._now_ms(), always=always)
        return self._pending


class BelievesInSuccess(Driver):
    """Takes a commit without an answer for done."""

    def _commit(self, commit: EpochCommit) -> None:
        with suppress(StoreUnavailable):
            self._parts.store.commit(self._identity.name, self._generation, commit)


class SweepsBeforePublishing(Driver):
    def _recover_sinks(self, record: JobRecord) -> None:
        for sink, _ in self._receipts({}):
            sink.recover(Takeover(record.generation, record.epoch))
        super()._recover_sinks(record)


class NeverPublishesAgain(Driver):
    def _recover_sinks(self, record: JobRecord) -> None:
        for sink, _ in self._receipts({}):
            sink.recover(Takeover(record.generation, record.epoch))


class TwoAttempts(SimHost):
    """Names the segments of two attempts of every shard."""

    def run(self, work: EpochWork) -> EpochOutcome:
        once, again = super().run(work), super().run(work)
        both = {s: replace(one, staged=one.staged + again.shards[s].staged) for s, one in once.shards.items()}
        return replace(once, shards=both)


class OneName(SimHost):
    """All attempts of a task have the same name."""

    def name_attempt(self) -> str:
        return "a0"


class NoTopic(SimSink):
    """Table and files only: what the Kafka sink asks the store before it writes stops many a zombie earlier."""

    with_topic = False


class ShowsEverything(NoTopic):
    """Makes all staged rows visible, named or not."""

    def named(self, epoch: int, receipts: Sequence[Receipt]) -> list[AttemptId]:
        return list(self.staged)


class NeverFences(SimTopic):
    """Whoever had an id goes on with it."""

    def require_owner(self, name: str, owner: int) -> None:
        """Lets everybody through."""


class ForgetsMarks(SimTopic):
    def newest(self, name: str) -> Mark | None:
        return None


class MarksApart(SimTopic):
    """The mark is not part of the transaction."""

    def send(self, name: str, owner: int, rows: list[Row], mark: GroupMark) -> None:
        super().send(name, owner, rows, mark)
        self.marks[mark[0]] = mark[1]


class ShowsAborted(SimTopic):
    """Readers see rows before their transaction is through."""

    def send(self, name: str, owner: int, rows: list[Row], mark: GroupMark) -> None:
        super().send(name, owner, rows, mark)
        self.visible += rows

    def commit(self, name: str, owner: int) -> None:
        shown = list(self.visible)
        super().commit(name, owner)
        self.visible = shown


PARTS = {SimStore: "store_type", Driver: "driver_type", SimHost: "host_type", SimSink: "sink_type"}
TOPIC_MUTANTS: list[tuple[type[SimTopic], str]] = [
    (NeverFences, "has a row twice"),
    (ForgetsMarks, "has a row twice"),
    (MarksApart, "not in the topic"),
    (ShowsAborted, "has a row twice"),
]
MUTANTS: list[tuple[type, str]] = [
    (NoFence, "fenced committed|epoch log|Fenced|lacks segments|cannot commit"),
    (NoGenerations, "ended with|left behind"),
    (EffectsApart, "a commit that failed"),
    (NeverSweeps, "staged segments were left behind"),
    (ForgetsThePlan, "has another plan"),
    (ChangesThePlan, "not the one that was stored first"),
    (PlansInMemory, "was not stored before"),
    (BelievesInSuccess, "ended with StateError|no commit named"),
    (SweepsBeforePublishing, "ended with KeyError"),
    (NeverPublishesAgain, "were not published|do not hold"),
    (TwoAttempts, "every pair exactly once|counted other rows"),
    (OneName, "is not unique|other bytes"),
    (ShowsEverything, "every pair exactly once|every bad record"),
]


@pytest.mark.parametrize(("mutant", "why"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_protocol_is_found(mutant: type, why: str) -> None:
    part = next(name for kind, name in PARTS.items() if issubclass(mutant, kind))
    world = type("BrokenWorld", (World,), {"sink_type": NoTopic, part: mutant})
    machine = type("BrokenProtocol", (CommitProtocol,), {"world_type": world})
    with pytest.raises(AssertionError, match=why):
        run_state_machine_as_test(machine, settings=profile(100, 30, Phase.generate))


@pytest.mark.parametrize(("mutant", "why"), TOPIC_MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_topic_is_found(mutant: type[SimTopic], why: str) -> None:
    """What only a zombie between two calls shows: each call is tried."""
    world = type("BrokenWorld", (World,), {"sink_type": type("BrokenSink", (SimSink,), {"topic_type": mutant})})
    with pytest.raises(AssertionError, match=why):
        zombies("idle", world)
