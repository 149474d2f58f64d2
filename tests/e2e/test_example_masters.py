"""Every example over files gives the rows of `--local` on a local Spark, on one with executors, and on a session that
somebody else has started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from joinery_devkit.spark_cluster import spark_home
from joinery_runtime.job import load_job

pytestmark = [pytest.mark.services, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.yaml") if "kafka:" not in path.read_text())
CLUSTER = "local-cluster[2,1,1024]"

Rows = dict[str, list[str]]  # by output

# One process for all of them: Spark's Java process starts once.
BY_COMMAND = """
import sys
from joinery_runtime.cli import main
*options, paths = sys.argv[1:]
for path in paths.split():
    try:
        main(["run", path, *options])
    except SystemExit as end:
        if end.code:
            raise
"""

ON_A_SESSION = """
import os, sys, warnings
from pyspark.sql import SparkSession
from joinery_runtime import run
master, paths = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
warnings.simplefilter("ignore")
session = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
for path in paths.split():
    run(path, spark=session)
session.stop()
"""


def rows_of(program: str, arguments: Sequence[str], folder: Path, examples: Sequence[str]) -> Rows:
    """The rows of each output, in an order of their own: shards write side by side. Rows on the console count as
    those of `console`."""
    shutil.copytree(FOLDER / "data", folder / "data")
    for name in examples:
        # Two shards, for two executors. How many there are changes nothing but the time that a few rows take.
        (folder / name).write_text((FOLDER / name).read_text() + "  shards: 2\n")
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments, " ".join(examples)],
        cwd=folder,
        env=os.environ | {"JOINERY_HOME": str(folder / "home"), "SPARK_HOME": str(spark_home())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {"console": [line for line in ended.stdout.splitlines() if '"id"' in line]}
    for path in folder.glob("*/epoch-*.jsonl"):
        rows.setdefault(path.parent.name, []).extend(path.read_text().splitlines())
    return {name: sorted(json.dumps(json.loads(line)) for line in lines) for name, lines in rows.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return rows_of(BY_COMMAND, ["--local"], tmp_path_factory.mktemp("local"), EXAMPLES)


def test_each_example_has_rows(expected: Rows) -> None:
    assert len(expected) == sum(len(load_job(FOLDER / name).outputs) for name in EXAMPLES)
    assert all(expected.values())


@pytest.fixture(scope="module", params=["local[2,4]", CLUSTER])
def of_a_spark_of_its_own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Each job starts executors of its own on a cluster, which takes seconds: only one is run there."""
    examples = EXAMPLES if request.param != CLUSTER else ["first.yaml"]
    return rows_of(BY_COMMAND, ["--master", request.param], tmp_path_factory.mktemp("own"), examples)


@pytest.fixture(scope="module", params=["local[2]", CLUSTER])
def of_a_session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return rows_of(ON_A_SESSION, [request.param], tmp_path_factory.mktemp("session"), EXAMPLES)


def test_a_spark_that_the_job_starts_gives_the_same_rows(of_a_spark_of_its_own: Rows, expected: Rows) -> None:
    assert of_a_spark_of_its_own == {name: expected[name] for name in of_a_spark_of_its_own}
    assert len(of_a_spark_of_its_own) in {1, len(EXAMPLES)}


def test_a_session_that_somebody_has_started_gives_the_same_rows(of_a_session: Rows, expected: Rows) -> None:
    assert of_a_session == expected
