"""A finished epoch in numbers: the result document for the epoch log, the running totals in it, and the report for
progress and status, with the size of the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from joinery_runtime.core.pipeline.sides import FLAGS
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.hot_keys import KeyRows
from joinery_runtime.engine.messages import EpochOutcome, RunsOn
from joinery_runtime.engine.plan import EpochPlan, InputState, partition_id


@dataclass(frozen=True, slots=True)
class StateSize:
    """What the live segments hold: `rows` of inputs or joins, `bytes` as stored, flags included."""

    segments: int
    rows: int
    bytes: int

    @classmethod
    def of(cls, segments: Iterable[SegmentMeta]) -> StateSize:
        live = list(segments)
        rows = sum(s.rows for s in live if not s.part.endswith(FLAGS))
        return cls(len(live), rows, sum(s.bytes for s in live))

    @classmethod
    def by_part(cls, segments: Iterable[SegmentMeta], parts: Iterable[str]) -> dict[str, StateSize]:
        """Return the size of each part, its flags included."""
        part_segments: dict[str, list[SegmentMeta]] = {part: [] for part in parts}
        for segment in segments:
            part_segments.setdefault(segment.part.removesuffix(FLAGS), []).append(segment)
        return {part: cls.of(listed) for part, listed in part_segments.items()}


@dataclass(frozen=True, slots=True)
class PartCount:
    """What one epoch did to one part of the state, over all shards: rows added to it, arrivals that were looked up in
    it, and matches that its step found."""

    stored: int = 0
    lookups: int = 0
    matches: int = 0


@dataclass(frozen=True, slots=True)
class PartTotals:
    """What all epochs so far did to one part of the state: rows `stored` in it and `expired` from it, `lookups` and
    `matches` as in `PartCount`. `peak` is the most rows that it held after any epoch."""

    stored: int = 0
    expired: int = 0
    lookups: int = 0
    matches: int = 0
    peak: int = 0

    def after(self, counts: PartCount, rows_before: int, rows_after: int) -> PartTotals:
        return PartTotals(
            stored=self.stored + counts.stored,
            expired=self.expired + rows_before + counts.stored - rows_after,
            lookups=self.lookups + counts.lookups,
            matches=self.matches + counts.matches,
            peak=max(self.peak, rows_after),
        )


def part_counts(outcome: EpochOutcome, parts: Iterable[str]) -> dict[str, PartCount]:
    totals = dict.fromkeys(parts, PartCount())
    for summary in outcome.shards.values():
        for part, counts in summary.parts.items():
            old = totals[part]
            totals[part] = PartCount(
                old.stored + counts.stored, old.lookups + counts.lookups, old.matches + summary.matches
            )
    return totals


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the job's state began. Each epoch's result carries them on to the next, so they outlive drivers.

    `dropped` counts per input and reason (`late` is one), `dead` per input, `lost` over all inputs, `parts` per part of
    the state. `after_eviction` counts, per input, rows that were accepted when some of their partners may already be
    gone from the state. `behind` is, per input with late rows, the most that a row was behind the watermark (ms).
    """

    rows_in: Mapping[str, int] = field(default_factory=dict)
    rows_out: int = 0
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    dead: Mapping[str, int] = field(default_factory=dict)
    lost: int = 0
    parts: Mapping[str, PartTotals] = field(default_factory=dict)
    after_eviction: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)

    @property
    def late(self) -> int:
        return sum(counts.get("late", 0) for counts in self.dropped.values())

    def after(self, plan: EpochPlan, outcome: EpochOutcome, rows: Mapping[str, tuple[int, int]]) -> Totals:
        """Return the totals with one more epoch; `rows` has each part's row count before and after it."""
        dropped = _count_dropped(outcome)
        return Totals(
            rows_in=_add_counts(self.rows_in, _rows_in(outcome)),
            rows_out=self.rows_out + _rows_out(outcome),
            dropped={
                name: _add_counts(self.dropped.get(name, {}), dropped.get(name, {}))
                for name in {**self.dropped, **dropped}
            },
            dead=_add_counts(self.dead, _count_dead(outcome)),
            lost=self.lost + sum(_count_lost(plan, outcome).values()),
            parts={
                part: self.parts.get(part, PartTotals()).after(counts, *rows[part])
                for part, counts in part_counts(outcome, rows).items()
            },
            after_eviction=_add_counts(self.after_eviction, _after_eviction(outcome)),
            behind=highest_by_name(self.behind, behind_watermark(plan, outcome)),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rows_in": dict(self.rows_in),
            "rows_out": self.rows_out,
            "dropped": {name: dict(counts) for name, counts in self.dropped.items()},
            "dead": dict(self.dead),
            "lost": self.lost,
            "parts": {part: asdict(totals) for part, totals in self.parts.items()},
            "after_eviction": dict(self.after_eviction),
            "behind": dict(self.behind),
        }

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Totals:
        """Read the totals of the newest result. A result from a release that stored no totals counts as the first
        epoch."""
        if "totals" in result:
            totals = dict(result["totals"])
            parts = {part: PartTotals(**counts) for part, counts in totals.pop("parts", {}).items()}
            return cls(**totals, parts=parts)
        rows_in: Counter[str] = Counter()
        for key, count in result.get("rows_in", {}).items():
            rows_in[key.partition(":")[0]] += count
        lost = sum(result.get("lost", {}).values())
        return cls(dict(rows_in), result.get("rows_out", 0), result.get("dropped", {}), {}, lost)


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One committed epoch in numbers. Mappings are by input unless a comment says otherwise."""

    epoch: int
    rows_in: Mapping[str, int]
    rows_out: int
    dropped: Mapping[str, Mapping[str, int]]  # by input and reason
    dead: Mapping[str, int]
    watermarks: Mapping[str, Watermark]  # those of the epoch
    lost: Mapping[str, int]  # by partition: records that the broker had deleted
    segments: int
    state_rows: int
    state_bytes: int
    totals: Totals
    backlog: Mapping[str, int] = field(default_factory=dict)  # unread records
    hottest: tuple[KeyRows, ...] = ()  # as of the newest count
    too_hot: tuple[KeyRows, ...] = ()  # keys with more rows than `hotKeyWarning`
    warnings: tuple[str, ...] = ()  # about hot keys and inputs, each once
    parts: Mapping[str, StateSize] = field(default_factory=dict)  # by part of the state
    after_eviction: Mapping[str, int] = field(default_factory=dict)
    input_warnings: Mapping[str, str] = field(default_factory=dict)  # that hold now
    late_warnings: Mapping[str, str] = field(default_factory=dict)  # that hold now
    unpublished_rows: int = 0  # rows of this epoch and of earlier ones that the output does not show yet
    bytes_in: Mapping[str, int] = field(default_factory=dict)  # undecoded
    runs_on: RunsOn = "driver"
    disorder: Mapping[str, int] = field(default_factory=dict)  # the most (ms) that a row is behind one of its partition

    @property
    def late(self) -> dict[str, int]:
        return {name: counts["late"] for name, counts in self.dropped.items() if counts.get("late")}

    @property
    def amplification(self) -> float | None:
        """Rows out per record in, in this epoch; None if nothing was read."""
        read = sum(self.rows_in.values())
        return self.rows_out / read if read else None


def epoch_report(
    plan: EpochPlan,
    outcome: EpochOutcome,
    inputs: Mapping[str, InputState],
    parts: Mapping[str, StateSize],
    totals: Totals,
) -> EpochReport:
    """Report an epoch as far as it tells by itself. `inputs` are as before it, `parts` and `totals` as after it."""
    bytes_in = Counter[str]()
    for read in outcome.read.partitions:
        bytes_in[read.partition.input] += read.bytes
    return EpochReport(
        epoch=plan.epoch,
        rows_in=_add_counts(dict.fromkeys(plan.watermarks, 0), _rows_in(outcome)),
        rows_out=_rows_out(outcome),
        dropped=_count_dropped(outcome),
        dead=_count_dead(outcome),
        watermarks=plan.watermarks,
        lost=_count_lost(plan, outcome),
        segments=sum(size.segments for size in parts.values()),
        state_rows=sum(size.rows for size in parts.values()),
        state_bytes=sum(size.bytes for size in parts.values()),
        totals=totals,
        parts=parts,
        after_eviction=_after_eviction(outcome),
        bytes_in=bytes_in,
        runs_on=outcome.runs_on,
        disorder=_disorder_of(outcome, inputs),
    )


def result_json(plan: EpochPlan, outcome: EpochOutcome, totals: Totals) -> dict[str, Any]:
    """Return the result document for the epoch log: counts, totals including this epoch, and the receipts that recovery
    publishes again."""
    dead = outcome.read.dead_letters
    return {
        "rows_in": {
            f"{r.partition.input}:{r.partition.topic}/{r.partition.partition}": r.records
            for r in outcome.read.partitions
        },
        "rows_out": _rows_out(outcome),
        "dropped": {name: dict(counts) for name, counts in _count_dropped(outcome).items()},
        "dead": sum(_count_dead(outcome).values()),
        "lost": _count_lost(plan, outcome),
        "totals": totals.to_json(),
        "staged": sum(len(s.staged) for s in outcome.shards.values()),
        "output": [s.receipt for s in outcome.shards.values() if s.receipt is not None],
        "dead_letters": [dead] if dead is not None else [],
    }


def _add_counts(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}}


def _rows_in(outcome: EpochOutcome) -> Counter[str]:
    counts: Counter[str] = Counter()
    for read in outcome.read.partitions:
        counts[read.partition.input] += read.records
    return counts


def _rows_out(outcome: EpochOutcome) -> int:
    return sum(summary.rows_out for summary in outcome.shards.values())


def _count_dead(outcome: EpochOutcome) -> Counter[str]:
    counts: Counter[str] = Counter()
    for read in outcome.read.partitions:
        counts[read.partition.input] += read.dead
    for summary in outcome.shards.values():
        counts.update(summary.dead)
    return counts


def _count_lost(plan: EpochPlan, outcome: EpochOutcome) -> dict[str, int]:
    """Lost records by partition: those found missing at planning, and those found missing at reading, because a replay
    may come long after its plan."""
    counts = Counter(plan.lost)
    counts.update({partition_id(r.partition): r.lost for r in outcome.read.partitions if r.lost})
    return dict(counts)


def _after_eviction(outcome: EpochOutcome) -> Counter[str]:
    """Per input, rows that were accepted when some of their partners may already have been gone (T10)."""
    counts: Counter[str] = Counter()
    for summary in outcome.shards.values():
        counts.update(summary.after_eviction)
    return counts


def behind_watermark(plan: EpochPlan, outcome: EpochOutcome) -> dict[str, int]:
    """Per input with late rows, how far the latest of them was behind its watermark (ms). Rows are judged by the steps,
    or as they are read if they go to the dead letters; then the lowest event time of the range stands for them."""
    read = [
        {partition_read.partition.input: watermark - partition_read.lowest}
        for partition_read in outcome.read.partitions
        if partition_read.dropped.get("late")
        and partition_read.lowest is not None
        and (watermark := plan.watermarks.get(partition_read.partition.input)) is not None
    ]
    return highest_by_name(*read, *(summary.behind for summary in outcome.shards.values()))


def _disorder_of(outcome: EpochOutcome, inputs: Mapping[str, InputState]) -> dict[str, int]:
    """By input, the most (ms) that a row of the epoch is behind the highest event time before it in its partition.
    `inputs` are as before the epoch."""
    disorder: dict[str, int] = {}
    for read in outcome.read.partitions:
        name = read.partition.input
        reached = inputs[name].progress.highest.get(partition_id(read.partition)) if name in inputs else None
        behind = 0 if reached is None or read.lowest is None else reached - read.lowest
        disorder[name] = max(disorder.get(name, 0), read.disorder, behind)
    return disorder


def highest_by_name(*behind: Mapping[str, int]) -> dict[str, int]:
    """Return the highest of the numbers of each name."""
    names = {name for counts in behind for name in counts}
    return {name: max(counts[name] for counts in behind if name in counts) for name in names}


def _count_dropped(outcome: EpochOutcome) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for read in outcome.read.partitions:
        counts.setdefault(read.partition.input, Counter()).update(read.dropped)
    for summary in outcome.shards.values():
        for name, dropped in summary.dropped.items():
            counts.setdefault(name, Counter()).update(dropped)
    return {name: count for name, count in counts.items() if count}
