"""What an epoch's result and report tell: totals since the state began, whoever drove it, and the hottest keys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count

import pytest

from engine.simulation import World
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.report import EpochReport, PartTotals, StateSize, Totals

pytestmark = pytest.mark.usefixtures("simulated_topics")

_identifiers = count(1)


def add(world: World, name: str, key: str, ts: int, partition: int = 0) -> None:
    world.append(name, partition, key, ts, identifier=next(_identifiers))


def started(world: World, shards: int = 2) -> Driver:
    driver = world.new_driver(shards)
    driver.recover()
    return driver


def epochs(driver: Driver) -> list[EpochReport]:
    reports = []
    while (plan := driver.plan()) is not None:
        reports.append(driver.commit(plan, driver.run(plan)))
    return reports


def test_totals_go_on_under_the_next_driver(world: World) -> None:
    for number in range(4):
        add(world, "orders", "a", 1_000 + number)
    add(world, "payments", "a", 1_000)
    first = started(world)
    reports = epochs(first)
    assert (reports[-1].totals.rows_in, reports[-1].totals.rows_out) == ({"orders": 4, "payments": 1}, 4)
    assert first.state.totals == reports[-1].totals

    second = started(world, shards=3)
    assert second.state.totals == first.state.totals
    assert second.state.committed_at_ms is not None
    assert (
        second.state.size
        == first.state.size
        == StateSize(reports[-1].segments, reports[-1].state_rows, reports[-1].state_bytes)
    )
    add(world, "payments", "a", 1_001)
    (more,) = epochs(second)
    assert more.totals.rows_in == {"orders": 4, "payments": 2}
    assert more.totals.rows_out == 8
    assert (more.rows_in, more.rows_out) == ({"orders": 0, "payments": 1}, 4)


def test_totals_count_late_rows_and_dead_letters(world: World) -> None:
    add(world, "orders", "a", 100_000)
    add(world, "orders", "a", 100_000, 1)
    add(world, "payments", "a", 100_000)
    driver = started(world)
    epochs(driver)
    add(world, "orders", "a", 1)
    world.topics["payments"].append(0, b"no JSON")
    epochs(driver)
    again = started(world)
    totals = again.state.totals
    assert totals == driver.state.totals
    assert (totals.late, totals.dropped, totals.dead["payments"]) == (1, {"orders": {"late": 1}}, 1)


def test_a_log_of_a_release_without_totals_counts_from_its_newest_epoch() -> None:
    result = {
        "rows_in": {"orders:o/0": 3, "orders:o/1": 4, "payments:p/0": 1},
        "rows_out": 2,
        "dropped": {"orders": {"late": 2}},
        "dead": 1,
        "lost": {"o/0": 5},
        "staged": 2,
        "output": [],
        "dead_letters": [],
    }
    totals = Totals.of(result)
    assert totals == Totals({"orders": 7, "payments": 1}, 2, {"orders": {"late": 2}}, {}, 5)
    assert totals.late == 2
    assert Totals.of({"totals": json.loads(json.dumps(totals.to_json()))}) == totals
    assert Totals.of({}) == Totals()


def test_each_side_has_its_statistics_and_they_go_on_under_the_next_driver(world: World) -> None:
    for number in range(4):
        add(world, "orders", "a", 1_000 + number)
    add(world, "payments", "a", 1_000)
    add(world, "payments", "b", 1_001)
    driver = started(world)
    (first,) = epochs(driver)
    # An arrival is looked up in the other side: orders in payments, of which the four rows find one.
    assert first.totals.parts == {
        "left": PartTotals(stored=4, expired=0, lookups=2, matches=4, peak=4),
        "right": PartTotals(stored=2, expired=0, lookups=4, matches=4, peak=2),
    }
    assert {part: size.rows for part, size in first.parts.items()} == {"left": 4, "right": 2}
    assert first.amplification == pytest.approx(4 / 6)
    for name, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
        add(world, name, "c", 50_000, partition)
    again = started(world)
    epochs(again)
    add(world, "orders", "c", 50_001)
    last = epochs(again)[-1]
    assert last.totals.parts["left"] == PartTotals(stored=7, expired=4, lookups=3, matches=7, peak=6)
    assert last.totals.parts["right"].expired == 2
    assert again.state.part_sizes == last.parts
    assert Totals.of({"totals": json.loads(json.dumps(last.totals.to_json()))}) == again.state.totals


def test_hottest_keys_are_told_once_there_is_state_and_then_by_checkpoints(world: World) -> None:
    for number in range(3):
        add(world, "orders", "hot", 1_000 + number)
    add(world, "orders", "cold", 1_004)
    driver = started(world)
    assert [report.hottest for report in epochs(driver)] == [()]
    add(world, "orders", "cold", 1_005)
    (second,) = epochs(driver)
    assert [(key.key, key.rows) for key in second.hottest] == [("k=hot", 3), ("k=cold", 1)]
    for number in range(5):
        add(world, "orders", "cold", 1_006 + number)
    (later,) = epochs(driver)
    assert later.hottest == second.hottest
    world.now_ms += 1_000
    (checkpoint,) = epochs(driver)
    assert [(key.key, key.rows) for key in checkpoint.hottest] == [("k=cold", 7), ("k=hot", 3)]
    assert (checkpoint.amplification, checkpoint.too_hot) == (None, ())


def test_a_recovery_reads_for_the_hottest_keys_nothing_that_its_epoch_does_not_need(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        for name in ("orders", "payments"):
            add(world, name, "hot", 1_000 + number)
            epochs(started(world))
    requested: list[list[str]] = []
    read = world.store.read_segments

    def noted(job: str, keys: Iterable[str]) -> dict[str, bytes]:
        requested.append(sorted(keys))
        return read(job, requested[-1])

    monkeypatch.setattr(world.store, "read_segments", noted)
    driver = world.new_driver(machine=1)
    driver.recover()
    for name, expected in (("payments", []), ("orders", [("k=hot", 7)])):
        add(world, name, "hot", 1_003)
        (report,) = epochs(driver)
        assert [(key.key, key.rows) for key in report.hottest] == expected
    assert [{key.partition("/")[0] for key in keys} for keys in requested] == [{"left"}, {"right"}], "once each"
    assert list(map(len, requested)) == [3, 3]


def test_rows_that_come_late_and_rows_that_come_after_their_partners_are_counted_apart(world: World) -> None:
    """The job is one inner step of [-40, 80] with delays of 5 and 3; watermarks are 1,995 and 1,997."""
    for name, ts in (("orders", 2_000), ("payments", 2_000)):
        add(world, name, "a", ts)
        if name == "orders":
            add(world, name, "a", ts, partition=1)
    driver = started(world)
    epochs(driver)
    for ts in (1_995, 1_994, 1_915, 1_914, 1_900):
        add(world, "orders", "b", ts)
    (report,) = epochs(driver)
    assert report.after_eviction == {"orders": 2}
    assert report.dropped == {"orders": {"late": 2}}
    assert report.totals.behind == {"orders": 95}, "a delay of 95 ms more would have kept all of them"
    again = started(world)
    assert again.state.totals == report.totals
