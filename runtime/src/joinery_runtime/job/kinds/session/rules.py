"""The cross-field rules of a SessionWindow. Each yields the places that it finds wrong; missing fields silence a
rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from joinery_runtime.job.kinds.session.sessions import EXACT_LIMIT, FROM_SQL, takes, takes_text
from joinery_runtime.job.model import input_rules, output_rules
from joinery_runtime.job.model.draft import Finding, JobDraft, Loc, dig, input_draft, items, no_key, path_text, repeats
from joinery_runtime.job.model.references import RETRACTED, SESSION_COLUMNS, SESSION_ID, WINDOW_START
from joinery_runtime.job.model.types import ColumnType
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql import check_session_shape, table_of, translate_sessions

_SQL: Loc = ("spec", "sql")
_GROUPS: Loc = ("spec", "groupBy")
_SELECT: Loc = ("spec", "select")
_ENGINE = (*SESSION_COLUMNS, RETRACTED)
_NO_KEY = f"{RETRACTED!r} is not an output column that rows can be told by: it says which are taken back; drop it"


def broken_rules(data: Mapping[str, Any]) -> list[Finding]:
    """Every finding as (path, message), for a resource with its YAML field names."""
    sql = dig(data, *_SQL)
    return _broken(data) if not isinstance(sql, str) or not sql else list(_broken_sql(data, sql))


def _broken(data: Mapping[str, Any]) -> list[Finding]:
    draft = _take_apart(data)
    return [finding for rule in _RULES for finding in rule(draft)]


def _broken_sql(data: Mapping[str, Any], sql: str) -> Iterator[Finding]:
    """Applies the rules to what the SQL stands for; each finding is at the SQL."""
    spec, inputs = data["spec"], _take_apart(data).inputs
    for name in FROM_SQL:
        if spec.get(name):
            yield _SQL, f"{name} and sql are both named; keep one"
    table = table_of(inputs[0]) if inputs else None
    translation = translate_sessions(sql, table) if table is not None else None
    problems = translation.problems if translation is not None else check_session_shape(sql)
    yield from ((_SQL, problem) for problem in problems)
    rest = {name: value for name, value in spec.items() if name not in FROM_SQL}
    translated_fields = translation.fields if translation is not None and not problems else {}
    for at, message in _broken({**data, "spec": {**rest, **translated_fields}}):
        if at[1:2] and at[1] in FROM_SQL:
            yield from [(_SQL, message)] if translated_fields else ()
        else:
            yield at, message


def _take_apart(data: Mapping[str, Any]) -> JobDraft:
    raw = dig(data, "spec", "input")
    return JobDraft(data, (input_draft(("spec", "input"), raw),) if isinstance(raw, Mapping) else (), ())


# --- what a session is --------------------------------------------------------------------------------------------


def _groups(draft: JobDraft) -> Iterator[Finding]:
    if not dig(draft.data, *_GROUPS):
        yield (
            _GROUPS,
            "is missing or empty: one session of the whole stream would hardly ever end, be held by one shard, and its "
            "state would not be bounded by key (rule S1); name at least one column",
        )
    names = items(draft.data, *_GROUPS)
    for i, name in repeats(names):
        yield (*_GROUPS, i), f"groupBy names column {name!r} twice; drop one"
    types = (draft.inputs[0].types if draft.inputs else None) or {}
    for i, name in enumerate(names):
        yield from unknown((*_GROUPS, i), name, draft)
        if isinstance(name, str) and (text := no_key(name, types)):
            yield (*_GROUPS, i), text


def _gap(draft: JobDraft) -> Iterator[Finding]:
    if dig(draft.data, "spec") is not None and dig(draft.data, "spec", "gap") is None:
        facts = "is missing: it says how far apart consecutive rows of a session may be (rule S1)"
        yield ("spec", "gap"), f"{facts}; write for example gap: 30s"


def _table(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.inputs:
        if source.data.get("table") is not None:
            facts = "versions of a table replace each other, a session holds events"
            yield (*source.at, "table"), f"{facts}; drop `table`"


# --- computed columns ---------------------------------------------------------------------------------------------


def _computed(draft: JobDraft) -> Iterator[Finding]:
    names = [dig(computed_column, "as") for computed_column in items(draft.data, "spec", "compute")]
    for i, name in repeats(names):
        yield ("spec", "compute", i, "as"), f"two computed columns are named {name!r}; rename one"
    for i, name in enumerate(names):
        if not isinstance(name, str):
            continue
        at = ("spec", "compute", i, "as")
        if name.startswith("$"):
            yield at, f"{name!r} starts with `$`, which engine columns do; choose another name"
        for source in draft.inputs:
            if source.types is not None and name in source.types:
                yield at, f"input {source.name!r} has a column {name!r} already; choose another name"


# --- what is emitted ------------------------------------------------------------------------------------------------


def _names(draft: JobDraft) -> Iterator[Finding]:
    groups = items(draft.data, *_GROUPS)
    names = [dig(aggregate, "as") for aggregate in items(draft.data, "spec", "aggregates")]
    for i, name in enumerate(groups):
        if name in _ENGINE:
            todo = f"give it another one with compute: [{{expression: {name}, as: ...}}]"
            yield (*_GROUPS, i), f"{_reserved_name(name)}; {todo}"
    for i, name in enumerate(names):
        if not isinstance(name, str):
            continue
        at = ("spec", "aggregates", i, "as")
        if name in _ENGINE:
            yield at, f"{_reserved_name(name)}; choose another name"
        elif name in groups:
            yield at, f"{name!r} is the name of a group column, which is emitted too (rule S6); choose another name"
        elif name in names[:i]:
            yield at, f"two aggregates are named {name!r} (rule S6); rename one"
        elif name.startswith("$"):
            yield at, f"{name!r} starts with `$`, which engine columns do; choose another name"


def _select(draft: JobDraft) -> Iterator[Finding]:
    session_columns, chosen = _session_columns(draft), items(draft.data, *_SELECT)
    names = [dig(item, "as") or dig(item, "column") for item in chosen]
    for i, item in enumerate(chosen):
        column, name, at = dig(item, "column"), names[i], (*_SELECT, i)
        if session_columns is not None and isinstance(column, str) and column not in session_columns:
            hint = suggestion(column, session_columns)
            yield (
                (*at, "column"),
                f"{column!r} is no column of these sessions{hint}; columns are {listed(session_columns)}",
            )
        elif name in names[:i]:
            yield at, f"two output columns are named {name!r} (rule S6); rename one with `as`"
        elif name == RETRACTED:
            yield at, f"{name!r} is the column that emitRetractions adds (rule S6); rename this one with `as`"
        elif isinstance(name, str) and name.startswith("$"):
            yield at, f"{name!r} starts with `$`, which engine columns do; rename it with `as`"


def _reserved_name(name: str) -> str:
    return f"sessions have a column {name!r} of their own (rule S6)"


def _late(draft: JobDraft) -> Iterator[Finding]:
    yield from output_rules.late_without_dead_letters(draft, ("spec", "lateData"))


def _keys_known(draft: JobDraft) -> Iterator[Finding]:
    columns = _row_columns(draft)
    retracts = dig(draft.data, "spec", "emitRetractions") is True
    for at, message in output_rules.unknown_columns(draft, list(columns) if columns is not None else None):
        retracted = dig(draft.data, *at) == RETRACTED
        # A key says to which session a row belongs; a header may say that the row is retracted.
        if not (retracted and retracts and ("headers" in at or "select" in at)):
            yield at, _NO_KEY if retracted else message


def _retracted_selected(draft: JobDraft) -> Iterator[Finding]:
    """Require the column that tells a retraction from its row in every output."""
    if dig(draft.data, "spec", "emitRetractions") is not True:
        return
    for at, output in output_rules.outputs(draft.data):
        chosen = items(output, "select")
        if chosen and not any(dig(item, "column") == RETRACTED and not dig(item, "as") for item in chosen):
            yield (*at, "select"), f"a retraction could not be told from a row: add {{column: {RETRACTED}}}"


def _takes_back_its_own(draft: JobDraft) -> Iterator[Finding]:
    if dig(draft.data, "spec", "emitRetractions") is not True:
        return
    groups = items(draft.data, *_GROUPS)
    todo = f"name {SESSION_ID} and group columns only, or drop emitRetractions (rule S6)"
    for place, output in output_rules.outputs(draft.data):
        at: Loc = (*place, "postgres", "upsertKey")
        key, named = items(output, "postgres", "upsertKey"), _columns_of(output, draft) or {}
        if not key or not all(isinstance(name, str) for name in key):
            continue
        key_columns = [named.get(name, name) for name in key]
        if SESSION_ID not in key_columns and not all(name in key_columns for name in (WINDOW_START, *groups)):
            yield at, f"a retraction would delete the row that another session has under this key; {todo}"
        for i, name in enumerate(key):
            if name in named and key_columns[i] not in (SESSION_ID, WINDOW_START, *groups):
                yield (
                    (*at, i),
                    f"{name!r} may change while a session lasts, and no retraction finds its older row; {todo}",
                )


def _selects_its_key(draft: JobDraft) -> Iterator[Finding]:
    """Requires group columns and session_id in the output if there is no upsertKey: the table has a row for each."""
    for at, output in output_rules.outputs(draft.data):
        target, named = output.get("postgres"), _columns_of(output, draft)
        if not isinstance(target, Mapping) or target.get("upsertKey") or named is None:
            continue
        missing = [name for name in (*items(draft.data, *_GROUPS), SESSION_ID) if name not in named.values()]
        if missing:
            facts = (
                f"rows of the table are replaced by group and {SESSION_ID} (rule S6), and {listed(missing)} is left out"
            )
            place = (*at, "select") if output.get("select") is not None else _SELECT
            yield place, f"{facts}; select it, or write {path_text((*at[1:], 'postgres', 'upsertKey'))}"


def _session_columns(draft: JobDraft) -> list[str] | None:
    """The columns that sessions have: groups, SESSION_COLUMNS, aggregates. None while a mistake hides one."""
    groups = items(draft.data, *_GROUPS)
    aggregates = [dig(aggregate, "as") for aggregate in items(draft.data, "spec", "aggregates")]
    names = [*groups, *SESSION_COLUMNS, *aggregates]
    return names if groups and all(isinstance(name, str) for name in names) else None


def _row_columns(draft: JobDraft) -> dict[str, str] | None:
    """The columns that a key of an output may name, each with the column of sessions that it shows."""
    session_columns, chosen = _session_columns(draft), items(draft.data, *_SELECT)
    if session_columns is None or not chosen:
        return dict(zip(session_columns, session_columns, strict=True)) if session_columns is not None else None
    pairs = [(dig(item, "as") or dig(item, "column"), dig(item, "column")) for item in chosen]
    all_known = all(isinstance(name, str) and column in session_columns for name, column in pairs)
    return dict(pairs) if all_known else None


def _columns_of(output: Mapping[str, Any], draft: JobDraft) -> dict[str, str] | None:
    """The columns that an output has, each with the column of sessions that it shows."""
    columns = _row_columns(draft)
    if columns is not None and dig(draft.data, "spec", "emitRetractions") is True:
        columns = {**columns, RETRACTED: RETRACTED}
    return output_rules.columns_of(output, columns)


# --- aggregates -------------------------------------------------------------------------------------------------------


def unknown(at: Loc, name: Any, draft: JobDraft) -> Iterator[Finding]:
    """Yields a finding unless the input or `compute` has a column of this name; none while columns are unknown."""
    types = draft.inputs[0].types if draft.inputs else None
    if types is None or not isinstance(name, str) or not name:
        return
    computed = (dig(computed_column, "as") for computed_column in items(draft.data, "spec", "compute"))
    columns = [*types, *(alias for alias in computed if isinstance(alias, str))]
    if name not in columns:
        hint = suggestion(name, columns)
        yield at, f"{draft.inputs[0].name!r} has no column {name!r}{hint}; columns are {listed(columns)}"


def _columns(draft: JobDraft) -> Iterator[Finding]:
    for i, aggregate in enumerate(items(draft.data, "spec", "aggregates")):
        at: Loc = ("spec", "aggregates", i)
        function, column = dig(aggregate, "function"), dig(aggregate, "column")
        if function == "count" and column is not None:
            todo = f"drop `column`, or write function: count_col to count the rows where {column!r} is not null"
            yield (*at, "column"), f"count counts rows and takes no column; {todo}"
        elif isinstance(function, str) and function != "count" and column is None:
            yield (*at, "column"), f"is missing: {function} is of a column; name one"
        else:
            yield from unknown((*at, "column"), column, draft)
            yield from _type((*at, "column"), function, column, draft)


def _type(at: Loc, function: Any, column: Any, draft: JobDraft) -> Iterator[Finding]:
    """Checks the type of an aggregate's column. Only the core knows the types of computed columns."""
    types = (draft.inputs[0].types if draft.inputs else None) or {}
    kind: ColumnType | None = types.get(column) if isinstance(column, str) else None
    if kind is not None and isinstance(function, str) and not takes(function, kind.name):
        facts = f"{function} takes {takes_text(function)}, and column {column!r} is {kind}"
        yield at, f"{facts}; choose another function or type"


def _options(draft: JobDraft) -> Iterator[Finding]:
    for i, aggregate in enumerate(items(draft.data, "spec", "aggregates")):
        at: Loc = ("spec", "aggregates", i)
        function = dig(aggregate, "function")
        for name in ("method", "limit"):
            if dig(aggregate, name) is not None and isinstance(function, str) and function != "count_distinct":
                yield (*at, name), f"is for count_distinct, and this is {function}; drop it"
        if function == "count_distinct" and dig(aggregate, "method") == "hll" and dig(aggregate, "limit") is not None:
            yield (*at, "limit"), "is for method: exact, a sketch takes any number of values; drop it"


def _one_limit(draft: JobDraft) -> Iterator[Finding]:
    """Reject different limits for exact counts of one column, which share a set of values in the state."""
    limits: dict[str, Any] = {}
    for i, aggregate in enumerate(items(draft.data, "spec", "aggregates")):
        column, limit = dig(aggregate, "column"), dig(aggregate, "limit") or EXACT_LIMIT
        exact = dig(aggregate, "function") == "count_distinct" and dig(aggregate, "method") != "hll"
        if exact and isinstance(column, str) and limits.setdefault(column, limit) != limit:
            facts = f"column {column!r} is counted with limit {limits[column]} above"
            yield ("spec", "aggregates", i, "limit"), f"{facts}, and its values are kept once; write the same limit"


_OF_AGGREGATES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (_columns, _options, _one_limit)

_RULES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (
    *(*input_rules.RULES, _table, _groups, _gap, _computed),
    *(
        *_OF_AGGREGATES,
        _late,
        _names,
        _select,
        _keys_known,
        _retracted_selected,
        _selects_its_key,
        _takes_back_its_own,
        *output_rules.RULES,
    ),
)
