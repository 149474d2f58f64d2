"""`python -m joinery_devkit.kubernetes`, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joinery_devkit.kubernetes.node import Node, node_cluster, only_one
from joinery_runtime.errors import EnvironmentProblem


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache: whatever node this machine has is not seen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "joinery"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "joinery_devkit.kubernetes", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_status_of_no_node_is_1(cache: Path) -> None:
    done = run("status")
    assert (done.returncode, done.stdout, done.stderr) == (1, "no node is up\n", "")


def test_down_without_a_node_does_nothing(cache: Path) -> None:
    done = run("down")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_two_cannot_bring_the_node_up_or_down_at_once(cache: Path) -> None:
    with only_one():
        done = run("down")
        with pytest.raises(EnvironmentProblem, match=f"process {os.getpid()} holds"), node_cluster():
            pass
    assert done.returncode == EnvironmentProblem.exit_code
    assert f"process {os.getpid()} holds {cache / 'node.lock'}" in done.stderr
    assert run("down").returncode == 0


def test_who_is_not_root_is_told_of_the_other_ways(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EnvironmentProblem, match=r"root.*user 1000.*kind.*JOINERY_E2E_KUBECONFIG"):
        Node().up()


def test_state_that_the_sandbox_would_hide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(EnvironmentProblem, match="/var/lib/joinery is below /var/lib"):
        Node(Path("/var/lib/joinery")).up()
