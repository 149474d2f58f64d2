"""Broken ways to close and flag rows, which the simulated world must find: a proof that its audit can fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase
from hypothesis.stateful import run_state_machine_as_test

from budget import found_with
from engine.commit_protocol import CommitProtocol, profile
from engine.sim_host import SimHost
from engine.sim_run import small_world
from engine.simulation import AggregateWorld, ChainWorld, FullWorld, World
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import FLAGS
from joinery_runtime.core.pipeline.step import Horizon, StateRun
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine import step_task
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ShardSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.protocol import Task
from joinery_runtime.engine.worker import Block, Sent, Worker

OTHER_ROWS = "counted other rows|every row exactly once"


pytestmark = pytest.mark.search


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    small_world(monkeypatch)


class NeverCommitsMarks(SimHost):
    """Flags are staged and not named."""

    def run(self, work: EpochWork) -> EpochOutcome:
        outcome = super().run(work)
        shards = {task: replace(summary, staged=_without_flags(summary)) for task, summary in outcome.shards.items()}
        return replace(outcome, shards=shards)


def _without_flags(summary: ShardSummary) -> tuple[SegmentMeta, ...]:
    return tuple(meta for meta in summary.staged if not meta.part.endswith(FLAGS))


class TakesASummaryTwice(SimHost):
    """As if Spark gave two attempts of the last step's first task."""

    def summaries(self, shard_summaries: Sequence[ShardSummary]) -> list[tuple[Task, ShardSummary]]:
        listed = super().summaries(shard_summaries)
        return [*listed, *(entry for entry in listed if entry[0] == (1, 0))]


class ClosesFromTheStart(Worker):
    """What an earlier epoch has closed is closed again while its segment is there."""

    def step(self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str) -> Iterator[Sent]:
        again = {part: Horizon(None, horizon.current) for part, horizon in work.plan.horizons.items()}
        return super().step(replace(work, plan=replace(work.plan, horizons=again)), number, shard, blocks, attempt)


class ForgetsHorizons(Driver):
    """A restart does not know how far the state was closed."""

    def recover(self, previous: int | None = None, first: int | None = None) -> None:
        super().recover(previous, first)
        self.state = replace(self.state, floors={})


class PlansAgainFromTheStart(Driver):
    """The horizons of a pending plan are worked out anew."""

    def recover(self, previous: int | None = None, first: int | None = None) -> None:
        super().recover(previous, first)
        plan = self.state.pending
        if plan is not None:
            anew = times.horizons(self._pipeline, plan.times, {})
            self.state = self.state.planned(replace(plan, horizons=anew))


class DropsBeforeClosing(Driver):
    """A segment of which all rows leave is not shown to the tasks that were to close it."""

    def _epoch_work(self, plan: EpochPlan) -> EpochWork:
        work = super()._epoch_work(plan)
        left = [s for s in work.segments if not times.expired(self._pipeline, s, plan.horizons)]
        return replace(work, segments=tuple(left))


class NeverClosesUnasked(Driver):
    """Rows go out with the next records only (T3)."""

    def plan(self, *, always: bool = False) -> EpochPlan | None:
        plan = super().plan(always=always)
        return plan if plan is None or plan.ranges or plan.checkpoint else None


PARTS = {SimHost: "host_type", Worker: "worker_type", Driver: "driver_type"}
MUTANTS: list[tuple[type, type[World], str]] = [
    (NeverCommitsMarks, FullWorld, OTHER_ROWS),
    (NeverCommitsMarks, ChainWorld, OTHER_ROWS),
    (TakesASummaryTwice, ChainWorld, "two results for step 2, shard 0"),
    (ClosesFromTheStart, FullWorld, OTHER_ROWS),
    (ClosesFromTheStart, ChainWorld, OTHER_ROWS),
    (ForgetsHorizons, FullWorld, "does not go on where the last epoch ended"),
    (PlansAgainFromTheStart, FullWorld, "not the one that was stored first"),
    (DropsBeforeClosing, FullWorld, OTHER_ROWS),
    (DropsBeforeClosing, ChainWorld, OTHER_ROWS),
    (NeverCommitsMarks, AggregateWorld, OTHER_ROWS),
    (ClosesFromTheStart, AggregateWorld, OTHER_ROWS),
    (ForgetsHorizons, AggregateWorld, "does not go on where the last epoch ended"),
    (DropsBeforeClosing, AggregateWorld, OTHER_ROWS),
    (NeverClosesUnasked, FullWorld, "were not closed at the end|does not come to|were not read"),
]


def broken(world: type[World], mutant: type) -> type[World]:
    part = next(name for kind, name in PARTS.items() if issubclass(mutant, kind))
    return type("BrokenWorld", (world,), {part: mutant})


def any_mixture(world: type[World]) -> None:
    machine = type("BrokenProtocol", (CommitProtocol,), {"world_type": world})
    run_state_machine_as_test(found_with(0)(machine), settings=profile(40, 30, Phase.generate))


@pytest.mark.parametrize(("mutant", "world", "reason"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_join_is_found(mutant: type, world: type[World], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        any_mixture(broken(world, mutant))


def _forgets_what_it_found(state_run: StateRun, new_flags: Mapping[str, np.ndarray]) -> StateRun:
    return state_run


@pytest.mark.parametrize("world", [FullWorld, AggregateWorld])
def test_flags_that_are_lost_while_merging_are_found(world: type[World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_task, "_with_new_flags", _forgets_what_it_found)
    with pytest.raises(AssertionError, match=OTHER_ROWS):
        any_mixture(world)
