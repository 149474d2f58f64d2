"""HAVING: the condition on groups and aggregates, of sessions and of a StreamJoin's `aggregate` (rule G7). QUALIFY: the
one that says which row of a key is emitted (rule D1)."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.function_calls import wrong_calls
from joinery_runtime.job.sql.grouping import Grouping, computed_name, is_aggregate
from joinery_runtime.job.sql.query import Query
from joinery_runtime.job.sql.report import node_position
from joinery_runtime.job.sql.scope import Scope
from joinery_runtime.job.sql.select_list import Chosen, aggregate_entry, own_column


def read_having(condition: exp.Expr | None, chosen: Chosen, groups: Grouping, scope: Scope) -> str | None:
    """Return the condition as `having` writes it; None: there is none. Aggregates that the select list does not have
    are added to those of `chosen`, with their text as name. Wrong names are reported."""
    if condition is None:
        return None
    for node, problem in wrong_calls(condition):
        if not is_aggregate(node) and not own_column(node, scope):
            scope.report.add(node_position(node), problem)
    return _translated(condition.copy(), chosen, groups, scope).sql(comments=False)


def _translated(node: exp.Expr, chosen: Chosen, groups: Grouping, scope: Scope) -> exp.Expr:
    """Replace aggregates, columns of the window, groups and aliases of the select list, in this order, by the names
    that a job's fields give them."""
    if isinstance(node, exp.Query):
        return node  # which `query` has reported
    if is_aggregate(node):
        return _column(_aggregate_name(node, chosen, scope))
    if own := own_column(node, scope):
        return _column(own)
    if (group := _group_name(node, groups, scope)) is not None:
        return _column(group)
    if isinstance(node, exp.Column):
        named = (item["column"] for item in chosen.select if item.get("as", item["column"]) == node.name)
        selected = next(named, None) if not node.table else None
        if selected is None and scope.resolve(node) is not None:
            facts = "is not in GROUP BY, and a group holds many rows of it"
            scope.report.add(node_position(node), f"{facts}; group by it, or write FIRST(...) or LAST(...)")
        return node if selected is None else _column(selected)
    for child in list(node.iter_expressions()):
        translated = _translated(child, chosen, groups, scope)
        if translated is not child:
            child.replace(translated)
    return node


def _column(name: str) -> exp.Expr:
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
    if not columns or not all(column.table in scope.relations or _is_plain(column, scope) for column in columns):
        return None
    qualified = node.copy()
    if not scope.qualify(qualified):
        return None
    group = groups.by_text.get(qualified.unnest().sql(comments=False))
    return group.name if group is not None else None


def _is_plain(column: exp.Column, scope: Scope) -> bool:
    """Say whether this is a column of an input, without the input's name."""
    return not column.table and scope.has_column(column.name)


# --- QUALIFY ----------------------------------------------------------------------------------------------------------

_EXAMPLE = "QUALIFY ROW_NUMBER() OVER (PARTITION BY <key> ORDER BY <event time>) = 1"


def read_qualify(query: Query, scope: Scope) -> dict[str, Any] | None:
    """Return `by`, `of` and `keep` as `deduplicate` writes them (rule D1); None: there is no QUALIFY, or it says
    something else, and then the report says what."""
    condition, report = query.qualify, scope.report
    if condition is None:
        return None
    sides = [condition.this, condition.expression] if isinstance(condition, exp.EQ) else []
    window = next((side for side in sides if isinstance(side, exp.Window)), None)
    literal = next((side for side in sides if isinstance(side, exp.Literal)), None)
    function = window.this.name.upper() if window is not None and isinstance(window.this, exp.Anonymous) else ""
    if window is None or literal is None or literal.this != "1" or function != "ROW_NUMBER" or window.args.get("spec"):
        facts = "of QUALIFY, a job knows that a row is the first or the last one of its key"
        several = "for the first rows of a window `topN` beside sql"
        report.add(node_position(condition), f"{facts}; write {_EXAMPLE}, or {several}")
        return None
    if window.this.expressions:
        report.add(node_position(condition), f"ROW_NUMBER counts rows and takes no argument; write {_EXAMPLE}")
        return None
    if query.grouped:
        facts = "rows of GROUP BY are one for each group and window already"
        report.add(node_position(condition), f"{facts}; leave QUALIFY out")
        return None
    partition, order = window.args.get("partition_by") or [], window.args.get("order")
    ordered = order.expressions if order is not None else []
    columns = [*partition, *(entry.this for entry in ordered)]
    if not partition or len(ordered) != 1 or not all(isinstance(column, exp.Column) for column in columns):
        facts = "needs columns in PARTITION BY, and in ORDER BY the event time of an input"
        report.add(node_position(condition), f"{facts}; write {_EXAMPLE}")
        return None
    resolved = [scope.resolve(column) for column in columns]
    owners = [entry for entry in resolved if entry is not None]
    if len(owners) < len(resolved):
        return None
    *keys, (relation, time) = owners
    if time != relation.table.event_time:
        facts = f"the first and the last row go by event time, and that of {relation.table.name!r} is"
        report.add(node_position(columns[-1]), f"{facts} {relation.table.event_time}; write it into ORDER BY")
        return None
    return {
        "by": [f"{key.table.name}.{name}" for key, name in keys],
        "of": relation.table.name,
        "keep": "last" if ordered[0].args.get("desc") else "first",
    }
