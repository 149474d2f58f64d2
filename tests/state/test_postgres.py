"""What only the Postgres store has: a server that can go away, a password, a transaction that sinks take part in."""

from __future__ import annotations

import pickle
import random
import re
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from joinery_runtime.errors import Fenced, StateError, StoreUnavailable
from joinery_runtime.state import decisions, segment_table
from joinery_runtime.state import postgres as postgres_module
from joinery_runtime.state.decisions import by_bytes
from joinery_runtime.state.embedded import embedded_postgres
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.segment_table import SegmentTable
from state.values import commit_of, live_keys, run_epoch, segment

UNREACHABLE = "postgresql://joinery:hunter2@127.0.0.1:1/prod"


def kill_connections(dsn: str) -> None:
    """What a restart of the server or a broken network does to those who are connected."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"  # waits until they have ended
            " WHERE application_name = 'joinery' AND datname = current_database()"
        )


def wait_until_blocked(dsn: str, thread: threading.Thread) -> None:
    """Returns once the thread's statement waits for a lock of the job's row."""
    blocked = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query LIKE '%.jobs%' AND datname = current_database()"
    )
    # In a transaction this view never changes, so another connection looks.
    with psycopg.connect(dsn, autocommit=True) as watcher:
        while watcher.execute(blocked).fetchone() == (0,):
            assert thread.is_alive()


def test_a_connection_that_was_lost_while_idle_is_thrown_away_unused(
    postgres: PostgresStore, dsn: str, job: str
) -> None:
    record = postgres.acquire(job)
    run_epoch(postgres, record, 1, ["a"])
    kill_connections(dsn)
    assert live_keys(postgres, job) == ["a"]
    run_epoch(postgres, record, 2, ["b"], deletes=["a"])


def test_a_connection_lost_inside_a_commit_leaves_nothing(postgres: PostgresStore, dsn: str, job: str) -> None:
    record = postgres.acquire(job)
    postgres.stage(job, [segment("a")])
    with pytest.raises(StoreUnavailable, match=f"port 5432, database {conninfo_to_dict(dsn)['dbname']}"):
        postgres.commit(job, record.generation, commit_of(1, ["a"], effects=[lambda connection: kill_connections(dsn)]))
    assert postgres.record(job) == record
    postgres.commit(job, record.generation, commit_of(1, ["a"]))
    assert live_keys(postgres, job) == ["a"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: PostgresStore.connect(UNREACHABLE),
        lambda: PostgresStore(UNREACHABLE).acquire("job"),
        lambda: pickle.loads(pickle.dumps(PostgresStore(UNREACHABLE))).stage("job", []),
    ],
)
def test_an_unreachable_server_is_named_without_its_password(call: Callable[[], object]) -> None:
    with pytest.raises(
        StoreUnavailable, match=r"host 127.0.0.1, port 1, database prod\).*Nothing committed is lost"
    ) as caught:
        call()
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_the_store_does_not_show_its_password() -> None:
    assert repr(PostgresStore(UNREACHABLE)) == "PostgresStore(host 127.0.0.1, port 1, database prod, schema joinery)"


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db password=hunter2 nonsense",
        "postgresql://joinery:pa@hunter2/prod@db:5432/prod",
        "postgresql://joinery:hunter2%zz@db/prod",
        "hunter2",
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_showing_it(dsn: str) -> None:
    with pytest.raises(StateError, match="DSN cannot be read") as caught:
        PostgresStore(dsn)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_opening_is_left_to_the_first_call() -> None:
    PostgresStore(UNREACHABLE).close()


def test_a_task_opens_its_own_connection(postgres: PostgresStore, dsn: str, job: str) -> None:
    record = postgres.acquire(job)
    task = pickle.loads(pickle.dumps(postgres))
    task.stage(job, [segment("a")])
    task.close()
    postgres.commit(job, record.generation, commit_of(1, ["a"]))
    assert live_keys(postgres, job) == ["a"]


def test_an_effect_writes_in_the_commits_transaction(postgres: PostgresStore, dsn: str, job: str) -> None:
    table = sql.Identifier(f"sink {job}")
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute(sql.SQL("CREATE TABLE {} (id INT)").format(table))
        visible: list[int] = []

        def count() -> int:
            row = user.execute(sql.SQL("SELECT count(*) FROM {}").format(table)).fetchone()
            assert row is not None
            return int(row[0])

        def write(connection: psycopg.Connection) -> None:
            with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(table)) as copy:
                copy.write_row((1,))
            connection.execute(sql.SQL("INSERT INTO {} VALUES (2)").format(table))
            visible.append(count())

        record = postgres.acquire(job)
        run_epoch(postgres, record, 1, effects=[write])
        assert (visible, count()) == ([0], 2)
        with pytest.raises(StateError, match="cannot commit epoch 1"):
            postgres.commit(job, record.generation, commit_of(1, effects=[write]))
        assert count() == 2


def test_an_effect_cannot_end_the_transaction(postgres: PostgresStore, job: str) -> None:
    record = postgres.acquire(job)
    with pytest.raises(StateError, match="rejected a statement"):
        run_epoch(postgres, record, 1, effects=[lambda connection: connection.commit()])
    assert postgres.acquire(job).epoch == 0


def test_a_refused_statement_is_a_state_error(postgres: PostgresStore, dsn: str, job: str) -> None:
    record = postgres.acquire(job)
    with pytest.raises(StateError, match=r"rejected a statement .*no_such_table"):
        run_epoch(postgres, record, 1, effects=[lambda connection: connection.execute("SELECT * FROM no_such_table")])
    assert postgres.acquire(job).epoch == 0


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("SET TRANSACTION READ ONLY; CREATE TABLE never (n int)", "target_session_attrs=read-write"),
        ("EXECUTE no_such_statement", "pooler"),
    ],
    ids=["a standby", "a pooler"],
)
def test_what_another_connection_may_mend_is_waited_for_and_connects_anew(
    postgres: PostgresStore, job: str, statement: str, advice: str
) -> None:
    record = postgres.acquire(job)
    before = server_process(postgres)
    with pytest.raises(StoreUnavailable, match=advice):
        run_epoch(postgres, record, 1, effects=[lambda connection: connection.execute(statement)])
    assert postgres.record(job) == record
    assert server_process(postgres) != before
    run_epoch(postgres, record, 1)


def server_process(store: PostgresStore) -> int:
    with store._connection.session() as connection:
        return connection.info.backend_pid


def test_threads_that_call_at_once_have_a_connection_each_and_keep_it(postgres: PostgresStore) -> None:
    met = threading.Barrier(2, timeout=60)

    def together(_: int) -> int:
        with postgres._connection.session() as outer, postgres._connection.session() as inner:
            assert outer is inner, "a session inside a session is the same"
            met.wait()
            return outer.info.backend_pid

    with ThreadPoolExecutor(2) as threads:
        first, again = ({*threads.map(together, range(2))} for _ in range(2))
    assert len(first) == 2
    assert again == first
    assert server_process(postgres) in first


def test_nothing_outlives_a_transaction_on_the_server(postgres: PostgresStore, job: str) -> None:
    """So that a pooler in transaction mode may stand between."""
    record = postgres.acquire(job)
    for epoch in range(1, 9):
        run_epoch(postgres, record, epoch, [f"s{epoch}"])
    with postgres._connection.session() as connection:
        assert connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
        changed = connection.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert connection.execute(locks).fetchone() == (0,)
    assert changed == []


@pytest.mark.parametrize(
    ("commit", "standbys", "words"),
    [
        ("on", "", None),
        ("remote_apply", "s1", None),
        ("local", "", None),
        ("off", "", r"synchronous_commit is off \(host .*a crash of Postgres"),
        ("local", "s1", r"synchronous_commit is local \(host .*a failover"),
    ],
)
def test_commits_that_a_crash_may_take_back_are_warned_of(
    postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch, commit: str, standbys: str, words: str | None
) -> None:
    monkeypatch.setattr(postgres_module, "_DURABILITY", f"SELECT '{commit}', '{standbys}'")
    warning = postgres.durability_warning()
    assert (warning is None) == (words is None)
    assert words is None or re.search(words, warning or "")


def test_a_value_too_long_for_an_index_is_refused_and_not_waited_for(postgres: PostgresStore, job: str) -> None:
    """psycopg counts it with a server that is away."""
    index = "CREATE TEMPORARY TABLE long (v text PRIMARY KEY)"
    long = "INSERT INTO long SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 500)"
    record = postgres.acquire(job)
    with pytest.raises(StateError, match=r"rejected a statement .*index row") as caught:
        run_epoch(postgres, record, 1, effects=[lambda connection: connection.execute(f"{index}; {long}")])
    assert not isinstance(caught.value, StoreUnavailable)


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_a_new_driver_waits_for_a_commit_that_is_under_way(
    postgres: PostgresStore, dsn: str, job: str, isolation: str
) -> None:
    """The old driver's commit is either before the new generation or fenced; whatever the database's default is."""
    record = postgres.acquire(job)
    default = quote(f"-c default_transaction_isolation={isolation}".replace("d c", "d\\ c"))
    successor = PostgresStore(f"{dsn}&options={default}", postgres.schema)
    successor.record(job)
    epochs: list[int] = []
    takes_over = threading.Thread(target=lambda: epochs.append(successor.acquire(job).epoch))

    def waits(connection: psycopg.Connection) -> None:
        takes_over.start()
        wait_until_blocked(dsn, takes_over)
        assert epochs == []

    run_epoch(postgres, record, 1, effects=[waits])
    takes_over.join()
    successor.close()
    assert epochs == [1]
    with pytest.raises(Fenced):
        postgres.commit(job, record.generation, commit_of(2))


def test_a_commit_that_waited_for_a_new_driver_is_fenced(postgres: PostgresStore, dsn: str, job: str) -> None:
    record = postgres.acquire(job)
    outcomes: list[object] = []

    def commit() -> None:
        try:
            outcomes.append(postgres.commit(job, record.generation, commit_of(1)))
        except StateError as error:
            outcomes.append(type(error))

    zombie = threading.Thread(target=commit)
    with psycopg.connect(dsn) as successor:
        bump = "UPDATE {}.jobs SET generation = generation + 1 WHERE pipeline_name = %s"
        successor.execute(sql.SQL(bump).format(sql.Identifier(postgres.schema)), (job,))
        zombie.start()
        wait_until_blocked(dsn, zombie)
    zombie.join()
    assert outcomes == [Fenced]


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[str]:
    """A server of this module's own: a server's log has the writes of all its databases."""
    with (
        tempfile.TemporaryDirectory(prefix="joinery-postgres-") as directory,
        embedded_postgres(Path(directory)) as dsn,
    ):
        yield dsn


@pytest.mark.services
def test_making_a_segment_live_does_not_rewrite_its_blob(undisturbed: str, job: str) -> None:
    size = 4_000_000
    with (
        closing(PostgresStore(undisturbed, "own")) as postgres,
        psycopg.connect(undisturbed, autocommit=True) as connection,
    ):
        record = postgres.acquire(job)
        postgres.stage(job, [segment("big", blob=b"\x5a" * size)])
        written = "SELECT pg_current_wal_insert_lsn() - '0/0'"
        before = connection.execute(written).fetchone()
        postgres.commit(job, record.generation, commit_of(1, ["big"]))
        postgres.commit(job, record.generation, commit_of(2, deletes=["big"]))
        after = connection.execute(written).fetchone()
        assert before is not None
        assert after is not None
        assert after[0] - before[0] < size / 10
        stored = connection.execute(
            sql.SQL("SELECT pg_column_size(state_blob) FROM {}.state WHERE pipeline_name = %s").format(
                sql.Identifier(postgres.schema)
            ),
            (job,),
        ).fetchone()
        assert stored == (size,)  # not compressed a second time


@pytest.mark.services
def test_an_unchanged_definition_is_not_written_again(undisturbed: str, job: str) -> None:
    with (
        closing(PostgresStore(undisturbed, "own")) as postgres,
        psycopg.connect(undisturbed, autocommit=True) as connection,
    ):
        record = postgres.acquire(job)
        definition = {"text": random.Random(1).randbytes(200_000).hex()}
        run_epoch(postgres, record, 1, definition=definition)
        before = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        for epoch in (2, 3, 4):
            postgres.write_plan(job, record.generation, {"epoch": epoch}, definition)
            run_epoch(postgres, record, epoch, definition=definition)
        after = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert before is not None
        assert after is not None
        assert after[0] - before[0] < 200_000
        assert postgres.acquire(job).definition == definition


def test_a_migration_holds_few_bytes_at_a_time(
    postgres: PostgresStore, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = postgres.acquire(job)
    sizes = {"a": 10, "b": 15, "c": 1, "d": 90, "e": 1}
    postgres.stage(job, [segment(key, blob=bytes(size)) for key, size in sizes.items()])
    postgres.commit(job, record.generation, commit_of(1, list(sizes)))
    batches: list[list[str]] = []
    migrate = SegmentTable._migrate_batch

    def noted(self: SegmentTable, connection: Any, facts: Any, keys: list[bytes], *rest: Any) -> None:
        batches.append([key.decode() for key in keys])
        migrate(self, connection, facts, keys, *rest)

    monkeypatch.setattr(segment_table, "by_bytes", partial(by_bytes, most=25))
    monkeypatch.setattr(SegmentTable, "_migrate_batch", noted)
    assert postgres.migrate(job, record.generation, {1: lambda blob: blob}, 2) == 5
    assert batches == [["a", "b"], ["c"], ["d"], ["e"]]


def test_threads_share_a_store(postgres: PostgresStore, job: str) -> None:
    record = postgres.acquire(job)
    threads = [
        threading.Thread(target=postgres.stage, args=(job, [segment(f"{thread}-{number}") for number in range(5)]))
        for thread in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [f"{thread}-{number}" for thread in range(4) for number in range(5)]
    postgres.commit(job, record.generation, commit_of(1, keys))
    assert live_keys(postgres, job) == keys


class TestEpochLog:
    """What `sweep` trims beyond the number of epochs, which every commit bounds."""

    def logged(self, store: PostgresStore, job: str, epochs: int) -> list[int]:
        """The epochs in the log after so many, the first two of them a day old, and a sweep."""
        record = store.acquire(job)
        for epoch in range(1, epochs + 1):
            store.commit(job, record.generation, commit_of(epoch, plan={"text": "x" * 100}))
        with psycopg.connect(store.dsn) as connection:
            table = sql.Identifier(store.schema, "epochs")
            aged = sql.SQL("UPDATE {} SET committed_at = now() - interval '1d' WHERE pipeline_name = %s AND epoch < 3")
            connection.execute(aged.format(table), (job,))
        store.sweep(job, record.generation)
        return [entry.epoch for entry in store.epochs(job)]

    @pytest.mark.parametrize(("retention_ms", "left"), [(None, [1, 2, 3, 4]), (3_600_000, [3, 4])])
    def test_epochs_go_when_they_are_older_than_the_retention(
        self, dsn: str, job: str, retention_ms: int | None, left: list[int]
    ) -> None:
        with closing(PostgresStore(dsn, "shared by tests", log_retention_ms=retention_ms)) as store:
            assert self.logged(store, job, 4) == left

    def test_the_epoch_that_the_state_stands_on_stays(self, dsn: str, job: str) -> None:
        with closing(PostgresStore(dsn, "shared by tests", log_retention_ms=1)) as store:
            assert self.logged(store, job, 2) == [2]

    def test_the_oldest_go_when_the_log_is_too_large(
        self, postgres: PostgresStore, job: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decisions, "EPOCH_LOG_BYTES", 400)  # of which an epoch takes some 120
        monkeypatch.setattr("joinery_runtime.state.postgres.SWEEP_BATCH", 2)
        left = self.logged(postgres, job, 20)
        assert left == list(range(left[0], 21))
        assert 1 < len(left) < 5
