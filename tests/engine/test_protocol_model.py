"""The commit protocol, checked: any interleaving of drivers, zombies, crashes, retries and lost answers.

`engine.simulation` is a world in which the real driver, planner, worker and memory store run one call at a time,
`engine.audit` says what must hold after every step. First every single fault and every single zombie is tried at every
single call; then a hypothesis state machine mixes them. That a broken protocol is found: test_broken_protocols.py.
"""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from engine.commit_protocol import IN_EVERY_WORLD, PLACES, CommitProtocol, profile
from engine.sim_process import Fault
from engine.sim_run import calls_of_a_recovery, faults_to_try, run_to_call, small_world, zombies
from engine.simulation import ChainWorld, FullWorld, World

WORLDS = pytest.mark.parametrize("world_type", [World, FullWorld, ChainWorld])


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    small_world(monkeypatch)


# --- every fault at every call ----------------------------------------------------------------------------------------


@WORLDS
def test_the_small_run_makes_every_call(world_type: type[World]) -> None:
    calls = calls_of_a_recovery(world_type)
    places = PLACES if world_type.sink_type.with_topic else IN_EVERY_WORLD
    assert {place for place, _ in calls} >= set(places) - {"store.record"}
    assert set().union(*(faults for _, faults in calls)) == set(Fault) - {Fault.NONE}


@WORLDS
@pytest.mark.parametrize("strays_first", [False, True], ids=["strays-late", "strays-early"])
def test_any_single_fault_at_any_call(strays_first: bool, world_type: type[World]) -> None:
    """`strays_first`: what was delayed or runs twice comes through before the next driver starts, or after."""
    tried = 0
    for number, fault in faults_to_try(world_type):
        if strays_first and fault not in (Fault.DELAYED, Fault.DUPLICATE):
            continue
        with run_to_call(number, fault, world_type) as (running, driver):
            running.world.step(driver, fault)
            running.auditor.check()
            for stray in running.world.strays if strays_first else []:
                running.world.run_to(stray, "end")
            running.auditor.check()
            running.world.run_to(driver, "idle")
            running.auditor.check()
        tried += 1
    least = (25, 350) if world_type.every_call else (8, 90)
    assert tried > least[not strays_first]


@WORLDS
@pytest.mark.parametrize("successor_at", ["store.sweep", "store.commit", "idle"])
def test_a_driver_that_sleeps_at_any_call_and_wakes_as_a_zombie(successor_at: str, world_type: type[World]) -> None:
    zombies(successor_at, world_type)


# --- any mixture ------------------------------------------------------------------------------------------------------


@WORLDS
def test_any_mixture_of_faults_and_zombies(world_type: type[World]) -> None:
    machine = type("Mixture", (CommitProtocol,), {"world_type": world_type})
    CommitProtocol.seen.clear()
    CommitProtocol.fenced.clear()
    run_state_machine_as_test(machine, settings=profile(120 if world_type is World else 50, 30))
    seen, fenced = CommitProtocol.seen, CommitProtocol.fenced
    print(seen, fenced)
    assert seen.keys() >= {fault.name for fault in Fault} - {Fault.NONE.name}
    assert seen["epochs"] > 400
    assert seen["pairs"] > 400
    assert min(seen[what] for what in ("late", "merged", "retired")) > 10
    assert fenced["Fenced"] > 100
