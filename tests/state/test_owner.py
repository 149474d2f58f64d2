"""One resource owns a state: two clusters with the same jobs and the same Postgres do not take it in turns."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from joinery_runtime.errors import StateTaken
from joinery_runtime.job.model.owner import OwnerCandidate, StateOwner
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import StateStore
from state.values import run_epoch

EAST = StateOwner(cluster="east", kind="StreamJoin", namespace="jobs", name="orders", uid="u-1")
WEST = EAST.model_copy(update={"cluster": "west", "uid": "u-9"})


def candidate(owner: StateOwner, replaces: str = "") -> OwnerCandidate:
    return OwnerCandidate(owner=owner, replaces=replaces)


def owner_id(store: StateStore, job: str) -> str:
    record = store.record(job)
    assert record is not None
    assert record.owner is not None
    return record.owner.id


def test_the_first_owns_the_state_and_keeps_it(driver: Callable[[], StateStore], job: str) -> None:
    first = driver().acquire(job, candidate(EAST))
    assert first.owner is not None
    assert (first.owner.owner, first.owner.since, first.generation) == (EAST, 1, 1)
    again = driver().acquire(job, candidate(EAST))
    assert (again.owner, again.generation) == (first.owner, 2)
    assert driver().record(job) == again


def test_another_cluster_takes_nothing_and_fences_nobody(driver: Callable[[], StateStore], job: str) -> None:
    east, west = driver(), driver()
    record = east.acquire(job, candidate(EAST))
    with pytest.raises(StateTaken) as refused:
        west.acquire(job, candidate(WEST))
    message = str(refused.value)
    assert "belongs to StreamJoin jobs/orders (uid u-1) of cluster east, since generation 1" in message
    assert "kubectl annotate streamjoin orders -n jobs" in message
    assert f"joinery.dev/replacesOwner={owner_id(west, job)}" in message
    run_epoch(east, record, 1, ["a"])


def test_a_state_without_an_owner_goes_to_the_next_one(store: StateStore, job: str) -> None:
    """As a release before this one left it, or a person's command."""
    run_epoch(store, store.acquire(job), 1, ["a"])
    assert store.acquire(job).owner is None
    record = store.acquire(job, candidate(WEST))
    assert record.owner is not None
    assert (record.owner.owner, record.owner.since, record.epoch) == (WEST, 3, 1)


def test_a_persons_command_leaves_the_owner(store: StateStore, job: str) -> None:
    before = store.acquire(job, candidate(EAST)).owner
    store.create_savepoint(job, "sp")
    assert store.acquire(job).owner == before
    assert store.restore_savepoint(job, "sp").owner == before
    assert store.pinned(job, "sp").owner == before
    assert store.start_anew(job, "sp").owner == before


def test_a_recreated_resource_takes_over(store: StateStore, job: str) -> None:
    store.acquire(job, candidate(EAST))
    recreated = EAST.model_copy(update={"uid": "u-2"})
    record = store.acquire(job, candidate(recreated))
    assert record.owner is not None
    assert (record.owner.owner, record.owner.since) == (recreated, 2)


@pytest.mark.parametrize("other", [{"kind": "SessionWindow"}, {"name": "others"}, {"namespace": "more"}])
def test_a_resource_of_another_kind_or_name_does_not(store: StateStore, job: str, other: dict[str, str]) -> None:
    """The two may exist side by side."""
    store.acquire(job, candidate(EAST))
    with pytest.raises(StateTaken, match="belongs to StreamJoin"):
        store.acquire(job, candidate(EAST.model_copy(update={**other, "uid": "u-3"})))


def test_naming_the_owner_takes_its_place_once(store: StateStore, job: str) -> None:
    store.acquire(job, candidate(EAST))
    first, by_west = owner_id(store, job), candidate(WEST, owner_id(store, job))
    assert store.acquire(job, by_west).generation == 2
    assert store.acquire(job, by_west).generation == 3
    by_east = candidate(EAST, owner_id(store, job))
    store.acquire(job, by_east)
    assert owner_id(store, job) != first
    # Both annotations stay in Git: without the generation in the name, the two would now take turns.
    with pytest.raises(StateTaken, match=f"names {first}"):
        store.acquire(job, by_west)
    assert store.acquire(job, by_east).generation == 5


def test_joinery_run_is_an_owner_of_its_own(store: StateStore, job: str) -> None:
    store.acquire(job, OwnerCandidate())
    assert store.acquire(job, OwnerCandidate()).generation == 2, "on whatever machine"
    with pytest.raises(StateTaken, match="belongs to `joinery run`"):
        store.acquire(job, candidate(EAST))
    store.acquire(job, candidate(EAST, owner_id(store, job)))
    with pytest.raises(StateTaken, match=r"write joinery\.dev/replacesOwner: east/jobs/orders/u-1@3 into"):
        store.acquire(job, OwnerCandidate())


@pytest.mark.services
def test_a_state_that_an_earlier_release_has_deleted_has_no_owner(postgres: PostgresStore, dsn: str, job: str) -> None:
    """That release does not know the column."""
    before = postgres.acquire(job, candidate(EAST)).owner
    assert before is not None
    postgres.delete_job(job)
    with psycopg.connect(dsn) as connection:
        table = sql.Identifier("shared by tests", "jobs")
        statement = sql.SQL("UPDATE {} SET owner = %s WHERE pipeline_name = %s").format(table)
        connection.execute(statement, (before.model_dump_json(), job))
    record = postgres.acquire(job, candidate(WEST))
    assert record.owner is not None
    assert record.owner.owner == WEST


def test_a_deleted_state_has_no_owner(store: StateStore, job: str) -> None:
    store.acquire(job, candidate(EAST))
    store.delete_job(job)
    record = store.acquire(job, candidate(WEST))
    assert record.owner is not None
    assert (record.owner.owner, record.owner.since) == (WEST, record.generation)
