"""The commands that a rollout and a person use on a job's state, on a real Postgres."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pyarrow as pa
import pytest

from cli.commands import Joinery
from cli.stored_state import commit_rows, plan_of
from job.resources import edited
from joinery_devkit.processes import free_port
from joinery_operator.reconcile.reasons import COMMITTED_SINCE
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.core.table.segment import decode, encode
from joinery_runtime.errors import Fenced
from joinery_runtime.inspect.admin import migrate as state_migrate
from joinery_runtime.inspect.admin.savepoints import roll_back
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.job.crd import SavepointResult
from joinery_runtime.job.crd.driver import DriverStatus, Ending, StateCheck
from joinery_runtime.state import ddl, migrations
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord, OwnershipToken

JOB = "orders-payments"
OUTPUT = "    postgres: {table: joined}\n"
ORDERS = [{"order_id": f"o-{n}", "country": 49, "amount": None, "ts": 1_000 + n} for n in range(5)]
PAYMENTS = [{"order_id": f"o-{n}", "country": 49, "ts": 2_000 + n} for n in range(3)]

pytestmark = pytest.mark.services


@pytest.fixture
def job_file(postgres_dsn: str, tmp_path: Path, schema: str) -> Path:
    """A job with a Kafka output whose state is in a schema of its own."""
    path = tmp_path / "job.yaml"
    text = (
        "    kafka: {bootstrapServers: 'kafka:9092', topic: joined}\n"
        f'  stateStore: {{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}\n'
    )
    path.write_text(edited((OUTPUT, text)))
    return path


@pytest.fixture
def old(job: StreamJoin, store: PostgresStore) -> JobRecord:
    """What a driver of the first state version left: epoch 1 is committed."""
    record = store.acquire(JOB)
    commit_rows(store, record, job, 1, (ORDERS, PAYMENTS), rows_out=3)
    return recorded(store)


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release to whose state_version 2 segments are rewritten: they are not compressed any more."""
    monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", 2)
    monkeypatch.setattr(migrations, "MIGRATIONS", {1: lambda blob: encode(decode(blob), compression=None)})


@pytest.fixture
def ending_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a pod's container leaves its last words."""
    monkeypatch.setenv("JOINERY_ENDING_FILE", str(tmp_path / "ending"))
    return tmp_path / "ending"


def recorded(store: PostgresStore) -> JobRecord:
    record = store.record(JOB)
    assert record is not None
    return record


def versions(store: PostgresStore) -> set[int]:
    return {meta.state_version for meta in recorded(store).segments}


def rows_of(store: PostgresStore) -> list[dict[str, object]]:
    record = recorded(store)
    blobs = store.read_segments(JOB, [meta.key for meta in record.segments])
    return sorted((row for blob in blobs.values() for row in decode(blob).to_pylist()), key=str)


def pins(store: PostgresStore) -> list[str]:
    return [savepoint.name for savepoint in store.savepoints(JOB)]


class TestCheck:
    def test_a_job_without_state_fits(self, joinery: Joinery, job_file: Path) -> None:
        ended = joinery("state", "check", job_file)
        assert (ended.code, ended.err) == (0, "")
        assert StateCheck.model_validate_json(ended.out) == StateCheck(
            fits=True, target_version=migrations.CURRENT_STATE_VERSION
        )

    def test_a_job_that_fits_says_what_it_would_migrate_and_leaves_it(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None,
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setenv("JOINERY_ENDING_FILE", str(tmp_path / "ending"))
        ended = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json(ended.out)
        assert (ended.code, check.fits, check.refused, check.warnings) == (0, True, (), ())
        assert (check.epoch, check.state_versions, check.target_version, check.to_migrate) == (1, (1,), 2, 2)
        assert recorded(store) == old
        assert StateCheck.model_validate_json((tmp_path / "ending").read_text()) == check

    def test_a_change_that_does_not_fit_is_refused_with_the_difference(
        self, joinery: Joinery, job_file: Path, old: JobRecord
    ) -> None:
        text = job_file.read_text().replace("orders.order_id: payments.order_id", "orders.country: payments.country")
        job_file.write_text(text)
        ended = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json(ended.out)
        assert (ended.code, ended.err, check.fits) == (1, "", False)
        assert "the keys were orders.order_id = payments.order_id" in check.refused[0]

    def test_wider_bounds_are_a_warning(self, joinery: Joinery, job_file: Path, old: JobRecord) -> None:
        job_file.write_text(job_file.read_text().replace("upper: 1h", "upper: 2h"))
        ended = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json(ended.out)
        assert (ended.code, check.fits) == (0, True)
        assert "upper bound went from 1h to 2h" in check.warnings[0]

    def test_a_stateless_upgrade_fits_whatever_changed(self, joinery: Joinery, job_file: Path, old: JobRecord) -> None:
        text = job_file.read_text().replace("orders.order_id: payments.order_id", "orders.country: payments.country")
        job_file.write_text(f"{text}  upgrade: {{mode: stateless}}\n")
        ended = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json(ended.out)
        assert (ended.code, check.fits) == (0, True)
        assert "starts from the beginning" in check.warnings[0]

    @pytest.mark.parametrize(
        ("target", "chain", "says"),
        [
            (0, {}, "newer than this release"),
            (3, {1: lambda blob: blob}, "no migration from state_version 2 to 3"),
            (2, {1: lambda blob: b"" + blob[5:]}, "does not keep the rows"),
            (2, {1: lambda blob: encode(decode(blob).slice(1))}, "does not keep the rows"),
            (2, {1: lambda blob: 1 / 0}, "ZeroDivisionError"),
        ],
        ids=["newer", "missing step", "bytes that are no segment", "rows are lost", "fails"],
    )
    def test_a_migration_that_would_fail_is_refused(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, monkeypatch: pytest.MonkeyPatch,
        target: int, chain: dict[int, object], says: str,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", target)
        monkeypatch.setattr(migrations, "MIGRATIONS", chain)
        ended = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json(ended.out)
        assert (ended.code, check.fits) == (1, False)
        assert says in check.refused[0]
        assert recorded(store) == old

    def test_it_fits_beside_a_driver_that_replaces_segments(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, job: StreamJoin, old: JobRecord,
        next_release: None, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        read = PostgresStore.read_segments
        calls = []

        def read_late(self: PostgresStore, name: str, keys: list[str]) -> dict[str, bytes]:
            calls.append(list(keys))
            if len(calls) == 1:
                store.migrate(JOB, old.generation, {1: lambda blob: blob}, 2)
                store.sweep(JOB, old.generation)
                commit_rows(store, old, job, 2, (ORDERS, []))
            return read(self, name, keys)

        monkeypatch.setattr(PostgresStore, "read_segments", read_late)
        ended = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json(ended.out)
        assert (ended.code, check.to_migrate, check.epoch) == (0, 1, 1)
        assert len(calls) == 2

    def test_an_older_schema_stays_as_it_is(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = store.schema_version()
        monkeypatch.setattr(ddl, "STEPS", (*ddl.STEPS, "ALTER TABLE {schema}.jobs ADD COLUMN note TEXT"))
        assert joinery("state", "check", job_file).code == 0
        monkeypatch.undo()
        assert store.schema_version() == before
        assert recorded(store) == old

    def test_a_long_answer_fits_a_termination_message(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JOINERY_ENDING_FILE", str(tmp_path / "ending"))
        text, time = job_file.read_text(), "        - {name: ts, type: timestamp}\n"

        def declare(kind: str) -> StreamJoin:
            columns = (f'        - {{name: "c{n}_{"é" * 40}", type: {kind}}}\n' for n in range(60))
            job_file.write_text(text.replace(time, "".join(columns) + time, 1))
            return load_job(job_file)

        commit_rows(store, store.acquire(JOB), load_job(job_file), 1, ([], []))
        wide = declare("string")
        added = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json((tmp_path / "ending").read_bytes())
        assert (added.code, check.fits, len(check.warnings)) == (0, True, 1)
        assert "and 52 more are null in rows that were stored before" in check.warnings[0]
        commit_rows(store, store.acquire(JOB), wide, 2, ([], []))
        declare("int64")
        ended = joinery("state", "check", job_file)
        check = StateCheck.model_validate_json((tmp_path / "ending").read_bytes())
        assert (ended.code, check.fits, len(check.refused)) == (1, False, 8)
        assert len((tmp_path / "ending").read_bytes()) <= 4096


class TestMigrate:
    def test_a_dry_run_says_what_it_would_do_and_writes_nothing(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None
    ) -> None:
        [done] = joinery("state", "migrate", job_file, "--dry-run").lines
        assert (done["versions"], done["target"], done["segments"], done["to_migrate"]) == ([1], 2, 2, 2)
        assert done["bytes_before"] == sum(meta.bytes for meta in old.segments)
        assert done["bytes_after"] > 0
        assert done["bytes_after"] != done["bytes_before"]
        assert recorded(store) == old

    def test_it_pins_fences_and_migrates(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None
    ) -> None:
        before = rows_of(store)
        [done] = joinery("state", "migrate", job_file, "--savepoint", "rollout-b").lines
        assert (done["migrated"], done["pin"]) == (2, {"name": "rollout-b", "committed": 1, "how": "created"})
        assert versions(store) == {2}
        assert rows_of(store) == before
        with pytest.raises(Fenced):
            store.write_plan(JOB, old.generation, {"epoch": 2}, {})

    def test_it_tells_how_far_it_is_while_it_migrates(
        self, joinery: Joinery, job_file: Path, old: JobRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port, statuses = free_port(), []

        def ask(blob: bytes) -> bytes:
            with urlopen(f"http://127.0.0.1:{port}/status") as answer:
                statuses.append(DriverStatus.model_validate_json(answer.read()))
            return blob

        monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", 3)
        monkeypatch.setattr(migrations, "MIGRATIONS", {1: lambda blob: blob, 2: ask})
        monkeypatch.setenv("JOINERY_STATUS_PORT", str(port))
        monkeypatch.setenv("JOINERY_REVISION", "abc")
        assert joinery("state", "migrate", job_file).code == 0
        assert [(status.revision, status.ready, status.migrated) for status in statuses] == [
            ("abc", False, 0),
            ("abc", False, 1),
        ]

    def test_without_a_name_the_pin_says_version_and_epoch(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None
    ) -> None:
        joinery("state", "migrate", job_file)
        assert pins(store) == ["before-state-version-2-epoch-1"]

    def test_a_job_that_never_ran_can_be_pinned_and_rolled_back(
        self, joinery: Joinery, job_file: Path, store: PostgresStore
    ) -> None:
        assert joinery("state", "migrate", job_file, "--savepoint", "rollout-b").code == 0
        ended = joinery("state", "restore", job_file, "--savepoint", "rollout-b", "--before-first-commit")
        assert (ended.code, ended.err) == (0, "")
        assert recorded(store).epoch == 0

    def test_nothing_to_migrate_fences_nobody(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord
    ) -> None:
        [done] = joinery("state", "migrate", job_file).lines
        assert (done["migrated"], done["pin"]) == (0, None)
        assert recorded(store) == old

    @pytest.mark.parametrize("killed_at", ["migrate", "delete_savepoint"])
    def test_it_goes_on_where_it_was_killed(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None,
        killed_at: str, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        for n in range(4):  # so that there is something to prune
            store.create_savepoint(JOB, f"rollout-{n}")

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PostgresStore, killed_at, killed)
            with suppress(KeyboardInterrupt):
                joinery("state", "migrate", job_file, "--savepoint", "rollout-b")
        assert "rollout-b" in pins(store)
        assert versions(store) == ({1} if killed_at == "migrate" else {2})
        [done] = joinery("state", "migrate", job_file, "--savepoint", "rollout-b").lines
        assert done["pin"] == {"name": "rollout-b", "committed": 1, "how": "there already"}
        assert versions(store) == {2}
        assert len(pins(store)) == 3
        assert "rollout-b" in pins(store)
        back = store.roll_back(JOB, "rollout-b")
        assert [meta.key for meta in back.segments] == [meta.key for meta in old.segments]

    def test_the_same_rollout_again_after_its_first_commit_keeps_the_pin(
        self,
        joinery: Joinery,
        job_file: Path,
        store: PostgresStore,
        job: StreamJoin,
        old: JobRecord,
        next_release: None,
        ending_file: Path,
    ) -> None:
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b")
        commit_rows(store, store.acquire(JOB), job, 2, ([], []))
        [done] = joinery("state", "migrate", job_file, "--savepoint", "rollout-b").lines
        assert (done["migrated"], done["pin"]["how"], done["pin"]["committed"]) == (0, "kept", 1)
        ended = joinery("state", "restore", job_file, "--savepoint", "rollout-b", "--before-first-commit")
        assert ended.code == 1
        assert "is now at epoch 2" in ended.err
        ending = Ending.model_validate_json(ending_file.read_bytes())
        assert (ending.kind, ending.retry) == (COMMITTED_SINCE, False)  # the operator puts the new revision in force

    @pytest.mark.parametrize("gone_on", [False, True])
    @pytest.mark.parametrize("mode", [[], ["--anew"]], ids=["with the state", "anew"])
    def test_a_rollout_that_was_rolled_back_is_tried_again_under_a_new_name_only(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, job: StreamJoin, old: JobRecord,
        next_release: None, ending_file: Path, mode: list[str], gone_on: bool,
    ) -> None:  # fmt: skip
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b-3", *mode)
        joinery("state", "restore", job_file, "--savepoint", "rollout-b-3", "--before-first-commit")
        driver = store.acquire(JOB)
        if gone_on:
            commit_rows(store, driver, job, 2, (ORDERS, []))
        before = recorded(store)
        late = joinery("state", "migrate", job_file, "--savepoint", "rollout-b-3", *mode)
        assert (late.code, recorded(store)) == (1, before)  # the driver of the old release goes on
        ending = Ending.model_validate_json(ending_file.read_bytes())
        assert (ending.kind, ending.retry) == ("RolloutOver", False)
        assert "it was rolled back. To try it again, give another name" in ending.error
        [done] = joinery("state", "migrate", job_file, "--savepoint", "rollout-b-4", *mode).lines
        assert done["pin"] == {"name": "rollout-b-4", "committed": 2 if gone_on else 1, "how": "created"}
        joinery("state", "restore", job_file, "--savepoint", "rollout-b-4", "--before-first-commit")
        assert recorded(store).segments == before.segments

    def test_a_rollout_that_another_one_came_after_does_not_begin_again(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, job: StreamJoin, old: JobRecord,
        next_release: None,
    ) -> None:  # fmt: skip
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b-3")
        commit_rows(store, store.acquire(JOB), job, 2, (ORDERS, []))
        joinery("state", "migrate", job_file, "--savepoint", "rollout-c-4", "--anew")
        commit_rows(store, store.acquire(JOB), job, 3, (ORDERS, []))
        before = recorded(store)
        for mode in ([], ["--anew"]):
            late = joinery("state", "migrate", job_file, "--savepoint", "rollout-b-3", *mode)
            assert (late.code, recorded(store)) == (1, before)
            assert "another rollout came after it" in late.err

    @pytest.mark.parametrize(
        ("mode", "at"),
        [
            ([], "create_savepoint"),
            ([], "migrate"),
            (["--anew"], "create_savepoint"),
            (["--anew"], "start_anew"),
        ],
    )
    def test_one_that_is_rolled_back_while_it_begins_changes_nothing(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None,
        monkeypatch: pytest.MonkeyPatch, mode: list[str], at: str,
    ) -> None:  # fmt: skip
        original = getattr(PostgresStore, at)
        before: list[JobRecord] = []

        def meanwhile(self: PostgresStore, *arguments: object, **named: object) -> object:
            monkeypatch.setattr(PostgresStore, at, original)
            roll_back(store, JOB, "rollout-b-3")
            before.append(recorded(store))
            return original(self, *arguments, **named)

        monkeypatch.setattr(PostgresStore, at, meanwhile)
        late = joinery("state", "migrate", job_file, "--savepoint", "rollout-b-3", *mode)
        assert (late.code, [recorded(store)]) == (1, before)
        assert before[0].segments == old.segments

    def test_a_rollout_that_follows_one_which_committed_nothing_can_still_be_undone_whole(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None
    ) -> None:
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b")
        [done] = joinery("state", "migrate", job_file, "--savepoint", "rollout-c").lines
        assert (done["migrated"], versions(store)) == (2, {2})
        joinery("state", "restore", job_file, "--savepoint", "rollout-c", "--before-first-commit")
        assert recorded(store).segments == old.segments  # what the release before both of them wrote

    def test_a_savepoint_of_another_epoch_that_was_made_by_hand_is_refused(
        self,
        joinery: Joinery,
        job_file: Path,
        store: PostgresStore,
        job: StreamJoin,
        old: JobRecord,
        next_release: None,
    ) -> None:
        store.create_savepoint(JOB, "mine")
        commit_rows(store, old, job, 2, ([], []))
        ended = joinery("state", "migrate", job_file, "--savepoint", "mine")
        assert (ended.code, versions(store)) == (1, {1})
        assert "its state is at epoch 1, the job's at 2" in ended.err

    def test_state_that_is_newer_fences_nobody(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", 0)
        ended = joinery("state", "migrate", job_file, "--savepoint", "rollout-b")
        assert ended.code == 1
        assert "newer than this release" in ended.err
        assert recorded(store) == old


class TestRollBack:
    def test_a_plan_of_the_new_release_is_replayed_by_the_old_one(
        self,
        joinery: Joinery,
        job_file: Path,
        store: PostgresStore,
        job: StreamJoin,
        old: JobRecord,
        next_release: None,
    ) -> None:
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b")
        new = store.acquire(JOB)
        plan = plan_of(2, {"orders": 1_500, "payments": None}).to_json()  # type: ignore[dict-item]
        store.write_plan(JOB, new.generation, plan, {"as": "edited"})
        assert store.claim(JOB, OwnershipToken(new.generation, 1, 2), "0", "new-producer") is None  # rows are in Kafka
        [done] = joinery("state", "restore", job_file, "--savepoint", "rollout-b", "--before-first-commit").lines
        assert (done["restored"], done["planned"], done["dropped"]) == (True, 2, None)
        back = store.acquire(JOB)
        assert (back.plan, back.definition) == (plan, {"as": "edited"})
        assert (back.segments, back.offsets, back.signature) == (old.segments, old.offsets, old.signature)
        assert store.claims(JOB) == {"0": "new-producer"}

    @pytest.mark.parametrize("has_state", [True, False])
    def test_a_rollout_that_never_pinned_anything_has_nothing_to_undo(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, has_state: bool, request: pytest.FixtureRequest
    ) -> None:
        before = request.getfixturevalue("old") if has_state else None
        command = ("state", "restore", job_file, "--savepoint", "rollout-b", "--before-first-commit")
        for _ in range(2):
            ended = joinery(*command)
            assert (ended.code, ended.err) == (0, "")
        after = recorded(store)
        assert (after.segments, after.offsets) == ((before.segments, before.offsets) if before else ((), {}))
        for mode in ([], ["--anew"]):  # its first container comes late
            late = joinery("state", "migrate", job_file, "--savepoint", "rollout-b", *mode)
            assert (late.code, recorded(store)) == (1, after)
            assert "it was rolled back" in late.err

    def test_it_fences_a_rollout_that_has_just_begun(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord
    ) -> None:
        begun = store.acquire(JOB)
        [back] = joinery("state", "restore", job_file, "--savepoint", "rollout-b", "--before-first-commit").lines
        assert (back["restored"], back["committed"]) == (False, 1)
        with pytest.raises(Fenced):
            store.migrate(JOB, begun.generation, {}, 1)

    @pytest.mark.parametrize("mode", [[], ["--anew"]], ids=["with the state", "anew"])
    def test_one_that_comes_late_does_not_undo_the_next_rollout(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, next_release: None,
        mode: list[str],
    ) -> None:  # fmt: skip
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b-3")
        command = ("state", "restore", job_file, "--savepoint", "rollout-b-3", "--before-first-commit")
        joinery(*command)
        joinery("state", "migrate", job_file, "--savepoint", "rollout-c-4", *mode)
        after = recorded(store)
        late = joinery(*command)
        assert (late.code, late.lines[0]["restored"], recorded(store)) == (0, False, after)

    def test_again_after_the_earlier_release_has_gone_on(
        self,
        joinery: Joinery,
        job_file: Path,
        store: PostgresStore,
        job: StreamJoin,
        old: JobRecord,
        next_release: None,
    ) -> None:
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b")
        command = ("state", "restore", job_file, "--savepoint", "rollout-b", "--before-first-commit")
        assert joinery(*command).lines[0]["restored"]
        commit_rows(store, store.acquire(JOB), job, 2, (ORDERS, []))
        after = recorded(store)
        ended = joinery(*command)  # its pod was started again
        assert (ended.code, ended.lines[0]["restored"]) == (0, False)
        assert recorded(store) == after

    def test_a_savepoint_made_by_hand_has_to_be_there(self, joinery: Joinery, job_file: Path, old: JobRecord) -> None:
        ended = joinery("state", "restore", job_file, "--savepoint", "mine", "--before-first-commit")
        assert (ended.code, ended.out) == (1, "")
        assert "no savepoint mine" in ended.err


class TestAnew:
    def test_nothing_is_dropped_the_second_time(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, job: StreamJoin, old: JobRecord
    ) -> None:
        [done] = joinery("state", "migrate", job_file, "--savepoint", "rollout-b", "--anew").lines
        assert (done["dropped"], done["pin"]["how"]) == (True, "created")
        anew = recorded(store)
        assert (anew.segments, anew.offsets, anew.signature, anew.definition) == ((), {}, None, None)
        assert joinery("state", "migrate", job_file, "--savepoint", "rollout-b", "--anew").code == 0
        commit_rows(store, store.acquire(JOB), job, 2, (ORDERS, []))
        after = recorded(store)
        [again] = joinery("state", "migrate", job_file, "--savepoint", "rollout-b", "--anew").lines
        assert again["pin"]["how"] == "kept"
        assert recorded(store).segments == after.segments
        assert recorded(store).offsets == after.offsets

    def test_killed_before_it_dropped(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(PostgresStore, "start_anew", killed)
            joinery("state", "migrate", job_file, "--savepoint", "rollout-b", "--anew")
        assert recorded(store).segments == old.segments
        joinery("state", "migrate", job_file, "--savepoint", "rollout-b", "--anew")
        assert recorded(store).segments == ()

    def test_a_plan_that_means_nothing_any_more_is_dropped_and_said(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord
    ) -> None:
        store.write_plan(JOB, old.generation, plan_of(2).to_json(), {})
        [done] = joinery("state", "migrate", job_file, "--savepoint", "rollout-b", "--anew").lines
        assert done["dropped_plan"] == 2
        store.write_plan(JOB, recorded(store).generation, plan_of(3).to_json(), {})
        [back] = joinery("state", "restore", job_file, "--savepoint", "rollout-b", "--before-first-commit").lines
        assert (back["planned"], back["dropped"], back["committed"]) == (None, 3, 1)

    def test_it_needs_a_savepoint(self, joinery: Joinery, job_file: Path, old: JobRecord) -> None:
        ended = joinery("state", "migrate", job_file, "--anew")
        assert ended.code == 1
        assert "--anew needs a savepoint" in ended.err


class TestRestore:
    def test_it_names_the_output_that_repeats_before_it_goes_back(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, job: StreamJoin, old: JobRecord
    ) -> None:
        joinery("state", "savepoint", job_file, "before-noon")
        commit_rows(store, old, job, 2, (ORDERS, []), rows_out=7)
        commit_rows(store, old, job, 3, ([], []))
        commit_rows(store, old, job, 4, ([], []), rows_out=2, next_plan=plan_of(5))
        before = recorded(store)
        ended = joinery("state", "restore", job_file, "--savepoint", "before-noon")
        assert (ended.code, recorded(store)) == (1, before)
        assert "Give --yes to go back" in ended.err
        [would] = ended.lines
        assert (would["rows_out"], would["planned"], would["restored"]) == ({"2": 7, "4": 2}, 5, False)
        assert would["output"] == "the topic joined"
        [done] = joinery("state", "restore", job_file, "--savepoint", "before-noon", "--yes").lines
        assert done == {**would, "restored": True}
        after = recorded(store)
        assert (after.segments, after.offsets, after.plan, after.epoch) == (old.segments, old.offsets, None, 5)
        with pytest.raises(Fenced):
            store.write_plan(JOB, old.generation, {"epoch": 6}, {})

    def test_on_a_terminal(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, job: StreamJoin, old: JobRecord,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        joinery("state", "savepoint", job_file, "sp")
        commit_rows(store, old, job, 2, ([], []), rows_out=7)
        out = joinery("state", "restore", job_file, "--savepoint", "sp").out
        assert "Since then epoch 2 wrote 7 rows to the topic joined: they will be written again." in out
        assert json.loads(joinery("state", "restore", job_file, "--savepoint", "sp", "--json").out)["planned"] is None

    def test_an_unknown_savepoint(self, joinery: Joinery, job_file: Path, old: JobRecord) -> None:
        ended = joinery("state", "restore", job_file, "--savepoint", "gone", "--yes")
        assert (ended.code, ended.out) == (1, "")
        assert "no savepoint gone: it has none" in ended.err


class TestSavepoints:
    def test_made_listed_and_deleted(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord
    ) -> None:
        [line] = joinery("state", "savepoint", job_file, "sp").lines
        assert (line["name"], line["epoch"], line["rows"], line["automatic"]) == ("sp", 1, 8, False)
        store.create_savepoint(JOB, "rollout-x")
        listed = joinery("state", "savepoint", job_file, "--list").lines
        assert [(savepoint["name"], savepoint["automatic"]) for savepoint in listed] == [
            ("rollout-x", True),
            ("sp", False),
        ]
        assert joinery("state", "savepoint", job_file, "sp", "--delete").lines == [{"deleted": "sp"}]
        assert pins(store) == ["rollout-x"]

    def test_names_of_rollouts_are_not_for_hands(self, joinery: Joinery, job_file: Path, old: JobRecord) -> None:
        ended = joinery("state", "savepoint", job_file, "rollout-mine")
        assert ended.code == 1
        assert "Choose another name" in ended.err

    @pytest.mark.parametrize("length", [0, 254])
    def test_a_name_that_no_status_holds_is_refused(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, length: int
    ) -> None:
        for command in (["savepoint"], ["migrate", "--savepoint"]):
            ended = joinery("state", command[0], job_file, *command[1:], "x" * length)
            assert ended.code == 1
            assert f"it has {length} characters. Give one of 1 to 253 characters" in ended.err
        assert (pins(store), recorded(store)) == ([], old)
        assert joinery("state", "savepoint", job_file, "x" * 253).code == 0

    def test_no_name(self, joinery: Joinery, job_file: Path, old: JobRecord) -> None:
        assert "No savepoint is named" in joinery("state", "savepoint", job_file).err


class TestDelete:
    def test_it_says_what_and_deletes_only_when_told(
        self, joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord
    ) -> None:
        ended = joinery("state", "delete", job_file)
        assert (ended.code, recorded(store)) == (1, old)
        assert ended.lines[0]["state"].startswith("8 rows in 2 segments")
        assert ended.lines[0]["output"] == "Kafka topic joined"
        ended = joinery("state", "delete", job_file, "--yes")
        assert (ended.code, ended.err, store.record(JOB)) == (0, "", None)
        staging = Staging.of(store.schema, JOB, "joined")
        sink = PostgresSink(store.dsn, TargetTable("joined"), staging)
        sink.prepare(pa.schema({"a": pa.int64()}))  # as a delete that was cut short left it
        sink.close()
        again = joinery("state", "delete", job_file, "--yes")
        with psycopg.connect(store.dsn) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (store.schema,))
            assert not [name for (name,) in tables if name.startswith(staging.prefix)]
        assert (again.code, again.lines[0]["deleted"]) == (0, False)


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["migrate", "--savepoint", "rollout-b"],
        ["restore", "--savepoint", "rollout-b", "--before-first-commit"],
        ["delete", "--yes"],
    ],
    ids=lambda command: command[0],
)
def test_a_rollout_of_a_job_that_keeps_its_state_in_memory_has_nothing_to_do(
    joinery: Joinery, tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(edited((OUTPUT, "    file: {path: out}\n  stateStore: {memory: {}}\n")))
    ended = joinery("state", command[0], path, *command[1:])
    assert (ended.code, ended.err) == (0, "")


def test_automatic_names_are_told_from_others() -> None:
    assert [state_migrate.is_automatic(name) for name in ("rollout-1", "before-state-version-2-epoch-10")] == [True] * 2
    assert [state_migrate.is_automatic(name) for name in ("my-rollout-1", "before-noon", "rollout-")] == [False] * 3


def test_a_pod_may_pin_and_unpin_again_and_tells_what_there_is(
    joinery: Joinery, job_file: Path, store: PostgresStore, old: JobRecord, ending_file: Path
) -> None:
    pin = ("state", "savepoint", job_file, "noon", "--idempotent")
    for _ in range(2):
        assert joinery(*pin).code == 0
        result = SavepointResult.model_validate_json(ending_file.read_text())
        [savepoint] = store.savepoints(JOB)
        assert (result.epoch, result.rows, result.bytes) == (old.committed, savepoint.rows, savepoint.bytes)
        assert result.time.timestamp() == savepoint.created_at / 1000
    assert joinery(*pin[:-1]).code != 0
    for _ in range(2):
        assert joinery(*pin, "--delete").code == 0
        assert store.savepoints(JOB) == []
    store.delete_job(JOB)
    assert joinery(*pin, "--delete").code == 0
    assert joinery(*pin).code != 0
    assert Ending.model_validate_json(ending_file.read_text()).retry
