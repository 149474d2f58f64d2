"""GROUP BY and aggregates, of one input or of joined rows.

The groups are columns and expressions; the window is SESSION(<event time>, <INTERVAL>) among them, or the clause WINDOW
SESSION(...), and in a StreamJoin also TUMBLE, HOP or CUMULATE. SQL's aggregates become those of sessions (rule S7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import NotALengthError
from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.model.time_formats import checked_zone
from joinery_runtime.job.sql.clauses import window_ms
from joinery_runtime.job.sql.dialects import NAMED_AGGREGATES
from joinery_runtime.job.sql.query import Query
from joinery_runtime.job.sql.report import node_position
from joinery_runtime.job.sql.scope import Relation, Scope, SqlInput
from joinery_runtime.job.sql.select_tree import without_inputs
from joinery_runtime.job.sql.window_functions import function_name, is_text

_WINDOWS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "SESSION": ("session", ("gap",)),
    "TUMBLE": ("tumbling", ("size",)),
    "HOP": ("hopping", ("slide", "size")),
    "CUMULATE": ("cumulative", ("step", "size")),
}
"""Functions of GROUP BY, in Flink's order of arguments: the kind of window, and the lengths behind the event time."""
_FORMS = {
    "SESSION": "SESSION({time}, INTERVAL '30' SECOND)",
    "TUMBLE": "TUMBLE({time}, INTERVAL '1' HOUR)",
    "HOP": "HOP({time}, INTERVAL '10' MINUTE, INTERVAL '1' HOUR)",
    "CUMULATE": "CUMULATE({time}, INTERVAL '1' HOUR, INTERVAL '1' DAY)",
}
_GAP = f"write {_FORMS['SESSION']} into GROUP BY"
_TWICE = "there are two windows; keep one"
_OTHERS = dict.fromkeys(("TUMBLE", "HOP", "CUMULATE", "TUMBLING", "HOPPING"), "a session has no width")
_OTHER_NAMES = {"TUMBLING": "TUMBLE", "HOPPING": "HOP"}


@dataclass(slots=True)
class GroupExpression:
    """One group. `text` is its expression, with columns qualified by the input's own name. `column` is set if the group
    is a plain column. `name` is its name in sessions: the alias in the select list, unless the input has a column of
    that name; else the expression as written."""

    text: str
    column: str | None
    name: str
    selected: bool = False


OF_JOINS = "windows of the joins"


@dataclass(slots=True)
class GroupWindow:
    """A window of GROUP BY: its `kind`, as `spec.aggregate.window` calls it, and its lengths in milliseconds by their
    fields there. None, or a missing one: the report says what is wrong. `of` is the input whose event time the function
    names (None: it names none), `zone` the zone by whose clocks windows begin and end (None: those of UTC). Of kind
    OF_JOINS are the windows in which rows were joined, of which no field says more."""

    kind: str
    lengths: dict[str, int | None] = field(default_factory=dict)
    of: str | None = None
    zone: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The window as `spec.aggregate.window.<kind>` has it."""
        return {**self.lengths, **({"timeZone": self.zone} if self.zone is not None else {})}


@dataclass(slots=True)
class Grouping:
    """The groups and the window (None: there is none, and the report says so). `broken`: a group is missing or wrong,
    which the report says, so others may seem to be missing."""

    window: GroupWindow | None = None
    by_text: dict[str, GroupExpression] = field(default_factory=dict)
    broken: bool = False


def read_groups(query: Query, table: SqlInput, scope: Scope) -> Grouping:
    """Read GROUP BY. Sessions are the only windows unless columns are `qualified`, as those of a StreamJoin are."""
    grouping, before = Grouping(), len(scope.report.problems)
    aliases = {item.alias: item.this for item in query.items if isinstance(item, exp.Alias)}
    functions = _WINDOWS if scope.qualified else ("SESSION",)
    windows = [node for node in query.groups if function_name(node) in functions]
    own_columns = [node for node in query.groups if scope.is_window_column(node.unnest())]
    group_nodes = [node for node in query.groups if node not in [*windows, *own_columns]]
    for node in group_nodes:
        read_group(node, aliases, table, grouping, scope)
    if own_columns:
        grouping.window = window_of_joins(own_columns, windows, query, scope)
    else:
        grouping.window = _read_window(windows, query, table, scope)
    if (
        not group_nodes
        and not own_columns
        and query.groups
        and (grouping.window is None or grouping.window.kind == "session")
    ):
        facts = "there is no group column: one session of the whole stream would not be bounded by key (rule S1)"
        scope.report.add(query.group_at, f"{facts}; name at least one")
    grouping.broken = not query.groups or len(scope.report.problems) > before
    return grouping


def column_name(value: exp.Expr, scope: Scope) -> str | None:
    """Return the input's column that this means, as the job writes it; None for another expression, or a wrong name,
    which is reported."""
    resolved = scope.resolve(value) if isinstance(value, exp.Column) and not isinstance(value.this, exp.Star) else None
    if resolved is None:
        return None
    relation, name = resolved
    return f"{relation.table.name}.{name}" if scope.qualified else name


def computed_name(value: exp.Expr, scope: Scope) -> str:
    """Write the expression as the name of a computed column that has no other name: with columns as the job has
    them."""
    return (value if scope.qualified else without_inputs(value)).sql(comments=False)


# --- groups -------------------------------------------------------------------------------------------------------


def read_group(
    node: exp.Expr,
    aliases: Mapping[str, exp.Expr],
    table: SqlInput,
    grouping: Grouping,
    scope: Scope,
) -> None:
    """Add a group, which is a column or an expression; wrong ones are reported. `aliases` are those of the select
    list."""
    at, value = node_position(node), node.unnest()
    if isinstance(value, exp.Column) and not value.table and not scope.has_column(value.name):
        value = aliases.get(value.name, value).unnest()  # an alias of the select list
    value = value.copy()
    problem = _group_problem(value, table, scope)
    if problem:
        scope.report.add(at, problem)
        return
    column = column_name(value, scope) if isinstance(value, exp.Column) else None
    if (isinstance(value, exp.Column) and column is None) or not scope.qualify(value):
        return
    text = value.sql(comments=False)
    if text in grouping.by_text:
        scope.report.add(at, "is grouped by twice; keep one")
    grouping.by_text.setdefault(text, GroupExpression(text, column, column or computed_name(value, scope)))


def _group_problem(value: exp.Expr, table: SqlInput, scope: Scope) -> str:
    if isinstance(value, exp.Literal) and not value.is_string:
        facts = "is a constant, or the number of an aggregate or of no entry of the select list"
        return f"{facts}; write a column or an expression"
    if value.find(exp.AggFunc, exp.Window, exp.Query) is not None:
        return "is computed over many rows, and a group is known of each; leave it out"
    name = function_name(value)
    if scope.qualified:
        other = _OTHER_NAMES.get(name)
        return f"this is called {other} here; write {_FORMS[other].format(time=table.event_time)}" if other else ""
    return f"{_OTHERS[name]}; {_GAP.format(time=table.event_time)}" if name in _OTHERS else ""


# --- windows ------------------------------------------------------------------------------------------------------


_PARTS_OF_TIMES = {"TO_DATE", "DATE_FORMAT", "YEAR", "MONTH", "DAY"}
"""Functions by which Spark and MySQL group rows by days, months and years."""


def _read_window(nodes: Sequence[exp.Expr], query: Query, table: SqlInput, scope: Scope) -> GroupWindow | None:
    clause = None if query.joined else query.window  # WINDOW behind a JOIN says what the join matches
    for node in nodes[0 if clause is not None else 1 :]:
        is_session = function_name(node) == "SESSION"
        scope.report.add(node_position(node), "the gap is said twice; keep one SESSION" if is_session else _TWICE)
    if clause is not None and scope.qualified:
        return GroupWindow(clause.kind, {name.lower(): ms for name, ms in clause.lengths.items()})
    if clause is not None:
        if clause.kind != "session":
            scope.report.add(clause.at, "a session has no width; write WINDOW SESSION(INTERVAL '30' SECOND)")
        return GroupWindow("session", {"gap": clause.lengths.get("GAP")})
    if nodes:
        return read_window_call(nodes[0], table, scope, "GROUP BY")
    has_two_bounds = query.window is not None and any(join.within is not None for join in query.joined)
    if query.groups and not has_two_bounds:  # which are reported
        scope.report.add(query.group_at, _missing_window_text(query, table.event_time, scope))
    return None


def _missing_window_text(query: Query, time: str, scope: Scope) -> str:
    """Say which windows GROUP BY may have: sessions alone, or those of a StreamJoin, with what stands for the functions
    by which other systems cut off times."""
    if not scope.qualified:
        return f"nothing says which rows are of one session (rule S1); {_GAP.format(time=time)}"
    todo = f"write {_FORMS['TUMBLE'].format(time=time)} into GROUP BY, or HOP, CUMULATE or SESSION"
    if scope.windowed:
        todo += ", or window_start and window_end, for the windows of the joins"
    names = {function_name(node.unnest()) for node in query.groups}
    if names & _PARTS_OF_TIMES:
        facts = "months and years differ in length: group by days, and add these up where rows are read"
        todo += f", or, for windows of days, CAST({time} AS DATE); {facts}"
    if "DATE_TRUNC" in names:
        hours = f"TUMBLE({time}, INTERVAL '1' HOUR, '<zone>') for hours, of which two may have one name"
        facts = "months differ in length: group by days, and add these up where rows are read"
        todo += ", or DATE_TRUNC of the event time in a unit of one length, up to WEEK (of a zone's clocks "
        todo += f"DAY and WEEK, and {hours}); {facts}"
    return f"without a window no group would ever end (rule G1); {todo}"


def window_of_joins(
    columns: Sequence[exp.Expr], functions: Sequence[exp.Expr], query: Query, scope: Scope
) -> GroupWindow | None:
    """Return the window of the joins as that of the groups, or of the rows that are numbered, which name its `columns`.
    Tumbling windows hold the event times of all inputs of a row, so that of an input which no join pads says in which
    of them the row was joined. Rows of other joins are ranked in the windows that they have (OF_JOINS)."""
    clause, at = query.window, query.group_at if query.grouped else node_position(columns[0])
    assert clause is not None, "the joined rows are in windows"
    for node in functions:
        scope.report.add(node_position(node), _TWICE)
    missing = [name for name in WINDOW_COLUMNS if name not in {node.unnest().name for node in columns}]
    if missing:
        facts = "a window of the joined rows is named by its start and its end"
        scope.report.add(node_position(columns[0]), f"{facts}; write {missing[0]} as well")
        return None
    relation = _never_padded(query, scope)
    if not query.grouped and (clause.kind == "hopping" or (clause.kind == "tumbling" and relation is None)):
        return GroupWindow(OF_JOINS)
    if clause.kind != "tumbling":
        facts = f"the time of a row that is joined in {clause.kind} windows does not say in which of them that was"
        todo = "join in tumbling windows, or let a second job read this one's output, with window_start and window_end"
        scope.report.add(at, f"{facts}; {todo}")
        return None
    if relation is None:
        facts = "each input may be missing in a joined row, so none of their event times says when it is"
        todo = "write a LEFT or a RIGHT JOIN, or let a second job read this one's output"
        scope.report.add(at, f"{facts}; {todo}")
        return None
    lengths = {name.lower(): ms for name, ms in clause.lengths.items()}
    offset = {"offset": clause.offset} if clause.offset else {}
    return GroupWindow("tumbling", {**lengths, **offset}, relation.table.name, clause.zone)


def _never_padded(query: Query, scope: Scope) -> Relation | None:
    """Return the first input that is no table and has a row in each joined row; None: there is none."""
    sources = [] if query.first is None else [query.first]
    for join in query.joined:
        if join.type in {"right", "full"}:
            sources.clear()
        if join.type in {"inner", "right"} and join.source.as_of is None:
            sources.append(join.source)
    return next((relation for relation in scope.relations.values() if relation.source in sources), None)


def window_function(node: exp.Expr) -> str:
    """Return the name of the function of windows that is called; empty if none is."""
    name = function_name(node)
    return name if name in _WINDOWS else ""


def read_window_call(node: exp.Expr, table: SqlInput, scope: Scope, clause: str) -> GroupWindow | None:
    """Read a function of windows in a clause; None if the report says what is wrong. `table` is the input whose event
    time examples name."""
    name = function_name(node)
    kind, lengths = _WINDOWS[name]
    form = _FORMS[name]
    at, (time, *intervals) = node_position(node), node.expressions or [None]
    todo = f"write {form.format(time=table.event_time)} into {clause}"
    fields = lengths if name == "SESSION" else (*lengths, "offset")
    counts = {len(lengths), len(fields)}
    zone = intervals.pop() if name != "SESSION" and intervals and is_text(intervals[-1]) else None
    if len(intervals) not in counts or not all(isinstance(length, exp.Interval) for length in intervals):
        takes = "an INTERVAL" if len(lengths) == 1 else f"{len(lengths)} INTERVALs"
        scope.report.add(at, f"takes the event time and {takes}; {todo}")
        return None
    if not isinstance(time, exp.Column):
        subject = "gaps are between" if name == "SESSION" else "windows are of"
        scope.report.add(at, f"{subject} event times, this is an expression; {todo}")
        return None
    window = GroupWindow(kind)
    if zone is not None:
        try:
            window.zone = checked_zone(zone.name)
        except ValueError as error:
            scope.report.add(node_position(zone), str(error))
    resolved = scope.resolve(time)
    if resolved is not None:
        owner, column = resolved[0].table, resolved[1]
        window.of = owner.name
        if column != owner.event_time:
            subject = "gaps are between" if name == "SESSION" else "windows are of"
            facts = f"{subject} event times, and the eventTime of {owner.name!r} is {owner.event_time}"
            scope.report.add(node_position(time), f"{facts}; write {form.format(time=owner.event_time)} into {clause}")
    for length, interval in zip(fields, intervals, strict=False):
        try:
            window.lengths[length] = window_ms(length, interval)
        except NotALengthError as error:
            scope.report.add(at, str(error))
    every = window.lengths.get("slide") or window.lengths.get("size")  # how often a window begins
    offset = window.lengths.pop("offset", None)
    if every and offset is not None and offset % every:
        window.lengths["offset"] = offset % every
    return window


# --- aggregates ---------------------------------------------------------------------------------------------------

_FUNCTIONS: Mapping[type[exp.Expr], str] = {
    exp.Count: "count_col",
    exp.CountIf: "count_if",
    exp.ApproxDistinct: "count_distinct",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.AnyValue: "first",
    exp.First: "first",
    exp.FirstValue: "first",
    exp.Last: "last",
    exp.LastValue: "last",
    exp.ArgMin: "min_by",
    exp.ArgMax: "max_by",
    exp.VariancePop: "var_pop",
    exp.Variance: "var_samp",
    exp.StddevPop: "stddev_pop",
    exp.Stddev: "stddev_samp",
    exp.StddevSamp: "stddev_samp",
    exp.Median: "median",
    exp.PercentileCont: "percentile_cont",
    exp.PercentileDisc: "percentile_disc",
    exp.ApproxQuantile: "approx_percentile",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.ArrayAgg: "array_agg",
    exp.GroupConcat: "string_agg",
}
_SECOND_ARGUMENTS = {
    "min_by": ("expression", "takes two values: MIN_BY(value, by)"),
    "max_by": ("expression", "takes two values: MAX_BY(value, by)"),
    "approx_percentile": ("quantile", "takes a value and a share: APPROX_PERCENTILE(x, 0.95)"),
    "string_agg": ("separator", "takes a value and a separator: STRING_AGG(x, ',')"),
}
"""For functions that may have two arguments: what sqlglot calls the second one, and how to write the call."""
AGGREGATES = (
    "COUNT(*), COUNT(x), COUNT(DISTINCT x), COUNT_IF, APPROX_COUNT_DISTINCT(x), SUM, AVG, MIN, MAX, "
    "FIRST (FIRST_VALUE, ANY_VALUE), LAST (LAST_VALUE), MIN_BY, MAX_BY, VAR_POP, VAR_SAMP (VARIANCE), "
    "STDDEV_POP, STDDEV_SAMP (STDDEV), "
    "MEDIAN, PERCENTILE_CONT, PERCENTILE_DISC, APPROX_PERCENTILE, BOOL_AND (EVERY), BOOL_OR, "
    "ARRAY_AGG (COLLECT_LIST) and STRING_AGG (LISTAGG), each also with FILTER (WHERE ...)"
)
_OTHERWISE = {
    **dict.fromkeys(("TUMBLE", "HOP", "WINDOW", "SESSION"), "write window_start or window_end, and this into GROUP BY"),
    "LATEST_BY_OFFSET": "write LAST(x), which goes by event time",
    "EARLIEST_BY_OFFSET": "write FIRST(x), which goes by event time",
    "TOPK": "write topN beside sql for the rows, or ARRAY_AGG(x) for all values",
    "TOPKDISTINCT": "write topN beside sql for the rows",
    "COLLECT_SET": "write ARRAY_AGG(x), or COUNT(DISTINCT x)",
    "HISTOGRAM": "group by the value, and write COUNT(*)",
}
"""Aggregates of other systems, and what to write for them."""
_NO_MEANING = {"this", "big_int"}


def number_problem(call: exp.Expr) -> str:
    """Say why another function before OVER is rejected in the select list of groups."""
    if call.find(exp.IgnoreNulls, exp.RespectNulls) is not None:
        return (
            "a value of another row is of the next one, NULL or not; leave NULLS out, and filter the groups by HAVING"
        )
    if isinstance(call.this, exp.LastValue | exp.NthValue):
        facts = "over the groups of a window, a job reads the first row, and those before and behind a row (rule R11)"
        return f"{facts}; write FIRST_VALUE with the reverse ORDER BY, LAG or LEAD"
    facts = "over the groups of a window, a job computes SUM, AVG, MIN, MAX, COUNT(*), ROW_NUMBER, RANK, DENSE_RANK"
    more = "PERCENT_RANK, CUME_DIST, NTILE, LAG, LEAD and FIRST_VALUE alone (rule R11)"
    return f"{facts}, {more}; write these, or let a second job read the groups, with window_start and window_end"


def unknown_aggregate(value: exp.Expr) -> str:
    """Say that a call is no aggregate, and what to write."""
    todo = _OTHERWISE.get(function_name(value) or value.key.upper())
    return f"is not an aggregate here; {todo}" if todo else f"is not an aggregate; these are {AGGREGATES}"


class BadAggregateError(ValueError):
    """An aggregate is rejected; the text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an aggregate. `argument` is None for a count of rows, `by` the second column of MIN_BY and MAX_BY,
    `where` the condition of FILTER. `options` are fields of the aggregate."""

    function: str
    argument: exp.Expr | None = None
    by: exp.Expr | None = None
    where: exp.Expr | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def read_call(value: exp.Expr) -> Call:
    """Read a call of an aggregate. Raises BadAggregateError."""
    if isinstance(value, exp.Filter):
        return replace(read_call(value.this), where=value.expression.this)
    value = _without_nulls(value)
    if isinstance(value, exp.WithinGroup):
        return _read_percentile(value)
    function = _FUNCTIONS.get(type(value)) or NAMED_AGGREGATES.get(function_name(value))
    if function is None or isinstance(value, exp.PercentileCont | exp.PercentileDisc):
        raise BadAggregateError(unknown_aggregate(value))
    first, second = _split_arguments(value, function)
    if isinstance(value, exp.Count):
        return _read_count(value)
    if function in {"min_by", "max_by"}:
        return Call(function, _checked_argument(first), by=_checked_argument(second))
    options: dict[str, Any] = {}
    if isinstance(value, exp.ApproxDistinct):
        options["method"] = "hll"
    elif function == "approx_percentile":
        options["percentile"] = _parse_share(second)
    elif second is not None:
        if not isinstance(second, exp.Literal) or not second.is_string:
            raise BadAggregateError("the separator has to be a text in quotes")
        options["separator"] = second.name
    return Call(function, _checked_argument(first), options=options)


def _split_arguments(value: exp.Expr, function: str) -> tuple[Any, Any]:
    """Return the first argument, and the second or None."""
    second_name, form = _SECOND_ARGUMENTS.get(function, ("", "takes one value"))
    if isinstance(value, exp.Anonymous):
        arguments = [*value.expressions]
        more = len(arguments) > (2 if second_name else 1)
    else:
        arguments = [argument for name in ("this", second_name) if (argument := value.args.get(name)) is not None]
        more = any(argument for name, argument in value.args.items() if name not in {*_NO_MEANING, second_name})
    if more:
        raise BadAggregateError(f"{form}; write an expression if a value is made of several columns")
    if not arguments:
        raise BadAggregateError("is of nothing; write COUNT(*), or name a column")
    if len(arguments) < 2 and second_name and function != "string_agg":
        raise BadAggregateError(form)
    return arguments[0], arguments[1] if len(arguments) > 1 else None


def _read_percentile(value: exp.WithinGroup) -> Call:
    function, order = value.this, value.expression
    todo = "write PERCENTILE_CONT(0.95) WITHIN GROUP (ORDER BY x), or PERCENTILE_DISC"
    if not isinstance(function, exp.PercentileCont | exp.PercentileDisc):
        raise BadAggregateError(f"WITHIN GROUP is for percentiles; {todo}")
    ordered = order.expressions[0] if len(order.expressions) == 1 else None
    if ordered is None or ordered.args.get("desc"):
        raise BadAggregateError(f"WITHIN GROUP takes one ascending value; {todo}")
    return Call(
        _FUNCTIONS[type(function)], _checked_argument(ordered.this), options={"percentile": _parse_share(function.this)}
    )


def _parse_share(value: Any) -> float:
    if not isinstance(value, exp.Literal) or value.is_string or not 0 <= float(value.name) <= 1:
        raise BadAggregateError("the percentile has to be one number from 0 to 1, such as 0.95")
    return float(value.name)


def _without_nulls(value: exp.Expr) -> exp.Expr:
    """Return the call without clauses about NULLs, which aggregates skip in any case."""
    if isinstance(value, exp.Window):
        raise BadAggregateError("OVER is not supported: the group is what is aggregated; leave it out")
    if isinstance(value, exp.RespectNulls):
        raise BadAggregateError("RESPECT NULLS is not supported: aggregates skip NULLs (rule S7); leave it out")
    return value.this if isinstance(value, exp.IgnoreNulls) else value


def _read_count(value: exp.Count) -> Call:
    counted = value.this
    if isinstance(counted, exp.Distinct):
        if len(counted.expressions) != 1 or counted.args.get("on"):
            raise BadAggregateError("COUNT(DISTINCT ...) takes one value; write an expression of the columns")
        return Call("count_distinct", _checked_argument(counted.expressions[0]))
    if isinstance(counted, exp.Star | exp.Literal):
        return Call("count")
    return Call("count_col", _checked_argument(counted))


def _checked_argument(value: exp.Expr) -> exp.Expr:
    if isinstance(value, exp.Distinct):
        raise BadAggregateError("DISTINCT is for COUNT; leave it out")
    if isinstance(value, exp.Order):
        raise BadAggregateError("ORDER BY is not supported: values are in order of event time; leave it out")
    if value.find(exp.AggFunc, exp.Window) is not None:
        raise BadAggregateError("an aggregate of an aggregate has no meaning in one group; keep one of them")
    if value.find(exp.Star) is not None:
        raise BadAggregateError("takes a value, not a star; name a column")
    return value.unnest()
