"""Pins before a migration, which are made once, replaced when they are stale, and not kept for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

import pytest

from joinery_runtime.errors import Fenced, IncompatibleState, RolloutOver, StateError, StoreUnavailable
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.migrations import read_live, unchanged
from joinery_runtime.state.savepoints import MOST_PINS, ensure_pin, never, prune_pins
from joinery_runtime.state.store import JobRecord
from joinery_runtime.state.upgrade import migrate_pinned, rehearse_migration
from state.values import live_keys, run_epoch

JOB = "job"
MIGRATION = "before-state-version-2-epoch-1"
CHAIN = {1: lambda blob: blob + b" to 2"}


@pytest.fixture
def store() -> MemoryStore:
    ticks = count(1)
    return MemoryStore(lambda: next(ticks))


@pytest.fixture
def record(store: MemoryStore) -> JobRecord:
    run_epoch(store, store.acquire(JOB), 1, ["a", "b"])
    return now(store)


def now(store: MemoryStore) -> JobRecord:
    job_record = store.record(JOB)
    assert job_record is not None
    return job_record


def names(store: MemoryStore) -> list[str]:
    return [savepoint.name for savepoint in store.savepoints(JOB)]


def quiet(_: str) -> None:
    pass


def always(_: object) -> bool:
    return True


def test_what_is_pinned_is_the_state_before_the_migration(store: MemoryStore, record: JobRecord) -> None:
    after = migrate_pinned(store, record, CHAIN, 2, quiet)
    assert {meta.state_version for meta in after.segments} == {2}
    assert after == now(store)
    assert names(store) == ["before-state-version-2-epoch-1"]
    assert store.roll_back(JOB, names(store)[0]).segments == record.segments


def test_nothing_to_migrate_pins_nothing(store: MemoryStore, record: JobRecord) -> None:
    assert migrate_pinned(store, record, {}, 1, quiet) is record
    assert names(store) == []


def test_segments_that_are_read_as_they_are_stay_so(store: MemoryStore, record: JobRecord) -> None:
    assert migrate_pinned(store, record, {1: unchanged}, 2, quiet) is record
    assert names(store) == []
    rehearsal = rehearse_migration(store, record, {1: unchanged}, 2)
    assert (rehearsal.versions, rehearsal.segments, rehearsal.to_migrate) == ((1,), 2, 0)


@pytest.mark.parametrize("target", [0, 3])
def test_what_cannot_be_migrated_is_not_pinned(store: MemoryStore, record: JobRecord, target: int) -> None:
    with pytest.raises(IncompatibleState):
        migrate_pinned(store, record, CHAIN, target, quiet)
    assert (names(store), now(store)) == ([], record)


def test_a_driver_that_was_fenced_after_its_migration_stops(store: MemoryStore, record: JobRecord) -> None:
    def another_takes_over(text: str) -> None:
        if "were migrated" in text:
            store.acquire(JOB)

    with pytest.raises(Fenced):
        migrate_pinned(store, record, CHAIN, 2, another_takes_over)


def test_the_newest_automatic_pins_are_kept_and_all_made_by_hand(store: MemoryStore, record: JobRecord) -> None:
    for name in ("by hand", "rollout-1", "before-state-version-2-epoch-1", "rollout-2", "rollout-3", "rollout-4"):
        store.create_savepoint(JOB, name)
    assert prune_pins(store, JOB, "rollout-1") == ["rollout-2", "before-state-version-2-epoch-1"]
    assert names(store) == ["by hand", "rollout-1", "rollout-3", "rollout-4"]
    assert len(names(store)) == MOST_PINS + 1


class TestEnsurePin:
    def test_of_the_same_epoch_it_is_taken_as_it_is(self, store: MemoryStore, record: JobRecord) -> None:
        first = ensure_pin(store, record, "rollout-b")
        again = ensure_pin(store, record, "rollout-b")
        assert (first.origin, again.origin, first.savepoint) == ("created", "there already", again.savepoint)

    @pytest.mark.parametrize(("done", "how", "epoch"), [(True, "kept", 1), (False, "created again", 2)])
    def test_of_an_epoch_before(self, store: MemoryStore, record: JobRecord, done: bool, how: str, epoch: int) -> None:
        ensure_pin(store, record, MIGRATION)
        run_epoch(store, record, 2)
        pin = ensure_pin(store, now(store), MIGRATION, done=lambda _: done)
        assert (pin.origin, pin.savepoint.epoch) == (how, epoch)

    def test_that_of_a_rollout_whose_driver_has_committed_is_kept(self, store: MemoryStore, record: JobRecord) -> None:
        ensure_pin(store, record, "rollout-b")
        run_epoch(store, record, 2)
        assert ensure_pin(store, now(store), "rollout-b", done=always).origin == "kept"

    def test_that_of_a_migration_which_was_undone_is_made_anew(self, store: MemoryStore, record: JobRecord) -> None:
        ensure_pin(store, record, MIGRATION)
        run_epoch(store, store.roll_back(JOB, MIGRATION), 2)
        pin = ensure_pin(store, now(store), MIGRATION, done=always)
        assert (pin.origin, pin.savepoint.epoch, pin.savepoint.rolled_back) == ("created again", 2, False)

    @pytest.mark.parametrize("gone_on", [False, True])
    @pytest.mark.parametrize("over", ["it was rolled back", "another rollout came after it", "without it"])
    def test_a_rollout_that_is_over_does_not_begin_again(
        self, store: MemoryStore, record: JobRecord, over: str, gone_on: bool
    ) -> None:
        ensure_pin(store, record, "rollout-b")
        if over == "it was rolled back":
            record = store.roll_back(JOB, "rollout-b")
        elif over == "another rollout came after it":
            ensure_pin(store, record, "rollout-c")
        if gone_on or over == "without it":
            run_epoch(store, record, 2)
        before = (now(store), store.savepoints(JOB))
        with pytest.raises(RolloutOver, match=over):
            ensure_pin(store, now(store), "rollout-b", done=always if over != "without it" else never)
        assert (now(store), store.savepoints(JOB)) == before

    def test_one_made_by_hand_is_never_replaced(self, store: MemoryStore, record: JobRecord) -> None:
        ensure_pin(store, record, "mine")
        run_epoch(store, record, 2)
        with pytest.raises(StateError, match="Savepoint mine of job job is of another epoch"):
            ensure_pin(store, now(store), "mine")
        assert store.savepoints(JOB)[0].epoch == 1


class TestReadLive:
    def reads(self, store: MemoryStore, record: JobRecord) -> list[str]:
        return [key for _, blobs in read_live(store, record, lambda r: list(r.segments)) for key in blobs]

    def test_all_of_them_in_batches(self, store: MemoryStore) -> None:
        keys = [f"k{n:03}" for n in range(70)]
        run_epoch(store, store.acquire(JOB), 1, keys)
        assert self.reads(store, now(store)) == keys

    def test_big_ones_in_small_batches(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Never more than 128 MiB at once, but for a segment that is bigger itself."""
        run_epoch(store, store.acquire(JOB), 1, [f"k{n}" for n in range(5)])
        record, read = now(store), store.read_segments
        sizes = dict(zip((meta.key for meta in record.segments), (100, 28, 1, 900, 1), strict=True))
        record = replace(
            record, segments=tuple(replace(meta, bytes=sizes[meta.key] * 2**20) for meta in record.segments)
        )
        batches: list[list[int]] = []

        def noted(job: str, keys: Iterable[str]) -> dict[str, bytes]:
            batches.append([sizes[key] for key in keys])
            return read(job, keys)

        monkeypatch.setattr(store, "read_segments", noted)
        self.reads(store, record)
        assert batches == [[100, 28], [1], [900], [1]]

    def test_what_replaced_a_segment_is_read_instead(self, store: MemoryStore, record: JobRecord) -> None:
        run_epoch(store, record, 2, ["c"], deletes=["a"])
        store.sweep(JOB, record.generation)
        assert self.reads(store, record) == ["b", "c"]

    def test_one_that_is_missing_for_good_is_an_error(self, store: MemoryStore, record: JobRecord) -> None:
        del store._jobs[JOB].segments["a"]
        record = replace(record, segments=now(store).segments + record.segments[:1])
        store.record = lambda _: record  # type: ignore[method-assign]
        with pytest.raises(StateError, match="not in the store: a"):
            self.reads(store, record)

    def test_a_store_that_is_away_is_not_asked_again(
        self, store: MemoryStore, record: JobRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[object] = []

        def fail(*arguments: object) -> None:
            calls.append(arguments)
            raise StoreUnavailable("away")

        monkeypatch.setattr(store, "read_segments", fail)
        with pytest.raises(StoreUnavailable):
            self.reads(store, record)
        assert len(calls) == 1


def test_a_rehearsal_that_meets_newer_state_refuses(store: MemoryStore, record: JobRecord) -> None:
    def replaced(keys: object) -> Callable[..., dict[str, bytes]]:
        del keys
        store.migrate(JOB, record.generation, {1: lambda blob: blob, 2: lambda blob: blob}, 3)
        store.sweep(JOB, record.generation)
        return read

    read = store.read_segments
    store.read_segments = lambda job, keys: replaced(keys)(job, keys)  # type: ignore[method-assign]
    with pytest.raises(IncompatibleState, match="newer than this release: it has state_version 3"):
        rehearse_migration(store, record, CHAIN, 2)
    assert len(live_keys(store, JOB)) == 2
