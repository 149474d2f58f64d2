"""Behind a real pgbouncer in transaction mode, which gives every transaction another server connection."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from connectors.rows import attempt, recovery
from joinery_devkit.postgres import pooled
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.errors import Fenced
from joinery_runtime.state.postgres import PostgresStore
from state.values import commit_of, live_keys, run_epoch, segment

pytestmark = [pytest.mark.services, pytest.mark.slow]
EPOCHS = 12  # psycopg prepares a statement at its sixth use


@pytest.fixture(scope="module")
def pooler(postgres_dsn: str) -> Iterator[str]:
    with pooled(postgres_dsn) as dsn:
        yield dsn


def test_the_store_keeps_its_promises_behind_a_pooler(pooler: str, job: str) -> None:
    store, other = PostgresStore(pooler, "pooled"), PostgresStore(pooler, "pooled")
    record = store.acquire(job)
    for epoch in range(1, EPOCHS + 1):
        run_epoch(store, record, epoch, [f"s{epoch}"])
        assert other.record(job) == store.record(job)
    assert live_keys(store, job) == sorted(f"s{epoch}" for epoch in range(1, EPOCHS + 1))
    newer = other.acquire(job)
    store.stage(job, [segment("late")])
    with pytest.raises(Fenced):
        store.commit(job, record.generation, commit_of(EPOCHS + 1, ["late"]))
    run_epoch(other, newer, EPOCHS + 1, ["newest"])
    for opened_store in (store, other):
        opened_store.close()


def test_output_tables_behind_a_pooler_and_no_setting_is_left_to_others(pooler: str, postgres_dsn: str) -> None:
    table = TargetTable("pooled_output", ("k",), None)
    sink = PostgresSink(pooler, table, Staging.of("pooled", "job", table.name))
    rows = pa.table({"k": [1, 2], "n": [10, 20]})
    sink.prepare(rows.schema)
    for epoch in range(1, EPOCHS + 1):
        receipt = sink.writer().write(attempt(epoch), rows)
        with psycopg.connect(pooler, prepare_threshold=None) as connection:
            sink.in_transaction(connection, epoch, [receipt])
        sink.publish(epoch, [receipt])
    sink.recover(recovery(generation=2, committed_epoch=EPOCHS))
    sink.close()
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT k, n FROM pooled_output ORDER BY k").fetchall() == [(1, 10), (2, 20)]
    connections = [psycopg.connect(pooler, prepare_threshold=None) for _ in range(3)]
    for connection in connections:  # each holds a server connection of its own
        cursor = connection.execute("SELECT current_setting('synchronous_commit'), current_setting('lock_timeout')")
        assert cursor.fetchone() == ("on", "0")
    for connection in connections:
        connection.close()
