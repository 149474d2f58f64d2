"""What goes out although nothing arrives: epochs without rows (T3, T5, T6), cascades of a chain, marks over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import sim_kafka
from engine.audit import Auditor
from engine.simulation import ChainWorld, FullWorld, World
from joinery_runtime.core import compaction
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.state.store import JobRecord

IDLE = 45  # milliseconds, longer than an input's idleTimeout


@pytest.fixture(autouse=True)
def _simulated_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    sim_kafka.install(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Orders and payments, FULL, within [-10, 20]; delays of 5 and 3."""
    made = FullWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[World]:
    made = ChainWorld(tmp_path)
    yield made
    made.close()


def add(world: World, name: str, identifier: int, ts: int, key: str = "a") -> None:
    """To every partition, so that none holds the watermark back; what is added to others has no key."""
    for partition in range(len(world.topics[name].partitions)):
        world.append(name, partition, key if partition == 0 else None, ts, identifier=identifier + 1_000 * partition)


def started(world: World, **settings: Any) -> Driver:
    driver, _ = world.new_driver(**settings)
    driver.recover()
    return driver


def epochs(driver: Driver, auditor: Auditor) -> list[EpochPlan]:
    """Until there is nothing to do."""
    plans = []
    while (plan := driver.plan()) is not None:
        driver.commit(plan, driver.run(plan))
        auditor.check()
        plans.append(plan)
        assert len(plans) < 50, "the job spins"
    return plans


def record(world: World) -> JobRecord:
    found = world.store.record(world.job.name)
    assert found is not None
    return found


def rows(world: World) -> Counter[tuple[int | None, ...]]:
    """Output rows of keys that are not null."""
    return Counter(row for row in world.output.table if all(found is None or found < 1_000 for found in row))


# --- epochs without rows ----------------------------------------------------------------------------------------------


def test_what_an_epoch_s_own_rows_close_goes_out_without_a_new_record(world: World) -> None:
    add(world, "orders", 1, 1_000)
    add(world, "orders", 2, 2_000)
    add(world, "payments", 3, 2_000)
    plans = epochs(started(world), Auditor(world))
    assert [bool(plan.ranges) for plan in plans] == [True, False]
    assert rows(world) == Counter([(2, 3), (1, None)])


def test_an_idle_job_does_not_spin(world: World) -> None:
    """Neither with rows that are kept nor with marked ones that leave in silence."""
    add(world, "orders", 1, 1_000)
    add(world, "payments", 2, 1_000)
    driver, auditor = started(world), Auditor(world)
    epochs(driver, auditor)
    for _ in range(5):
        world.now_ms += IDLE
        assert len(epochs(driver, auditor)) <= 1, "a checkpoint"
    assert rows(world) == Counter([(1, 2)])


def test_rows_that_an_idle_input_held_back_go_out_without_a_new_record_of_it(world: World) -> None:
    """T5: what the others reach counts for it; T6: when all are idle nothing moves any more."""
    driver, auditor = started(world), Auditor(world)
    add(world, "orders", 1, 1_000)
    add(world, "payments", 2, 900)
    epochs(driver, auditor)
    world.now_ms += IDLE
    driver.plan()
    add(world, "orders", 3, 2_000)
    world.now_ms += IDLE
    assert driver.plan() is not None
    epochs(driver, auditor)
    assert rows(world) == Counter([(None, 2), (1, None)])
    world.now_ms += 10 * IDLE
    epochs(driver, auditor)
    assert rows(world) == Counter([(None, 2), (1, None)])
    world.end_inputs()
    epochs(driver, auditor)
    assert rows(world) == Counter([(None, 2), (1, None), (3, None)])


def test_when_all_inputs_are_idle_the_clock_may_close_rows(world: World) -> None:
    """T6 with `onIdle: advance`: rows go out when their time has come, and then nothing is planned any more."""
    driver, planner = world.new_driver()
    planner.clocks = {name: replace(clock, advance_on_idle=True) for name, clock in planner.clocks.items()}
    driver.recover()
    add(world, "orders", 1, 1_000)
    add(world, "payments", 2, 1_050)
    planned: list[int] = []
    for _ in range(40):
        while (plan := driver.plan()) is not None:
            driver.commit(plan, driver.run(plan))
            planned.append(world.now_ms)
        world.now_ms += 10
    assert rows(world) == Counter([(1, None), (None, 2)])
    checkpoint = world.job.spec.state_store.checkpoint_interval
    assert len(planned) <= 5, f"rows, a closing of each side, and what is merged within {checkpoint} ms"
    assert planned[-1] < 200


def test_a_restart_closes_nothing_a_second_time(world: World) -> None:
    """Two rows in one segment, of which the first one is closed: the segment stays, and so does what was closed."""
    auditor = Auditor(world)
    add(world, "orders", 1, 1_000)
    add(world, "orders", 2, 1_500)
    add(world, "payments", 3, 1_100)
    epochs(started(world), auditor)
    assert rows(world) == Counter([(1, None), (None, 3)])
    (kept,) = [segment for segment in record(world).segments if segment.part == "left"]
    assert (kept.ts_min, kept.ts_max) == (1_000, 1_500)
    add(world, "payments", 4, 1_101)
    epochs(started(world), auditor)
    assert rows(world) == Counter([(1, None), (None, 3), (None, 4)])


# --- chains -----------------------------------------------------------------------------------------------------------


def fill(chain: World) -> None:
    """The order has no payment: it leaves the first step when that closes it, and waits in the second for refunds."""
    for name, identifier, ts in (("orders", 1, 1_000), ("payments", 2, 800), ("refunds", 3, 800)):
        add(chain, name, identifier, ts)


def test_a_cascade_of_closings_comes_to_its_end_by_itself(chain: World) -> None:
    """Each step closes in an epoch of its own what the one before let out."""
    driver, auditor = started(chain), Auditor(chain)
    fill(chain)
    epochs(driver, auditor)
    assert rows(chain) == Counter()
    for name, identifier in (("orders", 4), ("payments", 5), ("refunds", 6)):
        add(chain, name, identifier, 5_000)
    plans = epochs(driver, auditor)
    assert [bool(plan.ranges) for plan in plans] == [True, False, False]
    assert rows(chain) == Counter([(1, None, None), (None, None, 3), (4, 5, 6)])


@pytest.mark.parametrize("restart_at", range(4))
@pytest.mark.parametrize("replayed", [False, True], ids=["between epochs", "in an epoch"])
def test_a_restart_in_the_middle_of_a_cascade(chain: World, restart_at: int, replayed: bool) -> None:
    auditor = Auditor(chain)
    driver = started(chain)
    fill(chain)
    epochs(driver, auditor)
    for name, identifier in (("orders", 4), ("payments", 5), ("refunds", 6)):
        add(chain, name, identifier, 5_000)
    for number in range(10):
        if number == restart_at:
            if replayed and (plan := driver.plan()) is not None:
                driver.run(plan)
            driver = started(chain, shards=3, machine=number)
        plan = driver.plan()
        if plan is not None:
            driver.commit(plan, driver.run(plan), last=number + 1 == restart_at)
            auditor.check()
    assert rows(chain) == Counter([(1, None, None), (None, None, 3), (4, 5, 6)])


# --- marks ------------------------------------------------------------------------------------------------------------


def marks(world: World) -> list[str]:
    return [segment.key for segment in record(world).segments if segment.part.endswith(".marks")]


def test_marks_are_folded_in_when_their_rows_are_merged_and_dropped_afterwards(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "CHECKPOINT_FAN_IN", 2)
    driver, auditor = started(world, shards=1), Auditor(world)
    add(world, "orders", 1, 1_000)
    epochs(driver, auditor)
    add(world, "orders", 2, 1_001, key="b")
    epochs(driver, auditor)
    add(world, "payments", 3, 1_000)
    epochs(driver, auditor)
    assert len(marks(world)) == 1
    for expected in (1, 0):  # the checkpoint that merges still needs them; the next one finds them useless
        add(world, "payments", 4, 1_000, key="c")
        world.now_ms += 70
        (plan,) = epochs(driver, auditor)
        assert plan.checkpoint
        assert len(marks(world)) == expected
    world.end_inputs()
    epochs(started(world, machine=1), auditor)
    assert rows(world) == Counter({(1, 3): 1, (2, None): 1, (None, 4): 2})
    auditor.check_complete()


def test_marks_that_were_only_staged_do_not_count(world: World) -> None:
    """An attempt whose epoch was not committed, in the process that runs it again."""
    driver, auditor = started(world), Auditor(world)
    add(world, "orders", 1, 1_000)
    epochs(driver, auditor)
    add(world, "payments", 2, 1_000)
    plan = driver.plan()
    assert plan is not None
    driver.run(plan)
    driver.commit(plan, driver.run(plan))
    auditor.check()
    assert len(marks(world)) == 1
    world.end_inputs()
    epochs(started(world, machine=1), auditor)
    assert rows(world) == Counter([(1, 2)])


def test_a_finished_segment_of_several_shards_is_dropped_when_all_of_them_say_so(world: World) -> None:
    driver, auditor = started(world, shards=1), Auditor(world)
    for identifier, key in enumerate("abcdef"):
        world.append("orders", 0, key, 1_000, identifier=identifier)
    epochs(driver, auditor)
    (spread,) = record(world).segments
    driver = started(world, shards=2)
    for expected, telling in ((True, [(0, 0)]), (True, [(0, 1)]), (False, [(0, 0), (0, 1)])):
        add(world, "payments", 99, 1_000, key="z")
        plan = driver.plan()
        assert plan is not None
        outcome = driver.run(plan)
        told = {task: replace(outcome.shards[task], finished=(spread.key,)) for task in telling}
        driver.commit(plan, replace(outcome, shards={**outcome.shards, **told}))
        assert (spread.key in {segment.key for segment in record(world).segments}) is expected
