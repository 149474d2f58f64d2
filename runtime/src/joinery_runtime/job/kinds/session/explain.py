"""Explains what a job aggregates: groups and windows, when their rows are emitted, and how long they stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.base import BYTES, COMPUTED_BYTES, ENGINE_ROW_BYTES, SidePlan, StepPlan, limits_text
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.kinds.session.sessions import SESSIONS_PART, Aggregate
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.resource import Job, OutputField
from joinery_runtime.job.model.wording import changelog_text

# A session's row also says whether it is gone, the event time of its first row, and what has become of it.
_SESSION_ROW_BYTES = ENGINE_ROW_BYTES + 1 + 8 + 1 + 1
# Guesses: a session has few distinct values; an exact count lists them, and so does a sketch while it holds few.
_DISTINCT_VALUES, _SKETCH_BYTES = 8, 48
_LISTED_VALUES = 16  # of a session, for the functions that keep its values
_TIMED = frozenset({"first", "last", "min_by", "max_by"})  # their states have an event time
_STATES = {
    **dict.fromkeys(("var_pop", "var_samp", "stddev_pop", "stddev_samp"), "variance"),
    **dict.fromkeys(("median", "percentile_cont", "percentile_disc", "approx_percentile"), "percentile"),
    "string_agg": "array_agg",
}


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Whose rows are aggregated, in words. `time` is the input whose event time counts, `watermark` the name of what
    this time has reached, which trails the rows by `lag` (ms). `types` are the columns that the aggregation may name,
    `part` is the part of the state, and `where` a condition on the rows. `from_steps`: joins made the rows.
    `of_windows`: an aggregate made them, each at the last millisecond of its window (G10); `same_windows`: its windows
    are also those of this aggregation. `never_late` says why none is late.
    `selected` are the columns that are emitted of its rows, if it is the last step."""

    rows_of: str
    time: str
    watermark: str
    lag: int
    types: Mapping[str, ColumnType]
    part: str
    where: str | None = None
    from_steps: bool = False
    of_windows: bool = False
    same_windows: bool = False
    never_late: str = ""
    selected: Sequence[OutputField] = ()


def session_plan(job: SessionWindow) -> StepPlan:
    side = job.spec.input
    aggregated = Aggregated(
        rows_of=side.name,
        time=side.name,
        watermark=f"wm({side.name})",
        lag=side.watermark.delay,
        types=side.types,
        part=SESSIONS_PART,
        where=job.sessions.where,
        selected=job.output_columns,
    )
    return aggregate_plan(job.aggregation, aggregated)


def aggregate_plan(aggregation: Aggregation, aggregated: Aggregated) -> StepPlan:
    window = aggregation.form
    late = f"{format_duration(aggregation.allowed_lateness)} [allowedLateness]"
    side = SidePlan(
        part=aggregated.part,
        rows_of=aggregated.rows_of,
        kept_until=f"{aggregated.watermark} {window.reaches} {window.end_text} + {late}",
        kept_for_ms=(0 if aggregated.same_windows else window.closes_after)
        + aggregation.allowed_lateness
        + aggregated.lag,
        row_bytes=_row_bytes(aggregation, aggregated.types),
        holds=window.rows,
    )
    return StepPlan(
        f"{window.rows} of {aggregated.rows_of}", tuple(_plan_lines(aggregation, aggregated)), (side,), window.shorter
    )


def _plan_lines(aggregation: Aggregation, aggregated: Aggregated) -> Iterator[tuple[str, str]]:
    yield "groups", ", ".join(aggregation.group_by) or "none, all rows are one group, on one shard"
    for computed in aggregation.compute:
        yield "computed", f"{computed.as_} = {computed.expression}"
    if aggregated.where is not None:
        yield "where", aggregated.where
    if aggregated.from_steps:
        yield "event time", f"that of {aggregated.time}"
    if aggregated.same_windows:
        yield "windows", "those of the rows"
    else:
        if aggregated.of_windows:
            yield "event time", "the last millisecond of a row's window"
        yield from aggregation.form.lines()
    yield "aggregates", ", ".join(_aggregate_text(aggregate) for aggregate in aggregation.aggregates) or "none"
    if aggregation.having is not None:
        yield "having", f"{aggregation.having}; rows for which it is not true are not emitted, and counted"
    yield from selected_lines(aggregated.selected)
    yield "emitted", _emitted_text(aggregation, aggregated)
    if aggregation.emit is not None:
        every = format_duration(aggregation.emit.every)
        changed = f"those that have changed, as they are so far, each time {aggregated.watermark} passes a multiple of"
        yield "emitted early", f"{changed} {every} [emit.every]; a row replaces the one before with its key"
    yield "rows", changelog_text(aggregation.changelog_key)
    yield "late rows", _late_text(aggregation, aggregated)
    if aggregation.limits is not None:
        yield "limits", limits_text(aggregation.limits, "the state")


def selected_lines(columns: Sequence[OutputField]) -> Iterator[tuple[str, str]]:
    """Yield the expressions that are emitted (G11)."""
    for column in columns:
        if column.expression is not None:
            yield "selected", f"{column.name} = {column.expression}"


def _aggregate_text(aggregate: Aggregate) -> str:
    details = [
        *([f"exact up to {aggregate.values_limit:,}"] if aggregate.values_limit is not None else []),
        *(["hll"] if aggregate.method == "hll" else []),
        *([f"by {aggregate.by}"] if aggregate.by is not None else []),
        *([f"{aggregate.percentile:g}"] if aggregate.percentile is not None else []),
    ]
    where = f" where {aggregate.where}" if aggregate.where is not None else ""
    return f"{aggregate.function}({', '.join([aggregate.column or '', *details])}){where} as {aggregate.as_}"


def _emitted_text(aggregation: Aggregation, aggregated: Aggregated) -> str:
    window, late = aggregation.form, format_duration(aggregation.allowed_lateness)
    if aggregation.late_data != "reopen":
        end = f"{window.reaches} {window.end_text} + {late} [allowedLateness]"
        return f"each {window.rows.removesuffix('s')} once, when {aggregated.watermark} {end}"
    repetition = "again, whole, after each epoch that changes it"
    if aggregation.emit_retractions:
        repetition += "; an id that this replaces is emitted before with retracted: true"
    row = window.rows.removesuffix("s")
    return f"each {row} when {aggregated.watermark} {window.reaches} {window.end_text}, and {repetition}"


def _late_text(aggregation: Aggregation, aggregated: Aggregated) -> str:
    """Return what happens to late rows, in words (rules S4, S5, S8 and G3)."""
    if aggregated.never_late:
        return f"none: {aggregated.never_late}"
    late = f"{format_duration(aggregation.allowed_lateness)} [allowedLateness]"
    none = "none, unless a step has lateData: reopen; such rows are " if aggregated.from_steps else ""
    if aggregation.late_data != "reopen" or not aggregation.form.renames:
        handling = "written to the dead letters" if aggregation.late_data == "dlq" else "dropped"
        return f"{none}{handling} and counted when {aggregation.form.late_text(aggregated.watermark, late)}"
    reach = f"{aggregated.watermark} > ts + {format_duration(aggregation.form.closes_after)} [gap] + {late}"
    return f"{none}taken by the kept sessions that they are near to; others dropped and counted when {reach}"


def _row_bytes(aggregation: Aggregation, types: Mapping[str, ColumnType]) -> int:
    """Return the bytes of a stored row. An accumulator counts once, however many aggregates use it."""
    widths = {name: BYTES[kind.name] for name, kind in types.items()}
    groups = sum(widths.get(name, COMPUTED_BYTES) for name in aggregation.group_by)
    states = {
        (_STATES.get(call.function, call.function), call.arguments(types), call.method): sum(
            widths.get(column, COMPUTED_BYTES) for column in call.columns
        )
        for call in aggregation.aggregates
    }
    accumulators = sum(_accumulator_bytes(state, width, method) for (state, _, method), width in states.items())
    return _SESSION_ROW_BYTES + groups + accumulators


def _accumulator_bytes(state: str, width: int, method: str | None) -> int:
    """Return the bytes of an aggregate's state, whose columns are `width` bytes wide."""
    if state == "count_distinct":
        return _SKETCH_BYTES if method == "hll" else 4 + _DISTINCT_VALUES * width
    if state == "array_agg":
        return 8 + _LISTED_VALUES * (8 + width)
    if state == "percentile":
        return 8 + _LISTED_VALUES * 16
    fixed = {"count": 8, "count_col": 8, "count_if": 8, "sum": 16, "avg": 24, "variance": 56}
    return fixed.get(state, width + (8 if state in _TIMED else 0))


def aggregate_warnings(job: Job, aggregation: Aggregation) -> Iterator[str]:
    targets = (
        ("topic", [output.kafka for output in job.outputs]),
        ("table", [output.postgres for output in job.outputs]),
    )
    where = next((word for word, targets_of_kind in targets if any(targets_of_kind)), None)
    renames = aggregation.changelog_key is not None and aggregation.form.renames and not aggregation.emit_retractions
    if where is not None and renames:
        cause = "lateData is reopen" if aggregation.late_data == "reopen" else "emit is set"
        yield (
            f"OLD SESSION IDS STAY in the {where}: {cause}, so a session that merges with another or starts "
            "earlier is emitted under a new session_id, and nothing takes its old row back. Set emitRetractions: true"
        )
