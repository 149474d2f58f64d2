"""What a driver shows when another one takes its job over."""

from __future__ import annotations

import pytest

from e2e.kill_harness import Feeder
from e2e.scene import Scene

pytestmark = pytest.mark.services


@pytest.mark.parametrize("where", ["in the driver", pytest.param("on Spark", marks=pytest.mark.slow)])
def test_a_takeover_is_one_plain_line(scene: Scene, where: str) -> None:
    here = {"JOINERY_WAIT_FOR_SPARK": "1" if where == "on Spark" else ""}
    with Feeder(scene.job.bootstrap, scene.job.name, seed=1):
        first = scene.start(environment=here)
        first.wait_for_more_epochs(2)
        second = scene.start(environment=here)
        assert first.wait() == 1, first.last_words
        second.wait_for_more_epochs(1)
        assert second.stop() == 0, second.last_words
    assert [line[:9] for line in first.errors] == ["joinery: "], first.last_words
    assert second.errors == []
