"""`joinery state stats`: how much state a job keeps, and what goes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from joinery_runtime.cli.common import size_text, time_text
from joinery_runtime.cli.state import known
from joinery_runtime.cli.state_savepoints import savepoint_document, savepoint_line
from joinery_runtime.core.compile import compile_join
from joinery_runtime.core.segment import SegmentMeta
from joinery_runtime.core.spec import PARTS, JoinSpec, Watermark
from joinery_runtime.engine.plan import EpochPlan, input_states
from joinery_runtime.job import StreamJoin
from joinery_runtime.state import migrations
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord, Savepoint, StateStore


@dataclass(frozen=True, slots=True)
class SideStats:
    """One side's live state. `keep_from` is the lowest event time that the next epoch keeps (J3; None: all of it);
    `expired` rows are in segments that go as a whole then, `expiring` at most in others. Times are milliseconds."""

    input: str
    rows: int
    bytes: int
    segments: int
    event_time: tuple[int, int] | None
    state_versions: tuple[int, ...]
    keep_from: int | None
    expired: int
    expiring: int


def next_watermarks(job: StreamJoin, record: JobRecord) -> dict[str, Watermark]:
    """By which the next epoch closes and evicts (T3): those of its plan, or what the rows of all epochs imply."""
    names = [side.name for side in job.spec.inputs]
    if record.plan is not None:
        planned = EpochPlan.from_json(record.plan).watermarks
        return {name: planned.get(name) for name in names}
    return {name: state.progress.watermark for name, state in input_states(names, record).items()}


def side_stats(spec: JoinSpec, record: JobRecord, watermarks: Mapping[str, Watermark]) -> list[SideStats]:
    both = spec.watermarks(watermarks)
    return [
        _side(spec.sides[side].input, [s for s in record.segments if s.part == part], spec.keep_from(side, both))
        for side, part in enumerate(PARTS)
    ]


def _side(name: str, segments: Sequence[SegmentMeta], keep_from: int | None) -> SideStats:
    gone = [s for s in segments if keep_from is not None and s.ts_max < keep_from]
    some = [s for s in segments if keep_from is not None and s.ts_min < keep_from <= s.ts_max]
    return SideStats(
        input=name,
        rows=sum(s.rows for s in segments),
        bytes=sum(s.bytes for s in segments),
        segments=len(segments),
        event_time=(min(s.ts_min for s in segments), max(s.ts_max for s in segments)) if segments else None,
        state_versions=tuple(sorted({s.state_version for s in segments})),
        keep_from=keep_from,
        expired=sum(s.rows for s in gone),
        expiring=sum(s.rows for s in some),
    )


@dataclass(frozen=True, slots=True)
class Stats:
    record: JobRecord
    watermarks: Mapping[str, Watermark]
    sides: Sequence[SideStats]
    savepoints: Sequence[Savepoint]
    store: str
    schema_version: int | None

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
        for side in self.sides:
            yield from _side_lines(side, self.watermarks.get(side.input))
        for savepoint in self.savepoints:
            yield f"savepoint {savepoint_line(savepoint)}"
        tables = "" if self.schema_version is None else f", tables of version {self.schema_version}"
        yield f"store: {self.store}{tables}; this release writes state_version {migrations.CURRENT_STATE_VERSION}"


def _side_lines(side: SideStats, watermark: Watermark) -> Iterator[str]:
    versions = ", ".join(map(str, side.state_versions)) or "none"
    size = f"{side.rows:,} rows, {size_text(side.bytes)} in {side.segments} segments"
    yield f"{side.input}: {size}, state version {versions}"
    if side.event_time is not None:
        yield f"  event times {time_text(side.event_time[0])} to {time_text(side.event_time[1])}"
    yield f"  watermark {time_text(watermark)}"
    if side.keep_from is None:
        yield "  the next epoch keeps all rows"
    else:
        more = f", and up to {side.expiring:,} more" if side.expiring else ""
        yield f"  the next epoch keeps rows from {time_text(side.keep_from)}: {side.expired:,} go{more}"


def stats(job: StreamJoin, store: StateStore) -> Stats:
    record = known(job, store)
    watermarks = next_watermarks(job, record)
    place, version = (store.place, store.schema_version()) if isinstance(store, PostgresStore) else ("memory", None)
    sides = side_stats(compile_join(job), record, watermarks)
    return Stats(record, watermarks, sides, store.savepoints(job.name), place, version)
