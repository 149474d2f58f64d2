"""Flags over time: what is committed of them, when they are folded in, when they go; and segments of several shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from engine import sim_kafka
from engine.audit import Auditor
from engine.sim_steps import add, epochs, record, rows, started
from engine.simulation import FullWorld, World
from joinery_runtime.connectors.sink import AttemptId
from joinery_runtime.core.pipeline.sides import FLAGS
from joinery_runtime.core.table import compaction
from joinery_runtime.core.table.columns import FLAGS_SCHEMA, SEGMENT
from joinery_runtime.core.table.segment import MIGRATED, STATE_VERSION, Run, SegmentMeta, describe
from joinery_runtime.engine import driver as driver_module
from joinery_runtime.engine.cache import FlagCache, SegmentCache
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import Worker
from joinery_runtime.state.store import Migration


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Orders and payments, FULL, within [-10, 20]; delays of 5 and 3."""
    sim_kafka.install(monkeypatch)
    full_world = FullWorld(tmp_path)
    yield full_world
    full_world.close()


def flags(world: World) -> list[str]:
    return [segment.key for segment in record(world).segments if segment.part.endswith(".marks")]


def test_flags_are_folded_in_when_their_rows_are_merged_and_dropped_afterwards(
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
    assert len(flags(world)) == 1
    for expected in (1, 0):  # the checkpoint that merges still needs them; the next one finds them useless
        add(world, "payments", 4, 1_000, key="c")
        world.now_ms += 70
        (plan,) = epochs(driver, auditor)
        assert plan.checkpoint
        assert len(flags(world)) == expected
    world.end_inputs()
    epochs(started(world, machine=1), auditor)
    assert rows(world) == Counter({(1, 3): 1, (2, None): 1, (None, 4): 2})
    auditor.check_complete()


def test_flags_that_a_late_attempt_lets_go_of_while_others_are_read_stay_good() -> None:
    """An attempt of an epoch that is over knows nothing of the newest segments."""
    columns = [pa.array([1], field.type) if field.name != SEGMENT else pa.array(["left/1"]) for field in FLAGS_SCHEMA]
    run = Run.view(pa.record_batch(columns, schema=FLAGS_SCHEMA))

    class Emptied:
        def get(self, segments: Sequence[SegmentMeta]) -> list[Run]:
            cache.retain(())
            return [run] * len(segments)

    cache = FlagCache(cast(SegmentCache, Emptied()))
    first, second = (describe(run, key=key, part="left.marks", epoch=1, blob=b"") for key in ("a", "b"))
    assert cache.useless([first], {"left/1"}) == set()
    assert cache.useless([first, second], {"right/1"}) == {"a", "b"}


def lose_an_attempt(world: World) -> None:
    """An epoch that flags a row is run twice by one process, and only the second attempt is committed."""
    driver, auditor = started(world), Auditor(world)
    add(world, "orders", 1, 1_000)
    epochs(driver, auditor)
    add(world, "payments", 2, 1_000)
    plan = driver.plan()
    assert plan is not None
    driver.run(plan)
    driver.commit(plan, driver.run(plan))
    end(world, auditor)
    assert rows(world) == Counter([(1, 2)])


def checkpoint_before_merging(world: World) -> None:
    """A checkpoint at which the flagged row stays where it is."""
    driver, auditor = started(world), Auditor(world)
    add(world, "orders", 1, 1_000)
    epochs(driver, auditor)
    add(world, "payments", 2, 1_000)
    epochs(driver, auditor)
    world.now_ms += 70
    add(world, "payments", 3, 1_001)
    (plan,) = epochs(driver, auditor)
    assert plan.checkpoint
    end(world, auditor)
    assert rows(world) == Counter([(1, 2), (1, 3)])


def end(world: World, auditor: Auditor) -> None:
    """Under a driver that knows what is committed, and no more."""
    world.end_inputs()
    epochs(started(world, machine=1), auditor)
    auditor.check_complete()


@pytest.mark.parametrize("history", [lose_an_attempt, checkpoint_before_merging])
def test_flags_are_there_as_long_as_their_rows_are(world: World, history: Callable[[World], None]) -> None:
    history(world)


def test_flags_are_about_their_rows_whatever_these_are_called_after_migrations(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags from before a migration, from between two, and some of both that are merged."""
    driver = started(world, shards=1)
    for identifier, key in enumerate("abc", start=1):
        world.append("orders", 0, key, 1_000, identifier=identifier)
    run_all(driver)
    for number, key in enumerate("ab", start=2):
        add(world, "payments", 10 + number, 1_000, key=key)
        run_all(driver)
        migrate_to(world, STATE_VERSION + number - 1, monkeypatch)
        driver = started(world, shards=1)
    (orders,) = [segment for segment in record(world).segments if segment.part == "left"]
    assert orders.key.count(MIGRATED) == 2
    monkeypatch.setattr(compaction, "CHECKPOINT_FAN_IN", 2)
    for payment, checkpoint in ((14, False), (15, True)):
        add(world, "payments", payment, 1_001, key="a")
        assert [plan.checkpoint for plan in run_all(driver)] == [checkpoint]
        world.now_ms += 70
    world.end_inputs()
    run_all(started(world, machine=1))
    assert rows(world) == Counter([(1, 12), (1, 14), (1, 15), (2, 13), (3, None)])


def run_all(driver: Driver) -> list[EpochPlan]:
    """Without an auditor, which takes migrated segments for others."""
    plans = []
    while (plan := driver.plan()) is not None:
        driver.commit(plan, driver.run(plan))
        plans.append(plan)
    return plans


def migrate_to(world: World, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with that state version, whose migration changes nothing."""
    before = record(world)
    chain: dict[int, Migration] = dict.fromkeys(range(STATE_VERSION, version), lambda blob: blob)
    assert world.store.migrate(before.job, before.generation, chain, version) == len(before.segments)
    for name, value in {"STATE_VERSION": version, "MIGRATIONS": chain}.items():
        monkeypatch.setattr(driver_module, name, value)


class BelievesWhatItStaged(Worker):
    """Flags of attempts count in the process that made them, committed or not."""

    def _stage_runs(
        self, attempt: AttemptId, runs: Iterable[tuple[str, Run]], co_partitions: int
    ) -> tuple[SegmentMeta, ...]:
        staged = super()._stage_runs(attempt, runs, co_partitions)
        for meta in staged:
            if meta.part.endswith(FLAGS):
                (rows_of,) = self._flag_cache._rows_of([meta])
                for segment, numbers in rows_of.items():
                    self._flag_cache._flagged[segment].rows[numbers] = True
        return staged


def test_flags_of_lost_attempts_that_count_are_found(world: World) -> None:
    world.worker_type = BelievesWhatItStaged
    with pytest.raises(AssertionError, match="counted other rows"):
        lose_an_attempt(world)


def test_flags_that_are_dropped_too_early_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlagCache, "useless", lambda _, flags, live: {meta.key for meta in flags})
    with pytest.raises(AssertionError, match="counted other rows"):
        checkpoint_before_merging(world)


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
        summaries = {task: replace(outcome.shards[task], finished=(spread.key,)) for task in telling}
        driver.commit(plan, replace(outcome, shards={**outcome.shards, **summaries}))
        assert (spread.key in {segment.key for segment in record(world).segments}) is expected
