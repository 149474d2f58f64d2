"""Splits ON and WHERE at their ANDs, and finds the join to which each condition belongs.

A condition in WHERE applies to the rows that the last join emits; one in ON applies to the pairs of its join. Either
may move to an earlier join if the same rows come out: then failing rows are dropped sooner (rule J4), and a bound on
time reaches the join that needs it. A condition in WHERE that cannot move is the `filter` of the last join (rule J11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import split_ands
from joinery_runtime.job.model.references import EXISTENCE, JoinType
from joinery_runtime.job.sql.query import JoinClause, Source
from joinery_runtime.job.sql.report import Report, TextPosition, node_position
from joinery_runtime.job.sql.scope import Relation, Scope

_MIRRORED: dict[JoinType, JoinType] = {"inner": "inner", "left": "right", "right": "left", "full": "full"}
_DROPS = {"inner", "semi"}
"""The types of join that emit no row for which the condition on matches is not true."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """One condition. Columns of `node` are qualified with the inputs' own names; `inputs` are these names, and the
    empty one for the times of windows; `at` is the condition's place in the text."""

    node: exp.Expr
    inputs: frozenset[str]
    at: TextPosition


@dataclass(frozen=True, slots=True)
class ClauseConditions:
    """The conditions of one clause; `broken` says that one was rejected."""

    good: tuple[Predicate, ...] = ()
    broken: bool = False


def read_predicates(
    condition: exp.Expr | None, scope: Scope, tested: Source | None = None, *, behind_joins: bool = False
) -> ClauseConditions:
    """Read a clause; `tested` and `behind_joins` as in `Scope.qualify`."""
    if condition is None:
        return ClauseConditions()
    predicates, broken = [], False
    for node in (part.copy() for part in split_ands(condition)):
        at = node_position(node)  # before names are replaced
        if node.find(exp.Query) is None and scope.qualify(node, tested, behind_joins=behind_joins):
            predicates.append(Predicate(node, frozenset(column.table for column in node.find_all(exp.Column)), at))
        else:
            broken = True  # a sub-query, which `query` has reported, or a wrong name
    return ClauseConditions(tuple(predicates), broken)


# --- the chain of joins -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Link:
    """One join: of `right` to what `earlier` have made. `predicates` are conditions on matches, `filters` those on the
    rows that the join emits. `broken`: a condition was rejected, which may have meant what is missing."""

    earlier: tuple[Relation, ...]
    right: Relation
    type: JoinType
    joined: JoinClause
    predicates: list[Predicate] = field(default_factory=list)
    filters: list[Predicate] = field(default_factory=list)
    broken: bool = False

    def reads_right(self, predicate: Predicate) -> bool:
        """Say whether the predicate reads the right side."""
        return self.right.table.name in predicate.inputs


def link_joins(joined: Sequence[JoinClause], scope: Scope, first: str) -> list[Link]:
    """Return the joins, without conditions. `first` is the job's first input, with which a chain starts: the first
    two inputs of the SQL may be in either order."""
    order, types = list(scope.relations.values()), [join.type for join in joined]
    if order[1].table.name == first and types[0] in _MIRRORED:
        order[:2], types[0] = [order[1], order[0]], _MIRRORED[types[0]]
    elif order[0].table.name != first:
        todo = f"write FROM {first}, or list {order[0].table.name!r} first in spec.inputs"
        scope.report.add(order[0].source.at, f"joins start with the first input of the job, which is {first!r}; {todo}")
    links: list[Link] = []
    earlier = order[:1]
    for right, join_type, join in zip(order[1:], types, joined, strict=True):
        links.append(Link(tuple(earlier), right, join_type, join))
        earlier += [right] if join_type not in EXISTENCE else []
    return links


def find_anti_joins(
    joined: Sequence[JoinClause],
    on: Sequence[ClauseConditions],
    where: ClauseConditions,
    scope: Scope,
    selected: Set[str],
) -> tuple[list[JoinClause], ClauseConditions]:
    """Make anti joins of LEFT JOINs whose rows without a match are all that WHERE keeps: `right.column IS NULL`, where
    the column is not NULL in any match, because it is compared as a key or is the event time. Returns the joins, and
    WHERE without these conditions. `selected` are the inputs that the select list reads; whatever else reads the right
    input needs its columns, which an anti join does not have. Behind a RIGHT or a FULL JOIN, WHERE also drops rows that
    an anti join before it would let through padded."""
    joins, rest = list(joined), list(where.good)
    for i, join in enumerate(joins):
        relation = scope.by_input(join.source.alias)
        padded_later = any(later.type in {"right", "full"} for later in joins[i + 1 :])
        if join.type != "left" or relation is None or padded_later:
            continue
        name = relation.table.name
        never_null = {relation.table.event_time, *(_key_columns(on[i], name))}
        tests = []
        for predicate in rest:
            node = predicate.node
            column = node.this.unnest() if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null) else None
            if isinstance(column, exp.Column) and column.table == name and column.name in never_null:
                tests.append(predicate)
        conditions = [*rest, *(predicate for j, clause in enumerate(on) if j != i for predicate in clause.good)]
        read = any(name in predicate.inputs for predicate in conditions if predicate not in tests)
        if tests and not read and name not in selected:
            joins[i] = replace(join, type="anti", source=replace(join.source, hidden=True))
            rest = [predicate for predicate in rest if predicate not in tests]
    return joins, replace(where, good=tuple(rest))


def _key_columns(conditions: ClauseConditions, name: str) -> Iterator[str]:
    """Yield the columns of the input that are compared with columns of another one for equality."""
    for predicate in conditions.good:
        if isinstance(predicate.node, exp.EQ) and len(predicate.inputs) > 1:
            sides = (predicate.node.left.unnest(), predicate.node.right.unnest())
            yield from (side.name for side in sides if isinstance(side, exp.Column) and side.table == name)


def place_conditions(
    links: Sequence[Link],
    on: Sequence[ClauseConditions],
    where: ClauseConditions,
    report: Report,
    *,
    filters_inputs: bool,
) -> dict[str, list[exp.Expr]]:
    """Place the conditions at joins, and return those that filter an input before all joins. `filters_inputs` is false
    where a row that is left out would change how others match, as in sessions."""
    filters: dict[str, list[exp.Expr]] = {}
    for i, predicates in enumerate(on):
        links[i].broken = predicates.broken or where.broken or bool(links[i].joined.unsupported)
        for predicate in predicates.good:
            if predicate.inputs <= {relation.table.name for relation in (*links[i].earlier, links[i].right)}:
                # Left rows that fail it match nothing. If they would then not be emitted at all, they may be dropped
                # at an earlier join.
                moves = not links[i].reads_right(predicate) and links[i].type in {*_DROPS, "right"}
                earlier = _earliest_filter(predicate, links[:i]) if moves else None
                (links[i] if earlier is None else earlier).predicates.append(predicate)
            else:
                links[i].broken = True
                report.add(
                    predicate.at, "names an input that is joined further down; write it into the ON of that JOIN"
                )
    for predicate in where.good:
        target = _earliest_filter(predicate, links)
        if target is not None:
            target.predicates.append(predicate)
        elif filters_inputs and (name := _filterable_input(predicate, links)) is not None:
            filters.setdefault(name, []).append(predicate.node)
        else:
            links[-1].filters.append(predicate)  # counts for rows that are padded with NULL, too
    return filters


def _filterable_input(predicate: Predicate, links: Sequence[Link]) -> str | None:
    """Return the input whose rows may be dropped before all joins instead: each emitted row has one, and no other
    row is emitted in its stead without a match."""
    if len(predicate.inputs) != 1 or "" in predicate.inputs:
        return None
    (name,) = predicate.inputs
    for link in links:
        if link.reads_right(predicate) and link.type not in {"inner", "right"}:
            return None
        if any(relation.table.name == name for relation in link.earlier) and link.type in {"right", "full"}:
            return None
    return name


def _earliest_filter(predicate: Predicate, links: Sequence[Link]) -> Link | None:
    """Return the earliest join at which the condition on matches drops what a filter after the last join would drop."""
    if "" in predicate.inputs:
        return None  # a row has a window once the join has made it
    earliest = None
    for link in reversed(links):
        earliest = link if link.type in _DROPS else earliest
        if link.reads_right(predicate) or link.type in {"right", "full"}:
            break
    return earliest
