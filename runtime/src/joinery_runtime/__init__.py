"""Joinery's runtime: streaming joins and sessions on Spark, state and offsets together in Postgres.

from joinery_runtime import explain, run, trace
print(explain("join.yaml"))
trace("join.yaml", [{"input": "orders", "rows": [...]}, {"end": True}]).to_polars()
run("join.yaml").output().to_polars()
"""

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
