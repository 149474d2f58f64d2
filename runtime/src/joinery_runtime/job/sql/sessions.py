"""Translates an SQL text, with the input of its job, to the fields of a SessionWindow, and the GROUP BY of a StreamJoin
to `spec.aggregate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import TOO_DEEP, parse_tree
from joinery_runtime.job.model.function_calls import declaring
from joinery_runtime.job.model.wording import listed
from joinery_runtime.job.sql.clauses import AGGREGATE_LATENESS, EMIT_EVERY, MAX_DURATION, VALUES_LIMIT, Options
from joinery_runtime.job.sql.group_rows import read_having, read_session_columns, reject_wrong_calls
from joinery_runtime.job.sql.grouping import GroupWindow, read_groups
from joinery_runtime.job.sql.next_groups import read_next, split_window_time
from joinery_runtime.job.sql.query import Query, read_query
from joinery_runtime.job.sql.ranking import Numbering, SqlRanking, read_ranking_of_groups
from joinery_runtime.job.sql.report import SESSIONS, Report, node_position, problems_of, token_position
from joinery_runtime.job.sql.scope import Scope, SqlInput

KEEPING_VALUES = ("count_distinct", "array_agg", "string_agg", "percentile_cont", "percentile_disc", "median")
"""The aggregates that take a `limit`."""


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


# --- behind joins -----------------------------------------------------------------------------------------------------


def read_aggregate(
    query: Query, scope: Scope, options: Options, beside: str | None
) -> tuple[Mapping[str, Any] | None, list[dict[str, str]], SqlRanking | None]:
    """Return `spec.aggregate`, `spec.select`, and what ROW_NUMBER over the groups says; no aggregate if no input is
    known. `beside` is the ranking that `spec` names beside the SQL, if any."""
    reject_wrong_calls(query, scope)
    if not scope.relations:
        return None, [], None
    numbering = Numbering(() if query.numbered else query.qualify, beside)
    groups = read_groups(query, next(iter(scope.relations.values())).table, scope)
    items, times = split_window_time(query.items, scope) if query.then is not None else (query.items, {})
    numbers = numbering.numbers if query.then is None else None
    chosen = read_session_columns(items, groups, scope, numbers)
    having = read_having(query.having, chosen, groups, scope)
    ranking = read_ranking_of_groups(numbering, chosen, groups, scope) if query.then is None else None
    named = list(groups.by_text.values())
    computed = {group.name: group.text for group in named if group.name != group.column} | chosen.computed
    window = None if groups.window is None else _window_fields(groups.window, query, scope, options)
    lateness = options.ms.get(AGGREGATE_LATENESS, 0)
    aggregate: dict[str, Any] = {
        "groupBy": [group.name for group in named],
        "window": window,
        **({"compute": [{"expression": text, "as": name} for name, text in computed.items()]} if computed else {}),
        "aggregates": chosen.aggregates,
        **({"having": having} if having is not None else {}),
        **({"lateData": options.aggregate_late_data} if options.aggregate_late_data != "drop" else {}),
        **({"allowedLateness": lateness} if lateness else {}),
        **({"emitRetractions": True} if options.retractions else {}),
        **({"emit": {"every": options.ms[EMIT_EVERY]}} if EMIT_EVERY in options.ms else {}),
    }
    last = chosen
    if query.then is not None:
        then = read_next(query.then, times, aggregate, chosen, numbering, scope.report)
        aggregate["then"], last, ranking = then
    _set_limits([*chosen.aggregates, *(last.aggregates if last is not chosen else ())], scope, options)
    return aggregate, last.select, ranking


def _set_limits(aggregates: Sequence[dict[str, Any]], scope: Scope, options: Options) -> None:
    """Give the aggregates that keep values the limit of the options."""
    if options.values_limit is None:
        return
    keeping = [item for item in aggregates if item["function"] in KEEPING_VALUES and item.get("method") != "hll"]
    if not keeping:
        scope.report.add(options.at[VALUES_LIMIT], f"is for {listed(KEEPING_VALUES)}, and there is none; leave it out")
    for item in keeping:
        item["limit"] = options.values_limit


def _window_fields(window: GroupWindow, query: Query, scope: Scope, options: Options) -> dict[str, Any]:
    """Return `spec.aggregate.window`."""
    fields = window.fields
    if window.kind == "session":
        if MAX_DURATION not in options.ms and not options.broken:
            facts = "the SQL does not say how long a session may be (rule S2)"
            scope.report.add(query.group_at, f"{facts}; write WITH ('{MAX_DURATION}' = '12h')")
        fields["maxDuration"] = options.ms.get(MAX_DURATION)
    elif MAX_DURATION in options.ms:
        scope.report.add(options.at[MAX_DURATION], f"is for sessions, and the windows are {window.kind}; leave it out")
    return {**({"of": window.of} if window.of is not None else {}), window.kind: fields}


def inputs_aggregated(aggregate: Mapping[str, Any]) -> set[str]:
    """Return the inputs that an aggregate reads."""
    computed = {item["as"]: item["expression"] for item in aggregate.get("compute", ())}
    named = [*aggregate["groupBy"], *(item["column"] for item in aggregate["aggregates"] if "column" in item)]
    texts = [parse_tree(computed[name]) for name in named if name in computed]
    texts += [parse_tree(item["where"]) for item in aggregate["aggregates"] if "where" in item]
    plain = {name.partition(".")[0] for name in named if name not in computed}
    window = aggregate["window"] or {}
    times = {window["of"]} if "of" in window else set()
    return plain | times | {column.table for text in texts for column in text.find_all(exp.Column)}
