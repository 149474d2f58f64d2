"""Every example over files: `joinery run` gives exactly the rows that stand beside its data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

from joinery_runtime.job import load_job

pytestmark = [pytest.mark.services, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "examples"
EXPECTED = FOLDER / "data" / "expected"
# The examples in SQL are the same jobs as these: tests/job/test_examples.py.
NAMES = sorted(
    path.stem
    for pattern in ("*-join.yaml", "*-window-files.yaml", "unpaid-orders.yaml", "large-orders.yaml")
    for path in FOLDER.glob(pattern)
    if not path.stem.startswith("sql-")
)

# One process for all of them: Spark's Java process starts once.
RUN_ALL = """
import sys
from joinery_runtime.cli import main
for path in sys.argv[1:]:
    try:
        main(["run", path, "--py-files", "modules/order_numbers.py"])
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the examples, after all of them have run."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(FOLDER / "data", folder / "data")
    shutil.copytree(FOLDER / "modules", folder / "modules")
    for name in NAMES:
        # How many shards there are changes nothing but the time that a few rows take.
        (folder / f"{name}.yaml").write_text((FOLDER / f"{name}.yaml").read_text() + "  shards: 2\n")
    in_parquet(folder)
    command = [sys.executable, "-c", RUN_ALL, *(f"{name}.yaml" for name in NAMES), "parquet.yaml"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def in_parquet(folder: Path) -> None:
    """The example of an as-of join, whose table has a deletion, once more: from Parquet into Parquet."""
    written = yaml.safe_load((folder / "as-of-join.yaml").read_text())
    for side in written["spec"]["inputs"]:
        source = folder / side["file"]["path"]
        frame = pl.read_csv(source) if side["format"] == "csv" else pl.read_ndjson(source)
        frame.with_columns(pl.col(side["eventTime"]).str.to_datetime(time_unit="ns", time_zone="UTC")).write_parquet(
            f"{source}.parquet"
        )
        side |= {"file": {"path": f"{side['file']['path']}.parquet"}, "format": "parquet"}
        # A file has doubles where CSV has digits.
        side["schema"] = [
            {**column, "type": column["type"].replace("decimal(12,2)", "double")} for column in side["schema"]
        ]
    written["spec"]["output"] = {"file": {"path": "in-parquet"}, "format": "parquet"}
    (folder / "parquet.yaml").write_text(yaml.safe_dump({**written, "metadata": {"name": "parquet"}}))


def rows(lines: str) -> list[Any]:
    """In an order of their own: shards write side by side."""
    return sorted((json.loads(line) for line in lines.splitlines()), key=str)


def test_every_example_has_its_rows_beside_its_data() -> None:
    assert sorted(path.stem for path in EXPECTED.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_its_rows(name: str, outputs: Path) -> None:
    target = load_job(outputs / f"{name}.yaml").spec.output.file
    assert target is not None
    written = sorted(Path(target.path).glob("*.jsonl"))
    expected = (EXPECTED / f"{name}.jsonl").read_text()
    assert rows("".join(path.read_text() for path in written)) == rows(expected)


def test_parquet_gives_the_same_rows(outputs: Path) -> None:
    written = [row for path in (outputs / "in-parquet").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    expected = rows((EXPECTED / "as-of-join.jsonl").read_text())
    assert sorted(written, key=str) == expected
