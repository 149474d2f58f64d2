"""The sink of a table in another database than the state's: what its marks are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from connectors.postgres.committed import content
from connectors.rows import attempt, recovery
from joinery_runtime.connectors.postgres.external import ExternalPostgresSink, drop_marks
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging, drop_staging
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.sink import Receipt
from joinery_runtime.errors import OutputUnavailable, SinkError

pytestmark = pytest.mark.services
PAIR = pa.schema({"k": pa.int64(), "v": pa.string()})
SCHEMA = "apart_out"


def pairs(*rows: tuple[int, str]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "v": v} for k, v in rows], schema=PAIR)


def database(dsn: str, name: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
            connection.execute(f"CREATE DATABASE {name}")
    return make_conninfo(dsn, dbname=name)


@pytest.fixture(scope="module")
def output_dsn(dsn: str) -> str:
    return database(dsn, "apart_first")


@pytest.fixture
def elsewhere(dsn: str) -> str:
    return database(dsn, "apart_second")


@pytest.fixture
def looking(output_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(output_dsn, autocommit=True) as opened:
        yield opened


MakeApart = Callable[..., ExternalPostgresSink]


@pytest.fixture
def driver(output_dsn: str, table: str) -> Iterator[MakeApart]:
    """A driver's sink, prepared."""
    sinks: list[ExternalPostgresSink] = []

    def maker(dsn: str = output_dsn, *, prepared: bool = True) -> ExternalPostgresSink:
        sink = ExternalPostgresSink(dsn, TargetTable(table), Staging.of(SCHEMA, "job", table, external=True), PAIR)
        sinks.append(sink)
        if prepared:
            sink.prepare(PAIR)
        return sink

    yield maker
    for sink in sinks:
        sink.close()


def staged(sink: ExternalPostgresSink, epoch: int, *rows: tuple[int, str], generation: int = 1) -> list[Receipt]:
    return [sink.writer().write(attempt(epoch=epoch, generation=generation), pairs(*rows))]


def test_rows_are_visible_once_published_and_once_only(
    driver: MakeApart, looking: psycopg.Connection, table: str
) -> None:
    sink = driver()
    receipts = staged(sink, 1, (1, "a"), (2, "b"))
    sink.in_transaction(None, 1, receipts)
    assert content(looking, table) == []
    for _ in ("the commit", "recovery, again and again"):
        sink.publish(1, receipts)
        assert content(looking, table) == [(1, "a"), (2, "b")]
    sink.publish(2, staged(sink, 2, (3, "c")))
    assert content(looking, table) == [(1, "a"), (2, "b"), (3, "c")]


def test_after_a_crash_between_the_commits_the_next_driver_publishes(
    driver: MakeApart, looking: psycopg.Connection, table: str
) -> None:
    receipts = staged(driver(), 1, (1, "a"))
    unnamed = driver().writer().write(attempt(name="zombie"), pairs((9, "z")))
    assert unnamed["rows"] == 1
    newer = driver()
    newer.publish(1, receipts)
    newer.recover(recovery(generation=2, committed_epoch=1))
    assert content(looking, table) == [(1, "a")]
    left = newer.writer().staging.table(1).as_string()
    assert looking.execute(f"SELECT count(*) FROM {left}").fetchone() == (0,), "what nobody named is swept"


def test_rows_that_await_their_publication_last(driver: MakeApart, looking: psycopg.Connection) -> None:
    staging = driver().writer().staging
    for name in staging.tables():
        kind = looking.execute("SELECT relpersistence FROM pg_class WHERE oid = %s::regclass", (name.as_string(),))
        assert kind.fetchone() == ("p",), "an unlogged table is empty after a crash of its server"


def test_a_driver_that_slept_repeats_nothing(driver: MakeApart, looking: psycopg.Connection, table: str) -> None:
    slept, newer = driver(), driver()
    first = staged(slept, 1, (1, "a"))
    newer.publish(1, first)
    newer.recover(recovery(generation=2, committed_epoch=1))
    newer.publish(2, staged(newer, 2, (2, "b"), generation=2))
    slept.publish(1, first)
    assert content(looking, table) == [(1, "a"), (2, "b")]


def test_an_epoch_is_written_again_after_a_savepoint_was_restored(
    driver: MakeApart, looking: psycopg.Connection, table: str
) -> None:
    """The state has gone back to epoch 1; rows that were written stay, as with every output."""
    sink = driver()
    for epoch in (1, 2, 3):
        sink.publish(epoch, staged(sink, epoch, (epoch, "before")))
    sink.publish(2, staged(sink, 2, (2, "after"), generation=2))
    assert content(looking, table) == [(1, "before"), (2, "after"), (2, "before"), (3, "before")]


def test_a_job_with_new_state_begins_anew(driver: MakeApart, looking: psycopg.Connection, table: str) -> None:
    sink = driver()
    sink.publish(5, staged(sink, 5, (5, "a"), generation=7))
    receipt = sink.writer().write(replace(attempt(epoch=1), incarnation="another-life"), pairs((1, "b")))
    sink.publish(1, [receipt])
    assert content(looking, table) == [(1, "b"), (5, "a")]


def test_staged_rows_that_are_gone_are_not_passed_over(
    driver: MakeApart, looking: psycopg.Connection, table: str
) -> None:
    sink = driver()
    receipts = staged(sink, 1, (1, "a"), (2, "b"))
    looking.execute(f"DELETE FROM {sink.writer().staging.table(1).as_string()} WHERE k = 1")
    with pytest.raises(SinkError, match=r"epoch 1 .* are not complete: 1 are there, 2 were written.* savepoint"):
        sink.publish(1, receipts)
    assert content(looking, table) == []


def test_rows_that_went_with_the_state_are_not_looked_for(
    dsn: str, driver: MakeApart, looking: psycopg.Connection, table: str
) -> None:
    """`dsn` was added to a job that wrote beside its state."""
    beside = PostgresSink(dsn, TargetTable(table), Staging.of(SCHEMA, "job", table))
    beside.prepare(PAIR)
    receipts = [beside.writer().write(attempt(), pairs((1, "a")))]
    sink = driver()
    sink.publish(1, receipts)
    sink.recover(recovery(generation=2, committed_epoch=1, pending=2))
    assert content(looking, table) == []
    beside.close()


@pytest.mark.parametrize("beside", [False, True])
def test_another_database_is_taken_after_a_stop_in_order_only(
    dsn: str, elsewhere: str, driver: MakeApart, table: str, beside: bool
) -> None:
    receipts = staged(driver(), 1, (1, "a"))
    for pending in (None, 2):
        sink: PostgresSink = driver(elsewhere)
        if beside:
            sink = PostgresSink(dsn, TargetTable(table), Staging.of(SCHEMA, "job", table))
            sink.prepare(PAIR)
        sink.publish(1, receipts)
        context = recovery(generation=2, committed_epoch=1, pending=pending)
        if pending is None:
            sink.recover(context)
        else:
            with pytest.raises(SinkError, match=r"epoch 1 are staged .* another database.* Name the earlier dsn"):
                sink.recover(context)
        sink.close()


def test_an_earlier_definition_s_output_is_published_without_being_prepared(
    driver: MakeApart, looking: psycopg.Connection, table: str
) -> None:
    receipts = staged(driver(), 1, (1, "a"))
    driver(prepared=False).publish(1, receipts)
    assert content(looking, table) == [(1, "a")]


def test_a_database_that_is_away_is_waited_for(driver: MakeApart) -> None:
    receipts = staged(driver(), 1, (1, "a"))
    unreachable = driver("host=127.0.0.1 port=1 connect_timeout=1", prepared=False)
    with pytest.raises(OutputUnavailable) as caught:
        unreachable.publish(1, receipts)
    assert caught.value.system == "output"


def test_deleting_a_job_takes_its_staging_and_marks(
    output_dsn: str, driver: MakeApart, looking: psycopg.Connection, table: str
) -> None:
    sink = driver()
    sink.publish(1, staged(sink, 1, (1, "a")))
    marks = f"SELECT count(*) FROM {SCHEMA}.output_marks WHERE job = 'job'"
    assert looking.execute(marks).fetchone() != (0,)
    for _ in ("there", "gone already"):
        drop_staging(output_dsn, SCHEMA, "job", external=True)
        drop_marks(output_dsn, SCHEMA, "job")
        assert looking.execute(marks).fetchone() == (0,)
    assert content(looking, table) == [(1, "a")]
    drop_marks(output_dsn, "no_such_schema", "job")


@pytest.mark.parametrize("rows", [True, False])
def test_a_stopped_job_may_drop_a_table_of_another_database(
    dsn: str, driver: MakeApart, table: str, rows: bool
) -> None:
    """The definition of its newest epoch says no dsn, which may be secret, so the table is looked for beside the
    state, where it never was."""
    receipts = staged(driver(), 1, (1, "a"))
    sink = PostgresSink(dsn, TargetTable(table), Staging.of(SCHEMA, "job", table))
    sink.publish(1, receipts if rows else [])
    sink.close()
