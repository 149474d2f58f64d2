"""The jobs that the simulated world runs: joins of two and of three inputs, and sessions of one."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.job import Job, parse_job
from joinery_runtime.job.model.resource import API_VERSION

DELAYS = {"orders": 5, "payments": 3, "refunds": 4}
PARTITIONS = {"orders": 2, "payments": 1, "refunds": 1}
IDLE_MS = 40


def _input(name: str) -> dict[str, Any]:
    columns = {"id": "int64", "k": "string", "ts": "timestamp"}
    return {
        "name": name,
        "kafka": {"bootstrapServers": "nowhere:1", "topic": name},
        "format": "json",
        "schema": [{"name": column, "type": kind} for column, kind in columns.items()],
        "eventTime": "ts",
        "watermark": {"delay": DELAYS[name], "idleTimeout": IDLE_MS},
    }


def _step(right: str, kind: str, **rule: Any) -> dict[str, Any]:
    return {"right": right, "type": kind, "keys": {"orders.k": f"{right}.k"}, **rule}


def _within(lower: int, upper: int) -> dict[str, Any]:
    return {"of": "orders", "lower": lower, "upper": upper}


def _job(*steps: Mapping[str, Any], tables: Collection[str] = ()) -> str:
    names = ["orders", *(step["right"] for step in steps)]
    return _resource(
        "StreamJoin",
        inputs=[_input(name) | ({"table": {"key": ["k"]}} if name in tables else {}) for name in names],
        joins=steps,
        select=[{"column": f"{name}.id", "as": name} for name in names],
    )


def _resource(kind: str, **spec: Any) -> str:
    around = {
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
        "deadLetter": {"file": {"path": "dead.jsonl"}},
        "stateStore": {"memory": {}, "checkpointInterval": "60ms"},
        "trigger": {"maxRecordsPerEpoch": 6},
        "shards": 2,
    }
    return json.dumps(
        {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "simulated"}, "spec": {**spec, **around}}
    )


INNER = _job(_step("payments", "inner", interval=_within(-40, 80)))
FULL = _job(_step("payments", "full", interval=_within(-10, 20)))
CO_PARTITIONED = _job(
    _step("payments", "full", interval=_within(-10, 20), coPartitioned=True, partitioner="crc32"),
)
# What the first step closes the second one keeps, to close it in a later epoch; it pads its own right side too.
CHAIN = _job(_step("payments", "left", interval=_within(-20, 30)), _step("refunds", "full", interval=_within(-20, 40)))
HOPPING = _job(_step("payments", "full", window={"hopping": {"size": "30ms", "slide": "10ms"}}))
SESSIONS = _job(_step("payments", "full", window={"session": {"gap": "15ms"}}))
AS_OF = _job(_step("payments", "left", asOf={"historyRetention": "60ms", "grace": "20ms"}), tables=["payments"])
AGGREGATED = _resource(
    "SessionWindow",
    input=_input("orders"),
    groupBy=["k"],
    gap="12ms",
    maxDuration="60ms",
    aggregates=[
        {"function": "count", "as": "orders"},
        {"function": "sum", "column": "id", "as": "sum"},
        {"function": "last", "column": "id", "as": "last"},
        {"function": "count_distinct", "column": "id", "as": "ids"},
    ],
    lateData="reopen",
    allowedLateness="120ms",
    emitRetractions=True,
)


@cache
def parsed(text: str) -> Job:
    return parse_job(text, "simulated.json", plain_numbers=True)


@cache
def compiled(text: str) -> Pipeline:
    return compile_job(parsed(text))
