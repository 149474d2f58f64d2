"""A broker that is killed and comes back while a job reads from it and writes to it, and a Postgres: the job waits in
the same process, goes on with the first try that is answered, and no row is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from e2e.conftest import SceneAt
from e2e.driver_process import Run
from e2e.kill_harness import Feeder
from e2e.scene import Scene
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.tcp_proxy import TcpProxy
from joinery_runtime.engine.loop import RECOVER_LAST_S

pytestmark = [pytest.mark.services, pytest.mark.slow]


def test_a_broker_that_dies_and_comes_back(scene_at: SceneAt) -> None:
    with KafkaBroker() as broker:
        scene = scene_at(broker, broker.bootstrap)
        with Feeder(broker.bootstrap, scene.job.name, seed=5) as feeder:
            run = scene.start()
            run.wait_for_more_epochs(4)
            broker.kill()
            try:
                run.wait_for("the outage", lambda _: any(line["event"] == "waiting" for line in run.lines))
            finally:  # the feeder waits for it
                broker.start()
            answers = len(run.lines)
            run.wait_for_more_epochs(3)
            entries = scene.finish(feeder, run)
    events = [line for line in run.lines if line["event"] in ("waiting", "back")]
    assert {line["system"] for line in events} <= {"input", "output"}
    assert events[-1]["event"] == "back"
    assert len({entry["generation"] for entry in entries}) > 1
    goes_on_soon(run, answers)


def test_a_postgres_that_is_away_and_comes_back(scene: Scene) -> None:
    """Of state and output alike, in the driver and in tasks."""
    place = conninfo_to_dict(scene.job.dsn)
    with (
        TcpProxy(target_socket=Path(str(place["host"])) / f".s.PGSQL.{place.get('port') or 5432}") as proxy,
        Feeder(scene.job.bootstrap, scene.job.name, seed=6) as feeder,
    ):
        run = scene.start(dsn=make_conninfo(scene.job.dsn, host="127.0.0.1", port=proxy.port))
        run.wait_for_more_epochs(4)
        proxy.cut()
        longest = f"a pause of {RECOVER_LAST_S} s"
        run.wait_for(longest, lambda _: any(line.get("retry_in_seconds") == RECOVER_LAST_S for line in run.lines))
        proxy.restore()
        answers = len(run.lines)
        run.wait_for_more_epochs(3)
        scene.finish(feeder, run)
    goes_on_soon(run, answers)


def goes_on_soon(run: Run, answers: int) -> None:
    """Once the system answers, which it did after so many lines, one more try may fail that had begun before."""
    pauses = [line["retry_in_seconds"] for line in run.lines[answers:] if line["event"] == "waiting"]
    assert len(pauses) <= 1, pauses
