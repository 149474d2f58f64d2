"""The select list: columns, columns with another name, and stars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from joinery_runtime.job.sql.names import Named, Names
from joinery_runtime.job.sql.report import Report, place_of

Item = tuple[str, str | None]  # input.column, and the output's name where it differs from the column's

_TODO = "write columns only: a.x, a.x AS y, a.* or *"


def selection(items: Sequence[exp.Expr], names: Names, report: Report) -> tuple[Item, ...]:
    """Every output column in order; a name that is wrong is left out and reported."""
    return tuple(found for item in items for found in _item(item, names, report))


def _item(item: exp.Expr, names: Names, report: Report) -> Iterator[Item]:
    renamed = item.alias if isinstance(item, exp.Alias) else None
    column = item.this if isinstance(item, exp.Alias) else item
    star = column if isinstance(column, exp.Star) else column.this if isinstance(column, exp.Column) else None
    if isinstance(star, exp.Star):
        if renamed is not None or any(star.args.values()):
            report.add(place_of(item), f"a star with more is not supported yet; {_TODO}")
        else:
            yield from _star(column, names, report)
    elif not isinstance(column, exp.Column):
        report.add(place_of(item), f"an expression in the select list is not supported yet; {_TODO}")
    elif (found := names.find(column)) is not None:
        named, name = found
        yield f"{named.table.name}.{name}", renamed if renamed != name else None


def _star(column: exp.Expr, names: Names, report: Report) -> Iterator[Item]:
    qualifier = column.table if isinstance(column, exp.Column) else ""
    chosen: list[Named] = [named for alias, named in names.named.items() if qualifier in {"", alias}]
    if not chosen and names.complete:
        report.add(place_of(column), f"{qualifier!r} is not an alias here; aliases are {' and '.join(names.named)}")
    for named in chosen:
        yield from ((f"{named.table.name}.{name}", None) for name in named.table.columns)
