"""A job of sessions for the command line, and the state that real epochs leave of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Job, SessionWindow, parse_job
from joinery_runtime.state.store import StateStore

COLUMNS = [
    {"name": "k", "type": "string"},
    {"name": "v", "type": "int64"},
    {"name": "ts", "type": "timestamp"},
]
AGGREGATES = [{"function": "count", "as": "events"}, {"function": "sum", "column": "v", "as": "total"}]
REOPEN = {"lateData": "reopen", "allowedLateness": "20ms"}


def resource(**changes: Any) -> dict[str, Any]:
    """Sessions of rows of one `k` that are at most 10 ms apart."""
    spec = {
        "input": {
            "name": "clicks",
            "file": {"path": "clicks.jsonl"},
            "format": "json",
            "schema": COLUMNS,
            "eventTime": "ts",
            "watermark": {"delay": 0},
        },
        "groupBy": ["k"],
        "gap": "10ms",
        "maxDuration": "1000ms",
        "aggregates": AGGREGATES,
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
        **changes,
    }
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": "SessionWindow", "metadata": {"name": "s"}, "spec": spec}


def session_job(**changes: Any) -> SessionWindow:
    job = parse_job(json.dumps(resource(**changes)), "job.json")
    assert isinstance(job, SessionWindow)
    return job


def row(ts: int, k: str | None = "x", v: int | None = 1) -> dict[str, Any]:
    return {"k": k, "v": v, "ts": ts}


def epoch(*rows: Mapping[str, Any]) -> dict[str, Any]:
    return {"input": "clicks", "rows": list(rows)}


def run_epochs(job: Job, store: StateStore, *steps: Mapping[str, Any]) -> None:
    list(run_trace(job, steps, store))
