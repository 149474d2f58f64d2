"""`kubectl joinery` as kubectl finds it, on a real API server."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.api_server import ApiServer
from cluster.binaries import program
from cluster.kubectl import Kubectl

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[2]
NAME = "orders-payments"


@pytest.fixture
def kubectl(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    plugin = tmp_path / "kubectl-joinery"
    plugin.write_text(f"#!{sys.executable}\nfrom joinery_operator.plugin.app import main\nmain()\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), str(program("kubectl").parent), os.environ["PATH"]]))
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    return api_server.kubectl


def test_a_job_is_listed_suspended_restarted_and_explained(kubectl: Kubectl, api_namespace: str) -> None:
    kubectl.define(ROOT / "crds")
    kubectl.apply(ROOT / "examples" / "kubernetes" / f"{NAME}.yaml", api_namespace)

    def joinery(*words: str) -> str:
        # kubectl hands a plugin no flags of its own: the kubeconfig comes by the environment.
        command = ["kubectl", "joinery", *words, "--namespace", api_namespace]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert re.search(rf"^{NAME} ", joinery("ls"), re.MULTILINE)
    assert "interval join" in joinery("explain", NAME)
    assert joinery("status", NAME) == f"StreamJoin {api_namespace}/{NAME}: not seen by the operator yet\n"
    joinery("suspend", NAME)
    assert _job(kubectl, api_namespace)["spec"]["suspend"] is True
    joinery("resume", NAME)
    assert _job(kubectl, api_namespace)["spec"]["suspend"] is False
    joinery("restart", f"sj/{NAME}")
    assert re.fullmatch(r"\S+Z", _job(kubectl, api_namespace)["metadata"]["annotations"]["joinery.dev/restartedAt"])


def _job(kubectl: Kubectl, namespace: str) -> dict[str, Any]:
    found = kubectl.get("streamjoin", NAME, namespace)
    assert found is not None
    return found
