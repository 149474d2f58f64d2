"""Merges WITH and sub-queries in FROM into the SELECT that reads them, as a job is one pipeline.

A sub-query is one of three kinds. Columns and conditions of one input: its conditions become that input's own (a filter
before all joins). A join: its sources and conditions become the first ones of the outer SELECT. Groups: the outer
SELECT names their columns, and its WHERE becomes HAVING. Names of the outer SELECT are replaced by what the sub-query
says of them; nodes keep their positions in the text. What cannot be one pipeline is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from joinery_runtime.job.model.references import SESSION_COLUMNS
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql.report import Form, Report, TextPosition, node_position

Columns = Mapping[str, Collection[str]]
"""The columns of the job's inputs, by input; of an input that is missing, any name may be a column."""
BY_STAR, CONDITION, REJECTED = "joinery.star", "joinery.condition", "joinery.rejected"
"""Marks of nodes: a column that a star stands for; the condition of an input that a sub-query filters; a source or a
column that was reported."""


def merge_derived(select: exp.Select, columns: Columns, report: Report, form: Form) -> None:
    """Merge everything that the SELECT reads, in clause. USING becomes ON."""
    merging = _Merging(columns, report, form)
    merging.merge(select, {})
    for name, at in merging.unread.items():
        report.add(at, f"nothing reads {name!r}; leave it out, or name it in FROM or JOIN")


@dataclass(slots=True)
class _Source:
    """What a name in FROM stands for. `outputs` are the expressions of a sub-query's columns by their names. `star`: it
    has further columns, those of the input `table` (None: not known), under the alias."""

    alias: str
    table: str | None = None
    outputs: dict[str, exp.Expr] = field(default_factory=dict)
    star: bool = True
    derived: bool = False


class _Merging:
    def __init__(self, columns: Columns, report: Report, form: Form) -> None:
        self._columns, self._report, self._form = columns, report, form
        self._hidden: set[str] = set()  # aliases inside of joined sub-queries
        self.unread: dict[str, TextPosition] = {}
        """The queries of WITH that nothing has read so far."""

    def merge(self, select: exp.Select, outer: Mapping[str, exp.Expr]) -> None:
        """Merge the sub-queries of a SELECT. `outer` are those of WITH around it."""
        named = self._named_queries(select, outer)
        where = select.args.get("where")
        for nested in [*where.find_all(exp.Select)] if where is not None else []:
            if nested.find_ancestor(exp.Select) is select:
                self.merge(nested, named)
        start, joins = select.args.get("from_"), select.args.get("joins") or []
        if start is None:
            return
        written = _own_columns(select)
        read = [self._read_clause(clause, select, named) for clause in (start, *joins)]
        sources = [source for source, _ in read]
        if any(source.derived for source in sources) or any(join.args.get("using") for join in joins):
            shared, conditions = self._read_using(sources, joins)
            self._replace_names(select, sources, shared, written)
            for join, parts in zip(joins, conditions, strict=True):
                if parts:
                    join.set("using", None)
                    join.set("on", exp.and_(*parts, copy=False))
        for groups in (inner for _, inner in read if inner is not None):
            _merge_groups(groups, select)

    def _read_clause(
        self, clause: exp.Expr, select: exp.Select, named: Mapping[str, exp.Expr]
    ) -> tuple[_Source, exp.Select | None]:
        """Read what FROM or a JOIN of the SELECT names, and put the sources of a sub-query in its place. Return also
        the sub-query if it is one of groups, which is the SELECT's only source."""
        query, joins = self._query_of(clause.this, named), select.args.get("joins")
        if query is None:
            table = clause.this
            if table.name in named and not isinstance(named[table.name], exp.Select):
                table.meta[REJECTED] = True
            return _Source(table.alias_or_name, table.name if isinstance(table, exp.Table) else None), None
        inner, alias = query.this, query.alias_or_name
        self.merge(inner, named if query is clause.this else {})  # one of WITH has its names already
        if problem := self._problem(inner, select, first=isinstance(clause, exp.From)):
            self._report.add(node_position(query), problem)
            clause.set("this", _placeholder(alias, {REJECTED: True}))
            return _Source(alias), None
        if inner.args.get("group") is not None:
            clause.set("this", _placeholder(alias, {}))
            return self._read(inner, alias), inner
        if inner.args.get("joins"):
            return self._merge_join(inner, alias, select), None
        return self._merge_input(inner, query, clause, joined=bool(joins)), None

    def _named_queries(self, select: exp.Select, outer: Mapping[str, exp.Expr]) -> Mapping[str, exp.Expr]:
        """Take WITH off the SELECT, and merge its queries. Each may read those before it; its own name means an
        input there."""
        clause = select.args.get("with_")
        if clause is None:
            return outer
        select.set("with_", None)
        if clause.args.get("recursive"):
            facts = "a recursive query has no end on a stream"
            self._report.add(node_position(clause), f"WITH RECURSIVE is not supported: {facts}; leave RECURSIVE out")
        queries = dict(outer)
        for query in clause.expressions:
            if query.args["alias"].args.get("columns"):
                todo = "name the columns with AS in its SELECT"
                self._report.add(node_position(query), f"a list of columns behind its name is not read; {todo}")
            if isinstance(query.this, exp.Select):
                self.merge(query.this, queries)
            else:
                facts = f"{query.alias!r} is no SELECT, but {query.this.key.upper()}"
                self._report.add(node_position(query), f"{facts}; write one SELECT")
            queries[query.alias] = query.this
            self.unread[query.alias] = node_position(query)
        return queries

    def _query_of(self, source: exp.Expr, named: Mapping[str, exp.Expr]) -> exp.Expr | None:
        """Return the sub-query that a source is, or names; None: it is an input, or something that is reported."""
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            inner = named.get(source.name)
            self.unread.pop(source.name, None)
            has_version = source.args.get("version") is not None
            return _derived(inner, source) if isinstance(inner, exp.Select) and not has_version else None
        is_select = isinstance(source, exp.Subquery) and isinstance(source.this, exp.Select)
        alias = source.args.get("alias") if is_select else None
        return source if is_select and not (alias is not None and alias.args.get("columns")) else None

    # --- what can be merged -------------------------------------------------------------------------------------------

    def _problem(self, inner: exp.Select, select: exp.Select, *, first: bool) -> str:
        """Say why the sub-query cannot be part of the pipeline; empty if it can."""
        more = [name.strip("_").upper() for name, value in inner.args.items() if value and name not in self._form.parts]
        if more:
            return f"a sub-query with {listed(more)} is not supported: {self._form.rest}"
        if inner.args.get("qualify") or select.args.get("qualify"):
            return "a sub-query is not supported beside QUALIFY; write one SELECT over the inputs"
        if inner.args.get("from_") is None:
            return "a sub-query without FROM is not supported; name an input of the job"
        joins, grouped = select.args.get("joins") or [], inner.args.get("group") is not None
        if not grouped and any(item.find(exp.AggFunc, exp.Window) for item in inner.expressions):
            return "a sub-query computes over many rows and has no GROUP BY; write GROUP BY with a window"
        alone = not joins and not any(select.args.get(part) for part in ("group", "having"))
        if grouped and not alone:
            facts = "groups are the end of a job: joins and further groups of them are a job of their own"
            return f"{facts}; let a second job read this one's output"
        if grouped and any(
            not isinstance(item.unalias().unnest(), exp.Column | exp.Star) for item in select.expressions
        ):
            facts = "the SELECT around groups names their columns"
            return f"{facts}; write expressions into the sub-query, as groups or inside of aggregates"
        if inner.args.get("joins") and not grouped and not first:
            return "a join inside of a join's right side is not supported; write its joins one after the other"
        where = inner.args.get("where")
        if inner.args.get("joins") and not grouped and where and any(join.side in {"RIGHT", "FULL"} for join in joins):
            facts = "a RIGHT or FULL join behind it would see the rows that its WHERE leaves out"
            return f"the WHERE of a joined sub-query cannot move: {facts}; write the conditions into its ON"
        if not inner.args.get("joins") and joins and where and where.find(exp.Query):
            return "a sub-query of a join that tests for a match is not supported; write the test into the last WHERE"
        return ""

    # --- merging ------------------------------------------------------------------------------------------------------

    def _merge_input(self, inner: exp.Select, query: exp.Expr, clause: exp.Expr, *, joined: bool) -> _Source:
        """Put the sub-query's only input in its place. Its condition becomes the input's own, or without joins that of
        the outer WHERE."""
        table = inner.args["from_"].this
        former, alias = table.alias_or_name, query.alias_or_name or table.alias_or_name
        for column in inner.find_all(exp.Column):
            if column.table in {former, table.name} or (not column.table and not _is_nested(column, inner)):
                self._check(column, table)
                column.set("table", exp.to_identifier(alias))
        source = self._read(inner, alias)
        condition = inner.args.get("where")
        merged = table.copy()
        merged.set("alias", exp.TableAlias(this=exp.to_identifier(alias)))
        clause.set("this", merged)
        if condition is not None and joined:
            merged.meta[CONDITION] = condition.this
        elif condition is not None:
            _add_condition(clause.parent_select, condition.this)
        return source

    def _merge_join(self, inner: exp.Select, alias: str, select: exp.Select) -> _Source:
        """Put the sources and conditions of a sub-query in front of those of the SELECT."""
        condition = inner.args.get("where")
        self._hidden |= {clause.this.alias_or_name for clause in (inner.args["from_"], *inner.args["joins"])}
        select.set("from_", inner.args["from_"])
        select.set("joins", [*inner.args["joins"], *(select.args.get("joins") or [])])
        if condition is not None:
            _add_condition(select, condition.this)
        return self._read(inner, alias)

    def _read(self, inner: exp.Select, alias: str) -> _Source:
        """Read what the sub-query calls its columns."""
        tables = [clause.this for clause in (inner.args["from_"], *(inner.args.get("joins") or []))]
        outputs, star = dict[str, exp.Expr](), False
        for item in inner.expressions:
            value = item.unalias().unnest()
            if value.is_star:
                chosen = [t for t in tables if not isinstance(value, exp.Column) or t.alias_or_name == value.table]
                star = star or len(tables) == 1 or any(table.name not in self._columns for table in chosen)
                every = [(name, table) for table in chosen for name in self._columns.get(table.name, ())]
                counts = Counter(name for name, _ in every)
                if len(tables) > 1 and (shared := [name for name in counts if counts[name] > 1]):
                    facts = f"several inputs of the sub-query have {listed(shared)}"
                    self._report.add(node_position(item), f"{facts}; name its columns one by one, with AS")
                outputs |= {name: exp.column(name, table=t.alias_or_name) for name, t in every if len(tables) > 1}
            elif item.alias_or_name:
                outputs[item.alias_or_name] = value
            else:
                self._report.add(
                    node_position(item), "a column of a sub-query needs a name; write <expression> AS <name>"
                )
        single = tables[0].name if len(tables) == 1 else None
        return _Source(alias, single, outputs, star, derived=True)

    def _check(self, column: exp.Column, table: exp.Expr) -> None:
        names = self._columns.get(table.name)
        if names is not None and column.name not in names and not isinstance(column.this, exp.Star):
            hint = suggestion(column.name, names)
            facts = f"{table.name!r} has no column {column.name!r}{hint}; its columns are {listed(names)}"
            self._report.add(node_position(column), facts)

    # --- names --------------------------------------------------------------------------------------------------------

    def _read_using(
        self, sources: Sequence[_Source], joins: Sequence[exp.Expr]
    ) -> tuple[Mapping[str, exp.Expr], Sequence[Sequence[exp.Expr]]]:
        """Return what each name of USING means, and the conditions of each join that it stands for."""
        shared, conditions = dict[str, exp.Expr](), list[Sequence[exp.Expr]]()
        for number, join in enumerate(joins, start=1):
            parts = []
            for identifier in join.args.get("using") or []:
                name = identifier.name
                owner = next((source for source in sources[:number] if self._has(source, name)), sources[number - 1])
                left, right = (
                    shared.get(name, _column(name, owner, identifier)),
                    _column(name, sources[number], identifier),
                )
                parts.append(exp.EQ(this=left.copy(), expression=right.copy()))
                shared[name] = left
                if join.args.get("side") == "RIGHT":
                    shared[name] = right
                elif join.args.get("side") == "FULL":
                    shared[name] = exp.Coalesce(this=left.copy(), expressions=[right.copy()])
            conditions.append(parts)
        return shared, conditions

    def _replace_names(
        self,
        select: exp.Select,
        sources: Sequence[_Source],
        shared: Mapping[str, exp.Expr],
        written: Sequence[exp.Column],
    ) -> None:
        """Replace the names of the SELECT, of which `written` are the columns, by what they stand for."""
        own = {*SESSION_COLUMNS, *(item.alias for item in select.expressions)}
        for column in written:
            meant = self._meant(column, sources, shared, own, nested=_is_nested(column, select))
            if meant is not None:
                _put(meant, column)
        items = [part for item in select.expressions for part in self._without_star(item, sources, shared)]
        select.set("expressions", items)

    def _meant(
        self,
        column: exp.Column,
        sources: Sequence[_Source],
        shared: Mapping[str, exp.Expr],
        own: Collection[str],
        *,
        nested: bool,
    ) -> exp.Expr | None:
        """Return what a name stands for; None: it stays as it is. `own` are names that the SELECT gives itself."""
        name = column.name
        if column.table:
            owner = next((source for source in sources if source.alias == column.table), None)
            if owner is None and column.table in self._hidden and not nested:
                aliases = listed(source.alias for source in sources)
                self._reject(column, f"{column.table!r} is not an alias here; aliases are {aliases}")
            if owner is None or not owner.derived:
                return None
            if name not in owner.outputs and not owner.star:
                facts = f"{owner.alias!r} has no column {name!r}{suggestion(name, owner.outputs)}"
                self._reject(column, f"{facts}; its columns are {listed(owner.outputs)}")
            return owner.outputs.get(name)
        if nested:
            return None
        if name in shared:
            return shared[name]
        owners = [source for source in sources if self._has(source, name)]
        derived = [source for source in owners if source.derived]
        if len(owners) > 1 and derived:
            choices = " or ".join(f"{source.alias}.{name}" for source in owners)
            self._reject(column, f"is ambiguous, several inputs have it; write {choices}")
        elif not owners and name not in own and all(source.derived and not source.star for source in sources):
            names = [output for source in sources for output in source.outputs]
            facts = f"the sub-query has no column {name!r}{suggestion(name, names)}"
            self._reject(column, f"{facts}; its columns are {listed(names)}")
        return derived[0].outputs.get(name) if derived else None

    def _reject(self, column: exp.Column, message: str) -> None:
        self._report.add(node_position(column), message)
        column.meta[REJECTED] = True

    def _has(self, source: _Source, name: str) -> bool:
        known = self._columns.get(source.table or "", ())
        return name in source.outputs or (source.star and name in known)

    def _without_star(
        self, item: exp.Expr, sources: Sequence[_Source], shared: Mapping[str, exp.Expr]
    ) -> Iterator[exp.Expr]:
        """Yield the columns that a star stands for, where all are known; anything else as it is."""
        value = item.unalias().unnest()
        star = value.this if isinstance(value, exp.Column) else value
        if not isinstance(star, exp.Star) or any(star.args.values()) or isinstance(item, exp.Alias):
            yield item
            return
        qualifier = value.table if isinstance(value, exp.Column) else ""
        chosen = [source for source in sources if qualifier in {"", source.alias}]
        if not chosen or any(source.star and source.table not in self._columns for source in chosen):
            yield item
            return
        for name, meant in shared.items() if not qualifier else ():
            yield exp.alias_(meant.copy(), name)
        for source in chosen:
            names = dict.fromkeys([*source.outputs, *(self._columns[source.table or ""] if source.star else ())])
            for name in names:
                if name in shared and not qualifier:
                    continue
                column = source.outputs.get(name)
                if isinstance(column, exp.Column) or column is None:
                    plain = column.copy() if column is not None else exp.column(name, table=source.alias)
                    plain.meta.update({**star.meta, BY_STAR: True})
                    yield plain if plain.name == name else exp.alias_(plain, name)
                else:
                    yield exp.alias_(column.copy(), name)


def _derived(inner: exp.Expr, table: exp.Expr) -> exp.Expr:
    """The sub-query for which a name of WITH stands."""
    query = exp.Subquery(this=inner.copy(), alias=exp.TableAlias(this=exp.to_identifier(table.alias_or_name)))
    query.args["alias"].this.meta.update(table.this.meta)
    return query


def _placeholder(alias: str, meta: Mapping[str, bool]) -> exp.Table:
    """A table in the place of a sub-query."""
    table = exp.Table(this=exp.to_identifier(alias), alias=exp.TableAlias(this=exp.to_identifier(alias)))
    table.meta.update(meta)
    return table


def _column(name: str, source: _Source, identifier: exp.Expr) -> exp.Expr:
    if name in source.outputs:
        return source.outputs[name]
    column = exp.column(name, table=source.alias)
    column.this.meta.update(identifier.meta)
    return column


def _own_columns(select: exp.Select) -> Sequence[exp.Column]:
    """The names that the SELECT itself writes: not those of its sub-queries in FROM, and no stars."""
    clauses = [select.args["from_"], *(select.args.get("joins") or [])]
    queries = [clause.this for clause in clauses if isinstance(clause.this, exp.Subquery)]
    inside = {id(column) for query in queries for column in query.find_all(exp.Column)}
    columns = [column for column in select.find_all(exp.Column) if not isinstance(column.this, exp.Star)]
    return [column for column in columns if id(column) not in inside]


def _is_nested(column: exp.Expr, select: exp.Select) -> bool:
    """Say whether the column is in a sub-query of the SELECT, where names mean its own input first."""
    return column.parent_select is not select


def _put(meant: exp.Expr, column: exp.Column) -> None:
    """Replace a name by what it means. A column of the select list keeps its name."""
    value = meant.copy()
    whole = column.parent
    if isinstance(whole, exp.Select) and column.arg_key == "expressions":
        keeps_name = isinstance(value, exp.Column) and value.name == column.name
        column.replace(value if keeps_name else exp.alias_(value, column.name, copy=False))
        return
    wrapped = isinstance(value, exp.Binary | exp.Connector | exp.Not | exp.Between | exp.Case)
    column.replace(exp.paren(value, copy=False) if wrapped and isinstance(whole, exp.Expression) else value)


def _add_condition(select: exp.Expr | None, condition: exp.Expr) -> None:
    assert select is not None, "a source is part of a SELECT"
    where = select.args.get("where")
    parts = [condition, *([where.this] if where is not None else [])]
    select.set("where", exp.Where(this=exp.and_(*parts, copy=False)))


def _merge_groups(inner: exp.Select, select: exp.Select) -> None:
    """Make the SELECT that of the groups: its own WHERE is about groups."""
    having, where = inner.args.get("having"), select.args.get("where")
    parts = [clause.this for clause in (having, where) if clause is not None]
    for name in ("from_", "joins", "group", "where"):
        select.set(name, inner.args.get(name))
    select.set("having", exp.Having(this=exp.and_(*parts, copy=False)) if parts else None)
