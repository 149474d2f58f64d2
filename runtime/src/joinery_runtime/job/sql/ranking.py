"""ROW_NUMBER: which rows of a key are emitted. `deduplicate` has the first or the last one (rule D1), `topN` the first
ones of each window in an order (rule R1).

QUALIFY says it, or a condition around a sub-query whose select list has ROW_NUMBER, as in Flink: `derived` makes
QUALIFY of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.function_calls import wrong_calls
from joinery_runtime.job.model.references import MOST_RANKED_ROWS, RANK_COLUMNS, WINDOW_COLUMNS
from joinery_runtime.job.sql.distances import MIRRORED
from joinery_runtime.job.sql.group_rows import Chosen, order_entry, over_groups, tells_window, with_totals
from joinery_runtime.job.sql.grouping import (
    OF_JOINS,
    Grouping,
    GroupWindow,
    read_window_call,
    window_function,
    window_of_joins,
)
from joinery_runtime.job.sql.query import Query
from joinery_runtime.job.sql.report import node_position
from joinery_runtime.job.sql.scope import Relation, Scope
from joinery_runtime.job.sql.select_list import FUNCTIONS_OF_ROWS, function_of_rows_problem
from joinery_runtime.job.sql.select_tree import NUMBER_ALIAS
from joinery_runtime.job.sql.total_calls import is_row_number

DEDUPLICATE, TOP_N = "deduplicate", "topN"
"""The fields of `spec` for which ROW_NUMBER stands."""
_FIRST = "QUALIFY ROW_NUMBER() OVER (PARTITION BY <key> ORDER BY <event time>) = 1 and deduplicate beside sql"
_SEVERAL = "PARTITION BY <key>, TUMBLE(<event time>, INTERVAL '1' HOUR) ORDER BY <value> DESC) <= 10"
_EXAMPLES = f"write {_FIRST}, or for the first rows of each window ROW_NUMBER() OVER ({_SEVERAL}"


@dataclass(frozen=True, slots=True)
class SqlRanking:
    """What ROW_NUMBER says: the `field` of `spec` for which it stands, and the `entries` of that field as in YAML.
    `number` is the call, as the select list may repeat it (None: rows have totals and ranks alone)."""

    field: str
    entries: Mapping[str, Any]
    number: exp.Expr | None

    @property
    def inputs(self) -> set[str]:
        """The inputs whose columns decide."""
        texts = [entry["expression"] for entry in self.entries.get("orderBy", ())]
        ordered = {column.table for text in texts for column in parse_tree(text).find_all(exp.Column)}
        timed = {self.entries["of"]} if "of" in self.entries else set()
        return ordered | timed | {name.partition(".")[0] for name in self.entries.get("by", ())}


def read_ranking(query: Query, scope: Scope, beside: str | None) -> SqlRanking | None:
    """Read QUALIFY; None: there is none, or the report says what is wrong with it. `beside` is the field that stands
    beside `sql`, if any."""
    if not query.qualify or (query.grouped and not query.numbered):
        return None
    before = len(scope.report.problems)
    number, rows = _read_conditions(query.qualify, scope)
    if number is None or len(scope.report.problems) > before:
        return None
    ranking = _read_over(number, rows, beside, query, scope)
    if ranking is not None and query.grouped and ranking.field == TOP_N:
        facts = "groups are of all rows, or of the first or last row of each key by event time"
        scope.report.add(node_position(query.qualify[0]), f"{facts}; write {_FIRST}, or let a second job group these")
    return ranking if len(scope.report.problems) == before else None


@dataclass(frozen=True, slots=True)
class Numbering:
    """How groups are numbered: the `conditions` of QUALIFY, and the field that stands `beside` the SQL, if any."""

    conditions: Sequence[exp.Expr]
    beside: str | None

    @property
    def limits(self) -> Sequence[exp.Expr]:
        """The conditions that leave the first rows by one call of ROW_NUMBER, which is `topN.rows`."""
        limits = [(part, limit) for part in self.conditions if (limit := _limits_of(part)) is not None]
        leaves_first = [
            (part, window)
            for part, (window, least, most) in limits
            if is_row_number(window) and least == 1 and most <= MOST_RANKED_ROWS
        ]
        return [part for part, window in leaves_first if window == leaves_first[0][1]]

    @property
    def numbers(self) -> Collection[str] | None:
        """The call of ROW_NUMBER that is `row_number` in the select list, by its text; None: the groups have no such
        number."""
        if not self.conditions and self.beside != TOP_N:
            return None
        return {call.sql(comments=False) for part in self.limits for call in part.find_all(exp.Window)}

    def renamed(self, renamed: Callable[[exp.Expr], exp.Expr]) -> Numbering:
        """Return the numbering with other names in its conditions."""
        return replace(self, conditions=[renamed(condition) for condition in self.conditions])


def read_ranking_of_groups(numbering: Numbering, chosen: Chosen, groups: Grouping, scope: Scope) -> SqlRanking | None:
    """Read the conditions of QUALIFY on the rows of groups (rule R6); None: there are none, or the report says what is
    wrong with them."""
    before, limits = len(scope.report.problems), numbering.limits
    texts = []
    for part in (condition for condition in numbering.conditions if condition not in limits):
        condition = over_groups(with_totals(part, chosen, groups, scope), chosen, groups, scope)
        texts.append(condition.sql(comments=False))
    having = {"having": " AND ".join(texts if len(texts) == 1 else (f"({text})" for text in texts))} if texts else {}
    totals: dict[str, Any] = {"totals": chosen.totals} if chosen.totals else {}
    if not limits and totals:
        by = {"by": chosen.totals_by} if chosen.totals_by else {}
        return SqlRanking(TOP_N, {**by, **totals, **having}, None) if len(scope.report.problems) == before else None
    number, rows = _read_conditions(limits or numbering.conditions, scope) if numbering.conditions else (None, 0)
    if number is None or len(scope.report.problems) > before:
        return None
    partition, order = number.args.get("partition_by") or [], number.args.get("order")
    if not any(tells_window(node.unnest(), scope) for node in partition):
        facts = "groups are numbered in their windows, and a number over all windows would never be the last one"
        scope.report.add(node_position(number), f"{facts}; write {', '.join(WINDOW_COLUMNS)} into PARTITION BY")
    if order is None:
        todo = "write ORDER BY with an aggregate, such as ORDER BY COUNT(*) DESC"
        scope.report.add(node_position(number), f"nothing says which row comes first; {todo}")

    def of_row(value: exp.Expr) -> str:
        return over_groups(value, chosen, groups, scope).sql(comments=False)

    names = []
    for node in partition:
        if tells_window(node.unnest(), scope):
            continue
        key = over_groups(node.unnest(), chosen, groups, scope)
        if isinstance(key, exp.Column):
            names.append(key.name)
        else:
            facts = "the key of the rows is groups and aggregates, this is an expression"
            scope.report.add(node_position(node), f"{facts}; write it into GROUP BY as well, or leave it out")
    ordered = order.expressions if order is not None else []
    order_by = [order_entry(item, of_row(item.this.unnest())) for item in ordered]
    if totals and sorted(names) != sorted(chosen.totals_by or ()):
        facts = "the rows are numbered by other columns than the totals are of"
        scope.report.add(
            node_position(number), f"{facts}; write the same PARTITION BY, or let a second job number them"
        )
    if len(scope.report.problems) > before:
        return None
    by = {"by": names} if names else {}
    return SqlRanking(TOP_N, {**by, "orderBy": order_by, "rows": rows, **totals, **having}, number)


def ranked_columns(
    query: Query, ranking: SqlRanking | None, beside: str | None
) -> tuple[Sequence[str], Mapping[str, dict[str, str]]]:
    """Return the names of the columns that ranked rows have beside those of the inputs, and by their texts the calls of
    ROW_NUMBER that the select list may repeat, each with what it stands for there."""
    field = ranking.field if ranking is not None else TOP_N if query.qualify else beside
    number = {"expression": "1"} if field == DEDUPLICATE else {"column": RANK_COLUMNS[-1]}
    calls = [window for condition in query.qualify for window in condition.find_all(exp.Window)]
    return RANK_COLUMNS if field == TOP_N else (), {call.sql(comments=False): number for call in calls}


# --- which numbers are emitted ----------------------------------------------------------------------------------------


def _read_conditions(conditions: Sequence[exp.Expr], scope: Scope) -> tuple[exp.Expr | None, int]:
    """Return the call of ROW_NUMBER, and the highest number that is emitted; None if the report says what is wrong."""
    report, number = scope.report, None
    least, most = 1, MOST_RANKED_ROWS + 1
    for condition in conditions:
        at, limits = node_position(condition), _limits_of(condition)
        alias = next((window.meta.get(NUMBER_ALIAS, "") for window in condition.find_all(exp.Window)), "")
        if scope.has_column(alias):
            facts = f"{alias} in QUALIFY is the number in the select list, and also a column of the inputs"
            report.add(at, f"{facts}; give the number a name of its own, such as rn")
            continue
        if condition.find(exp.Window) is None:
            facts = "a row is emitted or not by its number and the columns of PARTITION BY"
            subject = "this condition"
            if any(column.name in WINDOW_COLUMNS for column in condition.find_all(exp.Column)):
                facts = "a condition on the times of the windows does not stand beside the number"
                subject = "one on the event time"
            todo = f"write {subject} into the WHERE of the rows that are numbered, or check it where they are read"
            report.add(at, f"{facts}; {todo}")
            continue
        other = next((window for window in condition.find_all(exp.Window) if window.find(*FUNCTIONS_OF_ROWS)), None)
        if limits is None and other is not None:
            report.add(at, function_of_rows_problem(other, scope))
            continue
        if limits is None:
            facts = "the number of a row is compared with whole numbers alone, with =, <, <= or BETWEEN"
            report.add(at, f"{facts}; {_EXAMPLES}")
            continue
        window, lowest, highest = limits
        least, most = max(least, lowest), min(most, highest)
        if problem := _problem_of_call(window, scope):
            report.add(at, problem)
        elif number is not None and window != number:
            report.add(at, "two calls of ROW_NUMBER differ, and a job numbers its rows once; keep one")
        number = window
    at = node_position(conditions[0])
    if number is not None and least > 1:
        facts = f"rows before number {least} have to be emitted too"
        todo = f"write <= {max(least, most) if most <= MOST_RANKED_ROWS else 10}"
        report.add(at, f"{facts}; {todo}, select the number, and leave them out where the rows are read")
    elif number is not None and most < 1:
        report.add(at, "no row has such a number, as the first one is 1; write <= 1 or more")
    elif number is not None and most > MOST_RANKED_ROWS:
        facts = f"at most {MOST_RANKED_ROWS:,} rows of each key and window are emitted"
        report.add(at, f"{facts}; write ROW_NUMBER() OVER (...) <= 10, for example")
    return number, most


def _limits_of(condition: exp.Expr) -> tuple[exp.Expr, int, int] | None:
    """Return the call, the lowest and the highest number for which the condition is true; None for other conditions."""
    no_limit = MOST_RANKED_ROWS + 1
    if isinstance(condition, exp.Between):
        low, high = _whole_number(condition.args["low"]), _whole_number(condition.args["high"])
        window = condition.this.unnest()
        return (window, low, high) if isinstance(window, exp.Window) and low is not None and high is not None else None
    if not isinstance(condition, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
        return None
    left, right = condition.left.unnest(), condition.right.unnest()
    kind: type[exp.Expr] = type(condition)
    if isinstance(right, exp.Window):
        left, right = right, left
        kind = MIRRORED[kind]
    value = _whole_number(right)
    if not isinstance(left, exp.Window) or value is None:
        return None
    limits: Mapping[type[exp.Expr], tuple[int, int]] = {
        exp.EQ: (value, value),
        exp.LT: (1, value - 1),
        exp.LTE: (1, value),
        exp.GT: (value + 1, no_limit),
        exp.GTE: (value, no_limit),
    }
    return (left, *limits[kind])


def _whole_number(node: exp.Expr) -> int | None:
    node = node.unnest()
    return int(node.name) if isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal() else None


def _problem_of_call(window: exp.Expr, scope: Scope) -> str:
    """Say what is wrong with `<function> OVER (...)`; empty if nothing."""
    name = window.this.name.upper() or window.this.sql_name() if isinstance(window.this, exp.Func) else ""
    if isinstance(window.this, exp.Rank | exp.DenseRank):
        facts = f"{name} gives equal rows one number, so no number of rows would be enough for the first ones"
        return f"{facts}; write ROW_NUMBER(), which gives each row its own (rule R2), or rank groups (rule R10)"
    if window.find(*FUNCTIONS_OF_ROWS) is not None:
        return function_of_rows_problem(window, scope)
    if name != "ROW_NUMBER":
        return f"a job numbers rows with ROW_NUMBER alone; {_EXAMPLES}"
    if window.this.expressions:
        return f"ROW_NUMBER counts rows and takes no argument; {_EXAMPLES}"
    if window.args.get("alias") is not None:
        return "a name behind OVER is not read; write OVER (PARTITION BY ... ORDER BY ...)"
    if window.args.get("spec") is not None:
        return "ROW_NUMBER has no frame: it numbers all rows; leave ROWS or RANGE out"
    return ""


# --- PARTITION BY and ORDER BY ----------------------------------------------------------------------------------------


def _read_over(number: exp.Expr, rows: int, beside: str | None, query: Query, scope: Scope) -> SqlRanking | None:
    partition, order = number.args.get("partition_by") or [], number.args.get("order")
    calls = [node for node in partition if window_function(node)]
    of_joins = [node for node in partition if scope.is_window_column(node.unnest())]
    keys = [node for node in partition if node not in calls and node not in of_joins]
    ordered = order.expressions if order is not None else []
    if not ordered:
        scope.report.add(node_position(number), f"nothing says which row comes first; {_EXAMPLES}")
    for call in calls[1:]:
        scope.report.add(node_position(call), "there are two windows; keep one")
    window = _read_window(calls[0], scope) if calls else None
    if of_joins:
        window = window_of_joins(of_joins, calls, query, scope)
    by = [name for key in keys if (name := _read_key(key, scope)) is not None]
    timed: Relation | None = None  # the input whose event time alone ORDER BY names
    if len(ordered) == 1 and isinstance(ordered[0].this, exp.Column):
        resolved = scope.resolve(ordered[0].this)
        if resolved is not None and resolved[1] == resolved[0].table.event_time:
            timed = resolved[0]
    first = timed if rows == 1 and keys and not calls and not of_joins else None
    if beside == DEDUPLICATE and first is None:
        _reject_deduplication(number, rows, calls, ordered, scope)
        return None
    if beside != TOP_N and first is not None:
        keep = "last" if ordered[0].args.get("desc") else "first"
        return SqlRanking(DEDUPLICATE, {"by": by, "of": first.table.name, "keep": keep}, number)
    entries: dict[str, Any] = {"by": by} if by else {}
    entries |= {"orderBy": [*_read_order(ordered, scope)], "rows": rows}
    if window is not None and window.kind != OF_JOINS:
        entries |= {"of": window.of, "window": {window.kind: window.fields}}
    return SqlRanking(TOP_N, entries, number)


def _read_window(call: exp.Expr, scope: Scope) -> GroupWindow | None:
    if window_function(call) == "SESSION":
        facts = "each session ends at a time of its own, and rows are ranked in windows that end together"
        scope.report.add(node_position(call), f"{facts}; write TUMBLE, HOP or CUMULATE")
        return None
    table = next(iter(scope.relations.values())).table if scope.relations else None
    return read_window_call(call, table, scope, "PARTITION BY") if table is not None else None


def _read_key(key: exp.Expr, scope: Scope) -> str | None:
    """Return a column of the key as YAML writes it; None if it is wrong, which is reported."""
    node = key.unnest()
    if not isinstance(node, exp.Column):
        facts = "the key of the rows is columns, this is an expression"
        scope.report.add(node_position(key), f"{facts}; write columns of the inputs into PARTITION BY")
        return None
    if not node.table and node.name in WINDOW_COLUMNS and not scope.has_column(node.name):
        todo = "write TUMBLE(<event time>, INTERVAL '1' HOUR) in place of window_start, window_end"
        scope.report.add(node_position(key), f"nothing says which windows these are; {todo}")
        return None
    resolved = scope.resolve(node)
    return f"{resolved[0].table.name}.{resolved[1]}" if resolved is not None else None


def _reject_deduplication(
    number: exp.Expr, rows: int, calls: Sequence[exp.Expr], ordered: Sequence[exp.Expr], scope: Scope
) -> None:
    """Say why the SQL is not that of `deduplicate`, which stands beside it."""
    times = [f"{alias}.{relation.table.event_time}" for alias, relation in scope.visible.items()]
    facts = "deduplicate, which stands beside sql, emits the first or the last row of a key by event time"
    if rows > 1:
        todo = "write = 1"
    elif calls:
        todo = "leave the window out, which deduplicate.within is"
    elif not number.args.get("partition_by"):
        todo = "name the key in PARTITION BY"
    elif ordered and times:
        todo = f"write ORDER BY {' or '.join(times)}"
    else:
        return  # nothing says which row comes first, or what is read, which is reported
    scope.report.add(node_position(number), f"{facts}; {todo}, or for the first rows of a window topN beside sql")


def _read_order(ordered: Sequence[exp.Expr], scope: Scope) -> Iterator[dict[str, str]]:
    """Yield the entries of `orderBy`; wrong ones are reported."""
    for entry in ordered:
        value = entry.this.unnest().copy()
        if value.find(exp.AggFunc, exp.Window, exp.Query) is not None or isinstance(value, exp.Literal):
            facts = "rows are ordered by columns and expressions of each row alone"
            scope.report.add(node_position(entry), f"{facts}; write a column of an input")
            continue
        problems = [*wrong_calls(value)]
        for node, problem in problems:
            scope.report.add(node_position(node), problem)
        if problems or not scope.qualify(value):
            continue
        yield order_entry(entry, value.sql(comments=False))
