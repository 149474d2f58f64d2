"""What other systems write for things that a job has, in the words that the rest of this package reads.

* `FROM TUMBLE(t, ts, INTERVAL '1 hour')`, as RisingWave: Flink's table function. `PARTITION BY` in Flink's SESSION, and
  one of `window_start` and `window_end` in GROUP BY or in the ON of two such functions, which tells the other;
* `GROUP BY DATE_TRUNC('hour', ts)`, TIMESTAMP_TRUNC, DATE_BIN or TIME_BUCKET: `TUMBLE(ts, INTERVAL '1' HOUR)`; by
  the clocks of a zone `DATE_TRUNC('day', ts, 'Europe/Zurich')` and `DATE_TRUNC('day', ts AT TIME ZONE ...)`;
* the same in PARTITION BY of ROW_NUMBER, over rows;
* `WINDOW w AS (...)`, to which OVER w refers;
* `GROUP BY 1, 2`, and GROUP BY ALL: the entries of the select list;
* `ASOF [LEFT] JOIN r ON o.k = r.k AND r.ts <= o.ts`, also with MATCH_CONDITION: `FOR SYSTEM_TIME AS OF o.ts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.expression_tree import split_ands
from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.model.time_formats import BUCKETS_START_MS
from joinery_runtime.job.model.wording import listed
from joinery_runtime.job.sql.clauses import keyword
from joinery_runtime.job.sql.derived import Columns, EventTimes
from joinery_runtime.job.sql.report import JOINS, Form, Report, column_at, node_position
from joinery_runtime.job.sql.select_tree import TELLS_WINDOW, without_inputs
from joinery_runtime.job.sql.window_functions import (
    ARGUMENTS,
    FUNCTION_COLUMNS,
    SPARK,
    TABLE_FUNCTIONS,
    call_in,
    function_name,
    interval,
    is_text,
    text_length,
)

NAMED_AGGREGATES = {
    "EVERY": "bool_and",
    "COLLECT_LIST": "array_agg",
    "LISTAGG": "string_agg",
    "APPROX_PERCENTILE": "approx_percentile",
    "PERCENTILE_APPROX": "approx_percentile",
}
"""The aggregates that sqlglot has no class for, as a job names them."""
_NODES = (exp.AggFunc, exp.Filter, exp.Window, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)
_PARTITION = "PARTITION_BY"
"""The name of the call that PARTITION BY of a table function becomes."""
_UNITS = {"SECOND": 1, "MINUTE": 1, "HOUR": 1, "DAY": 1, "WEEK": 7}
"""The units whose ranges of time have one length: how many of the INTERVAL's unit, which is a day for a week."""
_LOCAL_UNITS = {"HOUR", "DAY", "WEEK"}
"""Those by which windows of a zone may be cut (rule G12). DATE_TRUNC of an instant tells the hours apart that clocks
show twice, so it takes days and weeks alone."""


def common_tokens(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens with `LEFT ASOF JOIN` as ASOF LEFT JOIN, MATCH_CONDITION as the first condition of ON, and
    PARTITION BY of a table function as a call."""
    i, partition_end, condition_end = 0, -1, -1
    while i < len(tokens):
        token = tokens[i]
        if keyword(tokens, i) in {"LEFT", "INNER"} and keyword(tokens, i + 1) == "ASOF":
            yield tokens[i + 1]
            if keyword(tokens, i) == "LEFT":
                yield token
            i += 2
            continue
        if keyword(tokens, i) == "MATCH_CONDITION" and keyword(tokens, i + 1) == "(":
            condition_end = _closing_bracket(tokens, i + 1)
            yield _token_like(token, TokenType.ON, "ON")
        elif condition_end >= 0 and i == condition_end + 1 and keyword(tokens, i) == "ON":
            yield _token_like(token, TokenType.AND, "AND")
        elif keyword(tokens, i) == "PARTITION BY" and keyword(tokens, i - 2) == "TABLE" and i > 1:
            behind = range(i, len(tokens) - 1)
            partition_end = next((at for at in behind if keyword(tokens, at + 1) in {"DESCRIPTOR", "TIMECOL"}), -1)
            yield _token_like(token, TokenType.COMMA, ",")
            yield _token_like(token, TokenType.VAR, _PARTITION)
            yield _token_like(token, TokenType.L_PAREN, "(")
        elif i == partition_end:
            yield _token_like(token, TokenType.R_PAREN, ")")
            yield token
        else:
            yield token
        i += 1


def rewrite_dialects(
    select: exp.Select, columns: Columns, event_times: EventTimes, report: Report, form: Form, *, windowed: bool
) -> bool:
    """Rewrite a SELECT and all its sub-queries, in place. `columns` and `event_times` are those of the job's inputs;
    `windowed`: a clause WINDOW says what the windows are. Return False if an ASOF JOIN is not understood: what else the
    text has would be judged as that of another kind of join."""
    understood = True
    queries = {query.alias: query.this for query in select.find_all(exp.CTE)}
    for query in select.find_all(exp.Select):
        # Numbers in GROUP BY mean entries of the select list. Of an aggregate or a star they stay, and are reported.
        group, items = query.args.get("group"), query.expressions
        if group is not None and group.args.get("all") is True and not group.expressions:
            values = [item.unalias().unnest() for item in items]
            group.set("all", None)
            group.set("expressions", [value.copy() for value in values if _is_of_rows(value)])
        for node in [*(group.expressions if group is not None else ())]:
            is_number = isinstance(node, exp.Literal) and node.name.isdecimal() and not node.is_string
            number = int(node.name) if is_number else 0
            value = items[number - 1].unalias().unnest() if 0 < number <= len(items) else None
            if value is not None and value.find(exp.AggFunc, exp.Window, exp.Query, exp.Star) is None:
                node.replace(value.copy())
        _inline_named_windows(query)
        _rewrite_sources(query, report)
        if form is JOINS:
            for join in query.args.get("joins") or []:
                if join.method == "ASOF":
                    understood &= _rewrite_asof(join, event_times, report)
            if not (windowed and query is select):
                _rewrite_time_groups(query, columns, queries, report)
    return understood


def _inline_named_windows(query: exp.Select) -> None:
    """Put what `WINDOW w AS (...)` says into each `OVER w` and `OVER (w ...)` of the SELECT."""
    named = {window.name: window for window in query.args.get("windows") or []}
    for call in query.find_all(exp.Window):
        name = call.args["alias"].name if call.args.get("alias") is not None else ""
        window = named.get(name)
        if window is None or call is window or call.parent_select is not query:
            continue
        for part in ("partition_by", "order", "spec"):
            value = window.args.get(part)
            if value and not call.args.get(part):
                call.set(part, [node.copy() for node in value] if isinstance(value, list) else value.copy())
        call.set("alias", None)
    if named:
        query.set("windows", None)


def is_aggregate(value: exp.Expr) -> bool:
    """Say whether this is an aggregate, or a call before OVER."""
    return isinstance(value, _NODES) or function_name(value) in NAMED_AGGREGATES


def _is_of_rows(value: exp.Expr) -> bool:
    """Say whether GROUP BY ALL groups by this entry of the select list: it is of a row, and no constant."""
    is_star = value.find(exp.Query, exp.Star) is not None
    return not is_star and not isinstance(value, exp.Literal) and not any(is_aggregate(node) for node in value.walk())


def _token_like(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, line=token.line, col=token.col, start=token.start, end=token.end)


def _closing_bracket(tokens: Sequence[Token], opening: int) -> int:
    """Return where the bracket is closed; the end if it is not."""
    depth = 0
    for i in range(opening, len(tokens)):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[i].token_type, 0)
        if not depth:
            return i
    return len(tokens)


# --- groups -------------------------------------------------------------------------------------------------------


def _rewrite_time_groups(query: exp.Select, columns: Columns, queries: Mapping[str, exp.Expr], report: Report) -> None:
    """Make a group that cuts off times, such as DATE_TRUNC('hour', ts), the window, if nothing else is one; the select
    list has the start of the window for it. One with the length added, `DATE_BIN('1 minute', ts) + INTERVAL '1'
    MINUTE`, is the end of the window. An alias that is also a column of FROM is reported: in GROUP BY, the name is the
    column, as in Postgres, and whoever wrote it meant the window. Without groups, a time that PARTITION BY of
    ROW_NUMBER cuts off is the window in which rows are numbered."""
    group = query.args.get("group")
    nodes = group.expressions if group is not None else []
    windows_of_rows = query.find_all(exp.Window) if group is None else ()
    numbers = [call for call in windows_of_rows if function_name(call.this) == "ROW_NUMBER"]
    for node in [node for number in numbers for node in number.args.get("partition_by") or []]:
        if node.find_ancestor(exp.Select) is query and (call := window_of(node.unnest())) is not None:
            node.replace(call)
    aliases = {item.alias: item.this for item in query.expressions if isinstance(item, exp.Alias)}
    windows = {*FUNCTION_COLUMNS} - {*aliases}
    if any(function_name(node) in {*TABLE_FUNCTIONS, *SPARK} or node.name in windows for node in nodes):
        return
    for node in nodes:
        plain = isinstance(node, exp.Column) and not node.table
        value = (aliases.get(node.name, node) if plain else node).unnest()
        column, call = WINDOW_COLUMNS[0], window_of(value)
        if call is None and isinstance(value, exp.Add) and (call := window_of(value.left.unnest())) is not None:
            column = WINDOW_COLUMNS[1]
            is_end = _length_of(value.right) == call.expressions[1] and not is_text(call.expressions[-1])
            call = call if is_end else None  # of a zone, the length is not always that of the window
        if call is None:
            continue
        if plain and node.name in aliases and node.name in _columns_of_from(query, columns, queries):
            text = value.sql(comments=False)
            facts = f"in GROUP BY is the column, before {text} AS {node.name}"
            report.add(node_position(node), f"{facts}; write GROUP BY {text}, or another alias")
        clauses = [clause for name in ("having", "qualify") if (clause := query.args.get(name)) is not None]
        for item in [*query.expressions, *clauses]:
            for part in [part for part in item.walk() if _is_same_expression(part, value, query)]:
                if part.find_ancestor(exp.AggFunc, exp.Filter) is not None:
                    continue  # an aggregate reads the rows, which have no window yet
                time = column_at(column, value)
                is_moment = not _is_day(value) and _local_part(value) is None
                is_item = part.unnest() is item.unalias().unnest()
                is_key = part.arg_key == "partition_by"  # rows are numbered in the windows of the groups
                meaning = time if (is_item and is_moment) or is_key else _as_written(value, time)
                meaning.meta[TELLS_WINDOW] = True
                part.replace(meaning)
        node.replace(call)
        return


def _is_same_expression(first: exp.Expr, second: exp.Expr, query: exp.Select) -> bool:
    """Say whether two expressions are the same; over one source, a column may have its name or not."""
    if query.args.get("joins"):
        return first == second
    return without_inputs(first) == without_inputs(second)


def _columns_of_from(query: exp.Select, columns: Columns, queries: Mapping[str, exp.Expr]) -> set[str]:
    """Return the columns that FROM has. `queries` are those of WITH; in one of them, its own name means an input."""
    names = set[str]()
    for clause in query.find_all(exp.From, exp.Join):
        source = clause.this if clause.parent is query else None
        inner = source.this if isinstance(source, exp.Subquery) else queries.get(source.name) if source else None
        if isinstance(inner, exp.Select):
            names |= {*inner.named_selects}
            if source is not None and inner.is_star:
                outer = {name: other for name, other in queries.items() if name != source.name}
                names |= _columns_of_from(inner, columns, outer)
        elif source is not None:
            names |= {*columns.get(source.name, ())}
    return names


def window_of(value: exp.Expr) -> exp.Anonymous | None:
    """Return TUMBLE(<time>, <length>[, <offset>][, <zone>]) for a call that cuts off times; None for another
    expression, and for units whose lengths differ."""
    if isinstance(value, exp.AtTimeZone) and _local_part(value.this.unnest()) is not None:
        window = window_of(value.this.unnest())  # the local time as a moment again
        return window if window is not None and window.expressions[-1] == value.args["zone"] else None
    name, arguments = function_name(value), [*value.expressions] if isinstance(value, exp.Anonymous) else []
    if _is_day(value):
        time, zone = _time_and_zone(value.this if isinstance(value, exp.Cast) else arguments[0])
        return None if time is None or not all(map(is_text, zone)) else _call_tumble(time, interval("1", "DAY"), *zone)
    if name in {"DATE_TRUNC", "TIMESTAMP_TRUNC"} and len(arguments) in {2, 3}:
        unit, time = arguments[:2] if name == "DATE_TRUNC" else arguments[1::-1]
        return _window_of_unit(unit, time, arguments[2:])
    if name not in {"DATE_BIN", "TIME_BUCKET"} or len(arguments) not in {2, 3}:
        return None
    length, (time, zone) = _length_of(arguments[0]), _time_and_zone(arguments[1])
    start = [interval(str(BUCKETS_START_MS), "MILLISECOND")] if name == "TIME_BUCKET" else []
    if len(arguments) == 3:
        origin = _ms_of_literal(arguments[2])
        if origin is not None:
            start = [interval(str(origin), "MILLISECOND")]
        elif name == "TIME_BUCKET" and is_text(arguments[2]) and not zone:
            zone = arguments[2:]
        else:
            return None
    if length is None or time is None or not all(map(is_text, zone)):
        return None
    return _call_tumble(time, length, *start, *zone)


def _window_of_unit(unit: exp.Expr, value: exp.Expr, named_zone: Sequence[exp.Expr]) -> exp.Anonymous | None:
    """Return the window of DATE_TRUNC. `named_zone` is its third argument, if it has one."""
    time, local_zone = _time_and_zone(value)
    zone = [*named_zone, *local_zone]
    text = unit.name.upper() if isinstance(unit, exp.Literal | exp.Column) else ""
    text = text if text in _UNITS else text.removesuffix("S")
    if text not in _UNITS or time is None or len(zone) > 1 or not all(map(is_text, zone)):
        return None
    if zone and (text not in _LOCAL_UNITS or (named_zone and text == "HOUR")):
        return None
    offset = [interval("4", "DAY")] if text == "WEEK" else []  # 1970 began on a Thursday, a week on Monday
    return _call_tumble(time, interval(str(_UNITS[text]), "DAY" if text == "WEEK" else text), *offset, *zone)


def _time_and_zone(value: exp.Expr) -> tuple[exp.Column | None, list[exp.Expr]]:
    """Return the column of a time, and the zone, if any, by whose clocks `AT TIME ZONE` or FROM_UTC_TIMESTAMP shows it;
    None for another expression."""
    value, zone = value.unnest(), list[exp.Expr]()
    if isinstance(value, exp.AtTimeZone):
        value, zone = value.this.unnest(), [value.args["zone"]]
        if isinstance(value, exp.AtTimeZone) and value.args["zone"].name.upper() == "UTC":
            value = value.this.unnest()  # how Postgres reads a timestamp without a zone as a moment
    elif function_name(value) == "FROM_UTC_TIMESTAMP" and len(value.expressions) == 2:
        value, zone = value.expressions[0], value.expressions[1:]
    return (value if isinstance(value, exp.Column) else None), zone


def with_local_times(value: exp.Expr) -> exp.Expr:
    """Return a call that cuts off times as expressions have it: with FROM_UTC_TIMESTAMP in place of AT TIME ZONE and of
    a zone of TIME_BUCKET, with CAST in place of DATE, and with an INTERVAL in place of a text. A local time that is
    made a moment again stays a local time."""
    value = value.unnest()
    written = (value.this.unnest() if isinstance(value, exp.AtTimeZone) else value).copy()
    arguments = [*written.expressions] if isinstance(written, exp.Anonymous) else []
    if function_name(written) == "DATE":
        written = exp.cast(arguments[0], exp.DType.DATE)
    if function_name(written) in {"DATE_BIN", "TIME_BUCKET"} and (length := text_length(arguments[0])) is not None:
        arguments[0].replace(length)
        arguments = written.expressions
    if function_name(written) == "TIME_BUCKET" and len(arguments) == 3 and _ms_of_literal(arguments[2]) is None:
        length, time, zone = arguments
        written.set("expressions", [length, exp.AtTimeZone(this=time, zone=zone)])
    local = _local_part(written)
    time, zones = _time_and_zone(local) if local is not None else (None, [])
    if local is not None and time is not None:
        parts = [time.copy(), *(node.copy() for node in zones)]
        local.replace(exp.Anonymous(this="FROM_UTC_TIMESTAMP", expressions=parts))
    return written


def _local_part(value: exp.Expr) -> exp.Expr | None:
    """Return the local time that a call, or a CAST, cuts off; None: it cuts off an event time."""
    parts = value.expressions if isinstance(value, exp.Anonymous) else []
    parts = [value.this] if isinstance(value, exp.Cast) else parts
    return next((part for part in parts if _time_and_zone(part)[1]), None)


def _as_written(value: exp.Expr, time: exp.Column) -> exp.Expr:
    """Return the time of a window, which outputs may have in milliseconds, as what cuts off times makes it: a
    timestamp, also by the clocks of a zone, or a date."""
    timestamp = exp.Anonymous(this="TIMESTAMP_MILLIS", expressions=[exp.cast(time, "BIGINT")])
    written = value.copy()
    if (local := _local_part(written)) is not None:
        _, zone = _time_and_zone(local)
        local.replace(
            exp.Anonymous(this="FROM_UTC_TIMESTAMP", expressions=[timestamp, *(node.copy() for node in zone)])
        )
        return written
    return exp.cast(timestamp, "DATE") if _is_day(value) else timestamp


def _is_day(value: exp.Expr) -> bool:
    """Say whether this is `CAST(<time> AS DATE)` or `DATE(<time>)`, which are dates."""
    if isinstance(value, exp.Cast):
        return _time_and_zone(value.this)[0] is not None and value.is_type(exp.DataType.Type.DATE)
    is_date = function_name(value) == "DATE" and len(value.expressions) == 1
    return is_date and _time_and_zone(value.expressions[0])[0] is not None


def _ms_of_literal(node: exp.Expr) -> int | None:
    """Return the milliseconds of a time as a text, or TIMESTAMP '...'; None for anything else."""
    literal = node.this if isinstance(node, exp.Cast) else node
    if not is_text(literal):
        return None
    try:
        time = datetime.fromisoformat(literal.name)
    except ValueError:
        return None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _call_tumble(time: exp.Column, *lengths: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this="TUMBLE", expressions=[time.copy(), *lengths])


def _length_of(node: exp.Expr) -> exp.Interval | None:
    """Return the INTERVAL, or what a text such as '15 minutes' says, with the unit in the singular; None for anything
    else."""
    node = node.unnest()
    if isinstance(node, exp.Interval) and isinstance(node.this, exp.Literal) and node.unit is not None:
        return interval(node.this.name, node.unit.name)
    return text_length(node)


# --- FROM ---------------------------------------------------------------------------------------------------------


def _rewrite_sources(query: exp.Select, report: Report) -> None:
    """Write the table functions of FROM and JOIN as Flink does. Of one alone, GROUP BY names both bounds of a window
    where it names one, if this tells the other."""
    clauses = [query.args.get("from_"), *(query.args.get("joins") or [])]
    calls = [call for clause in clauses if clause is not None and (call := call_in(clause.this)) is not None]
    for call in calls:
        _order_arguments(call, report)
        _take_partition(call, query, report)
        table, time = [*call.expressions, None, None][:2]
        if isinstance(table, exp.Column | exp.Subquery) and isinstance(time, exp.Column):
            time.replace(exp.Anonymous(this="DESCRIPTOR", expressions=[time.copy()]))
    for join in query.args.get("joins") or []:
        if len(clauses) == len(calls) and join.args.get("on") is not None:
            _compare_ends(join)
    group = query.args.get("group")
    if len(clauses) == len(calls) == 1 and group is not None:
        bounds = [node for node in group.expressions if isinstance(node, exp.Column) and node.name in WINDOW_COLUMNS]
        tells_other = function_name(calls[0]) != "CUMULATE" or bounds[:1] == [exp.column(WINDOW_COLUMNS[1])]
        if len(bounds) == 1 and tells_other:
            (other,) = {*WINDOW_COLUMNS} - {bounds[0].name}
            group.append("expressions", exp.column(other))


def _order_arguments(call: exp.Anonymous, report: Report) -> None:
    """Put arguments with names, as in `SIZE => INTERVAL '1' HOUR`, in the order in which they stand without names."""
    named = {node.name.upper(): node.expression for node in call.expressions if isinstance(node, exp.Kwarg)}
    if not named:
        return
    names = ARGUMENTS[function_name(call)]
    unnamed = [node for node in call.expressions if not isinstance(node, exp.Kwarg)]
    if any(function_name(node) != _PARTITION for node in unnamed) or {*named} != {*names[: len(named)]}:
        facts = f"the arguments of {function_name(call)} are {', '.join(names)}, and here it has {', '.join(named)}"
        todo = "name each of them, or none; only OFFSET may be left out"
        report.add(node_position(call), f"{facts}; {todo}")
    call.set("expressions", [*(named[name] for name in names if name in named), *unnamed])


def _compare_ends(join: exp.Join) -> None:
    """Add the equality of the ends of windows to a condition that compares their starts alone."""
    conditions = join.args["on"]
    pairs = {
        name: [
            (part.left, part.right)
            for part in conditions.find_all(exp.EQ)
            if all(isinstance(side, exp.Column) and side.name == name for side in (part.left, part.right))
        ]
        for name in WINDOW_COLUMNS
    }
    starts, ends = pairs.values()
    if len(starts) == 1 and not ends:
        columns = [exp.column(WINDOW_COLUMNS[1], table=side.table) for side in starts[0]]
        join.set("on", exp.and_(conditions, exp.EQ(this=columns[0], expression=columns[1]), copy=False))


def _take_partition(call: exp.Anonymous, query: exp.Select, report: Report) -> None:
    """Take PARTITION BY off a table function: sessions are those of a group, whose columns it must name."""
    partition = next((node for node in call.expressions if function_name(node) == _PARTITION), None)
    if partition is None:
        return
    partition.pop()
    group = query.args.get("group")
    names = {node.name for node in (group.expressions if group is not None else ())} - {*FUNCTION_COLUMNS}
    columns = {node.name for node in partition.expressions}
    if names != columns:
        facts = f"windows are those of the groups, and PARTITION BY names {listed(sorted(columns))}"
        todo = f"write GROUP BY {', '.join(sorted(columns))}, window_start, window_end"
        report.add(node_position(partition), f"{facts}; {todo}")


# --- ASOF JOIN ----------------------------------------------------------------------------------------------------


def _rewrite_asof(join: exp.Join, event_times: Mapping[str, str], report: Report) -> bool:
    """Make the comparison of times of an ASOF JOIN its FOR SYSTEM_TIME AS OF. Return False if the report says why that
    cannot be."""
    table, on = join.this, join.args.get("on")
    parts = [part.unnest() for part in split_ands(on)] if on is not None else []
    if not isinstance(table, exp.Table):
        facts = "the right side of an ASOF JOIN is an input, not a sub-query"
        todo = "write its name, and conditions on its row into ON of JOIN <input> FOR SYSTEM_TIME AS OF <event time>"
        report.add(node_position(table), f"{facts}; {todo}")
        return False
    alias, event_time = table.alias_or_name, event_times.get(table.name)
    comparisons = [part for part in parts if isinstance(part, exp.LTE | exp.GTE | exp.LT | exp.GT)]
    bound = f"{alias}.{event_time or '<event time>'} <= <event time>"
    todo = f"write ASOF JOIN {table.name} ON <key> = {alias}.<key> AND {bound}"
    if len(comparisons) != 1:
        facts = "an ASOF JOIN compares the times of its rows once in ON, and other columns with = only"
        report.add(node_position(table), f"{facts}; {todo}")
        return False
    comparison = comparisons[0]
    sides = [comparison.left.unnest(), comparison.right.unnest()]
    earlier, later = sides if isinstance(comparison, exp.LTE | exp.LT) else sides[::-1]
    is_time = isinstance(earlier, exp.Column) and earlier.table == alias and event_time in {None, earlier.name}
    if isinstance(comparison, exp.LT | exp.GT) or not is_time or not isinstance(later, exp.Column):
        facts = f"the row of {table.name!r} is the last one before or at a time, by its event time"
        report.add(node_position(comparison), f"{facts}; {todo}")
        return False
    join.set("method", None)
    table.set("version", exp.Version(this="TIMESTAMP", kind="AS OF", expression=later.copy()))
    rest = [part for part in parts if part is not comparison]
    join.set("on", exp.and_(*rest, copy=False) if rest else None)
    return True
