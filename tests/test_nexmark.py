"""The Nexmark jobs in examples/nexmark/ give the rows that DuckDB computes from texts of its own."""

from __future__ import annotations

import filecmp
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

from joinery_devkit.nexmark.events import NexmarkEvents, NexmarkLoad, generate, write_csv
from joinery_devkit.nexmark.truth import TRUTHS, expected_rows
from joinery_runtime import run
from joinery_runtime.job import explain, load_job
from local_rows import rows_of

FOLDER = Path(__file__).parents[1] / "examples" / "nexmark"
JOBS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
QUERIES = sorted(JOBS, key=lambda name: int(name[1:]))
ON_SPARK = ("q7", "q8", "q9", "q13", "q21")  # an aggregate, joins of three kinds, one input alone
# One process for all of them: Spark's Java process starts once.
RUN_ALL = """
import sys
from joinery_runtime.cli import main
for path in sys.argv[1:]:
    try:
        main(["run", path])
    except SystemExit as end:
        if end.code:
            raise
"""
# Of the first load 200 events are in a window of 10 seconds, not in order of event time, and no bound excludes a row.
# The second load spans three days, so that auctions outlive the bounds.
LOADS = {"minutes": NexmarkLoad(4_000, per_second=20, seed=1, disorder=10), "days": NexmarkLoad(2_500, 0.01, seed=8)}
EPOCHS = 5


@pytest.fixture(scope="module", params=LOADS)
def load(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NexmarkEvents]:
    """The folder with the files of a load, and its events."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    events = generate(LOADS[request.param])
    write_csv(events, folder)
    return folder, events


def test_every_job_has_rows_of_its_own() -> None:
    assert set(QUERIES) == set(TRUTHS)


@pytest.mark.filterwarnings("ignore:stateStore is memory")
@pytest.mark.parametrize("query", QUERIES)
def test_a_job_gives_the_rows_that_duckdb_computes(
    query: str, load: tuple[Path, NexmarkEvents], tmp_path: Path
) -> None:
    data, events = load
    (tmp_path / "data").symlink_to(data)
    assert rows_of(run(write_job(query, tmp_path), local=True).output()) == rows_of(expected_rows(query, events))


@pytest.fixture(scope="module")
def spark_outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the jobs ON_SPARK have run, all epochs on Spark: the driver would have finished before it is
    ready."""
    folder: Path = tmp_path_factory.mktemp("spark")
    write_csv(generate(LOADS["minutes"]), folder / "data")
    for query in ON_SPARK:
        write_job(query, folder)
    command = [sys.executable, "-c", RUN_ALL, *(f"{query}.yaml" for query in ON_SPARK)]
    environment = os.environ | {"JOINERY_WAIT_FOR_SPARK": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.parametrize("query", ON_SPARK)
def test_a_job_gives_these_rows_on_spark(query: str, spark_outputs: Path) -> None:
    expected = pl.DataFrame(expected_rows(query, generate(LOADS["minutes"])))
    written = pl.read_ndjson(spark_outputs / f"nexmark-{query}" / "*.jsonl", schema=expected.schema)
    assert rows_of(written) == rows_of(expected)


def write_job(name: str, folder: Path) -> Path:
    """Write the example into the folder, with EPOCHS epochs and two shards."""
    job = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    job["spec"]["shards"] = 2
    job["spec"]["trigger"] = {"maxRecordsPerEpoch": LOADS["minutes"].events // EPOCHS}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def test_loads_give_every_query_rows() -> None:
    """A comparison of nothing with nothing would prove nothing."""
    events = generate(LOADS["minutes"])
    assert not [query for query in QUERIES if expected_rows(query, events).num_rows < 5 and query != "q15"]


@pytest.mark.parametrize("name", JOBS)
def test_an_example_is_named_for_its_file_and_has_no_warning_but_that_of_its_memory(name: str) -> None:
    job = load_job(FOLDER / f"{name}.yaml")
    assert job.name == f"nexmark-{name}"
    assert {warning.split(":")[0] for warning in explain(job).warnings} <= {"LARGE STATE", "MEMORY STORE"}


def test_the_examples_data_are_what_the_generator_writes(tmp_path: Path) -> None:
    write_csv(generate(NexmarkLoad(1_000, per_second=10)), tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    same, *differing = filecmp.cmpfiles(tmp_path, FOLDER / "data", names, shallow=False)
    assert (sorted(same), differing) == (names, [[], []])


def test_the_page_says_for_each_query_what_was_changed() -> None:
    lines = (FOLDER.parents[1] / "docs" / "nexmark.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if re.match(r"\| q\d", line)]
    assert [row[0] for row in cells] == [f"q{number}" for number in range(23)]
    linked = {query: f"[{query}](../examples/nexmark/{query}.yaml)" for query in QUERIES}
    assert {row[0]: row[2] for row in cells if row[2] != "not expressible"} == linked
    assert all(row[3] for row in cells)
