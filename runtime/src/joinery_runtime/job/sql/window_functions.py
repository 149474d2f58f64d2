"""Windows as other systems write them, as the functions of GROUP BY that `grouping` reads.

* Flink: `FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), <lengths>)) GROUP BY ..., window_start, window_end`, also with HOP,
  CUMULATE and SESSION, over an input, a query of WITH or a sub-query: `GROUP BY ..., TUMBLE(ts, <lengths>)`; the same
  in PARTITION BY of ROW_NUMBER;
* Spark: `GROUP BY window(ts, '1 minute')`, also with a slide and a start, and `session_window(ts, '5 minutes')`, and
  their columns `window.start` and `window.end`;
* `SELECT DISTINCT` with a column of the windows: GROUP BY all that is selected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.sql.clauses import keyword
from joinery_runtime.job.sql.derived import REJECTED
from joinery_runtime.job.sql.report import Report, node_position

_TABLE_FUNCTIONS = ("TUMBLE", "HOP", "CUMULATE", "SESSION")
_SPARK = {"WINDOW": "window", "SESSION_WINDOW": "session_window"}
_PARTS = {"start": WINDOW_COLUMNS[0], "end": WINDOW_COLUMNS[1]}
FUNCTION_COLUMNS = (*WINDOW_COLUMNS, "window_time")
"""The columns that Flink's table functions add."""
_EXAMPLE = "TABLE(TUMBLE(TABLE <input>, DESCRIPTOR(<event time>), INTERVAL '1' HOUR))"


def readable_tokens(tokens: Sequence[Token]) -> Iterator[Token]:
    """Make SESSION and WINDOW before a bracket the names of functions, instead of sqlglot's keywords, and take off
    TABLE before the name in Flink's table functions."""
    for i, token in enumerate(tokens):
        word, following = keyword(tokens, i), keyword(tokens, i + 1)
        if word in {"SESSION", "WINDOW"} and following == "(":
            yield Token(TokenType.VAR, token.text, line=token.line, col=token.col, start=token.start, end=token.end)
        elif not (word == "TABLE" and keyword(tokens, i - 1) == "(" and following != "(" and i):
            yield token


def rewrite_windows(select: exp.Select, report: Report) -> None:
    """Rewrite the windows of a SELECT and of all its sub-queries, in place."""
    for query in select.find_all(exp.Select):
        _unwrap_function(query)
        _rewrite_spark(query)
        _group_distinct(query)
        _rewrite_flink(query, report)


# --- Spark ------------------------------------------------------------------------------------------------------------


def _rewrite_spark(query: exp.Select) -> None:
    group = query.args.get("group")
    calls = [node for node in group.expressions if _name_of(node) in _SPARK] if group is not None else []
    for call in calls:
        times, lengths = call.expressions[:1], [_interval(argument) for argument in call.expressions[1:]]
        if _name_of(call) == "SESSION_WINDOW":
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
            if column.table.lower() in _SPARK.values() and column.name in _PARTS:
                _name_column(column, _PARTS[column.name])


def _interval(argument: exp.Expr) -> exp.Expr:
    """Make Spark's '1 minute' an INTERVAL."""
    if not isinstance(argument, exp.Literal) or not argument.is_string:
        return argument
    number, _, unit = argument.name.strip().partition(" ")
    interval = exp.Interval(this=exp.Literal.string(number), unit=exp.Var(this=unit.strip().upper().rstrip("S")))
    interval.meta.update(argument.meta)
    return interval


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
    cumulates = _name_of(_call_in(clause.this)) == "CUMULATE"
    if is_other or not times or (missing and cumulates):  # windows that begin together differ in their ends
        return
    groups = [*values, *(exp.column(name, table=times[0].table or None) for name in missing)]
    query.set("distinct", None)
    query.set("group", exp.Group(expressions=[*{node.sql(): node.copy() for node in groups}.values()]))


# --- Flink ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A call in FROM: its name, the time that DESCRIPTOR names, and its lengths."""

    name: str
    alias: str
    time: exp.Column
    lengths: Sequence[exp.Expr]

    def call(self) -> exp.Expr:
        """The function of GROUP BY that means the same."""
        column = exp.column(self.time.name, table=self.alias)
        column.this.meta.update(self.time.this.meta)
        return exp.Anonymous(this=self.name, expressions=[column, *self.lengths])


def _unwrap_function(query: exp.Select) -> None:
    """Put a table function in the place of `(SELECT * FROM <function>)`, if it is the only source of a SELECT."""
    clause = query.args.get("from_")
    source = clause.this if clause is not None and not query.args.get("joins") else None
    inner = source.this if isinstance(source, exp.Subquery) else None
    if source is None or not isinstance(inner, exp.Select) or len(inner.expressions) != 1:
        return
    start, parts = inner.args.get("from_"), {name for name, value in inner.args.items() if value}
    if start is None or parts != {"expressions", "from_"} or not isinstance(inner.expressions[0], exp.Star):
        return
    if is_table_function(start.this) and not any(inner.expressions[0].args.values()):
        function = start.this
        if source.alias:
            function.set("alias", source.args["alias"])
        source.replace(function)


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
        query.set("expressions", [part for item in query.expressions for part in _with_windows(item)])
    elif group is None or not _name_windows(group, "expressions", function):
        facts = f"the windows of {function.name}(...) are groups"
        report.add(at, f"{facts}; write GROUP BY <columns>, window_start, window_end")
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


def _with_windows(item: exp.Expr) -> Iterator[exp.Expr]:
    """Yield an entry of the select list, and behind a star the columns of the windows."""
    yield item
    if item.is_star:
        yield from (exp.column(name) for name in WINDOW_COLUMNS)


def _call_in(source: exp.Expr) -> exp.Expr | None:
    """Return the call of a table function that a source is; None: it is something else."""
    call = source.this if isinstance(source, exp.Table) else None
    call = call.expressions[0] if _name_of(call) == "TABLE" and call is not None and call.expressions else call
    return call if _name_of(call) in _TABLE_FUNCTIONS else None


def is_table_function(source: exp.Expr) -> bool:
    return _call_in(source) is not None


def take_function(source: exp.Expr, report: Report) -> TableFunction | None:
    """Put the table that a table function reads in its place, and return the function; None: there is none, or the
    report says what is wrong."""
    call = _call_in(source)
    if call is None:
        return None
    table, descriptor, *lengths = [*call.expressions, None, None][: max(2, len(call.expressions))]
    times = descriptor.expressions if _name_of(descriptor) == "DESCRIPTOR" and descriptor is not None else []
    plain = isinstance(table, exp.Column) and not table.table
    if not (plain or isinstance(table, exp.Subquery)) or len(times) != 1 or not isinstance(times[0], exp.Column):
        report.add(node_position(source), f"a table function is written {_EXAMPLE}")
        source.meta[REJECTED] = True
        return None
    named = source.args.get("alias") or (exp.TableAlias(this=table.this.copy()) if plain else None)
    alias = source.alias or (table.name if plain else table.alias)
    read = exp.Table(this=table.this, alias=named) if plain else table
    if not plain and named is not None:
        read.set("alias", named)
    source.replace(read)
    return TableFunction(_name_of(call), alias, times[0], lengths)


def _name_of(node: exp.Expr | None) -> str:
    return node.name.upper() if isinstance(node, exp.Anonymous) else ""


def _name_column(column: exp.Column, name: str) -> None:
    """Make the column one of the windows' own."""
    column.set("table", None)
    column.set("this", exp.to_identifier(name))
