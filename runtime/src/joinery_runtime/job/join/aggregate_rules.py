"""Cross-field rules of `spec.aggregate` of a StreamJoin, beside those of every job that aggregates
(`kinds.session.rules`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from joinery_runtime.job.join.steps import STEP_KINDS
from joinery_runtime.job.kinds.aggregate.model import WINDOW_KINDS, AggregateWindow
from joinery_runtime.job.kinds.base import WindowKind
from joinery_runtime.job.kinds.session.rules import AGGREGATE_RULES, GroupedDraft
from joinery_runtime.job.model.draft import Finding, JobDraft, Loc, dig, exactly_one, items
from joinery_runtime.job.model.types import ColumnType
from joinery_runtime.job.model.wording import either, listed, suggestion

_AT: Loc = ("spec", "aggregate")
_WINDOW: Loc = (*_AT, "window")


def broken_aggregate_rules(draft: JobDraft) -> Iterator[Finding]:
    """Every finding about a job that has an `aggregate`."""
    kind = _kind(draft) or WINDOW_KINDS[0]
    grouped = GroupedDraft(
        draft.data,
        draft.inputs,
        draft.steps,
        at=_AT,
        columns=_columns(draft),
        source="the job has",
        window=kind.columns,
        identity=kind.identity,
        row_words=kind.rows,
        needs_groups=kind.needs_groups,
    )
    for rule in _RULES:
        yield from rule(draft)
    for grouped_rule in AGGREGATE_RULES:
        yield from grouped_rule(grouped)


def _kind(draft: JobDraft) -> type[WindowKind] | None:
    return next((kind for kind in WINDOW_KINDS if dig(draft.data, *_WINDOW, kind.field) is not None), None)


def _columns(draft: JobDraft) -> Mapping[str, ColumnType | None] | None:
    """The columns of the inputs that the steps emit (E1) by `<input>.<column>`; None while a mistake hides one."""
    if len(draft.by_name) != len(draft.inputs) or any(source.types is None for source in draft.inputs):
        return None
    return {
        f"{source.name}.{column}": kind
        for source in draft.inputs
        if source.name not in draft.absent
        for column, kind in (source.types or {}).items()
    }


# --- the window ---------------------------------------------------------------------------------------------------


def _window(draft: JobDraft) -> Iterator[Finding]:
    window = dig(draft.data, *_WINDOW)
    if window is None:
        facts = f"is missing: without a window no group would ever end; name one of {listed(AggregateWindow.fields)}"
        yield _WINDOW, facts
        return
    yield from exactly_one(window, _WINDOW, AggregateWindow.fields)
    for kind in WINDOW_KINDS:
        yield from kind.problems(dig(window, kind.field), (*_WINDOW, kind.field))


def _time(draft: JobDraft) -> Iterator[Finding]:
    """Requires that the input whose event time counts is in every row that the joins make."""
    if len(draft.by_name) != len(draft.inputs) or not draft.inputs:
        return
    at, first = (*_WINDOW, "of"), draft.inputs[0].name or ""
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
    padded = _padded_inputs(draft)
    counted = name if isinstance(name, str) else first
    timed = [other for other, source in draft.by_name.items() if source.data.get("table") is None]
    whole = [other for other in timed if other not in padded]
    todo = f"write of: {either(whole)}" if whole else "write type: left, right or inner in the steps"
    if counted not in timed and draft.steps:
        facts = f"a version of {counted!r} may be older than its row by any time, so groups would never be complete"
        yield at, f"{facts} (rule N2); {todo}"
    elif counted in padded:
        facts = f"rows of {counted!r} may be missing, because {padded[counted]}, and a row without an event time is in"
        yield at, f"{facts} no window; {todo}"


def _padded_inputs(draft: JobDraft) -> dict[str, str]:
    """The inputs that are null in some of the joined rows, each with the reason."""
    padded: dict[str, str] = {}
    for step in draft.steps:
        kind, right = step.data.get("type", "inner"), step.right.name if step.right is not None else None
        reason = f"step {step.number + 1} is a {kind} join"
        if kind in {"left", "full"} and right is not None:
            padded.setdefault(right, reason)
        if kind in {"right", "full"}:
            padded |= {name: reason for name in step.left_names if name not in padded}
    return padded


def _kinds_of_steps(draft: JobDraft) -> Iterator[Finding]:
    """Reject steps that do not say which watermark they hand on."""
    for step in draft.steps:
        for field, rule in {kind.field: kind.chain_rule for kind in STEP_KINDS if not kind.chains}.items():
            if step.data.get(field) is not None:
                facts = f"no aggregate follows {field} steps{rule}"
                yield (*step.at, field), f"{facts}; write interval, or aggregate the output in a job of its own"


def _late(draft: JobDraft) -> Iterator[Finding]:
    at, late_data, kind = (*_AT, "lateData"), dig(draft.data, *_AT, "lateData"), _kind(draft)
    if late_data == "dlq" and draft.steps:
        todo = "write lateData: dlq in the steps, which read records"
        yield at, f"the rows that joins make are no records, so none can be a dead letter; write drop, and {todo}"
    elif late_data == "reopen" and kind is not None and not kind.reopens:
        yield at, f"reopen is for sessions, the {kind.field} windows that were emitted stay as they are; write drop"


# --- what is emitted ----------------------------------------------------------------------------------------------


def _select(draft: JobDraft) -> Iterator[Finding]:
    for i, item in enumerate(items(draft.data, "spec", "select")):
        if dig(item, "expression") is not None:
            facts = "groups, aggregates and columns of the window are emitted as they are"
            yield ("spec", "select", i, "expression"), f"{facts}; compute with `aggregate.compute`, or name a `column`"
        elif dig(item, "column") is None:
            yield ("spec", "select", i), "needs a column: a group, an aggregate or a column of the window"
    if dig(draft.data, "spec", "prefixes") is not None:
        yield ("spec", "prefixes"), "groups and aggregates name the columns; drop `prefixes`"


_RULES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (*(_window, _time, _kinds_of_steps, _late, _select),)
