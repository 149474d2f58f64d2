"""Window joins as Flink writes them: joins of table functions, whose windows the conditions compare.

    FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), <size>))) l
    JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(ts), <size>))) r
      ON l.id = r.id AND l.window_start = r.window_start AND l.window_end = r.window_end

joins the two inputs with `WINDOW TUMBLING(<size>)`. The functions may stand in sub-queries, in queries of WITH and in
sub-queries of WHERE that test for a match. They are taken out of the tree, and so are the comparisons of windows; other
columns of windows become those of the joined row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import NotALengthError, split_ands
from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.model.time_formats import checked_zone
from joinery_runtime.job.sql.clauses import WindowClause, WindowKind, window_ms
from joinery_runtime.job.sql.report import Report, TextPosition, column_at, node_position
from joinery_runtime.job.sql.select_tree import DESCRIPTOR, OF_WINDOW, REJECTED, TEST_KINDS, existence_test
from joinery_runtime.job.sql.window_functions import (
    FUNCTION_COLUMNS,
    TableFunction,
    is_table_function,
    is_text,
    take_function,
)

_LENGTHS = {"TUMBLE": ("SIZE",), "HOP": ("SLIDE", "SIZE")}
_NOT_JOINED = {
    "CUMULATE": "CUMULATE(...) is for groups: a pair would be emitted again at each step; write TUMBLE or HOP",
    "SESSION": "SESSION(...) makes sessions of each side by itself, of which two are rarely the same; write WINDOW "
    "SESSION(<gap>) behind a join of the inputs, for sessions of both sides' rows",
}
_OWN_NAMES = {name: name for name in FUNCTION_COLUMNS}


@dataclass(frozen=True, slots=True)
class _WithQuery:
    """A query of WITH, and those before it, which it may read."""

    select: exp.Select
    before: Mapping[str, _WithQuery]


_Queries = Mapping[str, _WithQuery]


@dataclass(frozen=True, slots=True)
class _Source:
    """A source whose rows are in windows. `columns` are the names that the windows' columns have there, `time` that of
    the event time (None: a sub-query does not select it). `names` are the names in the select list of a join's
    sub-query, with its stars."""

    alias: str
    at: TextPosition
    columns: Mapping[str, str]
    time: str | None
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Scope:
    """The sources of one SELECT that are in windows, by their numbers, and its joins: source n is that of join n - 1,
    and 0 that of FROM."""

    sources: Mapping[int, _Source]
    joins: Sequence[exp.Expr] = ()

    def meaning(self, value: exp.Expr) -> tuple[Collection[int], str] | None:
        """Return of which sources' windows this is a column, and which one: of the first source that has a row, for
        COALESCE, and of any for a name alone. None: it is no such column."""
        value = value.unnest()
        parts = [value.this, *value.expressions] if isinstance(value, exp.Coalesce) else [value]
        meanings = [self._column_meaning(part.unnest()) for part in parts]
        names = {meaning[1] for meaning in meanings if meaning is not None}
        if None in meanings or len(names) != 1:
            return None
        return {number for meaning in meanings if meaning is not None for number in meaning[0]}, names.pop()

    def _column_meaning(self, column: exp.Expr) -> tuple[Collection[int], str] | None:
        if not isinstance(column, exp.Column) or OF_WINDOW in column.meta:
            return None
        owners = [n for n, source in self.sources.items() if column.table in {"", source.alias}]
        numbers = [n for n in owners if column.name in self.sources[n].columns]
        return (numbers, self.sources[numbers[0]].columns[column.name]) if numbers else None

    def has_row(self, numbers: Collection[int], joins: Sequence[exp.Expr]) -> bool:
        """Say whether each row that the joins have made, the first ones, is made of a row of one of the sources."""
        is_there = 0 in numbers
        for number, join in enumerate(joins, start=1):
            side = join.args.get("side") if join.args.get("kind") not in TEST_KINDS else "LEFT"
            if side == "RIGHT":
                is_there = number in numbers
            elif side == "FULL":
                is_there = is_there and number in numbers
            elif side != "LEFT":
                is_there = is_there or number in numbers
        return is_there


def rewrite_window_joins(select: exp.Select, report: Report) -> WindowClause | None:
    """Rewrite the window joins of a SELECT and of its sub-queries, in place, and return their window; None: there is
    none."""
    rewriting = _Rewriting(report)
    rewriting.rewrite(select, {})
    return rewriting.window


@dataclass(slots=True)
class _Rewriting:
    """`window` is that of the functions so far, and `first` the alias under which the first one is read.
    `by_select` are the sources that sub-queries are, by the identity of their SELECT: several may read one query of
    WITH. `names_by_select` are the names in their select lists."""

    report: Report
    window: WindowClause | None = None
    first: str = ""
    by_select: dict[int, _Source | None] = field(default_factory=dict)
    names_by_select: dict[int, Sequence[str]] = field(default_factory=dict)

    def rewrite(self, select: exp.Select, outer: _Queries) -> Mapping[str, str] | None:
        """Rewrite a SELECT. Return the columns of windows that its rows have, by the names in its select list, which
        loses them if the SELECT is a sub-query. None: its rows are in no window."""
        queries, clause = dict(outer), select.args.get("with_")
        for query in clause.expressions if clause is not None else ():
            if isinstance(query.this, exp.Select):
                queries[query.alias] = _WithQuery(query.this, dict(queries))
        start, joins = select.args.get("from_"), select.args.get("joins") or []
        tests = [*_existence_tests(select)]
        if start is None:
            return None
        if joins or any(self._is_windowed(test.args["from_"].this, queries) for test in tests):
            scope = self._read_join([start, *joins], select, tests, queries)
        else:
            scope = self._read_single(start, queries)
        if scope is None:
            return None
        self._replace_columns(select, scope)
        self.names_by_select[id(select)] = ["*" if item.is_star else item.alias_or_name for item in select.expressions]
        return None if select.parent is None or select.args.get("group") is not None else _take_outputs(select)

    def _read_join(
        self, clauses: Sequence[exp.Expr], select: exp.Select, tests: Sequence[exp.Select], queries: _Queries
    ) -> _Scope | None:
        """Take the table functions out of a SELECT that joins, and the comparisons of their windows."""
        read = [self._read_source(clause, queries, joined=True) for clause in clauses]
        sources = {number: source for number, source in enumerate(read) if source is not None}
        if not sources:
            return None
        scope = _Scope(sources, clauses[1:])
        for number, clause in enumerate(clauses):
            table = clause.this
            if number not in sources and table.args.get("version") is None and REJECTED not in table.meta:
                facts = "this side of the join is in no windows, and another side is"
                todo = f"write TABLE(TUMBLE(TABLE {table.name or '<input>'}, DESCRIPTOR(<event time>), <size>))"
                self.report.add(node_position(table), f"{facts}; {todo}")
                sources[number] = _Source(table.alias_or_name, node_position(table), _OWN_NAMES, None)
        where = select.args.get("where")
        for number in sources:
            if number:
                self._take_equalities(number, clauses[number], where, scope)
        for test in tests:
            self._read_test(test, scope, queries)
        return scope

    def _read_single(self, start: exp.Expr, queries: _Queries) -> _Scope | None:
        """Read a SELECT that joins nothing, whose source may be a sub-query with a window join."""
        inner, before = _query_of(start.this, queries)
        if inner is None:
            return None
        if not _is_join(inner, before):
            self.rewrite(inner, before)
            return None
        source = self._read_source(start, queries, joined=False)
        if source is None or start.parent is None:
            return None
        _expand_stars(start.parent, source)
        return _Scope({0: source})

    # --- sources ------------------------------------------------------------------------------------------------------

    def _is_windowed(self, table: exp.Expr, queries: _Queries) -> bool:
        """Say whether the source is a table function, or a sub-query that reads one and has no groups."""
        inner, before = _query_of(table, queries)
        if inner is None:
            return is_table_function(table)
        if id(inner) in self.by_select:
            return self.by_select[id(inner)] is not None
        clauses = [inner.args.get("from_"), *(inner.args.get("joins") or [])]
        is_windowed = any(self._is_windowed(clause.this, before) for clause in clauses if clause is not None)
        return is_windowed and inner.args.get("group") is None

    def _read_source(self, clause: exp.Expr, queries: _Queries, *, joined: bool) -> _Source | None:
        """Take the table function out of a source of FROM or JOIN; None: the source is in no windows. `joined`: the
        source is one side of a join, so its function says in which windows."""
        table, at = clause.this, node_position(clause.this)
        inner, before = _query_of(table, queries)
        if not self._is_windowed(table, queries):
            if inner is not None:
                self.rewrite(inner, before)
            return None
        if inner is not None:
            if id(inner) not in self.by_select:
                self.by_select[id(inner)] = self._source_of(inner, before, at)
            source = self.by_select[id(inner)]
            return None if source is None else replace(source, alias=table.alias_or_name, at=at)
        function = take_function(table, self.report)
        if function is None:
            return None
        clause.this.meta[DESCRIPTOR] = function.time
        inner, before = _query_of(clause.this, queries)
        if inner is not None and _is_join(inner, before):
            facts = (
                "its rows are those of a join, which windows join to others only if they are in the same ones before"
            )
            self.report.add(at, f"{facts}; put its inputs into these windows, or join them in a job of its own")
        self._set_window(function, at)
        return _Source(function.alias, at, _OWN_NAMES, function.time.name)

    def _source_of(self, inner: exp.Select, queries: _Queries, at: TextPosition) -> _Source | None:
        """Read a sub-query as a source without an alias."""
        if _is_join(inner, queries):
            columns = self.rewrite(inner, queries)
            return None if columns is None else _Source("", at, columns, None, self.names_by_select[id(inner)])
        source = self._read_source(inner.args["from_"], queries, joined=True)
        if source is None:
            return None
        where = inner.args.get("where")
        for column in where.find_all(exp.Column) if where is not None else ():
            if column.name in source.columns and column.table in {"", source.alias}:
                facts = "a condition on the windows of one side is one on the joined rows"
                self.report.add(node_position(column), f"{facts}; write it into the WHERE behind the joins")
        star = any(item.is_star for item in inner.expressions)
        times = [item.alias_or_name for item in inner.expressions if item.unalias().name == source.time]
        self._replace_columns(inner, _Scope({0: source}))
        columns = {**(source.columns if star else {}), **_take_outputs(inner)}
        return _Source("", at, columns, next(iter(times), source.time if star else None))

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _take_equalities(self, number: int, join: exp.Expr, where: exp.Expr | None, scope: _Scope) -> None:
        """Take the comparisons of the windows of source `number` with those of earlier sources off the conditions."""
        source, using = scope.sources[number], join.args.get("using") or []
        compared = {source.columns[node.name] for node in using if node.name in source.columns}
        join.set("using", [node for node in using if node.name not in source.columns] or None)
        is_inner = not join.args.get("side") and join.args.get("kind") not in TEST_KINDS
        conditions = [join.args.get("on"), where.this if where is not None and is_inner else None]
        for node in [node for condition in conditions if condition is not None for node in split_ands(condition)]:
            sides = [node.this, node.expression] if isinstance(node, exp.EQ) else []
            meanings = [meaning for side in sides if (meaning := scope.meaning(side)) is not None]
            earlier = [meaning for meaning in meanings if [*meaning[0]] != [number]]
            if len(meanings) < 2 or len(earlier) != 1 or meanings[0][1] != meanings[1][1]:
                continue
            if max(earlier[0][0]) < number and scope.has_row(earlier[0][0], scope.joins[: number - 1]):
                compared.add(meanings[0][1])
                _remove_condition(node)
        self._require_equalities(compared, source, [scope.sources[n] for n in scope.sources if n < number])

    def _read_test(self, test: exp.Select, scope: _Scope, queries: _Queries) -> None:
        """Read a sub-query of WHERE that tests for a match, in the same window as the row outside."""
        clause, where = test.args["from_"], test.args.get("where")
        source = self._read_source(clause, queries, joined=True)
        if source is None:
            facts = "the rows that are tested are in windows, and those of the sub-query are not"
            self.report.add(node_position(clause.this), f"{facts}; write FROM TABLE(TUMBLE(...)) there as well")
            return
        own, compared = _Scope({0: source}), set[str]()
        for node in [*split_ands(where.this)] if where is not None else []:
            sides = [node.this, node.expression] if isinstance(node, exp.EQ) else []
            for inner, outer in (sides, sides[::-1]) if sides else ():
                meanings = own.meaning(inner), scope.meaning(outer)
                if meanings[0] is None or meanings[1] is None or own.meaning(outer) is not None:
                    continue
                if meanings[0][1] == meanings[1][1] and scope.has_row(meanings[1][0], scope.joins):
                    compared.add(meanings[0][1])
                    _remove_condition(node)
        self._require_equalities(compared, source, [*scope.sources.values()])
        self._replace_columns(test, own)
        self._replace_columns(test, scope)
        _take_outputs(test)

    def _require_equalities(self, compared: Collection[str], source: _Source, before: Sequence[_Source]) -> None:
        missing = [name for name in WINDOW_COLUMNS if name not in compared]
        if missing and before:
            todo = " AND ".join(f"{before[0].alias}.{name} = {source.alias}.{name}" for name in missing)
            facts = f"no condition says that rows of {source.alias!r} are in the windows of those before"
            self.report.add(source.at, f"{facts}; write {todo}")

    # --- windows ------------------------------------------------------------------------------------------------------

    def _set_window(self, function: TableFunction, at: TextPosition) -> None:
        """Make the window of the joins that of the function, which has to be the same for all."""
        kind: WindowKind = "tumbling" if function.name == "TUMBLE" else "hopping"
        window = WindowClause(kind, at)
        if problem := _NOT_JOINED.get(function.name) or _read_lengths(function, window):
            self.report.add(at, problem)
            window.lengths = {}
        if self.window is None:
            self.window, self.first = window, function.alias
        elif window.lengths and self.window.lengths and _bounds(window) != _bounds(self.window):
            facts = f"these windows are not those of {self.first!r}, so rows of both are never in one"
            self.report.add(at, f"{facts}; write the same function with the same lengths")

    # --- columns ------------------------------------------------------------------------------------------------------

    def _replace_columns(self, select: exp.Select, scope: _Scope) -> None:
        """Replace the columns of the sources' windows that the SELECT itself names."""
        for node in [*select.find_all(exp.Coalesce, exp.Column)]:
            meaning = scope.meaning(node) if node.parent_select is select else None
            if meaning is None:
                continue
            numbers, name = meaning
            on = node.find_ancestor(exp.Join)
            before = scope.joins[: next((i for i, join in enumerate(scope.joins) if join is on), len(scope.joins))]
            if name not in WINDOW_COLUMNS:
                facts = f"{name} is not there; it is the last millisecond before window_end"
                self.report.add(node_position(node), f"{facts}; write window_end")
                node.meta[REJECTED] = True
            elif not node.args.get("table") or scope.has_row(numbers, before):
                _put_column(name, node)
            elif isinstance(node, exp.Column):
                source, test = scope.sources[min(numbers)], node.parent
                time = None if source.time is None else exp.column(source.time, table=source.alias)
                if time is None:
                    facts = f"is NULL in the rows that have none of {source.alias!r}, which its event time would tell"
                    self.report.add(node_position(node), f"{facts}; write {name}, or select the time in the sub-query")
                    node.meta[REJECTED] = True
                elif isinstance(test, exp.Is) and isinstance(test.expression, exp.Null):
                    node.replace(time)
                else:
                    _put_column(name, node, exp.Not(this=exp.Is(this=time, expression=exp.Null())))


# --- the tree ---------------------------------------------------------------------------------------------------------


def _bounds(window: WindowClause) -> tuple[object, ...]:
    """Return what tells windows apart."""
    return window.lengths, window.alignment


def _read_lengths(function: TableFunction, window: WindowClause) -> str:
    """Read the arguments into the window, and return what is wrong with them."""
    fields = (*_LENGTHS[function.name], "offset")
    example = {"TUMBLE": "<size>", "HOP": "<slide>, <size>"}[function.name]
    todo = f"write {function.name}(TABLE <input>, DESCRIPTOR(<event time>), {example})"
    intervals = [*function.lengths]
    if intervals and is_text(intervals[-1]):
        try:
            window.zone = checked_zone(intervals.pop().name)
        except ValueError as error:
            return str(error)
    if not len(fields) - 1 <= len(intervals) <= len(fields):
        return f"takes {len(fields) - 1} INTERVAL{'S'[: len(fields) - 2]} behind DESCRIPTOR; {todo}"
    for name, interval in zip(fields, intervals, strict=False):
        if not isinstance(interval, exp.Interval):
            return f"{interval.sql(comments=False)} is no INTERVAL; {todo}"
        try:
            ms = window_ms(name.lower(), interval)
        except NotALengthError as error:
            return str(error)
        if name == "offset":
            window.offset = ms % window.lengths.get("SLIDE", window.lengths["SIZE"])
        else:
            window.lengths[name] = ms
    if window.lengths.get("SLIDE", 0) > window.lengths["SIZE"]:
        return (
            "the slide is longer than the size, so rows between two windows would match nothing; write at most the size"
        )
    return ""


def _query_of(table: exp.Expr, queries: _Queries) -> tuple[exp.Select | None, _Queries]:
    """Return the sub-query that a source is, or names, and the queries of WITH that it may read."""
    if isinstance(table, exp.Subquery) and isinstance(table.this, exp.Select):
        return table.this, queries
    if isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier) and table.name in queries:
        return queries[table.name].select, queries[table.name].before
    return None, queries


def _is_join(select: exp.Select, queries: _Queries) -> bool:
    """Say whether the rows of a sub-query are those of a join, and no groups."""
    start = select.args.get("from_")
    if start is None or select.args.get("group") is not None:
        return False
    inner, before = _query_of(start.this, queries)
    nested = inner is not None and _is_join(inner, before)
    return nested or bool(select.args.get("joins")) or any(True for _ in _existence_tests(select))


def _existence_tests(select: exp.Select) -> Iterator[exp.Select]:
    """Yield the sub-queries of WHERE that test for a match and read something."""
    where = select.args.get("where")
    for node in split_ands(where.this) if where is not None else ():
        test = existence_test(node)
        inner = test.query.unnest() if test is not None else None
        if isinstance(inner, exp.Select) and inner.args.get("from_") is not None:
            yield inner


def _remove_condition(condition: exp.Expr) -> None:
    """Take one of the conditions that ANDs connect out of its clause."""
    while isinstance(condition.parent, exp.Paren):
        condition = condition.parent
    parent = condition.parent
    if isinstance(parent, exp.And):
        parent.replace(parent.expression if condition is parent.this else parent.this)
    elif isinstance(parent, exp.Where):
        parent.pop()
    elif isinstance(parent, exp.Join):
        parent.set("on", None)


def _put_column(name: str, node: exp.Expr, condition: exp.Expr | None = None) -> None:
    """Replace a column of a source's windows by the one of the row's window, which keeps its place in the text, where
    the condition is true (None: in every row)."""
    column = column_at(name, node)
    column.meta[OF_WINDOW] = True
    value = column if condition is None else exp.Case(ifs=[exp.If(this=condition, true=column)])
    in_list = isinstance(node.parent, exp.Select) and node.arg_key == "expressions"
    renamed = in_list and isinstance(node, exp.Column) and (node.name != name or value is not column)
    node.replace(exp.alias_(value, node.name, copy=False) if renamed else value)


def _expand_stars(select: exp.Expr, source: _Source) -> None:
    """Write the columns of windows that a sub-query names into the list of the SELECT around it, where a star stands
    for them: in their places among the others, or behind a star of the sub-query."""
    items: list[exp.Expr] = []
    for item in select.expressions if source.columns else ():
        star = item.this if isinstance(item, exp.Column) else item
        is_plain = isinstance(star, exp.Star) and not any(star.args.values())
        if not is_plain or "*" in source.names:
            items.append(item)
        if is_plain:
            names = source.columns if "*" in source.names else source.names
            items += [column_at(name, star) for name in names]
    if items:
        select.set("expressions", items)


def _take_outputs(select: exp.Select) -> Mapping[str, str]:
    """Take the columns of windows off the select list of a sub-query, and return them by their names there."""
    own = {id(item): item for item in select.expressions if OF_WINDOW in item.unalias().unnest().meta}
    rest = [item for item in select.expressions if id(item) not in own]
    select.set("expressions", rest or [exp.Star()])
    return {item.alias_or_name: item.unalias().unnest().name for item in own.values()}
