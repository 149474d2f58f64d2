"""What every StateStore does: the port's contract, run against memory and a real Postgres."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.core.table.blob import to_blob
from joinery_runtime.core.table.segment import encode
from joinery_runtime.errors import Fenced, IncompatibleState, StateError
from joinery_runtime.state import decisions
from joinery_runtime.state.migrations import unchanged
from joinery_runtime.state.store import JobRecord, OwnershipToken, StateStore
from state.values import DEFINITION, commit_of, live_keys, offsets_of, run_epoch, segment


class EffectError(Exception):
    pass


def planned_for_ms(store: StateStore, job: str) -> int:
    record = store.record(job)
    assert record is not None
    return record.planned_for_ms


def wait_until(holds: Callable[[], bool]) -> float:
    """When it first held, by the monotonic clock."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
    return time.monotonic()


def elapsed_ms(since: float) -> float:
    return (time.monotonic() - since) * 1000


class TestDrivers:
    def test_a_job_starts_with_nothing(self, store: StateStore, job: str) -> None:
        assert store.record(job) is None
        record = store.acquire(job)
        assert (record.job, record.generation, record.epoch) == (job, 1, 0)
        assert (record.plan, record.signature, dict(record.offsets), record.segments) == (None, None, {}, ())
        assert (record.definition, record.planned_for_ms) == (None, 0)
        assert str(uuid.UUID(record.incarnation)) == record.incarnation
        assert store.record(job) == record

    def test_all_who_open_a_store_know_it_by_one_identity(self, driver: Callable[[], StateStore], job: str) -> None:
        (identity,) = {driver().identity() for _ in range(3)}
        assert str(uuid.UUID(identity.id)) == identity.id
        assert identity.location
        assert StoreIdentity.parse(identity.metadata()) == identity
        assert StoreIdentity.parse('{"lineage": "a marker"}') is None
        assert StoreIdentity.parse(None) is None

    def test_each_driver_gets_the_next_generation(self, driver: Callable[[], StateStore], job: str) -> None:
        assert [driver().acquire(job).generation for _ in range(3)] == [1, 2, 3]

    def test_a_new_driver_gets_all_that_was_committed_and_the_pending_plan(
        self, driver: Callable[[], StateStore], job: str
    ) -> None:
        old = driver()
        run_epoch(
            old, old.acquire(job), 1, ["b", "a"], offsets={"orders": b"\x00\xff", "rates": b""}, next_plan={"epoch": 2}
        )
        record = driver().acquire(job)
        assert (record.generation, record.epoch, record.plan) == (2, 1, {"epoch": 2})
        assert record.segments == (segment("a")[0], segment("b")[0])
        assert record.offsets == {"orders": b"\x00\xff", "rates": b""}
        assert record.signature == {"keys": ["id"]}

    @pytest.mark.parametrize("call", ["write_plan", "commit", "sweep", "migrate"])
    def test_an_older_generation_is_fenced_from_every_write(
        self, driver: Callable[[], StateStore], job: str, call: str
    ) -> None:
        old, new = driver(), driver()
        generation = old.acquire(job).generation
        old.stage(job, [segment("a")])
        before = new.acquire(job)
        arguments: dict[str, tuple[Any, ...]] = {
            "write_plan": ({"epoch": 1}, DEFINITION),
            "commit": (commit_of(1, ["a"]),),
            "sweep": (),
            "migrate": ({}, 1),
        }
        with pytest.raises(Fenced, match="its generation is 1, the store's is 2"):
            getattr(old, call)(job, generation, *arguments[call])
        assert new.record(job) == before

    def test_two_jobs_do_not_see_each_other(self, store: StateStore, job: str) -> None:
        other = f"{job}-other"
        mine, theirs = store.acquire(job), store.acquire(other)
        store.stage(other, [segment("k", blob=b"theirs")])
        run_epoch(store, mine, 1, ["k"], offsets={"orders": b"mine"})
        assert store.record(other) == theirs
        store.commit(other, theirs.generation, commit_of(1, ["k"], offsets={"orders": b"theirs"}))
        store.create_savepoint(other, "sp")
        assert store.read_segments(job, ["k"]) == {"k": b"blob of k"}
        assert offsets_of(store, job) == {"orders": b"mine"}
        assert store.savepoints(job) == []
        store.delete_job(other)
        assert live_keys(store, job) == ["k"]
        assert len(store.epochs(job)) == 1

    def test_of_two_commits_at_once_exactly_one_wins(self, driver: Callable[[], StateStore], job: str) -> None:
        stores = [driver(), driver()]
        record = stores[0].acquire(job)
        stores[0].stage(job, [segment("a"), segment("b")])
        together, wins, losses = threading.Barrier(2), [], []

        def attempt(store: StateStore, key: str) -> None:
            together.wait()
            try:
                store.commit(job, record.generation, commit_of(1, [key]))
                wins.append(key)
            except StateError as error:
                losses.append(str(error))

        threads = [threading.Thread(target=attempt, args=pair) for pair in zip(stores, "ab", strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == 1
        assert len(losses) == 1
        assert "cannot commit epoch 1" in losses[0]
        assert live_keys(stores[0], job) == wins


class TestPlans:
    def test_the_pending_plan_is_kept_as_it_was_written(self, store: StateStore, job: str) -> None:
        plan = {"epoch": 1, "b": [1, 2.5, None, {"text": "\x00\ud800é"}], "a": {"big": 2**64 - 1, "float": 1e16}}
        generation = store.acquire(job).generation
        store.write_plan(job, generation, plan, DEFINITION)
        record = store.acquire(job)
        assert record.plan == plan
        assert list(record.plan) == list(plan)
        assert isinstance(record.plan["a"]["float"], float)

    def test_a_plan_for_another_epoch_is_refused(self, store: StateStore, job: str) -> None:
        generation = store.acquire(job).generation
        for plan in ({"epoch": 2}, {}):
            with pytest.raises(StateError, match="the next one is 1"):
                store.write_plan(job, generation, plan, DEFINITION)

    def test_a_pending_plan_is_not_replaced_but_may_be_written_again(self, store: StateStore, job: str) -> None:
        generation = store.acquire(job).generation
        store.write_plan(job, generation, {"epoch": 1, "ends": (5,)}, DEFINITION)
        store.write_plan(job, generation, {"epoch": 1, "ends": (5,)}, DEFINITION)
        with pytest.raises(StateError, match="another plan for epoch 1"):
            store.write_plan(job, generation, {"epoch": 1, "ends": (6,)}, DEFINITION)
        assert store.acquire(job).plan == {"epoch": 1, "ends": [5]}

    def test_a_pending_plan_is_replaced_by_who_names_it(self, store: StateStore, job: str) -> None:
        older = store.acquire(job).generation
        plan, smaller = {"epoch": 1, "ends": [5]}, {"epoch": 1, "ends": [2]}
        store.write_plan(job, older, plan, DEFINITION)
        newest = store.acquire(job).generation
        with pytest.raises(Fenced):
            store.write_plan(job, older, smaller, DEFINITION, replacing=plan)
        with pytest.raises(StateError, match="another plan for epoch 1"):
            store.write_plan(job, newest, smaller, DEFINITION, replacing={"epoch": 1, "ends": [4]})
        for _ in range(2):
            store.write_plan(job, newest, smaller, DEFINITION, replacing=plan)
        record = store.record(job)
        assert (record.plan, record.definition) == (smaller, DEFINITION)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes"])
    def test_what_is_not_json_is_refused(self, store: StateStore, job: str, value: object) -> None:
        generation = store.acquire(job).generation
        with pytest.raises(StateError, match="not JSON"):
            store.write_plan(job, generation, {"epoch": 1, "value": value}, DEFINITION)
        with pytest.raises(StateError, match="not JSON"):
            store.write_plan(job, generation, {"epoch": 1}, {"value": value})
        for name in ("result", "definition"):
            with pytest.raises(StateError, match="not JSON"):
                store.commit(job, generation, commit_of(1, **{name: {"value": value}}))

    def test_the_definition_is_stored_with_the_plan_and_stays_under_it(self, store: StateStore, job: str) -> None:
        generation = store.acquire(job).generation
        definition = {"spec": {"b": "\x00é", "a": 1e16}}
        store.write_plan(job, generation, {"epoch": 1}, definition)
        store.write_plan(job, generation, {"epoch": 1}, definition)
        with pytest.raises(StateError, match="this plan for epoch 1 under another definition"):
            store.write_plan(job, generation, {"epoch": 1}, {"spec": {}})
        with pytest.raises(StateError, match="another plan for epoch 1"):
            store.write_plan(job, generation, {"epoch": 1, "ends": 5}, {"spec": {}})
        record = store.acquire(job)
        assert (record.plan, record.definition) == ({"epoch": 1}, definition)
        assert list(record.definition["spec"]) == ["b", "a"]

    def test_how_long_a_plan_has_been_pending(self, store: StateStore, job: str) -> None:
        generation = store.acquire(job).generation
        store.write_plan(job, generation, {"epoch": 1}, DEFINITION)
        reached = wait_until(lambda: planned_for_ms(store, job) >= 30)
        store.write_plan(job, generation, {"epoch": 1}, DEFINITION)  # no new plan, so no younger one
        assert store.acquire(job).planned_for_ms >= 30
        store.commit(job, generation + 1, commit_of(1, next_plan={"epoch": 2}))
        assert planned_for_ms(store, job) <= elapsed_ms(reached) + 1  # whole milliseconds
        wait_until(lambda: planned_for_ms(store, job) >= 30)
        store.commit(job, generation + 1, commit_of(2))
        assert planned_for_ms(store, job) == 0

    def test_a_job_without_state_has_no_place_for_plan_or_commit(self, store: StateStore, job: str) -> None:
        for call in (
            lambda: store.write_plan(job, 1, {"epoch": 1}, DEFINITION),
            lambda: store.commit(job, 1, commit_of(1)),
            lambda: store.stage(job, [segment("a")]),
            lambda: store.read_segments(job, ["a"]),
            lambda: store.read_segments(job, []),
            lambda: store.sweep(job, 1),
            lambda: store.create_savepoint(job, "sp"),
            lambda: store.restore_savepoint(job, "sp"),
            lambda: store.roll_back(job, "sp"),
            lambda: store.start_anew(job, "sp"),
            lambda: store.reset_offsets(job, {"orders": b"0"}),
            lambda: store.delete_savepoint(job, "sp"),
            lambda: store.migrate(job, 1, {}, 1),
        ):
            with pytest.raises(StateError, match=f"no state of job {job}"):
                call()
        assert store.record(job) is None
        assert store.ownership(job) is None
        assert store.newest_epoch(job) is None


class TestStanding:
    def test_it_follows_generation_epoch_and_plan(self, driver: Callable[[], StateStore], job: str) -> None:
        old, new = driver(), driver()
        record = old.acquire(job)
        assert new.ownership(job) == OwnershipToken(1, 0, planned=None)
        old.write_plan(job, record.generation, {"epoch": 1}, DEFINITION)
        assert new.ownership(job) == OwnershipToken(1, 0, planned=1)
        run_epoch(old, record, 1, next_plan={"epoch": 2})
        assert new.ownership(job) == OwnershipToken(1, 1, planned=2)
        new.acquire(job)
        assert old.ownership(job) == OwnershipToken(2, 1, planned=2)
        old.create_savepoint(job, "sp")
        old.restore_savepoint(job, "sp")
        assert old.ownership(job) == OwnershipToken(3, 2, planned=None)

    def test_a_deleted_job_has_none(self, store: StateStore, job: str) -> None:
        run_epoch(store, store.acquire(job), 1)
        store.delete_job(job)
        assert store.ownership(job) is None
        store.acquire(job)
        assert store.ownership(job) == OwnershipToken(3, 1, planned=None)


class TestClaims:
    AT = OwnershipToken(1, 0, planned=1)

    @pytest.fixture
    def planned(self, store: StateStore, job: str) -> StateStore:
        store.write_plan(job, store.acquire(job).generation, {"epoch": 1}, DEFINITION)
        return store

    def test_the_first_one_has_it_until_it_is_replaced_by_name(self, planned: StateStore, job: str) -> None:
        assert planned.claim(job, self.AT, "0", "a") is None
        assert planned.claim(job, self.AT, "0", "a") == "a"
        assert planned.claim(job, self.AT, "0", "b") == "a"
        assert planned.claim(job, self.AT, "0", "b", replacing="c") == "a"
        assert planned.claim(job, self.AT, "0", "b", replacing="a") == "b"
        assert planned.claim(job, self.AT, "0", "a", replacing="a") == "b"
        assert planned.claim(job, self.AT, "1", "a", replacing="a") is None
        assert planned.claims(job) == {"0": "b", "1": "a"}

    def test_a_claim_whose_owner_was_fenced_is_nobody_s(self, planned: StateStore, job: str) -> None:
        planned.claim(job, self.AT, "0", "a")
        generation = planned.acquire(job).generation
        with pytest.raises(Fenced):
            planned.release_claims(job, generation - 1)
        planned.release_claims(job, generation)
        assert planned.claims(job) == {"0": ""}
        at = OwnershipToken(generation, 0, planned=1)
        assert planned.claim(job, at, "0", "b") == ""
        assert planned.claim(job, at, "0", "b", replacing="") == "b"

    def test_nobody_claims_without_a_plan_for_another_epoch_or_after_a_takeover(
        self, driver: Callable[[], StateStore], job: str
    ) -> None:
        store = driver()
        record = store.acquire(job)
        with pytest.raises(Fenced, match="has continued"):
            store.claim(job, self.AT, "0", "a")
        store.write_plan(job, record.generation, {"epoch": 1}, DEFINITION)
        run_epoch(store, record, 1, next_plan={"epoch": 2})
        with pytest.raises(Fenced, match="has continued"):
            store.claim(job, self.AT, "0", "a")
        assert store.claim(job, OwnershipToken(1, 1, planned=2), "0", "a") is None
        driver().acquire(job)
        with pytest.raises(Fenced, match="no longer owns"):
            store.claim(job, OwnershipToken(1, 1, planned=2), "0", "a")
        assert store.claims(job) == {"0": "a"}

    def test_a_commit_removes_them_and_a_dropped_plan_leaves_them_to_the_next_driver(
        self, planned: StateStore, job: str
    ) -> None:
        planned.claim(job, self.AT, "0", "a")
        record = planned.record(job)
        assert record is not None
        run_epoch(planned, record, 1, next_plan={"epoch": 2})
        assert planned.claims(job) == {}
        planned.claim(job, OwnershipToken(1, 1, planned=2), "0", "a")
        planned.reset_offsets(job, {}, drop_plan=True)
        assert planned.claims(job) == {"0": "a"}
        planned.delete_job(job)
        planned.acquire(job)
        assert planned.claims(job) == {"0": "a"}


class TestLineage:
    def test_it_stays_for_a_jobs_life(self, driver: Callable[[], StateStore], job: str) -> None:
        store = driver()
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.create_savepoint(job, "sp")
        seen = {record.incarnation, store.restore_savepoint(job, "sp").incarnation}
        seen |= {store.reset_offsets(job, {"orders": b"1"}).incarnation, driver().acquire(job).incarnation}
        assert seen == {record.incarnation}

    def test_another_job_and_another_life_have_others(self, store: StateStore, job: str) -> None:
        incarnations = [store.acquire(job).incarnation, store.acquire(f"{job}-other").incarnation]
        for _ in range(2):
            store.delete_job(job)
            incarnations.append(store.acquire(job).incarnation)
        assert len(set(incarnations)) == 4


class TestResetOffsets:
    def test_a_reset_may_put_segments_in_the_place_of_others(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a", "b"], offsets={"orders": b"1"})
        store.create_savepoint(job, "before")
        anew = segment("new")
        reset = store.reset_offsets(
            job, {"orders": b"0"}, expected=store.ownership(job), replaced=["a"], by=[anew, segment("more")]
        )
        assert (reset.generation, reset.epoch, reset.offsets) == (record.generation + 1, 1, {"orders": b"0"})
        assert [meta.key for meta in reset.segments] == ["b", "more", "new"]
        assert store.read_segments(job, ["new"]) == {"new": anew[1]}
        store.sweep(job, reset.generation)
        assert store.read_segments(job, ["a"]), "pinned"
        assert live_keys(store, job) == ["b", "more", "new"]
        run_epoch(store, reset, 2, ["c"], deletes=["new"])
        assert live_keys(store, job) == ["b", "c", "more"]
        assert [meta.key for meta in store.restore_savepoint(job, "before").segments] == ["a", "b"]

    def test_it_replaces_the_named_sources_and_nothing_else(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"], offsets={"orders": b"1", "rates": b"1"})
        before = store.record(job)
        reset = store.reset_offsets(job, {"orders": b"0", "clicks": b"7"})
        assert before is not None
        assert reset == replace(
            before, generation=before.generation + 1, offsets={"orders": b"0", "rates": b"1", "clicks": b"7"}
        )
        assert store.record(job) == reset
        assert [line.epoch for line in store.epochs(job)] == [1]
        run_epoch(store, reset, 2, ["b"], deletes=["a"])

    def test_it_fences_the_running_driver(self, driver: Callable[[], StateStore], job: str) -> None:
        running, operator = driver(), driver()
        record = running.acquire(job)
        operator.reset_offsets(job, {"orders": b"0"})
        with pytest.raises(Fenced):
            running.commit(job, record.generation, commit_of(1, offsets={"orders": b"9"}))
        with pytest.raises(Fenced):
            running.write_plan(job, record.generation, {"epoch": 1}, DEFINITION)
        assert offsets_of(running, job) == {"orders": b"0"}

    def test_under_a_pending_plan_it_is_refused(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, offsets={"orders": b"1"}, next_plan={"epoch": 2})
        before = store.record(job)
        with pytest.raises(StateError, match=f"offsets of job {job} cannot be changed: its epoch 2 is planned"):
            store.reset_offsets(job, {"orders": b"0"})
        assert store.record(job) == before
        run_epoch(store, record, 2, offsets={"orders": b"2"})  # the driver goes on

    def test_offsets_that_were_worked_out_before_the_job_went_on_are_refused(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        seen = store.ownership(job)
        run_epoch(store, record, 1, offsets={"orders": b"1"})
        before = store.record(job)
        with pytest.raises(StateError, match=r"continued .* generation 1, epoch 0 became generation 1, epoch 1"):
            store.reset_offsets(job, {"orders": b"0"}, expected=seen)
        assert store.record(job) == before
        seen = store.ownership(job)
        store.write_plan(job, record.generation, {"epoch": 2}, DEFINITION)
        with pytest.raises(StateError, match=r"epoch 1 became generation 1, epoch 1 with epoch 2 planned"):
            store.reset_offsets(job, {"orders": b"0"}, expected=seen, drop_plan=True)
        reset = store.reset_offsets(job, {"orders": b"0"}, expected=store.ownership(job), drop_plan=True)
        assert reset.offsets == {"orders": b"0"}

    def test_the_number_of_a_dropped_plan_is_used_up(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, next_plan={"epoch": 2})
        reset = store.reset_offsets(job, {"orders": b"0"}, drop_plan=True)
        assert (reset.epoch, reset.plan, reset.planned_for_ms) == (2, None, 0)
        assert reset.definition == DEFINITION
        run_epoch(store, reset, 3)
        assert store.reset_offsets(job, {}, drop_plan=True).epoch == 3  # there was no plan


class TestSegments:
    def test_staged_segments_are_invisible(self, store: StateStore, job: str) -> None:
        store.acquire(job)
        store.stage(job, [segment("a")])
        assert live_keys(store, job) == []
        with pytest.raises(StateError, match="not in the store: a"):
            store.read_segments(job, ["a"])

    def test_exactly_the_named_ones_become_live(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        store.stage(job, [segment("a"), segment("b"), segment("c")])
        store.commit(job, record.generation, commit_of(1, ["c", "a"]))
        assert live_keys(store, job) == ["a", "c"]

    @pytest.mark.parametrize("size", [0, 1, 3_000, 300_000])
    def test_blobs_come_back_as_they_were(self, store: StateStore, job: str, size: int) -> None:
        blob = bytes(range(256)) * (size // 256) + b"\x00" * (size % 256)
        record = store.acquire(job)
        item = segment("ключ/1-2-3", blob=blob)
        store.stage(job, [item])
        store.commit(job, record.generation, commit_of(1, [item[0].key]))
        assert store.read_segments(job, [item[0].key]) == {item[0].key: blob}
        assert store.acquire(job).segments == (item[0],)

    def test_many_segments_are_read_at_once(self, store: StateStore, job: str) -> None:
        keys = [f"k{number:03}" for number in range(100)]
        run_epoch(store, store.acquire(job), 1, keys)
        assert store.read_segments(job, reversed(keys)) == {key: f"blob of {key}".encode() for key in keys}

    def test_a_missing_segment_is_named(self, store: StateStore, job: str) -> None:
        run_epoch(store, store.acquire(job), 1, ["a"])
        with pytest.raises(StateError, match="not in the store: b, c"):
            store.read_segments(job, ["c", "a", "b"])

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
    def test_a_segment_with_a_flipped_bit_is_named(self, store: StateStore, job: str, damage, share: float) -> None:
        blob = to_blob(pa.record_batch({"n": list(range(100))}))
        record = store.acquire(job)
        store.stage(job, [segment("left/1", blob=blob), segment("left/2", blob=blob)])
        store.commit(job, record.generation, commit_of(1, ["left/1", "left/2"]))
        flipped = bytearray(blob)
        flipped[int(share * len(blob))] ^= 16
        damage(job, "left/2", bytes(flipped))
        assert store.read_segments(job, ["left/1"]) == {"left/1": blob}
        with pytest.raises(StateError, match=rf"Segment left/2 of job {job} is damaged: .*xxh3.*Restore a savepoint"):
            store.read_segments(job, ["left/1", "left/2"])

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_segment_without_a_checksum_is_read(self, store: StateStore, job: str, version: int) -> None:
        blob = encode(pa.record_batch({"n": list(range(100))}))
        record = store.acquire(job)
        store.stage(job, [segment("left/1", blob=blob, version=version)])
        store.commit(job, record.generation, commit_of(1, ["left/1"]))
        assert store.read_segments(job, ["left/1"]) == {"left/1": blob}

    def test_staging_again_changes_nothing(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.stage(job, [segment("a"), segment("b", epoch=2)])
        store.stage(job, [segment("b", epoch=2)])
        assert live_keys(store, job) == ["a"]
        store.commit(job, record.generation, commit_of(2, ["b"]))
        assert live_keys(store, job) == ["a", "b"]

    def test_a_key_never_gets_other_bytes(self, store: StateStore, job: str) -> None:
        run_epoch(store, store.acquire(job), 1, ["a"])
        for other in (segment("a", blob=b"other"), segment("a", version=2)):
            with pytest.raises(StateError, match="other bytes under the key a"):
                store.stage(job, [segment("new"), other])
        with pytest.raises(StateError, match="twice in one call"):
            store.stage(job, [segment("x"), segment("x", blob=b"other")])
        assert store.read_segments(job, ["a"]) == {"a": b"blob of a"}

    def test_a_segment_that_no_store_could_hold_is_refused(
        self, store: StateStore, job: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decisions, "MAX_SEGMENT_BYTES", 10)
        store.acquire(job)
        store.stage(job, [segment("a", blob=b"x" * 10)])
        with pytest.raises(StateError, match=r"Segment b of job .* 11 bytes, the limit is 10"):
            store.stage(job, [segment("b", blob=b"x" * 11)])

    def test_nothing_to_stage(self, store: StateStore, job: str) -> None:
        store.acquire(job)
        store.stage(job, [])
        assert store.read_segments(job, []) == {}


class TestCommit:
    def test_plan_and_result_move_to_the_epoch_log(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        store.write_plan(job, record.generation, {"epoch": 1}, DEFINITION)
        run_epoch(store, record, 1, next_plan={"epoch": 2})
        run_epoch(store, record, 2)
        current = store.acquire(job)
        assert (current.epoch, current.plan) == (2, None)
        log = store.epochs(job)
        assert [(line.epoch, line.generation, line.result) for line in log] == [
            (1, 1, {"rows": 1}),
            (2, 1, {"rows": 2}),
        ]
        assert log[0].plan == {"epoch": 1, "ranges": [[0, 10]]}
        assert 1_600_000_000_000 < log[0].committed_at <= log[1].committed_at

    def test_the_newest_log_entry_is_found_after_a_number_was_used_up(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        assert store.newest_epoch(job) is None
        for epoch in (1, 2):
            run_epoch(store, record, epoch)
            assert store.newest_epoch(job) == store.epochs(job)[-1]
        store.create_savepoint(job, "sp")
        store.write_plan(job, record.generation, {"epoch": 3}, DEFINITION)
        restored = store.restore_savepoint(job, "sp")
        newest = store.newest_epoch(job)
        assert newest is not None
        assert (restored.epoch, newest.epoch, newest.result) == (3, 2, {"rows": 2})

    def test_the_definition_is_the_newest_epochs(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        for epoch, version in ((1, 1), (2, 1), (3, 2)):
            run_epoch(store, record, epoch, definition={"version": version}, next_plan={"epoch": epoch + 1})
            assert store.acquire(job).definition == {"version": version}
            record = store.acquire(job)

    @pytest.mark.parametrize("epoch", [0, 1, 3])
    def test_another_epoch_than_the_next_is_refused(self, store: StateStore, job: str, epoch: int) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1)
        with pytest.raises(StateError, match=f"cannot commit epoch {epoch}: its last epoch is 1"):
            store.commit(job, record.generation, commit_of(epoch))

    def test_a_next_plan_of_another_epoch_is_refused(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        with pytest.raises(StateError, match="it is for epoch 1, the next one is 2"):
            store.commit(job, record.generation, commit_of(1, next_plan={"epoch": 1}))

    def test_offsets_are_replaced_source_by_source(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, offsets={"orders": b"1", "rates": b"1"})
        run_epoch(store, record, 2, offsets={"orders": b"2"})
        assert offsets_of(store, job) == {"orders": b"2", "rates": b"1"}

    def test_nothing_happens_when_an_effect_fails(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"], offsets={"orders": b"1"})
        store.write_plan(job, record.generation, {"epoch": 2}, DEFINITION)
        store.stage(job, [segment("b", epoch=2)])
        before = store.record(job)

        def fail(connection: object) -> None:
            raise EffectError

        with pytest.raises(EffectError):
            store.commit(job, record.generation, commit_of(2, ["b"], ["a"], offsets={"orders": b"2"}, effects=[fail]))
        assert store.record(job) == before
        assert len(store.epochs(job)) == 1
        store.commit(job, record.generation, commit_of(2, ["b"], ["a"], offsets={"orders": b"2"}))
        assert live_keys(store, job) == ["b"]

    def test_effects_run_in_order(self, store: StateStore, job: str) -> None:
        seen: list[int] = []
        effects = [lambda connection, number=number: seen.append(number) for number in range(3)]
        run_epoch(store, store.acquire(job), 1, effects=effects)
        assert seen == [0, 1, 2]

    def test_no_effect_runs_when_the_commit_is_refused(self, store: StateStore, job: str) -> None:
        seen: list[object] = []
        record = store.acquire(job)
        with pytest.raises(StateError, match="cannot commit epoch 7"):
            store.commit(job, record.generation, commit_of(7, effects=[seen.append]))
        assert seen == []

    def test_keys_that_were_not_staged_are_named_and_nothing_is_committed(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        store.stage(job, [segment("a")])
        with pytest.raises(StateError, match="not staged by generation 1 for epoch 1: y, z"):
            store.commit(job, record.generation, commit_of(1, ["z", "a", "y"]))
        assert store.record(job) == record

    def test_a_segment_becomes_live_once(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        with pytest.raises(StateError, match=r"not staged .*: a"):
            store.commit(job, record.generation, commit_of(2, ["a"]))

    def test_what_an_older_driver_staged_cannot_be_committed(self, driver: Callable[[], StateStore], job: str) -> None:
        old, new = driver(), driver()
        old.acquire(job)
        old.stage(job, [segment("a")])
        record = new.acquire(job)
        with pytest.raises(StateError, match="not staged by generation 2 for epoch 1: a"):
            new.commit(job, record.generation, commit_of(1, ["a"]))

    def test_deleted_segments_are_gone(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a", "b"])
        run_epoch(store, record, 2, ["c"], deletes=["a"])
        assert live_keys(store, job) == ["b", "c"]
        with pytest.raises(StateError, match="not in the store: a"):
            store.read_segments(job, ["a"])

    def test_only_live_segments_can_be_deleted(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        run_epoch(store, record, 2, deletes=["a"])
        store.stage(job, [segment("s", epoch=3)])
        for key in ("a", "s", "never"):
            with pytest.raises(StateError, match=f"deletes what is not live: {key}"):
                store.commit(job, record.generation, commit_of(3, deletes=[key]))


class TestEpochLog:
    def test_it_is_read_in_pages(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        for epoch in range(1, 6):
            run_epoch(store, record, epoch)
        assert [line.epoch for line in store.epochs(job, after=1, limit=3)] == [2, 3, 4]
        assert [line.epoch for line in store.epochs(job, after=4)] == [5]
        assert store.epochs(job, after=5) == []
        assert store.epochs(f"{job}-unknown") == []

    def test_the_newest_epochs_are_kept(self, store: StateStore, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert decisions.EPOCH_LOG_LENGTH == 10_000
        monkeypatch.setattr(decisions, "EPOCH_LOG_LENGTH", 3)
        record = store.acquire(job)
        for epoch in range(1, 8):
            run_epoch(store, record, epoch)
            assert [line.epoch for line in store.epochs(job)] == list(range(max(1, epoch - 2), epoch + 1))


class TestSweep:
    def test_it_removes_what_no_commit_can_name_and_nothing_else(
        self, driver: Callable[[], StateStore], job: str
    ) -> None:
        store = driver()
        record = store.acquire(job)
        store.stage(job, [segment("left behind"), segment("live"), segment("deleted")])
        store.commit(job, record.generation, commit_of(1, ["live", "deleted"]))
        store.commit(job, record.generation, commit_of(2, deletes=["deleted"]))
        store.stage(job, [segment("of the running epoch", epoch=3), segment("compacted in it", epoch=1)])
        assert store.sweep(job, record.generation) == 2
        assert store.sweep(job, record.generation) == 0
        store.commit(job, record.generation, commit_of(3, ["of the running epoch", "compacted in it"]))
        assert live_keys(store, job) == ["compacted in it", "live", "of the running epoch"]

    def test_it_removes_what_an_older_driver_staged(self, driver: Callable[[], StateStore], job: str) -> None:
        old, new = driver(), driver()
        old.acquire(job)
        old.stage(job, [segment("a", epoch=9)])
        record = new.acquire(job)
        new.stage(job, [segment("b")])
        assert new.sweep(job, record.generation) == 1
        run_epoch(new, record, 1, ["a", "b"])  # the swept key is free again
        assert live_keys(new, job) == ["a", "b"]

    def test_it_takes_any_number(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        store.stage(job, [segment(f"k{number}") for number in range(70)])
        run_epoch(store, record, 1)
        assert store.sweep(job, record.generation) == 70


class TestSavepoints:
    def test_it_says_what_it_holds(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        empty = store.create_savepoint(job, "empty")
        assert (empty.name, empty.epoch, empty.rows, empty.bytes) == ("empty", 0, 0, 0)
        run_epoch(store, record, 1, ["a", "bb"])
        store.stage(job, [segment("staged", epoch=2)])
        savepoint = store.create_savepoint(job, "before upgrade")
        assert (savepoint.epoch, savepoint.rows, savepoint.bytes) == (1, 6, len(b"blob of a") + len(b"blob of bb"))
        assert savepoint.created_at > 1_600_000_000_000
        assert store.savepoints(job) == [savepoint, empty]
        assert store.savepoints(f"{job}-unknown") == []

    def test_a_name_is_taken_once(self, store: StateStore, job: str) -> None:
        store.acquire(job)
        store.create_savepoint(job, "sp")
        with pytest.raises(StateError, match="already has a savepoint sp"):
            store.create_savepoint(job, "sp")

    def test_an_unknown_one_is_refused_with_those_that_exist(self, store: StateStore, job: str) -> None:
        store.acquire(job)
        with pytest.raises(StateError, match="no savepoint gone: it has none"):
            store.restore_savepoint(job, "gone")
        store.create_savepoint(job, "sp1")
        store.create_savepoint(job, "sp2")
        with pytest.raises(StateError, match="no savepoint gone: there are: sp1, sp2"):
            store.delete_savepoint(job, "gone")

    def test_it_says_what_it_keeps(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a", "b"])
        stood = store.record(job)
        assert stood is not None
        store.create_savepoint(job, "sp")
        run_epoch(store, record, 2, ["c"], deletes=["a"])
        assert store.pinned(job, "sp") == stood
        with pytest.raises(StateError, match="no savepoint gone: there are: sp"):
            store.pinned(job, "gone")
        with pytest.raises(StateError):
            store.pinned(f"{job}-unknown", "sp")

    def test_pinned_segments_outlive_their_deletion(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a", "b"])
        store.create_savepoint(job, "sp")
        run_epoch(store, record, 2, deletes=["a"])
        assert live_keys(store, job) == ["b"]
        assert store.sweep(job, record.generation) == 0
        assert store.read_segments(job, ["a"]) == {"a": b"blob of a"}
        store.delete_savepoint(job, "sp")
        with pytest.raises(StateError, match="not in the store: a"):
            store.read_segments(job, ["a"])
        assert store.sweep(job, record.generation) == 1
        assert live_keys(store, job) == ["b"]

    def test_a_segment_may_be_pinned_twice(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.create_savepoint(job, "sp1")
        store.create_savepoint(job, "sp2")
        run_epoch(store, record, 2, deletes=["a"])
        store.delete_savepoint(job, "sp1")
        assert store.sweep(job, record.generation) == 0
        store.delete_savepoint(job, "sp2")
        assert store.sweep(job, record.generation) == 1

    def test_restoring_brings_back_segments_offsets_and_signature(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a", "b"], offsets={"orders": b"1"}, signature={"v": 1})
        store.create_savepoint(job, "sp")
        run_epoch(store, record, 2, ["c"], deletes=["a"], offsets={"orders": b"2", "rates": b"2"}, signature={"v": 2})
        restored = store.restore_savepoint(job, "sp")
        assert restored.segments == (segment("a")[0], segment("b")[0])
        assert restored.offsets == {"orders": b"1"}
        assert restored.signature == {"v": 1}
        assert restored.definition == DEFINITION
        assert store.record(job) == restored
        assert store.read_segments(job, ["a", "b"]).keys() == {"a", "b"}

    def test_restoring_brings_back_the_definition_and_the_epoch_that_it_stands_on(
        self, store: StateStore, job: str
    ) -> None:
        record = store.acquire(job)
        store.create_savepoint(job, "empty")
        run_epoch(store, record, 1, definition={"version": 1})
        assert store.create_savepoint(job, "sp").committed == 1
        run_epoch(store, record, 2, definition={"version": 2}, next_plan={"epoch": 3})
        restored = store.restore_savepoint(job, "sp")
        assert (restored.definition, restored.committed, restored.epoch) == ({"version": 1}, 1, 3)
        assert store.newest_epoch(job) == store.epochs(job)[0]
        empty = store.restore_savepoint(job, "empty")
        assert (empty.definition, empty.signature, empty.committed) == (None, None, 0)
        assert store.newest_epoch(job) is None
        run_epoch(store, empty, 4)
        newest = store.newest_epoch(job)
        assert newest is not None
        assert newest.epoch == 4

    def test_restoring_fences_the_running_driver(self, driver: Callable[[], StateStore], job: str) -> None:
        running, operator = driver(), driver()
        record = running.acquire(job)
        running.create_savepoint(job, "sp")
        restored = operator.restore_savepoint(job, "sp")
        assert restored.generation == record.generation + 1
        with pytest.raises(Fenced):
            running.commit(job, record.generation, commit_of(1))

    def test_epoch_numbers_go_on_after_restoring(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.create_savepoint(job, "sp")
        run_epoch(store, record, 2)
        restored = store.restore_savepoint(job, "sp")
        assert (restored.epoch, restored.plan) == (2, None)
        run_epoch(store, restored, 3)
        assert [line.epoch for line in store.epochs(job)] == [1, 2, 3]

    def test_the_number_of_a_dropped_plan_is_used_up(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.create_savepoint(job, "sp")
        store.write_plan(job, record.generation, {"epoch": 2}, DEFINITION)  # its output may have gone out
        restored = store.restore_savepoint(job, "sp")
        assert (restored.epoch, restored.plan) == (2, None)
        with pytest.raises(StateError, match="cannot commit epoch 2"):
            store.commit(job, restored.generation, commit_of(2))
        run_epoch(store, restored, 3)
        assert [line.epoch for line in store.epochs(job)] == [1, 3]

    def test_a_restored_job_goes_on_when_its_savepoint_is_deleted(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.create_savepoint(job, "sp")
        run_epoch(store, record, 2, ["b"], deletes=["a"])
        restored = store.restore_savepoint(job, "sp")
        store.delete_savepoint(job, "sp")
        assert store.sweep(job, restored.generation) == 1  # b
        assert store.read_segments(job, live_keys(store, job)) == {"a": b"blob of a"}

    def test_it_can_be_restored_again(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.create_savepoint(job, "sp")
        for epoch in (2, 3):
            run_epoch(store, store.restore_savepoint(job, "sp"), epoch, deletes=["a"])
        assert [meta.key for meta in store.restore_savepoint(job, "sp").segments] == ["a"]


class TestStartFrom:
    """A job begins with a copy of another one's savepoint."""

    def pinned(self, store: StateStore, other: str) -> JobRecord:
        """At epoch 2; the job has gone on since."""
        record = store.acquire(other)
        run_epoch(store, record, 1, ["a", "gone"], offsets={"orders": b"1"})
        written = {"rows": 2, "output": [{"file": "x"}], "dead_letters": [{"file": "y"}]}
        run_epoch(store, record, 2, ["b"], deletes=["gone"], offsets={"orders": b"2"}, result=written)
        store.create_savepoint(other, "noon")
        run_epoch(store, record, 3, ["c"], deletes=["a"], offsets={"orders": b"3"})
        return record

    def test_it_stands_where_the_savepoint_does_with_a_life_of_its_own(self, store: StateStore, job: str) -> None:
        other = f"{job}-other"
        before = self.pinned(store, other)
        record = store.start_from(job, other, "noon")
        assert (record.committed, record.epoch, record.plan) == (2, 2, None)
        assert (record.offsets, record.signature, record.definition) == (
            {"orders": b"2"}, before.signature or {"keys": ["id"]}, DEFINITION,
        )  # fmt: skip
        assert store.read_segments(job, live_keys(store, job)) == {"a": b"blob of a", "b": b"blob of b"}
        assert record.incarnation != before.incarnation
        newest = store.newest_epoch(job)
        assert newest is not None
        assert (newest.epoch, newest.plan["epoch"], newest.result) == (2, 2, {"rows": 2})
        assert store.savepoints(job) == []
        run_epoch(store, store.acquire(job), 3, ["d"], deletes=["a"])
        assert live_keys(store, job) == ["b", "d"]

    def test_neither_job_depends_on_the_other_afterwards(self, store: StateStore, job: str) -> None:
        other = f"{job}-other"
        self.pinned(store, other)
        store.start_from(job, other, "noon")
        assert live_keys(store, other) == ["b", "c"]
        store.delete_job(other)
        assert store.sweep(job, store.acquire(job).generation) == 0
        assert store.read_segments(job, ["a", "b"]) == {"a": b"blob of a", "b": b"blob of b"}

    def test_a_job_that_was_deleted_may_come_back_this_way_with_numbers_that_go_on(
        self, store: StateStore, job: str
    ) -> None:
        other = f"{job}-other"
        self.pinned(store, other)
        mine = store.acquire(job)
        for epoch in range(1, 5):
            run_epoch(store, mine, epoch, [f"k{epoch}"])
        store.delete_job(job)
        record = store.start_from(job, other, "noon")
        assert (record.committed, record.epoch) == (2, 4)
        assert record.generation > mine.generation
        run_epoch(store, record, 5)

    @pytest.mark.parametrize("state", ["committed", "planned", "anew"])
    def test_a_job_with_state_is_refused(self, store: StateStore, job: str, state: str) -> None:
        other = f"{job}-other"
        self.pinned(store, other)
        mine = store.acquire(job)
        if state == "planned":
            store.write_plan(job, mine.generation, {"epoch": 1}, DEFINITION)
        else:
            run_epoch(store, mine, 1, ["k"])
        if state == "anew":
            store.create_savepoint(job, "mine")
            store.start_anew(job, "mine")
        before = store.record(job)
        with pytest.raises(StateError, match="has state already"):
            store.start_from(job, other, "noon")
        after = store.record(job)
        assert before is not None
        assert after is not None
        assert after == before, "a driver that runs is not fenced"

    def test_what_is_not_there_is_named(self, store: StateStore, job: str) -> None:
        other = f"{job}-other"
        with pytest.raises(StateError, match=f"{other}"):
            store.start_from(job, other, "noon")
        self.pinned(store, other)
        with pytest.raises(StateError, match="has no savepoint morning") as refused:
            store.start_from(job, other, "morning")
        assert "noon" in refused.value.facts
        assert store.record(job) is None


class TestRollBack:
    """A new release took over after the pin, and is undone before it committed anything."""

    CHAIN = {1: lambda blob: blob + b" to 2"}  # noqa: RUF012

    def pinned(self, store: StateStore, job: str) -> JobRecord:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"], offsets={"orders": b"1"}, signature={"v": 1}, definition={"v": 1})
        store.create_savepoint(job, "rollout")
        return store.acquire(job)

    def test_the_migrated_segments_become_the_pinned_ones(self, store: StateStore, job: str) -> None:
        before = self.pinned(store, job)
        store.migrate(job, before.generation, self.CHAIN, 2)
        back = store.roll_back(job, "rollout")
        assert back == replace(before, generation=before.generation + 1)
        assert store.record(job) == back
        assert store.read_segments(job, ["a"]) == {"a": b"blob of a"}
        assert store.sweep(job, back.generation) == 1  # the rewritten one

    def test_the_plan_that_the_new_release_wrote_is_replayed_as_it_stands(self, store: StateStore, job: str) -> None:
        record = self.pinned(store, job)
        store.migrate(job, record.generation, self.CHAIN, 2)
        plan, definition = {"epoch": 2, "ranges": [[10, 20]]}, {"v": 2}
        store.write_plan(job, record.generation, plan, definition)
        at = OwnershipToken(record.generation, 1, planned=2)
        assert store.claim(job, at, "shard-0", "producer-1") is None  # its rows are in Kafka
        store.stage(job, [segment("never committed", epoch=2, version=2)])
        back = store.roll_back(job, "rollout")
        assert (back.plan, back.definition, back.epoch, back.committed) == (plan, definition, 1, 1)
        assert (back.offsets, back.signature, back.incarnation) == ({"orders": b"1"}, {"v": 1}, record.incarnation)
        assert store.claims(job) == {"shard-0": "producer-1"}
        store.write_plan(job, back.generation, plan, definition)  # the same again is no error
        run_epoch(store, back, 2, ["b"], plan=plan)
        assert live_keys(store, job) == ["a", "b"]

    def test_a_running_driver_is_fenced(self, driver: Callable[[], StateStore], job: str) -> None:
        running, operator = driver(), driver()
        record = self.pinned(running, job)
        operator.roll_back(job, "rollout")
        with pytest.raises(Fenced):
            running.commit(job, record.generation, commit_of(2))

    def test_under_a_generation_that_is_not_the_newest_nothing_happens(self, store: StateStore, job: str) -> None:
        record = self.pinned(store, job)
        store.migrate(job, record.generation, self.CHAIN, 2)
        after = store.acquire(job)
        for call in (store.roll_back, store.start_anew):
            with pytest.raises(Fenced):
                call(job, "rollout", generation=record.generation)
        assert (store.record(job), store.savepoints(job)[0].rolled_back) == (after, False)
        back = store.roll_back(job, "rollout", generation=after.generation)
        assert back.generation == after.generation + 1
        assert store.start_anew(job, "rollout", generation=back.generation).segments == ()

    def test_it_may_be_repeated(self, store: StateStore, job: str) -> None:
        record = self.pinned(store, job)
        store.migrate(job, record.generation, self.CHAIN, 2)
        first = store.roll_back(job, "rollout")
        again = store.roll_back(job, "rollout")
        assert again == replace(first, generation=first.generation + 1)

    def test_it_is_refused_once_an_epoch_was_committed(self, store: StateStore, job: str) -> None:
        record = self.pinned(store, job)
        run_epoch(store, record, 2, ["b"])
        before = store.record(job)
        with pytest.raises(StateError, match="is now at epoch 2, the savepoint's at 1"):
            store.roll_back(job, "rollout")
        assert store.record(job) == before

    def test_it_is_refused_after_another_savepoint_was_restored(self, store: StateStore, job: str) -> None:
        store.acquire(job)
        store.create_savepoint(job, "empty")
        self.pinned(store, job)
        store.restore_savepoint(job, "empty")  # the offsets are not the pinned state's any more
        with pytest.raises(StateError, match="is now at epoch 0, the savepoint's at 1"):
            store.roll_back(job, "rollout")

    def test_offsets_that_were_reset_since_stay(self, store: StateStore, job: str) -> None:
        self.pinned(store, job)
        store.reset_offsets(job, {"orders": b"reset"})
        assert store.roll_back(job, "rollout").offsets == {"orders": b"reset"}

    def test_a_job_that_never_committed(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        store.create_savepoint(job, "rollout")
        store.write_plan(job, record.generation, {"epoch": 1}, DEFINITION)
        back = store.roll_back(job, "rollout")
        assert (back.plan, back.definition, back.segments) == ({"epoch": 1}, DEFINITION, ())

    def test_an_unknown_savepoint_is_refused(self, store: StateStore, job: str) -> None:
        store.acquire(job)
        with pytest.raises(StateError, match="no savepoint gone: it has none"):
            store.roll_back(job, "gone")


class TestStartAnew:
    def pinned(self, store: StateStore, job: str) -> JobRecord:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"], offsets={"orders": b"1"}, next_plan={"epoch": 2})
        store.create_savepoint(job, "rollout")
        return store.acquire(job)

    def test_nothing_of_the_job_is_left_but_its_numbers_its_log_and_its_savepoints(
        self, store: StateStore, job: str
    ) -> None:
        before = self.pinned(store, job)
        anew = store.start_anew(job, "rollout")
        assert (anew.segments, dict(anew.offsets), anew.signature, anew.definition, anew.plan) == ((), {}, *[None] * 3)
        assert (anew.generation, anew.epoch) == (before.generation + 1, 2)  # rows of epoch 2 may have gone out
        assert anew.incarnation != before.incarnation
        assert store.record(job) == anew
        assert [entry.epoch for entry in store.epochs(job)] == [1]
        assert store.sweep(job, anew.generation) == 0  # the savepoint pins it
        run_epoch(store, anew, 3, ["b"])
        assert live_keys(store, job) == ["b"]

    def test_the_old_driver_is_fenced(self, driver: Callable[[], StateStore], job: str) -> None:
        running, operator = driver(), driver()
        record = self.pinned(running, job)
        operator.start_anew(job, "rollout")
        with pytest.raises(Fenced):
            running.commit(job, record.generation, commit_of(2))

    def test_the_second_time_nothing_happens(self, store: StateStore, job: str) -> None:
        self.pinned(store, job)
        anew = store.start_anew(job, "rollout")
        assert store.start_anew(job, "rollout") == anew
        run_epoch(store, anew, 3, ["b"], offsets={"orders": b"3"})
        after = store.record(job)
        assert store.start_anew(job, "rollout") == after

    def test_a_savepoint_that_does_not_hold_what_is_dropped_is_refused(self, store: StateStore, job: str) -> None:
        record = self.pinned(store, job)
        run_epoch(store, record, 2, ["b"])
        with pytest.raises(StateError, match="savepoint's state is at epoch 1, the job's at 2"):
            store.start_anew(job, "rollout")
        assert live_keys(store, job) == ["a", "b"]

    def test_it_can_be_rolled_back_until_the_first_commit(self, store: StateStore, job: str) -> None:
        before = self.pinned(store, job)
        anew = store.start_anew(job, "rollout")
        store.write_plan(job, anew.generation, {"epoch": 3}, {"v": "anew"})
        back = store.roll_back(job, "rollout")
        assert back == replace(before, generation=anew.generation + 1, epoch=3, plan=None)
        assert store.start_anew(job, "rollout").segments == ()  # the rollout is tried again

    def test_it_cannot_be_rolled_back_after_the_first_commit(self, store: StateStore, job: str) -> None:
        self.pinned(store, job)
        run_epoch(store, store.start_anew(job, "rollout"), 3, ["b"])
        with pytest.raises(StateError, match="is now at epoch 3"):
            store.roll_back(job, "rollout")
        restored = store.restore_savepoint(job, "rollout")
        assert (restored.offsets, [meta.key for meta in restored.segments]) == ({"orders": b"1"}, ["a"])


class TestMigrate:
    CHAIN = {1: lambda blob: blob + b" to 2", 2: lambda blob: blob + b" to 3"}  # noqa: RUF012

    def test_every_live_segment_is_brought_to_the_target(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a", "b"])
        run_epoch(store, record, 2, ["c"], version=2)
        run_epoch(store, record, 3, ["d"], version=3)
        assert store.migrate(job, record.generation, self.CHAIN, 3) == 3
        metas = store.acquire(job).segments
        assert {meta.state_version for meta in metas} == {3}
        blobs = store.read_segments(job, [meta.key for meta in metas])
        assert sorted(blobs.values()) == sorted(
            [b"blob of a to 2 to 3", b"blob of b to 2 to 3", b"blob of c to 3", b"blob of d"]
        )
        assert {meta.key: meta.bytes for meta in metas} == {key: len(blob) for key, blob in blobs.items()}
        assert [meta.key.partition("~")[0] for meta in metas] == ["a", "b", "c", "d"]

    def test_nothing_is_left_to_do_the_second_time(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        assert store.migrate(job, record.generation, self.CHAIN, 2) == 1
        before = store.record(job)
        assert store.migrate(job, record.generation, self.CHAIN, 2) == 0
        assert store.record(job) == before

    def test_what_is_read_as_it_is_stays_as_it_is(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        run_epoch(store, record, 2, ["b"], version=2)
        before = store.record(job)
        assert store.migrate(job, record.generation, {1: unchanged, 2: unchanged}, 3) == 0
        assert store.record(job) == before
        assert store.migrate(job, record.generation, {1: self.CHAIN[1], 2: unchanged}, 3) == 1
        metas = store.acquire(job).segments
        assert sorted(meta.state_version for meta in metas) == [2, 3]
        assert sorted(store.read_segments(job, [meta.key for meta in metas]).values()) == [
            b"blob of a to 2",
            b"blob of b",
        ]

    def test_many_segments(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, [f"k{number}" for number in range(70)])
        assert store.migrate(job, record.generation, self.CHAIN, 3) == 70
        assert len(live_keys(store, job)) == 70

    def test_migrated_segments_can_be_deleted_and_swept(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.migrate(job, record.generation, self.CHAIN, 2)
        assert store.sweep(job, record.generation) == 1
        run_epoch(store, record, 2, deletes=live_keys(store, job))
        assert store.sweep(job, record.generation) == 1

    def test_a_missing_step_stops_it_before_anything_is_written(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        before = store.record(job)
        called: list[bytes] = []

        def step(blob: bytes) -> bytes:
            called.append(blob)
            return blob

        with pytest.raises(IncompatibleState, match="no migration from state_version 2 to 3"):
            store.migrate(job, record.generation, {1: step, 3: step}, 4)
        assert store.record(job) == before
        assert called == []

    def test_newer_state_is_refused(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        run_epoch(store, record, 2, ["b"], version=3)
        before = store.record(job)
        with pytest.raises(IncompatibleState, match="state_version 3: this release reads up to 2"):
            store.migrate(job, record.generation, self.CHAIN, 2)
        assert store.record(job) == before

    def test_a_failing_step_changes_nothing(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a", "b"])
        before = store.record(job)

        def fail(blob: bytes) -> bytes:
            if blob.endswith(b"b"):
                raise ValueError("no such column")
            return blob

        with pytest.raises(IncompatibleState, match="from state_version 1 to 2 failed: ValueError: no such column"):
            store.migrate(job, record.generation, {1: fail}, 2)
        assert store.record(job) == before
        assert store.sweep(job, record.generation) == 0

    def test_a_savepoint_keeps_the_bytes_from_before(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"])
        store.create_savepoint(job, "before upgrade")
        store.migrate(job, record.generation, self.CHAIN, 2)
        restored = store.restore_savepoint(job, "before upgrade")
        assert restored.segments == (segment("a")[0],)
        assert store.read_segments(job, ["a"]) == {"a": b"blob of a"}
        assert store.migrate(job, restored.generation, self.CHAIN, 2) == 1  # the upgrade is tried again


class TestDeleteJob:
    def test_everything_is_gone(self, store: StateStore, job: str) -> None:
        record = store.acquire(job)
        run_epoch(store, record, 1, ["a"], offsets={"orders": b"1"})
        store.create_savepoint(job, "sp")
        store.delete_job(job)
        assert store.record(job) is None
        assert store.epochs(job) == []
        assert store.savepoints(job) == []
        back = store.acquire(job)
        assert (back.segments, dict(back.offsets), back.plan, back.signature) == ((), {}, None, None)
        assert (back.definition, store.newest_epoch(job)) == (None, None)

    def test_a_zombie_of_the_old_life_is_fenced(self, driver: Callable[[], StateStore], job: str) -> None:
        zombie, store = driver(), driver()
        old = zombie.acquire(job)
        run_epoch(zombie, old, 1, next_plan={"epoch": 2})
        store.delete_job(job)
        for _ in range(2):
            with pytest.raises(Fenced):
                zombie.commit(job, old.generation, commit_of(2))
            back = store.acquire(job)
        assert back.epoch == 2  # the number of the plan that was pending is used up

    def test_deleting_what_is_not_there_is_no_error(self, store: StateStore, job: str) -> None:
        store.delete_job(job)
        assert store.record(job) is None
        store.acquire(job)
        store.delete_job(job)
        store.delete_job(job)
        assert store.record(job) is None
