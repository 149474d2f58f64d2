"""Cross-field rules of what stands behind the joins of a StreamJoin: of `spec.aggregate`, beside those of each job that
aggregates (`kinds.session.rules`), and of the rankings, such as `spec.deduplicate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from joinery_runtime.job.join.select_rules import check_expression
from joinery_runtime.job.join.steps import STEP_KINDS
from joinery_runtime.job.kinds.aggregate.model import WINDOW_KINDS, AggregateWindow
from joinery_runtime.job.kinds.aggregate.windows import ALIGNED_WINDOWS, OwnWindow, SessionOfGroup
from joinery_runtime.job.kinds.base import WindowKind, milliseconds
from joinery_runtime.job.kinds.ranking import (
    LATE_BEFORE,
    NO_LATE_ROW_TO_RANK,
    NO_SESSIONS,
    OF_AGGREGATE,
    RANKING_KINDS,
    STAYS,
    Deduplication,
    TopN,
)
from joinery_runtime.job.kinds.session.rules import AGGREGATE_RULES, EMITTED_RULES, GroupedDraft
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.draft import (
    Finding,
    JobDraft,
    Loc,
    StepDraft,
    dig,
    exactly_one,
    items,
    no_key,
    padded_inputs,
    repeats,
)
from joinery_runtime.job.model.expression_rules import expression_of_windows, list_facts
from joinery_runtime.job.model.output_rules import changelog_sources, late_without_dead_letters
from joinery_runtime.job.model.references import RANKS, ROW_NUMBER, VALUES_OF_OTHERS
from joinery_runtime.job.model.wording import either, listed, suggestion

_AT: Loc = ("spec", "aggregate")
_WINDOW: Loc = (*_AT, "window")
_THEN: Loc = (*_AT, "then")


def broken_aggregate_rules(draft: JobDraft) -> Iterator[Finding]:
    """Yield every finding about a job that has an `aggregate`."""
    kind = _window_kind(draft) or WINDOW_KINDS[0]
    grouped = GroupedDraft(
        draft.data,
        draft.inputs,
        draft.steps,
        draft.sources,
        at=_AT,
        columns=_emitted_columns(draft),
        source="the job has",
        window=kind.columns,
        identity=kind.identity,
        row_words=kind.rows,
        needs_groups=kind.needs_groups,
    )
    following = None
    if dig(draft.data, *_THEN) is not None:  # which aggregates the rows of the first aggregate
        columns, lists = grouped.columns_of_rows, grouped.lists_of_rows
        following = replace(
            grouped, at=_THEN, columns=columns, lists=lists, source="the first aggregate has", needs_groups=False
        )
    emitted = following or grouped
    yield from _check_window(draft)
    yield from _check_counted_time(draft, (*_WINDOW, "of"), ("groups would never be complete", "no window"))
    yield from _check_steps_before(draft, "aggregate")
    yield from _check_late_rows(draft)
    if following is not None:
        yield from _check_then(following, grouped.row_words)
    if dig(draft.data, "spec", "prefixes") is not None:
        yield ("spec", "prefixes"), "groups and aggregates name the columns; drop `prefixes`"
    for aggregate in (grouped, following) if following is not None else (grouped,):
        for grouped_rule in AGGREGATE_RULES:
            yield from grouped_rule(aggregate)
    if dig(draft.data, "spec", TopN.field) is not None:
        yield from _check_top_of_windows(emitted)
        emitted = emitted.numbered()
    for emitted_rule in EMITTED_RULES:
        yield from emitted_rule(emitted)


def _window_kind(draft: JobDraft) -> type[WindowKind] | None:
    return next((kind for kind in WINDOW_KINDS if dig(draft.data, *_WINDOW, kind.field) is not None), None)


def _emitted_columns(draft: JobDraft) -> Mapping[str, ColumnType | None] | None:
    """Return the columns of the inputs that the steps emit (E1) by `<input>.<column>`; None while a mistake hides
    one."""
    if len(draft.by_name) != len(draft.inputs) or any(source.types is None for source in draft.inputs):
        return None
    return {
        f"{source.name}.{column}": kind
        for source in draft.inputs
        if source.name not in draft.absent
        for column, kind in (source.types or {}).items()
    }


# --- the window ---------------------------------------------------------------------------------------------------


def _check_window(draft: JobDraft) -> Iterator[Finding]:
    window = dig(draft.data, *_WINDOW)
    if window is None:
        facts = f"is missing: without a window no group would ever end; name one of {listed(AggregateWindow.fields)}"
        yield _WINDOW, facts
        return
    yield from exactly_one(window, _WINDOW, AggregateWindow.fields)
    for kind in WINDOW_KINDS:
        yield from kind.problems(dig(window, kind.field), (*_WINDOW, kind.field))


def _check_counted_time(draft: JobDraft, at: Loc, words: tuple[str, str]) -> Iterator[Finding]:
    """Require that the input whose event time counts, which the field `at` names, is in every row that the joins make.
    `words` say what would happen otherwise, and in what a row without an event time is."""
    if len(draft.by_name) != len(draft.inputs) or not draft.inputs:
        return
    first = draft.inputs[0].name or ""
    name = dig(draft.data, *at)
    if isinstance(name, str) and name not in draft.by_name:
        yield at, f"{name!r} is not an input{suggestion(name, draft.by_name)}; inputs are {listed(draft.by_name)}"
        return
    if isinstance(name, str) and (absent := draft.absent.get(name)) is not None:
        yield (
            at,
            f"{absent.reason}; write of: {either([other for other in draft.by_name if other not in draft.absent])}",
        )
        return
    padded = padded_inputs(draft.steps)
    counted = name if isinstance(name, str) else first
    timed = [other for other, source in draft.by_name.items() if source.data.get("table") is None]
    unpadded = [other for other in timed if other not in padded]
    todo = f"write of: {either(unpadded)}" if unpadded else "write type: left, right or inner in the steps"
    if counted not in timed and draft.steps:
        facts = f"a version of {counted!r} may be older than its row by any time, so {words[0]}"
        yield at, f"{facts} (rule N2); {todo}"
    elif counted in padded:
        facts = f"rows of {counted!r} may be missing, because {padded[counted]}, and a row without an event time is in"
        yield at, f"{facts} {words[1]}; {todo}"


def _check_steps_before(draft: JobDraft, step: str, *, in_windows: bool = True) -> Iterator[Finding]:
    """Reject joins that do not say which times they hand on (N3) to the `step` behind them. Unless `in_windows`, it
    does not follow window steps."""
    for join in draft.steps:
        for kind in STEP_KINDS:
            if dig(join.data, *kind.path()) is None:
                continue
            if kind.why_last:
                facts = f"no {step} can follow, because {kind.why_last} (rule N3)"
                yield (*join.at, *kind.path()), f"{facts}; {step} the output in a job of its own"
            elif kind.windowed and not in_windows:
                facts = f"no {step} follows {kind.field} steps"
                yield (*join.at, kind.field), f"{facts}; write interval, or {step} the output in a job of its own"


def _check_late_rows(draft: JobDraft) -> Iterator[Finding]:
    kind = _window_kind(draft)
    yield from _reject_joined_dead_letters(draft, (*_AT, "lateData"))
    if dig(draft.data, *_AT, "lateData") == "dlq" and dig(draft.data, "spec", Deduplication.field) is not None:
        yield (*_AT, "lateData"), LATE_BEFORE
    if dig(draft.data, *_AT, "emitRetractions") is True and kind is not None and not kind.renames:
        facts = f"is for sessions, whose ids change: a {kind.field} window keeps its key, so no row is taken back"
        yield (*_AT, "emitRetractions"), f"{facts}; leave it out"


def _reject_joined_dead_letters(draft: JobDraft, at: Loc) -> Iterator[Finding]:
    """Reject `lateData: dlq` behind joins; `at` is the path of the `lateData`."""
    if dig(draft.data, *at) == "dlq" and draft.steps:
        todo = "write lateData: dlq in the steps, which read records"
        yield at, f"the rows that joins make are no records, so none can be a dead letter; write drop, and {todo}"


def _check_then(draft: GroupedDraft, row_words: str) -> Iterator[Finding]:
    """Reject what the second aggregate cannot read (G10), or compute of the first one's rows (G11), except for
    types."""
    todo = "or aggregate the output in a job of its own"
    for source in changelog_sources(draft.data, _AT):
        yield (*_AT, source.field), f"{source.facts}, and then aggregates rows that stay; {source.todo}, {todo}"
    if dig(draft.data, *_WINDOW, SessionOfGroup.field) is not None:
        facts = "each session ends at a time of its own, and then aggregates windows that end together"
        yield (*_WINDOW, SessionOfGroup.field), f"{facts}; write tumbling, hopping or cumulative, {todo}"
    for i, aggregate in enumerate(items(draft.data, *_THEN, "aggregates")):
        if dig(aggregate, "where") is not None:
            facts = (
                "is no field of the aggregates of then; write `having` of the first aggregate, which leaves rows out"
            )
            yield (*_THEN, "aggregates", i, "where"), f"{facts}, {todo}"
    yield from _check_own_window(draft, (*_THEN, "window"))
    for i, item in enumerate(draft.fields("compute")):
        text, at = dig(item, "expression"), (*_THEN, "compute", i, "expression")
        if isinstance(text, str):
            yield from expression_of_windows(at, text, "expression", draft.columns, row_words, lists=draft.lists)


# --- rankings ---------------------------------------------------------------------------------------------------------


def broken_ranking_rules(draft: JobDraft) -> Iterator[Finding]:
    """Yield every finding about the rankings that a job names."""
    named = [kind for kind in RANKING_KINDS if dig(draft.data, "spec", kind.field) is not None]
    aggregated = dig(draft.data, "spec", "aggregate") is not None
    in_windows = any(map(_puts_into_windows, draft.steps))
    if len(named) > 1 and not aggregated:
        if milliseconds(dig(draft.data, "spec", TopN.field, "allowedLateness")):
            yield ("spec", TopN.field, "allowedLateness"), NO_LATE_ROW_TO_RANK
        if dig(draft.data, "spec", TopN.field, "lateData") == "dlq":
            yield ("spec", TopN.field, "lateData"), NO_LATE_ROW_TO_RANK
    for kind in named:
        at: Loc = ("spec", kind.field)
        for name, text in kind.missing.items():
            alternatives = kind.missing_unless.get(name, ())
            is_optional = aggregated and "aggregate" in alternatives
            is_optional |= in_windows and name == "window"
            is_optional |= "topN.totals" in alternatives and dig(draft.data, "spec", TopN.field, "totals") is not None
            if not is_optional and dig(draft.data, *at, name) is None:
                yield (*at, name), f"is missing: {text}"
        if aggregated and kind is TopN:
            continue
        yield from (
            ((*at, name), text) for name, text in OF_AGGREGATE.items() if dig(draft.data, *at, name) is not None
        )
        of_joins = kind is TopN and in_windows and dig(draft.data, *at, "window") is None
        if of_joins:
            yield from _check_rows_in_windows(draft, TopN.of_joins)
            yield from _check_windows_of_joins(draft)
        yield from _check_ranked_keys((*at, "by"), draft, _emitted_columns(draft), "write <input>.<column>, of")
        yield from _check_ranked_order(draft, (*at, "orderBy"))
        yield from _check_own_window(draft, (*at, "window"))
        if not of_joins:
            yield from _check_counted_time(draft, (*at, "of"), ("rows would wait for ever", "no order"))
        yield from _check_steps_before(draft, kind.field, in_windows=kind is TopN)
        yield from _reject_joined_dead_letters(draft, (*at, "lateData"))
        yield from late_without_dead_letters(draft, (*at, "lateData"))
        for source in draft.inputs if not draft.steps else ():
            if source.data.get("table") is not None:
                facts = f"versions of a table replace each other, and {kind.field} is for events"
                yield (*source.at, "table"), f"{facts}; drop `table`"


def _check_top_of_windows(aggregate: GroupedDraft) -> Iterator[Finding]:
    """Yield every finding about a `topN` that ranks the rows of an aggregate (R6), which has no sessions and no
    changelog."""
    data, at = aggregate.data, ("spec", TopN.field)
    yield from _check_rows_in_windows(aggregate, TopN.of_windows)
    for source in changelog_sources(data, _AT):
        yield (*_AT, source.field), f"{source.facts}, {STAYS.format(todo=source.todo)}"
    if dig(data, *_WINDOW, SessionOfGroup.field) is not None:
        yield (*_WINDOW, SessionOfGroup.field), NO_SESSIONS
    columns = aggregate.columns_of_rows
    if columns is not None and ROW_NUMBER in columns:
        facts = f"topN numbers the rows, and {ROW_NUMBER!r} is already a column of the aggregate (rule R6)"
        yield at, f"{facts}; give that column another name, with `as` or `compute`"
    yield from _check_ranked_keys((*at, "by"), aggregate, columns, "columns are")
    yield from _check_totals((*at, "totals"), aggregate, columns)
    lists = aggregate.lists_of_rows
    chosen = items(data, "spec", "select")
    named = [dig(item, "as") for item in chosen if dig(item, "expression") is not None]
    ranked = None if columns is None else [*columns, *(name for name in named if isinstance(name, str))]
    orders = [(*at, "orderBy"), *((*at, "totals", i, "orderBy") for i in range(len(items(data, *at, "totals"))))]
    for order_at in orders:
        for i, item in enumerate(items(data, *order_at)):
            text, written_at = dig(item, "expression"), (*order_at, i, "expression")
            if isinstance(text, str):
                yield from expression_of_windows(
                    written_at, text, "expression", ranked, aggregate.row_words, lists=lists
                )
    for i, total in enumerate(items(data, *at, "totals")):
        text = dig(total, "expression")
        if isinstance(text, str):
            value_at = (*at, "totals", i, "expression")
            yield from expression_of_windows(value_at, text, "expression", ranked, aggregate.row_words, lists=lists)
    condition = dig(data, *at, "having")
    if isinstance(condition, str):
        emitted = aggregate.numbered().columns_of_rows
        yield from expression_of_windows(
            (*at, "having"), condition, "condition", emitted, aggregate.row_words, lists=lists
        )


def _check_rows_in_windows(draft: JobDraft, reasons: Mapping[str, str]) -> Iterator[Finding]:
    """Reject fields of a `topN` whose rows are in windows already, for these reasons."""
    for name, text in reasons.items():
        value = dig(draft.data, "spec", TopN.field, name)
        is_zero = name == "allowedLateness" and milliseconds(value) == 0
        if value is not None and not is_zero and (name, value) != ("lateData", "drop"):
            yield ("spec", TopN.field, name), text


def _puts_into_windows(step: StepDraft) -> bool:
    """Say whether the step joins in windows that end together."""
    kinds = (kind for kind in STEP_KINDS if kind.windowed and not kind.why_last)
    return any(dig(step.data, *kind.path()) is not None for kind in kinds)


def _check_windows_of_joins(draft: JobDraft) -> Iterator[Finding]:
    """Require that each joined row is in a window, in which `topN` ranks it (R8)."""
    windowed = [_puts_into_windows(step) for step in draft.steps]
    for step in draft.steps[windowed.index(True) + 1 :]:
        right = step.data.get("right")
        if not _puts_into_windows(step) and step.data.get("type") in {"right", "full"}:
            facts = f"rows of {right!r} that match nothing are in no window, in which topN would rank them (rule R8)"
            yield (*step.at, "type"), f"{facts}; write type: left or inner, or join {right!r} before the windows"


def _check_totals(
    at: Loc, aggregate: GroupedDraft, columns: Mapping[str, ColumnType | None] | None
) -> Iterator[Finding]:
    """Check the totals over rows that have these `columns` (None: unknown), except for types (R9)."""
    totals = items(aggregate.data, *at)
    for i, name in repeats([dig(total, "as") for total in totals]):
        yield (*at, i, "as"), f"names column {name!r} twice; give one another name"
    for i, total in enumerate(totals):
        function, column, name = (dig(total, field) for field in ("function", "column", "as"))
        if columns is not None and isinstance(name, str) and name in {*columns, ROW_NUMBER}:
            yield (*at, i, "as"), f"{name!r} is already a column of the rows; give it another name"
        yield from _check_order_of_total((*at, i), total, dig(aggregate.data, *at[:-1], "orderBy"))
        takes_no_column, expression = function in RANKS or function == "count", dig(total, "expression")
        if takes_no_column and expression is not None:
            yield (*at, i, "expression"), "count and ranks are of rows, and other functions take a value; drop it"
        if column is not None and expression is not None:
            yield (*at, i, "expression"), "the value is named twice, by column and expression; keep one"
        elif takes_no_column != (column is None) and (takes_no_column or expression is None):
            todo = "drop column" if takes_no_column else "name the column of the rows whose values count"
            facts = "count and ranks are of rows, and other functions take a column"
            yield (*at, i, "column"), f"{facts}; {todo}"
        elif columns is not None and isinstance(column, str) and column not in columns:
            facts = f"{column!r} is no column of the rows{suggestion(column, columns)}"
            yield (*at, i, "column"), f"{facts}; columns are {listed(columns)}"
        elif column in aggregate.lists_of_rows:
            yield (*at, i, "column"), f"{list_facts(column)}; choose another column"


def _check_order_of_total(at: Loc, total: Any, order_of_rows: Any) -> Iterator[Finding]:
    """Check the fields of a total that stand beside its order (R10, R11). `order_of_rows` is `topN.orderBy`, None if it
    is missing."""
    function, order = dig(total, "function"), dig(total, "orderBy")
    if function in {*RANKS, *VALUES_OF_OTHERS} and order is None and order_of_rows is None:
        todo = "write for example orderBy: [{expression: revenue, direction: desc}]"
        yield (*at, "orderBy"), f"is missing: {function} needs an order of the rows; {todo}"
    is_running = order is not None and function not in {*RANKS, *VALUES_OF_OTHERS}
    if dig(total, "frame") is not None and not is_running:
        facts = "is for running totals: sum, avg, min, max and count with an orderBy of their own"
        yield (*at, "frame"), f"{facts}; drop it{', or write orderBy' if order is None else ''}"
    if dig(total, "offset") is not None and function not in {"lag", "lead"}:
        yield (*at, "offset"), f"is for lag and lead, and this is {function}; drop it"
    if (function == "ntile") != (dig(total, "buckets") is not None):
        is_needed = function == "ntile"
        todo = "write for example buckets: 4" if is_needed else "drop it"
        yield (*at, "buckets"), f"{'is missing' if is_needed else 'is for ntile'}; {todo}"


def _check_ranked_keys(
    at: Loc, draft: JobDraft, columns: Mapping[str, ColumnType | None] | None, todo: str
) -> Iterator[Finding]:
    """Check the columns of the key. `columns` are those that the rows have (None: unknown), which follow `todo`."""
    names = items(draft.data, *at)
    for i, name in repeats(names):
        yield (*at, i), f"names column {name!r} twice; drop one"
    for i, name in enumerate(names):
        if columns is None or not isinstance(name, str):
            continue
        if name not in columns:
            facts = f"{name!r} is no column of the rows{suggestion(name, columns)}"
            yield (*at, i), f"{facts}; {todo} {listed(columns)}"
        elif text := no_key(name, columns):
            yield (*at, i), text


def _check_ranked_order(draft: JobDraft, at: Loc) -> Iterator[Finding]:
    columns = _emitted_columns(draft)
    for i, item in enumerate(items(draft.data, *at)):
        text = dig(item, "expression")
        if not isinstance(text, str):
            continue
        yield from check_expression((*at, i, "expression"), text, draft)
        if columns is not None and (kind := columns.get(text)) is not None and kind.name == "json":
            facts = f"{text!r} is json, which has no order"
            yield (*at, i, "expression"), f"{facts}; sort by a part of it, by its path"


def _check_own_window(draft: JobDraft, at: Loc) -> Iterator[Finding]:
    window = dig(draft.data, *at)
    if window is not None:
        yield from exactly_one(window, at, OwnWindow.fields)
        for kind in ALIGNED_WINDOWS:
            yield from kind.problems(dig(window, kind.field), (*at, kind.field))
