"""The kill test of sessions: real Kafka, Postgres and Spark with two executors, while clicks arrive throughout.

Drivers die by SIGKILL at every named point of the epoch, executors and Python workers at random; shards change between
restarts. The last driver reads to the end of the topic. Then the table must hold exactly the sessions that brute force
finds in the topic, though many of them went out, were retracted and went out again.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.drill import POINTS, STURDY, Drill
from e2e.driver_process import Run
from e2e.kill_harness import log_of
from e2e.session_harness import PARTITIONS, ClickFeeder, SessionJob
from joinery_devkit.kafka_admin import KafkaAdmin

TIMES_EACH = int(os.environ.get("JOINERY_KILLS", "1"))  # `make soak` takes more
EPOCHS_BEFORE_A_KILL = 3
RANDOM_KILLS = 3 * TIMES_EACH
LEAST_EPOCHS = 30 * TIMES_EACH
LEAST_REPLAYS = 4
LEAST_SESSIONS = 200
LEAST_DELETIONS = 20

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_session_once_whatever_is_killed(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> None:
    job = SessionJob("kill-sessions", kafka_broker.bootstrap, postgres_dsn, tmp_path / "dead", conf=STURDY)
    kafka_broker.create_topic(f"{job.name}.clicks", PARTITIONS)

    def write(path: Path, shards: int) -> Path:
        return replace(job, shards=shards).write(path)

    with log_of(job) as log, Drill(write, tmp_path, log, EPOCHS_BEFORE_A_KILL) as drill:
        with ClickFeeder(job, seed=11, slow=0.2):
            deaths = dict.fromkeys(POINTS, TIMES_EACH)
            last = drill.kill_everything(deaths, RANDOM_KILLS, LEAST_EPOCHS, random.Random(7))
        assert last.stop() == 0, last.last_words
        ending = Run.start(replace(job, stop=", stopAt: latest").write(drill.path), "local[2]")
        drill.runs.append(ending)
        assert ending.wait() == 0, ending.last_words
        entries = log.entries()
    replays = drill.replays + last.replayed
    assert replays >= LEAST_REPLAYS, f"only {replays} restarts found a pending plan"
    verdict = job.judge(drill.path, entries)
    assert verdict.ok, str(verdict)
    assert verdict.sessions >= LEAST_SESSIONS
    assert verdict.dead_letters > 0
    assert verdict.late == 0
    assert job.deletions() >= LEAST_DELETIONS, "hardly a session was retracted"
