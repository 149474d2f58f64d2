"""A driver of a newer release: it pins the state before it migrates it, and can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.simulation import World
from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.segment import STATE_VERSION, encode
from joinery_runtime.engine import driver as driver_module
from joinery_runtime.engine.driver import Driver
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import JobRecord

pytestmark = pytest.mark.usefixtures("simulated_topics")

PIN = f"before-state-version-{STATE_VERSION + 1}-epoch-1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Epoch 1 is committed by the release before."""
    new_world = World(tmp_path)
    fill(new_world, 4)
    epoch(started(new_world)[0])
    yield new_world
    new_world.close()


@pytest.fixture
def newer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release after it, which writes segments uncompressed."""
    monkeypatch.setattr(driver_module, "STATE_VERSION", STATE_VERSION + 1)
    monkeypatch.setattr(driver_module, "MIGRATIONS", {STATE_VERSION: uncompressed})


def uncompressed(blob: bytes) -> bytes:
    return encode(from_blob(blob), compression=None)


def fill(world: World, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        name = "orders" if number % 2 == 0 else "payments"
        world.append(name, 0, "a", 1_000 + 2 * number, identifier=number)


def started(world: World) -> tuple[Driver, list[str]]:
    heard: list[str] = []
    driver = world.new_driver(who=replace(world.identity, warn=heard.append))
    driver.recover()
    return driver, heard


def epoch(driver: Driver) -> int:
    plan = driver.plan()
    assert plan is not None
    return driver.commit(plan, driver.run(plan)).rows_out


def record(world: World) -> JobRecord:
    job_record = world.store.record(world.job.name)
    assert job_record is not None
    return job_record


def pins(world: World) -> list[str]:
    return [savepoint.name for savepoint in world.store.savepoints(world.job.name)]


def test_it_pins_and_says_so_before_it_migrates(world: World, newer: None) -> None:
    before = record(world)
    _, heard = started(world)
    assert {segment.state_version for segment in record(world).segments} == {STATE_VERSION + 1}
    assert pins(world) == [PIN]
    assert [PIN in text for text in heard] == [True, False]
    assert (
        f"{len(before.segments)} segments of the state were migrated to state_version {STATE_VERSION + 1}" in heard[1]
    )
    assert started(world)[1] == []  # the second time there is nothing to migrate


def test_killed_between_pin_and_migration_it_goes_on(
    world: World, newer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "migrate", killed)
        with pytest.raises(KeyboardInterrupt):
            started(world)
    assert pins(world) == [PIN]
    driver, _ = started(world)
    assert pins(world) == [PIN]
    fill(world, 2, first=4)
    assert epoch(driver) > 0


def test_rolled_back_the_older_release_goes_on_as_if_nothing_had_been(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = record(world)
    fill(world, 2, first=4)
    with monkeypatch.context() as patch:
        patch.setattr(driver_module, "STATE_VERSION", STATE_VERSION + 1)
        patch.setattr(driver_module, "MIGRATIONS", {STATE_VERSION: uncompressed})
        plan = started(world)[0].plan()
        assert plan is not None
    with pytest.raises(IncompatibleState, match="newer than this release"):
        started(world)
    back = world.store.roll_back(world.job.name, PIN)
    assert (back.segments, back.plan) == (before.segments, plan.to_json())
    driver, _ = started(world)
    assert driver.pending
    assert epoch(driver) > 0
    assert record(world).epoch == plan.epoch


def test_a_release_that_is_too_old_does_not_fence_the_driver_that_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = started(world)
    monkeypatch.setattr(driver_module, "STATE_VERSION", 0)
    with pytest.raises(IncompatibleState, match="newer than this release"):
        started(world)
    fill(world, 2, first=4)
    assert epoch(running) > 0


def test_a_job_that_was_started_anew_publishes_nothing_of_its_earlier_life(world: World) -> None:
    world.store.create_savepoint(world.job.name, "rollout-b")
    world.store.start_anew(world.job.name, "rollout-b")
    driver, _ = started(world)
    assert driver.state.inputs == {name: type(state)() for name, state in driver.state.inputs.items()}
    assert epoch(driver) > 0  # it reads the topics from their start
