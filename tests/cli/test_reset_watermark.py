"""`joinery state reset --watermark` on a simulated world: an event time has driven a watermark too far ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import sim_kafka
from engine.sim_steps import add, record, rows, started
from engine.simulation import FullWorld, World
from joinery_runtime.engine.lowering import lower_watermarks
from joinery_runtime.errors import JoineryError

HOUR = 3_600_000  # less than maxFuture


@pytest.fixture(autouse=True)
def _simulated_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    sim_kafka.install(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Orders and payments, INNER, within [-40, 80]; delays of 5 and 3."""
    fresh_world = World(tmp_path)
    yield fresh_world
    fresh_world.close()


def run(world: World) -> int:
    """Late rows of all epochs that a new driver plans."""
    driver, late = started(world), 0
    while (plan := driver.plan()) is not None:
        report = driver.commit(plan, driver.run(plan))
        late += sum(counts.get("late", 0) for counts in report.dropped.values())
    return late


def too_far_ahead(world: World) -> None:
    for name, identifier in (("orders", 1), ("payments", 2)):
        add(world, name, identifier, 1_000)
        add(world, name, 10 + identifier, HOUR)
    run(world)


def lower(world: World, **watermarks: int) -> None:
    stored = record(world)
    lowered = lower_watermarks(world.job, world.pipeline, stored, world.store, watermarks)
    world.store.reset_offsets(world.job.name, lowered.offsets(stored), replaced=lowered.replaced, by=lowered.written)


def test_rows_join_again_and_are_not_late(world: World) -> None:
    too_far_ahead(world)
    add(world, "orders", 3, 1_100)
    assert run(world) == 1, "as it is without"
    lower(world, orders=1_050, payments=1_050)
    inputs = started(world).state.inputs
    assert [inputs[name].progress.watermark for name in ("orders", "payments")] == [1_050, 1_050]
    before = rows(world)
    add(world, "orders", 4, 1_100)
    add(world, "payments", 5, 1_110)
    assert run(world) == 0
    assert rows(world) - before == Counter([(4, 5)])


def test_it_never_raises_one_and_leaves_other_inputs_alone(world: World) -> None:
    too_far_ahead(world)
    before = {name: state.progress for name, state in started(world).state.inputs.items()}
    lower(world, orders=2 * HOUR)
    after = {name: state.progress for name, state in started(world).state.inputs.items()}
    assert after == before
    lower(world, orders=1_050)
    after = {name: state.progress for name, state in started(world).state.inputs.items()}
    assert (after["orders"].watermark, after["payments"]) == (1_050, before["payments"])
    assert set(after["orders"].highest.values()) == {1_055}, "or the next epoch would raise it again"


def test_rows_that_went_out_padded_do_not_go_out_again(tmp_path: Path) -> None:
    """The segment of the order that was padded holds the row that is far ahead, too."""
    world = FullWorld(tmp_path)
    try:
        for name, identifier, ts in (("orders", 1, 1_000), ("payments", 2, 1_500)):
            add(world, name, identifier, ts)
            add(world, name, 10 + identifier, HOUR)
        run(world)
        padded = rows(world)
        assert padded == Counter([(1, None), (None, 2), (11, 12)])
        lower(world, orders=900, payments=900)
        add(world, "orders", 3, 1_001)
        add(world, "payments", 4, 1_002)
        assert run(world) == 0
        assert rows(world) - padded == Counter([(3, 4)])
        for name, identifier in (("orders", 21), ("payments", 22)):
            add(world, name, identifier, 2 * HOUR)
        run(world)
        assert max(rows(world).values()) == 1
    finally:
        world.close()


def test_an_input_that_has_ended_stays_ended(world: World) -> None:
    too_far_ahead(world)
    world.end_inputs()
    driver = started(world)
    plan = driver.plan(always=True)
    assert plan is not None
    driver.commit(plan, driver.run(plan))
    with pytest.raises(JoineryError, match="Input orders has ended"):
        lower(world, orders=900)
