"""The kill test: real Kafka, Postgres and Spark with two executors, while records arrive throughout.

Drivers die by SIGKILL at every named point of the epoch, executors and Python workers at random; shards change between
restarts. In the end the output must equal what an oracle gets from the epoch log and the topics, row by row: a table
that is written with the state, and a topic that is written before it, in transactions.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from e2e.driver_process import Run, caught_up
from e2e.jobs import json_rows
from e2e.kill_harness import Feeder, Job, Log, create_topics, judge, kill_task_processes, log_of, repeated, topic_rows
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.topics import milliseconds
from joinery_runtime.job import load_job

POINTS = ("planned", "reading", "staged", "output-written", "before-commit", "after-commit")
IN_TRANSACTIONS = ("transaction-begun", "transaction-sent", "transaction-committed")
MASTER = "local-cluster[2,1,1024]"
STURDY = '{spark.task.maxFailures: "8", spark.deploy.maxExecutorRetries: "-1"}'
TIMES_EACH = int(os.environ.get("JOINERY_KILLS", "1"))  # `make soak` takes more
EPOCHS_BEFORE_A_KILL = 5
RANDOM_KILLS = 8
LEAST_EPOCHS = 120
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
def target(request: pytest.FixtureRequest, kafka_broker: KafkaBroker, postgres_dsn: str, tmp_path: Path) -> Target:
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


class Drill:
    """Drivers one after another on one job, and what was seen of them."""

    def __init__(self, target: Target, folder: Path, log: Log) -> None:
        self._target, self._log = target, log
        self._path = folder / "job.yaml"
        self.replays = 0
        self.deaths: Counter[str] = Counter()

    def start(self, shards: int, fault: str | None = None) -> Run:
        path = replace(self._target.job, shards=shards).write(self._path)
        return Run.start(path, MASTER, {"JOINERY_FAULT": fault} if fault else None)

    def kill_at(self, point: str, shards: int) -> None:
        before = self._log.committed()
        run = self.start(shards, f"{point}@{before + EPOCHS_BEFORE_A_KILL}")
        assert run.wait() == -signal.SIGKILL, run.last_words
        self.replays += run.replayed
        self.deaths[point] += 1
        assert self._log.committed() >= before + EPOCHS_BEFORE_A_KILL - 1, "the driver died where it was told to"


def test_every_pair_once_whatever_is_killed(target: Target, tmp_path: Path) -> None:
    with log_of(target.job) as log:
        drill = Drill(target, tmp_path, log)
        with Feeder(target.job.bootstrap, target.job.name, seed=11) as feeder:
            kill_everything(drill, target.points, feeder, random.Random(7))
        entries = log.entries()
    assert len(entries) >= LEAST_EPOCHS
    job = load_job(tmp_path / "job.yaml")
    verdict = judge(job, target.job.bootstrap, entries, target.output(), target.dead_letters())
    assert verdict.dropped["late"] > 0
    assert verdict.dead_letters > 0
    if job.spec.output.kafka is not None:
        assert len(repeated(entries)) >= LEAST_REPEATED, "no replay met what its epoch had written"


def kill_everything(drill: Drill, points: tuple[str, ...], feeder: Feeder, choose: random.Random) -> None:
    deaths = [point for point in points for _ in range(TIMES_EACH)]
    choose.shuffle(deaths)
    for number, point in enumerate(deaths):
        drill.kill_at(point, shards=(4, 1, 3, 7)[number % 4])
    last = drill.start(shards=5)
    killed = kill_task_processes(last, RANDOM_KILLS, choose)
    last.wait_for("enough epochs", lambda epochs: bool(epochs) and epochs[-1]["epoch"] >= LEAST_EPOCHS)
    feeder.stop()
    last.wait_for("the last record", caught_up)
    assert last.stop() == 0, last.last_words
    drill.replays += last.replayed
    assert drill.deaths == dict.fromkeys(points, TIMES_EACH)
    assert len(killed) == RANDOM_KILLS
    assert drill.replays >= LEAST_REPLAYS, f"only {drill.replays} restarts found a pending plan"
