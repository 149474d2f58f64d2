"""Merges WITH and sub-queries in FROM into the SELECT that reads them, as a job is one pipeline.

A sub-query is one of four kinds. Columns and conditions of one input: its conditions become that input's own (a filter
before all joins). A join: its sources and conditions become the first ones of the outer SELECT. Groups: the outer
SELECT names their columns, and its WHERE becomes HAVING. Rows that ROW_NUMBER numbers: the outer WHERE becomes QUALIFY,
which has the conditions behind the numbering. Names of the outer SELECT are replaced by what the sub-query
says of them, which is NULL in the rows that an outer join pads; nodes keep their positions in the text. What cannot be
one pipeline is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from joinery_runtime.job.model.references import RANK_COLUMNS, SESSION_COLUMNS
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql.report import UNION, Form, Report, node_position
from joinery_runtime.job.sql.select_tree import (
    BY_STAR,
    CONDITION,
    DESCRIPTOR,
    FIRST,
    NUMBERED,
    NUMBERED_AGAIN,
    OF_WINDOW,
    OUTER_NAME,
    REJECTED,
    TEST_KINDS,
    add_condition,
    is_nested,
    is_null_of_nulls,
    is_numbering,
    is_padded,
    is_ranking,
    joins_before,
    merge_groups,
    move_conditions,
    own_columns,
    ranking_problem,
    replace_name,
    set_conditions,
)

Columns = Mapping[str, Collection[str]]
"""The columns of the job's inputs, by input; of an input that is missing, any name may be a column."""
EventTimes = Mapping[str, str]
"""The event time columns of the job's inputs, by input; no record is without a value there."""


def merge_derived(select: exp.Select, columns: Columns, event_times: EventTimes, report: Report, form: Form) -> None:
    """Merge everything that the SELECT reads, in clause. USING becomes ON."""
    _Merging(columns, event_times, report, form).merge(select, {})


@dataclass(slots=True)
class _Source:
    """What a name in FROM stands for. `outputs` are the expressions of a sub-query's columns by their names. `star`: it
    has further columns, those of the input `table` (None: not known), under the alias; `names` are all that are
    known, in order. A row of the sub-query has a value in one of the columns `present`; in a padded row all are
    NULL."""

    alias: str
    table: str | None = None
    outputs: dict[str, exp.Expr] = field(default_factory=dict)
    star: bool = True
    derived: bool = False
    names: Sequence[str] = ()
    present: Sequence[exp.Column] = ()

    def output(self, name: str, *, padded: bool) -> exp.Expr | None:
        """Return the expression of a column of the sub-query; None for a further column. `padded`: some of the rows
        where the name stands are without a row of the sub-query, and there the column is NULL."""
        value = self.outputs.get(name)
        if value is None or not padded or not self.present or is_null_of_nulls(value):
            return value
        tests = [exp.Not(this=exp.Is(this=column.copy(), expression=exp.Null())) for column in self.present]
        return exp.Case(ifs=[exp.If(this=exp.or_(*tests, copy=False), true=value.copy())])


class _Merging:
    def __init__(self, columns: Columns, event_times: EventTimes, report: Report, form: Form) -> None:
        self._columns, self._event_times, self._report, self._form = columns, event_times, report, form
        self._hidden: set[str] = set()  # aliases inside of joined sub-queries

    def merge(self, select: exp.Select, outer: Mapping[str, exp.Expr], *, tests: bool = False) -> None:
        """Merge the sub-queries of a SELECT. `outer` are those of WITH around it. `tests`: it tests for a match in
        WHERE of another SELECT, of which it may name columns."""
        named = self._named_queries(select, outer)
        where = select.args.get("where")
        for nested in [*where.find_all(exp.Select)] if where is not None else []:
            if nested.find_ancestor(exp.Select) is select:
                self.merge(nested, named, tests=True)
        start, joins = select.args.get("from_"), select.args.get("joins") or []
        if start is None:
            return
        written = own_columns(select)
        read = [self._read_clause(clause, select, named) for clause in (start, *joins)]
        sources = [source for source, _ in read]
        grouped = next((inner for _, inner in read if inner is not None), None)
        if grouped is not None and select.args.get("group") is not None:
            self._put_behind(grouped, select, sources, written)
            return
        if any(source.derived for source in sources) or any(join.args.get("using") for join in joins):
            shared, conditions = self._read_using(sources, joins)
            for column in written if tests else ():
                if not column.table and not any(self._has_column(source, column.name) for source in sources):
                    column.meta[OUTER_NAME] = True
            self._replace_names(select, joins, sources, shared, written)
            for join, parts in zip(joins, conditions, strict=True):
                if parts:
                    join.set("using", None)
                    join.set("on", exp.and_(*parts, copy=False))
        if grouped is not None:
            merge_groups(grouped, select)

    def _read_clause(
        self, clause: exp.Expr, select: exp.Select, named: Mapping[str, exp.Expr]
    ) -> tuple[_Source, exp.Select | None]:
        """Read what FROM or a JOIN of the SELECT names, and put the sources of a sub-query in its place. Return also
        the sub-query if it is one of groups, which is the SELECT's only source."""
        query, joins = self._find_query(clause.this, named), select.args.get("joins")
        if query is None:
            table = clause.this
            if table.name in named and not isinstance(named[table.name], exp.Select):
                table.meta[REJECTED] = True
            return _Source(table.alias_or_name, table.name if isinstance(table, exp.Table) else None), None
        inner, alias = query.this, query.alias_or_name
        self.merge(inner, named if query is clause.this else {})  # one of WITH has its names already
        if problem := self._merge_problem(inner, select, first=isinstance(clause, exp.From)):
            self._report.add(node_position(query), problem)
            clause.set("this", _placeholder(alias, {REJECTED: True}))
            return _Source(alias), None
        if is_ranking(inner) and "qualify" in self._form.parts:
            move_conditions(inner, select)
        if inner.args.get("group") is not None:
            clause.set("this", _placeholder(alias, {}))
            return self._read_outputs(inner, alias), inner
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
        queries, own_names = dict(outer), set[str]()
        for query in clause.expressions:
            if query.args["alias"].args.get("columns"):
                todo = "name the columns with AS in its SELECT"
                self._report.add(node_position(query), f"a list of columns behind its name is not read; {todo}")
            if isinstance(query.this, exp.Select):
                self.merge(query.this, queries)
            else:
                facts = f"{query.alias!r} is no SELECT, but {query.this.key.upper()}"
                todo = UNION if isinstance(query.this, exp.Union) else "write one SELECT"
                self._report.add(node_position(query), f"{facts}; {todo}")
            if query.alias in own_names:
                facts = f"two queries of WITH are named {query.alias!r}"
                self._report.add(node_position(query), f"{facts}; give one another name")
            own_names.add(query.alias)
            queries[query.alias] = query.this
        return queries

    def _find_query(self, source: exp.Expr, named: Mapping[str, exp.Expr]) -> exp.Expr | None:
        """Return the sub-query that a source is, or names; None: it is an input, or something that is reported."""
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            inner = named.get(source.name)
            if not isinstance(inner, exp.Select) or source.args.get("version") is not None:
                return None
            own_alias = exp.TableAlias(this=exp.to_identifier(source.alias_or_name))
            own_alias.this.meta.update(source.this.meta)
            return exp.Subquery(this=inner.copy(), alias=own_alias)
        is_select = isinstance(source, exp.Subquery) and isinstance(source.this, exp.Select)
        alias = source.args.get("alias") if is_select else None
        return source if is_select and not (alias is not None and alias.args.get("columns")) else None

    # --- what can be merged -------------------------------------------------------------------------------------------

    def _merge_problem(self, inner: exp.Select, select: exp.Select, *, first: bool) -> str:
        """Say why the sub-query cannot be part of the pipeline; empty if it can."""
        more = [name.strip("_").upper() for name, value in inner.args.items() if value and name not in self._form.parts]
        if more:
            return f"a sub-query with {listed(more)} is not supported: {self._form.rest}"
        if inner.args.get("from_") is None:
            return "a sub-query without FROM is not supported; name an input of the job"
        joins, grouped = select.args.get("joins") or [], inner.args.get("group") is not None
        if is_ranking(inner) and "qualify" in self._form.parts:
            return ranking_problem(inner, select)
        if not grouped and any(item.find(exp.AggFunc, exp.Window) for item in inner.expressions):
            return "a sub-query computes over many rows and has no GROUP BY; write GROUP BY with a window"
        if grouped and inner.meta.get(NUMBERED) and is_ranking(select):
            return NUMBERED_AGAIN
        if grouped and joins:
            return "groups that are joined are a job of their own; let a second job read this one's output"
        if grouped and FIRST in inner.meta and select.args.get("group") is not None:
            return "a job aggregates twice at most; let a second job read this one's output"
        aggregates = [node for item in select.expressions for node in item.find_all(exp.AggFunc)]
        if grouped and select.args.get("group") is None and any(not is_numbering(node) for node in aggregates):
            facts = "the SELECT around groups aggregates their rows, and has no GROUP BY"
            return f"{facts}; write GROUP BY window_start, window_end, or with a window of its own"
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
            names = self._columns.get(table.name)
            if not column.table and column.name in RANK_COLUMNS and column.name not in (names or ()):
                continue  # of windows or of ROW_NUMBER
            if column.table in {former, table.name} or (not column.table and not is_nested(column, inner)):
                if names is not None and column.name not in names and not isinstance(column.this, exp.Star):
                    facts = f"{table.name!r} has no column {column.name!r}{suggestion(column.name, names)}"
                    self._report.add(node_position(column), f"{facts}; its columns are {listed(names)}")
                column.set("table", exp.to_identifier(alias))
        source = self._read_outputs(inner, alias)
        condition = inner.args.get("where")
        merged = table.copy()
        merged.set("alias", exp.TableAlias(this=exp.to_identifier(alias)))
        if (time := clause.this.meta.get(DESCRIPTOR)) is not None:
            merged.meta[DESCRIPTOR] = source.outputs.get(time.name, time)
        clause.set("this", merged)
        if condition is not None and joined:
            merged.meta[CONDITION] = condition.this
        elif condition is not None:
            add_condition(clause.parent_select, condition.this)
        return source

    def _put_behind(
        self, first: exp.Select, select: exp.Select, sources: Sequence[_Source], written: Sequence[exp.Column]
    ) -> None:
        """Mark a SELECT that groups the rows of another one, whose groups meet the conditions of its WHERE."""
        where = select.args.get("where")
        for column in written if where is not None else ():
            if column.find_ancestor(exp.Where) is where:
                meant = self._find_meaning(column, sources, [], {}, SESSION_COLUMNS, nested=False)
                if meant is not None:
                    replace_name(meant, column)
        set_conditions(first, "having", exp.Having, first.args.get("having"), where)
        select.set("where", None)
        select.meta[FIRST] = first

    def _merge_join(self, inner: exp.Select, alias: str, select: exp.Select) -> _Source:
        """Put the sources and conditions of a sub-query in front of those of the SELECT."""
        condition = inner.args.get("where")
        self._hidden |= {clause.this.alias_or_name for clause in (inner.args["from_"], *inner.args["joins"])}
        select.set("from_", inner.args["from_"])
        select.set("joins", [*inner.args["joins"], *(select.args.get("joins") or [])])
        if condition is not None:
            add_condition(select, condition.this)
        return self._read_outputs(inner, alias)

    def _read_outputs(self, inner: exp.Select, alias: str) -> _Source:
        """Read what the sub-query calls its columns."""
        joins = inner.args.get("joins") or []
        tables = [clause.this for clause in (inner.args["from_"], *joins)]
        outputs, star = dict[str, exp.Expr](), False
        names = dict[str, None]()  # in order
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
                own_names: Collection[str] = counts
            elif item.alias_or_name:
                outputs[item.alias_or_name] = value
                own_names = [item.alias_or_name]
            else:
                self._report.add(
                    node_position(item), "a column of a sub-query needs a name; write <expression> AS <name>"
                )
                own_names = []
            for name in own_names:
                if name in names:
                    facts = f"two columns of the sub-query are named {name!r}"
                    self._report.add(node_position(item), f"{facts}; name one with AS")
                names[name] = None
        single = tables[0].name if len(tables) == 1 else None
        present = self._present_columns(tables, joins, alias)
        return _Source(alias, single, outputs, star, derived=True, names=tuple(names), present=present)

    def _present_columns(
        self, tables: Sequence[exp.Expr], joins: Sequence[exp.Expr], alias: str
    ) -> Sequence[exp.Column]:
        """Return columns of which one has a value in each row of the sub-query: the event time of an input that none of
        the joins pads, or else those of all inputs. An only input has the sub-query's alias."""
        times = {
            number: exp.column(self._event_times[table.name], table=table.alias_or_name if joins else alias)
            for number, table in enumerate(tables)
            if table.name in self._event_times and not (number and joins[number - 1].args.get("kind") in TEST_KINDS)
        }
        always = next((number for number in times if not is_padded(number, joins)), None)
        return [*times.values()] if always is None else [times[always]]

    # --- names --------------------------------------------------------------------------------------------------------

    def _read_using(
        self, sources: Sequence[_Source], joins: Sequence[exp.Expr]
    ) -> tuple[Mapping[str, Sequence[int]], Sequence[Sequence[exp.Expr]]]:
        """Return the numbers of the sources from which each name of USING takes the first value that is not NULL, and
        the conditions of each join that the names stand for."""
        shared, conditions = dict[str, Sequence[int]](), list[Sequence[exp.Expr]]()
        for number, join in enumerate(joins, start=1):
            parts = []
            for identifier in join.args.get("using") or []:
                name = identifier.name
                owner = next((i for i in range(number) if self._has_column(sources[i], name)), number - 1)
                left = shared.get(name, [owner])
                before = joins[: number - 1]
                sides = (_shared_value(name, numbers, sources, before, identifier) for numbers in (left, [number]))
                parts.append(exp.EQ(this=next(sides), expression=next(sides)))
                by_side = {"RIGHT": [number], "FULL": [*left, number]}
                shared[name] = by_side.get(join.args.get("side") or "", left)
            conditions.append(parts)
        return shared, conditions

    def _replace_names(
        self,
        select: exp.Select,
        joins: Sequence[exp.Expr],
        sources: Sequence[_Source],
        shared: Mapping[str, Sequence[int]],
        written: Sequence[exp.Column],
    ) -> None:
        """Replace the names of the SELECT, of which `written` are the columns, by what they stand for."""
        own = {*SESSION_COLUMNS, *RANK_COLUMNS, *(item.alias for item in select.expressions)}
        for column in written:
            meant = self._find_meaning(
                column, sources, joins_before(column, joins), shared, own, is_nested(column, select)
            )
            if meant is not None:
                replace_name(meant, column)
        items = [part for item in select.expressions for part in self._expand_star(item, sources, joins, shared)]
        select.set("expressions", items)

    def _find_meaning(
        self,
        column: exp.Column,
        sources: Sequence[_Source],
        before: Sequence[exp.Expr],
        shared: Mapping[str, Sequence[int]],
        own: Collection[str],
        nested: bool,
    ) -> exp.Expr | None:
        """Return what a name stands for; None: it stays as it is. `before` are the joins that made the rows where the
        name stands, `own` names that the SELECT gives itself. `nested`: it stands in a sub-query of WHERE."""
        name = column.name
        if OF_WINDOW in column.meta:
            return None
        if column.table:
            owner = next((source for source in sources if source.alias == column.table), None)
            if owner is None and column.table in self._hidden and not nested:
                aliases = listed(source.alias for source in sources)
                self._reject_column(column, f"{column.table!r} is not an alias here; aliases are {aliases}")
            if owner is None or not owner.derived:
                return None
            if name not in owner.outputs and not owner.star:
                facts = f"{owner.alias!r} has no column {name!r}{suggestion(name, owner.outputs)}"
                self._reject_column(column, f"{facts}; its columns are {listed(owner.outputs)}")
            return owner.output(name, padded=is_padded(sources.index(owner), before))
        if nested and self._may_be_own(column):
            return None
        if name in shared:
            return _shared_value(name, shared[name], sources, before, column.this)
        owners = [source for source in sources if self._has_column(source, name)]
        derived = [source for source in owners if source.derived]
        if len(owners) > 1 and derived:
            choices = " or ".join(f"{source.alias}.{name}" for source in owners)
            self._reject_column(column, f"is ambiguous, several inputs have it; write {choices}")
        elif OUTER_NAME in column.meta and not nested:
            return None  # which the SELECT around this one reads
        elif not owners and name not in own and all(source.derived and not source.star for source in sources):
            names = [output for source in sources for output in source.outputs]
            facts = f"the sub-query has no column {name!r}{suggestion(name, names)}"
            self._reject_column(column, f"{facts}; its columns are {listed(names)}")
        return derived[0].output(name, padded=is_padded(sources.index(derived[0]), before)) if derived else None

    def _may_be_own(self, column: exp.Column) -> bool:
        """Say whether a column without an alias in a sub-query of WHERE may be one of the sub-query's own inputs."""
        if OUTER_NAME in column.meta:
            return False
        query = column.parent_select
        start = query.args.get("from_") if query is not None else None
        joins = query.args.get("joins") or [] if query is not None else []
        inputs = [clause.this.name for clause in (start, *joins) if clause is not None]
        return any(column.name in self._columns.get(name, (column.name,)) for name in inputs)

    def _reject_column(self, column: exp.Column, message: str) -> None:
        self._report.add(node_position(column), message)
        column.meta[REJECTED] = True

    def _has_column(self, source: _Source, name: str) -> bool:
        further = self._columns.get(source.table or "", ()) if source.star else ()
        return name in source.outputs or name in further

    def _expand_star(
        self,
        item: exp.Expr,
        sources: Sequence[_Source],
        joins: Sequence[exp.Expr],
        shared: Mapping[str, Sequence[int]],
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
        for name, numbers in shared.items() if not qualifier else ():
            yield exp.alias_(_shared_value(name, numbers, sources, joins, star), name)
        for source in chosen:
            for name in source.names if source.derived else self._columns[source.table or ""]:
                if name in shared and not qualifier:
                    continue
                column = source.output(name, padded=is_padded(sources.index(source), joins))
                if isinstance(column, exp.Column) or column is None:
                    plain = column.copy() if column is not None else exp.column(name, table=source.alias)
                    plain.meta.update({**star.meta, BY_STAR: True})
                    yield plain if plain.name == name else exp.alias_(plain, name)
                else:
                    yield exp.alias_(column.copy(), name)


def _placeholder(alias: str, meta: Mapping[str, bool]) -> exp.Table:
    """Return a table in the place of a sub-query."""
    table = exp.Table(this=exp.to_identifier(alias), alias=exp.TableAlias(this=exp.to_identifier(alias)))
    table.meta.update(meta)
    return table


def _shared_value(
    name: str, numbers: Sequence[int], sources: Sequence[_Source], before: Sequence[exp.Expr], identifier: exp.Expr
) -> exp.Expr:
    """Return the value of a name of USING behind some joins; `identifier` is its place in the text."""
    values = []
    for number in numbers:
        value = sources[number].output(name, padded=is_padded(number, before))
        if value is None:
            value = exp.column(name, table=sources[number].alias)
            value.this.meta.update(identifier.meta)
        values.append(value.copy())
    return values[0] if len(values) == 1 else exp.Coalesce(this=values[0], expressions=values[1:])
