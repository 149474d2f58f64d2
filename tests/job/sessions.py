"""Resources of sessions as plain data, what is wrong with them, and the same in SQL."""

from __future__ import annotations

import json
from typing import Any

from job.chains import messages_of, stream
from joinery_runtime.job import SessionWindow, parse_job

CLICKS = stream(
    "clicks",
    *("user_id", "page", "price:double", "qty:int32", "cents:decimal(12,2)", "seen:boolean", "raw:binary", "day:date"),
    watermark={"delay": "10s"},
)
COUNT = {"function": "count", "as": "events"}
NAMED_BY_SQL = ("groupBy", "gap", "aggregates")


def document(*aggregates: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A job that counts, unless it is told more; None takes a field out."""
    fields = {
        "input": CLICKS,
        "groupBy": ["user_id"],
        "gap": "30s",
        "maxDuration": "2h",
        "aggregates": [*aggregates] or [COUNT],
        "output": {"file": {"path": "out"}},
    } | spec
    return {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "SessionWindow",
        "metadata": {"name": "clicks"},
        "spec": {name: value for name, value in fields.items() if value is not None},
    }


def in_sql(sql: str, **spec: Any) -> dict[str, Any]:
    return document(**{**dict.fromkeys(NAMED_BY_SQL), "sql": sql, **spec})


def parsed(resource: dict[str, Any]) -> SessionWindow:
    job = parse_job(json.dumps(resource), "job.json")
    assert isinstance(job, SessionWindow)
    return job


def load(*aggregates: dict[str, Any], **spec: Any) -> SessionWindow:
    return parsed(document(*aggregates, **spec))


def mistakes(*aggregates: dict[str, Any], **spec: Any) -> dict[str, str]:
    """Messages by path."""
    return messages_of(document(*aggregates, **spec))


def aggregate_call(function: str, column: str | None = None, **more: Any) -> dict[str, Any]:
    """An aggregate."""
    return {"function": function, **({"column": column} if column is not None else {}), "as": f"{function}_", **more}
