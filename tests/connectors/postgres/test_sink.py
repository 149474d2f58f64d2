"""The Postgres sink on a real server: exactly the named attempts, in the commit's transaction."""

from __future__ import annotations

import pickle
import random
import re
import string
from collections.abc import Iterator
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from connectors.postgres.committed import commit, content
from connectors.rows import EMPTY, EVERY_TYPE, FULL, ROWS, attempt, recovery
from joinery_runtime.connectors.postgres import sink as postgres
from joinery_runtime.connectors.postgres import table as postgres_table
from joinery_runtime.connectors.postgres.external import ExternalPostgresSink
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging, drop_staging
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.errors import SinkError, StoreUnavailable, Unavailable

pytestmark = pytest.mark.services
BESIDE = pytest.mark.parametrize("external", [False])  # what happens inside the transaction of the state
PAIR = pa.schema({"k": pa.int64(), "v": pa.string()})


def pairs(*rows: tuple[int | None, str]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "v": v} for k, v in rows], schema=PAIR)


def staged(connection: psycopg.Connection, sink: PostgresSink) -> int:
    tables = [name.as_string(connection) for name in sink.writer().staging.tables()]
    return sum(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables)


def test_every_type_round_trips(connection, make, table) -> None:
    sink = make(EVERY_TYPE)
    writer = pickle.loads(pickle.dumps(sink.writer()))
    commit(connection, sink, 1, writer.write(attempt(), ROWS))
    full, empty = connection.execute(f"SELECT * FROM {table} ORDER BY big NULLS LAST").fetchall()
    assert full == tuple({**FULL, "session": Decimal(2**64 - 1)}.values())
    assert empty == tuple(EMPTY.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_floats_that_are_no_numbers(connection, make, table, value) -> None:
    sink = make(pa.schema({"a": pa.float64()}))
    commit(connection, sink, 1, sink.writer().write(attempt(), pa.table({"a": [value]})))
    assert str(connection.execute(f"SELECT a FROM {table}").fetchone()[0]) == str(value)


def test_empty_text_is_not_null_and_u0000_is_replaced(connection, make, table) -> None:
    sink = make(PAIR)
    commit(connection, sink, 1, sink.writer().write(attempt(), pairs((1, ""), (2, "a\0b"), (3, "\\N"))))
    assert content(connection, table) == [(1, ""), (2, "a\ufffdb"), (3, "\\N")]


def test_only_named_attempts_are_moved(connection, make, table) -> None:
    sink = make(PAIR)
    writer = sink.writer()
    writer.write(attempt(name="lost"), pairs((1, "twice")))
    named = [writer.write(attempt(name="won"), pairs((1, "once"))), writer.write(attempt(shard=1), pairs((2, "b")))]
    assert content(connection, table) == []
    commit(connection, sink, 1, *named)
    assert content(connection, table) == [(1, "once"), (2, "b")]


@BESIDE
def test_rows_come_and_go_with_the_transaction(connection, make, table) -> None:
    sink = make(PAIR)
    receipt = sink.writer().write(attempt(), pairs((1, "a")))
    with connection.transaction(force_rollback=True):
        sink.in_transaction(connection, 1, [receipt])
        assert content(connection, table) == [(1, "a")]
    assert content(connection, table) == []
    commit(connection, sink, 1, receipt)
    assert content(connection, table) == [(1, "a")]


def test_an_epoch_without_rows(connection, make, table) -> None:
    sink = make(PAIR)
    commit(connection, sink, 1)
    commit(connection, sink, 2, sink.writer().write(attempt(epoch=2), pairs()))
    assert content(connection, table) == []


@BESIDE
def test_staged_rows_that_are_gone_stop_the_commit(connection, make, table) -> None:
    sink = make(PAIR)
    receipt = sink.writer().write(attempt(), pairs((1, "a"), (2, "b")))
    connection.execute(f"TRUNCATE {sink.writer().staging.table(1).as_string(connection)}")
    with pytest.raises(SinkError, match="epoch 1 is not complete: 0 rows are there, 2 were written"):
        commit(connection, sink, 1, receipt)
    assert content(connection, table) == []


def test_upsert_keeps_the_newest_row_within_and_across_epochs(connection, make, table) -> None:
    sink = make(PAIR, "k")
    writer = sink.writer()
    commit(connection, sink, 1, writer.write(attempt(), pairs((1, "old"), (2, "b"), (1, "new"))))
    assert content(connection, table) == [(1, "new"), (2, "b")]
    commit(connection, sink, 2, writer.write(attempt(epoch=2), pairs((2, "c"), (None, "x"), (None, "y"))))
    assert content(connection, table) == [(1, "new"), (2, "c"), (None, "y")]


def test_rows_of_several_shards_with_one_key_resolve_alike(connection, make, table) -> None:
    """The upsert key need not be the join's: the row with the higher number in its attempt counts, then the attempt."""
    sink = make(PAIR, "v")
    receipts = [
        sink.writer().write(attempt(shard=0), pairs((1, "a"), (2, "B"), (3, "b"))),
        sink.writer().write(attempt(shard=1), pairs((4, "é"), (5, "a"), (6, "B"))),
        sink.writer().write(attempt(shard=2), pairs((7, "é"))),
    ]
    for named in (receipts, receipts[::-1]):
        commit(connection, sink, 1, *named)
        assert sorted(content(connection, table)) == [(3, "b"), (4, "é"), (5, "a"), (6, "B")]


@BESIDE
def test_a_row_is_replaced_where_it_is(connection, make, table) -> None:
    """In the room that inserts leave in a page: no index is written (HOT)."""
    sink = make(PAIR, "k")
    for epoch in (1, 2):
        few = [(key, f"{epoch}") for key in range(5_000) if epoch == 1 or key % 10 == 0]
        with connection.transaction():
            sink.in_transaction(connection, epoch, [sink.writer().write(attempt(epoch=epoch), pairs(*few))])
            counts = (
                "SELECT pg_stat_get_xact_tuples_updated(%(t)s::regclass), "
                "pg_stat_get_xact_tuples_hot_updated(%(t)s::regclass)"
            )
            updated, in_place = connection.execute(counts, {"t": table}).fetchone()
    assert (updated, in_place) == (500, 500)


@BESIDE
def test_an_epoch_is_sorted_in_memory_and_the_server_s_setting_is_back_afterwards(connection, make) -> None:
    sink = make(PAIR, "k")
    for epoch, theirs, during in ((1, "4MB", "128MB"), (2, "1GB", "1GB")):
        connection.execute(f"SET work_mem = '{theirs}'")
        with connection.transaction():
            sink.in_transaction(connection, epoch, [sink.writer().write(attempt(epoch=epoch), pairs((1, "a")))])
            assert connection.execute("SHOW work_mem").fetchone() == (during,)
        assert connection.execute("SHOW work_mem").fetchone() == (theirs,)


def test_upsert_where_all_columns_are_the_key(connection, make, table) -> None:
    sink = make(PAIR, "v", "k")
    for epoch in (1, 2):
        commit(connection, sink, epoch, sink.writer().write(attempt(epoch=epoch), pairs((1, "a"), (1, "a"))))
    assert content(connection, table) == [(1, "a")]


def test_publish_empties_a_large_staging_table_but_not_the_next_epoch_s(connection, make, table) -> None:
    sink = make(PAIR)
    writer = sink.writer()
    first = writer.write(attempt(), pairs(*((i, "x" * 500) for i in range(10_000))))
    second = writer.write(attempt(epoch=2), pairs((1, "next")))
    commit(connection, sink, 1, first)
    assert staged(connection, sink) == 1
    commit(connection, sink, 2, second)
    assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (10_001,)


def test_a_zombie_that_is_writing_does_not_hold_up_publish(connection, make, table, dsn) -> None:
    sink = make(PAIR)
    receipt = sink.writer().write(attempt(), pairs(*((i, "x" * 500) for i in range(10_000))))
    name = sink.writer().staging.table(1).as_string(connection)
    with psycopg.connect(dsn) as zombie:
        zombie.execute(f'INSERT INTO {name} ("$attempt") VALUES (%s)', ("0-1-0-z",))
        commit(connection, sink, 1, receipt)
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (10_000,)


def test_recover_sweeps_older_generations(connection, make) -> None:
    sink = make(PAIR)
    writer = sink.writer()
    for generation, epoch in ((1, 1), (1, 2), (9, 2), (10, 3)):
        writer.write(attempt(generation=generation, epoch=epoch), pairs((generation, "x")))
    sink.recover(recovery(10, 2))
    assert staged(connection, sink) == 1


def test_preparing_again_keeps_what_is_staged(connection, make, table) -> None:
    receipt = make(PAIR).writer().write(attempt(), pairs((1, "a")))
    commit(connection, make(PAIR), 1, receipt)
    assert content(connection, table) == [(1, "a")]


def test_preparing_for_other_columns_makes_new_staging_tables(connection, make, table) -> None:
    make(PAIR)
    connection.execute(f"ALTER TABLE {table} ADD COLUMN w bigint")
    sink = make(pa.schema({"k": pa.int64(), "w": pa.int64()}))
    commit(connection, sink, 1, sink.writer().write(attempt(), pa.table({"k": [1], "w": [2]})))
    assert content(connection, table) == [(1, None, 2)]


def test_columns_that_the_table_lacks_are_added_and_older_rows_have_null(connection, make, table) -> None:
    first = make(PAIR)
    commit(connection, first, 1, first.writer().write(attempt(), pairs((1, "a"))))
    wider = pa.schema([*PAIR, pa.field("Price", pa.decimal128(9, 2)), pa.field("at", pa.timestamp("ms", "UTC"))])
    for _ in range(2):
        sink = make(wider)
    rows = pa.Table.from_pylist([{"k": 2, "v": "b", "Price": Decimal("1.50"), "at": None}], schema=wider)
    commit(connection, sink, 2, sink.writer().write(attempt(epoch=2), rows))
    assert content(connection, table) == [(1, "a", None, None), (2, "b", Decimal("1.50"), None)]
    kinds = connection.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 2",
        (table,),
    )
    assert kinds.fetchall() == [("numeric(9,2)",), ("timestamp with time zone",)]


def test_a_table_that_the_job_has_not_made_is_not_altered(connection, make, table) -> None:
    """Until it is told that the table is its own."""
    connection.execute(f"CREATE TABLE {table} (k bigint, of_others text)")
    before = connection.execute("SELECT count(*) FROM pg_class").fetchone()
    with pytest.raises(SinkError, match=r"lacks columns of the job's output \(v text\)") as caught:
        make(PAIR)
    assert connection.execute("SELECT count(*) FROM pg_class").fetchone() == before, "nothing else was made either"
    assert table in str(caught.value)
    statements = re.findall(r"run: (.*?)\. ", caught.value.todo, re.IGNORECASE)
    for epoch, statement in enumerate(statements, 1):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN IF EXISTS v")
        connection.execute(statement)
        sink = make(PAIR)
        commit(connection, sink, epoch, sink.writer().write(attempt(epoch=epoch), pairs((epoch, "a"))))
    assert content(connection, table) == [(1, None, None), (2, None, "a")]


def test_who_reads_a_table_does_not_wait_for_its_new_columns_for_long(
    connection, make, table, dsn, monkeypatch
) -> None:
    """They wait behind the one that waits to add them."""
    monkeypatch.setattr(postgres_table, "_ALTER_WAITS", "SET LOCAL lock_timeout = '50ms'")
    make(PAIR)
    with psycopg.connect(dsn) as reader:
        reader.execute(f"SELECT * FROM {table}")
        with pytest.raises(Unavailable, match=f"The output table {table} cannot be prepared: .*lock timeout"):
            make(pa.schema([*PAIR, pa.field("w", pa.int64())]))


def test_a_table_of_somebody_else_s_is_altered_by_its_owner(connection, table, dsn, external) -> None:
    """And by the statement that the job names."""
    role = f"writer_of_{table}"
    connection.execute(f"CREATE TABLE {table} (k bigint, v text)")
    connection.execute(f"COMMENT ON TABLE {table} IS 'Joinery: output of job job'")
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    connection.execute(f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {role}")
    connection.execute(f"GRANT INSERT, SELECT ON {table} TO {role}")
    theirs = make_conninfo(dsn, user=role, password="secret")
    target = TargetTable(table, owner=connection.info.user)
    wider = pa.schema([*PAIR, pa.field("w", pa.int64())])
    staging = Staging.of(f"out_{table}", "job", table, external=external)
    sink = ExternalPostgresSink(theirs, target, staging, wider) if external else PostgresSink(theirs, target, staging)
    statement = f'ALTER TABLE "{table}" ADD COLUMN IF NOT EXISTS "w" bigint'
    with pytest.raises(SinkError) as caught:
        sink.prepare(wider)
    assert str(caught.value) == (
        f"The output table {table} lacks columns of the job's output (w), and they cannot be added: must be owner of "
        f"table {table}. Have its owner run: {statement}"
    )
    connection.execute(statement)
    sink.prepare(wider)
    sink.close()


def test_a_table_with_none_of_the_columns_is_not_altered(connection, make, table) -> None:
    """It is another program's."""
    connection.execute(f"CREATE TABLE {table} (other text)")
    with pytest.raises(SinkError, match="column k bigint is missing; column v text is missing"):
        make(PAIR)


def test_an_existing_table_may_have_wider_types_and_more_columns(connection, make, table) -> None:
    connection.execute(
        f"CREATE TABLE {table} (v varchar, k numeric, id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz "
        "NOT NULL DEFAULT now())"
    )
    sink = make(PAIR)
    commit(connection, sink, 1, sink.writer().write(attempt(), pairs((1, "a"))))
    assert connection.execute(f"SELECT k, v, id FROM {table}").fetchall() == [(1, "a", 1)]


def test_all_that_does_not_fit_is_named_at_once(connection, make, table) -> None:
    connection.execute(f"CREATE TABLE {table} (k text, more int NOT NULL)")
    with pytest.raises(SinkError) as caught:
        make(PAIR, "k")
    assert str(caught.value) == (
        f"The output table {table} does not fit the job's output: column v text is missing; column k is text, the "
        "output's is bigint; column more is NOT NULL, has no default and is not in the output; there is no unique "
        "index on exactly (k), the upsertKey, that is NULLS NOT DISTINCT or whose columns are NOT NULL. Alter the "
        "table, or name one that is not there: it will be created. After a trial start from the beginning: "
        "DROP TABLE, then joinery state delete JOB.yaml --yes"
    )


@pytest.mark.parametrize("index", ["UNIQUE (k)", "UNIQUE NULLS NOT DISTINCT (k) INCLUDE (v)", "PRIMARY KEY (k)"])
def test_an_index_is_an_upsert_key_if_rows_with_null_replace_each_other_too(connection, make, table, index) -> None:
    connection.execute(f"CREATE TABLE {table} (k bigint, v text, {index})")
    if index == "UNIQUE (k)":
        with pytest.raises(SinkError, match="NULLS NOT DISTINCT"):
            make(PAIR, "k")
        return
    sink = make(PAIR, "k")
    commit(connection, sink, 1, sink.writer().write(attempt(), pairs((1, "a"))))
    commit(connection, sink, 2, sink.writer().write(attempt(2), pairs((1, "b"))))
    assert connection.execute(f"SELECT k, v FROM {table}").fetchall() == [(1, "b")]


def test_columns_that_an_index_only_includes_are_no_key(connection, make, table) -> None:
    connection.execute(f"CREATE TABLE {table} (k bigint NOT NULL, v text NOT NULL, UNIQUE (k) INCLUDE (v))")
    with pytest.raises(SinkError, match=r"no unique index on exactly \(k, v\)"):
        make(PAIR, "k", "v")


def test_a_constraint_of_the_table_is_named(connection, make, table) -> None:
    connection.execute(f"CREATE TABLE {table} (k bigint PRIMARY KEY, v text)")
    sink = make(PAIR)
    receipt = sink.writer().write(attempt(), pairs((1, "a"), (1, "b")))
    with pytest.raises(SinkError, match=f"{table} rejects the rows of epoch 1: duplicate key"):
        commit(connection, sink, 1, receipt)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("k bigint, v text NOT NULL", r"null value in column \"v\" .* Failing row contains \(2, null\)"),
        ("k bigint CHECK (k < 2), v text", r"violates check constraint .* Failing row contains \(2, null\)"),
        ("k bigint REFERENCES others, v text", r"Key \(k\)=\(2\) is not present in table \"others\""),
        ("k bigint REFERENCES others DEFERRABLE INITIALLY DEFERRED, v text", r"Key \(k\)=\(2\) is not present"),
        ("k bigint, v text, EXCLUDE USING gist (int4range(1, 5) WITH &&)", "violates exclusion constraint"),
    ],
)
def test_a_row_that_a_constraint_rejects_ends_the_job_and_is_named(
    connection, make, table, external, columns, says
) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS others (k bigint PRIMARY KEY); TRUNCATE others CASCADE")
    connection.execute("INSERT INTO others VALUES (1)")
    connection.execute(f"CREATE TABLE {table} ({columns})")
    sink = make(PAIR)
    receipt = sink.writer().write(attempt(), pairs((1, "a"), (2, None)))
    outcome = "the epoch is committed, and its rows stay staged" if external else "nothing of the epoch was committed"
    with pytest.raises(SinkError, match=f"{table} rejects the rows of epoch 1: .*{says}.*{outcome}"):
        commit(connection, sink, 1, receipt)
    assert content(connection, table) == []


def test_a_column_that_postgres_computes_is_none_of_the_outputs(connection, make, table) -> None:
    connection.execute(f"CREATE TABLE {table} (k bigint GENERATED ALWAYS AS IDENTITY, v text)")
    with pytest.raises(SinkError, match="column k is GENERATED ALWAYS, so it takes no value of the output"):
        make(PAIR)


def test_a_key_longer_than_an_index_takes_is_refused_for_good(connection, make, table) -> None:
    """And not waited for, as psycopg's class for it says: no next try is any better."""
    long = "".join(random.Random(1).choices(string.ascii_letters, k=5_000))  # Postgres compresses what repeats
    sink = make(PAIR, "v")
    receipt = sink.writer().write(attempt(), pairs((1, long)))
    with pytest.raises(SinkError, match=f"{table} rejects the rows of epoch 1: index row size .* upsertKey"):
        commit(connection, sink, 1, receipt)


def test_a_table_in_a_schema_of_its_own(connection, dsn) -> None:
    connection.execute('CREATE SCHEMA "My Schema"')
    sink = PostgresSink(dsn, TargetTable("My Schema.My Table"), Staging.of("joinery_out", "job", "My Schema.My Table"))
    sink.prepare(PAIR)
    commit(connection, sink, 1, sink.writer().write(attempt(), pairs((1, "a"))))
    assert content(connection, '"My Schema"."My Table"') == [(1, "a")]
    sink.close()


def test_a_server_that_is_not_there() -> None:
    sink = PostgresSink("host=127.0.0.1 port=1 password=hush", TargetTable("t"), Staging.of("s", "job", "t"))
    # The table is in the state's database: when that is away, the job waits and recovers.
    with pytest.raises(StoreUnavailable, match=r"cannot be prepared: .*Connection refused") as caught:
        sink.prepare(PAIR)
    assert "hush" not in str(caught.value)
    with pytest.raises(StoreUnavailable, match="cannot be staged"):
        sink.writer().write(attempt(), pairs((1, "a")))


@BESIDE
def test_after_a_restart_of_the_server_it_goes_on(connection, make) -> None:
    sink = make(pairs((1, "a")).schema)
    sink.writer().write(attempt(), pairs((1, "a")))

    def restart() -> None:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name = 'joinery output' AND datname = current_database()"
        )

    class Meanwhile:
        def to_batches(self) -> Iterator[pa.RecordBatch]:
            yield from pairs((2, "b")).to_batches()
            restart()
            yield from pairs((3, "c")).to_batches()

    with pytest.raises(StoreUnavailable):
        sink.writer().write(attempt(epoch=2), Meanwhile())
    sink.writer().write(attempt(epoch=2), pairs((2, "b")))
    restart()  # of a connection that nobody uses the next write finds it out
    sink.writer().write(attempt(epoch=3), pairs((3, "c")))


def test_a_schema_that_is_not_there(make, dsn) -> None:
    sink = PostgresSink(dsn, TargetTable("nowhere.t"), Staging.of("joinery_out", "job", "nowhere.t"))
    with pytest.raises(SinkError, match='cannot be prepared: schema "nowhere" does not exist'):
        sink.prepare(PAIR)


def test_no_staging_table_of_a_deleted_job_is_left(connection, dsn, table) -> None:
    """Nor of a table that it wrote to before it was edited, nor one that an earlier release made. Other jobs' stay."""
    stagings = [Staging.of("joinery_deleted", job, table) for job, table in (("a", "t"), ("a", "u"), ("b", "t"))]
    sinks = [PostgresSink(dsn, TargetTable(table), staging) for staging in stagings]
    for sink in sinks:
        sink.prepare(PAIR)
    for name in stagings[1].tables():
        connection.execute(f"COMMENT ON TABLE {name.as_string(connection)} IS NULL")
    sinks[1].prepare(PAIR)
    drop_staging(dsn, "joinery_deleted", "a")
    left = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'joinery_deleted' ORDER BY 1")
    assert [name for (name,) in left] == [f"{stagings[2].prefix}_{turn}" for turn in (0, 1)]
    for sink in sinks:
        sink.close()


def test_a_task_that_still_writes_keeps_the_staging_table(connection, dsn, table, monkeypatch) -> None:
    monkeypatch.setattr(postgres, "_DROP_WAITS", "SET LOCAL lock_timeout = '50ms'")
    sink = PostgresSink(dsn, TargetTable(table), Staging.of("joinery_held", "job", table))
    sink.prepare(PAIR)
    locked_table = sink.writer().staging.table(1).as_string(connection)
    with connection.transaction():
        connection.execute(f"LOCK TABLE {locked_table} IN ROW EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match=r"staging tables cannot be dropped: .*lock timeout"):
            drop_staging(dsn, "joinery_held", "job")
    drop_staging(dsn, "joinery_held", "job")
    assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'joinery_held'").fetchone() == (0,)
    sink.close()


def test_an_output_s_connection_notices_a_server_that_vanishes_and_one_that_has_ended_it(dsn, connection) -> None:
    """As the state's does; the DSN's own settings count."""
    mine = make_conninfo(dsn, keepalives_count=7)
    connections = postgres._Connections()
    try:
        first = connections.get(mine)
        parameters = {**first.info.get_parameters()}
        assert {name: parameters[name] for name in ("keepalives_idle", "keepalives_count", "tcp_user_timeout")} == {
            "keepalives_idle": "15",
            "keepalives_count": "7",
            "tcp_user_timeout": "30000",
        }
        assert connections.get(mine) is first
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", (first.info.backend_pid,))
        assert connections.get(mine).execute("SELECT 1").fetchone() == (1,)
    finally:
        connections.drop(mine)
