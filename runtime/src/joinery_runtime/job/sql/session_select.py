"""The select list of sessions: groups, the columns of sessions themselves, and aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.references import SESSION_COLUMNS
from joinery_runtime.job.sql.names import Names
from joinery_runtime.job.sql.report import Report, TextPosition, place_of
from joinery_runtime.job.sql.session_aggregates import KNOWN, BadAggregateError, is_aggregate, read_call
from joinery_runtime.job.sql.session_groups import SessionGrouping, column_name, unqualified

_ELSEWHERE = {
    **dict.fromkeys(("SESSION_START", "WINDOWSTART"), "window_start"),
    **dict.fromkeys(("SESSION_END", "WINDOWEND"), "window_end"),
}


@dataclass(slots=True)
class Chosen:
    """What the select list asks for. `computed` are expressions by the names of their columns; `aggregates` and
    `select` are entries of the fields of these names."""

    computed: dict[str, str] = field(default_factory=dict)
    aggregates: list[dict[str, Any]] = field(default_factory=list)
    select: list[dict[str, str]] = field(default_factory=list)

    def add(self, column: str, name: str) -> None:
        self.select.append({"column": column, **({"as": name} if name not in {"", column} else {})})


def read_items(items: Sequence[exp.Expr], groups: SessionGrouping, names: Names, report: Report) -> Chosen:
    """Reads the select list, and gives groups their names."""
    chosen = Chosen()
    for item in items:
        _read_item(item, chosen, groups, names, report)
    return chosen


def _read_item(item: exp.Expr, chosen: Chosen, groups: SessionGrouping, names: Names, report: Report) -> None:
    at, value = place_of(item), item.unalias().unnest()
    renamed = item.alias if isinstance(item, exp.Alias) else ""
    own = _own_column(value, names)
    if own:
        if own != value.name and not renamed:
            report.add(at, f"is called {own} here (rule S6); write {own}, or give it a name with AS")
        chosen.add(own, renamed)
    elif value.is_star:
        report.add(at, "a star is not supported: a session holds many rows; name groups and aggregates")
    elif is_aggregate(value):
        _read_aggregate(value, renamed, at, chosen, names, report)
    elif value.find(exp.AggFunc, exp.Window) is not None:
        report.add(at, "aggregates go out as they are; select each by itself and compute with the job's output")
    else:
        _read_group_item(value, renamed, at, chosen, groups, names, report)


def _own_column(value: exp.Expr, names: Names) -> str:
    """The column of sessions that this names, even in other systems' terms; empty if none."""
    plain = isinstance(value, exp.Column) and not value.table and not names.has_column(value.name)
    if plain and value.name in SESSION_COLUMNS:
        return value.name
    return _ELSEWHERE.get(value.name.upper(), "") if plain or isinstance(value, exp.Anonymous) else ""


def _read_group_item(
    value: exp.Expr,
    renamed: str,
    at: TextPosition,
    chosen: Chosen,
    groups: SessionGrouping,
    names: Names,
    report: Report,
) -> None:
    qualified = value.copy()
    if qualified.find(exp.Query) is not None or not names.qualify(qualified):
        return
    group = groups.by_text.get(qualified.sql(comments=False))
    if group is None and (groups.by_text or isinstance(value, exp.Anonymous)):
        unknown_function = f"is not an aggregate of sessions; these are {KNOWN}"
        many = "is not in GROUP BY, and a session holds many rows of it; group by it, or write FIRST(...) or LAST(...)"
        report.add(at, unknown_function if isinstance(value, exp.Anonymous) else many)
    elif group is not None and group.selected:
        report.add(at, "this group is selected twice; keep one")
    elif group is not None:
        group.selected = True
        if renamed and not names.has_column(renamed):
            group.name = renamed
        chosen.add(group.name, renamed)


def _read_aggregate(
    value: exp.Expr, renamed: str, at: TextPosition, chosen: Chosen, names: Names, report: Report
) -> None:
    try:
        call = read_call(value)
    except BadAggregateError as error:
        report.add(at, str(error))
        return
    entry: dict[str, Any] = {"function": call.function, "as": renamed}
    if call.argument is not None:
        column = _argument_column(call.argument, chosen, names)
        if column is None:
            return
        entry["column"] = column
    if call.method is not None:
        entry["method"] = call.method
    if renamed:
        chosen.aggregates.append(entry)
        chosen.add(renamed, "")
    else:
        report.add(at, "an aggregate has no name of its own; write <aggregate> AS <name>")


def _argument_column(argument: exp.Expr, chosen: Chosen, names: Names) -> str | None:
    """The column for an argument: one of the input, or a computed one, named after its expression. None if a name is
    wrong."""
    if isinstance(argument, exp.Column):
        return column_name(argument, names)
    qualified = argument.copy()
    if qualified.find(exp.Query) is not None or not names.qualify(qualified):
        return None
    name = unqualified(qualified)
    chosen.computed[name] = qualified.sql(comments=False)
    return name
