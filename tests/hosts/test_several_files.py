"""Several files of one input: all are partition 0, and records of two files may have equal offsets. Their rows have an
order all the same (J2), and a record is never taken for one of another file."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytestmark = pytest.mark.services
SCHEMA = [{"name": "k", "type": "string"}, {"name": "c", "type": "string"}, {"name": "ts", "type": "timestamp"}]

_schemas = (f"several_files_{number}" for number in count())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, *rows: tuple[str, str, int]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"k": k, "c": c, "ts": ts}) + "\n" for k, c, ts in rows))


def run(dsn: str, schema: str, join: dict[str, Any], **spec: Any) -> None:
    """Runs a job that joins the files in the folders `l` and `r` until they are read."""
    inputs = [
        {"name": name, "file": {"path": name, "watch": True}, "format": "json", "schema": SCHEMA, "eventTime": "ts"}
        for name in ("l", "r")
    ]
    document = {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": "several-files"},
        "spec": {
            "inputs": inputs,
            "joins": [{"right": "r", "keys": {"l.k": "r.k"}, **join}],
            "stateStore": {"postgres": {"dsn": dsn, "schema": schema}},
            **spec,
        },
    }
    Path("job.yaml").write_text(json.dumps(document))
    command = [sys.executable, "-m", "joinery_runtime", "run", "--local", "--once", "--status-port", "0", "job.yaml"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("shards", [1, 16])
def test_the_last_row_of_a_key_is_that_of_the_last_file(folder: Path, postgres_dsn: str, shards: int) -> None:
    """Payments of equal offsets in 9 files, in another order than their orders; in the second run, in 9 files more,
    whose names come later."""
    schema = next(_schemas)
    table = f"{schema}_last"
    for begin in (1, 2):
        orders = [(f"{begin}-{file}-{line}", f"c{line}", 1_000) for file in range(9) for line in range(3)]
        write(folder / "l" / f"{begin}.jsonl", *reversed(orders))
        for file in range(9):
            paid = (order for order in orders if order[0].startswith(f"{begin}-{file}"))
            write(folder / "r" / f"{begin}-{file}.jsonl", *paid)
        run(
            postgres_dsn,
            schema,
            {"interval": {"of": "l", "lower": "0s", "upper": "1h"}},
            select=[{"column": "l.c"}, {"column": "l.k"}],
            shards=shards,
            output={"postgres": {"table": table, "upsertKey": ["c"]}},
        )
        with psycopg.connect(postgres_dsn) as connection:
            stored = dict(connection.execute(f"SELECT c, k FROM {table}").fetchall())
        assert stored == {f"c{line}": f"{begin}-8-{line}" for line in range(3)}


def test_the_last_partner_is_that_of_the_last_file(folder: Path, postgres_dsn: str) -> None:
    """The orders of three files are in the state, later ones in earlier files, and one payment meets them all."""
    schema = next(_schemas)
    write(folder / "r" / "1.jsonl", ("a", "r", 1_000))
    for file in range(3):
        write(folder / "l" / f"{file}.jsonl", ("a", f"order {file}", 5_000 - file))
    spec = {
        "select": [{"column": "l.k"}, {"column": "l.c"}],
        "output": {"postgres": {"table": f"{schema}_last", "upsertKey": ["k"]}},
    }
    join = {"interval": {"of": "l", "lower": "0s", "upper": "1h"}}
    run(postgres_dsn, schema, join, **spec)
    write(folder / "r" / "2.jsonl", ("a", "r", 6_000))
    run(postgres_dsn, schema, join, **spec)
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(f"SELECT * FROM {schema}_last").fetchall() == [("a", "order 2")]


def test_a_late_record_is_not_taken_for_one_of_another_file(folder: Path, postgres_dsn: str) -> None:
    """Both records are at offset 0 of their files. The session of k1 has closed, that of k2 still grows."""
    schema = next(_schemas)
    join = {"window": {"session": {"gap": "10s"}}, "lateData": "dlq"}
    spec = {"output": {"file": {"path": "out"}}, "deadLetter": {"file": {"path": "dead"}}}
    for name in ("l", "r"):
        write(folder / name / "1.jsonl", ("k2", name, 100_000), ("k9", name, 105_000))
    run(postgres_dsn, schema, join, **spec)
    write(folder / "l" / "2-late.jsonl", ("k1", "late", 80_000))
    write(folder / "l" / "3-on-time.jsonl", ("k2", "on time", 92_000))
    run(postgres_dsn, schema, join, **spec)
    letters = [json.loads(line) for file in Path("dead").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [(Path(letter["topic"]).name, letter["partition"], letter["offset"]) for letter in letters] == [
        ("2-late.jsonl", 0, 0)
    ]
