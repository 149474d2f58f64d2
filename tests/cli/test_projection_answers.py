"""`joinery why`, `verify`, `state` of a job whose rows are emitted as they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.verified import inputs_of, write_files
from joinery_runtime.cli.replay_commands import why_command
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.state_show import show
from joinery_runtime.inspect.state_stats import stats
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.verify import verify
from joinery_runtime.job import Job, parse_job
from joinery_runtime.state.memory import MemoryStore

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: large}
spec:
  inputs:
    - {name: l, file: {path: l.jsonl}, format: json, eventTime: ts,
       schema: [{name: k, type: string}, {name: n, type: int64}, {name: ts, type: timestamp}], where: "n > 1"}
  select: [{column: l.k}, {expression: "l.n * 10", as: tenfold}]
  output: {file: {path: OUT}}
  deadLetter: {file: {path: DEAD}}
  stateStore: {memory: {}}
"""
STEPS: list[dict[str, Any]] = [
    {"input": "l", "rows": [{"k": "a", "n": 2, "ts": 100}, {"k": "b", "n": 1, "ts": 100}, {"k": "c", "n": 2}]},
    {"input": "l", "rows": [{"k": "a", "n": 3, "ts": 1}]},
]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    text = JOB.replace("OUT", str(tmp_path / "out")).replace("DEAD", str(tmp_path / "dead"))
    return parse_job(text, "job.yaml")


def why(job: Job, tmp_path: Path, offset: int) -> list[str]:
    steps = tmp_path / "steps.jsonl"
    steps.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
    return list(why_command(job, (), f"l:0={offset}", None, steps).lines())


def test_what_a_record_did(job: Job, tmp_path: Path) -> None:
    lines = why(job, tmp_path, 0)
    assert '  epoch 1 emitted because of it: {"k": "a", "tenfold": 20}' in lines
    never_kept = "  never kept: a row is emitted by the epoch that reads its record (docs/semantics.md#p1)"
    assert never_kept in lines
    assert "  dropped: filtered (docs/semantics.md#j4)" in why(job, tmp_path, 1)
    assert any("event time 'ts' is null" in line for line in why(job, tmp_path, 2))


def test_a_record_behind_the_watermark_was_taken(job: Job, tmp_path: Path) -> None:
    assert '  epoch 2 emitted because of it: {"k": "a", "tenfold": 30}' in why(job, tmp_path, 3)


def test_it_has_no_keys(job: Job) -> None:
    store = MemoryStore()
    list(run_trace(job, STEPS, store, 2))
    with pytest.raises(JoineryError, match="has no keys: it keeps no rows"):
        show(job, store, ["k=a"])


def test_the_state_has_no_part(job: Job) -> None:
    store = MemoryStore()
    list(run_trace(job, STEPS, store, 2))
    assert stats(job, store).sides == []
    assert compile_job(job).parts() == {}


def test_the_output_is_verified_and_a_missing_row_is_found(job: Job, tmp_path: Path) -> None:
    store, inputs = MemoryStore(), inputs_of(job, STEPS)
    list(run_trace(job, STEPS, store, 2))
    write_files(job, store, inputs, tmp_path / "cache")
    assert verify(job, store, inputs, None, None).right
    (first, *_) = sorted((tmp_path / "out").iterdir())
    first.write_bytes(b"")
    verdict = verify(job, store, inputs, None, None)
    assert not verdict.right
    assert "1 missing" in verdict.compared.counts()
