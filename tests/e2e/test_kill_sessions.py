"""The kill test of sessions: real Kafka, Postgres and Spark, while clicks arrive throughout.

Drivers die by SIGKILL, Python workers at random (in `make soak` at every named point of the epoch, and executors as
well); shards change between restarts. The last driver reads to the end of the topic. Then the table must hold exactly
the sessions that brute force finds in the topic, though many of them went out, were retracted and went out again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from e2e.drill import MARKS, POINTS, STURDY, TIMES_EACH, Drill, deaths
from e2e.driver_process import Run
from e2e.session_harness import PARTITIONS, ClickFeeder, SessionJob
from joinery_devkit.kafka_admin import KafkaAdmin

RANDOM_KILLS = 3 * TIMES_EACH or 1
LEAST_EPOCHS = 30 * TIMES_EACH or 15
LEAST_SESSIONS = 200
LEAST_DELETIONS = 20
DEATHS = deaths(POINTS, ("staged", "before-commit", "after-commit"))

pytestmark = MARKS


@pytest.fixture(scope="module")
def job(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> SessionJob:
    dead = tmp_path_factory.mktemp("dead")
    job = SessionJob("kill-sessions", kafka_broker.bootstrap, postgres_dsn, dead, conf=STURDY)
    kafka_broker.create_topic(f"{job.name}.clicks", PARTITIONS)
    return job


@pytest.fixture(scope="module")
def feeder(job: SessionJob) -> Iterator[ClickFeeder]:
    with ClickFeeder(job, seed=11, slow=0.2) as feeder:
        yield feeder


@pytest.mark.parametrize("point", DEATHS)
def test_a_driver_dies(point: str, drill: Drill) -> None:
    drill.kill_at(point)


def test_python_workers_die(drill: Drill) -> None:
    drill.kill_tasks(RANDOM_KILLS)
    drill.last.wait_for("enough epochs", lambda epochs: bool(epochs) and epochs[-1]["epoch"] >= LEAST_EPOCHS)


def test_every_session_comes_once(drill: Drill, feeder: ClickFeeder, job: SessionJob) -> None:
    feeder.stop()
    assert drill.last.stop() == 0, drill.last.last_words
    assert drill.died == DEATHS
    ending = Run.start(replace(job, stop=", stopAt: latest").write(drill.path), "local[2]")
    drill.runs.append(ending)
    assert ending.wait() == 0, ending.last_words
    verdict = job.judge(drill.path, drill.log.entries())
    assert verdict.ok, str(verdict)
    assert verdict.sessions >= LEAST_SESSIONS
    assert verdict.dead_letters > 0
    assert verdict.late == 0
    assert job.deletions() >= LEAST_DELETIONS, "hardly a session was retracted"
