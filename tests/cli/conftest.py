from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import Joinery, runner
from job.resources import edited


@pytest.fixture
def joinery(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Joinery]:
    monkeypatch.setenv("COLUMNS", "200")  # help and usage errors are fitted to the terminal
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield runner(capsys)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A valid job with every field on a line of its own."""
    path = tmp_path / "job.yaml"
    path.write_text(edited())
    return path
