"""A job that moves from one Postgres schema to another goes on there, whatever interrupts the move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from joinery_runtime.core.table.blob import to_blob
from joinery_runtime.errors import Fenced, StateError
from joinery_runtime.state.moving import MovableStore
from joinery_runtime.state.store import JobRecord, OwnershipToken
from state.values import commit_of, live_keys, run_epoch, segment


@pytest.fixture
def source(dsn: str, schema: str) -> Iterator[MovableStore]:
    store = MovableStore(dsn, schema)
    yield store
    store.close()


@pytest.fixture
def target(dsn: str, schema: str) -> Iterator[MovableStore]:
    store = MovableStore(dsn, f"{schema} moved")
    yield store
    store.close()


@pytest.fixture
def before(source: MovableStore, job: str) -> JobRecord:
    """Two epochs, a savepoint that pins what is not live any more, and a plan whose output was claimed."""
    record = source.acquire(job)
    run_epoch(source, record, 1, ["a", "b"], offsets={"orders": b"1"})
    source.create_savepoint(job, "sp")
    run_epoch(source, record, 2, ["c"], deletes=["a"], offsets={"orders": b"2", "rates": b""}, next_plan={"epoch": 3})
    source.stage(job, [segment("garbage", epoch=3)])
    source.claim(job, OwnershipToken(record.generation, 2, 3), "0", "producer-1")
    job_record = source.record(job)
    assert job_record is not None
    return job_record


def test_everything_that_it_needs_to_go_on_comes_along(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord
) -> None:
    log, pins = source.epochs(job), source.savepoints(job)
    source.move_to(target, job)
    assert target.record(job) == replace(before, generation=before.generation + 1)
    assert (target.epochs(job), target.savepoints(job)) == (log, pins)
    assert target.claims(job) == {"0": "producer-1"}
    assert target.read_segments(job, ["a", "b", "c"]) == {key: f"blob of {key}".encode() for key in "abc"}
    record = target.acquire(job)
    target.stage(job, [segment("garbage", epoch=3, blob=b"other bytes")])  # what was never committed stayed behind
    target.commit(job, record.generation, commit_of(3, ["garbage"], plan={"epoch": 3}))
    assert target.sweep(job, record.generation) == 0
    restored = target.restore_savepoint(job, "sp")
    assert ([meta.key for meta in restored.segments], restored.epoch) == (["a", "b"], 3)


def test_a_damaged_segment_does_not_move(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord, dsn: str
) -> None:
    blob = to_blob(pa.record_batch({"n": [1, 2, 3]}))
    source.stage(job, [segment("d", blob=blob, epoch=3)])
    source.commit(job, before.generation, commit_of(3, ["d"], plan={"epoch": 3}))
    with psycopg.connect(dsn) as connection:
        flipped, table = blob[:-1] + bytes([blob[-1] ^ 1]), sql.Identifier(source.schema, "state")
        connection.execute(sql.SQL("UPDATE {} SET state_blob = %s WHERE group_key = 'd'").format(table), (flipped,))
    with pytest.raises(StateError, match=f"Segment d of job {job} is damaged"):
        source.move_to(target, job)
    assert (source.moved_to(job), target.record(job)) == (None, None)


def test_a_running_driver_is_fenced_and_none_starts_at_the_old_place(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord
) -> None:
    source.move_to(target, job)
    with pytest.raises(Fenced):
        source.commit(job, before.generation, commit_of(3))
    for call in (
        lambda: source.acquire(job),
        lambda: source.record(job),
        lambda: source.stage(job, [segment("x")]),
        lambda: source.create_savepoint(job, "sp2"),
        lambda: source.move_to(target, job),
    ):
        with pytest.raises(StateError, match=r"was moved: it is at .*moved"):
            call()
    assert source.ownership(job) is None
    assert source.claims(job) == {"0": "producer-1"}  # nobody's, and no harm


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["_copy_table", "_digest", "_leave"])
def test_an_interrupted_move_is_repeated(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MovableStore, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            source.move_to(target, job)
    with pytest.raises(StateError, match=r"is being moved: to .*; the move has not ended"):
        source.acquire(job)
    with pytest.raises(StateError, match="is being moved"):
        source.restore_savepoint(job, "sp")
    if step == "_leave":  # all of it is there already, and the job went on there
        run_epoch(target, target.acquire(job), 3, ["d"])
    else:
        assert target.record(job) is None
    source.move_to(target, job)
    assert live_keys(target, job) == (["b", "c", "d"] if step == "_leave" else ["b", "c"])
    with pytest.raises(StateError, match="was moved"):
        source.record(job)


def test_a_move_that_is_given_up(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StateError, match=r"No move of job .* is under way"):
        source.stay(job)
    with monkeypatch.context() as patch:
        patch.setattr(MovableStore, "_copy_table", interrupted)
        with pytest.raises(KeyboardInterrupt):
            source.move_to(target, job)
    source.stay(job)
    assert source.acquire(job) == replace(before, generation=before.generation + 2)


def test_what_arrives_otherwise_is_not_taken(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = MovableStore._copy_table

    def without_claims(
        self: MovableStore, here: object, to: object, target_connection: object, table: str, name: str
    ) -> None:
        if table != "claims":
            original(self, here, to, target_connection, table, name)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MovableStore, "_copy_table", without_claims)
        with pytest.raises(StateError, match="did not arrive at the target as it was"):
            source.move_to(target, job)
    assert target.record(job) is None
    source.move_to(target, job)
    assert target.claims(job) == {"0": "producer-1"}


def test_a_job_of_that_name_at_the_target_is_left_alone(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord
) -> None:
    theirs = target.acquire(job)
    with pytest.raises(StateError, match=f"There is state of a job {job} at the target already"):
        source.move_to(target, job)
    assert (source.record(job), target.record(job)) == (before, theirs)


def test_a_zombie_of_a_job_that_was_there_before_stays_fenced(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord
) -> None:
    zombie = target.acquire(job)
    for _ in range(5):
        zombie = target.acquire(job)
    target.write_plan(job, zombie.generation, {"epoch": 1}, {})
    target.claim(job, OwnershipToken(zombie.generation, 0, 1), "0", "theirs")
    target.delete_job(job)
    source.move_to(target, job)
    with pytest.raises(Fenced):
        target.write_plan(job, zombie.generation, {"epoch": 3}, {})
    assert target.claims(job) == {"0": "producer-1"}


def test_there_and_back_again(source: MovableStore, target: MovableStore, job: str, before: JobRecord) -> None:
    source.move_to(target, job)
    run_epoch(target, target.acquire(job), 3, ["d"])
    target.move_to(source, job)
    record = source.acquire(job)
    assert (record.epoch, record.incarnation) == (3, before.incarnation)
    assert live_keys(source, job) == ["b", "c", "d"]
    with pytest.raises(StateError, match="was moved"):
        target.acquire(job)


def test_the_same_place_under_another_address_is_noticed(
    source: MovableStore, dsn: str, schema: str, job: str, before: JobRecord
) -> None:
    again = MovableStore(f"{dsn}&application_name=other" if "?" in dsn else f"{dsn}?application_name=other", schema)
    with pytest.raises(StateError, match="both places are the same database and schema"):
        source.move_to(again, job)
    again.close()
    assert source.record(job) == before


def test_a_deleted_job_forgets_where_it_was_moved(
    source: MovableStore, target: MovableStore, job: str, before: JobRecord
) -> None:
    source.move_to(target, job)
    source.delete_job(job)
    assert source.moved_to(job) is None
    fresh = source.acquire(job)
    assert (fresh.segments, fresh.epoch) == ((), before.epoch + 1)
    assert fresh.incarnation != before.incarnation


def test_nothing_to_move(source: MovableStore, target: MovableStore, job: str) -> None:
    with pytest.raises(StateError, match=f"no state of job {job}"):
        source.move_to(target, job)


def test_a_look_at_the_target_changes_nothing(source: MovableStore, target: MovableStore, job: str) -> None:
    assert not target.knows(job)
    assert not target.knows(job)  # there is still no schema
    target.acquire(job)
    assert target.knows(job)
    target.delete_job(job)
    assert not target.knows(job)
