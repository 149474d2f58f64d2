"""`joinery verify` of a job of a million records that has run as in production: state and output in Postgres."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import psycopg
import pytest

from cli.commands import Joinery
from cli.verified import left_join

pytestmark = [pytest.mark.services, pytest.mark.slow]
EACH = 500_000  # records of each input
JOB = left_join(
    "[{name: k, type: string}, {name: v, type: int64}, {name: ts, type: timestamp}]",
    """\
  output: {postgres: {table: TABLE}}
  trigger: {maxRecordsPerEpoch: 100000}
  stateStore: {postgres: {dsn: "DSN", schema: TABLE}}
""",
    name="million",
)


def test_one_changed_row_of_a_million_is_found(joinery: Joinery, postgres_dsn: str, tmp_path: Path) -> None:
    numbers = pl.int_range(EACH, eager=True)
    rows = pl.DataFrame({"k": "k" + (numbers % 5_000).cast(pl.String), "v": numbers, "ts": numbers})
    for name in ("l", "r"):
        rows.write_ndjson(tmp_path / f"{name}.jsonl")
    job, table = tmp_path / "job.yaml", "verify_million"
    job.write_text(JOB.replace("TABLE", table).replace("DSN", postgres_dsn))
    run = [sys.executable, "-m", "joinery_runtime", "run", "--local", str(job)]
    subprocess.run(run, check=True, capture_output=True)
    with psycopg.connect(postgres_dsn) as connection:
        changed = connection.execute(f"UPDATE {table} SET right_v = right_v + 1 WHERE left_v = 345678")
        assert changed.rowcount == 1
    ended = joinery("verify", job)
    (line,) = ended.lines
    assert (ended.code, line["rows"], line["notes"]) == (1, EACH, [])
    assert (line["missing"], line["extra"], line["different"]) == (0, 0, 1)
    (difference,) = line["differences"]
    assert difference["expected"]["right_v"] == 345_678
    assert difference["found"] == difference["expected"] | {"right_v": 345_679}
