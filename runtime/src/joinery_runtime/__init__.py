"""Joinery's runtime: streaming joins and sessions on Spark, state and offsets together in Postgres.

from joinery_runtime import explain, run, trace
print(explain("join.yaml"))
trace("join.yaml", [{"input": "orders", "rows": [...]}, {"end": True}]).to_polars()
run("join.yaml").output().to_polars()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joinery_runtime.api import Rows, RunResult, Trace, explain, run, trace
    from joinery_runtime.job import Job, SessionWindow, StreamJoin, load_job, parse_job

__all__ = [
    "Job",
    "Rows",
    "RunResult",
    "SessionWindow",
    "StreamJoin",
    "Trace",
    "explain",
    "load_job",
    "parse_job",
    "run",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use. It takes half a second, which the command and the workers should not wait for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("joinery_runtime.api", "joinery_runtime.job"):
        if hasattr(found := import_module(module), name):
            return getattr(found, name)
    raise AssertionError(f"{name} is in __all__ and in no module")
