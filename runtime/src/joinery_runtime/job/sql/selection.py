"""The select list: columns, columns with another name, expressions, and stars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlglot import exp

from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.sql.names import Named, Names
from joinery_runtime.job.sql.report import Report, TextPosition, place_of

Item = dict[str, str]  # an entry of `spec.select`

_TODO = "write a.x, a.x AS y, <expression> AS y, a.* or *"


def selection(
    items: Sequence[exp.Expr], names: Names, prefixes: Mapping[str, str], report: Report, *, windowed: bool
) -> list[Item]:
    """Every output column in order; wrong ones are reported and omitted. `prefixes`, by input, are for columns of
    stars that several inputs have."""
    columns = _prefixed(list(_read(items, names, report, windowed)), prefixes)
    _refuse_repeats(columns, report)
    return [chosen.item for chosen in columns]


class _Chosen(NamedTuple):
    item: Item
    at: TextPosition
    by_star: bool = False


def _read(items: Sequence[exp.Expr], names: Names, report: Report, windowed: bool) -> Iterator[_Chosen]:
    for item in items:
        at = place_of(item)
        if windowed and _is_window_column(item, names):
            named = item.alias if isinstance(item, exp.Alias) else ""
            yield _Chosen(_item({"column": item.unalias().name}, named), at)
        else:
            by_star = _star_in(item) is not None
            yield from (_Chosen(selected, at, by_star) for selected in _items(item, names, report))


def _is_window_column(item: exp.Expr, names: Names) -> bool:
    column = item.unalias()
    plain = isinstance(column, exp.Column) and not column.table and column.name in WINDOW_COLUMNS
    return plain and not names.has_column(column.name)


def _items(item: exp.Expr, names: Names, report: Report) -> Iterator[Item]:
    renamed = item.alias if isinstance(item, exp.Alias) else ""
    value = item.unalias().unnest()
    if (star := _star_in(item)) is not None:
        if renamed or any(star.args.values()):
            report.add(place_of(item), f"a star with more is not supported; {_TODO}")
        else:
            yield from _star(value, names, report)
    elif not isinstance(value, exp.Column):
        yield from _expression(value, renamed, names, report)
    elif (resolved := names.find(value)) is not None:
        named, name = resolved
        yield _item({"column": f"{named.table.name}.{name}"}, renamed if renamed != name else "")


def _star_in(item: exp.Expr) -> exp.Star | None:
    """The star of `*` or `a.*`; None for anything else."""
    value = item.unalias().unnest()
    star = value.this if isinstance(value, exp.Column) else value
    return star if isinstance(star, exp.Star) else None


def _item(item: Item, renamed: str) -> Item:
    return {**item, **({"as": renamed} if renamed else {})}


def _expression(value: exp.Expr, renamed: str, names: Names, report: Report) -> Iterator[Item]:
    at = place_of(value)
    if value.find(exp.AggFunc, exp.Window) is not None:
        report.add(at, f"is computed over many rows, a join puts out each row by itself; {_TODO}")
    elif value.find(exp.Query) is None and names.qualify(value):  # the shape's check reports a query
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


def _prefixed(columns: Sequence[_Chosen], prefixes: Mapping[str, str]) -> list[_Chosen]:
    """Gives a column that the stars of several inputs yield its input's prefix, as without a select list."""
    shared = Counter(name for _, name in {_parts(column.item) for column in columns if column.by_star})

    def renamed(column: _Chosen) -> _Chosen:
        table, name = _parts(column.item)
        return column._replace(item=_item(column.item, f"{prefixes[table]}_{name}" if shared[name] > 1 else ""))

    return [renamed(column) if column.by_star else column for column in columns]


def _parts(item: Item) -> tuple[str, str]:
    """The input and the column of an item."""
    table, _, name = item["column"].partition(".")
    return table, name


def _refuse_repeats(columns: Sequence[_Chosen], report: Report) -> None:
    seen: set[str] = set()
    for item, at, by_star in columns:
        todo = "write the columns of a star one by one, and one of these with AS" if by_star else "name one with AS"
        name = item.get("as") or item["column"].partition(".")[2] or item["column"]
        if name in seen:
            report.add(at, f"two output columns are named {name!r} (rule J10); {todo}")
        seen.add(name)
