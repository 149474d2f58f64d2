"""The commit protocol, checked: any interleaving of drivers, zombies, crashes, retries and lost answers.

`engine.simulation` is a world in which the real driver, planner, worker and memory store run one call at a time,
`engine.audit` says what must hold after every step. First every single fault is tried at every kind of call, and a
driver sleeps at many calls (in the large budget both at every single call); then a hypothesis state machine mixes them.
That a broken protocol is found: test_broken_protocols.py.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis.stateful import run_state_machine_as_test

from budget import LARGE, rest_in_search
from engine.commit_protocol import IN_EVERY_WORLD, PLACES, CommitProtocol, profile
from engine.sim_host import LosesOutputs
from engine.sim_jobs import compiled
from engine.sim_process import Fault
from engine.sim_run import (
    LATER,
    SUCCESSORS_AT,
    calls_of_a_recovery,
    crashed_epoch,
    outages,
    run,
    single_faults,
    small_world,
    zombies,
)
from engine.simulation import (
    AggregateWorld,
    AsOfWorld,
    ChainWorld,
    CoPartitionedWorld,
    FullWorld,
    PatientProcess,
    SessionWorld,
    ShrinkingWorld,
    WindowWorld,
    World,
)

WORLDS = [World, FullWorld, ChainWorld, AggregateWorld]
every_world = pytest.mark.parametrize("world_type", WORLDS)
searched_worlds = pytest.mark.parametrize("world_type", rest_in_search(WORLDS, (World,)))


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    small_world(monkeypatch)


# --- every fault at every call ----------------------------------------------------------------------------------------


@every_world
def test_the_small_run_makes_every_call(world_type: type[World]) -> None:
    calls = calls_of_a_recovery(world_type)
    call_names = PLACES if world_type.sink_type.with_topic else IN_EVERY_WORLD
    assert {call_name for call_name, _ in calls} >= set(call_names) - {"store.record"}
    assert set().union(*(faults for _, faults in calls)) == set(Fault) - {Fault.NONE}


@searched_worlds
@pytest.mark.parametrize("strays_first", rest_in_search([False, True], (True,)), ids=["strays-late", "strays-early"])
def test_any_single_fault_at_any_call(strays_first: bool, world_type: type[World]) -> None:
    """`strays_first`: what was delayed or runs twice comes through before the next driver starts, or after."""
    tried = single_faults(world_type, strays_first=strays_first)
    least = (4, 60) if not LARGE else (25, 350) if world_type is World else (25, 300)
    assert tried > least[not strays_first] // (1 if LARGE else world_type.pace_of_faults)


@pytest.mark.search
@pytest.mark.parametrize("world_type", [World, FullWorld, ShrinkingWorld])
def test_an_outage_at_any_call_is_waited_out_without_a_new_process(world_type: type[World]) -> None:
    """One system after the other is away, for one call and for many, while the driver recovers again and again."""
    patient = type("PatientWorld", (world_type,), {"process_type": PatientProcess})
    tried = outages(patient)
    assert tried > (60 if LARGE and world_type is World else 15)


@searched_worlds
@pytest.mark.parametrize("successor_at", SUCCESSORS_AT)
def test_a_driver_that_sleeps_at_any_call_and_wakes_as_a_zombie(successor_at: str, world_type: type[World]) -> None:
    slept_at = zombies(successor_at, world_type)
    assert slept_at >= len(calls_of_a_recovery(world_type)) // (1 if LARGE else world_type.pace_of_zombies) - 1


@every_world
def test_outputs_of_tasks_that_are_lost_are_made_again(world_type: type[World]) -> None:
    """A shard may get another attempt's rows than its neighbour, and other rows than those of the attempt that
    counts."""
    with run(type("LossyWorld", (world_type,), {"host_type": LosesOutputs})) as running:
        driver = crashed_epoch(running)
        for _ in range(3):
            running.world.run_to(driver, "idle")
            running.auditor.check()
            running.append_known(LATER)


@pytest.mark.search
@pytest.mark.parametrize("strays_first", [False, True], ids=["strays-late", "strays-early"])
def test_any_single_fault_where_a_plan_is_made_smaller(strays_first: bool) -> None:
    single_faults(ShrinkingWorld, strays_first=strays_first)


@pytest.mark.search
@pytest.mark.parametrize("successor_at", SUCCESSORS_AT)
def test_a_zombie_of_a_plan_that_was_made_smaller(successor_at: str) -> None:
    zombies(successor_at, ShrinkingWorld)


def test_the_run_with_a_smaller_plan_has_one() -> None:
    with run(ShrinkingWorld) as running:
        crashed_epoch(running)
        running.world.run_to(running.world.drivers[-1], "recovered")
        assert running.world.store.journal.shrunk == 1


# --- any mixture ------------------------------------------------------------------------------------------------------


def mixture(world_type: type[World], count: int) -> Counter[str]:
    """What was seen."""
    machine = type("Mixture", (CommitProtocol,), {"world_type": world_type})
    CommitProtocol.seen.clear()
    run_state_machine_as_test(machine, settings=profile(count, 30))
    print(CommitProtocol.seen)
    return CommitProtocol.seen


@pytest.mark.search
def test_any_mixture_of_faults_and_zombies() -> None:
    count = 120 if LARGE else 24
    seen = mixture(World, count)
    assert seen.keys() >= {fault.name for fault in Fault} - {Fault.NONE.name}
    assert min(seen[what] for what in ("epochs", "pairs")) > 400 * count // 120
    assert min(seen[what] for what in ("late", "merged", "retired")) > 10
    assert seen["Fenced"] > 100 * count // 120
    assert seen["shrunk"] > 3


@pytest.mark.search
@pytest.mark.parametrize(
    "world_type", [FullWorld, CoPartitionedWorld, ChainWorld, WindowWorld, SessionWorld, AsOfWorld]
)
def test_any_mixture_where_rows_are_closed(world_type: type[World]) -> None:
    seen = mixture(world_type, 25 if LARGE else 8)
    assert min(seen[what] for what in ("epochs", "padded")) > 50
    assert min(seen[what] for what in ("pairs", "follow_ups", "merged", "retired", "Fenced")) > 5
    if any(side.flags for step in compiled(world_type.job_text).steps for side in step.sides):
        assert seen["flagged"] > 5


@pytest.mark.search
def test_any_mixture_where_sessions_are_aggregated() -> None:
    seen = mixture(AggregateWorld, 25 if LARGE else 12)
    assert min(seen[what] for what in ("epochs", "pairs")) > 50  # a pair is a row whose group is not NULL
    assert (
        min(seen[what] for what in ("late", "taken_back", "follow_ups", "flagged", "merged", "retired", "Fenced")) > 5
    )
