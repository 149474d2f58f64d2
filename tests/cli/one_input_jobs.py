"""A StreamJoin of one input, and the state that real epochs leave of it."""

from __future__ import annotations

from typing import Any

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
