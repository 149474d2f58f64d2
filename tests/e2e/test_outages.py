"""A broker that is killed and comes back while a job reads from it and writes to it: the job waits in the same process,
and no row is lost or doubled."""

from __future__ import annotations

import pytest

from e2e.conftest import SceneAt
from e2e.kill_harness import Feeder
from joinery_devkit.kafka import KafkaBroker

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
            run.wait_for_more_epochs(3)
            entries = scene.finish(feeder, run)
    events = [line for line in run.lines if line["event"] in ("waiting", "back")]
    assert {line["system"] for line in events} <= {"input", "output"}
    assert events[-1]["event"] == "back"
    assert len({entry["generation"] for entry in entries}) > 1
