"""A plan that is too large for memory is made smaller, as long as nothing of it is visible."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from engine.sim_jobs import INNER
from engine.sim_run import small_world
from engine.sim_steps import record
from engine.simulation import World
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.epoch_budget import (
    UNKNOWN_BYTES,
    Budget,
    RecordSizes,
    RowSpread,
    allowed_bytes,
    is_small,
    smaller_plan,
)
from joinery_runtime.engine.loop import JobListener, Outages, run_until_stopped
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import PlanTooLarge
from joinery_runtime.formats.batch import PartitionRef

A, B, TABLE = (PartitionRef(name, name, 0) for name in ("a", "b", "table"))
ANOTHER_OF_A = PartitionRef("a", "a", 1)
MB = 1_000_000


def plan_of(*ranges: Range, tables_read: tuple[str, ...] = ()) -> EpochPlan:
    return EpochPlan(7, 2, ranges, {"a": 5, "b": None}, ended=("c",), checkpoint=True, tables_read=tables_read)


def sizes_of(**bytes_by_input: int) -> RecordSizes:
    sizes = RecordSizes()
    for name, size in bytes_by_input.items():
        sizes.observe(PartitionRef(name, name, 0), 10, 10 * size)
    return sizes


def count(planned: Range, _: float) -> int:
    return planned.end_exclusive - planned.start


def cut(planned: Range, records: int) -> Range:
    return Range(planned.partition, planned.start, planned.start + records)


def smaller(plan: EpochPlan, sizes: RecordSizes, budget: Budget) -> list[tuple[int, int]] | None:
    reduced = smaller_plan(plan, sizes, budget, count, cut)
    return None if reduced is None else [(r.start, r.end_exclusive) for r in reduced.ranges]


def test_a_size_rises_at_once_and_falls_slowly() -> None:
    sizes = sizes_of(a=100)
    assert (sizes.get(A), sizes.get(ANOTHER_OF_A), sizes.get(B)) == (100, 100, None)
    sizes.observe(A, 1, MB)
    assert sizes.get(A) == MB
    sizes.observe(A, 1, 0)
    assert sizes.get(A) == 0.75 * MB
    sizes.observe(A, 0, 0)
    assert sizes.get(A) == 0.75 * MB


def test_ranges_share_twice_the_bytes_of_an_epoch() -> None:
    ranges = [Range(A, 0, 900), Range(B, 50, 150), Range(TABLE, 3, 3)]
    assert allowed_bytes(ranges, RecordSizes(), Budget(1, 1_000), count) == {A: 1_400, B: 600}
    learnt = sizes_of(b=9 * int(UNKNOWN_BYTES))
    assert allowed_bytes(ranges, learnt, Budget(1, 1_000), count) == {A: 1_000, B: 1_000}


def test_a_range_yields_at_most_twice_the_budget_of_a_process() -> None:
    several = Budget(1, 1_000, bytes_per_process=True).for_processes(4)
    assert allowed_bytes([Range(A, 0, 900)], RecordSizes(), several, count) == {A: 2_000}
    ranges = [Range(A, 0, 900), Range(B, 50, 150)]
    assert allowed_bytes(ranges, RecordSizes(), several, count) == {A: 2_000, B: 2_000}


def test_only_limits_that_a_job_does_not_name_grow_with_processes() -> None:
    budget = Budget(100, 1_000, records_per_process=True)
    assert (budget.for_processes(2.5).records, budget.for_processes(2.5).bytes) == (250, 1_000)
    budget = Budget(100, 1_000, bytes_per_process=True)
    assert (budget.for_processes(2.5).records, budget.for_processes(2.5).bytes) == (100, 2_500)


def spread_of(*epochs: dict[tuple[int, int], int], records: int = 400, size: int = 0) -> RowSpread:
    """Of epochs that have read 400 rows each, under a budget of 100 records and 1,000 bytes."""
    spread = RowSpread(Budget(100, 1_000))
    for rows in epochs:
        spread.observe(records, size, 400, 4, rows)
    return spread


EVEN = {(0, shard): 100 for shard in range(4)}


def test_the_fullest_process_of_any_step_says_how_many_are_filled() -> None:
    assert spread_of().filled_processes(8) == 1, "nothing is known"
    assert [spread_of(EVEN).filled_processes(count) for count in (1, 2, 3, 8)] == [1, 2, 2, 4], "by whole shards"
    hot_in_second_step = EVEN | {(1, 0): 300, (1, 3): 50}
    assert spread_of(hot_in_second_step).filled_processes(4) == pytest.approx(400 / 300)
    every_row_in_each_shard = dict.fromkeys(EVEN, 500)
    assert spread_of(every_row_in_each_shard).filled_processes(4) == 1


def test_the_least_spread_of_several_epochs_counts() -> None:
    hot = {(0, 0): 200, (0, 1): 100, (0, 2): 50, (0, 3): 50}
    assert spread_of(hot, *[EVEN] * (RowSpread.EPOCHS - 1)).filled_processes(4) == 2
    assert spread_of(hot, *[EVEN] * RowSpread.EPOCHS).filled_processes(4) == 4


@pytest.mark.parametrize(("records", "size", "filled"), [(400, 0, 4), (150, 0, 3), (0, 1_500, 3), (30, 0, 1)])
def test_an_epoch_is_evidence_for_one_of_twice_its_size(records: int, size: int, filled: float) -> None:
    """One key may have the backlog that follows a quiet time."""
    assert spread_of(EVEN, records=records, size=size).filled_processes(4) == filled


def test_small_epochs_are_no_evidence() -> None:
    spread = spread_of(EVEN)
    for _ in range(RowSpread.EPOCHS):
        spread.observe(24, 0, 24, 4, {(0, 0): 24})
    assert spread.filled_processes(4) == 1, "the newest epoch was small"
    spread.observe(400, 0, 400, 4, EVEN)
    assert spread.filled_processes(4) == 4


def test_a_single_record_may_be_of_any_size() -> None:
    assert allowed_bytes([Range(A, 4, 5), Range(B, 1, 1)], sizes_of(a=MB), Budget(1, 1), count) == {}
    assert smaller(plan_of(Range(A, 4, 5)), sizes_of(a=MB), Budget(1, 1)) is None


def test_a_plan_within_the_limits_stays() -> None:
    plan = plan_of(Range(A, 0, 61), Range(B, 0, 41))
    assert smaller(plan, RecordSizes(), Budget(100, 1)) is None, "a little more does no harm"
    assert smaller(plan, sizes_of(a=100, b=100), Budget(100, 10_000)) is None


def test_ranges_are_shortened_alike() -> None:
    plan = plan_of(Range(A, 100, 400), Range(B, 0, 100), Range(TABLE, 5, 5))
    assert smaller(plan, RecordSizes(), Budget(40, 1)) == [(100, 130), (0, 10), (5, 5)]
    assert smaller(plan, sizes_of(a=MB), Budget(1_000, 30 * MB)) == [(100, 130), (0, 10), (5, 5)]
    assert smaller(plan, sizes_of(a=MB, b=MB), Budget(1_000, 1)) == [(100, 101), (0, 0), (5, 5)]


def test_a_smaller_plan_is_the_same_epoch() -> None:
    """A table that is not read to its first end any more is not said to be."""
    plan = plan_of(Range(A, 0, 10), Range(TABLE, 0, 500), tables_read=("b", "table"))
    reduced = smaller_plan(plan, RecordSizes(), Budget(51, 1), count, cut)
    assert reduced is not None
    assert reduced == plan_of(Range(A, 0, 1), Range(TABLE, 0, 50), tables_read=("b",))


def test_the_error_travels_with_what_was_read() -> None:
    error = PlanTooLarge("too large", facts="f", todo="t", read=("a", "topic", 3, 10, MB))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.read) == (str(error), error.read)


# --- in a job ---------------------------------------------------------------------------------------------------------


class LargeRecords(World):
    job_text = INNER.replace('"maxRecordsPerEpoch": 6', '"maxRecordsPerEpoch": 1000, "maxBytesPerEpoch": 65536')


def test_large_records_that_nobody_expected_are_read_in_small_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 records of 10 kB, planned as if they had 1 kB: reading stops at twice the limit, and what was planned is made
    smaller until it fits; then sizes are known."""
    small_world(monkeypatch)
    world = LargeRecords(tmp_path)
    for number in range(40):
        for name in world.topics:
            world.append(name, 0, "x" * 10_000, 1_000 + number, identifier=number)
    world.end_inputs()
    driver = world.new_driver()
    noticed: list[str] = []
    listener = JobListener(
        lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)), warned=noticed.append
    )
    drivers: list[Driver] = []

    def make_driver() -> Driver:
        drivers.append(Driver(world.identity, world.pipeline, driver._parts, lambda: world.now_ms, lambda: None))
        return drivers[-1]

    stop = threading.Event()
    run_until_stopped(make_driver, stop, listener, Outages(listener, stop))
    assert 1 <= len(noticed) == len(drivers) - 1 <= 4
    assert "holds more bytes than trigger.maxBytesPerEpoch allows" in noticed[0]
    planned = [entry.plan["ranges"] for entry in world.store.epochs(world.job.name)]
    assert max(sum(end - start for *_, start, end in ranges) for ranges in planned) <= 8
    assert len(world.output.table) == len(set(world.output.table)) == 40 * 40
    assert record(world).plan is None
    world.close()


# --- small epochs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records_of_a", "records_of_b", "small"),
    [(0, 0, True), (4_096, 0, True), (4_000, 96, True), (4_000, 97, False), (96, 1_000, True), (96, 1_048, False)],
    ids=["nothing", "all", "of both", "too many", "few", "too many bytes"],
)
def test_an_epoch_is_small_by_its_records_and_by_their_bytes(records_of_a: int, records_of_b: int, small: bool) -> None:
    sizes = sizes_of(a=10, b=1_000 if records_of_a < 4_000 else 10)
    ranges = [Range(A, 5, 5 + records_of_a), Range(B, 7, 7 + records_of_b)]
    assert is_small(ranges, sizes, count) is small


def test_records_of_an_unknown_size_are_not_taken_for_small_ones() -> None:
    sizes = RecordSizes()
    for records, small in ((1_024, True), (1_025, False)):
        assert is_small([Range(A, 0, records)], sizes, count) is small
