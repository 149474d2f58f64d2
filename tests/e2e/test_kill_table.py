"""The kill test of a join that writes a table, in the transaction of its state. As `test_kill` is for a topic, but
where both do the same, only `make soak` has drivers of this one die."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from e2e.drill import MARKS, POINTS, STURDY, TIMES_EACH, Drill, deaths
from e2e.driver_process import caught_up
from e2e.jobs import json_rows
from e2e.kill_harness import Feeder, Job, create_topics, judge, log_of
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import milliseconds
from joinery_runtime.job import load_job

RANDOM_KILLS = 1 + 3 * TIMES_EACH
LEAST_EPOCHS = 40 * TIMES_EACH or 15
DEATHS = deaths(POINTS, ("output-written", "before-commit", "after-commit"))

pytestmark = MARKS


@pytest.fixture(scope="module")
def dead_letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dead")


@pytest.fixture(scope="module")
def job(kafka_broker: KafkaAdmin, postgres_dsn: str, dead_letters: Path) -> Job:
    job = Job("kill-table", kafka_broker.bootstrap, postgres_dsn, conf=STURDY)
    create_topics(kafka_broker, job)
    return replace(job, output="{postgres: {table: killed}}", dead=f'{{file: {{path: "{dead_letters}"}}}}')


@pytest.fixture(scope="module")
def feeder(job: Job) -> Iterator[Feeder]:
    with Feeder(job.bootstrap, job.name, seed=11) as feeder:
        yield feeder


@pytest.fixture(scope="module")
def drill(job: Job, feeder: Feeder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    def write(path: Path, shards: int) -> Path:
        return replace(job, shards=shards).write(path)

    with log_of(job) as log, Drill(write, tmp_path_factory.mktemp("drill"), log) as drill:
        yield drill


def written(dsn: str) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        rows = connection.execute("SELECT * FROM killed").fetchall()
    return [{k: milliseconds(v) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]


@pytest.mark.parametrize("point", DEATHS)
def test_a_driver_dies(point: str, drill: Drill) -> None:
    drill.kill_at(point)


def test_python_workers_die(drill: Drill) -> None:
    drill.kill_tasks(RANDOM_KILLS)


def test_every_pair_comes_once(drill: Drill, feeder: Feeder, job: Job, dead_letters: Path) -> None:
    drill.last.wait_for("enough epochs", lambda epochs: bool(epochs) and epochs[-1]["epoch"] >= LEAST_EPOCHS)
    feeder.stop()
    drill.last.wait_for("the last record", caught_up)
    assert drill.last.stop() == 0, drill.last.last_words
    assert drill.died == DEATHS
    verdict = judge(load_job(drill.path), job.bootstrap, drill.log.entries(), written(job.dsn), json_rows(dead_letters))
    assert verdict.dropped["late"] > 0
    assert verdict.dead_letters > 0
