"""HAVING: the condition on groups and aggregates, of sessions and of a StreamJoin's `aggregate` (rule G7)."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.function_calls import wrong_calls
from joinery_runtime.job.sql.grouping import Grouping, computed_name, is_aggregate
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
