"""Takes UNION ALL in FROM and WITH off a SELECT: each is a union of the job, which the SELECT then names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlglot import exp

from joinery_runtime.job.model.inputs import INPUT_NAME
from joinery_runtime.job.model.wording import counted, listed
from joinery_runtime.job.sql.report import Report, node_position
from joinery_runtime.job.sql.select_tree import REJECTED

Columns = Mapping[str, Collection[str]]
Item = dict[str, str]

UNITED = "united"
"""The name of a union that the text does not name; see `unused_union_name`."""
_PARTS = {"expressions", "from_", "where"}
_READ: Mapping[type[exp.Expr], Collection[str]] = {
    exp.Union: {"this", "expression", "distinct"},
    exp.Subquery: {"this", "alias"},
    exp.Star: (),
}
"""What is read of the nodes around the SELECTs, and of a star, by sqlglot's names."""
_BY_NAME = {"by_name", "side", "kind", "on"}
_IN_WITH = "a SELECT of a union reads an input, not a query of WITH; write the columns and WHERE of that query instead"


class BranchRead(NamedTuple):
    """What a SELECT of a union reads: the declared input `source` under `alias`, as the input `name` of the job."""

    source: str
    alias: str
    name: str


@dataclass(frozen=True, slots=True)
class SqlUnion:
    """A UNION ALL as an entry of `spec.unions`, with the words for its place in the text and those of its SELECTs."""

    entry: Mapping[str, Any]
    place_text: str
    branch_texts: tuple[str, ...]
    reads: tuple[BranchRead, ...]

    @property
    def repeats(self) -> Mapping[str, str]:
        """The inputs that its branches read again, by their aliases (rule J13)."""
        return {read.name: read.source for read in self.reads if read.name != read.source}


def take_unions(select: exp.Select, columns: Columns, report: Report) -> list[SqlUnion]:
    """Put an input of the union's name in the place of each UNION ALL, and return the unions. `columns` are those of
    the job's inputs, for stars."""
    unions, own_aliases = list[SqlUnion](), _own_aliases(select)
    unnamed_name: str | None = unused_union_name(select)
    for named in [*select.find_all(exp.CTE)]:
        if isinstance(named.this, exp.Union):
            union = [*_take_union(named, named.alias, columns, own_aliases, report)]
            for table in select.find_all(exp.Table) if not union else ():
                if table.name == named.alias:
                    table.meta[REJECTED] = True
            unions += union
            clause = named.parent
            named.pop()
            if isinstance(clause, exp.With) and not clause.expressions:
                clause.pop()
    for query in [*select.find_all(exp.Subquery)]:
        if isinstance(query.this, exp.Union) and isinstance(query.parent, exp.From | exp.Join):
            alias = query.args.get("alias")
            name = query.alias_or_name
            if not name and unnamed_name is not None:
                # A second one needs a name: the order of the two in the text would decide how the state calls them.
                name, unnamed_name = unnamed_name, None
            union = [*_take_union(query, name, columns, own_aliases, report)]
            table = exp.Table(this=alias.this.copy() if alias is not None else exp.to_identifier(name))
            if not union:
                table.meta[REJECTED] = True
            query.replace(table)
            unions += union
    return unions


def unused_union_name(tree: exp.Expr) -> str:
    """Return `UNITED`, or a longer name if an input, or an alias outside of unions, is called so."""
    names = {table.name for table in tree.find_all(exp.Table)}
    # Not the aliases of branches: the name of a union in states of earlier jobs did not depend on these.
    outer = (node for node in tree.find_all(exp.Table, exp.Subquery, exp.CTE) if node.find_ancestor(exp.Union) is None)
    names |= {node.alias for node in outer}
    name = UNITED
    while name in names:
        name += "_"
    return name


def _own_aliases(select: exp.Select) -> Mapping[str, str]:
    """Return, by input, the alias under which a branch reads the input itself: its own name, or else the alias that
    sorts first, so that the order of the SELECTs decides nothing. Each further alias is an input of its own."""
    aliases: dict[str, set[str]] = {}
    for union in select.find_all(exp.Union):
        for side in (union.this, union.expression):
            start = side.unnest().args.get("from_")
            if start is not None and isinstance(start.this, exp.Table):
                aliases.setdefault(start.this.name, set()).add(start.this.alias_or_name)
    return {name: name if name in of_input else min(of_input) for name, of_input in aliases.items()}


def _take_union(
    query: exp.Expr, name: str, columns: Columns, own_aliases: Mapping[str, str], report: Report
) -> Iterator[SqlUnion]:
    """Yield the union of the query; nothing if it is reported."""
    alias = query.args.get("alias")
    if not name:
        report.add(
            node_position(query), "a second union without a name; write (SELECT ... UNION ALL SELECT ...) <name>"
        )
        return
    if alias is not None and alias.args.get("columns"):
        todo = "name the columns with AS in the first SELECT"
        report.add(node_position(query), f"a list of columns behind the name is not read; {todo}")
        return
    unread = [*_unread_parts(query)]
    for node, problem in unread:
        report.add(node_position(node), problem)
    if unread:
        return
    selects = [*_flatten_selects(query.this)]
    if any(node.args.get("distinct") for node in query.this.find_all(exp.Union)):
        facts = "UNION drops equal rows, which may come at any time"
        todo = "write UNION ALL, and for the first row of a key within a time deduplicate: {within: 1h} beside sql"
        report.add(node_position(query), f"{facts}; {todo}")
        return
    branches = [_read_branch(node, columns, own_aliases, report) for node in selects]
    complete = [branch for branch in branches if branch is not None]
    if len(complete) < len(branches):
        return
    entries = [entry for entry, _ in complete]
    names = [item.get("as") or item.get("column", "") for item in entries[0].get("select", ())]
    if "" in names:
        facts = "an expression of the first SELECT has no name"
        report.add(node_position(selects[0]), f"{facts}; write <expression> AS <name>")
        return
    for node, entry in zip(selects, entries, strict=True):
        listed_items = entry.get("select")
        if listed_items is None or not names:  # a star of an input that is not known
            continue
        if len(listed_items) != len(names):
            facts = f"selects {counted(len(listed_items), 'column')}, and the first SELECT {len(names)}"
            report.add(node_position(node), f"{facts}; columns of a union go by their places")
            return
        # By place: the first SELECT names the columns.
        entry["select"] = [{**item, "as": named} for item, named in zip(listed_items, names, strict=True)]
    texts = tuple(report.place_text(node_position(node)) for node in selects)
    reads = tuple(read for _, read in complete)
    yield SqlUnion({"name": name, "branches": entries}, report.place_text(node_position(query)), texts, reads)


def _unread_parts(query: exp.Expr) -> Iterator[tuple[exp.Expr, str]]:
    """Yield the place and the problem of each part of the unions, of the brackets around these and of stars that is not
    among `_READ`."""
    for node in query.find_all(*_READ):
        extra = {name: value for name, value in node.args.items() if value and name not in _READ[type(node)]}
        if isinstance(node, exp.Star):
            item = node.parent if isinstance(node.parent, exp.Column) else node
            if extra or isinstance(item.parent, exp.Alias):
                yield item, "a star with more is not supported; write the columns one by one"
            continue
        if not extra.keys().isdisjoint(_BY_NAME):
            todo = "write UNION ALL, and the columns of this SELECT in the order of the first one"
            yield node.expression, f"columns of a union go by their places, not by their names; {todo}"
        for name in extra.keys() - _BY_NAME:
            for part in extra[name] if isinstance(extra[name], list) else [extra[name]]:
                yield part, _IN_WITH if name == "with_" else "a union has every row of its SELECTs; leave this out"


def _flatten_selects(node: exp.Expr) -> Iterator[exp.Expr]:
    inner = node.unnest() if isinstance(node, exp.Subquery) and not node.alias else node
    if isinstance(inner, exp.Union):
        yield from _flatten_selects(inner.this)
        yield from _flatten_selects(inner.expression)
    else:
        yield inner


def _read_branch(
    select: exp.Expr, columns: Columns, own_aliases: Mapping[str, str], report: Report
) -> tuple[dict[str, Any], BranchRead] | None:
    """Return a SELECT of the union as an entry of `branches`, and what it reads; None if it is reported."""
    at = node_position(select)
    shape = "write SELECT <columns> FROM <input> WHERE <condition>"
    more = [name.strip("_").upper() for name, value in select.args.items() if value and name not in _PARTS]
    start = select.args.get("from_")
    if not isinstance(select, exp.Select) or more or start is None:
        extra = f" with {listed(more)}" if isinstance(select, exp.Select) and more else ""
        report.add(at, f"a SELECT of a union reads one input{extra and ', and this is one' + extra}; {shape}")
        return None
    table = start.this
    extra_parts = [name for name, value in table.args.items() if value and name not in {"this", "alias"}]
    alias = table.args.get("alias")
    renames = alias is not None and alias.args.get("columns")
    computes = select.find(exp.AggFunc, exp.Window) is not None
    if not isinstance(table, exp.Table) or extra_parts or renames or computes or len([*select.find_all(exp.Query)]) > 1:
        report.add(at, f"a SELECT of a union reads one input, row by row; {shape}")
        return None
    for column in select.find_all(exp.Column):
        if column.table not in {"", table.alias_or_name, table.name}:
            report.add(node_position(column), f"{column.table!r} is not an alias here; the SELECT reads {table.name!r}")
            return None
        column.set("table", None)
    items = [item for node in select.expressions for item in _branch_items(node, columns.get(table.name))]
    selected = {"select": [item for item in items if item is not None]} if None not in items else {}
    where, name = select.args.get("where"), table.name
    if table.alias_or_name not in {name, own_aliases.get(name)}:
        name = table.alias_or_name
        if problem := alias_problem(table.name, name, columns):
            report.add(at, problem)
            return None
    condition = {"where": where.this.sql(comments=False)} if where is not None else {}
    return {"input": name, **selected, **condition}, BranchRead(table.name, table.alias_or_name, name)


def alias_problem(name: str, alias: str, inputs: Collection[str], branches: Collection[str] = ()) -> str | None:
    """Return why an input cannot be read again under this alias; None if it can. `inputs` and `branches` are names that
    the job has already."""
    facts = f"{name!r} is read again as {alias!r}, which is"
    if alias in branches:
        return f"{facts} the name of a branch of a union; write another alias"
    if alias in inputs:
        return f"{facts} the name of another input; write another alias"
    if re.fullmatch(INPUT_NAME, alias) is None:
        return f"{facts} then the name of an input; write an alias of letters, digits and underscores"
    return None


def _branch_items(node: exp.Expr, columns: Collection[str] | None) -> Iterator[Item | None]:
    """Yield the entries of `select` for an item of the list; None for a star of columns that are not known."""
    value, named = node.unalias().unnest(), node.alias if isinstance(node, exp.Alias) else ""
    if value.is_star:
        yield from ({"column": name} for name in columns) if columns is not None else (None,)
    elif isinstance(value, exp.Column):
        yield {"column": value.name, **({"as": named} if named else {})}
    else:
        yield {"expression": value.sql(comments=False), **({"as": named} if named else {})}
