"""A scene of a job of its own for each test, or one kill drill for a module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from e2e.drill import Drill
from e2e.kill_harness import Feeder, Job, create_topics, log_of
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


@pytest.fixture(scope="module")
def feeder(job: Job) -> Iterator[Feeder]:
    with Feeder(job.bootstrap, job.name, seed=11) as feeder:
        yield feeder


@pytest.fixture(scope="module")
def drill(job: Any, feeder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """For a module that has a `job` of its own, and sessions also a `feeder`."""

    def write(path: Path, shards: int) -> Path:
        return replace(job, shards=shards).write(path)

    with log_of(job) as log, Drill(write, tmp_path_factory.mktemp("drill"), log) as drill:
        yield drill


@pytest.fixture
def scene(scene_at: SceneAt, kafka_broker: KafkaAdmin) -> Scene:
    return scene_at(kafka_broker, kafka_broker.bootstrap)
