"""What a job's rows are: appended only, or a changelog, in which a row replaces an earlier one with the same key.

A step or an output that needs rows that stay rejects a changelog: the rules here are the only ones that do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from joinery_runtime.job.model.cel import Rule, any_output
from joinery_runtime.job.model.draft import Finding, Loc, dig
from joinery_runtime.job.model.outputs import LAKES


class ChangelogSource(NamedTuple):
    """A field of what a job aggregates that makes its rows a changelog. `facts` say how, `todo` how to do without;
    `condition` is the CEL that tells, with `{}` for the object that has the field."""

    field: str
    facts: str
    todo: str
    condition: str


SOURCES = (
    ChangelogSource("lateData", "reopen replaces rows that are out already", "write drop", "{}.lateData == 'reopen'"),
    ChangelogSource("emit", "emit replaces rows that are out already", "leave it out", "has({}.emit)"),
)


def changelog_sources(data: object, at: Loc) -> Iterator[ChangelogSource]:
    """Yield the fields of what is aggregated, which is at `at`, that make the rows a changelog."""
    for source in SOURCES:
        value = dig(data, *at, source.field)
        if value == "reopen" or (source.field == "emit" and value is not None):
            yield source


def into_lake(data: object, at: Loc, lake: str) -> Iterator[Finding]:
    """Reject a changelog into tables of this kind, which are only appended to."""
    for source in changelog_sources(data, at):
        yield (*at, source.field), _appended_only(source, lake)


def lake_rules(owner: str, path: str) -> tuple[Rule, ...]:
    """The same in CEL. `owner` is the object that has the fields, which may be absent, and `path` is its path."""
    absent = "" if owner == "self" else f"!has({owner}) || "
    return tuple(
        Rule(
            f"{absent}!({source.condition.format(owner)}) || !({any_output(lake)})",
            _appended_only(source, lake),
            f"{path}.{source.field}",
        )
        for source in SOURCES
        for lake in LAKES
    )


def _appended_only(source: ChangelogSource, lake: str) -> str:
    return f"{source.facts}, and {lake} tables are only appended to; {source.todo}, or write to output.postgres"
