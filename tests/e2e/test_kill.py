"""The kill test of a join that writes a topic, in transactions, before its state: real Kafka, Postgres and Spark, while
records arrive throughout.

Drivers die by SIGKILL at every named point of the epoch, executors and Python workers at random; shards change between
restarts. In the end the output must equal what an oracle gets from the epoch log and the topics, row by row.
"""

from __future__ import annotations

import pytest

from e2e.drill import CLUSTER, LOCAL, MARKS, POINTS, STURDY, TIMES_EACH, Drill, deaths
from e2e.kill_harness import Feeder, Job, create_topics, judge_topics, repeated, wait_until_read
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.engine.messages import TRANSACTION_POINTS

RANDOM_KILLS = 1 + 3 * max(1, TIMES_EACH)
LEAST_EPOCHS = 40 * max(1, TIMES_EACH)
LEAST_REPEATED = 2
DEATHS = deaths(POINTS + TRANSACTION_POINTS)
OUTLIVED = "transaction-sent"  # here the driver's executors live on, for a moment, with a transaction in their hands

pytestmark = MARKS


@pytest.fixture(scope="module")
def job(kafka_broker: KafkaAdmin, postgres_dsn: str) -> Job:
    job = Job("kill-topic", kafka_broker.bootstrap, postgres_dsn, conf=STURDY)
    create_topics(kafka_broker, job)
    return job


@pytest.mark.parametrize("point", DEATHS)
def test_a_driver_dies(point: str, drill: Drill) -> None:
    drill.kill_at(point, CLUSTER if point == OUTLIVED else LOCAL)


def test_executors_and_python_workers_die(drill: Drill) -> None:
    drill.kill_tasks(RANDOM_KILLS, CLUSTER)


def test_every_pair_comes_once(drill: Drill, feeder: Feeder, job: Job) -> None:
    drill.last.wait_for("enough epochs", lambda epochs: bool(epochs) and epochs[-1]["epoch"] >= LEAST_EPOCHS)
    feeder.stop()
    wait_until_read(drill.last, drill.log, job)
    assert drill.last.stop() == 0, drill.last.last_words
    assert drill.died == DEATHS
    entries = drill.log.entries()
    verdict = judge_topics(drill.path, job, entries)
    assert verdict.dropped["late"] > 0
    assert verdict.dead_letters > 0
    assert len(repeated(entries)) >= LEAST_REPEATED, "no replay met what its epoch had written"
