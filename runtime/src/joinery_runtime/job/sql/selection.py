"""The select list: columns, columns with another name, expressions, and stars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.sql.names import Named, Names
from joinery_runtime.job.sql.report import Place, Report, place_of

Item = dict[str, str]  # an entry of `spec.select`

_TODO = "write a.x, a.x AS y, <expression> AS y, a.* or *"


def selection(items: Sequence[exp.Expr], names: Names, report: Report, *, windowed: bool) -> list[Item]:
    """Every output column in order; what is wrong is left out and reported."""
    found = list(_read(items, names, report, windowed))
    _refuse_repeats(found, report)
    return [item for item, _ in found]


def _read(items: Sequence[exp.Expr], names: Names, report: Report, windowed: bool) -> Iterator[tuple[Item, Place]]:
    for item in items:
        at = place_of(item)
        if windowed and _is_window_column(item, names):
            yield _item({"column": item.unalias().name}, item.alias if isinstance(item, exp.Alias) else ""), at
        else:
            yield from ((found, at) for found in _items(item, names, report))


def _is_window_column(item: exp.Expr, names: Names) -> bool:
    column = item.unalias()
    plain = isinstance(column, exp.Column) and not column.table and column.name in WINDOW_COLUMNS
    return plain and not names.has_column(column.name)


def _items(item: exp.Expr, names: Names, report: Report) -> Iterator[Item]:
    renamed = item.alias if isinstance(item, exp.Alias) else ""
    value = item.unalias().unnest()
    star = value if isinstance(value, exp.Star) else value.this if isinstance(value, exp.Column) else None
    if isinstance(star, exp.Star):
        if renamed or any(star.args.values()):
            report.add(place_of(item), f"a star with more is not supported; {_TODO}")
        else:
            yield from _star(value, names, report)
    elif not isinstance(value, exp.Column):
        yield from _expression(value, renamed, names, report)
    elif (found := names.find(value)) is not None:
        named, name = found
        yield _item({"column": f"{named.table.name}.{name}"}, renamed if renamed != name else "")


def _item(item: Item, renamed: str) -> Item:
    return {**item, **({"as": renamed} if renamed else {})}


def _expression(value: exp.Expr, renamed: str, names: Names, report: Report) -> Iterator[Item]:
    at = place_of(value)
    if value.find(exp.AggFunc, exp.Window) is not None:
        report.add(at, f"is computed over many rows, a join puts out each row by itself; {_TODO}")
    elif value.find(exp.Query) is None and names.qualify(value):  # of a query, the shape's check says it
        if renamed:
            yield _item({"expression": value.sql(comments=False)}, renamed)
        else:
            report.add(at, "an expression has no name of its own; write <expression> AS <name>")


def _star(column: exp.Expr, names: Names, report: Report) -> Iterator[Item]:
    qualifier = column.table if isinstance(column, exp.Column) else ""
    chosen: list[Named] = [named for alias, named in names.named.items() if qualifier in {"", alias}]
    if not chosen and names.complete:
        report.add(place_of(column), f"{qualifier!r} is not an alias here; aliases are {' and '.join(names.named)}")
    for named in chosen:
        yield from ({"column": f"{named.table.name}.{name}"} for name in named.table.columns)


def _refuse_repeats(found: Sequence[tuple[Item, Place]], report: Report) -> None:
    seen: set[str] = set()
    for item, at in found:
        todo = (
            "write the columns of a star one by one, and one of these with AS"
            if "*" in at.fragment
            else "name one with AS"
        )
        name = item.get("as") or item["column"].partition(".")[2] or item["column"]
        if name in seen:
            report.add(at, f"two output columns are named {name!r} (rule J10); {todo}")
        seen.add(name)
