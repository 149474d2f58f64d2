"""The world as a state machine: any mixture of records, drivers, zombies and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.sim_process import Fault, Process
from engine.sim_run import Run, in_order
from engine.simulation import World

Drawn = tuple[int, int, str | None, int]  # as a Record, with the number of its input

ALIVE_AT_MOST = 4

# Calls of a driver and its tasks, in the order in which they come.
PLACES = (
    "start", "store.acquire", "store.sweep", "store.newest_epoch", "store.claims", "output.recover", "dead.recover",
    "store.release_claims", "recovered", "source.bounds", "store.write_plan", "task.start", "source.read",
    "task.result", "store.stage", "output.write", "output.own", "store.claim", "output.mark", "output.send",
    "output.commit", "dead.write", "dead.own", "dead.mark", "dead.send", "dead.commit", "store.commit", "store.record",
    "output.publish", "dead.publish", "idle",
)  # fmt: skip
_OF_OUTPUTS = {"output", "dead", "store.claim", "store.release_claims"}
IN_EVERY_WORLD = [call_name for call_name in PLACES if not {call_name, call_name.partition(".")[0]} & _OF_OUTPUTS]

JITTER = st.sampled_from([*range(-6, 7), -300, -90, 60, 200])
KEYS = st.sampled_from(["a", "a", "a", "b", "b", "c", None])
INPUT = st.integers(0, 5)  # which one, round and round
RECORDS = st.lists(st.tuples(INPUT, st.integers(0, 9), KEYS, JITTER), min_size=1, max_size=8)
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

    running: Run | None = None

    @property
    def world(self) -> World:
        assert self.running is not None, "begin comes first"
        return self.running.world

    @initialize(from_latest=st.booleans(), records=RECORDS, shards=st.integers(1, 3))
    def begin(self, from_latest: bool, records: Sequence[Drawn], shards: int) -> None:
        self.running = Run(self.world_type, from_latest=from_latest)
        self.append(records)
        self.world.start_driver(shards, 0)

    # --- the world ----------------------------------------------------------------------------------------------------

    @rule(records=RECORDS)
    def append(self, records: Sequence[Drawn]) -> None:
        assert self.running is not None
        self.running.append([(self._input(number), *rest) for number, *rest in records])

    def _input(self, number: int) -> str:
        names = list(self.world.topics)
        return names[number % len(names)]

    @rule(number=INPUT, value=st.sampled_from([b"not JSON", None]))
    def append_oddity(self, number: int, value: bytes | None) -> None:
        """A record that cannot be used, or an offset without a record."""
        self.world.topics[self._input(number)].append(0, value)

    @precondition(lambda self: sum(len(topic.partitions) for topic in self.world.topics.values()) < 5)
    @rule(number=INPUT)
    def add_partition(self, number: int) -> None:
        self.world.topics[self._input(number)].partitions.append([])

    @rule(ms=st.sampled_from([10, 45, 70]))
    def pass_time(self, ms: int) -> None:
        self.world.now_ms += ms

    # --- processes ----------------------------------------------------------------------------------------------------

    @rule(shards=st.integers(1, 3), machine=st.integers(0, 1), max_records=st.sampled_from([None, None, 1, 3]))
    def start_driver(self, shards: int, machine: int, max_records: int | None) -> None:
        """The drivers before live on as zombies, except the oldest when there are too many."""
        with self._watched() as world:
            world.start_driver(shards, machine, max_records)
            for driver in [driver for driver in world.drivers if not driver.done][:-ALIVE_AT_MOST]:
                driver.kill()

    @rule(
        records=RECORDS,
        call_name=st.sampled_from(["task.start", "store.stage", "output.send", "output.commit", "store.commit"]),
        max_records=st.integers(1, 2),
    )
    def take_over_with_less(self, records: Sequence[Drawn], call_name: str, max_records: int) -> None:
        """A driver with a plan sleeps, and the next one may plan less."""
        self.append(records)
        with self._process(0) as process:
            self.world.run_to(process, call_name)
        self.start_driver(2, 0, max_records)

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

    @rule(who=WHO, call_name=st.sampled_from(PLACES))
    def go_on_to(self, who: int, call_name: str) -> None:
        with self._process(who) as process:
            self.world.run_to(process, call_name)

    @rule(who=WHO, call_name=st.sampled_from(PLACES), data=st.data())
    def fail_at(self, who: int, call_name: str, data: st.DataObject) -> None:
        with self._process(who) as process:
            self.world.run_to(process, call_name)
            if not process.done:
                self.world.step(process, data.draw(st.sampled_from(in_order(process.faults))))

    @rule(records=RECORDS, fault=st.sampled_from(in_order(COMMIT_FAULTS)), then=st.integers(0, 6))
    def disturb_commit(self, records: Sequence[Drawn], fault: Fault, then: int) -> None:
        self._disturb(records, "store.commit", fault, then)

    @rule(records=RECORDS, fault=st.sampled_from(TASK_FAULTS), then=st.integers(0, 6))
    def disturb_task(self, records: Sequence[Drawn], fault: tuple[str, Fault], then: int) -> None:
        self._disturb(records, *fault, then)

    def _disturb(self, records: Sequence[Drawn], call_name: str, fault: Fault, then: int) -> None:
        """The newest driver gets something to do, a fault on the way, and `then` some more calls."""
        self.append(records)
        with self._process(0) as process:
            self.world.run_to(process, call_name)
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
        self.seen.update(epochs=auditor.epochs, pairs=auditor.pairs, padded=auditor.padded)
        self.seen.update(late=auditor.late, merged=merged, retired=auditor.retired, follow_ups=auditor.follow_ups)
        self.seen.update(taken_back=auditor.taken_back, shrunk=running.world.store.journal.shrunk)
        self.seen.update(flagged=sum(host.flagged for host in running.world.hosts))
        self.seen.update({fault.name: count for (_, fault), count in running.world.seen.items()})
        self.seen.update(running.world.fenced)

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


def profile(count: int, steps: int, *phases: Phase) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=phases or (Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
