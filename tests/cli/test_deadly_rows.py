"""`joinery verify` and `why` of an epoch that was committed after records had ended processes (rule T8)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli.one_input_jobs import resource, row
from cli.verified import inputs_of, write_files
from joinery_runtime.connectors.trial import Tried
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.verify import verify
from joinery_runtime.inspect.why import explain_records
from joinery_runtime.inspect.why_records import CarefulInputs
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore

MODULE = """
import os

CALLS_OF_TEST = []

def deadly(numbers):
    in_test = os.environ["PROCESS_OF_TEST"] == str(os.getpid())
    if in_test:
        CALLS_OF_TEST.append(numbers)
    if 13 in numbers.to_pylist():
        if in_test:
            raise ValueError("called in the process of the test")
        os._exit(7)
    return numbers
"""
STEPS: list[dict[str, Any]] = [{"input": "c", "rows": [row(100), row(101, 13), row(102, 14, "y")]}, {"end": True}]
REASON = "deadly (functions_of_deadly:deadly) ended the process (exit code 7) 2 times, and the job's own process before"


def calling() -> set[psutil.Process]:
    """The processes that call functions for this one."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if "joinery_runtime.engine.function_calls" in child.cmdline()}


def test_a_row_that_ends_a_function_s_process_is_the_dead_letter_that_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the trace each plan counts as one of which two processes have died. Batches are decoded without a trial."""
    (tmp_path / "functions_of_deadly.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PROCESS_OF_TEST", str(os.getpid()))
    document = resource(
        "deadly",
        functions=[{"name": "deadly", "python": "functions_of_deadly:deadly", "returns": "int32"}],
        aggregate={
            "compute": [{"expression": "deadly(c.v)", "as": "w"}],
            "groupBy": ["w"],
            "window": {"tumbling": {"size": "10ms"}},
            "aggregates": [{"function": "count", "as": "n"}],
        },
        output={"file": {"path": str(tmp_path / "out")}},
        deadLetter={"file": {"path": str(tmp_path / "dead")}},
    )
    job, store = parse_job(json.dumps(document), "job.json"), MemoryStore()
    printed = list(run_trace(job, STEPS, store, 1))
    assert [line["dead"] for line in printed] == [{"c": 1}, {"c": 0}]
    calls = sys.modules["functions_of_deadly"].CALLS_OF_TEST
    calls.clear()
    monkeypatch.setattr("joinery_runtime.engine.plan.DEATHS", 0)
    monkeypatch.setattr("joinery_runtime.engine.worker.with_trials", lambda decoder: decoder)
    inputs = inputs_of(job, STEPS)
    write_files(job, store, inputs, tmp_path / "cache")
    verdict = verify(job, store, inputs, None, None)
    assert (verdict.right, verdict.compared.rows, verdict.compared.dead) == (True, 2, 1)
    (record,) = explain_records(job, store, inputs, [], ("c", 0, 1)).records
    assert record.reason == "dead letter"
    assert record.detail.endswith(REASON)
    assert not calls
    assert not calling(), "verify and why end the processes that they have started"


def test_only_the_process_that_comes_after_two_deaths_takes_care() -> None:
    plan = EpochPlan(1, 1, (), {}, generation=4)
    assert [plan.is_deadly(generation) for generation in (4, 5, 6, 7)] == [False, False, True, True]
    assert not EpochPlan(1, 1, (), {}).is_deadly(9), "an earlier release has not said who made the plan"


def test_decoders_of_records_that_end_processes_try_first() -> None:
    job = parse_job(json.dumps(resource("deadly", select=[{"column": "c.k"}])), "job.json")
    careful = CarefulInputs(inputs_of(job, STEPS))
    assert isinstance(careful.decoder("c", 0), Tried)
    assert careful.decoder("c", 0) is careful.decoder("c", 0), "one process for all batches"
