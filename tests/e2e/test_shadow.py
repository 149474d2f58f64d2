"""`upgrade.mode: shadow` beside a real driver: records of Kafka, state in Postgres, epochs as they are committed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from e2e.kill_harness import Feeder
from e2e.scene import Scene
from joinery_runtime.inspect.admin.check import check_job
from joinery_runtime.job import load_job

SHADOW = "upgrade: {mode: shadow, shadow: {epochs: 3}}"


@pytest.mark.services
def test_an_edited_job_is_compared_with_the_one_that_runs(scene: Scene) -> None:
    with Feeder(scene.job.bootstrap, scene.job.name, seed=11) as feeder:
        run = scene.start()
        run.wait_for_more_epochs(3)
        same = check_job(load_job(replace(scene.job, extra=SHADOW, shards=2).write(scene.folder / "same.yaml")))
        edited = replace(scene.job, extra=SHADOW, where='where: "payments.paid % 2 = 0"')
        other = check_job(load_job(edited.write(scene.folder / "other.yaml")))
        run.wait_for_more_epochs(1)
        scene.finish(feeder, run)
    assert (same.fits, same.rows_differ) == (True, False), same.refused
    assert "rows) are the same under the edited job" in same.warnings[-1]
    assert (other.fits, other.rows_differ) == (False, True)
    (text,) = other.refused
    assert "missing" in text
    assert re.search(r"output, (orders|payments) \d/\d+ with (orders|payments) \d/\d+: missing", text)
