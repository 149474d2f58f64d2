"""What goes out although nothing arrives: epochs without rows (T3, T5, T6), and cascades of a chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.audit import Auditor
from engine.sim_steps import add, epochs, record, rows, started
from engine.simulation import ChainWorld, FullWorld, World
from joinery_runtime.engine.driver import Driver

pytestmark = pytest.mark.usefixtures("simulated_topics")

IDLE = 45  # milliseconds, longer than an input's idleTimeout


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Orders and payments, FULL, within [-10, 20]; delays of 5 and 3."""
    full_world = FullWorld(tmp_path)
    yield full_world
    full_world.close()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[World]:
    chain_world = ChainWorld(tmp_path)
    yield chain_world
    chain_world.close()


# --- epochs without rows ----------------------------------------------------------------------------------------------


def test_what_an_epoch_s_own_rows_close_goes_out_without_a_new_record(world: World) -> None:
    add(world, "orders", 1, 1_000)
    add(world, "orders", 2, 2_000)
    add(world, "payments", 3, 2_000)
    plans = epochs(started(world), Auditor(world))
    assert [bool(plan.ranges) for plan in plans] == [True, False]
    assert rows(world) == Counter([(2, 3), (1, None)])


def test_an_idle_job_does_not_spin(world: World) -> None:
    """Neither with rows that are kept nor with flagged ones that leave in silence."""
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


def test_rows_of_a_transaction_that_is_open_for_long_are_not_late(world: World) -> None:
    """T4: an upstream that commits seldom (a checkpoint each minute, say) is not idle between its commits."""
    driver, auditor = started(world), Auditor(world)
    add(world, "payments", 1, 1_000)
    add(world, "orders", 2, 1_000)
    world.topics["payments"].open_from[0] = 1
    for step in range(1, 6):
        add(world, "payments", 10 + step, 1_000 + step)
        add(world, "orders", 100 * step, 1_000 + 100 * step)
        epochs(driver, auditor)
        world.now_ms += IDLE
    world.topics["payments"].open_from.clear()
    world.topics["payments"].append(0, None)  # the transaction's control record
    epochs(driver, auditor)
    world.end_inputs()
    epochs(driver, auditor)
    assert auditor.late == 0
    assert auditor.pairs == 6, "each payment matches the first order"


def test_when_all_inputs_are_idle_the_clock_may_close_rows(world: World) -> None:
    """T6 with `onIdle: advance`: rows go out when their time has come, and then nothing is planned any more."""
    driver = advancing(world)
    add(world, "orders", 1, 1_000)
    add(world, "payments", 2, 1_050)
    planned: list[int] = []
    for _ in range(40):
        while (plan := driver.plan()) is not None:
            driver.commit(plan, driver.run(plan))
            planned.append(world.now_ms)
        world.now_ms += 100
    assert rows(world) == Counter([(1, None), (None, 2)])
    checkpoint = world.job.spec.state_store.checkpoint_interval
    assert len(planned) <= 5, f"rows, a closing of each side, and what is merged within {checkpoint} ms"
    assert planned[-1] < 2_000


def advancing(world: World) -> Driver:
    """A new driver of the job with `onIdle: advance`, recovered."""
    driver = world.new_driver()
    planner = driver._parts.planner
    planner.clocks = {name: replace(clock, advance_on_idle=True) for name, clock in planner.clocks.items()}
    driver.recover()
    return driver


def idle_until_closed(world: World, driver: Driver, rounds: int) -> None:
    for _ in range(rounds):
        while (plan := driver.plan()) is not None:
            driver.commit(plan, driver.run(plan))
        world.now_ms += 100


def test_the_clock_closes_rows_although_one_input_never_had_a_record(world: World) -> None:
    """T6: it goes on from the watermark of the other one."""
    add(world, "orders", 1, 1_000)
    idle_until_closed(world, advancing(world), 40)
    assert rows(world) == Counter([(1, None)])


def test_an_input_goes_on_from_the_watermark_that_it_was_given(world: World) -> None:
    """T5, then T6: payments were idle when orders went on to 9,000; they need not catch up first."""
    driver = advancing(world)
    add(world, "payments", 1, 1_000)
    add(world, "orders", 2, 1_000)
    idle_until_closed(world, driver, 1)
    add(world, "orders", 3, 9_000)
    idle_until_closed(world, driver, 40)
    assert rows(world) == Counter([(2, 1), (3, None)])


def test_restarts_do_not_begin_the_idle_time_again(world: World) -> None:
    """T6: each driver lives too short for the order to be closed, which takes 5 s."""
    add(world, "orders", 1, 1_000)
    add(world, "payments", 2, 1_000 - 5_000)
    for _ in range(8):
        idle_until_closed(world, advancing(world), 15)
    assert rows(world) == Counter([(1, None), (None, 2)])


def test_a_restart_closes_nothing_a_second_time(world: World) -> None:
    """Two rows in one segment, of which the first one is closed: the segment stays, and so does what was closed."""
    auditor = Auditor(world)
    add(world, "orders", 1, 1_000)
    add(world, "orders", 2, 1_500)
    add(world, "payments", 3, 1_100)
    epochs(started(world), auditor)
    assert rows(world) == Counter([(1, None), (None, 3)])
    (remaining,) = [segment for segment in record(world).segments if segment.part == "left"]
    assert (remaining.ts_min, remaining.ts_max) == (1_000, 1_500)
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
