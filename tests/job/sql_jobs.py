"""Jobs over the inputs of `resources.GOOD` (orders and payments) whose join is SQL, and the same as YAML."""

from __future__ import annotations

import textwrap

from job.resources import GOOD
from joinery_runtime.job import StreamJoin, parse_job

HEAD, TAIL = GOOD[: GOOD.index("  joins:")], GOOD[GOOD.index("  output:") :]
KEY = "o.order_id = p.order_id"
HOUR = "p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' HOUR"


def resource(sql: str) -> str:
    return f"{HEAD}  sql: |\n{textwrap.indent(sql.rstrip(), '    ')}\n{TAIL}"


def load(sql: str) -> StreamJoin:
    return parse_job(resource(sql), "job.yaml")


def joined(conditions: str, select: str = "o.order_id", more: str = "") -> str:
    """One line of SQL."""
    return f"SELECT {select} FROM orders o JOIN payments p ON {conditions} {more}".rstrip()


def twin(step: str, select: str) -> StreamJoin:
    """`step` and `select` in YAML's flow style, without what every step here has."""
    text = f"  joins:\n    - {{right: payments, {step}}}\n  select: {select}\n"
    return parse_job(f"{HEAD}{text}{TAIL}", "job.yaml")
