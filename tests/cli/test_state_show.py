"""`joinery state show` and `stats`, on a real Postgres."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.commands import Joinery
from cli.stored_state import commit_rows, plan_of
from job.resources import edited
from joinery_runtime.core.table.segment import decode, encode
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.state import migrations
from joinery_runtime.state.postgres import PostgresStore

JOB = "orders-payments"
HOUR, MINUTE = 3_600_000, 60_000

pytestmark = pytest.mark.services


def order(order_id: str, ts: int, country: int = 49) -> dict[str, object]:
    return {"order_id": order_id, "country": country, "amount": None, "ts": ts}


def payment(order_id: str, ts: int, country: int = 49) -> dict[str, object]:
    return {"order_id": order_id, "country": country, "ts": ts}


@pytest.fixture
def job_file(postgres_dsn: str, tmp_path: Path, schema: str) -> Path:
    path = tmp_path / "job.yaml"
    output = "    postgres: {table: joined}\n"
    store = f'  stateStore: {{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}\n'
    path.write_text(edited((output, output + store)))
    return path


@pytest.fixture
def two_epochs(store: PostgresStore, job: StreamJoin) -> None:
    """Two epochs; watermarks are 2 h of event time for both inputs."""
    record = store.acquire(JOB)
    commit_rows(store, record, job, 1, ([order("a", HOUR - 1), order("b", HOUR)], [payment("a", HOUR)]))
    watermarks = {"orders": 2 * HOUR, "payments": 2 * HOUR}
    commit_rows(store, record, job, 2, ([order("a", 2 * HOUR)], []), watermarks=watermarks)


def the_step(shown: dict[str, Any]) -> dict[str, Any]:
    """What a job of one step is shown to keep."""
    (step,) = shown["steps"]
    assert step["step"] == 1
    return {**shown, **step}


class TestShow:
    def test_rows_of_the_key_with_what_has_to_pass_until_they_go(
        self, joinery: Joinery, job_file: Path, two_epochs: None
    ) -> None:
        shown = the_step(joinery("state", "show", job_file, "--key", "order_id=a").lines[0])
        assert (shown["key"], shown["epoch"]) == ({"order_id": "a"}, 2)
        assert [(row["input"], row["ts"], row["offset"]) for row in shown["rows"]] == [
            ("orders", HOUR - 1, 0), ("orders", 2 * HOUR, 0), ("payments", HOUR, 0)
        ]  # fmt: skip
        # payments.ts is in [orders.ts - 1m, orders.ts + 1h]: J3.
        assert [(row["until_input"], row["until"]) for row in shown["rows"]] == [
            ("payments", 2 * HOUR - 1), ("payments", 3 * HOUR), ("orders", HOUR + MINUTE)
        ]  # fmt: skip
        assert [row["may_match"] for row in shown["rows"]] == ["no", "on time", "no"]
        assert shown["rows"][0]["columns"] == {"order_id": "a", "country": 49, "amount": None}

    def test_only_segments_that_hold_its_hash_are_read(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, two_epochs: None
    ) -> None:
        shown = the_step(joinery("state", "show", job_file, "--key", "order_id=b").lines[0])
        assert [(row["ts"], row["may_match"]) for row in shown["rows"]] == [(HOUR, "on time")]
        record = store.record(JOB)
        assert record is not None
        covering = [s for s in record.segments if s.hash_min <= shown["hash"] <= s.hash_max]
        assert shown["segments_read"] == len(covering) < len(record.segments)

    def test_a_composite_key_of_other_types(self, joinery: Joinery, job_file: Path, store: PostgresStore) -> None:
        old = "{orders.order_id: payments.order_id}"
        job_file.write_text(
            job_file.read_text().replace(old, "{orders.order_id: payments.order_id, orders.country: payments.country}")
        )
        job = load_job(job_file)
        commit_rows(store, store.acquire(JOB), job, 1, ([order("a", 1), order("a", 2, 33)], [payment("a", 3, 33)]))
        for keys in (["order_id=a", "country=33"], ["payments.country=33", "orders.order_id=a"]):
            shown = the_step(joinery("state", "show", job_file, "--key", *keys).lines[0])
            assert [(row["input"], row["ts"]) for row in shown["rows"]] == [("orders", 2), ("payments", 3)]
            assert shown["key"] == {"order_id": "a", "country": 33}

    def test_rows_that_only_late_ones_can_match(self, joinery: Joinery, job_file: Path, store: PostgresStore) -> None:
        job_file.write_text(job_file.read_text().replace("lateData: drop", "lateData: drop\n      allowedLateness: 5m"))
        watermarks = {"orders": 3 * HOUR, "payments": 3 * HOUR}
        rows = [order("a", 2 * HOUR - 1)]
        commit_rows(store, store.acquire(JOB), load_job(job_file), 1, (rows, []), watermarks=watermarks)
        shown = the_step(joinery("state", "show", job_file, "--key", "order_id=a").lines[0])
        assert [(row["until"], row["may_match"]) for row in shown["rows"]] == [(3 * HOUR - 1 + 5 * MINUTE, "late")]

    def test_segments_of_an_older_version_are_read(
        self, joinery: Joinery, job_file: Path, two_epochs: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = joinery("state", "show", job_file, "--key", "order_id=a").lines
        monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", 2)
        monkeypatch.setattr(migrations, "MIGRATIONS", {1: lambda blob: encode(decode(blob), compression=None)})
        assert joinery("state", "show", job_file, "--key", "order_id=a").lines == before

    def test_segments_that_are_replaced_meanwhile(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, two_epochs: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = joinery("state", "show", job_file, "--key", "order_id=a").lines
        read, calls = PostgresStore.read_segments, []

        def read_late(self: PostgresStore, name: str, keys: list[str]) -> dict[str, bytes]:
            if not calls:
                record = store.acquire(JOB)
                store.migrate(JOB, record.generation, {1: lambda blob: blob}, 2)
                store.sweep(JOB, record.generation)
            calls.append(keys)
            return read(self, name, keys)

        monkeypatch.setattr(PostgresStore, "read_segments", read_late)
        monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", 2)
        assert joinery("state", "show", job_file, "--key", "order_id=a").lines == before
        assert len(calls) == 2

    def test_a_key_of_which_nothing_is_kept(self, joinery: Joinery, job_file: Path, two_epochs: None) -> None:
        assert joinery("state", "show", job_file, "--key", "order_id=unknown").lines[0]["steps"][0]["rows"] == []

    def test_a_step_that_is_not_there(self, joinery: Joinery, job_file: Path, two_epochs: None) -> None:
        ended = joinery("state", "show", job_file, "--key", "order_id=a", "--step", "2")
        assert "Job orders-payments has no step 2: it has 1" in ended.err

    @pytest.mark.parametrize(
        ("keys", "says"),
        [
            (["country=1"], "--key country=1 cannot be used: the key of job orders-payments is order_id"),
            (["order_id"], "--key order_id cannot be used"),
            (["order_id=a", "order_id=b"], "--key order_id=b cannot be used"),
        ],
    )
    def test_what_is_no_key_is_refused(
        self, joinery: Joinery, job_file: Path, two_epochs: None, keys: list[str], says: str
    ) -> None:
        ended = joinery("state", "show", job_file, "--key", *keys)
        assert (ended.code, ended.out) == (1, "")
        assert says in ended.err

    def test_a_key_that_is_not_complete_or_not_of_its_type(
        self, joinery: Joinery, job_file: Path, two_epochs: None
    ) -> None:
        old = "{orders.order_id: payments.order_id}"
        job_file.write_text(
            job_file.read_text().replace(old, "{orders.order_id: payments.order_id, orders.country: payments.country}")
        )
        ended = joinery("state", "show", job_file, "--key", "order_id=a")
        assert "--key order_id=a cannot be used: the key of job orders-payments is order_id, country" in ended.err
        ended = joinery("state", "show", job_file, "--key", "order_id=a", "country=x")
        assert "The key country=x cannot be read: as input payments declares it" in ended.err  # the wider integer

    def test_on_a_terminal(
        self, joinery: Joinery, job_file: Path, two_epochs: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        lines = joinery("state", "show", job_file, "--key", "order_id=a").out.splitlines()
        assert lines[0] == 'job orders-payments, step 1, key order_id "a": 3 rows are kept after epoch 2'
        assert lines[2] == (
            'orders 0/0 at 1970-01-01T02:00:00.000Z: order_id "a", country 49, amount null; goes when the watermark of '
            "payments (1970-01-01T02:00:00.000Z) is above 1970-01-01T03:00:00.000Z; may still match"
        )


class TestStats:
    def test_it_counts_per_side_and_says_what_goes_next(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, job: StreamJoin, two_epochs: None
    ) -> None:
        store.create_savepoint(JOB, "sp")
        [stats] = joinery("state", "stats", job_file).lines
        assert (stats["epoch"], stats["planned"], stats["watermarks"]["orders"]) == (2, None, 2 * HOUR)
        orders, payments = stats["sides"]
        assert (orders["inputs"], orders["rows"], orders["segments"], orders["state_versions"]) == (
            ["orders"],
            3,
            2,
            [1],
        )
        assert orders["event_time"] == [HOUR - 1, 2 * HOUR]
        # Kept from wm(payments) - 1h on: of the first segment one row of two goes, and not the segment.
        assert (orders["keep_from"], orders["expired"], orders["expiring"]) == (HOUR, 0, 2)
        assert (payments["keep_from"], payments["expired"], payments["expiring"]) == (2 * HOUR - MINUTE, 1, 0)
        assert [pin["name"] for pin in stats["savepoints"]] == ["sp"]
        assert stats["store"]["schema_version"] == store.schema_version()
        assert "host" in stats["store"]["place"]

    def test_the_plans_watermarks_count_where_there_is_one(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, two_epochs: None
    ) -> None:
        plan = plan_of(3, {"orders": 5 * HOUR, "payments": 5 * HOUR})
        store.write_plan(JOB, store.acquire(JOB).generation, plan.to_json(), {})
        [stats] = joinery("state", "stats", job_file).lines
        assert stats["planned"]["epoch"] == 3
        assert [side["expired"] for side in stats["sides"]] == [3, 1]

    def test_on_a_terminal(
        self, joinery: Joinery, job_file: Path, two_epochs: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        out = joinery("state", "stats", job_file).out
        assert "job orders-payments: epoch 2 committed" in out
        assert "the next epoch keeps rows from 1970-01-01T01:00:00.000Z: 0 rows go, and up to 2 more" in out
        assert "step 1, left side (orders): 3 rows" in out
