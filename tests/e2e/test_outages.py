"""A broker that is killed and comes back while a job reads from it and writes to it, and a Postgres: the job waits in
the same process, goes on with the first try that is answered, and no row is lost or doubled."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from e2e.conftest import SceneAt
from e2e.driver_process import Run
from e2e.kill_harness import Feeder, log_of, wait_until_read
from e2e.scene import Scene
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.tcp_proxy import before_postgres
from joinery_runtime.connectors.kafka.target import DELIVERY_SECONDS
from joinery_runtime.engine.loop import RECOVER_LAST_S

pytestmark = [pytest.mark.services, pytest.mark.slow]


def test_a_broker_that_dies_inside_a_transaction(scene_at: SceneAt) -> None:
    """Rows are on their way to it, which they are given two minutes for: the driver says within seconds what they wait
    for, and they arrive in the same transaction."""
    with KafkaBroker() as broker:
        scene = scene_at(broker, broker.bootstrap)
        with Feeder(broker.bootstrap, scene.job.name, seed=5) as feeder:
            run = scene.start("transaction-begun@4=SIGSTOP")
            scene.hurt_at("transaction-begun")
            broker.kill()
            killed = time.monotonic()
            os.kill(scene.hurt_worker("transaction-begun"), signal.SIGCONT)
            try:
                run.wait_for("the outage", lambda _: of_kind(run, "waiting"))
            finally:  # the feeder waits for it
                noticed_after = time.monotonic() - killed
                broker.start()
            answers = len(run.lines)
            run.wait_for_more_epochs(3)
            entries = scene.finish(feeder, run)
    assert noticed_after < DELIVERY_SECONDS / 4
    assert of_kind(run, "waiting")[0]["system"] == "output"
    assert of_kind(run, "back")
    assert {entry["generation"] for entry in entries} == {1}
    goes_on_soon(run, answers)


def test_a_broker_that_dies_between_epochs(scene_at: SceneAt) -> None:
    """Nothing is read or written: the plan of the next epoch gives up, and a new driver recovers."""
    with KafkaBroker() as broker:
        scene = scene_at(broker, broker.bootstrap)
        with Feeder(broker.bootstrap, scene.job.name, seed=5) as feeder:
            run = scene.start()
            run.wait_for_more_epochs(4)
            feeder.stop()
            with log_of(scene.job) as log:
                wait_until_read(run, log, scene.job)
            broker.kill()
            run.wait_for("a plan that gives up", lambda _: "input" in systems(run))
            broker.start()
            answers = len(run.lines)
            with feeder:
                run.wait_for_more_epochs(3)
                entries = scene.finish(feeder, run)
    assert systems(run) <= {"input", "output"}
    assert of_kind(run, "back")
    first, _ = sorted({entry["generation"] for entry in entries})  # one driver recovered and went on
    assert first == 1
    goes_on_soon(run, answers)


def test_a_postgres_that_is_away_and_comes_back(scene: Scene) -> None:
    """Of state and output alike, in the driver and in tasks."""
    with before_postgres(scene.job.dsn) as (proxy, dsn), Feeder(scene.job.bootstrap, scene.job.name, seed=6) as feeder:
        run = scene.start(dsn=dsn)
        run.wait_for_more_epochs(4)
        proxy.cut()
        longest = f"a pause of {RECOVER_LAST_S} s"
        run.wait_for(longest, lambda _: any(line.get("retry_in_seconds") == RECOVER_LAST_S for line in run.lines))
        proxy.restore()
        answers = len(run.lines)
        run.wait_for_more_epochs(3)
        scene.finish(feeder, run)
    goes_on_soon(run, answers)


def of_kind(run: Run, event: str) -> list[dict[str, Any]]:
    return [line for line in run.lines if line["event"] == event]


def systems(run: Run) -> set[str]:
    return {line["system"] for line in of_kind(run, "waiting")}


def goes_on_soon(run: Run, answers: int) -> None:
    """Once the system answers, which it did after so many lines, a try may fail that had begun before, and on a busy
    machine two that a server which has just started answers too late."""
    pauses = [line["retry_in_seconds"] for line in run.lines[answers:] if line["event"] == "waiting"]
    assert len(pauses) <= 3, pauses
