"""The select list of a join: columns, expressions and stars. `group_rows` has that of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlglot import exp

from joinery_runtime.job.model.references import RANK_COLUMNS
from joinery_runtime.job.sql.report import TextPosition, node_position
from joinery_runtime.job.sql.scope import Scope
from joinery_runtime.job.sql.select_tree import BY_STAR, OF_WINDOW

Item = dict[str, str]  # an entry of `spec.select`

_RANKED = "write ROW_NUMBER() OVER (...) AS y and QUALIFY y <= 10"
_TODO = "write a.x, a.x AS y, <expression> AS y, a.* or *"


def read_columns(
    items: Sequence[exp.Expr],
    scope: Scope,
    prefixes: Mapping[str, str],
    own_names: Sequence[str],
    numbers: Mapping[str, Item],
) -> list[Item]:
    """Return every output column in order; wrong ones are reported and omitted. `prefixes`, by input, are for columns
    of stars that several inputs have. `own_names` are columns of the last step itself, and `numbers` by their texts the
    calls of ROW_NUMBER that it knows, with what each stands for."""
    columns = [*_read_join_items(items, scope, own_names, numbers)]
    selected, names = list[Item](), set[str]()
    counts = Counter(name for _, name in {_split_column(column.item) for column in columns if column.by_star})
    for column in columns:
        item, todo = column.item, "name one with AS"
        if column.by_star:
            table, name = _split_column(item)
            item = _item_as(item, f"{prefixes[table]}_{name}" if counts[name] > 1 else "")
            todo = "write the columns of a star one by one, and one of these with AS"
        if item_name(item) in names:
            scope.report.add(column.at, f"two output columns are named {item_name(item)!r} (rule J10); {todo}")
        names.add(item_name(item))
        selected.append(item)
    return selected


def item_name(item: Mapping[str, str]) -> str:
    """Return the name that an entry of `spec.select` gives its column."""
    return item.get("as") or item["column"].partition(".")[2] or item["column"]


class _Chosen(NamedTuple):
    item: Item
    at: TextPosition
    by_star: bool = False


def _read_join_items(
    items: Sequence[exp.Expr], scope: Scope, own_names: Sequence[str], numbers: Mapping[str, Item]
) -> Iterator[_Chosen]:
    for item in items:
        at = node_position(item)
        column = item.unalias()
        named = item.alias if isinstance(item, exp.Alias) else ""
        is_plain = isinstance(column, exp.Column) and not column.table
        is_own = OF_WINDOW in column.meta or not scope.has_column(column.name)
        names_in_it = column.find_all(exp.Column) if own_names == RANK_COLUMNS else ()
        of_rank = (node for node in names_in_it if not node.table and node.name in RANK_COLUMNS)
        ranked = next((node for node in of_rank if not scope.has_column(node.name)), None)
        if is_plain and column.name in own_names and is_own:
            yield _Chosen(_item_as({"column": column.name}, named if named != column.name else ""), at)
        elif (number := numbers.get(column.sql(comments=False))) is not None:
            if not named:
                scope.report.add(at, "the number has no name of its own; write ROW_NUMBER() OVER (...) AS <name>")
            yield _Chosen(_item_as(number, named or RANK_COLUMNS[-1]), at)
        elif ranked is not None:
            facts = f"{ranked.name} is known once rows are numbered, after expressions"
            scope.report.add(node_position(ranked), f"{facts}; select it as it is, with AS")
        else:
            by_star = _find_star(item) is not None or BY_STAR in item.unalias().meta
            yield from (_Chosen(selected, at, by_star) for selected in _read_item(item, scope))


def _read_item(item: exp.Expr, scope: Scope) -> Iterator[Item]:
    renamed = item.alias if isinstance(item, exp.Alias) else ""
    value = item.unalias().unnest()
    if (star := _find_star(item)) is not None:
        qualifier = value.table if isinstance(value, exp.Column) else ""
        chosen = [relation for alias, relation in scope.visible.items() if qualifier in {"", alias}]
        if renamed or any(star.args.values()):
            scope.report.add(node_position(item), f"a star with more is not supported; {_TODO}")
        elif chosen:
            yield from (
                {"column": f"{relation.table.name}.{name}"} for relation in chosen for name in relation.table.columns
            )
        elif scope.is_complete:
            facts = f"{qualifier!r} is not an alias here"
            scope.report.add(node_position(value), f"{facts}; aliases are {' and '.join(scope.visible)}")
    elif not isinstance(value, exp.Column):
        yield from _read_expression(value, renamed, scope)
    elif (resolved := scope.resolve(value)) is not None:
        relation, name = resolved
        yield _item_as({"column": f"{relation.table.name}.{name}"}, renamed if renamed != name else "")


def _find_star(item: exp.Expr) -> exp.Star | None:
    """Return the star of `*` or `a.*`; None for anything else."""
    value = item.unalias().unnest()
    star = value.this if isinstance(value, exp.Column) else value
    return star if isinstance(star, exp.Star) else None


def _item_as(item: Item, renamed: str) -> Item:
    return {**item, **({"as": renamed} if renamed else {})}


def _read_expression(value: exp.Expr, renamed: str, scope: Scope) -> Iterator[Item]:
    at = node_position(value)
    if value.find(exp.Query) is not None:
        return  # which `query` reports
    if (window := value.find(exp.Window)) is not None:
        scope.report.add(at, function_of_rows_problem(window, scope))
    elif value.find(exp.AggFunc) is not None:
        facts = "is computed over many rows, and rows have no end"
        scope.report.add(at, f"{facts}; write GROUP BY with a window, such as TUMBLE(<event time>, INTERVAL '1' HOUR)")
    elif scope.qualify(value, behind_joins=True):
        if renamed:
            yield _item_as({"expression": value.sql(comments=False)}, renamed)
        else:
            scope.report.add(at, "an expression has no name of its own; write <expression> AS <name>")


FUNCTIONS_OF_ROWS = (exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)
"""Functions before OVER that read a row before or behind the row."""


def function_of_rows_problem(window: exp.Expr, scope: Scope) -> str:
    """Say why `<function> OVER (...)` is rejected, and what to write."""
    return f"a job computes nothing over the rows before or around a row; {_instead_of_window(window, scope)}"


def _instead_of_window(window: exp.Expr, scope: Scope) -> str:
    """Say what to write for `<function> OVER (...)`."""
    function = window.this
    name = (function.name.upper() or function.sql_name()) if isinstance(function, exp.Func) else ""
    if name in {"ROW_NUMBER", "RANK", "DENSE_RANK"}:
        return _RANKED
    if isinstance(function, exp.PercentRank | exp.CumeDist | exp.Ntile):
        todo = f"write {function.sql_name()} over groups, whose number in a window has a bound (rule R10)"
        return f"{todo}, or {_RANKED.removeprefix('write ')}"
    visible = list(scope.visible.values())
    source, time = (visible[0].table.name, visible[0].table.event_time) if len(visible) == 1 else ("x", "<event time>")
    keys = [key.name for key in window.args.get("partition_by") or [] if isinstance(key, exp.Column)]
    equal = " AND ".join(f"a.{key} = b.{key}" for key in keys or ["<key>"])
    later = window.find(exp.Lead) is not None
    is_first = window.find(exp.FirstValue) is not None
    is_nearest = later or window.find(exp.Lag, exp.LastValue, exp.NthValue) is not None
    length = _length_of_frame(window.args.get("spec"))
    bound = f"b.{time} {'<' if is_nearest else '<='} a.{time} AND b.{time} >= a.{time} - {length}"
    if later:
        bound = f"b.{time} > a.{time} AND b.{time} <= a.{time} + {length}"
    joined = f"FROM {source} a JOIN {source} b ON {equal} AND {bound}"
    one_row = f"PARTITION BY a.<id>, TUMBLE(a.{time}, INTERVAL '1' MINUTE)"
    if is_first:
        first = f"QUALIFY ROW_NUMBER() OVER ({one_row} ORDER BY b.{time}) = 1"
        return f"for the first row of the key in the time up to each row, write {joined} {first}"
    if is_nearest:
        nearest = f"QUALIFY ROW_NUMBER() OVER ({one_row} ORDER BY b.{time}{'' if later else ' DESC'}) = 1"
        return f"for the nearest other row of the key, or NULL, write {joined.replace('JOIN', 'LEFT JOIN')} {nearest}"
    todo = "write GROUP BY with HOP(...) or CUMULATE(...) for a value of each window"
    return f"{todo}, or for one of each row {joined} GROUP BY a.<id>, TUMBLE(a.{time}, INTERVAL '1' MINUTE)"


def _length_of_frame(frame: exp.Expr | None) -> str:
    """Return the length of a frame that ends at the current row, as SQL; an example for one of all earlier rows."""
    if frame is None:
        return "INTERVAL '1' HOUR"
    start, ends_here = frame.args.get("start"), frame.args.get("end") in (None, "CURRENT ROW")
    if not ends_here or frame.args.get("start_side") != "PRECEDING":
        return "<length>"
    return start.sql() if isinstance(start, exp.Interval) else "INTERVAL '1' HOUR"


def _split_column(item: Item) -> tuple[str, str]:
    """Return the input and the column of an item."""
    table, _, name = item["column"].partition(".")
    return table, name
