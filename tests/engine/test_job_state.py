"""A job's state as one value: what `after` works out is what a recovery finds in the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import sim_kafka
from engine.sim_steps import add, record, started
from engine.simulation import AggregateWorld, AsOfWorld, ChainWorld, FullWorld, SessionWorld, WindowWorld, World
from joinery_runtime.core.table import compaction
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.job_state import JobState, staged_segments

WORLDS = [World, FullWorld, ChainWorld, WindowWorld, SessionWorld, AsOfWorld, AggregateWorld]


@pytest.fixture(params=WORLDS, ids=lambda world: world.__name__)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Segments are merged early, so that some are taken out of the state in many ways."""
    sim_kafka.install(monkeypatch)
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    new_world = request.param(tmp_path)
    yield new_world
    new_world.close()


def fill(world: World, round_: int) -> None:
    """Rows of every input, with late ones among them, further in time from round to round."""
    for input_number, name in enumerate(world.topics):
        for number in range(4):
            late = 57 if number == 3 else 0
            add(
                world,
                name,
                100 * round_ + 10 * input_number + number,
                1_000 + 60 * round_ + 3 * number - late,
                "ab"[number % 2],
            )


def stored(world: World, driver: Driver) -> JobState:
    """What a recovery would make of the store's record."""
    return JobState.of(world.pipeline, record(world), world.store.newest_epoch(world.job.name))


def test_a_recovery_finds_the_state_that_was_worked_out(world: World) -> None:
    driver, dropped_keys = started(world), set[str]()
    for round_ in range(8):
        fill(world, round_)
        while (plan := driver.plan()) is not None:
            before, outcome = driver.state, driver.run(plan)
            after = before.after(plan, outcome, driver._parts.planner.clocks)
            assert driver.state is before, "working it out changes nothing"
            driver.commit(plan, outcome)
            assert replace(driver.state, pending=None) == after
            assert replace(driver.state, committed_at_ms=stored(world, driver).committed_at_ms) == stored(world, driver)
            dropped_keys |= before.dropped(plan, outcome)
            assert after.segments.keys() == (before.segments.keys() | staged_segments(outcome).keys()) - dropped_keys
    assert dropped_keys, "segments have left the state"
    assert driver.state.epoch >= 8


def test_rows_that_are_removed_count_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that have gone out stay in their segments for a while."""
    sim_kafka.install(monkeypatch)
    world = AggregateWorld(tmp_path)
    driver, removed = started(world), 0
    for round_ in range(6):
        fill(world, round_)
        while (plan := driver.plan()) is not None:
            driver.commit(plan, driver.run(plan))
            state = driver.state
            rows = sum(meta.rows for meta in state.segments.values() if meta.part in state.sides)
            assert state.size.rows == rows - sum(state.removed.values())
            removed += sum(state.removed.values())
    assert removed
    world.close()
