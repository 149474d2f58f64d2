"""A job that is rescaled while it runs: the file that says so, and what is asked of planner and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joinery_runtime.engine.loop import JobListener
from joinery_runtime.hosts.scale import Rescaler, ScaleFile
from joinery_runtime.job.crd import SCALE_FILE, Scale


class Planner:
    shards = 8

    def rescale(self, shards: int) -> None:
        self.shards = shards


class Follower:
    """A job whose file says what a test writes; a second passes between two polls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> None:
        self.path, self.now, self.said = folder / "scale", 0.0, list[str]()
        self.planner: Any = Planner()
        monkeypatch.setenv(SCALE_FILE, str(self.path))
        self.path.write_text(text)
        file = ScaleFile(self.said.append, lambda: self.now)
        nothing: Any = lambda *_: None  # noqa: E731
        listener = JobListener(nothing, nothing, nothing, noticed=self.said.append)
        self.listener = Rescaler(file, self.planner, lambda: None, listener).listening()

    def poll(self, text: str | None = None) -> int:
        if text is not None:
            self.path.write_text(text)
        self.now += 1
        driver: Any = None
        self.listener.polled(driver)
        return int(self.planner.shards)


def test_shards_follow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Follower(tmp_path, monkeypatch, '{"shards": 4, "instances": 2}')
    assert (job.planner.shards, job.said) == (4, [])
    assert job.poll() == 4
    assert job.poll('{"shards": 16, "instances": 2}') == 16
    assert job.said == ["Rescaled: 16 shards instead of 4 from the next plan on"]
    assert job.poll() == 16


@pytest.mark.parametrize("text", ['{"shards": 0}', '{"shards": 5000}', "nonsense", '{"instances": 0}'])
def test_what_cannot_be_used_is_said_once_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    job = Follower(tmp_path, monkeypatch, '{"shards": 4}')
    assert job.poll(text) == job.poll() == 4
    (said,) = job.said
    assert "asks for no usable scale" in said
    assert job.poll('{"shards": 5}') == 5


def test_a_file_that_is_empty_or_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Follower(tmp_path, monkeypatch)
    assert job.poll() == 8
    job.path.unlink()
    assert (job.poll(), job.said) == (8, [])


def test_without_a_file_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SCALE_FILE, raising=False)
    assert ScaleFile(lambda _: None).asked() == Scale()
