"""The rows of groups, of sessions and of a StreamJoin's `aggregate`: the select list, which may compute with groups,
aggregates and columns of the window (rule G11), and HAVING (rule G7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.expression_tree import check_size, parse_tree
from joinery_runtime.job.model.function_calls import cannot_call, wrong_calls
from joinery_runtime.job.model.references import RANKS, ROW_NUMBER, SESSION_COLUMNS, VALUES_OF_OTHERS, WINDOW_COLUMNS
from joinery_runtime.job.sql.dialects import is_aggregate
from joinery_runtime.job.sql.grouping import (
    BadAggregateError,
    Grouping,
    column_name,
    computed_name,
    number_problem,
    read_call,
    unknown_aggregate,
)
from joinery_runtime.job.sql.query import Query
from joinery_runtime.job.sql.report import TextPosition, node_position
from joinery_runtime.job.sql.scope import Scope
from joinery_runtime.job.sql.select_tree import TELLS_WINDOW, is_numbering, without_inputs
from joinery_runtime.job.sql.total_calls import TotalCall, is_total, read_total_call
from joinery_runtime.job.sql.window_functions import function_name

_ELSEWHERE = {
    **dict.fromkeys(("SESSION_START", "TUMBLE_START", "HOP_START", "WINDOWSTART"), "window_start"),
    **dict.fromkeys(("SESSION_END", "TUMBLE_END", "HOP_END", "WINDOWEND"), "window_end"),
}


@dataclass(slots=True)
class Chosen:
    """What the select list asks for. `numbers` are the calls of ROW_NUMBER that it may repeat, by their texts; None:
    its rows have no numbers. `computed` are expressions of rows by the names of their columns; `aggregates` and
    `select` are entries of the fields of these names. `expressions` are those of `select`, by their names. `totals` are
    values over all groups of a window that are equal in the columns `totals_by` (None: there is no total), and ranks
    among these groups, as entries of `topN.totals` (rules R9 to R11)."""

    numbers: Collection[str] | None = None
    totals: list[dict[str, Any]] = field(default_factory=list)
    totals_by: Sequence[str] | None = None
    computed: dict[str, str] = field(default_factory=dict)
    aggregates: list[dict[str, Any]] = field(default_factory=list)
    select: list[dict[str, str]] = field(default_factory=list)
    expressions: dict[str, exp.Expr] = field(default_factory=dict)

    def add(self, column: str, name: str) -> None:
        self.select.append({"column": column, **({"as": name} if name not in {"", column} else {})})


def reject_wrong_calls(query: Query, scope: Scope) -> None:
    """Report calls of the select list, of GROUP BY and of WHERE that no scalar function accepts. Groups and columns may
    be calls of SESSION, and hold aggregates and times of windows."""
    roots = [*(item.unalias().unnest() for item in query.items), *query.groups]
    for root in roots:
        _reject_calls(root, scope, but=root)
    if query.where is not None:
        for node, problem in wrong_calls(query.where):
            scope.report.add(node_position(node), problem)


def _reject_calls(tree: exp.Expr, scope: Scope, but: exp.Expr | None = None) -> None:
    """Report wrong calls in an expression over groups. `but` is a call that is read in another way."""
    for node, problem in wrong_calls(tree):
        if node is not but and not (is_aggregate(node) or is_numbering(node) or own_column(node, scope)):
            scope.report.add(node_position(node), problem)


# --- the select list --------------------------------------------------------------------------------------------------


def read_session_columns(
    items: Sequence[exp.Expr],
    groups: Grouping,
    scope: Scope,
    numbers: Collection[str] | None = None,
    *,
    has_totals: bool = False,
) -> Chosen:
    """Read the select list, and give groups their names. Expressions come last: groups have their names then, and
    aggregates of the list are not computed twice. `numbers` as in `Chosen`; `has_totals`: the list may have totals."""
    chosen, expressions = Chosen(numbers), list[tuple[dict[str, str], exp.Expr]]()
    for item in items:
        at, value = node_position(item), item.unalias().unnest()
        renamed = item.alias if isinstance(item, exp.Alias) else ""
        own = own_column(value, scope)
        if own:
            if isinstance(value, exp.Anonymous) and not renamed:
                scope.report.add(at, f"is called {own} here (rule S6); write {own}, or give it a name with AS")
            chosen.add(own, renamed or value.name)  # ksqlDB's WINDOWSTART keeps its name
        elif _is_number(value, chosen, scope):
            if isinstance(value, exp.Window) and not renamed:
                scope.report.add(at, "the number has no name of its own; write ROW_NUMBER() OVER (...) AS <name>")
            chosen.add(ROW_NUMBER, renamed)
        elif value.is_star:
            scope.report.add(at, "a star is not supported: a group holds many rows; name groups and aggregates")
        elif is_aggregate(value) and not (has_totals and is_total(value)):
            _read_aggregate(value, renamed, at, chosen, scope)
        elif is_aggregate(value) or _is_expression(value, groups, scope):
            if renamed:
                chosen.select.append(entry := {"as": renamed})
                expressions.append((entry, value))
            else:
                scope.report.add(at, "an expression has no name of its own; write <expression> AS <name>")
        else:
            _read_group_item(value, renamed, at, chosen, groups, scope)
    _read_expressions(expressions, chosen, groups, scope, has_totals=has_totals)
    return chosen


def _read_expressions(
    expressions: Sequence[tuple[dict[str, str], exp.Expr]],
    chosen: Chosen,
    groups: Grouping,
    scope: Scope,
    *,
    has_totals: bool,
) -> None:
    """Read totals and expressions of the select list into their entries of `select`, which have their names."""
    for entry, value in expressions:
        if is_total(value):
            renamed = entry.pop("as")
            column = total_name(value, renamed, chosen, groups, scope)
            entry.update({"column": column} if column == renamed else {"column": column, "as": renamed})
            continue
        tree = with_totals(value, chosen, groups, scope) if has_totals else value.copy()
        chosen.expressions[entry["as"]] = _translate_names(tree, chosen, groups, scope)
        entry["expression"] = chosen.expressions[entry["as"]].sql(comments=False)


def total_name(call: exp.Expr, name: str, chosen: Chosen, groups: Grouping, scope: Scope) -> str:
    """Return the name of the total or rank, after adding it if the list does not have it. `name` is the one in the
    list; an unnamed total has its text. Wrong ones are reported."""
    at, partition = node_position(call), call.args.get("partition_by") or []
    total = read_total_call(call, scope.report)
    keys = [
        over_groups(node.unnest(), chosen, groups, scope)
        for node in partition
        if not tells_window(node.unnest(), scope)
    ]
    if len(keys) == len(partition):
        scope.report.add(at, over_windows_problem(total, scope))
    values = [] if total.argument is None else [over_groups(total.argument, chosen, groups, scope)]
    if not all(isinstance(key, exp.Column) for key in keys):
        facts = "the keys of a total are groups and aggregates, and the times of windows; this is an expression"
        scope.report.add(at, f"{facts}; write it into GROUP BY as well")
        return name
    by = [key.name for key in keys]
    if chosen.totals_by not in (None, by):
        scope.report.add(at, "the totals are of different groups; let a second job compute one of them")
    chosen.totals_by = by
    entry: dict[str, Any] = {"function": total.function}
    for value in values:
        entry |= {"column": value.name} if isinstance(value, exp.Column) else {"expression": value.sql(comments=False)}
    if total.ordered:
        entry["orderBy"] = [
            order_entry(item, over_groups(item.this.unnest(), chosen, groups, scope).sql(comments=False))
            for item in total.ordered
        ]
    entry |= total.fields
    for other in chosen.totals:
        if {**other, "as": ""} == {**entry, "as": ""}:
            return str(other["as"])
    chosen.totals.append({**entry, "as": name or computed_name(call, scope)})
    return name or computed_name(call, scope)


def over_windows_problem(total: TotalCall, scope: Scope) -> str:
    """Say why no total is over the groups of several windows, and what to write."""
    by_time = any(tells_window(item.this.unnest(), scope) for item in total.ordered)
    if by_time and total.function in VALUES_OF_OTHERS:
        facts = "the group of another window may have been emitted long ago, and this window has not (rule R11)"
        joined = "b.window_start = a.window_start - <length> beside the equality of the groups"
        return f"{facts}; let a second job read the groups, and LEFT JOIN each with the one before: {joined}"
    if by_time and total.function not in RANKS:
        facts = "a running total over all windows would never end (rule R11)"
        todo = "GROUP BY with CUMULATE(...) for one since the begin of a day, or HOP(...) for one of the last windows"
        return f"{facts}; write {todo}"
    facts = "a total over all windows would never be complete (rule R9)"
    return f"{facts}; write {', '.join(WINDOW_COLUMNS)} into PARTITION BY"


def order_entry(entry: exp.Expr, expression: str) -> dict[str, str]:
    """Return the entry of `orderBy` for one of ORDER BY, with its `expression` in the job's names."""
    descending, nulls_first = bool(entry.args.get("desc")), bool(entry.args.get("nulls_first"))
    item = {"expression": expression} | ({"direction": "desc"} if descending else {})
    if nulls_first == descending:  # unlike the default, by which NULL is the lowest value
        item["nulls"] = "first" if nulls_first else "last"
    return item


def with_totals(value: exp.Expr, chosen: Chosen, groups: Grouping, scope: Scope) -> exp.Expr:
    """Return a copy with the names of totals in their place. The number `row_number` stays."""

    def named(node: exp.Expr) -> exp.Expr:
        if not is_total(node) or _is_number(node, chosen, scope):
            return node
        return _column_named(total_name(node, "", chosen, groups, scope))

    return value.transform(named)


def own_column(value: exp.Expr, scope: Scope) -> str:
    """Return the column of sessions that this names, even in other systems' terms; empty if none."""
    plain = isinstance(value, exp.Column) and not value.table and not scope.has_column(value.name)
    if plain and value.name in SESSION_COLUMNS:
        return value.name
    return _ELSEWHERE.get(value.name.upper(), "") if plain or isinstance(value, exp.Anonymous) else ""


def tells_window(value: exp.Expr, scope: Scope) -> bool:
    """Say whether an entry of PARTITION BY has another value for each window."""
    return TELLS_WINDOW in value.meta or own_column(value, scope) != ""


def _is_number(value: exp.Expr, chosen: Chosen, scope: Scope) -> bool:
    """Say whether this is the number of a row that `topN` ranks."""
    if chosen.numbers is None:
        return False
    if isinstance(value, exp.Window):
        return value.sql(comments=False) in chosen.numbers
    is_plain = isinstance(value, exp.Column) and not value.table and value.name == ROW_NUMBER
    return is_plain and not scope.has_column(ROW_NUMBER)


def _is_expression(value: exp.Expr, groups: Grouping, scope: Scope) -> bool:
    """Say whether this is computed of groups, aggregates and columns of the window, and is no group itself."""
    if isinstance(value, exp.Column | exp.Query) or _group_name(value, groups, scope) is not None:
        return False
    return not isinstance(value, exp.Anonymous) or not cannot_call(value.name.upper(), len(value.expressions))


def _read_group_item(
    value: exp.Expr,
    renamed: str,
    at: TextPosition,
    chosen: Chosen,
    groups: Grouping,
    scope: Scope,
) -> None:
    qualified = value.copy()
    if qualified.find(exp.Query) is not None or not scope.qualify(qualified):
        return
    group = groups.by_text.get(qualified.sql(comments=False))
    is_unknown = isinstance(value, exp.Anonymous) and cannot_call(value.name.upper(), len(value.expressions)) != ""
    if group is None and (groups.by_text or not groups.broken or is_unknown):
        unknown_function = unknown_aggregate(value)
        many = "is not in GROUP BY, and a group holds many rows of it; group by it, or write FIRST(...) or LAST(...)"
        scope.report.add(at, unknown_function if is_unknown else many)
    elif group is not None and group.selected:
        scope.report.add(at, "this group is selected twice; keep one")
    elif group is not None:
        group.selected = True
        if renamed and not scope.has_column(renamed) and not (scope.keeps_groups and group.column is not None):
            group.name = renamed
        chosen.add(group.name, renamed)


def _read_aggregate(value: exp.Expr, renamed: str, at: TextPosition, chosen: Chosen, scope: Scope) -> None:
    entry = aggregate_entry(value, at, chosen, scope)
    if entry is None:
        return
    if renamed:
        chosen.aggregates.append({**entry, "as": renamed})
        chosen.add(renamed, "")
    else:
        scope.report.add(at, "an aggregate has no name of its own; write <aggregate> AS <name>")


def aggregate_entry(value: exp.Expr, at: TextPosition, chosen: Chosen, scope: Scope) -> dict[str, Any] | None:
    """Return the entry of `aggregates` for a call, without its name; None if the call is wrong, which is reported.
    Expressions in it become computed columns of `chosen`."""
    if isinstance(value, exp.Window) and scope.keeps_groups:  # not of sessions
        scope.report.add(at, number_problem(value))
        return None
    value = without_time_order(value, scope)
    try:
        call = read_call(value)
    except BadAggregateError as error:
        scope.report.add(at, str(error))
        return None
    times = [own_column(node, scope) for node in value.find_all(exp.Column, exp.Anonymous)]
    if any(name in WINDOW_COLUMNS for name in times):
        facts = "an aggregate reads rows, each of which may be in several windows, and none of their times"
        todo = "write GROUP BY with shorter windows, and aggregate their groups in a SELECT around that"
        scope.report.add(at, f"{facts}; {todo}")
        return None
    entry: dict[str, Any] = {"function": call.function, "as": "", **call.options}
    for name, argument in (("column", call.argument), ("by", call.by)):
        if argument is None:
            continue
        column = column_name(argument, scope) if isinstance(argument, exp.Column) else None
        qualified = argument.copy()
        if not isinstance(argument, exp.Column) and qualified.find(exp.Query) is None and scope.qualify(qualified):
            column = computed_name(qualified, scope)
            chosen.computed[column] = qualified.sql(comments=False)
        if column is None:
            return None
        entry[name] = column
    if call.where is not None:
        condition = call.where.copy()
        if condition.find(exp.AggFunc, exp.Window) is not None:
            scope.report.add(at, "FILTER is about rows before they are aggregated; name columns in it")
            return None
        if not scope.qualify(condition):
            return None
        entry["where"] = condition.sql(comments=False)
    return entry


def without_time_order(value: exp.Expr, scope: Scope) -> exp.Expr:
    """Return the call without ORDER BY an only input's event time, which is the order of values in any case (S7)."""
    order = value.find(exp.Order)
    if order is None or len(scope.relations) != 1 or len(order.expressions) != 1 or order.find(exp.AggFunc) is not None:
        return value
    (ordered,) = order.expressions
    column = ordered.this.unnest()
    resolved = scope.resolve(column) if isinstance(column, exp.Column) else None
    if ordered.args.get("desc") or resolved is None or resolved[1] != resolved[0].table.event_time:
        return value
    if isinstance(value, exp.WithinGroup):
        return value.this if function_name(value.this) == "LISTAGG" else value
    value = value.copy()
    order = value.find(exp.Order)
    assert order is not None, "as in the original"
    order.replace(order.this)
    return value


# --- HAVING, and expressions over groups ------------------------------------------------------------------------------


def read_having(condition: exp.Expr | None, chosen: Chosen, groups: Grouping, scope: Scope) -> str | None:
    """Return the condition as `having` writes it; None: there is none. Aggregates that the select list does not have
    are added to those of `chosen`, with their text as name. Wrong names are reported."""
    if condition is None:
        return None
    _reject_calls(condition, scope)
    return _translate_names(condition.copy(), chosen, groups, scope).sql(comments=False)


def over_groups(node: exp.Expr, chosen: Chosen, groups: Grouping, scope: Scope) -> exp.Expr:
    """Return an expression over groups and aggregates with the names that they have in the rows of the groups, where a
    group has no input's name. Wrong names and calls are reported."""
    _reject_calls(node, scope)
    return without_inputs(_translate_names(node.copy(), chosen, groups, scope))


def _translate_names(node: exp.Expr, chosen: Chosen, groups: Grouping, scope: Scope) -> exp.Expr:
    """Replace aggregates, columns of the window, groups and aliases of the select list, in this order, by the names
    that a job's fields give them."""
    if isinstance(node, exp.Query):
        return node  # which `query` has reported
    if _is_number(node, chosen, scope):
        return exp.column(ROW_NUMBER)
    if is_aggregate(node):
        return _column_named(_aggregate_name(node, chosen, scope))
    if own := own_column(node, scope):
        return _column_named(own)
    if (group := _group_name(node, groups, scope)) is not None:
        return _column_named(group)
    if isinstance(node, exp.Column):
        if not node.table and any(node.name == total["as"] for total in chosen.totals):
            return node
        if not node.table and node.name in chosen.expressions:
            return exp.paren(check_size(chosen.expressions[node.name]))
        columns = ((item, item["column"]) for item in chosen.select if "column" in item)
        named = (column for item, column in columns if item.get("as", column) == node.name)
        selected = next(named, None) if not node.table else None
        if selected is None and scope.resolve(node) is not None:
            facts = "is not in GROUP BY, and a group holds many rows of it"
            scope.report.add(node_position(node), f"{facts}; group by it, or write FIRST(...) or LAST(...)")
        return node if selected is None else _column_named(selected)
    for child in list(node.iter_expressions()):
        translated = _translate_names(child, chosen, groups, scope)
        if translated is not child:
            child.replace(translated)
    return node


def _column_named(name: str) -> exp.Expr:
    """Write a name of a group or an aggregate as a column, in quotes where it needs them."""
    try:
        column = parse_tree(name)
    except SqlglotError:
        return exp.column(name, quoted=True)
    return column if isinstance(column, exp.Column) and column.sql() == name else exp.column(name, quoted=True)


def _aggregate_name(node: exp.Expr, chosen: Chosen, scope: Scope) -> str:
    """Return the name of the aggregate that the call means, after adding it if the select list does not have it."""
    name = computed_name(node, scope)
    entry = aggregate_entry(node, node_position(node), chosen, scope)
    if entry is None:
        return name
    for aggregate in chosen.aggregates:
        if {**aggregate, "as": ""} == {**entry, "as": ""}:
            return str(aggregate["as"])
    chosen.aggregates.append({**entry, "as": name})
    return name


def _group_name(node: exp.Expr, groups: Grouping, scope: Scope) -> str | None:
    """Return the name of the group that the expression is; None: it is none."""
    columns = list(node.find_all(exp.Column))
    of_inputs = [
        column.table in scope.relations if column.table else scope.has_column(column.name) for column in columns
    ]
    if not columns or not all(of_inputs):
        return None
    qualified = node.copy()
    if not scope.qualify(qualified):
        return None
    group = groups.by_text.get(qualified.unnest().sql(comments=False))
    return group.name if group is not None else None
