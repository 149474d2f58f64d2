"""`make kind` with stand-ins for Docker, kind, kubectl and helm, which note what they are asked."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from charts.rendering import ROOT, Chart

WHERE = ("--kube-version", "1.34.0")
_TOOL = f"""#!{sys.executable} -S
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
tool, *asked = pathlib.Path(sys.argv[0]).name, *sys.argv[1:]
with (here / "asked").open("a") as log:
    log.write(json.dumps([tool, *asked, {{"attests": "BUILDX_NO_DEFAULT_ATTESTATIONS" not in os.environ}}]) + "\\n")
if "namespace" in asked and "get" in asked:
    sys.exit(1)
if [tool, *asked] == ["kind", "get", "clusters"]:
    sys.stdout.write((here / "clusters").read_text())
    sys.stdout.flush()
    sys.stdout.write("another\\n" * 20_000)  # more than a pipe holds: who stops reading is noticed
"""


@dataclass(frozen=True, slots=True)
class Machine:
    folder: Path

    def has(self, *clusters: str) -> None:
        (self.folder / "clusters").write_text("".join(f"{name}\n" for name in clusters))

    def makes_kind(self) -> Sequence[list[str]]:
        """The commands of the script, in their order."""
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        done = subprocess.run(
            [ROOT / "deploy/kind/kind.sh"], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]
        assert not any(about["attests"] for *command, about in lines if command[:2] == ["docker", "build"])
        return [command for *command, _ in lines]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for tool in ("docker", "kind", "kubectl", "helm"):
        program = tmp_path / tool
        program.write_text(_TOOL)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    made = Machine(tmp_path)
    made.has()
    return made


def after(option: str, command: Sequence[str]) -> list[str]:
    return [value for name, value in pairwise(command) if name == option]


def test_each_part_is_there_before_what_needs_it(machine: Machine) -> None:
    commands = [" ".join(each) for each in machine.makes_kind()]
    steps = [
        "kind create cluster --name joinery", "docker build --quiet -f images/runtime.Dockerfile", "kind load",
        "docker build --quiet -f images/operator.Dockerfile", "kind load",
        "kubectl --context kind-joinery create namespace", "apply --namespace joinery -f deploy/kind/parts.yaml",
        "helm upgrade --install", "rollout restart", "rollout status", "-f deploy/kind/job.yaml", "wait",
    ]  # fmt: skip
    left = iter(commands)
    assert all(any(step in command for command in left) for step in steps), commands
    for command in commands:
        if command.startswith("kubectl"):
            assert command.startswith("kubectl --context kind-joinery "), "never the cluster that is current"


def test_a_cluster_that_is_there_is_used_again(machine: Machine) -> None:
    machine.has("joinery")
    asked = [each for each in machine.makes_kind() if each[0] == "kind"]
    assert ["kind", "export", "kubeconfig", "--name", "joinery"] in asked
    assert not [each for each in asked if "create" in each]


def test_a_tool_that_is_missing_is_named(machine: Machine) -> None:
    (machine.folder / "helm").unlink()
    for tool in ("bash", "dirname"):
        (machine.folder / tool).symlink_to(str(shutil.which(tool)))
    environment = {"PATH": str(machine.folder)}
    done = subprocess.run(
        [ROOT / "deploy/kind/kind.sh"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "helm is missing" in done.stderr) == (3, True)


@pytest.mark.services
def test_what_runs_there_is_what_was_built_and_loaded(machine: Machine, chart: Chart) -> None:
    """The chart takes the settings, and every image of ours that a pod names is on the node by then."""
    commands = machine.makes_kind()
    built = {name for each in commands if each[:2] == ["docker", "build"] for name in after("-t", each)}
    loaded = {each[-1] for each in commands if each[:2] == ["kind", "load"]}
    (helm,) = (each for each in commands if each[0] == "helm")
    settings = [part for value in after("--set", helm) for part in ("--set", value)]
    objects = [
        each
        for text in (
            chart.run("template", "joinery", str(ROOT / "charts/joinery"), "--namespace", "joinery", *WHERE, *settings),
            (ROOT / "deploy/kind/parts.yaml").read_text(),
        )
        for each in yaml.safe_load_all(text)
        if each
    ]
    deployments = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Deployment"}
    containers = [each["spec"]["template"]["spec"]["containers"][0] for each in deployments.values()]
    (operator,) = (each for each in containers if each["name"] == "operator")
    environment = {each["name"]: each["value"] for each in operator["env"]}
    ours = {each["image"] for each in containers if each["image"].startswith("localhost/")}
    assert ours | {environment["JOINERY_OPERATOR_RUNTIME_IMAGE"]} == built == loaded
    restarted = next(each for each in commands if "restart" in each)
    assert {name.removeprefix("deployment/") for name in restarted if name.startswith("deployment/")} <= {*deployments}
    (role,) = (each for each in objects if each["kind"] == "Role" and "driver" in each["metadata"]["name"])
    assert role["metadata"]["namespace"] == "joinery"
