"""What is still to come for rows of one key that are kept: when each goes, and whether it goes out then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joinery_runtime.cli.common import time_text
from joinery_runtime.cli.state_next import NextEpoch
from joinery_runtime.core.kinds import windows
from joinery_runtime.core.pipeline.spec import LEFT, AsOf, Interval, SessionGap, SessionWindow, StepSpec, TumblingWindow

MATCHES = {"on time": "may still match", "late": "may match late rows only", "no": "matches nothing any more"}


@dataclass(frozen=True, slots=True)
class Row:
    """A kept row of a side. `marked` (None: rows of this part have no marks) says that it has matched, or, of a session
    window, that it has gone out; `deleted` that it is a version of a table that says the key was deleted."""

    side: int
    ts: int
    partition: int
    offset: int
    columns: Mapping[str, Any]
    marked: bool | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Fate:
    """In words, and as facts for a document."""

    words: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def fates(after: NextEpoch, step: StepSpec, rows: Sequence[Row]) -> list[Fate]:
    """One for each row; `rows` are all that are kept of the key in this join step."""
    assert not isinstance(step.rule, SessionWindow), "cli.state_sessions tells of those"
    match step.rule:
        case Interval():
            return [_interval(after, step, row) for row in rows]
        case TumblingWindow() as rule:
            return [_windows(after, step, rule, row) for row in rows]
        case SessionGap() as rule:
            return _sessions(after, step, rule, rows)
        case AsOf() as rule:
            return [_waiting(step, rule, row) if row.side == LEFT else _version(after, step, rows, row) for row in rows]


# --- interval ---------------------------------------------------------------------------------------------------------


def _interval(after: NextEpoch, step: StepSpec, row: Row) -> Fate:
    rule, other = step.rule, step.sides[1 - row.side]
    assert isinstance(rule, Interval), "told by its rule"
    last_partner = row.ts + rule.partner_bounds(row.side)[1]
    late = 0 if other.intake.chained else rule.allowed_lateness
    horizon = after.horizon(step.sides[row.side].part)
    may_match = _may_match(after, other.time, last_partner, gone=horizon is not None and row.ts < horizon)
    facts = {
        "until_input": other.time,
        "until": last_partner + late,
        "may_match": may_match,
        **({"matched": row.marked} if row.marked is not None else {}),
    }
    upstream = f"what step {step.number} hands on of " if other.intake.chained else ""
    now = "" if other.intake.chained else f" ({time_text(after.watermarks[other.time])})"
    goes = f"goes when {upstream}the watermark of {other.time}{now} is above {time_text(last_partner + late)}"
    return Fate(f"{goes}; {MATCHES[may_match]}{_matched(after, step, row)}", facts)


def _may_match(after: NextEpoch, other: str, last_partner: int, *, gone: bool) -> str:
    if gone:
        return "no"
    watermark = after.watermarks[other]
    return "on time" if watermark is None or last_partner >= watermark else "late"


def _matched(after: NextEpoch, step: StepSpec, row: Row) -> str:
    """O1: a row that never matches goes out padded in the epoch that closes it."""
    spec = step.sides[row.side]
    if row.marked is None or not spec.preserved:
        return ""
    if row.marked:
        return "; has matched"
    horizon = after.horizons[spec.part]
    if horizon.before is not None and row.ts < horizon.before:
        return "; has not matched and went out padded"
    closed = horizon.now is not None and row.ts < horizon.now
    return f"; has not matched: goes out padded {'with the next epoch' if closed else 'unless it still does'}"


# --- windows ----------------------------------------------------------------------------------------------------------


def _windows(after: NextEpoch, step: StepSpec, rule: TumblingWindow, row: Row) -> Fate:
    first, last = (int(n[0]) for n in windows.windows_of(rule, np.array([row.ts])))
    spans = [(n * rule.slide, n * rule.slide + rule.size) for n in range(first, last + 1)]
    closed_to = after.horizon(step.sides[row.side].part)
    open_ = [span for span in spans if closed_to is None or span[1] > closed_to]
    named = ", ".join(f"{time_text(start)} to {time_text(end)}" for start, end in open_)
    words = f"in the windows {named}; goes when {_slowest(step, rule)} is at the end of the last one"
    return Fate(words if open_ else "its windows are closed", {"windows": [list(span) for span in open_]})


def _sessions(after: NextEpoch, step: StepSpec, rule: SessionGap, rows: Sequence[Row]) -> list[Fate]:
    spans = _spans([row.ts for row in rows], rule.gap)
    return [_session(after, step, rule, row, span) for row, span in zip(rows, spans, strict=True)]


def _spans(times: Sequence[int], gap: int) -> list[tuple[int, int]]:
    """Of each time the first and the last one of its session."""
    ordered = np.sort(np.array(times, dtype=np.int64))
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1]) > gap)
    pieces = np.split(ordered, begins)
    return [next((int(p[0]), int(p[-1])) for p in pieces if len(p) and p[0] <= ts <= p[-1]) for ts in times]


def _session(after: NextEpoch, step: StepSpec, rule: SessionGap, row: Row, span: tuple[int, int]) -> Fate:
    closed = windows.open_from(rule, after.horizon(step.sides[row.side].part))
    facts = {"session": list(span), "closed": bool(row.marked) or (closed is not None and span[1] < closed)}
    words = f"in the session {time_text(span[0])} to {time_text(span[1])}"
    if facts["closed"]:
        return Fate(f"{words}, which is closed", facts)
    return Fate(
        f"{words}; goes when {_slowest(step, rule)} is above {time_text(span[1] + rule.gap)}, unless it grows", facts
    )


def _slowest(step: StepSpec, rule: TumblingWindow | SessionGap) -> str:
    names = " and ".join(side.time for side in step.sides)
    late = f" - {rule.allowed_lateness} ms" if rule.allowed_lateness else ""
    return f"the lower watermark of {names}{late}"


# --- as-of ------------------------------------------------------------------------------------------------------------


def _waiting(step: StepSpec, rule: AsOf, row: Row) -> Fate:
    until = row.ts + rule.grace
    stream = step.sides[LEFT].time
    return Fate(
        f"waits until the highest event time of {stream} is {time_text(until)}",
        {"until_input": stream, "until": until},
    )


def _version(after: NextEpoch, step: StepSpec, rows: Sequence[Row], row: Row) -> Fate:
    """A1: it is valid until the next one of its key; of one time the higher offset counts."""
    versions = sorted((r for r in rows if r.side == row.side), key=lambda r: (r.ts, r.offset, r.partition))
    newer = [
        other for other in versions if (other.ts, other.offset, other.partition) > (row.ts, row.offset, row.partition)
    ]
    until = newer[0].ts if newer else None
    what = "deletion" if row.deleted else "version"
    facts = {"deleted": row.deleted, "valid_until": until}
    if until is None:
        return Fate(f"{what}, the newest one: stays", facts)
    horizon = after.horizon(step.sides[row.side].part)
    if horizon is not None and until <= horizon:
        return Fate(f"{what}, superseded at {time_text(until)}: needed no more, goes when its segment is merged", facts)
    return Fate(f"{what}, superseded at {time_text(until)}: stays for the history retention", facts)
