"""What users get wrong, and what the world does to them: each ends in an error that names the place, and loses nothing.

Jobs run one after the other in this process, through the command line, so that Spark's Java process starts once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo

from cli.commands import Ended, runner
from e2e.jobs import (
    Job,
    fresh_name,
    joined,
    json_rows,
    order,
    parquet_rows,
    payment,
    produce,
    table_rows,
    traceback_of_ours,
    until,
)
from joinery_devkit.kafka_admin import KafkaAdmin

MASTER = "local[2,4]"


# --- mistakes in the file: refused before Spark starts ----------------------------------------------------------------

GOOD = Job("typed", "kafka:9092", "{memory: {}}", "{file: {path: out}}")


def broken(folder: Path, old: str = "", new: str = "") -> Path:
    path = GOOD.write(folder)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return path


@pytest.mark.parametrize("command", ["validate", "run"])
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("metadata: {", "metadata: {{", ["line ", "not readable YAML"]),
        ("orders.id:", "orders.idd:", ["keys", "'orders' has no column 'idd'", "did you mean 'id'"]),
        ("{column: payments.paid}", "{column: payments.piad}", ["spec.select[2].column", "did you mean 'paid'"]),
        ("name: order, type: string", "name: order, type: int64", ["keys", "string", "int64"]),
        ("lower: 0s, ", "", ["spec.joins[0].interval.lower", "is missing", "one-sided bound"]),
        ("{column: payments.paid}", "{column: payments.paid, as: id}", ["spec.select", "id"]),
    ],
    ids=["broken YAML", "unknown key column", "unknown output column", "type mismatch", "one-sided", "colliding"],
)
def test_a_mistake_in_the_file(
    command: str,
    old: str,
    new: str,
    says: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("joinery_runtime.hosts.spark.start_context", lambda *_: pytest.fail("Spark was started"))
    path = broken(tmp_path, old, new)
    ended = runner(capsys)(command, path)
    assert (ended.code, ended.out) == (2, "")
    assert not [words for words in [str(path), "line ", *says] if words not in ended.err], ended.err


# --- the services -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`joinery run` on a job file."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its own handlers
    joinery = runner(capfd)

    def run(path: Path, *options: str) -> Ended:
        ended = joinery("run", path, "--master", MASTER, *options)
        assert not traceback_of_ours(ended.err), ended.err
        return ended

    return run


@pytest.fixture
def job(kafka_broker: KafkaAdmin, database: str) -> Job:
    """A job with two empty topics and a database of its own."""
    job = Job(fresh_name(), kafka_broker.bootstrap, f'{{postgres: {{dsn: "{database}"}}}}')
    for side in ("orders", "payments"):
        kafka_broker.create_topic(f"{job.name}.{side}")
    return job


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """A database of this test's own, as a DSN."""
    name = fresh_name()
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield make_conninfo(postgres_dsn, dbname=name)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def fill(job: Job, *numbers: int) -> None:
    produce(job.bootstrap, f"{job.name}.orders", [order(n) for n in numbers])
    produce(job.bootstrap, f"{job.name}.payments", [payment(n) for n in numbers])


def epochs(ended: Ended) -> list[dict[str, Any]]:
    return [line for line in ended.lines if line["event"] == "epoch"]


def failed(ended: Ended, *says: str) -> None:
    assert ended.code == 1, ended.err
    assert not [words for words in says if words not in ended.err], ended.err
    assert not epochs(ended)


# --- Kafka ------------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_topic_that_is_not_there(run: Any, job: Job, tmp_path: Path, kafka_broker: KafkaAdmin) -> None:
    kafka_broker.delete_topic(f"{job.name}.payments")
    ended = run(job.write(tmp_path))
    failed(ended, "Input payments", f"topic {job.name}.payments does not exist", job.bootstrap, "Create it")


@pytest.mark.services
def test_a_broker_that_cannot_be_reached(run: Any, job: Job, tmp_path: Path) -> None:
    started = time.monotonic()
    ended = run(job.write(tmp_path, bootstrap="127.0.0.1:1"))
    failed(ended, "Input orders", "the Kafka broker does not answer", "bootstrapServers 127.0.0.1:1")
    assert time.monotonic() - started < 90


# --- Postgres ---------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_postgres_that_cannot_be_reached(run: Any, job: Job, tmp_path: Path) -> None:
    dsn = "postgresql://joe:hunter2@127.0.0.1:1/orders"
    ended = run(job.write(tmp_path, store=f'{{postgres: {{dsn: "{dsn}"}}}}'))
    failed(ended, "host 127.0.0.1, port 1, database orders", "refused", "Check that Postgres runs")
    assert "hunter2" not in ended.out + ended.err


@pytest.fixture
def guarded(database: str) -> Iterator[str]:
    """The database for a role that must show its password, which is `right`."""
    role = fresh_name()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'right'")
        (file,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        # A server that root has started calls its folder so; each of its processes works there.
        folder = Path(f"/proc/{connection.info.backend_pid}/cwd").readlink()
        file = file.replace("/proc/self/cwd", str(folder))
        rules = Path(file).read_text()
        mine = f'local all "{role}" scram-sha-256\nhost all "{role}" all scram-sha-256\n'
        Path(file).write_text(mine + rules)
        connection.execute("SELECT pg_reload_conf()")
    wrong = make_conninfo(database, user=role, password="hunter2")
    while _may_connect(wrong):  # until the server has read its rules
        time.sleep(0.01)
    yield wrong
    Path(file).write_text(rules)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(f'DROP ROLE "{role}"')


def _may_connect(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.services
def test_a_wrong_password(run: Any, job: Job, guarded: str, tmp_path: Path) -> None:
    ended = run(job.write(tmp_path, store=f'{{postgres: {{dsn: "{guarded}"}}}}'))
    failed(ended, "password authentication failed")
    assert "hunter2" not in ended.out + ended.err


@pytest.mark.services
def test_an_output_table_of_another_shape(run: Any, job: Job, database: str, tmp_path: Path) -> None:
    fill(job, 1)
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE joined (id text, amount text, paid bigint)")
    failed(run(job.write(tmp_path)), "joined", "amount", "text", "bigint")
    assert table_rows(database) == []
    assert run(job.write(tmp_path, output="{postgres: {table: other}}")).code == 0
    assert table_rows(database, "other") == joined(1)


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_bad_records_stop_a_job_without_dead_letters_and_nothing_is_lost(
    run: Any, job: Job, database: str, tmp_path: Path
) -> None:
    bad = [b'{"id": "o2", "amou', order(3, ts=None), order(4, amount="many")]
    produce(job.bootstrap, f"{job.name}.orders", [order(1), *bad, order(5), order(6, id=None)])
    produce(job.bootstrap, f"{job.name}.payments", [payment(n) for n in (1, 2, 3, 4, 5, 6)])
    failed(run(job.write(tmp_path)), "input orders", f"{job.name}.orders/0 offset 1", "3 in this epoch", "deadLetter")
    assert table_rows(database) == []

    mended = job.write(tmp_path, extra=f'deadLetter: {{file: {{path: "{tmp_path / "dead"}"}}}}')
    ended = run(mended)
    assert ended.code == 0, ended.err
    assert table_rows(database) == joined(1, 5)
    assert _added(ended, "dead") == {"orders": 3}
    assert _added(ended, "dropped") == {"orders": {"null_key": 1}}
    dead = json_rows(tmp_path / "dead")
    assert [(row["topic"], row["partition"], row["offset"]) for row in dead] == [
        (f"{job.name}.orders", 0, offset) for offset in (1, 2, 3)
    ]
    assert "ts" in dead[1]["reason"]
    assert "amount" in dead[2]["reason"]

    again = run(mended)
    assert again.code == 0
    assert "nothing new to read: orders, payments ended in" in again.lines[-1]["note"]
    assert table_rows(database) == joined(1, 5)
    assert len(json_rows(tmp_path / "dead")) == 3


@pytest.mark.services
def test_runs_once_read_what_is_new(run: Any, job: Job, tmp_path: Path, database: str) -> None:
    """With `stopAt: latest`, which would end the inputs in the first of them."""
    path = job.write(tmp_path)
    for number in (1, 2):
        produce(job.bootstrap, f"{job.name}.orders", [order(number)])
        produce(job.bootstrap, f"{job.name}.payments", [payment(number)])
        ended = run(path, "--once")
        assert (ended.code, ended.lines[-1]["reason"]) == (0, "read to the ends of now"), ended.err
        assert table_rows(database) == joined(*range(1, number + 1))


@pytest.mark.services
def test_a_watched_directory_and_a_topic_exactly_once(run: Any, job: Job, tmp_path: Path, database: str) -> None:
    """Each run goes on with the files that were moved in since, whose records no run reads again."""
    path, folder = job.write(tmp_path), tmp_path / "orders"
    folder.mkdir()
    text = path.read_text()
    of_topic = text[text.index("      kafka:\n") : text.index("      format: json")]
    path.write_text(text.replace(of_topic, f"      file: {{path: {folder}, watch: true}}\n", 1))
    for number in (1, 2):
        (tmp_path / "next").write_text(json.dumps(order(number)))
        (tmp_path / "next").rename(folder / f"{number}.jsonl")
        produce(job.bootstrap, f"{job.name}.payments", [payment(number)])
        ended = run(path, "--once")
        assert (ended.code, ended.lines[-1]["reason"]) == (0, "read to the ends of now"), ended.err
        assert table_rows(database) == joined(*range(1, number + 1))


@pytest.mark.services
def test_a_history_of_parquet_and_then_its_topic_exactly_once(
    run: Any, job: Job, tmp_path: Path, database: str
) -> None:
    """Both have some orders of the other's time. The second run finds the history read, and its files gone."""
    path, folder = job.write(tmp_path, stop_at="{}"), tmp_path / "orders"
    folder.mkdir()
    for number in (1, 3):
        rows = [order(n, ts=datetime.fromtimestamp(n, UTC)) for n in (number, number + 1)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")
    history = f"      history: {{path: {folder}, format: parquet, until: 1970-01-01T00:00:03.500Z}}\n"
    path.write_text(path.read_text().replace("      format: json\n", f"{history}      format: json\n", 1))
    fill(job, *range(2, 7))
    produce(job.bootstrap, f"{job.name}.payments", [payment(1)])
    ended = run(path, "--once")
    assert (ended.code, ended.lines[-1]["reason"]) == (0, "read to the ends of now"), ended.err
    assert table_rows(database) == joined(*range(1, 7))
    dropped = [epoch["dropped"] for epoch in epochs(ended) if epoch["dropped"]]
    assert dropped == [{"orders": {"history": 1}}, {"orders": {"history": 2}}]
    shutil.rmtree(folder)
    produce(job.bootstrap, f"{job.name}.orders", [order(3)])
    fill(job, 7)
    ended = run(path, "--once")
    assert (ended.code, ended.lines[-1]["reason"]) == (0, "read to the ends of now"), ended.err
    assert table_rows(database) == joined(*range(1, 8))
    assert _added(ended, "dropped") == {"orders": {"history": 1}}


def _added(ended: Ended, field: str) -> Any:
    """The field's counts over all epochs, where there are any."""
    filled = [epoch[field] for epoch in epochs(ended) if epoch[field]]
    assert len(filled) == 1
    return filled[0]


# --- the past ---------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_records_that_the_broker_has_deleted(
    run: Any, job: Job, database: str, tmp_path: Path, kafka_broker: KafkaAdmin
) -> None:
    path = job.write(tmp_path)
    fill(job, *range(10))
    assert run(path, "--once").code == 0  # which ends no input
    fill(job, *range(10, 20))
    kafka_broker.delete_records(f"{job.name}.orders", 0, before_offset=15)

    path = job.write(tmp_path, stop_at=until(20))
    failed(run(path), f"{job.name}.orders-0", "from offset 10", "offsets 15 to 20", "5 record", "onDataLoss")
    assert table_rows(database) == sorted(joined(*range(10)))

    ended = run(job.write(tmp_path, on_data_loss="continue", stop_at=until(20)))
    assert ended.code == 0, ended.err
    assert table_rows(database) == sorted(joined(*range(10), *range(15, 20)))
    assert [epoch["lost"] for epoch in epochs(ended) if epoch["lost"]] == [{f"{job.name}.orders/0": 5}]


@pytest.mark.services
def test_a_changed_job_on_its_state(run: Any, job: Job, database: str, tmp_path: Path) -> None:
    fill(job, 1, 2)
    assert run(job.write(tmp_path), "--once").code == 0  # which ends no input
    fill(job, 3)
    failed(
        run(job.write(tmp_path, keys="{orders.id: payments.order, orders.amount: payments.paid}")),
        f"the state of job {job.name} does not fit",
        "the keys were orders.id = payments.order (string), they are now",
        "orders.amount = payments.paid (int64)",
    )
    assert table_rows(database) == joined(1, 2)

    ended = run(job.write(tmp_path, lower="-1m", allowed_lateness="1h", shards=3, stop_at=until(3)))
    assert ended.code == 0, ended.err
    assert "rows that were evicted before stay gone" in str(
        [line["message"] for line in ended.lines if line["event"] == "warning"]
    )
    assert table_rows(database) == joined(1, 2, 3)


@pytest.mark.services
def test_a_store_in_memory_warns_and_joins(run: Any, job: Job, tmp_path: Path) -> None:
    numbers = range(200)
    fill(job, *numbers)
    out = tmp_path / "out"
    memory = replace(job, store="{memory: {}}", output=f'{{file: {{path: "{out}"}}, format: parquet}}', shards=3,
                     extra="trigger: {maxRecordsPerEpoch: 50}")  # fmt: skip
    ended = run(memory.write(tmp_path))
    assert ended.code == 0, ended.err
    (warning,) = [line for line in ended.lines if line["event"] == "warning"]
    assert warning["level"] == "warning"
    assert "ALL STATE AND OFFSETS ARE LOST" in warning["message"]
    assert len(epochs(ended)) > 1
    assert sorted((row["id"], row["amount"], row["paid"]) for row in parquet_rows(out)) == sorted(joined(*numbers))


# --- as a process -----------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_process_prints_one_error_and_no_secret(job: Job, tmp_path: Path, database: str) -> None:
    """The error comes out of a task, through Spark; both outputs of the process are looked at whole."""
    produce(job.bootstrap, f"{job.name}.orders", [order(1), b"nonsense"])
    dsn = make_conninfo(database, password="hunter2")
    properties = "{client.rack: r, sasl.username: joe, sasl.password: hunter3}"
    path = job.write(tmp_path, store=f'{{postgres: {{dsn: "{dsn}"}}}}', properties=properties)
    command = [sys.executable, "-c", "from joinery_runtime.cli import main; main()", "run", str(path)]
    done = subprocess.run([*command, "--master", MASTER], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("joinery: ")]
    assert f"{job.name}.orders/0 offset 1" in error
    for text in (done.stdout, done.stderr):
        assert not traceback_of_ours(text), text
        assert not [word for word in ("hunter2", "hunter3") if word in text], text
