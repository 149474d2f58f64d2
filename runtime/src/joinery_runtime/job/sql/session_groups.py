"""GROUP BY of sessions: the group columns, and the gap as SESSION(<event time>, <INTERVAL>) or WINDOW SESSION(...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from joinery_runtime.job.sql.interval import NoBoundError, interval_ms
from joinery_runtime.job.sql.names import Names, SqlInput
from joinery_runtime.job.sql.report import Report, place_of
from joinery_runtime.job.sql.session_parts import SessionParts

_GAP = "write SESSION({time}, INTERVAL '30' SECOND) into GROUP BY"
_OTHERS = {
    **dict.fromkeys(("TUMBLE", "HOP", "CUMULATE", "TUMBLING", "HOPPING"), "a session has no width"),
    "SESSION_WINDOW": "this is called SESSION here",
}


@dataclass(slots=True)
class GroupExpression:
    """One group. `text` is its expression, with columns qualified by the input's own name. `column` is set if the group
    is a plain column. `name` is its name in sessions: the alias in the select list, unless the input has a column of
    that name; else the expression as written."""

    text: str
    column: str | None
    name: str
    selected: bool = False


@dataclass(slots=True)
class SessionGrouping:
    """The groups and the gap. `gap` is in milliseconds; None if the report says what is wrong."""

    gap: int | None = None
    by_text: dict[str, GroupExpression] = field(default_factory=dict)


def read_groups(parts: SessionParts, table: SqlInput, names: Names, report: Report) -> SessionGrouping:
    grouping = SessionGrouping()
    aliases = {item.alias: item.this for item in parts.items if isinstance(item, exp.Alias)}
    sessions = [node for node in parts.groups if _function(node) == "SESSION"]
    group_nodes = [node for node in parts.groups if node not in sessions]
    for node in group_nodes:
        _read_group(node, aliases, table, grouping, names, report)
    _read_gap(sessions, parts, table, grouping, names, report)
    if not group_nodes and parts.groups:
        facts = "there is no group column: one session of the whole stream would not be bounded by key (rule S1)"
        report.add(parts.group_at, f"{facts}; name at least one")
    return grouping


def column_name(value: exp.Expr, names: Names) -> str | None:
    """The input's column that this means; None for another expression, and for a wrong name (which is reported)."""
    resolved = names.find(value) if isinstance(value, exp.Column) and not isinstance(value.this, exp.Star) else None
    return resolved[1] if resolved is not None else None


def unqualified(value: exp.Expr) -> str:
    """The expression with unqualified columns: the name of a computed column that has no other name."""
    plain = value.copy()
    for column in plain.find_all(exp.Column):
        column.set("table", None)
    return plain.sql(comments=False)


def _function(node: exp.Expr) -> str:
    return node.name.upper() if isinstance(node, exp.Anonymous) else ""


# --- groups -------------------------------------------------------------------------------------------------------


def _read_group(
    node: exp.Expr,
    aliases: Mapping[str, exp.Expr],
    table: SqlInput,
    grouping: SessionGrouping,
    names: Names,
    report: Report,
) -> None:
    at, value = place_of(node), node.unnest()
    if isinstance(value, exp.Column) and not value.table and value.name not in table.columns:
        value = aliases.get(value.name, value).unnest()  # an alias of the select list
    value = value.copy()
    problem = _problem(value, table)
    if problem:
        report.add(at, problem)
        return
    column = column_name(value, names) if isinstance(value, exp.Column) else None
    if (isinstance(value, exp.Column) and column is None) or not names.qualify(value):
        return
    text = value.sql(comments=False)
    if text in grouping.by_text:
        report.add(at, "is grouped by twice; keep one")
    grouping.by_text.setdefault(text, GroupExpression(text, column, column or unqualified(value)))


def _problem(value: exp.Expr, table: SqlInput) -> str:
    if isinstance(value, exp.Literal) and not value.is_string:
        return "the number of a column is not supported; write the column"
    if value.find(exp.AggFunc, exp.Window, exp.Query) is not None:
        return "is computed over many rows, and a group is known of each; leave it out"
    other = _OTHERS.get(_function(value))
    return f"{other}; {_GAP.format(time=table.event_time)}" if other else ""


# --- the gap ------------------------------------------------------------------------------------------------------


def _read_gap(
    sessions: Sequence[exp.Expr],
    parts: SessionParts,
    table: SqlInput,
    grouping: SessionGrouping,
    names: Names,
    report: Report,
) -> None:
    window = parts.window
    todo = _GAP.format(time=table.event_time)
    for node in sessions[0 if window is not None else 1 :]:
        report.add(place_of(node), "the gap is said twice; keep one SESSION")
    if window is not None:
        if window.kind != "session":
            report.add(window.at, "a session has no width; write WINDOW SESSION(INTERVAL '30' SECOND)")
        grouping.gap = window.lengths.get("GAP")
    elif sessions:
        grouping.gap = _gap_of_function(sessions[0], table, names, report)
    elif parts.groups:
        report.add(parts.group_at, f"nothing says which rows are of one session (rule S1); {todo}")


def _gap_of_function(node: exp.Expr, table: SqlInput, names: Names, report: Report) -> int | None:
    at, arguments, todo = place_of(node), node.expressions, _GAP.format(time=table.event_time)
    if len(arguments) != 2 or not isinstance(arguments[1], exp.Interval):
        report.add(at, f"takes the event time and an INTERVAL; {todo}")
        return None
    if not isinstance(arguments[0], exp.Column):
        report.add(at, f"gaps are between event times, this is an expression; {todo}")
        return None
    column = column_name(arguments[0], names)
    if column is not None and column != table.event_time:
        facts = f"gaps are between event times, and the eventTime of {table.name!r} is {table.event_time}"
        report.add(place_of(arguments[0]), f"{facts}; {todo}")
    try:
        ms = interval_ms(arguments[1])
    except NoBoundError as error:
        report.add(at, str(error))
        return None
    if ms <= 0 or ms.denominator != 1:
        report.add(at, "the gap must be whole milliseconds, more than none")
        return None
    return int(ms)
