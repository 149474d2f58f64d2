"""Translates an SQL text, with the inputs of its job, to `spec.joins` and `spec.select`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.expression_tree import TOO_DEEP, parse_tree
from joinery_runtime.job.model.function_calls import declaring
from joinery_runtime.job.model.references import (
    EXISTENCE,
    POSTGRES_NAME_BYTES,
    STAR_NAMINGS,
    WINDOW_COLUMNS,
    Naming,
    naming_prefixes,
)
from joinery_runtime.job.model.wording import either, listed
from joinery_runtime.job.sql.aggregates import inputs_aggregated, read_aggregate
from joinery_runtime.job.sql.clauses import (
    AGGREGATE_LATENESS,
    BROADCAST,
    EMIT_EVERY,
    GRACE,
    HISTORY,
    LATENESS,
    LOWER,
    RETENTION,
    UPPER,
    Options,
    Within,
    read_options,
)
from joinery_runtime.job.sql.conditions import Link, find_anti_joins, link_joins, place_conditions, read_predicates
from joinery_runtime.job.sql.matching import (
    Bound,
    Distances,
    IntervalBounds,
    Matching,
    TimeBound,
    interval_of,
    read_matching,
)
from joinery_runtime.job.sql.query import Query, read_query
from joinery_runtime.job.sql.ranking import SqlRanking, ranked_columns, read_ranking
from joinery_runtime.job.sql.report import JOINS, Report, TextPosition, node_position, problems_of
from joinery_runtime.job.sql.scope import Relation, Scope, SqlInput, find_repeats
from joinery_runtime.job.sql.select_list import item_name, read_columns

Step = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Translation:
    """A translation. `steps` are the entries of `spec.joins`, `select` is `spec.select`, `aggregate` is
    `spec.aggregate` (None: there is no GROUP BY), all as in YAML; `ranking` is what ROW_NUMBER says (None: there is
    none); `filters` are `where` of inputs, by name; `repeats` are the inputs that are read again, each time as an input
    of its own, by the names of these. With `problems` they must not be used."""

    steps: tuple[Step, ...]
    select: list[dict[str, str]]
    problems: tuple[str, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    aggregate: Mapping[str, Any] | None = None
    ranking: SqlRanking | None = None
    repeats: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the entries of `select`."""
        return [item_name(item) for item in self.select]


def check_shape(sql: str) -> tuple[str, ...]:
    """Return what is wrong with the text, whatever the inputs are."""
    return problems_of(sql, lambda text, report: _read_query_and_options(text, (), report))


@lru_cache(maxsize=64)
def translate(
    sql: str,
    tables: tuple[SqlInput, ...],
    functions: tuple[str, ...] = (),
    beside: str | None = None,
    stars: Naming = "whenNeeded",
) -> Translation:
    """Translate the text; `tables` are all inputs of the job, in its order, `functions` those that it declares.
    `beside` is the ranking that `spec` names beside `sql`: `deduplicate` or `topN`. `stars` says which prefix the
    columns have that the stars of several inputs select (rule J10)."""
    try:
        with declaring(functions):
            return _translate(sql, tables, beside, stars)
    except RecursionError:
        return Translation((), [], (TOO_DEEP,))
    except SqlglotError as error:  # of an expression in it, which is nested too deep or has too long a number
        return Translation((), [], (str(error),))


def fitting_stars(
    sql: str, translations: Callable[[Naming], Translation], mentioned: Collection[str], *, in_postgres: bool
) -> Naming:
    """Return the way in which a job without stored names has the columns of its stars named: by input, or as in earlier
    releases if its outputs mention a name that only this gives, such as `left_order_id`, or if by input a name comes
    twice or, in Postgres, is too long. `translations` gives the translation of `sql` under a naming."""
    if "*" not in sql:  # long texts are translated once
        return "whenNeeded"
    by_input, by_side = map(translations, STAR_NAMINGS)
    if by_side.problems:
        return "whenNeeded"
    long = in_postgres and any(len(name.encode()) > POSTGRES_NAME_BYTES for name in by_input.names)
    earlier_only = {*by_side.names} - {*by_input.names}
    return "sidesWhenNeeded" if by_input.problems or long or earlier_only & {*mentioned} else "whenNeeded"


def _translate(sql: str, tables: Sequence[SqlInput], beside: str | None, stars: Naming) -> Translation:
    report = Report(sql)
    read = _read_query_and_options(sql, tables, report)
    if read is None:
        return Translation((), [], report.problems)
    query, options = read
    repeats = find_repeats(query.sources, tables, report)
    query = query.with_repeats(repeats)
    by_name = {table.name: table for table in tables}
    tables = (*tables, *(replace(by_name[name], name=alias) for alias, name in repeats.items()))
    scope = Scope(query.sources, tables, report, windowed=query.window is not None and bool(query.joined))
    inputs = [table.name for table in tables]
    prefixes = dict(zip(inputs, naming_prefixes(stars, inputs), strict=True))
    aggregate, ranking, of_groups = None, read_ranking(query, scope, beside), None
    if query.grouped:
        aggregate, select, of_groups = read_aggregate(query, scope, options, beside)
    else:
        names, numbers = ranked_columns(query, ranking, beside)
        names = WINDOW_COLUMNS if query.window is not None and not names else names
        select = read_columns(query.items, scope, prefixes, names, numbers)
    if aggregate is None:
        texts = [item["expression"] for item in select if "expression" in item]
        selected = {column.table for text in texts for column in parse_tree(text).find_all(exp.Column)}
        selected |= {item["column"].partition(".")[0] for item in select if "column" in item}
    else:
        selected = inputs_aggregated(aggregate)
    selected |= ranking.inputs if ranking is not None else set()
    links, filters = _link_query(query, scope, tables, selected)
    steps = _translate_links(links, query, options, scope)
    return Translation(steps, select, report.problems, filters, aggregate, ranking or of_groups, repeats)


def _read_query_and_options(sql: str, tables: Sequence[SqlInput], report: Report) -> tuple[Query, Options] | None:
    columns = {table.name: table.columns for table in tables}
    query = read_query(sql, report, JOINS, columns, {table.name: table.event_time for table in tables})
    if query is None:
        return None
    _check_parts(query, report)
    options = read_options(query.options, query.kinds, report, grouped=query.grouped)
    if query.window is not None and query.window.grace_at is not None:
        name = LATENESS if query.joined else AGGREGATE_LATENESS
        _check_grace(query.window.grace_at, (name,), options, report)
        options.ms[name] = query.window.grace
    if query.final is not None and (EMIT_EVERY in options.ms or options.aggregate_late_data == "reopen"):
        facts = "EMIT FINAL says that each group is emitted once, and the options say that it is emitted again"
        report.add(query.final, f"{facts}; leave one out")
    return query, options


def _check_grace(at: TextPosition, names: Sequence[str], options: Options, report: Report) -> None:
    for name in names:
        if name in options.at:
            report.add(at, f"{name!r} says the same as GRACE PERIOD in another way; keep one of the two")


def _check_parts(query: Query, report: Report) -> None:
    if not query.items:
        report.add(query.start, "selects nothing; write the columns to emit, or *")
    if query.first is None:
        report.add(query.start, "no input is named; write FROM <input>")
    elif query.window is not None and not (query.joined or query.grouped):
        facts = "a window is of a JOIN or of GROUP BY, and there is none"
        report.add(query.window.at, f"{facts}; leave it out, or write GROUP BY")
    if query.final is not None and not query.grouped:
        report.add(query.final, f"EMIT FINAL is not supported: {JOINS.final}; write EMIT CHANGES")
    for join in query.joined:
        for text in join.unsupported:
            report.add(join.source.at, text)
        kind = query.kind_of(join)
        if join.within is not None and kind != "interval":
            joined = "a table is joined at a time" if kind == "asof" else "the rows of one window match"
            if query.window is None or not query.grouped:
                report.add(join.within.at, f"WITHIN is the bound of a join of streams, and {joined}; leave it out")
    bounds = [join.within for join in query.joined if join.within is not None]
    if query.window is not None and query.grouped and bounds:
        facts = "WINDOW behind a join says which rows match, as WITHIN does"
        time = "TUMBLE(<event time>, <length>)"
        report.add(query.window.at, f"{facts}; for groups of the joined rows write GROUP BY ..., {time} in its place")
    if query.first is not None and query.first.as_of is not None:
        facts = "FOR SYSTEM_TIME belongs to the table, which is joined"
        report.add(query.first.at, f"{facts}; write FROM <stream> JOIN <table> ...")


def _link_query(
    query: Query, scope: Scope, tables: Sequence[SqlInput], selected: Set[str]
) -> tuple[list[Link], Mapping[str, str]]:
    """Return the links with their conditions, and the conditions of inputs; none if an input is unknown, and then only
    names are checked. `selected` are the inputs that the select list reads."""
    on = [read_predicates(joined.on, scope, joined.source if joined.source.hidden else None) for joined in query.joined]
    where = read_predicates(query.where, scope, behind_joins=True)
    if query.first is None or not scope.is_complete:
        return [], {}
    for relation in scope.relations.values():
        table, time = relation.table, relation.source.window_time
        if time is not None and not (isinstance(time, exp.Column) and time.name == table.event_time):
            facts = f"windows are of event times, and the eventTime of {table.name!r} is {table.event_time}"
            scope.report.add(node_position(time), f"{facts}; write DESCRIPTOR({table.event_time})")
    used = {relation.table.name for relation in scope.relations.values()}
    unused = [table.name for table in tables if table.name not in used]
    written = [*query.items, *([query.where] if query.where is not None else [])]
    if unused and not any(node.find(exp.Query) for node in written):  # what is rejected there may read them
        facts = f"of the job's inputs, {listed(unused)} are not joined"
        scope.report.add(query.first.at, f"{facts}; JOIN them, or take them out of spec.inputs")
    if not query.joined:
        (relation,) = scope.relations.values()
        parts = [predicate.node for predicate in where.good]
        return [], {relation.table.name: exp.and_(*parts, copy=False).sql(comments=False)} if parts else {}
    joined, where = find_anti_joins(query.joined, on, where, scope, selected)
    links = link_joins(joined, scope, tables[0].name)
    moved = place_conditions(links, on, where, scope.report, filters_inputs="session" not in query.kinds)
    filters: dict[str, list[exp.Expr]] = {}
    for relation in scope.relations.values():
        # Those of the sub-query in FROM that reads the input come first.
        own = read_predicates(relation.source.condition, scope, relation.source if relation.source.hidden else None)
        name = relation.table.name
        filters[name] = [*(predicate.node for predicate in own.good), *moved.get(name, ())]
    return links, {name: exp.and_(*parts, copy=False).sql(comments=False) for name, parts in filters.items() if parts}


# --- steps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Context:
    query: Query
    options: Options
    scope: Scope
    links: Sequence[Link]

    @property
    def report(self) -> Report:
        return self.scope.report


def _translate_links(links: Sequence[Link], query: Query, options: Options, scope: Scope) -> tuple[Step, ...]:
    """Return one step per link. If the report has problems, the steps must not be used."""
    context = _Context(query, options, scope, links)
    for name in (LOWER, UPPER):
        if len(links) > 1 and name in options.ms:
            todo = "write a bound on time into each ON"
            scope.report.add(options.at[name], f"{name!r} does not say which JOIN is meant; {todo}")
    distances, sent = Distances(), set[str]()
    steps = tuple(_translate_link(link, distances, sent, context) for link in links)
    for name in options.broadcast:
        relation = scope.by_input(name)
        if links and (relation is None or relation.table.name not in sent):
            scope.report.add(
                options.at[BROADCAST], f"{name!r} is no input that is joined without an equality; leave it out"
            )
    return steps


def _translate_link(link: Link, distances: Distances, sent: set[str], context: _Context) -> Step:
    kind = context.query.kind_of(link.joined)
    matching = read_matching(link, timed=kind == "interval", report=context.report)
    matching.broken = matching.broken or context.options.broken
    step: Step = {"right": link.right.table.name, "keys": matching.keys}
    if link.type != "inner":
        step["type"] = link.type
    from_input = None
    if not matching.keys and not _broadcast_sides(link, context):
        matching.make_keys_of_expressions(link)
    if kind == "interval":
        step |= _read_broadcast(link, matching, sent, context)
        from_input = _take_interval(step, link, matching, distances, context)
    else:
        _check_keys(link, matching, "", context)
        if kind == "asof":
            step |= _read_as_of(link, context)
        else:
            allowed_ms, window = context.options.ms.get(LATENESS, 0), context.query.window
            assert window is not None, "the kind of the query says so"
            lengths = {name.lower(): ms for name, ms in window.lengths.items()}
            size = lengths.get("size")
            step["window"] = {window.kind: size if window.kind == "tumbling" else lengths, **window.alignment}
            step |= {"allowedLateness": allowed_ms} if allowed_ms else {}
    if context.options.late_data != "drop" and kind != "asof":
        step["lateData"] = context.options.late_data
    where = matching.where_text(from_input)
    if where is not None:
        step["where"] = where
    if link.filters:
        parts = [predicate.node for predicate in link.filters]
        step["filter"] = exp.and_(*parts, copy=False).sql(comments=False)
    return step


def _check_keys(link: Link, matching: Matching, more: str, context: _Context) -> None:
    if matching.keys or matching.broken:
        return
    for part in matching.conditions:
        inputs = {column.table for column in part.find_all(exp.Column)}
        # Two columns that are equal and no key are event times, and an equality is missing.
        are_columns = isinstance(part, exp.EQ) and all(isinstance(side, exp.Column) for side in (part.left, part.right))
        if isinstance(part, exp.EQ) and len(inputs) > 1 and not are_columns:
            facts = f"{part.sql(comments=False)} is no key: each side of one is computed of one input, and one side of"
            facts = f"{facts} {link.right.source.alias} (rule J12)"
            todo = "compare such values, and leave this as a further condition"
            context.report.add(link.joined.source.at, f"{facts}; {todo}{more}")
            return
        sides = (part.left, part.right) if isinstance(part, exp.EQ) and inputs == {link.right.table.name} else ()
        constant = next((side for side in sides if side.find(exp.Column) is None), None)
        if constant is not None:
            time = f"{link.earlier[0].source.alias}.{link.earlier[0].table.event_time}"
            facts = f"{part.sql(comments=False)} is no key: a constant says nothing of the other input (rule J9)"
            todo = f"write CASE WHEN {time} IS NOT NULL THEN {constant.sql(comments=False)} END in place of it"
            context.report.add(link.joined.source.at, f"{facts}; {todo}{more}")
            return
    first, second = link.earlier[-1].source.alias, link.right.source.alias
    todo = f"write ON {first}.<column> = {second}.<column>{more}"
    facts = "there is no equality of columns, so every row would meet every row (rule J9)"
    context.report.add(link.joined.source.at, f"{facts}; {todo}")


def _broadcast_sides(link: Link, context: _Context) -> list[Relation]:
    sides = [link.right, *(link.earlier if len(link.earlier) == 1 else [])]
    named = (context.scope.by_input(name) for name in context.options.broadcast)
    return [relation for relation in named if relation is not None and relation in sides]


def _read_broadcast(link: Link, matching: Matching, sent: set[str], context: _Context) -> Step:
    if matching.keys:
        return {}
    chosen = _broadcast_sides(link, context)
    if not chosen:
        example = link.right.source.alias
        _check_keys(link, matching, f", or WITH ('{BROADCAST}' = '{example}') to join on time only", context)
        return {}
    side = chosen[0]
    sent.add(side.table.name)
    if link.type in EXISTENCE and side is not link.right:
        facts = f"each row of {side.source.alias!r} is emitted once, so it cannot be sent to all shards (rule J9)"
        context.report.add(context.options.at[BROADCAST], f"{facts}; name {link.right.source.alias!r}")
    if link.type in {"full", "right" if side is link.right else "left"}:
        facts = f"every row of {side.source.alias!r} is emitted, so it cannot be sent to all shards (rule J9)"
        context.report.add(
            context.options.at[BROADCAST], f"{facts}; name the other side, or make the JOIN an inner one"
        )
    return {"broadcast": side.table.name}


def _take_interval(step: Step, link: Link, matching: Matching, distances: Distances, context: _Context) -> str | None:
    """Add the step's bounds on time, and returns the input from which they count."""
    first, ms = link.earlier[0].table.name, context.options.ms
    # Options count from the first input of the SQL. If the step counts from the other, bounds are negated and swapped.
    from_first = context.query.sources[0].name == first
    if LOWER in ms:
        bound = Bound("lower", ms[LOWER]) if from_first else Bound("upper", -ms[LOWER])
        matching.limits.append(TimeBound(first, bound))
    if UPPER in ms:
        bound = Bound("upper", ms[UPPER]) if from_first else Bound("lower", -ms[UPPER])
        matching.limits.append(TimeBound(first, bound))
    if link.joined.within is not None:
        _add_within(link.joined.within, matching, link, distances, context)
    interval = interval_of(matching, link, distances, context.report)
    if interval is None:
        return None
    distances.add(link, interval)
    step["interval"] = {"of": interval.from_input, "lower": interval.lower, "upper": interval.upper}
    lateness = _read_lateness(interval, link, context)
    step |= {"allowedLateness": lateness} if lateness else {}
    return interval.from_input


def _add_within(within: Within, matching: Matching, link: Link, distances: Distances, context: _Context) -> None:
    """Add the bounds of WITHIN. In a chain they count from the latest row that is joined before, as in ksqlDB, where a
    joined row has this time: a condition says so, and the limits from the first input hold whichever row is latest."""
    first, right = link.earlier[0].table, link.right.table
    ends = within.before, within.after
    if len(link.earlier) == 1:
        lower, upper = ends if context.query.sources[0].name == first.name else ends[::-1]
        matching.limits += [TimeBound(first.name, Bound("lower", -lower)), TimeBound(first.name, Bound("upper", upper))]
        return
    ranges = [distances.between(relation.table.name, first.name) for relation in link.earlier]
    reaches = [reach for reach in ranges if reach is not None]
    before = takewhile(lambda other: other is not link, context.links)
    may_lack_first = any(other.type in {"right", "full"} for other in before)
    times = [exp.column(relation.table.event_time, table=relation.table.name) for relation in link.earlier]
    if (
        may_lack_first
        or len(reaches) < len(ranges)
        or len({relation.table.integer_time for relation in (*link.earlier, link.right)}) > 1
    ):
        facts = "WITHIN counts from the latest row that is joined before, and that is not known here"
        alias, earlier = link.right.source.alias, link.earlier[0].source.alias
        bound = f"{alias}.{right.event_time} BETWEEN {earlier}.{first.event_time} - INTERVAL ..."
        context.report.add(within.at, f"{facts}; write ON ... AND {bound}")
        matching.broken = True
        return
    latest = exp.Greatest(this=times[0], expressions=times[1:], ignore_nulls=True)
    before_ms, after_ms = (
        exp.Literal.number(ms)
        if right.integer_time
        else exp.Interval(this=exp.Literal.string(str(ms)), unit=exp.Var(this="MILLISECOND"))
        for ms in ends
    )
    matching.conditions.append(
        exp.Between(
            this=exp.column(right.event_time, table=right.name),
            low=exp.Sub(this=latest, expression=before_ms),
            high=exp.Add(this=latest.copy(), expression=after_ms),
        )
    )
    widest = max(high for _, high in reaches)  # the first row is among those of which the latest counts
    matching.limits += [
        TimeBound(first.name, Bound("lower", -within.before)),
        TimeBound(first.name, Bound("upper", widest + within.after)),
    ]


def _read_lateness(interval: IntervalBounds, link: Link, context: _Context) -> int:
    options, within = context.options, link.joined.within
    if within is not None and within.grace_at is not None:
        _check_grace(within.grace_at, (RETENTION, LATENESS), options, context.report)
        return within.grace
    if RETENTION not in options.ms:
        return options.ms.get(LATENESS, 0)
    retention = options.ms[RETENTION]
    if retention < interval.reach:
        needs = (
            f"is shorter than the wider bound, {format_duration(interval.reach)}: rows would go before their matches"
        )
        context.report.add(options.at[RETENTION], f"{needs}; keep them at least as long")
    return retention - interval.reach


def _read_as_of(link: Link, context: _Context) -> Step:
    source, first = link.right.source, link.earlier[0]
    origin: Relation | None = None
    if source.as_of is None:
        todo = f"list {first.table.name!r} behind {link.right.table.name!r} in spec.inputs"
        context.report.add(first.source.at, f"a table is not the first input of a job; {todo}")
    else:
        named = context.scope.resolve(source.as_of) if isinstance(source.as_of, exp.Column) else None
        origin = next((relation for relation in link.earlier if named == (relation, relation.table.event_time)), None)
        if origin is None:
            time = either([f"{relation.source.alias}.{relation.table.event_time}" for relation in link.earlier])
            origins = "the other input" if len(link.earlier) == 1 else "an input that is joined before"
            facts = f"the version is the one at the event time of {origins}"
            context.report.add(source.at, f"{facts}; write FOR SYSTEM_TIME AS OF {time}")
    if link.type not in {"inner", "left"}:
        context.report.add(source.at, "FOR SYSTEM_TIME goes with JOIN and LEFT JOIN only (rule A4); write one of these")
    ms = context.options.ms
    if HISTORY not in ms and not context.options.broken:
        todo = f"write WITH ('{HISTORY}' = '1h')"
        context.report.add(source.at, f"the SQL does not say how long old versions are kept (rule A2); {todo}")
    counted_from = {"of": origin.table.name} if origin is not None and origin is not first else {}
    grace = {"grace": ms[GRACE]} if ms.get(GRACE) else {}
    return {"asOf": {**counted_from, "historyRetention": ms.get(HISTORY), **grace}}
