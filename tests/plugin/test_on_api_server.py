"""`kubectl joinery` as kubectl finds it, on a real API server."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.kubernetes.kubectl import Kubectl

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
JOBS = [("orders-payments", "sj", "interval join"), ("session-window", "sw", "sessions")]


@pytest.fixture
def kubectl(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    plugin = tmp_path / "kubectl-joinery"
    plugin.write_text(f"#!{sys.executable}\nfrom joinery_operator.plugin.app import main\nmain()\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), str(program("kubectl").parent), os.environ["PATH"]]))
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    return api_server.kubectl


@pytest.mark.parametrize(("name", "short", "plan"), [JOBS[0], pytest.param(*JOBS[1], marks=pytest.mark.slow)])
def test_a_job_is_listed_suspended_restarted_and_explained(
    kubectl: Kubectl, api_namespace: str, name: str, short: str, plan: str
) -> None:
    kubectl.define(ROOT / "crds")
    for each, _, _ in JOBS:
        kubectl.apply(EXAMPLES / f"{each}.yaml", api_namespace)

    def joinery(*words: str) -> str:
        # kubectl hands a plugin no flags of its own: the kubeconfig comes by the environment.
        command = ["kubectl", "joinery", *words, "--namespace", api_namespace]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def found() -> dict[str, Any]:
        return json.loads(kubectl("get", f"{short}/{name}", "-n", api_namespace, "-o", "json"))

    (listed,) = re.findall(rf"^(\S+/{name}) ", joinery("ls"), re.MULTILINE)
    assert plan in joinery("explain", name)
    told = f"{found()['kind']} {api_namespace}/{name}: not seen by the operator yet\n"
    assert joinery("status", name) == joinery("status", listed) == told
    joinery("suspend", name)
    assert found()["spec"]["suspend"] is True
    joinery("resume", name)
    assert found()["spec"]["suspend"] is False
    joinery("restart", f"{short}/{name}")
    assert re.fullmatch(r"\S+Z", found()["metadata"]["annotations"]["joinery.dev/restartedAt"])
