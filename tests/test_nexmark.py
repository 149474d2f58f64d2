"""The Nexmark jobs in examples/nexmark/ give the rows that DuckDB computes from texts of its own."""

from __future__ import annotations

import filecmp
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from joinery_devkit.nexmark.events import NexmarkEvents, NexmarkLoad, generate, write_csv
from joinery_devkit.nexmark.truth import TRUTHS, expected_rows
from joinery_runtime import run
from joinery_runtime.job import explain, load_job

FOLDER = Path(__file__).parents[1] / "examples" / "nexmark"
QUERIES = sorted((path.stem for path in FOLDER.glob("q*.yaml")), key=lambda name: int(name[1:]))
# Of the first load 200 events are in a window of 10 seconds, not in order of event time, and no bound excludes a row.
# The second load spans three days, so that auctions outlive the bounds.
LOADS = {"minutes": NexmarkLoad(4_000, per_second=20, seed=1, disorder=10), "days": NexmarkLoad(2_500, 0.01, seed=8)}
EPOCHS = 5


@pytest.fixture(scope="module", params=LOADS)
def load(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NexmarkEvents]:
    """The folder with the events of a load in `data/`, and these events."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    events = generate(LOADS[request.param])
    write_csv(events, folder / "data")
    return folder, events


def rows_of(table: Any) -> Counter[tuple[Any, ...]]:
    """The rows with their columns' names in front, as a multiset."""
    frame = pl.DataFrame(table)
    return Counter([tuple(frame.columns), *frame.rows()])


def test_every_job_has_rows_of_its_own() -> None:
    assert set(QUERIES) == set(TRUTHS)


@pytest.mark.filterwarnings("ignore:stateStore is memory")
@pytest.mark.parametrize("query", QUERIES)
def test_a_job_gives_the_rows_that_duckdb_computes(query: str, load: tuple[Path, NexmarkEvents]) -> None:
    folder, events = load
    job = yaml.safe_load((FOLDER / f"{query}.yaml").read_text())
    job["spec"]["trigger"] = {"maxRecordsPerEpoch": LOADS["minutes"].events // EPOCHS}
    (folder / f"{query}.yaml").write_text(yaml.safe_dump(job))
    expected = rows_of(expected_rows(query, events))
    result = run(folder / f"{query}.yaml", local=True)
    assert rows_of(result.output()) == expected


def test_loads_give_every_query_rows() -> None:
    """A comparison of nothing with nothing would prove nothing."""
    events = generate(LOADS["minutes"])
    assert not [query for query in QUERIES if expected_rows(query, events).num_rows < 5 and query != "q15"]


@pytest.mark.parametrize("query", QUERIES)
def test_an_example_is_named_for_its_query_and_has_no_warning_but_that_of_its_memory(query: str) -> None:
    job = load_job(FOLDER / f"{query}.yaml")
    assert job.name == f"nexmark-{query}"
    assert {warning.split(":")[0] for warning in explain(job).warnings} <= {"LARGE STATE", "MEMORY STORE"}


def test_the_examples_data_are_what_the_generator_writes(tmp_path: Path) -> None:
    write_csv(generate(NexmarkLoad(1_000, per_second=10)), tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    same, *others = filecmp.cmpfiles(tmp_path, FOLDER / "data", names, shallow=False)
    assert (sorted(same), others) == (names, [[], []])


def test_the_page_says_for_each_query_what_was_changed() -> None:
    lines = (FOLDER.parents[1] / "docs" / "nexmark.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| q")]
    assert [row[0] for row in cells[1:]] == [f"q{number}" for number in range(23)]
    linked = {query: f"[{query}](../examples/nexmark/{query}.yaml)" for query in QUERIES}
    assert {row[0]: row[2] for row in cells[1:] if row[2] != "not expressible"} == linked
    assert all(row[3] for row in cells)
