"""The kill test: real Kafka, Postgres and Spark with two executors, while records arrive throughout.

Drivers die by SIGKILL at every named point of the epoch, executors and Python workers at random; shards change between
restarts. In the end the output must equal what an oracle gets from the epoch log and the topics, row by row: a table
that is written with the state, and a topic that is written before it, in transactions.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from e2e.drill import POINTS, STURDY, Drill
from e2e.driver_process import caught_up
from e2e.jobs import json_rows
from e2e.kill_harness import Feeder, Job, create_topics, judge, log_of, repeated, topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import milliseconds
from joinery_runtime.job import load_job

IN_TRANSACTIONS = ("transaction-begun", "transaction-sent", "transaction-committed")
TIMES_EACH = int(os.environ.get("JOINERY_KILLS", "1"))  # `make soak` takes more
EPOCHS_BEFORE_A_KILL = 3
RANDOM_KILLS = 1 + 3 * TIMES_EACH
LEAST_EPOCHS = 40 * TIMES_EACH
LEAST_REPLAYS = 5
LEAST_REPEATED = 2

Rows = list[dict[str, Any]]

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Target:
    """Where rows and dead letters of the job go, and at which points its drivers die."""

    job: Job
    points: tuple[str, ...]
    output: Callable[[], Rows]
    dead_letters: Callable[[], Rows]


@pytest.fixture(params=["postgres", "kafka"])
def target(request: pytest.FixtureRequest, kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> Target:
    job = Job(f"kill-{request.param}", kafka_broker.bootstrap, postgres_dsn, conf=STURDY)
    create_topics(kafka_broker, job)
    if request.param == "kafka":
        out, dead = (lambda name=name: topic_rows(job.bootstrap, f"{job.name}.{name}") for name in ("out", "dead"))
        return Target(job, POINTS + IN_TRANSACTIONS, out, dead)
    dead_folder = tmp_path / "dead"
    job = replace(job, output="{postgres: {table: killed}}", dead=f'{{file: {{path: "{dead_folder}"}}}}')
    return Target(job, POINTS, lambda: _table(postgres_dsn), lambda: json_rows(dead_folder))


def _table(dsn: str) -> Rows:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        rows = connection.execute("SELECT * FROM killed").fetchall()
    return [{k: milliseconds(v) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]


def test_every_pair_once_whatever_is_killed(target: Target, tmp_path: Path) -> None:
    def write(path: Path, shards: int) -> Path:
        return replace(target.job, shards=shards).write(path)

    with log_of(target.job) as log, Drill(write, tmp_path, log, EPOCHS_BEFORE_A_KILL) as drill:
        with Feeder(target.job.bootstrap, target.job.name, seed=11) as feeder:
            deaths = dict.fromkeys(target.points, TIMES_EACH)
            last = drill.kill_everything(deaths, RANDOM_KILLS, LEAST_EPOCHS, random.Random(7))
            feeder.stop()
            last.wait_for("the last record", caught_up)
            assert last.stop() == 0, last.last_words
        entries = log.entries()
    replays = drill.replays + last.replayed
    assert replays >= LEAST_REPLAYS, f"only {replays} restarts found a pending plan"
    assert len(entries) >= LEAST_EPOCHS
    job = load_job(drill.path)
    verdict = judge(job, target.job.bootstrap, entries, target.output(), target.dead_letters())
    assert verdict.dropped["late"] > 0
    assert verdict.dead_letters > 0
    if job.spec.output.kafka is not None:
        assert len(repeated(entries)) >= LEAST_REPEATED, "no replay met what its epoch had written"
