"""`joinery verify` judges the epochs since the last edit that M2 lets go on, and runs those before it as they were."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cli.commands import Joinery
from joinery_runtime.job import definition, definition_hash, is_same_definition, load_job

pytestmark = pytest.mark.services

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: edited}
spec:
  inputs:
    - {name: l, file: {path: l, watch: true}, format: json, eventTime: ts, watermark: {delay: 1h}, schema: SCHEMA}
    - {name: r, file: {path: r, watch: true}, format: json, eventTime: ts, watermark: {delay: 1h}, schema: SCHEMA}
  joins: [{right: r, keys: {l.k: r.k}, interval: {of: l, lower: -10ms, upper: 10ms}, WHERE}]
  select: [SELECT]
  output: {OUTPUT}
  stateStore: {postgres: {dsn: "DSN", schema: STATE}}
"""
SCHEMA = "[{name: k, type: string}, {name: v, type: int64}, {name: u, type: int64}, {name: ts, type: timestamp}]"
WHERE = '"l.v >= 0 AND l.v + r.v < 100"'
SELECT = "{column: l.k, as: k}, {column: l.u, as: u}, {column: r.u, as: w}, {column: r.v, as: v}"


class Edited:
    """A job over two directories, run again and again, with edits between."""

    def __init__(self, joinery: Joinery, folder: Path, dsn: str, state: str, output: str) -> None:
        self._joinery, self._folder, self.path = joinery, folder, folder / "job.yaml"
        self._text = JOB.replace("SCHEMA", SCHEMA).replace("DSN", dsn).replace("STATE", state)
        self._text = self._text.replace("OUTPUT", output)
        self._runs = 0
        for name in ("l", "r"):
            (folder / name).mkdir()
        self.edit()

    def edit(self, where: str = WHERE, select: str = SELECT, **replacements: str) -> None:
        text = self._text.replace("WHERE", f"where: {where}").replace("[SELECT]", f"[{select}]")
        for old, new in replacements.items():
            text = text.replace(old, new)
        self.path.write_text(text)

    def run(self) -> None:
        """Reads ten more rows of each side, which meet rows of the run before as well."""
        for name in ("l", "r"):
            rows = ({"k": f"k{i}", "v": i - 2, "u": self._runs, "ts": 1_000 + self._runs} for i in range(10))
            (self._folder / name / f"{self._runs}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self._runs += 1
        run = [
            sys.executable,
            "-m",
            "joinery_runtime",
            "run",
            "--local",
            str(self.path),
            "--once",
            "--status-port",
            "0",
        ]
        subprocess.run(run, check=True, capture_output=True)

    def verified(self, *options: str) -> tuple[int, dict[str, Any]]:
        ended = self._joinery("verify", self.path, "--json", *options)
        return ended.code, json.loads(ended.out) if ended.out else {"error": ended.err}


def _table(schema: str) -> str:
    """A name of the test's own, below Postgres' limit."""
    return f"edited_{zlib.crc32(schema.encode())}"


@pytest.fixture
def edited(joinery: Joinery, tmp_path: Path, postgres_dsn: str, schema: str) -> Edited:
    return Edited(joinery, tmp_path, postgres_dsn, schema, f"file: {{path: {tmp_path / 'out'}}}")


def test_the_epochs_after_an_edit_are_judged_with_the_state_of_those_before_it(edited: Edited) -> None:
    edited.run()
    code, first = edited.verified()
    assert (code, first["epochs"][0]) == (0, 1)
    begin = first["epochs"][1]
    # Rows that are kept have passed the `where` of their own time: some of them meet new ones that would not.
    for where, rows in (('"l.v >= 3 AND l.v + r.v < 100"', 18), ('"l.v >= 1 AND l.v + r.v < 4"', 5)):
        edited.edit(where)
        code, refused = edited.verified()
        assert code == 1
        assert "has no epoch of the job as it is now" in refused["error"]
        edited.run()
        code, report = edited.verified()
        assert (code, report["differences"]) == (0, [])
        assert report["epochs"][0] == begin + 1
        assert report["rows"] == rows
        assert (
            report["notes"][0] == f"epochs before {begin + 1} were made by the job before an edit, and are not judged"
        )
        begin = report["epochs"][1]
    code, refused = edited.verified("--epochs", "1..")
    assert code == 1
    assert "Ask for --epochs" in refused["error"]


def test_an_edit_back_is_an_edit(edited: Edited) -> None:
    edited.run()
    edited.edit('"l.v >= 3 AND l.v + r.v < 100"')
    edited.run()
    edited.edit()
    edited.run()
    edited.run()
    code, report = edited.verified()
    assert (code, report["differences"]) == (0, [])
    assert report["epochs"][0] >= 3


def test_edits_that_decide_no_rows_begin_nothing_new(edited: Edited) -> None:
    edited.run()
    edited.edit(**{"delay: 1h": "delay: 2h, lateWarning: 50%", "stateStore": "shards: 3\n  stateStore"})
    edited.run()
    code, report = edited.verified()
    assert (code, report["differences"], report["epochs"][0]) == (0, [], 1)


def test_an_error_after_an_edit_is_found(joinery: Joinery, tmp_path: Path, postgres_dsn: str, schema: str) -> None:
    edited = Edited(joinery, tmp_path, postgres_dsn, schema, f"postgres: {{table: {_table(schema)}}}")
    edited.run()
    edited.edit('"l.v >= 3 AND l.v + r.v < 100"')
    edited.run()
    with psycopg.connect(postgres_dsn) as connection:
        newest = f"(SELECT max(ctid) FROM {_table(schema)})"
        assert connection.execute(f"UPDATE {_table(schema)} SET w = 77 WHERE ctid = {newest}").rowcount == 1
    code, report = edited.verified()
    assert (code, len(report["differences"])) == (1, 1)


def test_without_the_definition_in_the_log_the_epochs_begin_after_the_edit(
    edited: Edited, postgres_dsn: str, schema: str
) -> None:
    edited.run()
    edited.edit('"l.v >= 3 AND l.v + r.v < 100"')
    edited.run()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f"UPDATE {schema}.epochs SET result = (result::jsonb - 'definition')::json")
    code, refused = edited.verified()
    assert code == 1
    assert "was made by the job before an edit that the log does not keep" in refused["error"]


def test_a_definition_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"

    def named(*edits: tuple[str, str]) -> str:
        text = JOB.replace("SCHEMA", SCHEMA).replace("WHERE", f"where: {WHERE}").replace("[SELECT]", f"[{SELECT}]")
        text = text.replace("OUTPUT", "file: {path: out}").replace("DSN", "postgresql://a").replace("STATE", "joinery")
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return definition_hash(definition(load_job(path)))

    name = named()
    assert name.startswith("1:")
    assert {named((">= 0", ">= 1")), named((", {column: r.v, as: v}", "")), named(("path: out", "path: other"))} & {
        name
    } == set()
    assert named(("delay: 1h", "delay: 2h")) == named(("path: l,", "path: other,")) == name
    now = definition(load_job(path))
    assert is_same_definition("", now)
    assert is_same_definition("2:ab", now)
    assert not is_same_definition("1:ab", now)
