"""`<function> OVER (...)` over the groups of a window, as `topN.totals` says it (rules R9 to R11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.references import RANKS, VALUES_OF_OTHERS, WINDOW_COLUMNS
from joinery_runtime.job.sql.report import Report, node_position
from joinery_runtime.job.sql.window_functions import function_name

_FUNCTIONS: Mapping[type[exp.Expr], str] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Count: "count",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
    exp.PercentRank: "percent_rank",
    exp.CumeDist: "cume_dist",
    exp.Ntile: "ntile",
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
}
_WINDOW = f"PARTITION BY {', '.join(WINDOW_COLUMNS)}"
_NO_ORDER = "nothing says which row comes first; write ORDER BY with an aggregate, such as ORDER BY COUNT(*) DESC"


@dataclass(frozen=True, slots=True)
class TotalCall:
    """A call: its function as `topN.totals` names it, the value that it reads (None: it reads rows), what its rows are
    ordered by, and further fields of the total."""

    function: str
    argument: exp.Expr | None
    ordered: Sequence[exp.Expr]
    fields: Mapping[str, Any] = field(default_factory=dict)


def is_total(value: exp.Expr) -> bool:
    """Say whether this is a value over the groups of a window, or where a group stands among these."""
    return isinstance(value, exp.Window) and (type(value.this) in _FUNCTIONS or is_row_number(value))


def is_row_number(value: exp.Expr) -> bool:
    """Say whether this is a call of ROW_NUMBER."""
    return isinstance(value, exp.Window) and function_name(value.this) == "ROW_NUMBER"


def read_total_call(call: exp.Expr, report: Report) -> TotalCall:
    """Take a call apart that `is_total`. What is wrong with it is reported."""
    at, function = node_position(call), "row_number" if is_row_number(call) else _FUNCTIONS[type(call.this)]
    order, frame = call.args.get("order"), call.args.get("spec")
    ordered: Sequence[exp.Expr] = order.expressions if order is not None else ()
    fields: dict[str, Any] = {}
    if function in {*RANKS, *VALUES_OF_OTHERS}:
        if not ordered:
            report.add(at, _NO_ORDER)
        if frame is not None and (function != "first_value" or _first_of(frame) is None):
            report.add(at, f"{function.upper()} has no frame: it is of all rows; leave ROWS or RANGE out")
    elif frame is not None or ordered:
        ordered, fields = _read_frame(call, ordered, report)
    if function in RANKS:
        fields = _read_rank(call, function, report)
        return TotalCall(function, None, ordered, fields)
    argument = call.this.this
    if function == "count":
        if not argument.is_star:
            report.add(at, "a total counts rows (rule R9); write COUNT(*) OVER (...)")
        return TotalCall(function, None, ordered, fields)
    if function in {"lag", "lead"}:
        fields = _read_offset(call, report)
    return TotalCall(function, argument, ordered, fields)


def _first_of(frame: exp.Expr) -> str | None:
    """Return where a frame ends that begins with the first row: `ROW`, `EQUALS` (the last row that is equal to the row)
    or `END`; None: it does not begin there."""
    start, end = (
        " ".join(str(frame.args.get(name) or "") for name in names).upper().strip()
        for names in (("start", "start_side"), ("end", "end_side"))
    )
    if start != "UNBOUNDED PRECEDING" or frame.args.get("exclude"):
        return None
    if end == "UNBOUNDED FOLLOWING":
        return "END"
    kind = str(frame.args.get("kind")).upper()
    return {"ROWS": "ROW", "RANGE": "EQUALS"}.get(kind) if end in {"", "CURRENT ROW"} else None


def _read_frame(
    call: exp.Expr, ordered: Sequence[exp.Expr], report: Report
) -> tuple[Sequence[exp.Expr], dict[str, Any]]:
    """Return what a running total is ordered by, and its fields. A frame of all rows is that of a total without an
    order."""
    frame = call.args.get("spec")
    ends = "EQUALS" if frame is None else _first_of(frame)
    if ends is None:
        facts = "a running total is of the first rows of a window up to each row (rule R11)"
        todo = "write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, or LAG and LEAD for single rows"
        report.add(node_position(call), f"{facts}; {todo}")
    elif ends == "END":
        return (), {}
    elif not ordered:
        todo = f"write {call.this.sql(comments=False)} OVER ({_WINDOW} ORDER BY ...), or leave ROWS or RANGE out"
        report.add(node_position(call), f"nothing says which row comes first; {todo}")
    return ordered, {"frame": "rows"} if ends == "ROW" else {}


def _read_rank(call: exp.Expr, function: str, report: Report) -> dict[str, Any]:
    """Return the fields of a rank."""
    at, argument = node_position(call), call.this.this
    if function == "ntile":
        buckets = _whole_number(argument)
        if buckets is None:
            report.add(at, "NTILE takes how many parts there are, as a whole number; write for example NTILE(4)")
        return {"buckets": buckets or 1}
    if call.this.expressions or isinstance(argument, exp.Expr):
        report.add(at, f"{function.upper()} takes no argument here; write {function.upper()}() OVER (...)")
    return {}


def _read_offset(call: exp.Expr, report: Report) -> dict[str, Any]:
    """Return the fields of LAG and LEAD."""
    at, name = node_position(call), function_name(call.this)
    offset, default = call.this.args.get("offset"), call.this.args.get("default")
    number = 1 if offset is None else _whole_number(offset)
    if number is None:
        report.add(at, f"{name} takes how many rows are between, as a whole number from 1 on; write for example 1")
    if default is not None:
        value = f"{call.this.key.upper()}({call.this.this.sql()}{f', {number}' if number not in (None, 1) else ''})"
        todo = f"write COALESCE({value} OVER (...), {default.sql()})"
        report.add(at, f"{call.this.key.upper()} takes no default here; {todo}")
    return {} if number in (None, 1) else {"offset": number}


def _whole_number(node: exp.Expr | None) -> int | None:
    """Return a number from 1 on."""
    is_number = isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal()
    return int(node.name) or None if is_number and node is not None else None
