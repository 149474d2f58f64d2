from __future__ import annotations

import threading
import uuid

import psycopg
import pytest
from psycopg import sql

from joinery_runtime.errors import IncompatibleState, StateError
from joinery_runtime.state import ddl, postgres
from joinery_runtime.state.connection import Connection
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import OwnershipToken
from state.values import live_keys, run_epoch

RELEASED = list(range(1, len(ddl.STEPS) + 1))

# What the release that knew step 1 alone left behind: a job with a plan that is pending, one that was deleted.
_STATE_OF_STEP_1 = """
INSERT INTO {schema}.jobs (pipeline_name, generation, epoch, signature, pending_plan, deleted, updated_at) VALUES
    ('running', 3, 7, '{{"v": 1}}', '{{"epoch": 8}}', FALSE, now() - interval '1 hour'),
    ('deleted', 2, 5, NULL, NULL, TRUE, now());
INSERT INTO {schema}.state VALUES ('running', 'a', 'blob', 1, now(), 'live', 3, 7,
    '{{"key": "a", "part": "left", "hash_min": 0, "hash_max": 9, "ts_min": 0, "ts_max": 9, "rows": 1, "bytes": 4,
       "epoch": 7, "state_version": 1}}');
INSERT INTO {schema}.offsets VALUES ('running', 'orders', '41', 1);
INSERT INTO {schema}.epochs VALUES ('running', 7, 3, '{{"epoch": 7}}', '{{"rows": 1}}');
"""


def execute(dsn: str, statement: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(schema=sql.Identifier(schema), role=sql.Identifier("guest")))


def versions(dsn: str, schema: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            sql.SQL("SELECT version FROM {}.schema_version ORDER BY 1").format(sql.Identifier(schema))
        )
        return [version for (version,) in rows]


def test_the_first_use_creates_the_schema(dsn: str, schema: str) -> None:
    PostgresStore.connect(dsn, schema).close()
    PostgresStore.connect(dsn, schema).close()
    assert versions(dsn, schema) == RELEASED


def test_many_may_create_it_at_once(dsn: str, schema: str) -> None:
    together, failed = threading.Barrier(4), []

    def connect() -> None:
        together.wait()
        try:
            PostgresStore.connect(dsn, schema).close()
        except StateError as error:
            failed.append(error)

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert versions(dsn, schema) == RELEASED


def test_a_newer_schema_is_refused(dsn: str, schema: str) -> None:
    PostgresStore.connect(dsn, schema).close()
    newest = len(ddl.STEPS)
    execute(dsn, f"INSERT INTO {{schema}}.schema_version (version) VALUES ({newest + 1})", schema)
    with pytest.raises(IncompatibleState, match=f"has version {newest + 1}: this release knows up to {newest}"):
        PostgresStore.connect(dsn, schema)
    store = PostgresStore(dsn, schema)
    with pytest.raises(IncompatibleState):
        store.acquire("job")
    store.close()


def test_the_schema_is_checked_when_a_store_first_opens_its_connection(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def check(connection: Connection, name: str) -> None:
        checked.append(name)
        if len(checked) == 1:
            raise IncompatibleState("not this one")
        ddl.ensure_schema(connection, name)

    monkeypatch.setattr(postgres, "ensure_schema", check)
    store = PostgresStore(dsn, schema)
    assert checked == [], "nothing is opened yet"
    with pytest.raises(IncompatibleState, match="not this one"):
        store.acquire("job")
    store.acquire("job")
    store.ownership("job")
    store.close()
    assert store.record("job") is not None, "a connection after the first one"
    assert checked == [schema, schema], "until it has succeeded once"
    store.close()


def test_an_older_schema_is_upgraded_and_keeps_its_state(
    dsn: str, schema: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = PostgresStore(dsn, schema)
    run_epoch(old, old.acquire(job), 1, ["a"])
    old.close()
    step = "ALTER TABLE {schema}.jobs ADD COLUMN note TEXT"
    monkeypatch.setattr(ddl, "STEPS", (*ddl.STEPS, step))
    new = PostgresStore.connect(dsn, schema)
    assert versions(dsn, schema) == [*RELEASED, len(RELEASED) + 1]
    assert live_keys(new, job) == ["a"]
    new.close()


def test_state_of_the_first_release_is_upgraded_and_goes_on(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ddl, "STEPS", ddl.STEPS[:1])
        PostgresStore.connect(dsn, schema).close()
    execute(dsn, _STATE_OF_STEP_1, schema)
    store = PostgresStore.connect(dsn, schema)
    assert versions(dsn, schema) == RELEASED
    assert uuid.UUID(store.identity().id)
    record = store.acquire("running")
    assert (record.generation, record.epoch, record.plan, record.definition) == (4, 7, {"epoch": 8}, None)
    assert (record.offsets, [meta.key for meta in record.segments]) == ({"orders": b"41"}, ["a"])
    assert 3_600_000 <= record.planned_for_ms < 3_700_000
    assert store.newest_epoch("running") == store.epochs("running")[0]
    incarnations = {record.incarnation, store.acquire("deleted").incarnation}
    assert len(incarnations) == 2
    run_epoch(store, record, 8, ["b"], deletes=["a"])
    assert store.ownership("running") == OwnershipToken(4, 8, None)
    assert live_keys(store, "running") == ["b"]
    store.close()


def test_a_newer_schema_that_this_release_can_use_is_used_as_it_is(
    dsn: str, schema: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next release was rolled out, and rolled back."""
    old = PostgresStore.connect(dsn, schema)
    run_epoch(old, old.acquire(job), 1, ["a"])
    old.close()
    steps = (*ddl.STEPS, *("ALTER TABLE {schema}.jobs ADD COLUMN " + column for column in ("note TEXT", "more TEXT")))
    newest, mine = len(steps), len(ddl.STEPS)
    with monkeypatch.context() as patch:
        patch.setattr(ddl, "STEPS", steps)
        patch.setattr(ddl, "USABLE_FROM", {newest - 1: mine, newest: mine})
        PostgresStore.connect(dsn, schema).close()
    back = PostgresStore.connect(dsn, schema)
    run_epoch(back, back.acquire(job), 2, ["b"])
    back.create_savepoint(job, "sp")
    assert live_keys(back, job) == ["a", "b"]
    back.close()
    assert versions(dsn, schema) == [*RELEASED, newest - 1, newest]


def test_the_release_before_goes_on_with_the_tables_of_this_one(
    dsn: str, schema: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of one schema are upgraded one by one: each keeps its image until it is changed."""
    PostgresStore.connect(dsn, schema).close()
    monkeypatch.setattr(ddl, "STEPS", ddl.STEPS[:3])
    before = PostgresStore.connect(dsn, schema)
    run_epoch(before, before.acquire(job), 1, ["a"])
    assert live_keys(before, job) == ["a"]
    before.close()


def test_one_step_that_this_release_cannot_use_is_enough_to_refuse(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = len(ddl.STEPS)
    with monkeypatch.context() as patch:
        patch.setattr(ddl, "STEPS", (*ddl.STEPS, "SELECT 1", "SELECT 1"))
        patch.setattr(ddl, "USABLE_FROM", {mine + 2: mine})  # it adds only, the one before it does not
        PostgresStore.connect(dsn, schema).close()
    with pytest.raises(IncompatibleState, match=f"has version {mine + 2}"):
        PostgresStore.connect(dsn, schema)


def test_a_failing_step_leaves_the_schema_as_it_was(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PostgresStore.connect(dsn, schema).close()
    monkeypatch.setattr(ddl, "STEPS", (*ddl.STEPS, "CREATE TABLE {schema}.extra (); SELECT no_such_column"))
    with pytest.raises(StateError, match="no_such_column"):
        PostgresStore.connect(dsn, schema)
    assert versions(dsn, schema) == RELEASED
    monkeypatch.undo()
    PostgresStore.connect(dsn, schema).close()


def test_a_role_that_may_not_create_anything_can_use_it(dsn: str, schema: str, job: str) -> None:
    guest = dsn.replace("postgres:@", "guest:@")
    execute(dsn, "CREATE ROLE {role} LOGIN", schema)
    with pytest.raises(StateError, match="permission denied"):
        PostgresStore.connect(guest, schema)
    PostgresStore.connect(dsn, schema).close()
    execute(dsn, "GRANT USAGE ON SCHEMA {schema} TO {role}", schema)
    execute(dsn, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}", schema)
    store = PostgresStore.connect(guest, schema)
    run_epoch(store, store.acquire(job), 1, ["a"])
    assert live_keys(store, job) == ["a"]
    store.close()
