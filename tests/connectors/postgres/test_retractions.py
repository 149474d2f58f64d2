"""Rows that take back the one with their key: they delete it from the table, whatever of the key is NULL."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.postgres.committed import commit, content
from connectors.rows import EVERY_TYPE, FULL, ROWS, attempt
from joinery_runtime.errors import SinkError

pytestmark = pytest.mark.services
BESIDE = pytest.mark.parametrize("external", [False])  # what happens inside the transaction of the state

SESSIONS = pa.schema(
    {"user": pa.string(), "place": pa.int64(), "session_id": pa.uint64(), "events": pa.int64(), "retracted": pa.bool_()}
)
KEY = ("user", "place", "session_id")
HIGHEST = 2**64 - 1

Row = tuple[str | None, int | None, int, int, bool]


def rows(*sessions: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SESSIONS.names, row, strict=True)) for row in sessions], schema=SESSIONS)


@pytest.fixture
def epochs(connection, make, table):
    """Commits the rows of one epoch after another, and gives what the table holds then."""
    sink = make(SESSIONS, *KEY, retracted="retracted")
    numbers = iter(range(1, 100))

    def epoch(*sessions: Row) -> list[tuple[Any, ...]]:
        number = next(numbers)
        commit(connection, sink, number, sink.writer().write(attempt(epoch=number), rows(*sessions)))
        return content(connection, table)

    return epoch


def test_a_row_that_is_taken_back_is_no_more_in_the_table(epochs) -> None:
    assert epochs(("a", 1, HIGHEST, 2, False), ("a", 1, 7, 1, False)) == [
        ("a", 1, Decimal(7), 1),
        ("a", 1, Decimal(HIGHEST), 2),
    ]
    assert epochs(("a", 1, HIGHEST, 2, True), ("a", 1, 5, 3, False)) == [
        ("a", 1, Decimal(5), 3),
        ("a", 1, Decimal(7), 1),
    ]


def test_the_last_row_of_an_epoch_counts(epochs) -> None:
    assert epochs(("a", 1, 1, 1, False), ("a", 1, 1, 1, True)) == []
    assert epochs(("a", 1, 1, 1, False)) == [("a", 1, Decimal(1), 1)]
    assert epochs(("a", 1, 1, 1, True), ("a", 1, 1, 2, False)) == [("a", 1, Decimal(1), 2)]
    assert epochs(("a", 1, 1, 2, True), ("a", 1, 1, 3, False), ("a", 1, 1, 3, True)) == []


def test_what_is_not_there_can_be_taken_back(epochs) -> None:
    assert epochs(("a", 1, 1, 1, True)) == []


@pytest.mark.parametrize("user", ["a", None])
@pytest.mark.parametrize("location", [1, None])
def test_null_is_a_group_like_others(epochs, user, location) -> None:
    groups = [(u, p) for u in ("a", None) for p in (1, None)]
    before = epochs(*((u, p, 1, 1, False) for u, p in groups))
    after = epochs((user, location, 1, 1, True), (user, location, 2, 1, True))
    assert [row for row in before if row not in after] == [(user, location, Decimal(1), 1)]
    assert len(after) == 3


def test_one_epoch_takes_back_all_kinds_of_groups(epochs) -> None:
    groups = [(u, p) for u in ("a", "b", None) for p in (1, 2, None)]
    epochs(*((u, p, 1, 1, False) for u, p in groups))
    assert epochs(*((u, p, 1, 1, True) for u, p in groups), ("a", 1, 2, 4, False)) == [("a", 1, Decimal(2), 4)]


def test_rows_of_other_attempts_take_nothing_back(connection, make, table) -> None:
    sink = make(SESSIONS, *KEY, retracted="retracted")
    writer = sink.writer()
    commit(connection, sink, 1, writer.write(attempt(), rows(("a", 1, 1, 1, False))))
    writer.write(attempt(epoch=2, name="lost"), rows(("a", 1, 1, 1, True)))
    commit(connection, sink, 2, writer.write(attempt(epoch=2), rows(("b", 1, 2, 1, False))))
    assert [row[0] for row in content(connection, table)] == ["a", "b"]


def test_a_key_of_the_user_s_own_and_columns_that_are_not_ours(connection, make, table) -> None:
    connection.execute(
        f'CREATE TABLE {table} ("user" varchar PRIMARY KEY, place numeric, session_id numeric, events bigint, '
        "id bigint GENERATED ALWAYS AS IDENTITY)"
    )
    sink = make(SESSIONS, "user", retracted="retracted")
    writer = sink.writer()
    commit(connection, sink, 1, writer.write(attempt(), rows(("a", 1, 1, 1, False), ("b", 1, 2, 1, False))))
    # The merged session of a comes after the one that it replaces: it is an update. Of b nothing follows.
    merged = rows(("a", 1, 1, 1, True), ("a", 1, 3, 2, False), ("b", 1, 2, 1, True))
    commit(connection, sink, 2, writer.write(attempt(epoch=2), merged))
    assert content(connection, table) == [("a", 1, 3, 2, 1)]


@pytest.mark.parametrize("column", EVERY_TYPE.names)
def test_groups_of_every_type(connection, make, table, column) -> None:
    schema = pa.schema([*EVERY_TYPE, pa.field("retracted", pa.bool_())])
    sink = make(schema, column, retracted="retracted")
    for epoch, back in ((1, False), (2, True)):
        marked_rows = ROWS.append_column("retracted", pa.array([back, back]))
        commit(connection, sink, epoch, sink.writer().write(attempt(epoch=epoch), marked_rows))
        assert len(content(connection, table)) == (0 if back else 2)


def test_deletions_make_room_in_other_indexes_of_the_table(connection, make, table) -> None:
    sink = make(SESSIONS, *KEY, retracted="retracted")
    connection.execute(f"CREATE UNIQUE INDEX ON {table} (events)")
    for epoch, sessions in ((1, [("a", 1, 1, 9, False)]), (2, [("a", 1, 1, 9, True), ("a", 1, 2, 9, False)])):
        commit(connection, sink, epoch, sink.writer().write(attempt(epoch=epoch), rows(*sessions)))
    assert content(connection, table) == [("a", 1, Decimal(2), 9)]


def test_a_column_of_that_name_is_not_asked_of_the_table(connection, make, table) -> None:
    connection.execute(f"CREATE TABLE {table} (place bigint, session_id bigint, events bigint)")
    with pytest.raises(SinkError) as caught:
        make(SESSIONS, *KEY, retracted="retracted")
    assert "column user text is missing; column session_id is bigint, the output's is numeric(20,0)" in str(
        caught.value
    )
    assert "retracted" not in str(caught.value)


def test_without_retractions_such_a_column_is_one_like_others(connection, make, table) -> None:
    sink = make(SESSIONS, *KEY)
    commit(connection, sink, 1, sink.writer().write(attempt(), rows(("a", 1, 1, 1, True))))
    assert content(connection, table) == [("a", 1, Decimal(1), 1, True)]


def test_many_deletions_take_no_longer_for_each(connection, make, table) -> None:
    """A third of the groups have NULLs: 300,000 rows, of which one epoch takes back all, take seconds, not hours."""
    sink = make(SESSIONS, *KEY, retracted="retracted")
    count = 300_000
    users = [None if n % 3 == 0 else f"u{n}" for n in range(count)]
    sessions = pa.table(
        {
            "user": pa.array(users, pa.string()),
            "place": pa.array([None if n % 6 == 0 else n for n in range(count)], pa.int64()),
            "session_id": pa.array(range(count), pa.uint64()),
            "events": pa.array([1] * count, pa.int64()),
        }
    )
    for epoch, back in ((1, False), (2, True)):
        marked_rows = sessions.append_column("retracted", pa.array([back] * count))
        receipt = sink.writer().write(attempt(epoch=epoch), marked_rows)
        began = time.monotonic()
        commit(connection, sink, epoch, receipt)
        assert time.monotonic() - began < 60
    assert content(connection, table) == []


@BESIDE
def test_few_deletions_use_the_index_of_a_large_table(connection, make, table) -> None:
    sink = make(SESSIONS, *KEY, retracted="retracted")
    connection.execute(
        f"INSERT INTO {table} SELECT CASE WHEN n % 10 > 0 THEN 'u' || n END, n, n, 1 FROM generate_series(1, 200000) n"
    )
    connection.execute(f"ANALYZE {table}")
    few = rows(("u1", 1, 1, 1, True), (None, 10, 10, 1, True))
    with connection.transaction():
        sink.in_transaction(connection, 1, [sink.writer().write(attempt(), few)])
        scans = connection.execute("SELECT pg_stat_get_xact_numscans(%s::regclass)", (table,)).fetchone()
        assert scans == (0,), "the whole table was read"
    assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (199_998,)


def test_every_value_comes_back_as_it_was(connection, make, table) -> None:
    schema = pa.schema([*EVERY_TYPE, pa.field("retracted", pa.bool_())])
    sink = make(schema, "big", retracted="retracted")
    marked_rows = ROWS.append_column("retracted", pa.array([False, True]))
    commit(connection, sink, 1, sink.writer().write(attempt(), marked_rows))
    assert content(connection, table) == [tuple({**FULL, "session": Decimal(2**64 - 1)}.values())]
