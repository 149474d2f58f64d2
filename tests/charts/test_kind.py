"""`make kind` with stand-ins for Docker, kind, kubectl and helm, which note what they are asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from charts.rendering import CHART, ROOT, Chart, Manifest
from joinery_devkit.kafka_node import KAFKA_VERSION
from joinery_devkit.matrix import SERVERS
from joinery_operator.manifests.spark import driver_memory, executor_overhead, mebibytes
from joinery_runtime.job import parse_job
from joinery_runtime.job.model.base import parse_bytes
from joinery_runtime.job.model.resource import PROCESS_BYTES

WHERE = ("--namespace", "joinery", "--kube-version", "1.34.0")
_TOOL = f"""#!{sys.executable} -S
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
tool, *asked = pathlib.Path(sys.argv[0]).name, *sys.argv[1:]
about = {{"attests": "BUILDX_NO_DEFAULT_ATTESTATIONS" not in os.environ}}
if asked[-2:] == ["-f", "-"]:
    about["manifests"] = sys.stdin.read()
with (here / "asked").open("a") as log:
    log.write(json.dumps([tool, *asked, about]) + "\\n")
if "namespace" in asked and "get" in asked:
    sys.exit(1)
if [tool, asked[0]] == ["docker", "info"]:
    print((here / "machine").read_text())
if [tool, asked[0]] == ["docker", "build"]:
    print("sha256:" + (here / asked[asked.index("-f") + 1].rpartition("/")[2]).read_text())
if tool == "kubectl" and "exec" in asked:
    rows = here / "rows"
    rows.write_text(rows.read_text() + "1")
    print(len(rows.read_text()) // 2)
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

    def has_docker(self, cpus: int, mebibytes: int) -> None:
        (self.folder / "machine").write_text(f"{cpus} {mebibytes << 20}")

    def builds(self, **ids: str) -> None:
        for image, image_id in ids.items():
            (self.folder / f"{image}.Dockerfile").write_text(image_id)

    def run(self, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        path = environment or {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        return subprocess.run(
            [ROOT / "deploy/kind/kind.sh"], env=path, capture_output=True, text=True, check=False, timeout=60
        )

    def makes_kind(self) -> Sequence[list[str]]:
        """The commands of the script, in their order."""
        (self.folder / "asked").unlink(missing_ok=True)
        done = self.run()
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]
        assert not any(about["attests"] for *command, about in lines if command[:2] == ["docker", "build"])
        return [command for *command, _ in lines]

    def applied(self) -> list[Manifest]:
        """What the last run of the script has applied, in that order."""
        lines = [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]
        texts = [about["manifests"] for *_, about in lines if "manifests" in about]
        return [document for text in texts for document in yaml.safe_load_all(text) if document]

    def applied_one(self, kind: str, name: str) -> Manifest:
        (manifest,) = (
            manifest for manifest in self.applied() if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
        )
        return manifest

    def image_of(self, deployment: str) -> str:
        (container,) = self.applied_one("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
        return str(container["image"])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for tool in ("docker", "kind", "kubectl", "helm"):
        program = tmp_path / tool
        program.write_text(_TOOL)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    fake_machine = Machine(tmp_path)
    fake_machine.has()
    fake_machine.has_docker(4, 7_900)
    fake_machine.builds(runtime="a1", operator="b1")
    (tmp_path / "rows").write_text("")
    return fake_machine


def after(option: str, command: Sequence[str]) -> list[str]:
    return [value for name, value in pairwise(command) if name == option]


def test_each_part_is_there_before_what_needs_it(machine: Machine) -> None:
    commands = [" ".join(words) for words in machine.makes_kind()]
    steps = [
        "kind create cluster --name joinery", "docker build --quiet -f images/runtime.Dockerfile", "kind load",
        "docker build --quiet -f images/operator.Dockerfile", "kind load",
        "kubectl --context kind-joinery create namespace", "apply --namespace joinery -f -",
        "helm upgrade --install", "rollout status", "apply --namespace joinery -f -",
        "--for=condition=UpToDate", "--for=condition=Ready", "select count(*) from paid_orders",
    ]  # fmt: skip
    left = iter(commands)
    assert all(any(step in command for command in left) for step in steps), commands
    for command in commands:
        if command.startswith("kubectl"):
            assert command.startswith("kubectl --context kind-joinery "), "never the cluster that is current"


def test_a_cluster_that_is_there_is_used_again(machine: Machine) -> None:
    machine.has("joinery")
    kind_commands = [command for command in machine.makes_kind() if command[0] == "kind"]
    assert ["kind", "export", "kubeconfig", "--name", "joinery"] in kind_commands
    assert not [command for command in kind_commands if "create" in command]


def test_a_tool_that_is_missing_is_named(machine: Machine) -> None:
    (machine.folder / "helm").unlink()
    for tool in ("bash", "dirname"):
        (machine.folder / tool).symlink_to(str(shutil.which(tool)))
    done = machine.run({"PATH": str(machine.folder)})
    assert (done.returncode, "helm is missing" in done.stderr) == (3, True)


@pytest.mark.services
def test_what_runs_there_is_what_was_built_and_loaded(machine: Machine, chart: Chart) -> None:
    """The chart takes the settings, and every image of ours that a pod names is on the node by then."""
    commands = machine.makes_kind()
    built = {command[-1] for command in commands if command[:2] == ["docker", "tag"]}
    loaded = {command[-1] for command in commands if command[:2] == ["kind", "load"]}
    (helm,) = (command for command in commands if command[0] == "helm")
    settings = [part for value in after("--set", helm) for part in ("--set", value)]
    rendered = yaml.safe_load_all(chart.run("template", "joinery", str(CHART), *WHERE, *settings))
    objects = [manifest for manifest in (*rendered, *machine.applied()) if manifest]
    deployments = {manifest["metadata"]["name"]: manifest for manifest in objects if manifest["kind"] == "Deployment"}
    containers = [deployment["spec"]["template"]["spec"]["containers"][0] for deployment in deployments.values()]
    (operator,) = (container for container in containers if container["name"] == "operator")
    environment = {variable["name"]: variable["value"] for variable in operator["env"] if "value" in variable}
    ours = {container["image"] for container in containers if container["image"].startswith("localhost/")}
    assert ours | {environment["JOINERY_OPERATOR_RUNTIME_IMAGE"]} == built == loaded
    (job,) = (manifest for manifest in objects if manifest["kind"] == "StreamJoin")
    assert job["spec"]["spark"]["image"] == environment["JOINERY_OPERATOR_RUNTIME_IMAGE"]
    (role,) = (
        manifest for manifest in objects if manifest["kind"] == "Role" and "driver" in manifest["metadata"]["name"]
    )
    assert role["metadata"]["namespace"] == "joinery"


def images_of(machine: Machine, commands: Sequence[list[str]]) -> list[str]:
    """What the job, the feeder, and the operator and its jobs by default run."""
    (helm,) = (command for command in commands if command[0] == "helm")
    settings = dict(part.split("=", 1) for text in after("--set", helm) for part in text.split(","))
    images = (machine.image_of("feeder"), machine.applied_one("StreamJoin", "paid-orders")["spec"]["spark"]["image"])
    return [settings["image.tag"], settings["runtime.image.tag"], *(image.rpartition(":")[2] for image in images)]


def test_a_second_run_rolls_out_what_has_changed_and_nothing_else(machine: Machine) -> None:
    assert images_of(machine, machine.makes_kind()) == ["b1", "a1", "a1", "a1"]
    machine.has("joinery")
    assert images_of(machine, machine.makes_kind()) == ["b1", "a1", "a1", "a1"], "nothing restarts"
    machine.builds(runtime="a2", operator="b1")
    commands = machine.makes_kind()
    assert images_of(machine, commands) == ["b1", "a2", "a2", "a2"], "the job's spec asks for the new image"
    assert not [command for command in commands if "restart" in command]


@pytest.mark.parametrize(("cpus", "mebibytes"), [(2, 8_192), (8, 6_000)])
def test_a_machine_that_is_too_small_is_told_before_anything_is_made(
    machine: Machine, cpus: int, mebibytes: int
) -> None:
    machine.has_docker(cpus, mebibytes)
    done = machine.run()
    assert (done.returncode, f"Docker has {cpus} CPUs and {mebibytes} MiB" in done.stderr) == (3, True)
    commands = [json.loads(line)[:2] for line in (machine.folder / "asked").read_text().splitlines()]
    assert commands == [["docker", "info"]]


def mebibytes_of(quantity: str) -> int:
    return parse_bytes(quantity) >> 20


@pytest.mark.services
def test_what_runs_there_fits_into_the_memory_that_docker_is_to_have(machine: Machine, chart: Chart) -> None:
    """During a rollout too, when the check's pod runs beside the driver. A node's own processes need a gigabyte."""
    commands = machine.makes_kind()
    (helm,) = (command for command in commands if command[0] == "helm")
    settings = [part for value in after("--set", helm) for part in ("--set", value)]
    rendered = yaml.safe_load_all(chart.run("template", "joinery", str(CHART), *WHERE, *settings))
    limits = [
        mebibytes_of(container["resources"]["limits"]["memory"])
        for manifest in (*rendered, *machine.applied())
        if manifest and manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]
    job = parse_job(yaml.safe_dump(machine.applied_one("StreamJoin", "paid-orders")), "job.yaml")
    spark = job.spec.spark
    heap = mebibytes(spark.executor.memory, "")
    size = job.spec.trigger.max_bytes_per_epoch or PROCESS_BYTES
    executor = heap + executor_overhead(heap, spark.executor.cores, size)
    pods = [*limits, 2 * driver_memory(spark), executor * spark.executor.instances]
    assert len(limits) == 4
    assert sum(pods) + 1_024 <= 8_192, pods


def test_what_is_pulled_has_the_versions_of_the_tests(machine: Machine) -> None:
    commands = machine.makes_kind()
    (created,) = (command for command in commands if command[:3] == ["kind", "create", "cluster"])
    (helm,) = (command for command in commands if command[0] == "helm")
    settings = dict(part.split("=", 1) for text in after("--set", helm) for part in text.split(","))
    go_modules = (ROOT / "devkit/src/joinery_devkit/kubernetes/programs/go.mod").read_text()
    kubernetes = re.search(r"k8s\.io/kubernetes v(\d+\.\d+)\.", go_modules)
    assert kubernetes is not None
    pins = {
        after("--image", created)[0].rpartition(":v")[2]: kubernetes[1],
        machine.image_of("kafka").rpartition(":")[2]: KAFKA_VERSION.rpartition(".")[0],
        settings["demoPostgres.image.tag"]: max(SERVERS, key=int),
    }
    for pin, release in pins.items():
        assert re.fullmatch(rf"{re.escape(release)}(\.\d+)+", pin), f"{pin} is no exact version of {release}"
