"""What a finished epoch tells: the epoch log's result document, and the report for progress and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joinery_runtime.core.segment import SegmentMeta
from joinery_runtime.core.spec import Watermark
from joinery_runtime.engine.messages import EpochOutcome
from joinery_runtime.engine.plan import EpochPlan, partition_id
from joinery_runtime.engine.planner import Planner


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One committed epoch in numbers. `dropped` counts per input and reason, `backlog` records still unread per input,
    `watermarks` are those that were in force, `lost` records that the broker had deleted, per partition."""

    epoch: int
    rows_in: Mapping[str, int]
    rows_out: int
    dropped: Mapping[str, Mapping[str, int]]
    dead: Mapping[str, int]
    watermarks: Mapping[str, Watermark]
    backlog: Mapping[str, int]
    lost: Mapping[str, int]
    segments: int
    state_rows: int
    state_bytes: int


def epoch_report(
    plan: EpochPlan, outcome: EpochOutcome, segments: Iterable[SegmentMeta], planner: Planner
) -> EpochReport:
    live = list(segments)
    rows_in: Counter[str] = Counter(dict.fromkeys(plan.watermarks, 0))
    dead: Counter[str] = Counter()
    for read in outcome.read.partitions:
        rows_in[read.partition.input] += read.records
        dead[read.partition.input] += read.dead
    return EpochReport(
        epoch=plan.epoch,
        rows_in=rows_in,
        rows_out=sum(s.rows_out for s in outcome.shards.values()),
        dropped=_dropped(outcome),
        dead=dead,
        watermarks=plan.watermarks,
        backlog=planner.backlog,
        lost=_lost(plan, outcome),
        segments=len(live),
        state_rows=sum(s.rows for s in live),
        state_bytes=sum(s.bytes for s in live),
    )


def result_json(plan: EpochPlan, outcome: EpochOutcome) -> dict[str, Any]:
    """The result document of the epoch log: counts, and the receipts that recovery publishes again."""
    dead = outcome.read.dead_letters
    return {
        "rows_in": {
            f"{r.partition.input}:{r.partition.topic}/{r.partition.partition}": r.records
            for r in outcome.read.partitions
        },
        "rows_out": sum(s.rows_out for s in outcome.shards.values()),
        "dropped": {name: dict(counts) for name, counts in _dropped(outcome).items()},
        "dead": sum(r.dead for r in outcome.read.partitions),
        "lost": _lost(plan, outcome),
        "staged": sum(len(s.staged) for s in outcome.shards.values()),
        "output": [s.receipt for s in outcome.shards.values() if s.receipt is not None],
        "dead_letters": [dead] if dead is not None else [],
    }


def _lost(plan: EpochPlan, outcome: EpochOutcome) -> dict[str, int]:
    """Found when it was planned, and when it was read: a replay may come long after its plan."""
    counts = Counter(plan.lost)
    counts.update({partition_id(r.partition): r.lost for r in outcome.read.partitions if r.lost})
    return dict(counts)


def _dropped(outcome: EpochOutcome) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for read in outcome.read.partitions:
        counts.setdefault(read.partition.input, Counter()).update(read.dropped)
    for summary in outcome.shards.values():
        for name, late in summary.late.items():
            counts.setdefault(name, Counter())["late"] += late
    return {name: count for name, count in counts.items() if count}
