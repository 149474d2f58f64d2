"""The demo as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

DEMO = [sys.executable, "-m", "joinery_devkit.demo", "--records", "2000", "--seconds", "4"]
PATIENCE_SECONDS = 300.0


def run(temporary: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), **environment},
        timeout=PATIENCE_SECONDS,
    )


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Not pytest's own: the path of Postgres' socket must stay short."""
    with TemporaryDirectory(prefix="demo-") as path:
        yield Path(path)


def left_behind(temporary: Path) -> list[Path]:
    return list(temporary.glob("joinery-demo-*"))


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "job", "message"),
    [
        ("joins", "StreamJoin", r"^VERIFIED: 1,\d\d\d joined rows, each exactly once, "),
        pytest.param(
            "sessions",
            "SessionWindow",
            r"^VERIFIED: 298 sessions of 2,000 rows, each as brute force finds it, [1-9]",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_it_verifies_its_output_and_cleans_up(kind: str, job: str, message: str, temporary: Path) -> None:
    done = run(temporary, "--kind", kind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(message, done.stdout, re.MULTILINE), done.stdout
    assert f"kind: {job}" in done.stdout
    assert left_behind(temporary) == []


@pytest.mark.services
@pytest.mark.slow
def test_kept_it_can_be_looked_at_until_it_is_interrupted(temporary: Path) -> None:
    command = [*DEMO, "--keep"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)})
    assert running.stdout is not None
    with running.stdout as lines:
        printed = []
        for line in lines:
            printed.append(line.strip())
            if line.strip().startswith("joinery run"):
                break
        first = next(number for number, line in enumerate(printed) if line.startswith("cd "))
        commands = " && ".join(printed[first:-1])
        looked = subprocess.run(["bash", "-c", commands], check=False, capture_output=True, text=True, timeout=60)
        assert looked.returncode == 0, looked.stderr
        assert "(5 rows)" in looked.stdout
        assert "epoch" in looked.stdout
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_SECONDS) == 0
    assert left_behind(temporary) == []


@pytest.mark.services
@pytest.mark.slow
def test_interrupted_it_cleans_up_as_well(temporary: Path) -> None:
    running = subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)})
    assert running.stdout is not None
    with running.stdout as lines:
        for line in lines:
            if line.startswith("Sending"):
                break
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_SECONDS) == 130
    assert left_behind(temporary) == []


def test_without_java_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    done = run(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.startswith("joinery demo: Java is missing")


def test_another_kind_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    done = run(tmp_path, "--kind", "windows")
    assert done.returncode == 2
    assert "argument --kind: invalid choice: 'windows' (choose from" in done.stderr
    assert "Kafka" not in done.stdout
