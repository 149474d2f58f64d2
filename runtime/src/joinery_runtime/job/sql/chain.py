"""The order of the joins, and which of them each condition belongs to.

A condition of WHERE speaks of the rows that the last join puts out, one of ON of the pairs of its join. Either may
stand at an earlier join as long as the same rows come out: rows that fail are dropped the sooner (rule J4), and a bound
on time finds the join that needs it. What a step of a job cannot say is refused: its `where` is the condition of a
match, it drops no row that an outer join puts out in any case (rule O2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from joinery_runtime.job.model.wording import listed
from joinery_runtime.job.sql.conditions import ClauseConditions, Predicate
from joinery_runtime.job.sql.names import Named, Names
from joinery_runtime.job.sql.report import Report
from joinery_runtime.job.sql.shape import JoinClause, JoinType

_MIRRORED: dict[JoinType, JoinType] = {"inner": "inner", "left": "right", "right": "left", "full": "full"}


@dataclass(slots=True)
class Link:
    """One join: `right` to what `earlier` have made. `broken`: a condition was refused, so that what is missing may
    have been meant by it."""

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
    """The joins without conditions. `first` is the job's first input, where a chain starts: the first two may come in
    either order."""
    order, types = list(names.named.values()), [join.type for join in joined]
    if order[1].table.name == first:
        order[:2], types[0] = [order[1], order[0]], _MIRRORED[types[0]]
    elif order[0].table.name != first:
        todo = f"write FROM {first}, or list {order[0].table.name!r} first in spec.inputs"
        report.add(order[0].source.at, f"joins start with the first input of the job, which is {first!r}; {todo}")
    return [Link(tuple(order[: i + 1]), order[i + 1], types[i], join) for i, join in enumerate(joined)]


def place_conditions(
    links: Sequence[Link], on: Sequence[ClauseConditions], where: ClauseConditions, report: Report
) -> None:
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
        place = _filter_place(predicate, links)
        if place is not None:
            place.predicates.append(predicate)
        else:
            _refuse_filter(predicate, links, report)
            for link in links:
                link.broken = link.broken or link.needs(predicate)


def _match_condition(predicate: Predicate, i: int, links: Sequence[Link]) -> Link:
    """Rows of the left that fail match nothing: where they then go nowhere, they may be dropped before."""
    moves = not links[i].needs(predicate) and links[i].type in {"inner", "right"}
    earlier = _filter_place(predicate, links[:i]) if moves else None
    return links[i] if earlier is None else earlier


def _filter_place(predicate: Predicate, links: Sequence[Link]) -> Link | None:
    """The earliest join whose condition of a match drops what a filter behind the last one would drop."""
    found = None
    for link in reversed(links):
        found = link if link.type == "inner" else found
        if _stops(link, predicate):
            break
    return found


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
    """Whether a filter behind the join is none before it."""
    return link.needs(predicate) or link.type not in {"inner", "left"}
