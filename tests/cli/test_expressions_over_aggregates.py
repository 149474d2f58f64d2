"""`joinery why`, `verify` and `explain` of jobs that emit expressions over aggregates (rule G11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.verified import inputs_of, write_files
from joinery_runtime.cli.replay_commands import why_command
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.verify import verify
from joinery_runtime.job import Job, explain, parse_job
from joinery_runtime.state.memory import MemoryStore

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: means}
spec:
  inputs:
    - {name: c, file: {path: c.jsonl}, format: json, eventTime: ts,
       schema: [{name: k, type: string}, {name: n, type: int64}, {name: ts, type: timestamp}]}
  sql: |
    SELECT k, window_end, SUM(n) / COUNT(*) AS mean, MAX(n) - MIN(n) AS spread
    FROM c GROUP BY k, TUMBLE(ts, INTERVAL '10' MILLISECOND)QUALIFY
  output: {file: {path: OUT}}
  deadLetter: {file: {path: DEAD}}
  stateStore: {memory: {}}
"""
QUALIFY = "\n    QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY mean DESC) = 1"
STEPS: list[dict[str, Any]] = [
    {"input": "c", "rows": [{"k": "a", "n": 1, "ts": 1}, {"k": "a", "n": 4, "ts": 2}, {"k": "b", "n": 2, "ts": 3}]},
    {"end": True},
]


@pytest.fixture(params=["", QUALIFY], ids=["all", "first"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    text = JOB.replace("OUT", str(tmp_path / "out")).replace("DEAD", str(tmp_path / "dead"))
    return parse_job(text.replace("QUALIFY", request.param), "job.yaml")


def test_a_record_made_the_expressions_of_its_groups_row(job: Job, tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
    (record,) = why_command(job, (), "c:0=1", None, steps).document()["records"]
    assert [entry["row"] for entry in record["made"]] == [{"k": "a", "window_end": 10, "mean": 2.5, "spread": 3}]
    alone = {"k": "a", "window_end": 10, "mean": 1.0, "spread": 0}
    first = {"k": "b", "window_end": 10, "mean": 2.0, "spread": 0}
    ranked = len(explain(job).steps) == 2
    assert [prevented["row"] for prevented in record["prevented"]] == [first if ranked else alone]


def test_the_output_is_verified_and_another_value_is_found(job: Job, tmp_path: Path) -> None:
    store, inputs = MemoryStore(), inputs_of(job, STEPS)
    list(run_trace(job, STEPS, store, 2))
    write_files(job, store, inputs, tmp_path / "cache")
    assert verify(job, store, inputs, None, None).right
    (written,) = (path for path in (tmp_path / "out").iterdir() if '"mean":2.5' in path.read_text())
    written.write_text(written.read_text().replace("2.5", "2.6"))
    verdict = verify(job, store, inputs, None, None)
    assert not verdict.right
    assert "1 different" in verdict.compared.counts()


def test_the_last_step_says_what_is_computed(job: Job) -> None:
    steps = [[line for line in step.lines if line[0] == "selected"] for step in explain(job).steps]
    mean = '"SUM(n)" / "COUNT(*)"'
    assert steps[-1] == [("selected", f"mean = {mean}"), ("selected", 'spread = "MAX(n)" - "MIN(n)"')]
    assert not any(steps[:-1])
    assert len(steps) == 1 or dict(explain(job).steps[-1].lines)["order"] == f"({mean}) DESC NULLS LAST"
