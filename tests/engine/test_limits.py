"""Caps on the state: what an epoch may not commit, which inputs are not read, and when that can never end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from engine import sim_kafka
from engine.sim_jobs import CHAIN, INNER, parsed
from engine.simulation import World
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.as_of import AsOfJoin
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.limits import InputActivity, Pauses, StateLimits, StateQuota, reject_growth
from joinery_runtime.engine.report import EpochReport, StateSize
from joinery_runtime.errors import LimitReached

FAIL = {"maxRecords": 5}
PAUSE = {"maxRecords": 5, "onLimit": "pause"}


def with_limits(text: str, *limits: Mapping[str, Any]) -> str:
    job = json.loads(text)
    for step, step_limits in zip(job["spec"]["joins"], limits, strict=False):
        step["limits"] = step_limits
    return json.dumps(job)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(text: str, *limits: Mapping[str, Any]) -> World:
        limited = type("Limited", (World,), {"job_text": with_limits(text, *limits)})
        worlds.append(limited(tmp_path))
        return worlds[-1]

    with pytest.MonkeyPatch.context() as patch:
        sim_kafka.install(patch)
        yield make
    for world in worlds:
        world.close()


_identifiers = count(1)


def add(world: World, name: str, *times: int, key: str = "a", partition: int = 0) -> None:
    for ts in times:
        world.append(name, partition, key, ts, identifier=next(_identifiers))


def started(world: World) -> Driver:
    driver = world.new_driver()
    driver.recover()
    return driver


def limited(world: World, *limits: Mapping[str, Any]) -> None:
    """The job is edited."""
    world.job = parsed(with_limits(world.job_text, *limits))


def epochs(driver: Driver) -> list[EpochReport]:
    reports = []
    while (plan := driver.plan()) is not None:
        reports.append(driver.commit(plan, driver.run(plan)))
    return reports


def rows(driver: Driver) -> dict[str, int]:
    return {part: size.rows for part, size in driver.state.part_sizes.items()}


# --- fail -------------------------------------------------------------------------------------------------------------


def test_an_epoch_that_would_grow_over_the_cap_is_not_committed_and_goes_on_under_a_higher_one(
    make_world: Callable[..., World],
) -> None:
    world = make_world(INNER, FAIL)
    add(world, "orders", 1_000, 1_001, 1_002, 1_003)
    driver = started(world)
    epochs(driver)
    add(world, "orders", 1_004, 1_005)
    add(world, "payments", 1_000)
    with pytest.raises(LimitReached) as raised:
        epochs(driver)
    assert "step 1, left side (orders) has 6 rows, maxRecords is 5" in str(raised.value)
    assert "after epoch 2, of which nothing was committed" in str(raised.value)
    assert "Raise limits.maxRecords of that step" in str(raised.value)
    record = world.store.record(world.job.name)
    assert record is not None
    assert (record.committed, record.plan and record.plan["epoch"], driver.epoch) == (1, 2, 1)

    again = started(world)
    with pytest.raises(LimitReached):
        epochs(again)
    limited(world, {"maxRecords": 6})
    higher = started(world)
    (report,) = epochs(higher)
    assert (report.epoch, report.rows_in, report.rows_out) == (2, {"orders": 2, "payments": 1}, 6)
    assert rows(higher) == {"left": 6, "right": 1}
    assert higher.state.totals.rows_in == {"orders": 6, "payments": 1}


def test_bytes_are_capped_too(make_world: Callable[..., World]) -> None:
    world = make_world(INNER, {"maxStateBytes": 100})
    add(world, "payments", 1_000)
    with pytest.raises(LimitReached, match=r"step 1, right side \(payments\) has .* bytes, maxStateBytes is 100,"):
        epochs(started(world))


def test_what_was_over_a_cap_before_it_was_set_may_shrink(make_world: Callable[..., World]) -> None:
    world = make_world(INNER)
    add(world, "orders", 1_000, 1_001, 1_002, 1_003, 1_004, 1_005)
    epochs(started(world))
    limited(world, FAIL)
    driver = started(world)
    add(world, "payments", 5_000)
    for partition in (0, 1):
        add(world, "orders", 5_000, partition=partition)
    with pytest.raises(LimitReached):
        epochs(driver)  # its own rows come first: 8 rows before the old ones go
    before, after = StateSize(1, 8, 10), StateSize(1, 7, 10)
    limits = StateLimits({"left": StateQuota(max_rows=5)})
    reject_growth(limits, world.pipeline, {"left": before}, {"left": after}, 9)
    reject_growth(limits, world.pipeline, {"left": before}, {"left": before}, 9)
    with pytest.raises(LimitReached, match="8 rows"):
        reject_growth(limits, world.pipeline, {"left": after}, {"left": before}, 9)


# --- pause ------------------------------------------------------------------------------------------------------------


def test_a_side_over_its_cap_is_not_read_until_it_has_shrunk(make_world: Callable[..., World]) -> None:
    world = make_world(INNER, PAUSE)
    add(world, "orders", *range(1_000, 1_006))
    driver = started(world)
    (first,) = epochs(driver)
    assert (first.rows_in["orders"], rows(driver)["left"]) == (6, 6)
    assert driver.plan() is None
    assert driver.paused == {"orders": "step 1, left side (orders) has 6 rows, maxRecords is 5"}

    for partition in (0, 1):
        add(world, "orders", 9_000, partition=partition)
    add(world, "payments", 1_003)
    (second,) = epochs(driver)
    assert (second.rows_in, second.rows_out) == ({"orders": 0, "payments": 1}, 6)
    assert second.backlog["orders"] == 2
    assert driver.paused.keys() == {"orders"}

    add(world, "payments", 9_000)  # everything that is kept of orders is behind this
    later = epochs(driver)
    assert [report.rows_in["orders"] for report in later] == [0, 0, 2]
    assert rows(driver)["left"] == 2
    assert (driver.paused, driver.backlog["orders"]) == ({}, 0)
    assert later[-1].rows_out == 1 * 2


def test_when_both_sides_are_paused_it_stops_after_the_commit_and_goes_on_under_a_higher_cap(
    make_world: Callable[..., World],
) -> None:
    world = make_world(INNER, PAUSE)
    add(world, "orders", *range(1_000, 1_006))
    add(world, "payments", *range(1_003, 1_009))
    driver = started(world)
    epochs(driver)
    assert driver.paused.keys() == {"orders", "payments"}
    assert rows(driver) == {"left": 6, "right": 6}
    add(world, "orders", 1_005)
    with pytest.raises(LimitReached) as raised:
        epochs(driver)
    assert "step 1, left side (orders) has 6 rows" in str(raised.value)
    assert "orders waits for it to shrink, and payments is paused or idle too" in str(raised.value)
    assert driver.pending is False
    limited(world, {**PAUSE, "maxRecords": 50})
    (last, *_) = epochs(started(world))
    assert (last.rows_in["orders"], last.rows_out) == (1, 6)


def test_it_stops_too_when_what_it_waits_for_has_become_idle(make_world: Callable[..., World]) -> None:
    world = make_world(INNER, PAUSE)
    add(world, "orders", *range(1_000, 1_006))
    add(world, "payments", 1_000)
    driver = started(world)
    epochs(driver)
    add(world, "orders", 1_010)
    assert epochs(driver) == []
    idle: list[Mapping[str, Any]] = []

    def look() -> None:
        world.now_ms += 10
        if (plan := driver.plan()) is not None:
            idle.append(plan.idle)
            driver.commit(plan, driver.run(plan))

    for _ in range(4):
        look()
    with pytest.raises(LimitReached, match="payments is paused or idle too"):
        look()
    # T4: orders/1 is empty, orders/0 has a record that is not read. The last plan was a checkpoint, which might have
    # helped.
    assert idle == [{"orders": ("orders/1",), "payments": ("payments/0",)}]


def test_of_a_chain_all_inputs_of_the_left_side_are_paused(make_world: Callable[..., World]) -> None:
    world = make_world(CHAIN, {}, {"maxRecords": 3, "onLimit": "pause"})
    for name in ("orders", "payments"):
        add(world, name, 1_000, 1_001)
    driver = started(world)
    epochs(driver)
    assert rows(driver)["left.2"] == 4
    add(world, "orders", 1_002)
    add(world, "refunds", 1_000)
    (report,) = epochs(driver)
    assert report.rows_in == {"orders": 0, "payments": 0, "refunds": 1}
    assert driver.paused.keys() == {"orders", "payments"}
    assert "step 2, left side (orders, payments) has 4 rows" in driver.paused["orders"]
    add(world, "refunds", 5_000)
    epochs(driver)
    assert rows(driver)["left.2"] == 0
    assert driver.backlog["orders"] == 0


def test_it_stops_although_other_inputs_are_read_on(make_world: Callable[..., World]) -> None:
    """The right side of step 1 waits for orders, whose own side is full too; refunds have nothing to do with that."""
    world = make_world(CHAIN, {**PAUSE, "maxRecords": 3}, {})
    add(world, "orders", *range(1_000, 1_004))
    add(world, "payments", *range(1_000, 1_004))
    driver = started(world)
    epochs(driver)
    assert driver.paused.keys() == {"orders", "payments"}
    add(world, "orders", 1_004)
    add(world, "refunds", *range(1_000, 1_040))
    with pytest.raises(LimitReached):
        epochs(driver)
    assert 0 < driver.state.totals.rows_in["refunds"] < 40


# --- what lets rows go ------------------------------------------------------------------------------------------------

ONE = compile_join(parsed(INNER))
BOTH = {"orders": 100, "payments": 100}


def full(part: str, rows: int = 9, pipeline: Pipeline = ONE) -> Pauses:
    limits = StateLimits(dict.fromkeys(pipeline.parts(), StateQuota(max_rows=5, pauses=True)))
    listed = [SegmentMeta(f"{name}/1", name, 0, 9, 10, 20, rows, 100, 1, 1) for name in part.split()]
    return Pauses(limits, pipeline, listed)


def reading(*unread: str, idle: str = "", ended: str = "", marks: Mapping[str, int | None] = BOTH) -> InputActivity:
    return InputActivity(unread, idle.split(), ended.split(), marks)


def of_kind(kind: Any) -> Pipeline:
    return replace(ONE, steps=(replace(ONE.last, kind=kind),))


def test_the_other_side_of_an_interval_lets_rows_go() -> None:
    assert full("left").stuck_error(reading("orders", "payments")) is None
    assert full("left").stuck_error(reading("orders")) is None, "records of payments may come"
    assert full("left right").stuck_error(reading()) is None, "nobody waits"
    assert full("left").stuck_error(reading("orders", idle="payments")) is not None
    assert full("left").stuck_error(reading("orders", ended="payments")) is None
    assert full("left", rows=5).stuck_error(reading("orders", idle="payments")) is None


def test_of_a_window_the_slowest_side_lets_rows_go() -> None:
    windows = of_kind(WindowJoin(Windows(10, 10)))
    paused = full("left", pipeline=windows)
    assert paused.stuck_error(reading("orders", marks={"orders": 100, "payments": 50})) is None
    assert paused.stuck_error(reading("orders", marks={"orders": 100, "payments": None})) is None
    assert paused.stuck_error(reading("orders", marks=BOTH)) is not None
    assert (
        paused.stuck_error(reading("orders", marks={"orders": 100, "payments": END_OF_TIME}, ended="payments"))
        is not None
    )


def test_of_an_as_of_step_only_what_is_read_of_the_side_itself_lets_rows_go() -> None:
    for part, name in (("left", "orders"), ("right", "payments")):
        assert full(part, pipeline=of_kind(AsOfJoin(100, 10))).stuck_error(reading(name)) is not None


def test_a_pause_ends_after_another_one() -> None:
    """The left side of step 2 waits for refunds, the right one of step 1 for orders; refunds are read."""
    chain = compile_join(parsed(CHAIN))
    marks = {"orders": 1, "payments": 1, "refunds": 1}
    assert full("left.2", pipeline=chain).stuck_error(reading("orders", "payments", marks=marks)) is None
    assert full("left.2 right", pipeline=chain).stuck_error(reading("orders", "payments", marks=marks)) is None
    assert full("left.2 right.2", pipeline=chain).stuck_error(reading("orders", marks=marks)) is not None
    assert full("right right.2", pipeline=chain).stuck_error(reading("payments", "refunds", marks=marks)) is None


def test_segments_that_the_next_epoch_drops_are_waited_for() -> None:
    behind = {"left": Horizon(None, 21), "right": Horizon(None, 5)}
    assert full("left").shrinks(behind)
    assert not full("right").shrinks(behind)
    assert not full("left", rows=5).shrinks(behind)
