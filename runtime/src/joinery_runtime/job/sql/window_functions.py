"""Windows as other systems write them, as the functions of GROUP BY that `grouping` reads.

* Flink: `FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), <lengths>)) GROUP BY ..., window_start, window_end`, also with HOP,
  CUMULATE and SESSION, over an input, a query of WITH or a sub-query, and with arguments by name, as in `SIZE => ...`:
  `GROUP BY ..., TUMBLE(ts, <lengths>)`; the same in PARTITION BY of ROW_NUMBER, and around a sub-query or a query of
  WITH that reads the function;
* Spark: `GROUP BY window(ts, '1 minute')`, also with a slide and a start, and `session_window(ts, '5 minutes')`, and
  their columns `window.start` and `window.end`, also as `window(ts, '1 minute').start`;
* `SELECT DISTINCT` with a column of the windows: GROUP BY all that is selected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.sql.clauses import keyword
from joinery_runtime.job.sql.report import Report, node_position
from joinery_runtime.job.sql.select_tree import REJECTED

ARGUMENTS = {
    "TUMBLE": ("DATA", "TIMECOL", "SIZE", "OFFSET"),
    "HOP": ("DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    "CUMULATE": ("DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"),
    "SESSION": ("DATA", "TIMECOL", "GAP"),
}
"""Flink's table functions, and the names of their arguments in order."""
TABLE_FUNCTIONS = tuple(ARGUMENTS)
SPARK = {"WINDOW": "window", "SESSION_WINDOW": "session_window"}
_PARTS = {"start": WINDOW_COLUMNS[0], "end": WINDOW_COLUMNS[1]}
FUNCTION_COLUMNS = (*WINDOW_COLUMNS, "window_time")
"""The columns that Flink's table functions add."""
_EXAMPLE = "TABLE(TUMBLE(TABLE <input>, DESCRIPTOR(<event time>), INTERVAL '1' HOUR))"


def readable_tokens(tokens: Sequence[Token]) -> Iterator[Token]:
    """Make SESSION and WINDOW before a bracket the names of functions, instead of sqlglot's keywords, and take off
    TABLE before the name or the sub-query in Flink's table functions."""
    for i, token in enumerate(tokens):
        word, following = keyword(tokens, i), keyword(tokens, i + 1)
        if word in {"SESSION", "WINDOW"} and following == "(":
            yield Token(TokenType.VAR, token.text, line=token.line, col=token.col, start=token.start, end=token.end)
            continue
        # TABLE is also the function around Flink's table functions.
        before = keyword(tokens, i - 1) if i else ""
        is_first = before == "(" and (following != "(" or keyword(tokens, i - 2) in ARGUMENTS)
        if word != "TABLE" or not (is_first or before == "=>"):
            yield token


def rewrite_windows(select: exp.Select, report: Report) -> None:
    """Rewrite the windows of a SELECT and of all its sub-queries, in place."""
    _inline_queries(select)
    for query in reversed([*select.find_all(exp.Select)]):  # inner ones first
        _unwrap_function(query)
    for query in select.find_all(exp.Select):
        _rewrite_spark(query, report)
        _group_distinct(query)
        _rewrite_flink(query, report)


# --- Spark ------------------------------------------------------------------------------------------------------------


def _rewrite_spark(query: exp.Select, report: Report) -> None:
    group = query.args.get("group")
    if group is None:
        return
    calls = [node for node in group.expressions if function_name(node) in SPARK]
    for part in [*query.find_all(exp.Dot)] if calls else ():
        if part.this in calls and part.name in _PARTS:
            part.replace(exp.column(_PARTS[part.name]))
    for call in calls:
        times, lengths = call.expressions[:1], [text_length(node) or node for node in call.expressions[1:]]
        if function_name(call) == "SESSION_WINDOW":
            call.set("this", "SESSION")
        elif len(lengths) > 1 and lengths[0] != lengths[1]:
            call.set("this", "HOP")
            lengths = [lengths[1], lengths[0], *lengths[2:]]  # the size is the first one in Spark
        else:
            call.set("this", "TUMBLE")
            lengths = [*lengths[:1], *lengths[2:]]
        call.set("expressions", [*times, *lengths])
    if calls:
        for column in [*query.find_all(exp.Column)]:
            if column.table.lower() in SPARK.values() and column.name in _PARTS:
                _name_column(column, _PARTS[column.name])
            elif column.name.lower() in SPARK.values() and column not in group.expressions and not column.table:
                window = column.name
                report.add(node_position(column), f"a window is two columns; write {window}.start and {window}.end")
                column.meta[REJECTED] = True


def is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and node.is_string


def text_length(node: exp.Expr) -> exp.Interval | None:
    """Return what a text such as '15 minutes' says, with the unit in the singular; None for anything else."""
    if not is_text(node):
        return None
    number, _, unit = node.name.strip().partition(" ")
    length = interval(number, unit)
    length.meta.update(node.meta)
    return length


def interval(number: str, unit: str) -> exp.Interval:
    """Return the INTERVAL with the unit in the singular."""
    return exp.Interval(this=exp.Literal.string(number), unit=exp.Var(this=unit.strip().upper().removesuffix("S")))


# --- DISTINCT ---------------------------------------------------------------------------------------------------------


def _group_distinct(query: exp.Select) -> None:
    """Make GROUP BY of a DISTINCT that ends with the windows, as it selects a column of these; others stay."""
    distinct, clause = query.args.get("distinct"), query.args.get("from_")
    values = [item.unalias().unnest() for item in query.expressions]
    times = [value for value in values if isinstance(value, exp.Column) and value.name in WINDOW_COLUMNS]
    is_other = any(value.is_star or value.find(exp.AggFunc, exp.Window) is not None for value in values)
    if distinct is None or distinct.args.get("on") is not None or query.args.get("group") is not None:
        return
    if clause is None or not (is_table_function(clause.this) or query.args.get("joins")):
        return  # there are no windows
    missing = [name for name in WINDOW_COLUMNS if name not in {time.name for time in times}]
    cumulates = function_name(call_in(clause.this)) == "CUMULATE"
    if is_other or not times or (missing and cumulates):  # windows that begin together differ in their ends
        return
    groups = [*values, *(exp.column(name, table=times[0].table or None) for name in missing)]
    query.set("distinct", None)
    query.set("group", exp.Group(expressions=[*{node.sql(): node.copy() for node in groups}.values()]))


# --- sub-queries around a table function ------------------------------------------------------------------------------


def _inline_queries(select: exp.Select) -> None:
    """Put queries of WITH that read a table function where their names stand."""
    queries = [*select.find_all(exp.CTE)]
    names = [query.alias for query in queries]
    for query in queries:
        clause, own = query.parent, {id(node) for node in query.walk()}
        if not _is_projection(query.this) or names.count(query.alias) > 1 or query.args["alias"].args.get("columns"):
            continue
        assert isinstance(clause, exp.With)
        assert clause.parent is not None, "WITH is part of a SELECT"
        at = clause.expressions.index(query)
        before = {id(node) for other in clause.expressions[:at] for node in other.walk()} | own
        nodes = [node for node in clause.parent.walk() if id(node) not in before]
        calls = [node for node in nodes if function_name(node) in TABLE_FUNCTIONS]
        tables = [node for node in nodes if isinstance(node, exp.Table) and node.name == query.alias]
        if not tables or any(part.name == query.alias for call in calls for part in call.expressions[:1]):
            continue
        for table in tables:
            alias = exp.TableAlias(this=exp.to_identifier(table.alias_or_name))
            table.replace(exp.Subquery(this=query.this.copy(), alias=alias))
        (query if len(clause.expressions) > 1 else clause).pop()


def _is_projection(query: exp.Expr) -> bool:
    """Say whether a sub-query has columns and conditions of a table function's rows alone."""
    parts = {name for name, value in query.args.items() if value}
    if not isinstance(query, exp.Select) or "from_" not in parts or parts - {"expressions", "from_", "where"}:
        return False
    source = query.args["from_"].this
    is_windowed = _is_projection(source.this) if isinstance(source, exp.Subquery) else is_table_function(source)
    return is_windowed and not any(item.find(exp.AggFunc, exp.Window) for item in query.expressions)


def _unwrap_function(query: exp.Select) -> None:
    """Put a table function around the sub-query that reads it, if that is the only source of a SELECT: the windows of
    rows do not depend on the other rows, but for SESSION."""
    clause = query.args.get("from_")
    source = clause.this if clause is not None and not query.args.get("joins") else None
    inner = source.this if isinstance(source, exp.Subquery) else None
    if source is None or not isinstance(inner, exp.Select) or not _is_projection(inner):
        return
    function = inner.args["from_"].this
    if inner.args.get("where") is not None or [*map(type, inner.expressions)] != [exp.Star]:
        call, selected = call_in(function), _without_windows(inner, query, function)
        if call is None or selected is None:
            return
        items, time = selected
        inner.set("expressions", items)
        descriptor, *lengths = call.expressions[1:]
        inner.args["from_"].set("this", _input_of(function))
        call.set("expressions", [exp.Subquery(this=inner), descriptor, *lengths])
        descriptor.expressions[0].this.set("this", time)
    elif any(inner.expressions[0].args.values()):
        return
    function.set("alias", source.args.get("alias") or function.args.get("alias"))
    source.replace(function)


def _without_windows(inner: exp.Select, query: exp.Select, function: exp.Expr) -> tuple[Sequence[exp.Expr], str] | None:
    """Return the select list of a sub-query without the columns of windows, but with the event time, and the name of
    that; None: the SELECT around the sub-query reads other windows than the table function has."""
    call, time = call_in(function), _time_of(function)
    if call is None or time is None or function_name(call) == "SESSION":
        return None
    windows = [item for item in inner.expressions if isinstance(item, exp.Column) and item.name in FUNCTION_COLUMNS]
    items: list[exp.Expr] = [item for item in inner.expressions if item not in windows]
    stars = [item for item in items if item.is_star]
    where = inner.args.get("where")
    columns_read = [column for part in (*items, *([where] if where else [])) for column in part.find_all(exp.Column)]
    names = {column.name for column in query.find_all(exp.Column) if column.parent_select is query}
    unread = {*FUNCTION_COLUMNS} - {item.name for item in windows} if not stars else set[str]()
    if any(column.name in FUNCTION_COLUMNS for column in columns_read) or names & unread:
        return None
    if any(value for item in stars for star in item.find_all(exp.Star) for value in star.args.values()):
        return None  # EXCEPT and the like
    if stars:
        return items, time.name
    for item in items:
        if isinstance(item.unalias(), exp.Column) and item.unalias().name == time.name:
            return items, item.alias_or_name
    if time.name in {item.alias_or_name for item in items} or any(item.is_star for item in query.expressions):
        return None
    return [*items, time.copy()], time.name


# --- Flink ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A call in FROM: its name, the time that DESCRIPTOR names, and its lengths."""

    name: str
    alias: str
    time: exp.Column
    lengths: Sequence[exp.Expr]

    def call(self) -> exp.Expr:
        """Return the function of GROUP BY that means the same."""
        column = exp.column(self.time.name, table=self.alias)
        column.this.meta.update(self.time.this.meta)
        return exp.Anonymous(this=self.name, expressions=[column, *self.lengths])


def _rewrite_flink(query: exp.Select, report: Report) -> None:
    """Rewrite the table function that is the only source of a SELECT; `window_joins` has taken those of joins."""
    clause, group = query.args.get("from_"), query.args.get("group")
    if clause is None:
        return
    at, function = node_position(clause.this), take_function(clause.this, report)
    if function is None:
        return
    numbers = [window for window in query.find_all(exp.Window) if window.parent_select is query]
    if numbers and group is None:
        if not all(_name_windows(window, "partition_by", function) for window in numbers):
            facts = f"rows are numbered in the windows of {function.name}(...)"
            report.add(at, f"{facts}; write OVER (PARTITION BY <columns>, window_start, window_end ORDER BY ...)")
            clause.this.meta[REJECTED] = True
            return
        items: list[exp.Expr] = []
        for item in query.expressions:
            items += [item, *(exp.column(name) for name in WINDOW_COLUMNS if item.is_star)]
        query.set("expressions", items)
    elif group is None or not _name_windows(group, "expressions", function):
        facts = f"the windows of {function.name}(...) are groups"
        todo = "write GROUP BY <columns>, window_start, window_end"
        if group is None and query.find_ancestor(exp.Select) is not None:
            todo = "write the function into the FROM of the SELECT that groups or numbers its rows"
            todo += ", and conditions on windows into its HAVING"
        report.add(at, f"{facts}; {todo}")
        clause.this.meta[REJECTED] = True
        return
    for column in [*query.find_all(exp.Column)]:
        if column.table == function.alias and column.name in FUNCTION_COLUMNS and column.parent_select is query:
            _name_column(column, column.name)


def _name_windows(clause: exp.Expr, name: str, function: TableFunction) -> bool:
    """Put the function in the place of the columns of its windows among the expressions `name` of the clause; False if
    the clause does not name both."""
    nodes = clause.args.get(name) or []
    named = [node for node in nodes if isinstance(node, exp.Column) and node.name in FUNCTION_COLUMNS]
    if {*WINDOW_COLUMNS} - {node.name for node in named}:
        return False
    clause.set(name, [*(node for node in nodes if node not in named), function.call()])
    return True


def call_in(source: exp.Expr) -> exp.Anonymous | None:
    """Return the table function that a source calls, with TABLE around it or not; None: it is something else."""
    call = source.this if isinstance(source, exp.Table) else None
    call = call.expressions[0] if function_name(call) == "TABLE" and call is not None and call.expressions else call
    return call if isinstance(call, exp.Anonymous) and function_name(call) in TABLE_FUNCTIONS else None


def is_table_function(source: exp.Expr) -> bool:
    return call_in(source) is not None


def take_function(source: exp.Expr, report: Report) -> TableFunction | None:
    """Put the table that a table function reads in its place, and return the function; None: there is none, or the
    report says what is wrong."""
    call, time = call_in(source), _time_of(source)
    if call is None:
        return None
    if time is None:
        report.add(node_position(source), f"a table function is written {_EXAMPLE}")
        source.meta[REJECTED] = True
        return None
    alias = source.alias or (call.expressions[0].alias_or_name)
    source.replace(_input_of(source))
    return TableFunction(function_name(call), alias, time, call.expressions[2:])


def _time_of(source: exp.Expr) -> exp.Column | None:
    """Return the time that DESCRIPTOR names in a table function; None: it is not written so."""
    call = call_in(source)
    table, descriptor = [*(call.expressions if call is not None else []), None, None][:2]
    times = descriptor.expressions if function_name(descriptor) == "DESCRIPTOR" and descriptor is not None else []
    reads = isinstance(table, exp.Subquery) or (isinstance(table, exp.Column) and not table.table)
    return times[0] if reads and len(times) == 1 and isinstance(times[0], exp.Column) else None


def _input_of(source: exp.Expr) -> exp.Expr:
    """Return the table or sub-query that a table function reads, under the alias of the function if it has one."""
    call = call_in(source)
    assert call is not None, "the caller has read the time of the function"
    alias = source.args.get("alias")
    table: exp.Expr = call.expressions[0]
    if isinstance(table, exp.Column):
        return exp.Table(this=table.this, alias=alias or exp.TableAlias(this=table.this.copy()))
    if alias is not None:
        table.set("alias", alias)
    return table


def function_name(node: exp.Expr | None) -> str:
    """Return the name, in capitals, of a function that sqlglot does not know; empty for anything else."""
    return node.name.upper() if isinstance(node, exp.Anonymous) else ""


def _name_column(column: exp.Column, name: str) -> None:
    """Make the column one of the windows' own."""
    column.set("table", None)
    column.set("this", exp.to_identifier(name))
