from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from budget import LARGE
from engine import sim_kafka
from engine.simulation import World
from joinery_runtime.core.table import blob


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the large budget segments of a simulation are stored as those with many rows are. In the small one only those
    of traces are (test_traces.py): to pack the few rows of a simulated segment takes a fifth of its time."""
    if LARGE:
        monkeypatch.setattr(blob, "FEW_ROWS", 0)


@pytest.fixture
def simulated_topics() -> Iterator[None]:
    """Topics in memory, for drivers of this process."""
    with pytest.MonkeyPatch.context() as patch:
        sim_kafka.install(patch)
        yield


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    new_world = World(tmp_path)
    yield new_world
    new_world.close()
