"""What jobs emit that run in this process, and tables as they are compared: without an order of rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from joinery_runtime import run


def run_job(resource: Mapping[str, Any], folder: Path) -> pl.DataFrame:
    """Run a job from a file in the folder, to which its paths are relative, until its inputs end. One shard, unless the
    job names another number: what a job means does not depend on it, and eight take twice as long."""
    path = folder / "job.json"
    path.write_text(json.dumps({**resource, "spec": {"shards": 1, **resource["spec"]}}))
    return pl.DataFrame(run(path, local=True).output())


def rows_of(table: Any) -> Counter[tuple[Any, ...]]:
    """Count the rows of a table, with its columns' names in front."""
    frame = pl.DataFrame(table)
    return Counter([tuple(frame.columns), *frame.rows()])
