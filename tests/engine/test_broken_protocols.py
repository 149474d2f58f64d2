"""Broken protocols, which the simulated world must find: a proof that its audit can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis.stateful import run_state_machine_as_test

from budget import found_with
from engine.commit_protocol import CommitProtocol, profile
from engine.sim_host import SimHost
from engine.sim_kafka import GroupMark, Row, SimTopic
from engine.sim_run import single_faults, small_world, zombies
from engine.sim_sink import NoTopic, SimSink
from engine.sim_store import SimStore
from engine.simulation import ShrinkingWorld, World
from joinery_runtime.connectors.kafka.markers import EpochMarker
from joinery_runtime.connectors.sink import AttemptId, Receipt, RecoveryContext
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import StoreUnavailable
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, EpochRecord, JobRecord, Json
from stores import STORE

pytestmark = pytest.mark.search


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    small_world(monkeypatch)


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

    def recover(self, previous: int | None = None, first: int | None = None) -> None:
        super().recover(previous, first)
        self.state = self.state.planned(None)


class ChangesThePlan(Driver):
    """Replays the pending plan with another number of shards."""

    def recover(self, previous: int | None = None, first: int | None = None) -> None:
        super().recover(previous, first)
        pending = self.state.pending
        if pending is not None:
            self.state = self.state.planned(replace(pending, shards=pending.shards + 1))


class ShrinksWhatIsVisible(Driver):
    """Makes a pending plan smaller although some of it has gone out."""

    def _recover_sinks(self, record: JobRecord, newest: EpochRecord | None) -> bool:
        super()._recover_sinks(record, newest)
        return False


class ShrinksInMemory(Driver):
    """Runs a smaller plan than the one that is stored."""

    def _shrink_plan(self, record: JobRecord) -> None:
        pending = self.state.pending
        smaller = (
            self._parts.planner.shrunk_plan(pending) if pending is not None and self._pending_plan.may_shrink else None
        )
        self.state = self.state.planned(smaller or pending)


class UnfencedPlans(SimStore):
    """Lets every driver put a smaller plan in the place of the pending one."""

    def do_write_plan(self, job: str, generation: int, plan: Json, definition: Json, replacing: Json | None) -> None:
        owner = generation if replacing is None else self.journal.generation
        super().do_write_plan(job, owner, plan, definition, replacing)


class PlansInMemory(Driver):
    """Runs a plan that the store has not seen."""

    def plan(self, *, always: bool = False) -> EpochPlan | None:
        if self.state.pending is None:
            self.state = self.state.planned(self._new_plan(self.state, always=always))
        return self.state.pending


class BelievesInSuccess(Driver):
    """Takes a commit without an answer for done."""

    def _write_commit(self, plan: EpochPlan, outcome: EpochOutcome, after: JobState, result: Mapping[str, Any]) -> None:
        with suppress(StoreUnavailable):  # of a commit that was not made
            super()._write_commit(plan, outcome, after, result)


class SweepsBeforePublishing(Driver):
    def _recover_sinks(self, record: JobRecord, newest: EpochRecord | None) -> bool:
        for sink, _ in self._receipts_by_sink({}):
            sink.recover(RecoveryContext(record.generation, record.epoch, STORE))
        return super()._recover_sinks(record, newest)


class NeverPublishesAgain(Driver):
    def _recover_sinks(self, record: JobRecord, newest: EpochRecord | None) -> bool:
        for sink, _ in self._receipts_by_sink({}):
            sink.recover(RecoveryContext(record.generation, record.epoch, STORE))
        return False


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


class ShowsEverything(NoTopic):
    """Makes all staged rows visible, named or not."""

    def named(self, epoch: int, receipts: Sequence[Receipt]) -> list[AttemptId]:
        return list(self.staged)


class NeverFences(SimTopic):
    """Whoever had an id goes on with it."""

    def require_owner(self, name: str, owner: int) -> None:
        """Lets everybody through."""


class ForgetsMarks(SimTopic):
    def newest(self, name: str) -> EpochMarker | None:
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
    (NoFence, "fenced committed|epoch log|Fenced|lacks segments|cannot commit|ended with KeyError"),
    (NoGenerations, "ended with|left behind"),
    (EffectsApart, "a commit that failed"),
    (NeverSweeps, "staged segments were left behind"),
    (ForgetsThePlan, "has another plan"),
    (ChangesThePlan, "not the one that was stored first"),
    (PlansInMemory, "was not stored before"),
    (ShrinksInMemory, "not the one that was stored first"),
    (BelievesInSuccess, "ended with StateError|no commit named"),
    (SweepsBeforePublishing, "ended with KeyError"),
    (NeverPublishesAgain, "were not published|do not hold"),
    (TwoAttempts, "every row exactly once|counted other rows"),
    (ShowsEverything, "every row exactly once|every bad record"),
]


@pytest.mark.parametrize(("mutant", "reason"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_protocol_is_found(mutant: type, reason: str) -> None:
    part = next(name for kind, name in PARTS.items() if issubclass(mutant, kind))
    world = type("BrokenWorld", (World,), {"sink_type": NoTopic, part: mutant})
    machine = type("BrokenProtocol", (CommitProtocol,), {"world_type": world})
    with pytest.raises(AssertionError, match=reason):
        run_state_machine_as_test(found_with(0)(machine), settings=profile(100, 30, Phase.generate))


def test_attempts_of_one_name_are_found() -> None:
    """What only a task shows that runs a second time: each call is tried."""
    with pytest.raises(AssertionError, match=r"is not unique|other bytes"):
        single_faults(type("BrokenWorld", (World,), {"sink_type": NoTopic, "host_type": OneName, "every_call": True}))


@pytest.mark.parametrize(("mutant", "reason"), TOPIC_MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_topic_is_found(mutant: type[SimTopic], reason: str) -> None:
    """What only a zombie between two calls shows: each call is tried, the last ones first, where output is written."""
    sink = type("BrokenSink", (SimSink,), {"topic_type": mutant})
    world = type("BrokenWorld", (World,), {"sink_type": sink, "every_call": True})
    with pytest.raises(AssertionError, match=reason):
        zombies("idle", world, last_first=True)


@pytest.mark.parametrize(
    ("part", "mutant", "killed_at", "successor_at", "reason"),
    [
        (
            "driver_type",
            ShrinksWhatIsVisible,
            "store.commit",
            "idle",
            "has a row twice|not in the topic|nobody planned|ended with",
        ),
        (
            "store_type",
            UnfencedPlans,
            "store.stage",
            "store.commit",
            "stored first|not in the topic|replaced by another",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_plan_that_is_made_smaller_wrongly_is_found(
    part: str, mutant: type, killed_at: str, successor_at: str, reason: str
) -> None:
    """What only a driver shows that dies, or sleeps, once some of its rows are in the topic: each call is tried."""
    settings = {"every_call": True, "killed_at": killed_at, part: mutant}
    with pytest.raises(AssertionError, match=reason):
        zombies(successor_at, type("BrokenWorld", (ShrinkingWorld,), settings))
