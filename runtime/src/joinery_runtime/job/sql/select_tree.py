"""Reads and changes the tree of a SELECT: marks on its nodes, its own names and conditions, and rows that joins pad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import check_size

BY_STAR, CONDITION, REJECTED = "joinery.star", "joinery.condition", "joinery.rejected"
"""Marks of nodes: a column that a star stands for; the condition of an input that a sub-query filters; a source or a
column that was reported."""
DESCRIPTOR, OF_WINDOW, FIRST = "joinery.descriptor", "joinery.window", "joinery.first"
"""Marks of nodes: a source, with the time that its table function names; a column of the row's window; a SELECT that
groups the groups of another one, with that one, the first."""
OUTER_NAME, NUMBER_ALIAS, NUMBERED = "joinery.outer", "joinery.alias", "joinery.numbered"
"""Marks a column of a sub-query that tests for a match, whose name means no column of the sub-query's own source; the
call of ROW_NUMBER for which an alias stands in QUALIFY; and a SELECT that groups rows which a sub-query numbers."""
TELLS_WINDOW = "joinery.tells"
"""Marks an expression that has another value for each window of a GROUP BY, such as the date of windows of days."""
NUMBERED_AGAIN = (
    "groups of rows that ROW_NUMBER numbers are not numbered again in SQL; write deduplicate: {by: [...], within: 1h} "
    "beside sql in place of the inner number"
)
"""Why rows are not numbered before groups are."""
TEST_KINDS = {"SEMI", "ANTI"}
"""Kinds of JOIN whose right side has no columns in the rows that they make, and that pad none."""


# --- padded rows ------------------------------------------------------------------------------------------------------


def is_padded(number: int, joins: Sequence[exp.Expr]) -> bool:
    """Say whether one of the joins, which are the first ones of a SELECT, pads rows without one of the source."""
    sides = ["" if join.args.get("kind") in TEST_KINDS else join.args.get("side") for join in joins]
    own = sides[number - 1] if 0 < number <= len(sides) else ""
    return own in {"LEFT", "FULL"} or any(side in {"RIGHT", "FULL"} for side in sides[number:])


def joins_before(column: exp.Column, joins: Sequence[exp.Expr]) -> Sequence[exp.Expr]:
    """Return the joins that made the rows of which a condition in ON, or anything behind the joins, reads the
    column."""
    number = next((i for i, join in enumerate(joins) if column.find_ancestor(exp.Join) is join), len(joins))
    return joins[:number]


def is_null_of_nulls(value: exp.Expr) -> bool:
    """Say whether an expression is NULL where all columns are, as sums are, so that one of a time stays a bound."""
    if isinstance(value, exp.Paren | exp.Neg | exp.Cast):
        return is_null_of_nulls(value.this)
    if isinstance(value, exp.Add | exp.Sub | exp.Mul | exp.Div | exp.Mod):
        return is_null_of_nulls(value.left) or is_null_of_nulls(value.right)
    return isinstance(value, exp.Column)


# --- the tree ---------------------------------------------------------------------------------------------------------


def own_columns(select: exp.Select) -> Sequence[exp.Column]:
    """Return the names that the SELECT itself writes: not those of its sub-queries in FROM, and no stars."""
    clauses = [select.args["from_"], *(select.args.get("joins") or [])]
    queries = [clause.this for clause in clauses if isinstance(clause.this, exp.Subquery)]
    inside = {id(column) for query in queries for column in query.find_all(exp.Column)}
    columns = [column for column in select.find_all(exp.Column) if not isinstance(column.this, exp.Star)]
    return [column for column in columns if id(column) not in inside]


def is_nested(column: exp.Expr, select: exp.Select) -> bool:
    """Say whether the column is in a sub-query of the SELECT, where names mean its own input first."""
    return column.parent_select is not select


def without_inputs(expression: exp.Expr) -> exp.Expr:
    """Return a copy whose columns do not name their inputs."""
    plain = expression.copy()
    for column in plain.find_all(exp.Column):
        column.set("table", None)
    return plain


def replace_name(meant: exp.Expr, column: exp.Column) -> None:
    """Replace a name by what it means. A column of the select list keeps its name."""
    value = check_size(meant).copy()
    if isinstance(value, exp.Column) and "start" not in value.this.meta:
        value.this.meta.update(column.this.meta)
    parent = column.parent
    if isinstance(parent, exp.Select) and column.arg_key == "expressions":
        keeps_name = isinstance(value, exp.Column) and value.name == column.name
        column.replace(value if keeps_name else exp.alias_(value, column.name, copy=False))
        return
    wrapped = isinstance(value, exp.Binary | exp.Connector | exp.Not | exp.Between | exp.Case)
    column.replace(exp.paren(value, copy=False) if wrapped and isinstance(parent, exp.Expression) else value)


def add_condition(select: exp.Expr | None, condition: exp.Expr) -> None:
    assert select is not None, "a source is part of a SELECT"
    where = select.args.get("where")
    parts = [condition, *([where.this] if where is not None else [])]
    select.set("where", exp.Where(this=exp.and_(*parts, copy=False)))


def is_ranking(select: exp.Select) -> bool:
    """Say whether rows of the SELECT itself are numbered, or its groups if it has some."""
    numbers = any(item.find(exp.Window) is not None for item in select.expressions)
    return numbers or (select.args.get("qualify") is not None and not select.meta.get(NUMBERED))


def ranking_problem(inner: exp.Select, select: exp.Select) -> str:
    """Say why the SELECT around rows that ROW_NUMBER numbers cannot be part of the job; empty if it can."""
    if select.args.get("group") is not None and is_ranking(select) and inner.args.get("group") is None:
        return NUMBERED_AGAIN
    if select.args.get("joins") or is_ranking(select):
        facts = "rows that ROW_NUMBER numbers are neither joined nor numbered again in one job"
        return f"{facts}; let a second job read this one's output"
    if inner.args.get("group") is not None and select.args.get("group") is not None:
        return "groups that are numbered are not grouped again in one job; let a second job read this one's output"
    return ""


def is_numbering(call: exp.Expr) -> bool:
    """Say whether the call numbers rows: it stands before OVER."""
    if isinstance(call.parent, exp.IgnoreNulls | exp.RespectNulls):
        call = call.parent
    return isinstance(call.parent, exp.Window) and call.arg_key == "this"


def move_conditions(inner: exp.Select, select: exp.Select) -> None:
    """Make the conditions of the SELECT around numbered rows those of QUALIFY. If it groups them, they are numbered
    before that."""
    select.meta[NUMBERED] = select.args.get("group") is not None
    set_conditions(select, "qualify", exp.Qualify, inner.args.get("qualify"), select.args.get("where"))
    select.set("where", None)


def merge_groups(inner: exp.Select, select: exp.Select) -> None:
    """Make the SELECT that of the groups: its own WHERE is about groups."""
    set_conditions(inner, "having", exp.Having, inner.args.get("having"), select.args.get("where"))
    for name in ("from_", "joins", "group", "where", "having", *(["qualify"] if inner.meta.get(NUMBERED) else [])):
        select.set(name, inner.args.get(name))
    select.meta.update({mark: inner.meta[mark] for mark in (FIRST, NUMBERED) if mark in inner.meta})


def set_conditions(select: exp.Select, name: str, kind: type[exp.Expr], *clauses: exp.Expr | None) -> None:
    """Make the conditions of all the clauses one clause of the SELECT; none if there are none."""
    parts = [clause.this for clause in clauses if clause is not None]
    select.set(name, kind(this=exp.and_(*parts, copy=False)) if parts else None)


# --- tests for a match ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExistenceTest:
    """`[NOT] EXISTS (query)` or `value [NOT] IN (query)`; `value` None: EXISTS. `node` is the whole condition."""

    node: exp.Expr
    query: exp.Expr
    value: exp.Expr | None
    negated: bool


def existence_test(node: exp.Expr) -> ExistenceTest | None:
    """Read a condition that tests for a match; None: it does not."""
    negated = isinstance(node, exp.Not)
    test = node.this.unnest() if negated else node
    if isinstance(test, exp.Exists):
        return ExistenceTest(node, test.this, None, negated)
    if isinstance(test, exp.In) and test.args.get("query") is not None:
        return ExistenceTest(node, test.args["query"], test.this.unnest(), negated)
    return None
