"""The kill tests of joins whose rows become visible with the commit: in a table, in the transaction of the state; and
right after it, in a table of another database, in Parquet files, of an epoch and of several ("held"), in Delta and
Iceberg tables. As `test_kill` is for a topic, but where all do the same, only `make soak` has drivers of these die."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo

from e2e.drill import MARKS, POINTS, STURDY, TIMES_EACH, Drill, deaths
from e2e.jobs import json_rows
from e2e.kill_harness import Feeder, Job, create_topics, judge, output_to, wait_until_read, written_to
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.job import load_job

RANDOM_KILLS = 1 + 3 * TIMES_EACH
LEAST_EPOCHS = 40 * TIMES_EACH or 15
DEATHS = deaths(POINTS, ("output-written", "before-commit", "after-commit"))

pytestmark = MARKS


@pytest.fixture(scope="module")
def dead_letters(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dead")


@pytest.fixture(scope="module", params=["table", "apart", "parquet", "held", "delta", "iceberg"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def database(target: str, postgres_dsn: str) -> str:
    """Where the table is."""
    if target != "apart":
        return postgres_dsn
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE kill_apart")
    return make_conninfo(postgres_dsn, dbname="kill_apart")


@pytest.fixture(scope="module")
def job(
    target: str, kafka_broker: KafkaAdmin, postgres_dsn: str, database: str, files: Path, dead_letters: Path
) -> Job:
    job = Job(f"kill-{target}", kafka_broker.bootstrap, postgres_dsn, conf=STURDY)
    create_topics(kafka_broker, job)
    output = json.dumps(output_to(target, files, database))
    dead = f'{{file: {{path: "{dead_letters}"{", rollSize: 2Ki" if target == "held" else ""}}}}}'
    return replace(job, output=output, dead=dead)


@pytest.mark.parametrize("point", DEATHS)
def test_a_driver_dies(point: str, drill: Drill, target: str, files: Path) -> None:
    drill.kill_at(point)
    if target == "delta":
        # A file that is added again is no second one, until its rows are in another: only the mark says that they are.
        DeltaTable(f"{files}/out").optimize.compact()


def test_python_workers_die(drill: Drill) -> None:
    drill.kill_tasks(RANDOM_KILLS)


def test_every_pair_comes_once(
    drill: Drill, feeder: Feeder, job: Job, target: str, database: str, files: Path, dead_letters: Path
) -> None:
    drill.last.wait_for("enough epochs", lambda epochs: bool(epochs) and epochs[-1]["epoch"] >= LEAST_EPOCHS)
    feeder.stop()
    wait_until_read(drill.last, drill.log, job)
    assert drill.last.stop() == 0, drill.last.last_words
    assert drill.died == DEATHS
    rows = written_to(target, files, database)
    assert any(files.glob("epoch-*-since-*")) == (target == "held")
    verdict = judge(load_job(drill.path), job.bootstrap, drill.log.entries(), rows, json_rows(dead_letters))
    assert verdict.dropped["late"] > 0
    assert verdict.dead_letters > 0
