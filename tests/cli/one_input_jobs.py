"""A StreamJoin of one input, and the state that real epochs leave of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joinery_runtime.inspect.state_show import show
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import StreamJoin
from joinery_runtime.state.memory import MemoryStore

COLUMNS = [{"name": "k", "type": "string"}, {"name": "v", "type": "int32"}, {"name": "ts", "type": "timestamp"}]
ZERO = "1970-01-01T00:00:00"


def resource(name: str, **fields: Any) -> dict[str, Any]:
    source = {"name": "c", "file": {"path": "c.jsonl"}, "format": "json", "schema": COLUMNS, "eventTime": "ts"}
    spec = {
        "inputs": [{**source, "watermark": {"delay": 0}}],
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
        **fields,
    }
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": name}, "spec": spec}


def row(ts: int, v: int = 1, k: str = "x") -> dict[str, Any]:
    return {"k": k, "v": v, "ts": ts}


def after(job: StreamJoin, *epochs: list[dict[str, Any]]) -> MemoryStore:
    store = MemoryStore()
    list(run_trace(job, [{"input": "c", "rows": rows} for rows in epochs], store))
    return store


def lines_of(job: StreamJoin, store: MemoryStore) -> list[str]:
    """What `joinery state show` says of the key x."""
    return list(show(job, store, ["k=x"]).lines())


def why(folder: Path, written: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Write the job, with explicit watermarks, and the steps of its trace into the folder. Return the arguments of
    `joinery why` about them."""
    job, steps = folder / "job.yaml", folder / "steps.jsonl"
    (source,) = written["spec"]["inputs"]
    explicit = {**source, "watermark": {"explicit": True}}
    job.write_text(json.dumps({**written, "spec": {**written["spec"], "inputs": [explicit]}}))
    steps.write_text("".join(json.dumps(step) + "\n" for step in lines))
    return ["why", job, "--steps", steps]
