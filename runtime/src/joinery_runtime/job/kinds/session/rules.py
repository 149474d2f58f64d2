"""The cross-field rules of a SessionWindow. Each yields the places that it finds wrong; missing fields silence a
rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.kinds.session.sessions import (
    EXACT_LIMIT,
    FROM_SQL,
    KEEPS_TYPE,
    NEEDED,
    OPTIONS,
    condition_text,
    has_order,
    shares_values,
    takes,
    takes_text,
)
from joinery_runtime.job.model import input_rules, output_rules
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.draft import (
    Finding,
    JobDraft,
    Loc,
    dig,
    exactly_one,
    input_draft,
    items,
    no_key,
    path_text,
    reference,
    repeats,
)
from joinery_runtime.job.model.expression_rules import (
    COLUMN_READERS,
    LIST_MAKER,
    expression_of_windows,
    list_facts,
    lists_as_texts,
)
from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.function_calls import declared_names
from joinery_runtime.job.model.output_rules import changelog_sources
from joinery_runtime.job.model.references import RETRACTED, ROW_NUMBER, SESSION_COLUMNS, SESSION_ID, WINDOW_START
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql import check_session_shape, table_of, translate_sessions

_SQL: Loc = ("spec", "sql")
_SELECT: Loc = ("spec", "select")
_NO_KEY = f"{RETRACTED!r} is not an output column that rows can be told by: it says which are taken back; drop it"


@dataclass(frozen=True, slots=True)
class GroupedDraft(JobDraft):
    """A job that aggregates. `at` is where its groups and aggregates are, `columns` are the columns that these may name
    (None while a mistake hides one), of which `lists` hold lists, and `source` says whose columns these are. `window`
    and `identity` are the `columns` and `identity` of the kind of window, whose rows are called `row_words` and which
    `needs_groups` or not."""

    at: Loc = ("spec",)
    columns: Mapping[str, ColumnType | None] | None = None
    lists: Collection[Any] = ()
    source: str = ""
    window: Sequence[str] = SESSION_COLUMNS
    identity: Sequence[str] = (SESSION_ID,)
    row_words: str = "sessions"
    needs_groups: bool = True

    def fields(self, name: str) -> Sequence[Any]:
        return items(self.data, *self.at, name)

    def output_name(self, column: Any) -> Any:
        """Return the name in the output of a column that no `select` renames: that of a group loses its input's. What
        is no name stays as it is."""
        is_known = isinstance(column, str) and column in (self.columns or {})
        ref = reference(column) if is_known and len(self.at) > 1 else None
        return ref.column if ref is not None else column

    @property
    def columns_of_rows(self) -> Mapping[str, ColumnType | None] | None:
        """The columns of the rows that are made; None while a mistake hides one. Only the core knows the types of
        aggregates."""
        groups, names = self.fields("groupBy"), [dig(call, "as") for call in self.fields("aggregates")]
        if self.columns is None or not all(isinstance(name, str) for name in (*groups, *names)):
            return None
        columns = {self.output_name(name): self.columns.get(name) for name in groups}
        return columns | dict.fromkeys((*self.window, *names))

    @property
    def lists_of_rows(self) -> list[Any]:
        """The columns of the rows that hold lists."""
        parts = [(dig(call, "function"), dig(call, "column"), dig(call, "as")) for call in self.fields("aggregates")]
        calls = [call for call in parts if all(part is None or isinstance(part, str) for part in call)]
        written = [name for name in self.fields("groupBy") if isinstance(name, str)]
        groups = [self.output_name(name) for name in written if name in self.lists]
        handed_on = [name for function, column, name in calls if function in KEEPS_TYPE and column in self.lists]
        return [*groups, *handed_on, *(name for function, _, name in calls if function == LIST_MAKER)]

    def numbered(self) -> GroupedDraft:
        """Return the job whose rows `topN` numbers (R6)."""
        totals = [dig(total, "as") for total in items(self.data, "spec", "topN", "totals")]
        return replace(self, window=(*self.window, ROW_NUMBER, *(name for name in totals if isinstance(name, str))))


def broken_rules(data: Mapping[str, Any]) -> list[Finding]:
    """Return every finding as (path, message), for a resource with its YAML field names."""
    sql = dig(data, *_SQL)
    return _broken_fields(data) if not isinstance(sql, str) or not sql else list(_broken_sql(data, sql))


def _broken_fields(data: Mapping[str, Any]) -> list[Finding]:
    draft = _read_draft(data)
    return [finding for rule in _RULES for finding in rule(draft)]


def _broken_sql(data: Mapping[str, Any], sql: str) -> Iterator[Finding]:
    """Apply the rules to what the SQL stands for; each finding is at the SQL."""
    spec, inputs = data["spec"], _read_draft(data).inputs
    for name in FROM_SQL:
        if spec.get(name):
            yield _SQL, f"{name} and sql are both named; keep one"
    table = table_of(inputs[0]) if inputs else None
    translation = translate_sessions(sql, table, declared_names()) if table is not None else None
    problems = translation.problems if translation is not None else check_session_shape(sql)
    yield from ((_SQL, problem) for problem in problems)
    rest = {name: value for name, value in spec.items() if name not in FROM_SQL}
    translated_fields = translation.fields if translation is not None and not problems else {}
    for at, message in _broken_fields({**data, "spec": {**rest, **translated_fields}}):
        if at[1:2] and at[1] in FROM_SQL:
            yield from [(_SQL, message)] if translated_fields else ()
        else:
            yield at, message


def _read_draft(data: Mapping[str, Any]) -> GroupedDraft:
    raw = dig(data, "spec", "input")
    source = input_draft(("spec", "input"), raw) if isinstance(raw, Mapping) else None
    if source is None:
        return GroupedDraft(data, (), ())
    return GroupedDraft(data, (source,), (), (source,), columns=source.types, source=f"{source.name!r} has")


# --- what a session is --------------------------------------------------------------------------------------------


def _check_groups(draft: GroupedDraft) -> Iterator[Finding]:
    at = (*draft.at, "groupBy")
    if draft.needs_groups and not draft.fields("groupBy"):
        yield (
            at,
            "is missing or empty: one session of the whole stream would hardly ever end, be held by one shard, and its "
            "state would not be bounded by key (rule S1); name at least one column",
        )
    names = draft.fields("groupBy")
    for i, name in repeats(names):
        yield (*at, i), f"groupBy names column {name!r} twice; drop one"
    for i, name in enumerate(names):
        yield from unknown((*at, i), name, draft)
        if isinstance(name, str) and (text := no_key(name, draft.columns or {})):
            yield (*at, i), text


def _check_gap_and_input(draft: GroupedDraft) -> Iterator[Finding]:
    if dig(draft.data, "spec") is not None and dig(draft.data, "spec", "gap") is None:
        facts = "is missing: it says how far apart consecutive rows of a session may be (rule S1)"
        yield ("spec", "gap"), f"{facts}; write for example gap: 30s"
    for source in draft.inputs:
        if source.data.get("table") is not None:
            facts = "versions of a table replace each other, a session holds events"
            yield (*source.at, "table"), f"{facts}; drop `table`"


# --- computed columns ---------------------------------------------------------------------------------------------


def _check_computed(draft: GroupedDraft) -> Iterator[Finding]:
    names = [dig(computed_column, "as") for computed_column in draft.fields("compute")]
    columns = set(draft.columns or ())
    if len(draft.inputs) == 1 and draft.at[-1] != "then":
        # The only input's columns have no input's name before them in the rows that are aggregated.
        columns |= set(draft.inputs[0].types or ())
    for i, name in repeats(names):
        yield (*draft.at, "compute", i, "as"), f"two computed columns are named {name!r}; rename one"
    for i, name in enumerate(names):
        if not isinstance(name, str):
            continue
        at = (*draft.at, "compute", i, "as")
        if name.startswith("$"):
            yield at, f"{name!r} starts with `$`, which engine columns do; choose another name"
        if name in columns:
            yield at, f"{draft.source} a column {name!r} already; choose another name"


# --- what is emitted ------------------------------------------------------------------------------------------------


def _check_names(draft: GroupedDraft) -> Iterator[Finding]:
    groups = [draft.output_name(name) for name in draft.fields("groupBy")]
    names = [dig(aggregate, "as") for aggregate in draft.fields("aggregates")]
    reserved = (*draft.window, RETRACTED)
    for i, name in enumerate(groups):
        if name in reserved:
            todo = f"give it another one with compute: [{{expression: {draft.fields('groupBy')[i]}, as: ...}}]"
            if draft.at[-1] == "then":
                todo = "leave it out: a row is aggregated in the window from which it comes"
            yield (*draft.at, "groupBy", i), f"{_reserved_name(name, draft)}; {todo}"
        elif name in groups[:i] and (reader := _next_reader(draft)) is not None:
            todo = f"name one with compute: [{{expression: {draft.fields('groupBy')[i]}, as: ...}}]"
            yield (*draft.at, "groupBy", i), f"{reader} would read two columns named {name!r}, of two inputs; {todo}"
        elif name in groups[:i] and not items(draft.data, *_SELECT) and len(draft.at) > 1:
            facts = f"two output columns would be named {name!r}, after columns of two inputs"
            yield (*draft.at, "groupBy", i), f"{facts}; name the columns with `select`, and one of these with `as`"
    for i, name in enumerate(names):
        if not isinstance(name, str):
            continue
        at = (*draft.at, "aggregates", i, "as")
        if name in reserved:
            yield at, f"{_reserved_name(name, draft)}; choose another name"
        elif name in groups:
            yield at, f"{name!r} is the name of a group column, which is emitted too (rule S6); choose another name"
        elif name in names[:i]:
            yield at, f"two aggregates are named {name!r} (rule S6); rename one"
        elif name.startswith("$"):
            yield at, f"{name!r} starts with `$`, which engine columns do; choose another name"


def _next_reader(draft: GroupedDraft) -> str | None:
    """Return the field whose step reads the rows of this aggregate; None: they are emitted."""
    if dig(draft.data, *draft.at, "then") is not None:
        return "then"
    return "topN" if dig(draft.data, "spec", "topN") is not None else None


def _check_select(draft: GroupedDraft) -> Iterator[Finding]:
    """Check the names of the output columns, and the expressions except for their types (G11)."""
    session_columns, chosen = _session_columns(draft), items(draft.data, *_SELECT)
    names = [dig(item, "as") or draft.output_name(dig(item, "column")) for item in chosen]
    own = draft.inputs[0].name if len(draft.inputs) == 1 and draft.at[-1] != "then" else None
    for i, item in enumerate(chosen):
        column, text, name, at = dig(item, "column"), dig(item, "expression"), names[i], (*_SELECT, i)
        yield from exactly_one(item, at, ("column", "expression"))
        if isinstance(text, str):
            yield from expression_of_windows(
                (*at, "expression"),
                text,
                "expression",
                session_columns,
                draft.row_words,
                own,
                lists=draft.lists_of_rows,
            )
            if name is None:
                yield at, "an expression has no name of its own; add one: as: <name>"
                continue
        if session_columns is not None and isinstance(column, str) and column not in session_columns:
            hint = suggestion(column, session_columns)
            yield (
                (*at, "column"),
                f"{column!r} is no column of these {draft.row_words}{hint}; columns are {listed(session_columns)}",
            )
        elif name is not None and name in names[:i]:
            yield at, f"two output columns are named {name!r} (rule S6); rename one with `as`"
        elif name == RETRACTED:
            yield at, f"{name!r} is the column that emitRetractions adds (rule S6); rename this one with `as`"
        elif isinstance(name, str) and name.startswith("$"):
            yield at, f"{name!r} starts with `$`, which engine columns do; rename it with `as`"


def _check_having(draft: GroupedDraft) -> Iterator[Finding]:
    """Check the syntax of `having`, its calls and its names. The core checks its types."""
    at, text = (*draft.at, "having"), dig(draft.data, *draft.at, "having")
    if not isinstance(text, str) or not text:
        return
    if dig(draft.data, *draft.at, "lateData") == "reopen" and dig(draft.data, *draft.at, "emitRetractions") is not True:
        facts = f"lateData is reopen, so {draft.row_words} that were emitted may stop meeting the condition"
        todo = "write emitRetractions: true" if SESSION_ID in draft.identity else "keep one of having and reopen"
        yield at, f"{facts}, and nothing takes them back (rule G7); {todo}"
    if dig(draft.data, *draft.at, "emit") is not None:
        facts = f"{draft.row_words} that were emitted early may stop meeting the condition, and what they were is not"
        yield at, f"{facts} stored (rule G8); keep one of having and emit"
    own = draft.inputs[0].name if len(draft.inputs) == 1 else None
    columns = _session_columns(draft)
    yield from expression_of_windows(at, text, "condition", columns, draft.row_words, own, lists=draft.lists_of_rows)


def _check_conditions_of_outputs(draft: GroupedDraft) -> Iterator[Finding]:
    """Reject conditions of outputs on columns that a later row may change: an output would keep a row whose newer form
    does not meet the condition. Reject also those that read a list as a text."""
    sources, columns = list(changelog_sources(draft.data, draft.at)), _row_columns(draft) or {}
    of_rows = draft.lists_of_rows
    lists = [name for name, column in columns.items() if column in of_rows]
    key = [*draft.fields("groupBy"), *draft.identity]
    for at, output in output_rules.outputs(draft.data):
        text = output.get("when")
        if not isinstance(text, str):
            continue
        with suppress(SqlglotError):  # which is reported when the output is compiled
            tree = parse_tree(text)
            names = {node.name for node in tree.find_all(exp.Column)}
            changing = sorted(name for name in names if name in columns and columns[name] not in key)
            if sources and changing:
                facts = f"{sources[0].facts} ({sources[0].field}), so {listed(map(repr, changing))} may change, and the"
                todo = f"name {listed(key)} only, or filter in the reader of the output"
                yield (*at, "when"), f"{facts} output would keep a row that no longer meets the condition; {todo}"
            yield from lists_as_texts((*at, "when"), tree, lists)


def _reserved_name(name: str, draft: GroupedDraft) -> str:
    return f"{draft.row_words} have a column {name!r} of their own (rule S6)"


def _check_late_data(draft: GroupedDraft) -> Iterator[Finding]:
    yield from output_rules.late_without_dead_letters(draft, (*draft.at, "lateData"))


def _check_keys_known(draft: GroupedDraft) -> Iterator[Finding]:
    columns = _row_columns(draft)
    retracts = dig(draft.data, *draft.at, "emitRetractions") is True
    for at, message in output_rules.unknown_columns(draft, list(columns) if columns is not None else None):
        retracted = dig(draft.data, *at) == RETRACTED
        # A key says to which session a row belongs; a header may say that the row is retracted.
        if not (retracted and retracts and ("headers" in at or "select" in at)):
            yield at, _NO_KEY if retracted else message


def _check_retractions(draft: GroupedDraft) -> Iterator[Finding]:
    """Require the column that tells a retraction from its row in every output, and keys by which it finds that row."""
    if dig(draft.data, *draft.at, "emitRetractions") is not True:
        return
    for at, output in output_rules.outputs(draft.data):
        chosen = items(output, "select")
        if chosen and not any(dig(item, "column") == RETRACTED and not dig(item, "as") for item in chosen):
            yield (*at, "select"), f"a retraction could not be told from a row: add {{column: {RETRACTED}}}"
    groups = draft.fields("groupBy")
    todo = f"name {SESSION_ID} and group columns only, or drop emitRetractions (rule S6)"
    for output_at, output in output_rules.outputs(draft.data):
        at = (*output_at, "postgres", "upsertKey")
        key, named = items(output, "postgres", "upsertKey"), _columns_of(output, draft) or {}
        if not key or not all(isinstance(name, str) for name in key):
            continue
        key_columns = [named.get(name, name) for name in key]
        if SESSION_ID not in key_columns and not all(name in key_columns for name in (WINDOW_START, *groups)):
            yield at, f"a retraction would delete the row that another session has under this key; {todo}"
        for i, name in enumerate(key):
            if name in named and key_columns[i] not in (SESSION_ID, WINDOW_START, *groups):
                facts = f"{name!r} may change while a session lasts, and no retraction finds its older row"
                yield (*at, i), f"{facts}; {todo}"


def _check_key_is_selected(draft: GroupedDraft) -> Iterator[Finding]:
    """Require group columns and session_id in the output if there is no upsertKey: the table has a row for each."""
    for at, output in output_rules.outputs(draft.data):
        target, named = output.get("postgres"), _columns_of(output, draft)
        if not isinstance(target, Mapping) or target.get("upsertKey") or named is None:
            continue
        missing = [name for name in (*draft.fields("groupBy"), *draft.identity) if name not in named.values()]
        if missing:
            own = listed(draft.identity)
            facts = f"rows of the table are replaced by group and {own} (rule S6), and {listed(missing)} is left out"
            select_at = (*at, "select") if output.get("select") is not None else _SELECT
            yield select_at, f"{facts}; select it, or write {path_text((*at[1:], 'postgres', 'upsertKey'))}"


def _session_columns(draft: GroupedDraft) -> list[str] | None:
    """Return the columns that sessions have: groups, those of the window, aggregates. None while a mistake hides
    one."""
    groups = draft.fields("groupBy")
    aggregates = [dig(aggregate, "as") for aggregate in draft.fields("aggregates")]
    names = [*groups, *draft.window, *aggregates]
    is_known = (groups or not draft.needs_groups) and all(isinstance(name, str) for name in names)
    return names if is_known else None


def _row_columns(draft: GroupedDraft) -> dict[str, str] | None:
    """Return the columns that a key of an output may name, each with the column of sessions that it shows; empty for an
    expression over these."""
    session_columns, chosen = _session_columns(draft), items(draft.data, *_SELECT)
    if session_columns is None or not chosen:
        return {draft.output_name(name): name for name in session_columns} if session_columns is not None else None
    shown = ["" if dig(item, "expression") is not None else dig(item, "column") for item in chosen]
    names = [dig(item, "as") or draft.output_name(dig(item, "column")) for item in chosen]
    pairs = list(zip(names, shown, strict=True))
    all_known = all(isinstance(name, str) and column in {*session_columns, ""} for name, column in pairs)
    return dict(pairs) if all_known else None


def _columns_of(output: Mapping[str, Any], draft: GroupedDraft) -> dict[str, str] | None:
    """Return the columns that an output has, each with the column of sessions that it shows."""
    columns = _row_columns(draft)
    if columns is not None and dig(draft.data, *draft.at, "emitRetractions") is True:
        columns = {**columns, RETRACTED: RETRACTED}
    return output_rules.columns_of(output, columns)


# --- aggregates -------------------------------------------------------------------------------------------------------


def unknown(at: Loc, name: Any, draft: GroupedDraft) -> Iterator[Finding]:
    """Yield a finding unless an input or `compute` has a column of this name; none while columns are unknown."""
    if draft.columns is None or not isinstance(name, str) or not name:
        return
    computed = (dig(computed_column, "as") for computed_column in draft.fields("compute"))
    columns = [*draft.columns, *(alias for alias in computed if isinstance(alias, str))]
    if name not in columns:
        yield at, f"{draft.source} no column {name!r}{suggestion(name, columns)}; columns are {listed(columns)}"


def _check_columns(draft: GroupedDraft) -> Iterator[Finding]:
    for i, aggregate in enumerate(draft.fields("aggregates")):
        at: Loc = (*draft.at, "aggregates", i)
        function, column = dig(aggregate, "function"), dig(aggregate, "column")
        if function == "count" and column is not None:
            todo = f"drop `column`, or write function: count_col to count the rows where {column!r} is not null"
            yield (*at, "column"), f"count counts rows and takes no column; {todo}"
        elif isinstance(function, str) and function != "count" and column is None:
            yield (*at, "column"), f"is missing: {function} is of a column; name one"
        else:
            yield from unknown((*at, "column"), column, draft)
            # Only the core knows the types of computed columns.
            kind = (draft.columns or {}).get(column) if isinstance(column, str) else None
            if kind is not None and isinstance(function, str) and not takes(function, kind.name):
                facts = f"{function} takes {takes_text(function)}, and column {column!r} is {kind}"
                yield (*at, "column"), f"{facts}; choose another function or type"
            elif column in draft.lists and function in COLUMN_READERS:
                facts = list_facts(column)
                yield (*at, "column"), f"{facts}; write another function, such as last or count_distinct"


def _check_options(draft: GroupedDraft) -> Iterator[Finding]:
    for i, aggregate in enumerate(draft.fields("aggregates")):
        at: Loc = (*draft.at, "aggregates", i)
        function = dig(aggregate, "function")
        for name, functions in OPTIONS.items():
            is_named = dig(aggregate, name) is not None
            if is_named and isinstance(function, str) and function not in functions:
                yield (*at, name), f"is for {listed(functions)}, and this is {function}; drop it"
            elif not is_named and name in NEEDED and function in functions:
                yield (*at, name), f"is missing: {function} needs it; {_NEEDED_FOR[name]}"
        if function == "count_distinct" and dig(aggregate, "method") == "hll" and dig(aggregate, "limit") is not None:
            yield (*at, "limit"), "is for method: exact, a sketch takes any number of values; drop it"
        by = dig(aggregate, "by")
        yield from unknown((*at, "by"), by, draft)
        kind = (draft.columns or {}).get(by) if isinstance(by, str) else None
        if kind is not None and not has_order(kind.name):
            facts = f"takes all types but boolean and binary, and column {by!r} is {kind}"
            yield (*at, "by"), f"{facts}; choose another column"
        elif by in draft.lists:
            yield (*at, "by"), f"{list_facts(by)}; choose another column"


_NEEDED_FOR = {
    "by": "name the column whose least or greatest value chooses the row",
    "percentile": "write for example percentile: 0.95",
}


def _check_one_limit(draft: GroupedDraft) -> Iterator[Finding]:
    """Reject different limits for aggregates that share a set of values in the state."""
    limits: dict[tuple[Any, ...], Any] = {}
    for i, aggregate in enumerate(draft.fields("aggregates")):
        function, column = dig(aggregate, "function"), dig(aggregate, "column")
        limit = dig(aggregate, "limit") or EXACT_LIMIT
        keeps_values = function in OPTIONS["limit"] and dig(aggregate, "method") != "hll"
        if not keeps_values or not isinstance(column, str):
            continue
        where = dig(aggregate, "where")
        condition = condition_text(where, draft.columns or ()) if isinstance(where, str) else ""
        shared = (shares_values(function), column, condition)
        if limits.setdefault(shared, limit) != limit:
            facts = f"another aggregate above keeps the values of {column!r} with limit {limits[shared]}"
            yield (*draft.at, "aggregates", i, "limit"), f"{facts}, and they are kept once; write the same limit"


AGGREGATE_RULES: tuple[Callable[[GroupedDraft], Iterator[Finding]], ...] = (
    *(
        _check_groups,
        _check_computed,
        _check_columns,
        _check_options,
        _check_one_limit,
        _check_late_data,
        _check_names,
        _check_having,
    ),
)
"""The rules of everything that aggregates."""

EMITTED_RULES: tuple[Callable[[GroupedDraft], Iterator[Finding]], ...] = (
    *(_check_select, _check_conditions_of_outputs, _check_keys_known, _check_retractions, _check_key_is_selected),
)
"""The rules of the aggregate whose rows are emitted."""

_RULES: tuple[Callable[[GroupedDraft], Iterator[Finding]], ...] = (
    *(*input_rules.RULES, _check_gap_and_input),
    *(*AGGREGATE_RULES, *EMITTED_RULES, *output_rules.RULES),
)
