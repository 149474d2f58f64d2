"""spark-submit runs jobs as docs/spark-clusters.md says: on workers that have no Joinery, from the wheel as a zip; and
how such a job ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark
import pytest

from e2e.driver_process import PATIENCE_S, Run, command_of
from e2e.jobs import fresh_name, json_rows, order, payment, produce, unbounded_job
from joinery_devkit.images.build import PROJECT
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.spark_cluster import StandaloneCluster, spark_home
from joinery_runtime.job.crd import ENDING_FILE, Ending

pytestmark = pytest.mark.services

PROGRAM = "from joinery_runtime.cli import main\n\nmain()\n"


@dataclass(frozen=True)
class Submission:
    """What the page has a user make. `python` has what Joinery needs, and no Joinery."""

    folder: Path
    python: Path
    runs: list[Run] = field(default_factory=list)

    def run(self, job: Path, master: str, environment: Mapping[str, str], *modules: Path) -> Run:
        options = ["--master", master, "--executor-memory", "512m", "--conf", "spark.driver.host=127.0.0.1"]
        py_files = ",".join(map(str, (self.folder / "joinery.zip", *modules)))
        files = ["--py-files", py_files, str(self.folder / "submit.py")]
        command = [str(spark_home() / "bin" / "spark-submit"), *options, *files, "run", str(job)]
        python = {"PYSPARK_PYTHON": str(self.python)}
        run = Run.of(command, {**environment, **python}, job.parent)
        self.runs.append(run)
        return run


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    folder = tmp_path_factory.mktemp("submission")
    (folder / "submit.py").write_text(PROGRAM)
    build = [str(Path(sys.executable).with_name("uv")), "build", "--quiet", "--wheel", "--no-build-isolation"]
    build += ["--python", sys.executable, "--out-dir", str(folder), str(PROJECT / "runtime")]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    wheel.rename(folder / "joinery.zip")
    venv.create(folder / "environment", symlinks=True)
    (packages,) = folder.glob("environment/lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n")
    submission = Submission(folder, folder / "environment" / "bin" / "python")
    yield submission
    for run in submission.runs:
        run.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    with StandaloneCluster(workers=2) as cluster:
        yield cluster


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The environment of a user without a cluster."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def unbounded(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> Path:
    """A job whose first epoch has two rows, and which then waits for more."""
    store = f'{{postgres: {{dsn: "{postgres_dsn}", schema: {fresh_name()}}}}}'
    job, path = unbounded_job(kafka_broker, store, tmp_path)
    produce(job.bootstrap, f"{job.name}.orders", [order(1)])
    produce(job.bootstrap, f"{job.name}.payments", [payment(1)])
    return path


def python_of(run: Run) -> psutil.Process:
    """The process that spark-submit has started for the program. Spark's daemon of Python workers is another child."""
    children = psutil.Process(run.process.pid).children()
    (python,) = [child for child in children if "/submit.py" in command_of(child)]
    return python


def test_workers_without_joinery_run_a_job_and_its_functions_from_files(
    submission: Submission, cluster: StandaloneCluster, postgres_dsn: str, tmp_path: Path
) -> None:
    imported = subprocess.run(
        [submission.python, "-c", "import pyarrow, joinery_runtime"], check=False, capture_output=True, text=True
    )
    assert imported.stderr.endswith("No module named 'joinery_runtime'\n"), "or this shows nothing"
    shutil.copytree(PROJECT / "examples" / "data", tmp_path / "data")
    store = f"  stateStore: {{postgres: {{dsn: {json.dumps(postgres_dsn)}, schema: {fresh_name()}}}}}\n"
    job = tmp_path / "job.yaml"
    functions = "  functions: [{name: tag, python: 'only_here:tag', returns: string}]\n"
    example = (PROJECT / "examples" / "orders-shipments-files.yaml").read_text()
    example = example.replace("{column: shipments.carrier}", "{expression: tag(shipments.carrier), as: carrier}")
    job.write_text(f"{example}{functions}{store}")
    module = tmp_path / "modules" / "only_here.py"
    module.parent.mkdir()
    module.write_text("def tag(names): return [f'<{name}>' for name in names.to_pylist()]\n")
    environment = {name: value for name, value in cluster.environment.items() if name != "PYTHONPATH"}

    run = submission.run(job, cluster.master_url, environment, module)

    assert run.wait() == 0, run.last_words
    rows = json_rows(tmp_path / "orders-shipments-joined")
    assert sorted((row["order_id"], row["carrier"]) for row in rows) == [("ORD-001", "<UPS>"), ("ORD-002", "<FedEx>")]


def test_spark_submit_ends_with_the_exit_code_of_the_job(
    submission: Submission, alone: Mapping[str, str], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("kind: StreamJoin\n")

    run = submission.run(job, "local[1]", alone)

    assert run.wait() == 2
    assert "apiVersion" in run.last_words


def test_a_sigterm_to_its_python_ends_the_job_in_order(
    submission: Submission, alone: Mapping[str, str], unbounded: Path
) -> None:
    run = submission.run(unbounded, "local[2]", alone)
    run.wait_for("an epoch", lambda epochs: len(epochs) > 0)

    python_of(run).terminate()

    assert run.wait() == 0, run.last_words
    assert run.lines[-1]["reason"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_job_ends_when_spark_submit_does(
    submission: Submission, alone: Mapping[str, str], unbounded: Path, number: signal.Signals
) -> None:
    ending = unbounded.with_suffix(".ending")
    run = submission.run(unbounded, "local[2]", {**alone, ENDING_FILE: str(ending)})
    run.wait_for("an epoch", lambda epochs: len(epochs) > 0)
    python = python_of(run)

    run.process.send_signal(number)

    assert run.wait() == (128 + number if number == signal.SIGTERM else -number)
    python.wait(PATIENCE_S)
    # Its output goes through spark-submit too. An epoch that needs Spark would also end it, with an error of its own.
    assert Ending.model_validate_json(ending.read_bytes()).kind == "BrokenPipeError"
