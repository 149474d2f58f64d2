"""Makes the answer to `/status`: the board as the `DriverStatus` that the operator reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal

from joinery_runtime.core.pipeline.sides import SESSIONS
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, Watermark
from joinery_runtime.engine.loop import Outage, Scaling
from joinery_runtime.engine.report import PartTotals, Totals
from joinery_runtime.hosts.status.board import Board
from joinery_runtime.hosts.status.history import HistoryDocument, InputSource, slowest_partitions
from joinery_runtime.hosts.status.snapshot import JobSnapshot, behind_ms, watermark_of
from joinery_runtime.job.crd import DriverStatus, HotKey, InputStatus, SavepointStatus, ScalingStatus
from joinery_runtime.job.crd.driver import HotKeyWarning, Paused, SideStatus, Waiting
from joinery_runtime.job.kinds.aggregate.model import AGGREGATE
from joinery_runtime.job.kinds.ranking import Deduplication, TopN
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.state.store import StoredSavepoint

Side = Literal["left", "right", "sessions", "aggregate", "deduplicate", "topN"]
SIDES: dict[str, Side] = {
    **{"left": "left", "right": "right", SESSIONS: "sessions", AGGREGATE: "aggregate"},
    Deduplication.field: "deduplicate",
    TopN.field: "topN",
}
LONGEST_ERROR = 4096  # characters: what `Words` holds
LONGEST_WARNING = 512  # characters
LONGEST_NAME = 253  # characters: what `Word` holds; an earlier release made savepoints of any name


def driver_status(board: Board, revision: str = "") -> DriverStatus:
    snapshot, now = board.snapshot, board.wall()
    rates = board.rows_per_second() if snapshot.ready else None
    return DriverStatus(
        revision=revision,
        ready=snapshot.ready,
        job_generation=snapshot.generation,
        epoch=snapshot.epoch,
        committed=snapshot.own,
        tasks=snapshot.tasks,
        inputs=tuple(_input_status(snapshot, name, rates, now) for name in board.inputs),
        rows_per_second=None if rates is None else round(sum(rates.values())),
        rows_in=None if snapshot.totals is None else sum(snapshot.totals.rows_in.values()),
        rows_out=None if snapshot.totals is None else snapshot.totals.rows_out,
        rows_held=snapshot.unpublished_rows,
        late=None if snapshot.totals is None else snapshot.totals.late,
        state_bytes=None if snapshot.state is None else snapshot.state.bytes,
        sides=tuple(_side_statuses(snapshot)),
        amplification=None if snapshot.amplification is None else round(snapshot.amplification, 3),
        hottest_keys=tuple(HotKey(key=hot.key, rows=hot.rows) for hot in snapshot.hottest),
        too_hot=tuple(HotKeyWarning(step=hot.step + 1, key=hot.key, rows=hot.rows) for hot in snapshot.too_hot),
        paused=tuple(Paused(name=name, reason=reason) for name, reason in sorted(snapshot.paused.items())),
        waiting=None if snapshot.waits_for is None else _waiting_status(snapshot.waits_for),
        last_savepoint=None if snapshot.savepoint is None else _savepoint_status(snapshot.savepoint),
        last_error=None if snapshot.error is None else snapshot.error[:LONGEST_ERROR],
        runs_on=snapshot.runs_on,
        executors=snapshot.executors,
        scaling=None if snapshot.scaling is None else _scaling_status(*snapshot.scaling),
    )


def history_document(board: Board, since: int) -> HistoryDocument:
    """Return the answer to `/history`, with the samples and epochs later than `since`, in ms since 1970."""
    snapshot, now = board.snapshot, board.wall()
    totals, description = snapshot.totals or Totals(), board.description
    dropped = {name: dict(counts) for name, counts in totals.dropped.items()}
    for name, count in totals.dead.items():
        if count:
            dropped.setdefault(name, {})["dead letter"] = count
    return HistoryDocument(
        job=board.job,
        title=description.title,
        sources=tuple(
            InputSource(name=name, source=(description.sources or {}).get(name, "")) for name in board.inputs
        ),
        output=description.output,
        explanation=description.explanation,
        now=round(now * 1000),
        samples=board.history.samples(since),
        epochs=board.history.epochs(since),
        partitions=tuple(slowest_partitions(snapshot, now)),
        dropped=dropped,
        scalings=tuple(_scaling_status(scaling, at) for scaling, at in board.history.scalings()),
    )


def _input_status(snapshot: JobSnapshot, name: str, rates: dict[str, float] | None, now: float) -> InputStatus:
    watermark = watermark_of(snapshot, name)
    delay = behind_ms(watermark, now)
    late_by = None if snapshot.totals is None else snapshot.totals.behind.get(name)
    return InputStatus(
        name=name,
        lag=snapshot.backlog.get(name),
        watermark=_time_or_none(watermark),
        watermark_delay=None if delay is None else format_duration(delay if delay < 10_000 else delay // 1000 * 1000),
        rows_per_second=None if rates is None else round(rates[name]),
        idle=snapshot.idle.get(name),
        ended=snapshot.inputs[name].progress.ended if name in snapshot.inputs else None,
        late=None if snapshot.totals is None else snapshot.totals.dropped.get(name, {}).get("late", 0),
        late_by=None if late_by is None else format_duration(late_by),
        late_warning=snapshot.late_warnings[name][:LONGEST_WARNING] if name in snapshot.late_warnings else None,
        after_eviction=None if snapshot.totals is None else snapshot.totals.after_eviction.get(name, 0),
        warning=snapshot.input_warnings[name][:LONGEST_WARNING] if name in snapshot.input_warnings else None,
    )


def _side_statuses(snapshot: JobSnapshot) -> Iterator[SideStatus]:
    for part, spec in snapshot.sides.items():
        size = snapshot.parts.get(part)
        counts = snapshot.totals.parts.get(part, PartTotals()) if snapshot.totals is not None else PartTotals()
        if size is not None:
            step, side = place_of(part)
            yield SideStatus(
                step=step, side=side, inputs=spec.inputs, rows=size.rows, bytes=size.bytes, **asdict(counts)
            )


def place_of(part: str) -> tuple[int, Side]:
    """Return the step (1 is the first) and the side that a part of the state belongs to."""
    name, _, step = part.partition(".")
    return int(step or 1), SIDES[name]


def _time_or_none(watermark: Watermark) -> datetime | None:
    if watermark is None or watermark == END_OF_TIME:
        return None
    try:
        return datetime.fromtimestamp(watermark / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # an event time that `datetime` cannot express
        return None


def _waiting_status(outage: Outage) -> Waiting:
    since = datetime.fromtimestamp(outage.since, UTC)
    return Waiting(system=outage.error.system, since=since, reason=str(outage.error)[:LONGEST_ERROR])


def _scaling_status(scaling: Scaling, at: float) -> ScalingStatus:
    return ScalingStatus(
        shards=scaling.shards,
        executors=scaling.executors,
        reason=scaling.reason[:LONGEST_WARNING],
        time=datetime.fromtimestamp(at, UTC),
    )


def _savepoint_status(savepoint: StoredSavepoint) -> SavepointStatus:
    created = datetime.fromtimestamp(savepoint.created_at / 1000, UTC)
    return SavepointStatus(name=savepoint.name[:LONGEST_NAME], epoch=savepoint.committed, time=created)
