from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from cli.commands import Joinery
from job.resources import edited
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.inspect.state_show import show
from joinery_runtime.inspect.state_stats import stats
from joinery_runtime.inspect.stored_state import epoch_line, record_lines
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.postgres import PostgresStore
from state.values import run_epoch

JOB = "orders-payments"


@pytest.fixture
def stored(postgres_dsn: str, tmp_path: Path) -> Path:
    """A job file whose state is in a schema of its own, which is still empty."""
    path = tmp_path / "job.yaml"
    schema = tmp_path.name.replace("-", "_")
    text = (
        f'    postgres: {{table: joined}}\n  stateStore: {{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}\n'
    )
    path.write_text(edited(("    postgres: {table: joined}\n", text)))
    return path


@pytest.fixture
def store(stored: Path, postgres_dsn: str, tmp_path: Path):
    store = PostgresStore(postgres_dsn, tmp_path.name.replace("-", "_"))
    yield store
    store.close()


@pytest.mark.services
@pytest.mark.parametrize("command", ["ls", "epochs"])
def test_a_job_that_never_ran(joinery: Joinery, stored: Path, command: str) -> None:
    ended = joinery("state", command, stored)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"joinery: the state store knows no job {JOB}")


@pytest.mark.services
@pytest.mark.parametrize("planned", [False, True])
def test_all_commands_say_the_same_before_the_first_commit(
    joinery: Joinery, stored: Path, store: PostgresStore, planned: bool
) -> None:
    store.acquire(JOB)
    if planned:
        store.write_plan(JOB, 1, {"epoch": 1}, {})
    words = f"job {JOB} has committed no epoch yet: {'epoch 1 is' if planned else 'no epoch is'} planned"
    for command in (("why", stored, "--key", "order_id=a"), ("verify", stored)):
        ended = joinery(*command)
        assert (ended.code, ended.err.startswith(f"joinery: {words}")) == (1, True)
    log = joinery("state", "epochs", stored)
    assert (log.code, log.out, log.err.startswith(words)) == (0, "", True)
    listed = joinery("state", "ls", stored).out
    assert listed.startswith(f"job {JOB}: no epoch committed yet{', epoch 1 planned' if planned else ''}, generation 1")


@pytest.mark.services
def test_all_commands_say_the_same_after_the_first_plan_was_dropped(
    joinery: Joinery, stored: Path, store: PostgresStore
) -> None:
    """Its number is used up, and nothing was committed."""
    store.acquire(JOB)
    store.write_plan(JOB, 1, {"epoch": 1}, {})
    assert joinery("state", "reset", stored, "--drop-planned").code == 0
    words = f"job {JOB} has committed no epoch yet: no epoch is planned"
    for command in (("why", stored, "--key", "order_id=a"), ("verify", stored)):
        assert joinery(*command).err.startswith(f"joinery: {words}")
    log = joinery("state", "epochs", stored)
    assert (log.code, log.out, log.err.startswith(words)) == (0, "", True)
    assert joinery("state", "ls", stored).out.startswith(f"job {JOB}: no epoch committed yet, generation 2")
    assert "no epoch in the log" in joinery("state", "delete", stored).out


@pytest.mark.services
def test_ls_names_the_epoch_that_the_state_stands_on(joinery: Joinery, stored: Path, store: PostgresStore) -> None:
    """After a restore, this is the savepoint's and not the newest one."""
    record = store.acquire(JOB)
    run_epoch(store, record, 1)
    store.create_savepoint(JOB, "before")
    run_epoch(store, record, 2)
    store.restore_savepoint(JOB, "before")
    assert joinery("state", "ls", stored).out.startswith(f"job {JOB}: epoch 1 committed, generation 2")


@pytest.mark.services
def test_an_epoch_is_one_short_line_on_a_terminal(
    joinery: Joinery, stored: Path, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = store.acquire(JOB)
    run_epoch(store, record, 1, ["segment-1"])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    (line,) = joinery("state", "epochs", stored).out.splitlines()
    assert line.startswith("epoch 1, committed 20")
    assert len(line) < 300
    assert joinery("state", "epochs", stored, "--json").lines[0]["epoch"] == 1


@pytest.mark.services
def test_ls_without_a_job_lists_those_of_the_embedded_postgres(
    joinery: Joinery, store: PostgresStore, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOINERY_HOME", str(tmp_path / "home"))
    nothing = joinery("state", "ls")
    assert (nothing.code, "no job has kept its state" in nothing.out) == (0, True)
    assert not (tmp_path / "home").exists()
    (tmp_path / "home" / "postgres").mkdir(parents=True)
    store.acquire("one")
    run_epoch(store, store.acquire("two"), 1, ["segment-1"])
    monkeypatch.setattr("joinery_runtime.inspect.stored_state.embedded_postgres", lambda _: nullcontext(postgres_dsn))
    monkeypatch.setattr("joinery_runtime.inspect.stored_state.EMBEDDED_SCHEMA", tmp_path.name.replace("-", "_"))
    listed = joinery("state", "ls").out.splitlines()
    assert listed[1:] == [
        "job one: no epoch committed yet, generation 1", "job two: epoch 1 committed, generation 1",
    ]  # fmt: skip


@pytest.mark.services
def test_epochs_prints_the_log(joinery: Joinery, stored: Path, store: PostgresStore) -> None:
    record = store.acquire(JOB)
    for epoch in (1, 2, 3):
        run_epoch(store, record, epoch, [f"segment-{epoch}"])
    lines = joinery("state", "epochs", stored).lines
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert {frozenset(line) for line in lines} == {frozenset({"epoch", "generation", "committed_at", "plan", "result"})}
    assert [line["epoch"] for line in joinery("state", "epochs", stored, "--after", 1, "--limit", 1).lines] == [2]


def test_an_input_that_has_ended_is_at_the_end_and_not_at_a_huge_number() -> None:
    job = parse_job(edited(), "job.yaml")
    names, store = [side.name for side in job.inputs], MemoryStore()
    for _ in run_trace(job, [{"end": True}], store):
        """All that counts is where the job stands afterwards."""
    record = store.record(job.name)
    assert record is not None
    lines = list(record_lines(record))
    assert [line.split(",")[0] for line in lines if line.startswith("input ")] == [
        f"input {name}: watermark the end" for name in sorted(names)
    ]
    (epoch,) = map(epoch_line, store.epochs(job.name))
    counted, shown = stats(job, store).document(), show(job, store, ["order_id=x"]).document()
    for document in (epoch["plan"], counted, shown):
        assert document["watermarks"] == dict.fromkeys(names, "end")
    assert list(epoch["plan"]["horizons"].values()) == [[None, "end"]] * 2
    assert [side["keep_from"] for side in counted["sides"]] == ["end"] * 2
    assert str(END_OF_TIME)[:10] not in json.dumps([lines, epoch, counted, shown])


@pytest.mark.services
def test_ls_shows_where_the_job_stands(joinery: Joinery, stored: Path, store: PostgresStore) -> None:
    record = store.acquire(JOB)
    run_epoch(store, record, 1, ["first"])
    run_epoch(store, record, 2, ["second"])
    ended = joinery("state", "ls", stored)
    assert (ended.code, ended.err) == (0, "")
    assert f"job {JOB}: epoch 2 committed" in ended.out
    assert {line.split()[-1] for line in ended.out.splitlines()[1:]} >= {"first", "second"}


@pytest.mark.services
def test_the_stores_address_may_be_a_secret(
    joinery: Joinery,
    stored: Path,
    store: PostgresStore,
    postgres_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_epoch(store, store.acquire(JOB), 1)
    (tmp_path / "secrets" / "db").mkdir(parents=True)
    (tmp_path / "secrets" / "db" / "address").write_text(f"{postgres_dsn}\n")
    monkeypatch.setenv("JOINERY_SECRETS", str(tmp_path / "secrets"))
    stored.write_text(stored.read_text().replace(f'dsn: "{postgres_dsn}"', "dsnSecretRef: {name: db, key: address}"))
    ended = joinery("state", "ls", stored)
    assert (ended.code, ended.err) == (0, "")
    assert f"job {JOB}: epoch 1 committed" in ended.out


def test_a_memory_store_has_nothing_to_look_into(joinery: Joinery, job_file: Path) -> None:
    job_file.write_text(
        edited(("    postgres: {table: joined}\n", "    file: {path: out}\n  stateStore: {memory: {}}\n"))
    )
    ended = joinery("state", "ls", job_file)
    assert (ended.code, ended.out) == (1, "")
    assert "keeps its state in memory" in ended.err


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("postgresql://joe:hunter2@127.0.0.1:1/db", "not available (host 127.0.0.1, port 1, database db)"),
        ("host=127.0.0.1 port=1 user=joe password=hunter2", "not available (host 127.0.0.1, port 1, database joe)"),
        ("postgresql://joe:hunter2@@127.0.0.1:1/db", "DSN cannot be read"),
        ("password=hunter2 hunter2", "DSN cannot be read"),
    ],
)
@pytest.mark.parametrize("command", [["state", "ls"], ["run"]], ids="-".join)
def test_a_store_that_cannot_be_reached_is_named_without_its_password(
    joinery: Joinery, job_file: Path, dsn: str, says: str, command: list[str]
) -> None:
    output = "    postgres: {table: joined}\n"
    job_file.write_text(edited((output, f"{output}  stateStore: {{postgres: {{dsn: '{dsn}'}}}}\n")))
    ended = joinery(*command, job_file)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert "hunter2" not in ended.err


def test_explain_shows_no_secret(joinery: Joinery, job_file: Path) -> None:
    output, topic = "    postgres: {table: joined}\n", "        topic: orders\n"
    dsn = "  stateStore: {postgres: {dsn: 'postgresql://joe:hunter2@db/joe'}}\n"
    job_file.write_text(
        edited((output, output + dsn), (topic, topic + "        properties: {sasl.password: hunter2}\n"))
    )
    ended = joinery("explain", job_file)
    assert ended.code == 0
    assert "hunter2" not in ended.out
