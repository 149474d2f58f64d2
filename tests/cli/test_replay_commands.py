"""`joinery why` and `joinery verify` of a job that has read topics and keeps its state in Postgres."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from cli.commands import Joinery
from e2e.jobs import Job, fresh_name, joined, order, payment, produce, table_rows
from joinery_devkit.kafka_admin import KafkaAdmin

pytestmark = pytest.mark.services


def _job(broker: KafkaAdmin, dsn: str, schema: str) -> Job:
    name = fresh_name()
    for topic in ("orders", "payments"):
        broker.create_topic(f"{name}.{topic}")
    store = f'{{postgres: {{dsn: "{dsn}", schema: "{schema}"}}}}'
    return Job(name, broker.bootstrap, store, f"{{postgres: {{table: joined_{schema}}}}}")


def _endless(job: Job, folder: Path, **changes: str) -> Path:
    path = job.write(folder, stop_at="NEVER", **changes)
    path.write_text(path.read_text().replace(", stopAt: NEVER", "").replace("stopAt: NEVER", ""))
    return path


def _run(path: Path) -> None:
    run = [sys.executable, "-m", "joinery_runtime", "run", "--local", str(path), "--once", "--status-port", "0"]
    subprocess.run(run, check=True, capture_output=True)


def test_a_job_that_has_read_topics_is_explained_and_verified(
    joinery: Joinery, kafka_broker: KafkaAdmin, postgres_dsn: str, schema: str, tmp_path: Path
) -> None:
    job, table = _job(kafka_broker, postgres_dsn, schema), f"joined_{schema}"
    name, path = job.name, _endless(job, tmp_path)
    for numbers in ((1, 2), (3, 4), (5, 6)):  # each of them but the first one is read after a restart
        produce(job.bootstrap, f"{name}.orders", [order(number) for number in numbers])
        produce(job.bootstrap, f"{name}.payments", [payment(number) for number in numbers if number != 4])
        _run(path)
    produced = joined(1, 2, 3, 5, 6)
    assert table_rows(postgres_dsn, table) == produced

    (answer,) = joinery("why", path, "--record", f"{name}.orders:0=2").lines
    (record,) = answer["records"]
    assert (record["columns"]["id"], record["epoch"]) == ("o3", 2)
    assert record["made"] == [{"epoch": 2, "row": {"id": "o3", "amount": 3, "paid": 30}}]
    (alone,) = joinery("why", path, "--key", "id=o4").lines[0]["records"]
    assert (alone["offset"], alone["made"], alone["state"]["kept"], alone["nearest"]) == (3, [], True, None)

    verified = joinery("verify", path, "--epochs", "2..3")
    assert (verified.code, verified.lines[0]["differences"]) == (0, [])
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(f"UPDATE \"{table}\" SET paid = 31 WHERE id = 'o3'").rowcount == 1
    spoilt = joinery("verify", path, "--epochs", "2..3")
    assert spoilt.code == 1
    (difference,) = spoilt.lines[0]["differences"]
    assert (difference["epoch"], difference["what"]) == (2, "different")
    assert (difference["expected"]["paid"], difference["found"]["paid"]) == (30, 31)


def test_a_log_without_its_beginning_and_a_job_that_started_from_another(
    joinery: Joinery, kafka_broker: KafkaAdmin, postgres_dsn: str, schema: str, tmp_path: Path
) -> None:
    """Orders that were read before the savepoint meet payments that were read behind it."""
    job, table = _job(kafka_broker, postgres_dsn, schema), f"joined_{schema}"
    name, path = job.name, _endless(job, tmp_path)
    produce(job.bootstrap, f"{name}.orders", [order(number) for number in range(8)])
    produce(job.bootstrap, f"{name}.payments", [payment(number) for number in range(3)])
    _run(path)
    (line,) = joinery("state", "savepoint", path, "noon").lines
    produce(job.bootstrap, f"{name}.payments", [payment(number) for number in range(3, 7)])
    _run(path)
    assert table_rows(postgres_dsn, table) == joined(*range(7))
    with psycopg.connect(postgres_dsn) as connection:
        trimmed = f'DELETE FROM "{schema}".epochs WHERE pipeline_name = %s AND epoch <= %s'
        assert connection.execute(trimmed, (name, line["epoch"])).rowcount >= 1

    verified = joinery("verify", path)
    (verdict,) = verified.lines
    assert (verified.code, verdict["rows"], verdict["differences"]) == (0, 4, [])
    assert f"computed from savepoint noon of job {name}, the state after epoch {line['epoch']}" in verdict["notes"]
    (answer,) = joinery("why", path, "--key", "id=o5").lines
    assert answer["savepoint"] == "noon"
    (record,) = answer["records"]  # the payment: the order is in the state
    assert [entry["row"] for entry in record["made"]] == [{"id": "o5", "amount": 5, "paid": 50}]
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(f"UPDATE \"{table}\" SET paid = 51 WHERE id = 'o5'").rowcount == 1
    spoilt = joinery("verify", path)
    assert spoilt.code == 1
    (difference,) = spoilt.lines[0]["differences"]
    assert difference["expected"] == {"id": "o5", "amount": 5, "paid": 50}

    store = job.store[:-1] + f", startFrom: {{job: {name}, savepoint: noon}}}}"
    copy = _endless(job, tmp_path, store=store, output=f'{{file: {{path: "{tmp_path / "copied"}"}}}}')
    copy.write_text(copy.read_text().replace(f'metadata: {{name: "{name}"}}', f'metadata: {{name: "{name}-b"}}'))
    _run(copy)
    verified = joinery("verify", copy)
    (verdict,) = verified.lines
    assert (verified.code, verdict["rows"], verdict["epochs"][0]) == (0, 4, line["epoch"] + 1)
    assert joinery("why", copy, "--key", "id=o5").lines[0]["records"][0]["made"] == record["made"]

    joinery("state", "savepoint", path, "noon", "--delete")
    refused = joinery("verify", path)
    newest = verdict["epochs"][1]
    assert refused.code == 1
    assert f"Create a savepoint now (`joinery state savepoint JOB NAME`): epochs from {newest + 1} on" in refused.err
    joinery("state", "savepoint", path, "evening")
    produce(job.bootstrap, f"{name}.payments", [payment(7)])
    _run(path)
    verified = joinery("verify", path)
    assert (verified.code, verified.lines[0]["rows"], verified.lines[0]["epochs"][0]) == (0, 1, newest + 1)
