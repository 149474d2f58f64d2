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
from joinery_operator.names import PAUSE_ANNOTATION, ChildNames

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
    for example, _, _ in JOBS:
        kubectl.apply(EXAMPLES / f"{example}.yaml", api_namespace)

    def joinery(*words: str) -> str:
        # kubectl hands a plugin no flags of its own: the kubeconfig comes by the environment.
        command = ["kubectl", "joinery", *words, "--namespace", api_namespace]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def stored_resource() -> dict[str, Any]:
        return json.loads(kubectl("get", f"{short}/{name}", "-n", api_namespace, "-o", "json"))

    (listed,) = re.findall(rf"^(\S+/{name}) ", joinery("ls"), re.MULTILINE)
    assert plan in joinery("explain", name)
    expected = f"{stored_resource()['kind']} {api_namespace}/{name}: not seen by the operator yet\n"
    assert joinery("status", name) == joinery("status", listed) == expected
    joinery("suspend", name)
    assert stored_resource()["spec"]["suspend"] is True
    joinery("resume", name)
    assert stored_resource()["spec"]["suspend"] is False
    joinery("restart", f"{short}/{name}")
    assert re.fullmatch(r"\S+Z", stored_resource()["metadata"]["annotations"]["joinery.dev/restartedAt"])
    before, revision = stored_resource(), "1a2b3c"
    stored = {"job.yaml": json.dumps({"spec": before["spec"]})}
    config_map = {"kind": "ConfigMap", "metadata": {"name": ChildNames(before).config_map(revision)}, "data": stored}
    kubectl("apply", "-n", api_namespace, "-f", "-", stdin=json.dumps({"apiVersion": "v1", **config_map}))
    kubectl(
        "patch",
        f"{short}/{name}",
        "-n",
        api_namespace,
        "--type=merge",
        "-p",
        '{"spec": {"shards": 7, "trigger": {"interval": "9s"}}}',
    )
    status = {
        "revision": revision,
        "targetRevision": "4d5e6f",
        "observedGeneration": stored_resource()["metadata"]["generation"],
    }
    kubectl(
        "patch",
        f"{short}/{name}",
        "-n",
        api_namespace,
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": status}),
    )
    assert f"{revision}    current" in joinery("rollout", "history", name)
    assert "back to the job of revision 1a2b3c" in joinery("rollout", "undo", f"{short}/{name}")
    assert stored_resource()["spec"] == before["spec"] | {"shards": 7}
    joinery("rollout", "pause", name)
    assert stored_resource()["metadata"]["annotations"][PAUSE_ANNOTATION] == "rollouts"
    joinery("rollout", "resume", name)
    assert PAUSE_ANNOTATION not in stored_resource()["metadata"]["annotations"]
