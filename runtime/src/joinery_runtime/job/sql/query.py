"""Takes a SELECT apart into a `Query`: its inputs, joins, conditions and groups, as written.

Nothing is resolved here: `scope` finds what names mean, `joins` and `sessions` say what each kind of job makes of the
parts. A part that the job's form does not read is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from joinery_runtime.job.model.expression_tree import split_ands
from joinery_runtime.job.model.references import JoinType
from joinery_runtime.job.sql.clauses import JoinKind, WindowClause, Within
from joinery_runtime.job.sql.derived import Columns, EventTimes
from joinery_runtime.job.sql.parse import WITHIN, Parsed, parse_select
from joinery_runtime.job.sql.report import NO_LATERAL, UNION, Form, Report, TextPosition, node_position
from joinery_runtime.job.sql.select_tree import (
    CONDITION,
    DESCRIPTOR,
    FIRST,
    NUMBER_ALIAS,
    NUMBERED,
    OUTER_NAME,
    REJECTED,
    ExistenceTest,
    existence_test,
    set_conditions,
)

_WORDS = {
    "group": "GROUP BY",
    "order": "ORDER BY",
    "with_": "WITH",
    "windows": "WINDOW",
    "laterals": "LATERAL",
}

_NO_SUB_QUERY = "a sub-query is not supported; use columns of the inputs"

_TYPES: dict[str, JoinType] = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}
_EXISTENCE_TYPES: dict[str, JoinType] = {"SEMI": "semi", "ANTI": "anti"}


@dataclass(frozen=True, slots=True)
class Source:
    """An input as FROM or JOIN names it; `alias` is its name in the other parts. A rejected source has no name. `as_of`
    is the time of FOR SYSTEM_TIME AS OF. `hidden`: a semi or anti join tests whether it has a match, so only the
    conditions of this join can name it (rule E1). `nested`: they are those of a sub-query. `condition` is that of a
    sub-query in FROM which stood here: a filter of the input itself. `window_time` is the time that a table function
    names for its windows. `quoted` and `quoted_alias` say whether the name and the alias are in quotation marks."""

    name: str
    alias: str
    quoted: bool
    at: TextPosition
    as_of: exp.Expr | None = None
    hidden: bool = False
    nested: bool = False
    condition: exp.Expr | None = None
    window_time: exp.Expr | None = None
    quoted_alias: bool = False


@dataclass(frozen=True, slots=True)
class JoinClause:
    """One JOIN, or a sub-query in WHERE that tests for a match. `unsupported` says what it has in place of a supported
    type and ON. `within` is its bound in ksqlDB's words."""

    source: Source
    type: JoinType
    on: exp.Expr | None
    unsupported: tuple[str, ...] = ()
    within: Within | None = None


@dataclass(frozen=True, slots=True)
class NextGroups:
    """A SELECT with GROUP BY around another one, which is called `alias` in it."""

    alias: str
    at: TextPosition
    items: tuple[exp.Expr, ...]
    groups: tuple[exp.Expr, ...]
    having: exp.Expr | None


@dataclass(frozen=True, slots=True)
class Query:
    """The parts of a SELECT. `first` is what FROM names (None: nothing), `joined` are the others, in text order, those
    of sub-queries in WHERE last; `where` is without these. `groups` are the entries of GROUP BY, `grouped` says whether
    there is one. `qualify` are the conditions of QUALIFY that number rows, or the last groups; those on the key alone
    are part of `where` or of HAVING, as they leave out all rows of a key. `numbered`: the groups are of rows that are
    numbered. `start` and `group_at` are the positions of SELECT and GROUP BY, `changes` and `final` those of EMIT
    CHANGES and EMIT FINAL (None: there is none). `then` is the SELECT around this one that groups its groups (None:
    there is none)."""

    start: TextPosition
    first: Source | None
    joined: tuple[JoinClause, ...]
    items: tuple[exp.Expr, ...]
    where: exp.Expr | None
    groups: tuple[exp.Expr, ...]
    grouped: bool
    group_at: TextPosition
    having: exp.Expr | None
    qualify: tuple[exp.Expr, ...]
    window: WindowClause | None
    changes: TextPosition | None
    final: TextPosition | None
    options: Sequence[Token]
    then: NextGroups | None = None
    numbered: bool = False

    @property
    def sources(self) -> tuple[Source, ...]:
        return (*([self.first] if self.first is not None else []), *(joined.source for joined in self.joined))

    def with_repeats(self, repeats: Mapping[str, str]) -> Query:
        """Return the query in which a source that reads an input again has its alias as its name. `repeats` are the
        inputs by such aliases."""

        def renamed(source: Source) -> Source:
            is_repeat = repeats.get(source.alias) == source.name
            return replace(source, name=source.alias, quoted=source.quoted_alias) if is_repeat else source

        joined = tuple(replace(join, source=renamed(join.source)) for join in self.joined)
        return replace(self, first=renamed(self.first) if self.first is not None else None, joined=joined)

    @property
    def kinds(self) -> tuple[JoinKind, ...]:
        """The kinds of its joins, each once, in their order."""
        return tuple(dict.fromkeys(map(self.kind_of, self.joined)))

    def kind_of(self, join: JoinClause) -> JoinKind:
        if self.window is not None:
            return self.window.kind
        if join.source.as_of is not None or (len(self.joined) == 1 and self.sources[0].as_of is not None):
            return "asof"
        return "interval"


def read_query(
    sql: str, report: Report, form: Form, columns: Columns, event_times: EventTimes | None = None
) -> Query | None:
    """Read the text; None if it is not one SELECT, and the report says why. `columns` and `event_times` are those of
    the job's inputs; an input that is missing is not known. A form without joins needs no times."""
    parsed = parse_select(sql, report, form, columns, event_times)
    if parsed is None:
        return None
    select = parsed.select.meta.get(FIRST, parsed.select)
    start, where, group = (select.args.get(part) for part in ("from_", "where", "group"))
    conditions, tests = list(split_ands(where.this)) if where is not None else [], list[ExistenceTest]()
    if form.tests_existence:
        tests = [test for node in conditions if (test := existence_test(node)) is not None]
        conditions = [node for node in conditions if node not in [test.node for test in tests]]
    is_numbered = bool(select.meta.get(NUMBERED))
    numbering, of_keys = _split_qualify(select if is_numbered else parsed.select)
    if is_numbered or parsed.select.args.get("group") is None:
        conditions += of_keys
    elif of_keys:
        moved = exp.Having(this=exp.and_(*of_keys, copy=False))
        set_conditions(parsed.select, "having", exp.Having, parsed.select.args.get("having"), moved)
    then, having = _read_next(parsed, report) if select is not parsed.select else None, select.args.get("having")
    for part in [select, parsed.select] if then is not None else [select]:
        _reject_other_parts(part, parsed, report, form, [test.query for test in tests])
    by_tests = [_read_test(test, conditions, report) for test in tests]
    if having is not None and group is None:
        facts = "HAVING is about groups, and there is no GROUP BY"
        report.add(parsed.position_of("HAVING"), f"{facts}; write GROUP BY, or the condition into WHERE")
    return Query(
        start=parsed.position_of("SELECT"),
        first=_read_source(start.this, report) if start is not None else None,
        joined=(*(_read_join(join, report) for join in select.args.get("joins") or []), *by_tests),
        items=tuple(select.expressions),
        where=exp.and_(*conditions, copy=False) if conditions else None,
        groups=_read_groups(group, parsed, report) if group is not None and "group" in form.parts else (),
        grouped=group is not None,
        group_at=parsed.position_of("GROUP BY"),
        having=having.this if having is not None else None,
        qualify=tuple(numbering),
        window=parsed.clauses.window,
        changes=parsed.clauses.changes,
        final=parsed.clauses.final,
        options=parsed.clauses.options,
        then=then,
        numbered=is_numbered,
    )


def _read_next(parsed: Parsed, report: Report) -> NextGroups:
    select = parsed.select
    having, start = select.args.get("having"), select.args["from_"]
    return NextGroups(
        start.this.alias_or_name,
        parsed.position_of("GROUP BY"),
        tuple(select.expressions),
        _read_groups(select.args["group"], parsed, report),
        having.this if having is not None else None,
    )


def _split_qualify(select: exp.Select) -> tuple[Sequence[exp.Expr], Sequence[exp.Expr]]:
    """Return the conditions of QUALIFY, those on columns of PARTITION BY alone last. An alias of the select list stands
    for its expression."""
    clause = select.args.get("qualify")
    if clause is None:
        return [], []
    numbers = {item.alias: item.this for item in select.expressions if item.unalias().find(exp.Window) is not None}
    for column in [*clause.find_all(exp.Column)]:
        if not column.table and column.name in numbers:
            number = numbers[column.name].copy()
            number.meta[NUMBER_ALIAS] = column.name
            column.replace(number)
    conditions = [*split_ands(clause.this)]
    keys = [key for window in clause.find_all(exp.Window) for key in window.args.get("partition_by") or []]
    of_keys = []
    for condition in conditions:
        columns = [*condition.find_all(exp.Column)]
        alike = [any(_is_same_column(column, key) for key in keys) for column in columns]
        if columns and all(alike) and condition.find(exp.Window, exp.Query) is None:
            of_keys.append(condition)
    return [condition for condition in conditions if condition not in of_keys], of_keys


def _is_same_column(column: exp.Column, other: exp.Expr) -> bool:
    """Say whether both are the same column, with or without the name of its input."""
    if not isinstance(other, exp.Column) or other.name != column.name:
        return False
    return column.table in {other.table, ""} or not other.table


def _reject_other_parts(
    select: exp.Select, parsed: Parsed, report: Report, form: Form, tests: Sequence[exp.Expr]
) -> None:
    rejected = {**form.rejected, **(form.rejected_of_groups if select.args.get("group") is not None else {})}
    for name, value in select.args.items():
        if value and name not in form.parts:
            at = parsed.position_of(_WORDS.get(name, name.strip("_").upper()))
            report.add(at, f"is not supported: {rejected.get(name, form.rest)}")
    for query in select.find_all(exp.Query):
        # `_read_source` reports a sub-query in place of an input, also behind LATERAL.
        if query is not select and not isinstance(query.parent, exp.Query | exp.From | exp.Join | exp.Lateral):
            text = _instead_of_value(query) if form.tests_existence else _NO_SUB_QUERY
            if form.tests_existence and isinstance(query.parent, exp.Exists | exp.In):
                todo = "write [NOT] EXISTS or IN as a condition of its own, with AND, into the WHERE of the job"
                text = f"a sub-query is not supported here; {todo}"
            if not any(query is test for test in tests):
                report.add(node_position(query), text)


def _instead_of_value(query: exp.Expr) -> str:
    """Say what to write for a sub-query that gives a value."""
    table = query.find(exp.Table)
    if table is None:
        return _NO_SUB_QUERY
    name = table.name
    joined = f"write JOIN {name} <alias> ON <keys and a bound on time>"
    if query.unnest().find(exp.AggFunc) is None:
        return f"a sub-query gives no value here; {joined}, and select its column"
    facts = f"a sub-query gives no value here, and {name} has no end after which it would be known"
    todo = f"for rows of {name} that belong to a row {joined}, and GROUP BY with a window"
    return f"{facts}; {todo}; for one value of all rows let another job aggregate them, and JOIN its output as a table"


def _read_groups(group: exp.Expr, parsed: Parsed, report: Report) -> tuple[exp.Expr, ...]:
    more = [name for name, value in group.args.items() if value and name != "expressions"]
    sets = [
        node for node in group.expressions if isinstance(node, exp.Cube | exp.Rollup | exp.GroupingSets | exp.Tuple)
    ]
    if more or sets:
        facts = "a job has one set of groups, so GROUPING SETS, ROLLUP and CUBE are not supported"
        problem = f"{facts}; write a job for each set, or group by all the columns"
        report.add(parsed.position_of("GROUP BY"), problem)
    groups = [node for node in group.expressions if node not in sets]
    # The columns of sets count as groups, so that nothing else is said about them.
    listed = [*sets, *(node for name in more if isinstance(group.args[name], list) for node in group.args[name])]
    columns = {column.sql(comments=False): column for node in listed for column in node.find_all(exp.Column)}
    texts = {node.sql(comments=False) for node in groups}
    return (*groups, *(column for text, column in columns.items() if text not in texts))


def _read_join(join: exp.Join, report: Report) -> JoinClause:
    if not join.method and join.kind in _EXISTENCE_TYPES and join.side in {"", "LEFT"}:
        source = replace(_read_source(join.this, report), hidden=True)
        return JoinClause(source, _EXISTENCE_TYPES[join.kind], join.args.get("on"), within=join.meta.get(WITHIN))
    kinds = {"", "OUTER"} if join.side else {"", "INNER", "CROSS"}
    is_supported = not join.method and join.side in _TYPES and join.kind in kinds
    unsupported = []
    if not is_supported:
        kind = " ".join(filter(None, (join.method, join.side, join.kind)))
        todo = "write JOIN, LEFT JOIN, RIGHT JOIN, FULL JOIN, LEFT SEMI JOIN or LEFT ANTI JOIN"
        if join.method == "NATURAL":
            todo = "name the columns: JOIN ... USING (<columns>)"
        unsupported.append(f"a {kind} join is not supported; {todo}")
    source = _read_source(join.this, report)
    on, within = join.args.get("on"), join.meta.get(WITHIN)
    return JoinClause(source, _TYPES.get(join.side, "inner"), on, tuple(unsupported), within)


# --- tests for a match ------------------------------------------------------------------------------------------------


def _read_test(test: ExistenceTest, conditions: Sequence[exp.Expr], report: Report) -> JoinClause:
    """Read the sub-query as a semi or an anti join; the source of one that is rejected has no name. `conditions` are
    the other ones of WHERE."""
    at, select = node_position(test.node), test.query.unnest()
    join_type: JoinType = "anti" if test.negated else "semi"
    rejected = JoinClause(Source("", "", False, at, hidden=True, nested=True), join_type, None)
    more = {name for name, value in select.args.items() if value} - {"expressions", "from_", "where"}
    if not isinstance(select, exp.Select) or more or select.args.get("from_") is None:
        todo = "write (SELECT 1 FROM <input> <alias> WHERE <conditions>), with nothing else"
        report.add(at, f"a sub-query that tests for a match reads one input; {todo}")
        return rejected
    if select.find(exp.AggFunc, exp.Window) is not None:
        facts = "a sub-query with an aggregate has a row in any case"
        report.add(at, f"{facts}; write (SELECT 1 FROM <input> <alias> WHERE <conditions>)")
        return rejected
    source = replace(_read_source(select.args["from_"].this, report), hidden=True, nested=True)
    where = select.args.get("where")
    parts = [where.this] if where is not None else []
    if test.value is not None:
        column = select.expressions[0].unalias().unnest() if len(select.expressions) == 1 else None
        if not isinstance(column, exp.Column) or isinstance(test.value, exp.Tuple):
            todo = "write EXISTS with an equality for each column"
            report.add(at, f"IN compares one value with one column of the sub-query; {todo}")
            return rejected
        if test.negated and not (_excludes_null(column, parts) and _excludes_null(test.value, conditions)):
            text, inner = test.value.sql(comments=False), f"{source.alias}.{column.name}"
            named = source.name if source.alias == source.name else f"{source.name} {source.alias}"
            facts = f"NOT IN emits nothing while the sub-query has a NULL, and no row whose {text} is NULL (rule E3)"
            todo = f"write NOT EXISTS (SELECT 1 FROM {named} WHERE {inner} = {text} AND ...)"
            report.add(
                at, f"{facts}; {todo}, or add `{inner} IS NOT NULL` to the sub-query and `{text} IS NOT NULL` to WHERE"
            )
            return rejected
        if not column.table:
            column.set("table", exp.to_identifier(source.alias))
        for outer in test.value.find_all(exp.Column):
            outer.meta[OUTER_NAME] = True
        parts = [exp.EQ(this=column, expression=test.value), *parts]
    on = exp.and_(*parts, copy=False) if parts else None
    return JoinClause(source, join_type, on)


def _excludes_null(value: exp.Expr, conditions: Sequence[exp.Expr]) -> bool:
    """Say whether one of the conditions is `value IS NOT NULL`, with or without the name of its input."""
    tested = [
        part.this.unnest().this.unnest()
        for condition in conditions
        for part in split_ands(condition)
        if isinstance(part, exp.Not) and isinstance(part.this.unnest(), exp.Is)
        if isinstance(part.this.unnest().expression, exp.Null)
    ]
    if not isinstance(value, exp.Column):
        return value in tested
    return any(_is_same_column(value, node) for node in tested)


def _read_source(table: exp.Expr, report: Report) -> Source:
    """Read an input as FROM and JOIN name it; anything else is reported."""
    if table.meta.get(REJECTED):
        return Source("", table.alias_or_name, False, node_position(table))
    plain = isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier)
    version = table.args.get("version")
    as_of = None
    if isinstance(version, exp.Version) and version.name == "TIMESTAMP" and version.args.get("kind") == "AS OF":
        as_of = version.expression  # FOR SYSTEM_TIME AS OF
    read = {"this", "alias", *(["version"] if as_of is not None else [])}
    extra = [name for name, value in table.args.items() if value and name not in read]
    alias = table.args.get("alias")
    if not plain or extra or (alias is not None and alias.args.get("columns")):
        label = "a sub-query" if isinstance(table, exp.Query) else "this"
        if isinstance(table, exp.Unnest | exp.Lateral):
            query, text = table.find(exp.Query), "a job computes no query for each row in FROM; write "
            tested = query.find(exp.Table) if query is not None else None
            if query is None:
                text = NO_LATERAL
            elif tested is None:
                text += "its expressions into the select list"
            else:
                text += f"JOIN {tested.name} <alias> ON <keys and a bound on time>"
                if query.find(exp.AggFunc) is not None:
                    text += ", and GROUP BY columns of the row and a window"
                elif query.find(exp.Limit, exp.Fetch) is not None:
                    number = "PARTITION BY <keys>, TUMBLE(<event time>, INTERVAL '1' HOUR) ORDER BY <value>"
                    text += f", or read {tested.name} alone, and QUALIFY ROW_NUMBER() OVER ({number}) <= 10"
            report.add(node_position(table), text)
            return Source("", table.alias_or_name, False, node_position(table))
        todo = UNION if isinstance(table.this, exp.Union) else "name an input of the job: FROM <input> [alias]"
        report.add(node_position(table), f"{label} is not supported here; {todo}")
        return Source("", table.alias_or_name, False, node_position(table))
    at = node_position(table) if as_of is None else TextPosition(node_position(table).start, table.name)
    return Source(
        table.name,
        table.alias_or_name,
        bool(table.this.args.get("quoted")),
        at,
        as_of,
        condition=table.meta.get(CONDITION),
        window_time=table.meta.get(DESCRIPTOR),
        quoted_alias=alias is not None and bool(alias.this.args.get("quoted")),
    )
