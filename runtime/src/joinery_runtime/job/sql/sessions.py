"""Translates an SQL text, with the input of its job, to the fields of a SessionWindow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.expression_tree import TOO_DEEP
from joinery_runtime.job.model.function_calls import declaring
from joinery_runtime.job.sql.group_rows import read_having, read_session_columns, reject_wrong_calls
from joinery_runtime.job.sql.grouping import read_groups
from joinery_runtime.job.sql.query import Query, read_query
from joinery_runtime.job.sql.report import SESSIONS, Report, node_position, problems_of, token_position
from joinery_runtime.job.sql.scope import Scope, SqlInput


@dataclass(frozen=True, slots=True)
class SessionTranslation:
    """A translation. `fields` are groupBy, gap, compute, where, aggregates, having and select as in YAML. With
    `problems` they must not be used."""

    fields: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def check_session_shape(sql: str) -> tuple[str, ...]:
    """Return what is wrong with the text, whatever the input is."""
    return problems_of(sql, lambda text, report: _read_sessions(text, {}, report))


@lru_cache(maxsize=64)
def translate_sessions(sql: str, table: SqlInput, functions: tuple[str, ...] = ()) -> SessionTranslation:
    """Translate the text; `table` is the job's input, `functions` are those that it declares."""
    try:
        with declaring(functions):
            return _translate(sql, table)
    except RecursionError:
        return SessionTranslation(problems=(TOO_DEEP,))
    except SqlglotError as error:  # see `joins.translate`
        return SessionTranslation(problems=(str(error),))


def _read_sessions(sql: str, columns: Mapping[str, Sequence[str]], report: Report) -> Query | None:
    """Read the text and check its parts; None without a SELECT and FROM, and the report says so."""
    query = read_query(sql, report, SESSIONS, columns)
    if query is None:
        return None
    if query.then is not None:
        report.add(query.then.at, "a job of sessions aggregates once; let a second job read this one's output")
    for join in query.joined:
        report.add(join.source.at, "sessions are of one input; join in a StreamJoin whose output this job reads")
    if query.options:
        todo = "write lateData, allowedLateness and maxDuration as fields of the resource"
        report.add(token_position(query.options[0]), f"options are of joins; {todo}")
    if query.final is not None:
        report.add(query.final, f"EMIT FINAL is not supported: {SESSIONS.final}; write EMIT CHANGES")
    if query.window is not None and query.window.grace_at is not None:
        facts = "how long late rows count is a field of the resource"
        report.add(query.window.grace_at, f"{facts}; write allowedLateness, and leave GRACE PERIOD out")
    if query.first is None:
        report.add(query.start, f"no input is named; {SESSIONS.example}")
        return None
    if query.first.as_of is not None:
        report.add(query.first.at, "FOR SYSTEM_TIME is for a table that is joined; leave it out")
    if not query.items:
        report.add(query.start, f"selects nothing; {SESSIONS.example}")
    if not query.grouped:
        report.add(query.start, f"there is no GROUP BY; {SESSIONS.example}")
    return query


def _translate(sql: str, table: SqlInput) -> SessionTranslation:
    report = Report(sql)
    query = _read_sessions(sql, {table.name: table.columns}, report)
    if query is None or query.first is None:
        return SessionTranslation(problems=report.problems)
    scope = Scope((query.first,), (table,), report, qualified=False, keeps_groups=False)
    reject_wrong_calls(query, scope)
    groups = read_groups(query, table, scope)
    chosen = read_session_columns(query.items, groups, scope)
    where, condition = None, query.where.copy() if query.where is not None else None
    if condition is not None and condition.find(exp.AggFunc, exp.Window) is not None:
        facts = "WHERE is about rows before they are aggregated"
        report.add(node_position(condition), f"{facts}; write this into HAVING")
    elif condition is not None and scope.qualify(condition):
        where = condition.sql(comments=False)
    having = read_having(query.having, chosen, groups, scope)
    named = list(groups.by_text.values())
    computed = {group.name: group.text for group in named if group.name != group.column} | chosen.computed
    fields = {
        "groupBy": [group.name for group in named],
        "gap": None if groups.window is None else groups.window.lengths.get("gap"),
        "compute": [{"expression": text, "as": name} for name, text in computed.items()],
        **({"where": where} if where is not None else {}),
        "aggregates": chosen.aggregates,
        **({"having": having} if having is not None else {}),
        "select": chosen.select,
    }
    return SessionTranslation(fields, report.problems)
