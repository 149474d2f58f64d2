"""A test that takes too long fails, and what its set-up takes is listed apart."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from joinery_devkit.release import ROOT

TESTS = """
import pytest

@pytest.fixture
def brought_up():
    yield

def test_of_something(brought_up): ...

@pytest.mark.soak
def test_of_large_budgets(): ...

def test_that_is_wrong():
    assert False, "its own reason"
"""


def run(folder: Path, seconds: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    soak: large\n")
    command = [sys.executable, "-m", "pytest", "-p", "joinery_devkit.time_limit", "-p", "no:cacheprovider", str(folder)]
    environment = {"JOINERY_TEST_SECONDS": seconds, "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_what_takes_longer_than_the_limit_fails_though_it_passed(tmp_path: Path) -> None:
    done = run(tmp_path, "0")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "It passed, but took 0 s: more than the 0 s of a test (the machine's load was " in done.stdout
    assert "set JOINERY_TEST_SECONDS" in done.stdout
    assert "AssertionError: its own reason" in done.stdout
    assert "2 failed, 1 passed" in done.stdout, "with large budgets a test may take its time"


def test_set_ups_are_listed_apart_and_what_is_within_the_limit_passes(tmp_path: Path) -> None:
    done = run(tmp_path, "60")
    assert "1 failed, 2 passed" in done.stdout
    tests, shared = done.stdout.partition("slowest tests")[2].split("slowest set-ups and clean-ups")
    assert [len(re.findall(rf" s {when} ", tests)) for when in ("call    ", "setup   ", "teardown")] == [3, 0, 0]
    assert [len(re.findall(rf" s {when} ", shared)) for when in ("call    ", "setup   ", "teardown")] == [0, 3, 3]


def test_what_gates_a_change_allows_more_only_where_a_test_is_many_processes() -> None:
    """A minute is the limit of the fast tests."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert not [line for line in lines if line.startswith("export JOINERY_TEST_SECONDS")]
    limited = {line.split('"')[1] for line in lines if line.startswith("part ") and "JOINERY_TEST_SECONDS=" in line}
    assert limited == {"tests on services", "kill drill", "tests on a node"}
