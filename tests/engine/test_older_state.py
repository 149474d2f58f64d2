"""State and pending plans of a release that knew inner joins only: format 2, without horizons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import sim_kafka
from engine.sim_store import SimStore
from engine.simulation import World
from joinery_devkit.oracle import Oracle, Row
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.job_state import HORIZONS
from joinery_runtime.state.store import EpochCommit, Json


def _plan(document: Json) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in {"horizons", "highest"}} | {"format": 2}


def _offsets(data: bytes) -> bytes:
    return json.dumps(json.loads(data) | {"format": 2}).encode()


class OlderStore(SimStore):
    """What reaches it has the older release's form, until `older` is False."""

    def __init__(self, spawn: Callable[[str, Callable[[], None]], None]) -> None:
        super().__init__(spawn)
        self.older = True

    def do_write_plan(self, job: str, generation: int, plan: Json, definition: Json, replacing: Json | None) -> None:
        super().do_write_plan(job, generation, _plan(plan) if self.older else plan, definition, replacing)

    def do_commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        super().do_commit(job, generation, _older(commit) if self.older else commit)


def _older(commit: EpochCommit) -> EpochCommit:
    return replace(
        commit,
        plan=_plan(commit.plan),
        next_plan=_plan(commit.next_plan) if commit.next_plan is not None else None,
        offsets={name: _offsets(data) for name, data in commit.offsets.items() if name != HORIZONS},
    )


class OlderWorld(World):
    store_type = OlderStore


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    sim_kafka.install(monkeypatch)
    older_world = OlderWorld(tmp_path)
    yield older_world
    older_world.close()


def started(world: World, machine: int, max_records: int | None = None) -> Driver:
    driver = world.new_driver(machine=machine, max_records=max_records)
    driver.recover()
    return driver


def fill(world: World, first: int, count: int) -> None:
    """Orders and payments in turn; what is kept of them leaves again while the run goes on."""
    for number in range(first, first + count):
        name = ("orders", "payments")[number % 2]
        partition = (number // 2) % len(world.topics[name].partitions)
        world.append(name, partition, "a", 1_000 + 9 * number, identifier=number)


def upgrade(world: World) -> None:
    assert isinstance(world.store, OlderStore)
    world.store.older = False


def run_all(driver: Driver) -> None:
    while (plan := driver.plan()) is not None:
        driver.commit(plan, driver.run(plan))


@pytest.mark.parametrize("committed", [0, 1, 3])
def test_a_pending_plan_without_horizons_is_replayed(world: World, committed: int) -> None:
    """Its watermarks say what they were: the same rows as without the upgrade."""
    fill(world, 0, 40)
    old = started(world, 0)
    for _ in range(committed):
        plan = old.plan()
        assert plan is not None
        old.commit(plan, old.run(plan))
    assert old.plan() is not None
    record = world.store.record(world.job.name)
    assert record is not None
    assert record.plan is not None
    assert record.plan["format"] == 2
    assert HORIZONS not in record.offsets

    upgrade(world)
    driver = started(world, 1)
    assert driver.pending
    pending = driver.plan()
    assert pending is not None
    assert {name: pending.watermarks[name] for name in world.topics} == record.plan["watermarks"]
    run_all(driver)
    fill(world, 40, 10)
    world.end_inputs()
    run_all(driver)

    assert Counter(world.output.table) == expected(world)
    entries = world.store.epochs(world.job.name)
    later = len(entries) - committed - 1
    assert [entry.plan["format"] for entry in entries] == [2] * (committed + 1) + [5] * later, "each its own"


def expected(world: World) -> Counter[tuple[Any, ...]]:
    """What the oracle says of the log's plans."""
    oracle, output_rows = Oracle.of_job(world.job), Counter[tuple[Any, ...]]()
    for entry in world.store.epochs(world.job.name):
        rows: dict[str, list[Row]] = {name: [] for name in world.topics}
        for name, _, partition, start, end in entry.plan["ranges"]:
            for offset in range(start, end):
                values = json.loads(world.topics[name].partitions[partition][offset] or b"")
                rows[name].append(Row(partition, offset, values["ts"], values))
        output_rows.update(tuple(row.values()) for row in oracle.epoch(entry.plan["watermarks"], rows).rows)
    return output_rows


def test_horizons_are_stored_from_the_first_epoch_on(world: World) -> None:
    fill(world, 0, 20)
    run_all(started(world, 0))
    upgrade(world)
    fill(world, 20, 20)
    world.end_inputs()
    driver = started(world, 1, max_records=100)  # both inputs end with one epoch
    run_all(driver)
    record = world.store.record(world.job.name)
    assert record is not None
    stored = json.loads(record.offsets[HORIZONS])["horizons"]
    assert set(stored) == {"left", "right"}
    assert set(stored.values()) == {END_OF_TIME}, "the end of the inputs is committed"
    assert driver.state.floors == stored
