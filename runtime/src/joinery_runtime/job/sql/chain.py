"""Finds the order of the joins, and the join to which each condition belongs.

A condition in WHERE applies to the rows that the last join emits; one in ON applies to the pairs of its join. Either
may move to an earlier join if the same rows come out: then failing rows are dropped sooner (rule J4), and a bound on
time reaches the join that needs it. What a step of a job cannot express is refused: its `where` is a condition on
matches, and drops no row that an outer join emits in any case (rule O2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from joinery_runtime.job.model.wording import listed
from joinery_runtime.job.sql.conditions import ClauseConditions, Predicate
from joinery_runtime.job.sql.names import Named, Names
from joinery_runtime.job.sql.report import Report
from joinery_runtime.job.sql.shape import JoinClause, JoinType

_MIRRORED: dict[JoinType, JoinType] = {"inner": "inner", "left": "right", "right": "left", "full": "full"}


@dataclass(slots=True)
class Link:
    """One join: of `right` to what `earlier` have made. `broken`: a condition was refused, which may have meant what is
    missing."""

    earlier: tuple[Named, ...]
    right: Named
    type: JoinType
    joined: JoinClause
    predicates: list[Predicate] = field(default_factory=list)
    broken: bool = False

    def needs(self, predicate: Predicate) -> bool:
        """Whether the predicate reads the right side."""
        return self.right.table.name in predicate.inputs

    def knows(self, predicate: Predicate) -> bool:
        return predicate.inputs <= {named.table.name for named in (*self.earlier, self.right)}


def chain_of(joined: Sequence[JoinClause], names: Names, first: str, report: Report) -> list[Link]:
    """The joins, without conditions. `first` is the job's first input, with which a chain starts: the first two inputs
    of the SQL may be in either order."""
    order, types = list(names.named.values()), [join.type for join in joined]
    if order[1].table.name == first:
        order[:2], types[0] = [order[1], order[0]], _MIRRORED[types[0]]
    elif order[0].table.name != first:
        todo = f"write FROM {first}, or list {order[0].table.name!r} first in spec.inputs"
        report.add(order[0].source.at, f"joins start with the first input of the job, which is {first!r}; {todo}")
    return [Link(tuple(order[: i + 1]), order[i + 1], types[i], join) for i, join in enumerate(joined)]


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
        links[i].broken = predicates.broken or where.broken or links[i].joined.broken
        for predicate in predicates.good:
            if links[i].knows(predicate):
                _match_condition(predicate, i, links).predicates.append(predicate)
            else:
                links[i].broken = True
                report.add(
                    predicate.at, "names an input that is joined further down; write it into the ON of that JOIN"
                )
    for predicate in where.good:
        target = _filter_place(predicate, links)
        if target is not None:
            target.predicates.append(predicate)
        elif filters_inputs and (name := _filtered_input(predicate, links)) is not None:
            filters.setdefault(name, []).append(predicate.node)
        else:
            _refuse_filter(predicate, links, report)
            for link in links:
                link.broken = link.broken or link.needs(predicate)
    return filters


def _filtered_input(predicate: Predicate, links: Sequence[Link]) -> str | None:
    """Return the input whose rows may be dropped before all joins instead: each row that goes out has one, and no other
    row goes out in its place without a match."""
    if len(predicate.inputs) != 1:
        return None
    (name,) = predicate.inputs
    for link in links:
        if link.needs(predicate) and link.type not in {"inner", "right"}:
            return None
        if any(named.table.name == name for named in link.earlier) and link.type not in {"inner", "left"}:
            return None
    return name


def _match_condition(predicate: Predicate, i: int, links: Sequence[Link]) -> Link:
    """The join for a condition of ON. Left rows that fail it match nothing; if they would then not go out at all, they
    may be dropped at an earlier join."""
    moves = not links[i].needs(predicate) and links[i].type in {"inner", "right"}
    earlier = _filter_place(predicate, links[:i]) if moves else None
    return links[i] if earlier is None else earlier


def _filter_place(predicate: Predicate, links: Sequence[Link]) -> Link | None:
    """The earliest join at which the condition on matches drops what a filter after the last join would drop."""
    earliest = None
    for link in reversed(links):
        earliest = link if link.type == "inner" else earliest
        if _stops(link, predicate):
            break
    return earliest


def _refuse_filter(predicate: Predicate, links: Sequence[Link], report: Report) -> None:
    blocking = next(link for link in reversed(links) if _stops(link, predicate) or link is links[0])
    kind = blocking.joined.type.upper()
    padded = "left" if blocking.needs(predicate) else "right"
    if blocking.type in {padded, "full"}:
        facts = f"WHERE counts after rows without a match are filled up with NULL, and the {kind} JOIN does so here"
    else:
        side = listed(sorted(predicate.inputs)) if predicate.inputs else "one side"
        facts = f"the {kind} JOIN puts out every row of {side}, a job cannot leave some out"
    todo = "write it into ON, where it decides what matches, make the JOIN an inner one, or filter the job's output"
    report.add(predicate.at, f"{facts}; {todo}")


def _stops(link: Link, predicate: Predicate) -> bool:
    """Whether a filter after the join cannot move to before it."""
    return link.needs(predicate) or link.type not in {"inner", "left"}
