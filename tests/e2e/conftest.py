"""A scene of a job of its own for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from e2e.kill_harness import Job, create_topics
from e2e.scene import Scene
from joinery_devkit.kafka_admin import KafkaAdmin

_numbers = count(1)
SceneAt = Callable[[KafkaAdmin, str], Scene]


@pytest.fixture
def scene_at(postgres_dsn: str, tmp_path: Path) -> Iterator[SceneAt]:
    """Makes the scene on a broker, with the bootstrap servers that drivers are told."""
    with ExitStack() as stack:

        def make(broker: KafkaAdmin, bootstrap: str) -> Scene:
            scene = Scene(
                Job(f"scene-{os.getpid()}-{next(_numbers)}", bootstrap, postgres_dsn, schema="scenes"), tmp_path
            )
            create_topics(broker, scene.job)
            stack.callback(lambda: [run.kill() for run in scene.runs])
            return scene

        yield make


@pytest.fixture
def scene(scene_at: SceneAt, kafka_broker: KafkaAdmin) -> Scene:
    return scene_at(kafka_broker, kafka_broker.bootstrap)
