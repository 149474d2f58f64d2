"""`joinery state stats`: how much state a job keeps on each side of each step, or of sessions, and what goes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from joinery_runtime.cli.common import size_text, time_text
from joinery_runtime.cli.state import known
from joinery_runtime.cli.state_census import Census, census, read_sessions
from joinery_runtime.cli.state_next import NextEpoch, rows_go_before
from joinery_runtime.cli.state_savepoints import savepoint_document, savepoint_line
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import (
    COMPLETE,
    LEFT,
    SESSIONS,
    AsOf,
    Interval,
    SessionGap,
    SessionWindow,
    TumblingWindow,
    Watermark,
)
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.assembly import state_limits
from joinery_runtime.engine.job_state import live_segments
from joinery_runtime.engine.limits import Cap
from joinery_runtime.engine.report import PartTotals, StateSize, Totals
from joinery_runtime.job import Job
from joinery_runtime.job import SessionWindow as SessionWindowJob
from joinery_runtime.state import migrations
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord, Savepoint, StateStore


@dataclass(frozen=True, slots=True)
class SideStats:
    """One side of a step: its live state and what it has been through.

    `keep_from` is the lowest event time that the next epoch keeps for certain (None: it keeps everything); `expired`
    rows are in segments that go as a whole then, `expiring` at most in others. `goes` says in words what that epoch
    closes, `totals` count since the state began, `over` names the limits that the side is over. Times are milliseconds.
    """

    part: str
    step: int
    side: str
    inputs: tuple[str, ...]
    rows: int
    bytes: int
    segments: int
    event_time: tuple[int, int] | None
    state_versions: tuple[int, ...]
    keep_from: int | None
    expired: int
    expiring: int
    goes: str
    totals: PartTotals
    over: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        what = f"step {self.step}, {self.side} side" if self.side != SESSIONS else "rows of sessions"
        return f"{what} ({', '.join(self.inputs)})"


def side_stats(after: NextEpoch, record: JobRecord, totals: Totals, caps: Mapping[str, Cap]) -> list[SideStats]:
    live = live_segments(record)
    return [
        _side(after, part, live, totals.parts.get(part, PartTotals()), caps[part]) for part in after.pipeline.parts()
    ]


def _side(after: NextEpoch, part: str, live: Sequence[SegmentMeta], totals: PartTotals, cap: Cap) -> SideStats:
    step, side = after.pipeline.side(part)
    spec, horizon = step.sides[side], after.horizon(part)
    size = StateSize.by_part(live, after.pipeline.parts())[part]
    rows = [meta for meta in live if meta.part == part]
    keep_from = rows_go_before(step, side, horizon)
    gone = [meta for meta in rows if times.expired(after.pipeline, meta, after.horizons)]
    some = [meta for meta in rows if meta not in gone and keep_from is not None and meta.ts_min < keep_from]
    return SideStats(
        part=part,
        step=step.number + 1,
        side=part.partition(".")[0],
        inputs=spec.inputs,
        rows=size.rows,
        bytes=size.bytes,
        segments=size.segments,
        event_time=(min(s.ts_min for s in rows), max(s.ts_max for s in rows)) if rows else None,
        state_versions=tuple(sorted({s.state_version for s in live if s.part in {part, spec.marks_part}})),
        keep_from=keep_from,
        expired=sum(s.rows for s in gone),
        expiring=sum(s.rows for s in some),
        goes=closes_text(after, part),
        totals=totals,
        over=tuple(f"{name} is {most:,}, it has {held:,}" for name, held, most in cap.over(size)),
    )


def closes_text(after: NextEpoch, part: str) -> str:
    """What the next epoch lets go, by the kind of step."""
    step, side = after.pipeline.side(part)
    horizon = after.horizon(part)
    if horizon is None:
        return "keeps all rows"
    match step.rule:
        case Interval():
            padded = ", older ones that never matched go out padded" if step.sides[side].preserved else ""
            return f"keeps rows from {time_text(horizon)}{padded}"
        case TumblingWindow():
            return f"closes windows that end at {time_text(horizon)} or before"
        case SessionGap():
            before = rows_go_before(step, side, horizon)
            return f"closes sessions whose last row is before {time_text(before)}"
        case AsOf() if side == LEFT:
            return f"joins waiting rows up to {time_text(horizon)} and lets them go"
        case AsOf():
            return f"needs no version that was superseded at {time_text(horizon)} or before"
        case SessionWindow() as rule:
            gone = f"forgets sessions whose last row is before {time_text(horizon)}"
            complete = time_text(after.horizon(COMPLETE))
            return gone if rule.drop_late else f"lets those go out whose last row is before {complete}, {gone}"


@dataclass(frozen=True, slots=True)
class Stats:
    record: JobRecord
    watermarks: Mapping[str, Watermark]
    sides: Sequence[SideStats]
    savepoints: Sequence[Savepoint]
    store: str
    schema_version: int | None
    sessions: Census | None = None

    def document(self) -> dict[str, Any]:
        record = self.record
        planned = None if record.plan is None else {"epoch": record.plan["epoch"], "for_ms": record.planned_for_ms}
        return {
            "job": record.job,
            "generation": record.generation,
            "epoch": record.epoch,
            "committed": record.committed,
            "planned": planned,
            "watermarks": dict(self.watermarks),
            "sides": [asdict(side) for side in self.sides],
            **({} if self.sessions is None else {"sessions": self.sessions.document()}),
            "savepoints": [savepoint_document(savepoint) for savepoint in self.savepoints],
            "store": {"place": self.store, "schema_version": self.schema_version},
            "state_version": migrations.CURRENT_STATE_VERSION,
        }

    def lines(self) -> Iterator[str]:
        record = self.record
        yield f"job {record.job}: epoch {record.committed} committed, generation {record.generation}"
        if record.plan is not None:
            since = f"{record.planned_for_ms / 1000:.1f} s ago"
            yield f"epoch {record.plan['epoch']} is planned and not committed, since {since}"
        for name, watermark in self.watermarks.items():
            yield f"watermark of {name}: {time_text(watermark)}"
        if self.sessions is not None:
            yield from self.sessions.lines()
        for side in self.sides:
            yield from _side_lines(side)
        for savepoint in self.savepoints:
            yield f"savepoint {savepoint_line(savepoint)}"
        tables = "" if self.schema_version is None else f", tables of version {self.schema_version}"
        yield f"store: {self.store}{tables}; this release writes state_version {migrations.CURRENT_STATE_VERSION}"


def _side_lines(side: SideStats) -> Iterator[str]:
    versions = ", ".join(map(str, side.state_versions)) or "none"
    size = f"{side.rows:,} rows, {size_text(side.bytes)} in {side.segments} segments"
    yield f"{side.name}: {size}, state version {versions}"
    for limit in side.over:
        yield f"  over its limit: {limit}"
    if side.event_time is not None:
        yield f"  event times {time_text(side.event_time[0])} to {time_text(side.event_time[1])}"
    more = f", and up to {side.expiring:,} more" if side.expiring else ""
    dropped = "" if side.keep_from is None else f": {side.expired:,} rows go{more}"
    yield f"  the next epoch {side.goes}{dropped}"
    of = side.totals
    yield (
        f"  so far {of.stored:,} rows stored, {of.expired:,} expired, {of.lookups:,} lookups, {of.matches:,} matches, "
        f"at most {of.peak:,} rows at a time"
    )


def stats(job: Job, store: StateStore) -> Stats:
    record, sessions = known(job, store), None
    if isinstance(job, SessionWindowJob):
        record, sessions = read_sessions(store, record)
    newest = store.newest_epoch(job.name)
    after = NextEpoch.of(compile_job(job), record)
    totals = Totals.of(newest.result if newest is not None else {})
    place, version = (store.place, store.schema_version()) if isinstance(store, PostgresStore) else ("memory", None)
    sides = side_stats(after, record, totals, state_limits(job).caps)
    counted = None if sessions is None else census(after, sessions)
    return Stats(record, after.watermarks, sides, store.savepoints(job.name), place, version, counted)
