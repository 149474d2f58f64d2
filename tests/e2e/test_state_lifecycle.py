"""A rollout that is undone, and a move to another database, of a job with output in Kafka: each row comes once."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from e2e.jobs import Job, fresh_name, joined, json_rows, order, payment, produce, until
from e2e.kill_harness import topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord

pytestmark = [pytest.mark.services, pytest.mark.slow]

_JOINERY = [sys.executable, "-c", "from joinery_runtime.cli import main; main()"]
ROLLOUT = ("--savepoint", "rollout-b-1")


def joinery(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*_JOINERY, *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=180
    )


def run(path: Path, **environment: str) -> int:
    ended = joinery("run", path, "--master", "local[2,4]", **environment)
    assert ended.returncode in {0, -9}, ended.stderr
    return ended.returncode


def state(command: str, path: Path, *arguments: str, **environment: str) -> None:
    ended = joinery("state", command, path, *arguments, **environment)
    assert ended.returncode == 0, ended.stderr


def stored(dsn: str, job: Job) -> JobRecord:
    store = PostgresStore(dsn, "lifecycle")
    record = store.record(job.name)
    store.close()
    assert record is not None
    return record


def feed(job: Job, first: int, stop: int) -> None:
    produce(job.bootstrap, f"{job.name}.orders", [order(number) for number in range(first, stop)])
    produce(job.bootstrap, f"{job.name}.payments", [payment(number) for number in range(first, stop)])


def rows(job: Job) -> list[tuple[object, ...]]:
    joined_rows = topic_rows(job.bootstrap, f"{job.name}.joined")
    return sorted(((row["id"], row["amount"], row["paid"]) for row in joined_rows), key=lambda row: int(str(row[1])))


def test_each_row_comes_once(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> None:
    name = fresh_name()
    output = f'{{kafka: {{bootstrapServers: "{kafka_broker.bootstrap}", topic: "{name}.joined"}}}}'
    job = Job(name, kafka_broker.bootstrap, f'{{postgres: {{dsn: "{postgres_dsn}", schema: lifecycle}}}}', output)
    for topic in ("orders", "payments", "joined"):
        kafka_broker.create_topic(f"{name}.{topic}")
    feed(job, 0, 10)
    assert run(job.write(tmp_path, stop_at=until(10))) == 0
    before = stored(postgres_dsn, job)

    # The new release writes a plan and rows of it, and is killed before its first commit.
    feed(job, 10, 20)
    path = job.write(tmp_path, stop_at=until(20))
    state("migrate", path, *ROLLOUT)
    assert run(path, JOINERY_FAULT=f"before-commit@{before.epoch + 1}") == -9
    assert rows(job) == joined(*range(20))
    state("restore", path, *ROLLOUT, "--before-first-commit")
    back = stored(postgres_dsn, job)
    assert (back.epoch, back.plan is None) == (before.epoch, False)
    assert back.segments == before.segments

    # It is run at another place, where nothing is known of the rows but what came along.
    database = f"moved-{name}"
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(database)))
    new_dsn = make_conninfo(**{**conninfo_to_dict(postgres_dsn), "dbname": database})
    state("move", path, JOINERY_MOVE_DSN=new_dsn)
    feed(job, 20, 30)
    moved = replace(job, store=f'{{postgres: {{dsn: "{new_dsn}", schema: lifecycle}}}}')
    assert run(moved.write(tmp_path, stop_at=until(30))) == 0
    assert rows(job) == joined(*range(30))
    assert stored(new_dsn, job).incarnation == before.incarnation
    assert joinery("run", path, "--master", "local[2,4]").returncode == 1  # the old place knows that it was moved


def test_another_job_begins_with_a_savepoint(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> None:
    """Orders that the first job has read meet payments that only the second one reads."""
    name = fresh_name()
    store = f'{{postgres: {{dsn: "{postgres_dsn}", schema: lifecycle}}}}'
    job = Job(name, kafka_broker.bootstrap, store, f'{{file: {{path: "{tmp_path / "first"}"}}}}')
    for topic in ("orders", "payments"):
        kafka_broker.create_topic(f"{name}.{topic}")
    produce(job.bootstrap, f"{name}.orders", [order(number) for number in range(10)])
    produce(job.bootstrap, f"{name}.payments", [payment(number) for number in range(5)])
    first = job.write(tmp_path, stop_at=until(10))
    assert run(first, JOINERY_FAULT="after-commit@1") == -9
    state("savepoint", first, "noon")

    produce(job.bootstrap, f"{name}.payments", [payment(number) for number in range(5, 10)])
    begins = store[:-1] + f", startFrom: {{job: {name}, savepoint: noon}}}}"
    second = job.write(tmp_path, stop_at=until(10), store=begins, output=f'{{file: {{path: "{tmp_path / "second"}"}}}}')
    second.write_text(second.read_text().replace(f'metadata: {{name: "{name}"}}', f'metadata: {{name: "{name}-b"}}'))
    assert run(second) == 0
    joined_rows = sorted((row["id"], row["amount"], row["paid"]) for row in json_rows(tmp_path / "second"))
    assert joined_rows == joined(*range(5, 10))
    assert run(second) == 0  # it goes on with its own state
    assert len(json_rows(tmp_path / "second")) == 5
