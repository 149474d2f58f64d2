"""Explains what a job of sessions does: groups, gap and cap, when sessions are emitted, and how long they stay."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.kinds.session.sessions import SESSIONS_PART, Aggregate
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.plan import BYTES, ENGINE_ROW_BYTES, SidePlan, StepPlan, limits_text

# A session's row also says whether it is gone, the event time of its first row, and what has become of it.
_SESSION_ROW_BYTES = ENGINE_ROW_BYTES + 1 + 8 + 1 + 1
_COMPUTED_BYTES = 20  # of a computed column, whose type is not known here
# Guesses: a session has few distinct values; an exact count lists them, and so does a sketch while it holds few.
_DISTINCT_VALUES, _SKETCH_BYTES = 8, 48


def session_plan(job: SessionWindow) -> StepPlan:
    name, spec, gap = job.spec.input.name, job.spec, job.sessions.gap
    late = f"{format_duration(spec.allowed_lateness)} [allowedLateness]"
    side = SidePlan(
        part=SESSIONS_PART,
        rows_of=name,
        kept_until=f"wm({name}) > last + {format_duration(gap)} [gap] + {late}",
        kept_for_ms=gap + spec.allowed_lateness + spec.input.watermark.delay,
        row_bytes=session_bytes(job),
        holds="sessions",
    )
    todo = "shorten the gap, or count distinct values with method: hll"
    return StepPlan(f"sessions of {name}", tuple(_lines(job)), (side,), todo)


def _lines(job: SessionWindow) -> Iterator[tuple[str, str]]:
    sessions, spec = job.sessions, job.spec
    yield "groups", ", ".join(sessions.group_by)
    for computed in sessions.compute:
        yield "computed", f"{computed.as_} = {computed.expression}"
    if sessions.where is not None:
        yield "where", sessions.where
    yield "gap", f"consecutive rows that are at most {format_duration(sessions.gap)} apart are of one session"
    cap = format_duration(spec.max_duration)
    yield "cap", f"a row at {cap} [maxDuration] or more after a session's first one ends it at once and opens the next"
    yield (
        "inside a capped session",
        "later rows are dropped and counted as closed, rows on time too; how many depends on where epochs end",
    )
    yield "aggregates", ", ".join(_aggregate(aggregate) for aggregate in sessions.aggregates) or "none"
    yield "emitted", _goes_out(job)
    yield "late rows", _late(job)
    if spec.limits is not None:
        yield "limits", limits_text(spec.limits, "the state")


def _aggregate(aggregate: Aggregate) -> str:
    limit_text = f", exact up to {aggregate.distinct_limit:,}" if aggregate.distinct_limit is not None else ""
    sketch = ", hll" if aggregate.method == "hll" else ""
    return f"{aggregate.function}({aggregate.column or ''}{limit_text}{sketch}) as {aggregate.as_}"


def _goes_out(job: SessionWindow) -> str:
    name, gap = job.spec.input.name, format_duration(job.sessions.gap)
    late = format_duration(job.spec.allowed_lateness)
    if job.spec.late_data != "reopen":
        return f"each session once, when wm({name}) > last + {gap} [gap] + {late} [allowedLateness]"
    repetition = "again, whole, after each epoch that changes it"
    if job.spec.emit_retractions:
        repetition += "; an id that this replaces is emitted before with retracted: true"
    return f"each session when wm({name}) > last + {gap} [gap], and {repetition}"


def _late(job: SessionWindow) -> str:
    """What happens to late rows, in words (rules S4 and S5)."""
    name, late = job.spec.input.name, f"{format_duration(job.spec.allowed_lateness)} [allowedLateness]"
    if job.spec.late_data != "reopen":
        handling = "written to the dead letters" if job.spec.late_data == "dlq" else "dropped"
        return f"{handling} and counted when ts < wm({name}) - {late}"
    reach = f"wm({name}) > ts + {format_duration(job.sessions.gap)} [gap] + {late}"
    return f"taken by the kept sessions that they are near to; others dropped and counted when {reach}"


def session_bytes(job: SessionWindow) -> int:
    """The bytes of a session's row. An accumulator counts once, however many aggregates use it."""
    types, sessions = job.spec.input.types, job.sessions
    widths = {name: BYTES[kind.name] for name, kind in types.items()}
    groups = sum(widths.get(name, _COMPUTED_BYTES) for name in sessions.group_by)
    accumulators = {(aggregate.function, aggregate.column or "", aggregate.method) for aggregate in sessions.aggregates}
    return (
        _SESSION_ROW_BYTES
        + groups
        + sum(
            _accumulator_bytes(function, widths.get(column, _COMPUTED_BYTES), method)
            for function, column, method in accumulators
        )
    )


def _accumulator_bytes(function: str, width: int, method: str | None) -> int:
    if function == "count_distinct":
        return _SKETCH_BYTES if method == "hll" else 4 + _DISTINCT_VALUES * width
    fixed = {"count": 8, "count_col": 8, "sum": 16, "avg": 24}
    return fixed.get(function, width + (8 if function in {"first", "last"} else 0))


def session_warnings(job: SessionWindow) -> Iterator[str]:
    targets = (
        ("topic", [output.kafka for output in job.outputs]),
        ("table", [output.postgres for output in job.outputs]),
    )
    where = next((word for word, targets_of_kind in targets if any(targets_of_kind)), None)
    if where is not None and job.spec.late_data == "reopen" and not job.spec.emit_retractions:
        yield (
            f"OLD SESSION IDS STAY in the {where}: lateData is reopen, so a session that merges with another or starts "
            "earlier is emitted under a new session_id, and nothing takes its old row back. Set emitRetractions: true"
        )
