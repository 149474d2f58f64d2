"""A job's identity in the state store and its committed state, as one frozen value, and how both are stored.

`JobState.of` builds it from the store's record, `JobState.after` from the state before an epoch and the outcome of the
epoch's tasks. `offsets`, `staged_segments` and `dropped` give what the store is asked to write. Nothing here does I/O.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import SideSpec
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.times import Floors
from joinery_runtime.core.pipeline.watermark import InputClock, Times, Watermark
from joinery_runtime.core.table.keyhash import shard_range
from joinery_runtime.core.table.segment import SegmentMeta, first_key
from joinery_runtime.engine.messages import EpochOutcome
from joinery_runtime.engine.plan import FORMAT, EpochPlan, InputState, check_format, input_states, partition_id
from joinery_runtime.engine.protocol import Action, next_action
from joinery_runtime.engine.report import StateSize, Totals
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.job import compare, same_rows
from joinery_runtime.job.model.owner import OwnerCandidate
from joinery_runtime.state.store import EpochRecord, JobRecord


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Who the job is to the state store: its name, the signature that its state must fit (rule M2), and its definition.
    The definition is everything that decides the rows of an epoch and where they go; a plan is replayed under the
    definition that made it. The state is acquired for the candidate; None: for whoever owns it."""

    name: str
    signature: Mapping[str, Any]
    definition: Mapping[str, Any]
    warn: Callable[[str], None] = field(default=lambda _: None)
    candidate: OwnerCandidate | None = None

    def defines(self, record: JobRecord) -> bool:
        """Return whether the record's plan and newest epoch were made under this definition."""
        return record.definition is None or same_rows(record.definition, self.definition)


def compare_with_state(identity: JobIdentity, record: JobRecord) -> tuple[str, ...]:
    """Return warnings about a job that continues with the state of another; raises IncompatibleState if it cannot
    (M2)."""
    if record.signature is None:
        return ()
    comparison = compare(record.signature, identity.signature)
    if comparison.refused:
        raise IncompatibleState(
            f"the state of job {identity.name} does not fit the job as it is now",
            facts="; ".join(comparison.refused),
            todo="Undo the change. To start from the beginning, without the state, give the job another name and "
            "another output: the job reads from startFrom on, and would write rows to the old output a second time. "
            "Under the operator, upgrade.mode: stateless does the same",
        )
    return comparison.warnings


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state after its newest committed epoch, and the plan of the next epoch if there already is one.

    `incarnation` is that of the job in the store. `segments` are the live ones, by key. `floors` say up to where
    committed epochs have closed each part of the state. `removed` counts, by `first_key`, rows of live segments that
    are no longer part of the state. `co_partitions` is how many partitions co-partitioned inputs have in common, once
    something was read (else 0). `committed_at_ms` is when the epoch was committed, by the store's clock; only a
    recovery sets it. `definition` names the definition under which the epoch was planned.
    """

    pipeline: Pipeline
    inputs: Mapping[str, InputState]
    incarnation: str = ""
    epoch: int = 0
    segments: Mapping[str, SegmentMeta] = field(default_factory=dict)
    floors: Floors = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    co_partitions: int = 0
    totals: Totals = field(default_factory=Totals)
    pending: EpochPlan | None = None
    committed_at_ms: int | None = None
    definition: str = ""

    @classmethod
    def of(cls, pipeline: Pipeline, record: JobRecord, newest: EpochRecord | None) -> JobState:
        """Build the state from the store's record; `newest` is the log entry of the epoch that the state is at."""
        floors, pending = stored_floors(record), None
        if record.plan is not None and next_action(record) is Action.REPLAY:
            pending = EpochPlan.from_json(record.plan)
            # Releases that stored no horizons knew inner joins only, where watermarks imply the horizons.
            if not pending.horizons:
                pending = replace(pending, horizons=times.horizons(pipeline, pending.times, floors))
        return cls(
            pipeline=pipeline,
            inputs=input_states((spec.name for spec in pipeline.inputs), record),
            incarnation=record.incarnation,
            epoch=record.epoch,
            segments={meta.key: meta for meta in record.segments},
            floors=floors,
            removed=stored_removed(record),
            co_partitions=stored_co_partitions(record),
            totals=Totals() if newest is None else Totals.of(newest.result),
            pending=pending,
            committed_at_ms=None if newest is None else newest.committed_at,
            definition="" if newest is None else newest.plan.get("definition", ""),
        )

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def remaining(self) -> list[SegmentMeta]:
        """The live segments; their `rows` count only rows that are still part of the state."""
        return without_removed(self.segments.values(), self.removed)

    @property
    def size(self) -> StateSize:
        return StateSize.of(self.remaining)

    @property
    def part_sizes(self) -> dict[str, StateSize]:
        return StateSize.by_part(self.remaining, self.pipeline.parts())

    @property
    def sides(self) -> Mapping[str, SideSpec]:
        """The sides of the job's steps, by the part of the state that each keeps."""
        return self.pipeline.parts()

    def needed_by(self, plan: EpochPlan) -> tuple[SegmentMeta, ...]:
        """Return the live segments in which the plan's tasks look up rows."""
        return tuple(s for s in self.segments.values() if times.needed(self.pipeline, s, plan.horizons))

    def horizons(self, now: Times) -> dict[str, Horizon]:
        """Return how far an epoch with these times closes each part of the state."""
        return times.horizons(self.pipeline, now, self.floors)

    def closes(self, now: Times) -> bool:
        """Return whether an epoch with these times, or one right after it, would emit something without any arrival
        (T3)."""
        reached = times.settled(self.pipeline, now, self.floors)
        return any(times.closes(self.pipeline, meta, reached) for meta in self.remaining)

    def due_from(self, now: Times) -> dict[str, int]:
        """For each input by whose time kept rows ask a table that an epoch with these times lets go: a time below which
        there is none."""
        horizons = self.horizons(now)
        due: dict[str, int] = {}
        for meta in self.remaining:
            step, side = self.pipeline.side(meta.part)
            if step.sides[-1].intake.table and times.closes(self.pipeline, meta, horizons):
                before, name = horizons[meta.part].previous, step.sides[side].time
                lowest = meta.ts_min if before is None else max(meta.ts_min, before + 1)
                due[name] = min(lowest, due.get(name, lowest))
        return due

    # --- what changes it ----------------------------------------------------------------------------------------------

    def planned(self, plan: EpochPlan | None) -> JobState:
        return replace(self, pending=plan)

    def raised(self, name: str, watermark: Watermark) -> JobState:
        """Return the same state with the input's watermark raised to at least `watermark`."""
        input_state = self.inputs[name]
        return replace(
            self, inputs={**self.inputs, name: replace(input_state, progress=input_state.progress.raised(watermark))}
        )

    def after(self, plan: EpochPlan, outcome: EpochOutcome, clocks: Mapping[str, InputClock]) -> JobState:
        """Return the state after the epoch of this plan is committed, with no next epoch planned yet."""
        dropped = self.dropped(plan, outcome)
        segments = {key: s for key, s in {**self.segments, **staged_segments(outcome)}.items() if key not in dropped}
        removed, live = Counter(self.removed), set(map(first_key, segments))
        for summary in outcome.shards.values():
            removed.update({first_key(key): count for key, count in summary.removed.items()})
        highest: dict[str, dict[str, int | None]] = {name: {} for name in self.inputs}
        for read in outcome.read.partitions:
            highest[read.partition.input][partition_id(read.partition)] = read.highest
        after = replace(
            self,
            inputs={
                name: input_state.after(plan, name, highest[name], clocks[name])
                for name, input_state in self.inputs.items()
            },
            epoch=plan.epoch,
            segments=segments,
            floors={**self.floors, **times.floors_after(plan.horizons)},
            removed={key: count for key, count in removed.items() if key in live},
            co_partitions=plan.co_partitions,
            pending=None,
            committed_at_ms=None,
            definition=plan.definition,
        )
        before, sizes = self.part_sizes, after.part_sizes
        rows = {part: (before[part].rows, size.rows) for part, size in sizes.items() if part in before}
        return replace(after, totals=self.totals.after(plan, outcome, rows))

    def dropped(self, plan: EpochPlan, outcome: EpochOutcome) -> set[str]:
        """Return segments that the epoch takes out of the live set: expired, merged into others, or no longer needed by
        any shard that has rows of them."""
        expired = {s.key for s in self.segments.values() if times.expired(self.pipeline, s, plan.horizons)}
        replaced = {key for summary in outcome.shards.values() for key in summary.replaced}
        finished = Counter(key for summary in outcome.shards.values() for key in summary.finished)
        ranges = [shard_range(shard, plan.shards) for shard in range(plan.shards)] if finished else []
        by_all = {
            key
            for key, count in finished.items()
            if count == sum(r.overlaps(self.segments[key].hash_min, self.segments[key].hash_max) for r in ranges)
        }
        return expired | replaced | by_all

    # --- how it is stored ---------------------------------------------------------------------------------------------

    def offsets(self) -> dict[str, bytes]:
        """Return the offsets to store, by source id, from which `of` restores this state."""
        removed = {"left": dict(self.removed)} if self.removed else {}
        partitions = {"co_partitions": self.co_partitions} if self.co_partitions else {}
        closed = {"format": FORMAT, "horizons": dict(self.floors)} | removed | partitions
        return {name: input_state.to_bytes() for name, input_state in self.inputs.items()} | {
            HORIZONS: json.dumps(closed).encode()
        }


def staged_segments(outcome: EpochOutcome) -> dict[str, SegmentMeta]:
    """Return the segments that the epoch adds to the live ones, by key."""
    return {meta.key: meta for summary in outcome.shards.values() for meta in summary.staged}


# --- a record of the store --------------------------------------------------------------------------------------------

HORIZONS = "$horizons"  # beside the inputs' offsets: no input's name starts with $


def input_offsets(record: JobRecord) -> dict[str, bytes]:
    """Return the stored progress of the inputs, by name."""
    return {name: data for name, data in record.offsets.items() if name != HORIZONS}


def live_segments(record: JobRecord) -> list[SegmentMeta]:
    """Return the state's segments, whose `rows` count only rows that are still part of it."""
    return without_removed(record.segments, stored_removed(record))


def stored_floors(record: JobRecord | None) -> dict[str, int]:
    """Return how far the last committed epoch has closed each part of the state."""
    return dict(_closed_parts(record).get("horizons", {}))


def stored_removed(record: JobRecord | None) -> dict[str, int]:
    """By segment (`first_key`), how many rows are no longer part of the state."""
    return dict(_closed_parts(record).get("left", {}))


def stored_co_partitions(record: JobRecord | None) -> int:
    """Return how many partitions co-partitioned inputs have in common, which decides where their rows are; 0: the
    inputs are not co-partitioned, or nothing was read."""
    return int(_closed_parts(record).get("co_partitions", 0))


def without_removed(segments: Iterable[SegmentMeta], removed: Mapping[str, int]) -> list[SegmentMeta]:
    """Return the segments with `removed` rows taken off their counts, by `first_key`: a migration gives segments other
    keys."""
    if not removed:
        return list(segments)
    return [replace(meta, rows=meta.rows - removed.get(first_key(meta.key), 0)) for meta in segments]


def _closed_parts(record: JobRecord | None) -> Mapping[str, Any]:
    data = record.offsets.get(HORIZONS) if record is not None else None
    if data is None:
        return {}
    doc: dict[str, Any] = json.loads(data)
    check_format(doc, "horizons")
    return doc
