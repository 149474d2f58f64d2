"""The GROUP BY of a StreamJoin: translates it to `spec.aggregate`, and a GROUP BY around it to `aggregate.then`, which
groups the rows of the first one (rule G10).

`derived` keeps the two apart. Here, the names of the outer one become those that the first aggregate gives its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import parse_tree, replace_columns
from joinery_runtime.job.model.references import WINDOW_COLUMNS, parse_reference
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql.clauses import AGGREGATE_LATENESS, EMIT_EVERY, MAX_DURATION, VALUES_LIMIT, Options
from joinery_runtime.job.sql.group_rows import Chosen, read_having, read_session_columns, reject_wrong_calls
from joinery_runtime.job.sql.grouping import (
    Grouping,
    GroupWindow,
    read_group,
    read_groups,
    read_window_call,
    window_function,
)
from joinery_runtime.job.sql.query import NextGroups, Query, Source
from joinery_runtime.job.sql.ranking import Numbering, SqlRanking, read_ranking_of_groups
from joinery_runtime.job.sql.report import Report, node_position
from joinery_runtime.job.sql.scope import Scope, SqlInput
from joinery_runtime.job.sql.select_tree import REJECTED, without_inputs

KEEPING_VALUES = ("count_distinct", "array_agg", "string_agg", "percentile_cont", "percentile_disc", "median")
"""The aggregates that take a `limit`."""
_WINDOW_TIME = "window_time"
"""The event time of the first aggregate's rows, as Flink calls it: the last millisecond of their window."""
_OWN_WINDOW = f"TUMBLE({_WINDOW_TIME}, INTERVAL '1' DAY)"


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
    items, times = _split_window_time(query.items, scope) if query.then is not None else (query.items, {})
    numbers = numbering.numbers if query.then is None else None
    is_last = query.then is None and not query.numbered
    chosen = read_session_columns(items, groups, scope, numbers, has_totals=is_last)
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
        then = _read_next(query.then, times, aggregate, chosen, numbering, scope.report)
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


# --- GROUP BY over GROUP BY -------------------------------------------------------------------------------------------


def _split_window_time(items: Sequence[exp.Expr], scope: Scope) -> tuple[Sequence[exp.Expr], Mapping[str, str]]:
    """Return the first select list without the event time of its rows, which no aggregate emits, and the names that the
    list gives this time."""
    named, first_items = dict[str, str](), list[exp.Expr]()
    for item in items:
        value = item.unalias().unnest()
        if isinstance(value, exp.Column) and value.name == _WINDOW_TIME and not scope.has_column(_WINDOW_TIME):
            named[item.alias_or_name] = _WINDOW_TIME
        else:
            first_items.append(item)
    return first_items, named


def _read_next(
    outer: NextGroups,
    times: Mapping[str, str],
    first: Mapping[str, Any],
    selected: Chosen,
    numbering: Numbering,
    report: Report,
) -> tuple[dict[str, Any], Chosen, SqlRanking | None]:
    """Return `aggregate.then`, what its select list chooses, and how `numbering` ranks its rows. `first` is the first
    aggregate, `selected` its select list, and `times` are names of the time of its rows."""
    computed = {item["as"] for item in first.get("compute", ())}
    by_alias = dict[str, str](times)
    for item in selected.select:
        name = item["as"] if "expression" in item else item["column"]
        reference = parse_reference(name) if "column" in item and name not in computed else None
        name = name if reference is None else reference.column  # a group has no input's name in the rows
        if name in by_alias.values() and name not in WINDOW_COLUMNS:
            report.add(outer.at, f"two columns of the sub-query are {name!r} in its rows; give one another name")
        by_alias[item.get("as", name)] = name
    names = _Names(outer, by_alias, report)
    items, groups = [names.item(item) for item in outer.items], [names.renamed(node) for node in outer.groups]
    columns = [name for name in by_alias.values() if name not in {*WINDOW_COLUMNS, _WINDOW_TIME}]
    alias = outer.alias or "(sub-query)"
    table = SqlInput(alias, (*columns, _WINDOW_TIME), _WINDOW_TIME)
    source = Source(alias, alias, True, outer.at)
    scope = Scope((source,), (table,), report, qualified=False, keeps_groups=True)
    aliases = {item.alias: item.this for item in items if isinstance(item, exp.Alias)}
    starts_differ = "cumulative" not in (first["window"] or {})  # a wrong window is reported
    grouping, window = _read_groups(groups, aliases, table, outer, scope, starts_differ=starts_differ)
    having = names.renamed(outer.having) if outer.having is not None else None
    for node in [*items, *([having] if having is not None else [])]:
        for call in node.find_all(exp.Filter):
            facts = "FILTER is not for an aggregate of an aggregate"
            report.add(node_position(call), f"{facts}; write the condition into WHERE, which leaves rows out")
    renamed = numbering.renamed(names.renamed)
    chosen = read_session_columns(items, grouping, scope, renamed.numbers, has_totals=True)
    condition = read_having(having, chosen, grouping, scope)
    ranking = read_ranking_of_groups(renamed, chosen, grouping, scope)
    of_first = {name: without_inputs(tree) for name, tree in selected.expressions.items()}
    own = {group.name: group.text for group in grouping.by_text.values() if group.column is None} | chosen.computed
    compute = {name: tree.sql(comments=False) for name, tree in of_first.items()}
    compute |= {name: replace_columns(without_inputs(parse_tree(text)).sql(), of_first) for name, text in own.items()}
    then: dict[str, Any] = {
        **({"groupBy": [group.name for group in grouping.by_text.values()]} if grouping.by_text else {}),
        **({"window": {window.kind: window.fields}} if window is not None else {}),
        **({"compute": [{"expression": text, "as": name} for name, text in compute.items()]} if compute else {}),
        "aggregates": chosen.aggregates,
        **({"having": condition} if condition is not None else {}),
    }
    return then, chosen, ranking


class _Names:
    """Replaces the names of the outer SELECT. `by_alias` are the columns of the sub-query, with their names in the rows
    of the first aggregate."""

    def __init__(self, outer: NextGroups, by_alias: Mapping[str, str], report: Report) -> None:
        self._alias, self._by_alias, self._report = outer.alias, by_alias, report
        self._hides_windows = any(window_function(node) for node in outer.groups)
        own = {item.alias for item in outer.items if isinstance(item, exp.Alias)}
        self._own = own | ({*WINDOW_COLUMNS, _WINDOW_TIME} if self._hides_windows else set())

    def item(self, item: exp.Expr) -> exp.Expr:
        """Return an entry of the select list, which keeps the name that it has in the output."""
        renamed = self.renamed(item)
        keeps_name = isinstance(item, exp.Alias) or renamed.alias_or_name == item.alias_or_name
        return renamed if keeps_name else exp.alias_(renamed, item.alias_or_name, copy=False)

    def renamed(self, node: exp.Expr) -> exp.Expr:
        node = node.copy()
        for column in [*node.find_all(exp.Column)]:
            if isinstance(column.this, exp.Star) or column.table not in {"", self._alias}:
                continue
            name = self._by_alias.get(column.name)
            if name is None and column.name not in self._own:
                facts = f"the sub-query has no column {column.name!r}{suggestion(column.name, self._by_alias)}"
                self._report.add(node_position(column), f"{facts}; its columns are {listed(self._by_alias)}")
                column.meta[REJECTED] = True
            elif name in WINDOW_COLUMNS and column.parent is not None and window_function(column.parent):
                facts = "a row of an aggregate counts at the last millisecond of its window"
                self._report.add(node_position(column), f"{facts}; write {_WINDOW_TIME} in place of {column.name}")
                column.meta[REJECTED] = True
            elif name in WINDOW_COLUMNS and self._hides_windows and column.name != name:
                facts = "a time of the first windows is not there behind windows of their rows"
                self._report.add(node_position(column), f"{facts}; leave it out, or write {name} for the outer ones")
                column.meta[REJECTED] = True
            else:
                column.this.set("this", name or column.name)
                if (name or column.name) in WINDOW_COLUMNS:
                    column.set("table", None)
        return node


def _read_groups(
    nodes: Sequence[exp.Expr],
    aliases: Mapping[str, exp.Expr],
    table: SqlInput,
    outer: NextGroups,
    scope: Scope,
    *,
    starts_differ: bool,
) -> tuple[Grouping, GroupWindow | None]:
    """Return the groups and the window; None: the windows are those of the rows, or wrong, which is reported.
    `starts_differ`: no two windows of the rows begin together, so that either time tells the window."""
    grouping, report = Grouping(), scope.report
    before = len(report.problems)
    calls = [node for node in nodes if window_function(node)]
    named = [node for node in nodes if isinstance(node, exp.Column) and node.name in WINDOW_COLUMNS]
    for node in nodes:
        if node not in calls and node not in named:
            read_group(node, aliases, table, grouping, scope)
    grouping.broken = len(report.problems) > before
    tells_window = set(WINDOW_COLUMNS) if starts_differ else {WINDOW_COLUMNS[1]}
    if not calls and tells_window.isdisjoint(node.name for node in named):
        facts = "without a window no group of groups would ever end"
        todo = f"write {', '.join(WINDOW_COLUMNS)} into both SELECTs and GROUP BY, or {_OWN_WINDOW} into this GROUP BY"
        report.add(outer.at, f"{facts}; {todo}")
    if not calls:
        return grouping, None
    for node in [*calls[1:], *named]:
        report.add(node_position(node), "there are two windows; keep one")
    if window_function(calls[0]) == "SESSION":
        facts = "rows of an aggregate are grouped in windows that end together"
        report.add(node_position(calls[0]), f"{facts}; write TUMBLE, HOP or CUMULATE")
        return grouping, None
    return grouping, read_window_call(calls[0], table, scope, "GROUP BY")
