"""`joinery state stats`: how much state a job keeps on each side of each step, or for sessions, and what goes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import LEFT, SESSIONS, SideSpec
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.core.table.columns import FLAG, ROW, SEGMENT
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.engine.assembly import state_limits
from joinery_runtime.engine.job_state import live_segments
from joinery_runtime.engine.limits import StateQuota
from joinery_runtime.engine.report import PartTotals, StateSize, Totals
from joinery_runtime.inspect.kinds.base import Summary, description_of
from joinery_runtime.inspect.stored_state import (
    NextEpoch,
    committed_text,
    record_of,
    savepoint_document,
    savepoint_line,
)
from joinery_runtime.job import Job, format_time, time_value
from joinery_runtime.job.model.wording import counted, size_text
from joinery_runtime.state import migrations
from joinery_runtime.state.migrations import flagged_rows, read_runs
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord, StateReader, StateStore, StoredSavepoint


@dataclass(frozen=True, slots=True)
class SideStats:
    """The live state of one side of a step, and its totals since the state began. Times are milliseconds."""

    part: str
    step: int
    side: str
    inputs: tuple[str, ...]
    rows: int
    bytes: int
    segments: int
    event_time: tuple[int, int] | None
    state_versions: tuple[int, ...]
    keep_from: int | None  # the lowest event time that the next epoch certainly keeps; None: it keeps everything
    expired: int  # rows of segments that the next epoch drops whole
    expiring: int  # rows of other segments that it may drop, at most
    goes: str  # what the next epoch closes, in words
    totals: PartTotals
    over: tuple[str, ...] = ()  # the limits that the side exceeds

    @property
    def name(self) -> str:
        if self.side == SESSIONS:
            label = "rows of sessions"
        else:
            label = f"step {self.step}, {self.side}" + " side" * (self.side in {"left", "right"})
        return f"{label} ({', '.join(self.inputs)})"


def side_stats(after: NextEpoch, record: JobRecord, totals: Totals, caps: Mapping[str, StateQuota]) -> list[SideStats]:
    live, sides = live_segments(record), []
    sizes = StateSize.by_part(live, after.pipeline.parts())
    for part in after.pipeline.parts():
        step, side = after.pipeline.side(part)
        spec, horizon, size = step.sides[side], after.horizon(part), sizes[part]
        rows = [meta for meta in live if meta.part == part]
        keep_from = None if horizon is None else step.kind.retention[side].may_leave_before(horizon)
        expired = [meta for meta in rows if times.expired(after.pipeline, meta, after.horizons)]
        expiring = [meta for meta in rows if meta not in expired and keep_from is not None and meta.ts_min < keep_from]
        sides.append(
            SideStats(
                part=part,
                step=step.number + 1,
                side=part.partition(".")[0],
                inputs=spec.inputs,
                rows=size.rows,
                bytes=size.bytes,
                segments=size.segments,
                event_time=(min(s.ts_min for s in rows), max(s.ts_max for s in rows)) if rows else None,
                state_versions=tuple(sorted({s.state_version for s in live if s.part in {part, spec.flags_part}})),
                keep_from=keep_from,
                expired=sum(s.rows for s in expired),
                expiring=sum(s.rows for s in expiring),
                goes="keeps all rows"
                if horizon is None
                else description_of(step).next_epoch_text(side, after.horizons),
                totals=totals.parts.get(part, PartTotals()),
                over=tuple(f"{name} is {most:,}, it has {now:,}" for name, now, most in caps[part].over(size)),
            )
        )
    return sides


@dataclass(frozen=True, slots=True)
class Stats:
    record: JobRecord
    watermarks: Mapping[str, Watermark]
    sides: Sequence[SideStats]
    savepoints: Sequence[StoredSavepoint]
    store: str
    schema_version: int | None
    summary: Summary | None = None
    after_eviction: Mapping[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        record = self.record
        planned = None if record.plan is None else {"epoch": record.plan["epoch"], "for_ms": record.planned_for_ms}
        return {
            "job": record.job,
            "generation": record.generation,
            "epoch": record.epoch,
            "committed": record.committed,
            "planned": planned,
            "watermarks": {name: time_value(at) for name, at in self.watermarks.items()},
            "after_eviction": dict(self.after_eviction),
            "sides": [{**asdict(side), "keep_from": time_value(side.keep_from)} for side in self.sides],
            **({} if self.summary is None else self.summary.document()),
            "savepoints": [savepoint_document(savepoint) for savepoint in self.savepoints],
            "store": {"place": self.store, "schema_version": self.schema_version},
            "state_version": migrations.CURRENT_STATE_VERSION,
        }

    def lines(self) -> Iterator[str]:
        record = self.record
        yield f"job {record.job}: {committed_text(record)}, generation {record.generation}"
        if record.plan is not None:
            since = f"{record.planned_for_ms / 1000:.1f} s ago"
            yield f"epoch {record.plan['epoch']} is planned and not committed, since {since}"
        for name, watermark in self.watermarks.items():
            yield f"watermark of {name}: {format_time(watermark)}"
            if self.after_eviction.get(name):
                rows = counted(self.after_eviction[name], "row")
                yield f"  {rows} of it came when partners may have been gone"
        if self.summary is not None:
            yield from self.summary.lines()
        for side in self.sides:
            versions = ", ".join(map(str, side.state_versions)) or "none"
            size = f"{counted(side.rows, 'row')}, {size_text(side.bytes)} in {counted(side.segments, 'segment')}"
            yield f"{side.name}: {size}, state version {versions}"
            for limit in side.over:
                yield f"  over its limit: {limit}"
            if side.event_time is not None:
                yield f"  event times {format_time(side.event_time[0])} to {format_time(side.event_time[1])}"
            more = f", and up to {side.expiring:,} more" if side.expiring else ""
            dropped = "" if side.keep_from is None else f": {counted(side.expired, 'row', 'go')}{more}"
            yield f"  the next epoch {side.goes}{dropped}"
            totals = side.totals
            yield (
                f"  so far {counted(totals.stored, 'row')} stored, {totals.expired:,} expired, "
                f"{counted(totals.lookups, 'lookup')}, {totals.matches:,} matches, "
                f"at most {counted(totals.peak, 'row')} at a time"
            )
        for savepoint in self.savepoints:
            yield f"savepoint {savepoint_line(savepoint)}"
        tables = "" if self.schema_version is None else f", tables of version {self.schema_version}"
        yield f"store: {self.store}{tables}; this release writes state_version {migrations.CURRENT_STATE_VERSION}"


def stats(job: Job, store: StateStore) -> Stats:
    pipeline, record = compile_job(job), record_of(job, store)
    description = description_of(pipeline.last)
    record, rows = _unflagged_rows(store, record, pipeline.last.sides[LEFT], description.summary_columns)
    newest = store.newest_epoch(job.name)
    after = NextEpoch.of(pipeline, record)
    totals = Totals.of(newest.result if newest is not None else {})
    location, version = (
        (store.location, store.schema_version()) if isinstance(store, PostgresStore) else ("memory", None)
    )
    sides = side_stats(after, record, totals, state_limits(job).caps)
    summary = None if rows is None else description.summary(rows, after.epoch_times)
    pins = store.savepoints(job.name)
    return Stats(record, after.watermarks, sides, pins, location, version, summary, totals.after_eviction)


def _unflagged_rows(
    store: StateReader, record: JobRecord, side: SideSpec, names: Sequence[str]
) -> tuple[JobRecord, pa.Table | None]:
    """Return these columns of the side's unflagged rows, and the record to which the rows belong: a driver may replace
    segments meanwhile. Without columns, reads nothing."""
    if not names:
        return record, None

    def select_columns(meta: SegmentMeta, run: Run) -> pa.RecordBatch:
        if meta.part != side.part:
            return run.batch.select([SEGMENT, ROW])
        chosen = run.batch.select([*names, FLAG])
        # Copied, so that the buffers of the segment's other columns are released.
        return pa.record_batch([pa.concat_arrays([column]) for column in chosen.columns], names=chosen.schema.names)

    record, read = read_runs(store, record, lambda meta: meta.part in {side.part, side.flags_part}, select_columns)
    flags = [read[meta.key] for meta in record.segments if meta.part == side.flags_part]
    schema = pa.schema([side.segment_schema().field(name).with_nullable(True) for name in names])
    batches = [
        rows.filter(pa.array(~flagged_rows(rows, meta.key, flags))).drop_columns([FLAG]).cast(schema)
        for meta in record.segments
        if meta.part == side.part
        for rows in [read[meta.key]]
    ]
    return record, pa.Table.from_batches(batches, schema=schema)
