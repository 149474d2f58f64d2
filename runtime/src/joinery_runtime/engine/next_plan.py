"""Decides what the next epoch reads and what its plan says, from a snapshot of the inputs and the job's state alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joinery_runtime.connectors.source import Bounds, Range
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputTime, all_idle
from joinery_runtime.engine.epoch_budget import UNKNOWN_BYTES, Backlog, Budget, EventTimeRates, RecordSizes, allocate
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.limits import InputActivity, Pauses, StateLimits
from joinery_runtime.engine.plan import EpochPlan, Inputs, partition_id
from joinery_runtime.engine.source_snapshot import SourceSnapshot, tables_first_read
from joinery_runtime.errors import LimitReached, SourceError
from joinery_runtime.formats.batch import PartitionRef

SHARDS_PER_CORE = 2
"""One core runs a shard while the other shard waits for Postgres or Kafka, and a large shard delays an epoch less."""

_SLACK = 4


@dataclass(frozen=True, slots=True)
class PlanSettings:
    shards: int
    budget: Budget
    checkpoint_interval_ms: int
    fingerprint: str
    definition: str = ""  # its name, see `definition_hash`
    tables: frozenset[str] = frozenset()  # inputs that are changelogs
    delays: Mapping[str, int] = field(default_factory=dict)  # by input, ms (T1)
    max_future: Mapping[str, int] = field(default_factory=dict)  # by input, ms (T11)
    limits: StateLimits = field(default_factory=StateLimits)
    late_warnings: Mapping[str, float | None] = field(default_factory=dict)  # by input: a share, None: never warns
    interval_ms: int = 0  # between the beginnings of two epochs, at least
    co_partitioned: bool = False


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """What earlier plans of this process leave for later ones."""

    first_ends: Mapping[PartitionRef, int] = field(default_factory=dict)  # where each partition ended when first seen
    checkpointed_ms: int | None = None  # when a checkpoint was last planned
    unsaved: bool = False  # records were read since that checkpoint
    tried_checkpoint: bool = False  # to shrink a state over its limit that nothing else can shrink

    def with_observed_ends(self, bounds: Iterable[Bounds]) -> PlanHistory:
        """Return the history with the ends of these partitions. The first end of a partition may move down: its
        topic may be recreated, and shorter."""
        first_ends = self.first_ends
        ends = {b.partition: min(b.end_exclusive, first_ends.get(b.partition, b.end_exclusive)) for b in bounds}
        return replace(self, first_ends={**first_ends, **ends})


def shards_for_cores(most: int, cores: int, newest: int) -> int:
    """Return how many shards the next epoch has: SHARDS_PER_CORE for each core, or up to twice as many if that divides
    `most`. `newest` is the number of the plan before (0: none).

    A shard costs an epoch 6 to 9 ms of CPU, whatever its rows, so a job whose `shards` leave room to grow would pay for
    that room in every epoch. Divisors keep the ranges nested: what an epoch with more shards writes lies within a shard
    of an epoch with fewer. The number falls only from more than four times what the cores need: a lost executor comes
    back, and segments that span shards are merged later than others.
    """
    enough = min(most, SHARDS_PER_CORE * max(1, cores))
    fewest = next((count for count in range(enough, min(most, 2 * enough) + 1) if most % count == 0), enough)
    keeps = fewest <= newest <= min(most, _SLACK * fewest) and (most % newest == 0 or newest == fewest)
    return newest if keeps else fewest


def read_shares(
    inputs: Inputs,
    snapshot: SourceSnapshot,
    settings: PlanSettings,
    waiting: Collection[str],
    paused: Collection[str],
    densities: EventTimeRates[PartitionRef],
    sizes: RecordSizes,
) -> list[tuple[Bounds, int]]:
    """Return how many records the next epoch reads of each partition; none of inputs that are `waiting` or `paused`. 0
    only fixes where a partition starts that was never planned."""
    assigned = [bound for bound in snapshot.bounds if bound.is_assigned]
    backlogs = [
        Backlog(
            partition=bound.partition,
            records=0 if bound.partition.input in paused else bound.end_exclusive - bound.start,
            highest=inputs[bound.partition.input].progress.highest.get(partition_id(bound.partition)),
            density=densities.get(bound.partition),
            record_bytes=sizes.get(bound.partition) or UNKNOWN_BYTES,
        )
        for bound in assigned
        if bound.partition.input not in waiting
    ]
    if not waiting and not paused and _is_one_epoch(snapshot.bounds, sizes, settings.budget.largest_part):
        share = {backlog.partition: backlog.records for backlog in backlogs}
    else:
        share = _allocate_records(backlogs, settings)
    counted = [(bound, share.get(bound.partition, 0)) for bound in assigned]
    return [
        (bound, count)
        for bound, count in counted
        if count or inputs[bound.partition.input].positions.get(bound.partition) != bound.start
    ]


def _allocate_records(backlogs: Sequence[Backlog[PartitionRef]], settings: PlanSettings) -> dict[PartitionRef, int]:
    """Read tables to their ends before streams if they take at most half of the budget: then no row of a stream has to
    wait for them, and the other half is for the streams, however fast a table grows."""
    budget = settings.budget
    tables = [backlog for backlog in backlogs if backlog.partition.input in settings.tables]
    counts = np.array([table.records for table in tables], dtype=np.int64)
    sizes = np.array([table.records * table.record_bytes for table in tables])
    half = replace(budget, records=budget.records // 2, bytes=budget.bytes // 2)
    if not counts.any() or not half.allows(counts, sizes):
        return allocate(backlogs, budget)
    streams = [backlog for backlog in backlogs if backlog.partition.input not in settings.tables]
    rest = replace(budget, records=budget.records - int(counts.sum()), bytes=int(budget.bytes - sizes.sum()))
    return {table.partition: table.records for table in tables} | allocate(streams, rest)


def _is_one_epoch(bounds: Sequence[Bounds], sizes: RecordSizes, budget: Budget) -> bool:
    """Return whether all records that there will ever be fit in one epoch. Then no row is late, however unsorted the
    inputs are: the first epoch has no watermark (T3)."""
    if not all(bound.final and bound.is_assigned for bound in bounds):
        return False
    records = size = 0.0
    for bound in bounds:
        unread = bound.end_exclusive - bound.start
        records += unread / (bound.record_bytes or 1)
        size += unread if bound.record_bytes else unread * (sizes.get(bound.partition) or UNKNOWN_BYTES)
    return records <= budget.records and size <= budget.bytes


def next_plan(
    state: JobState,
    snapshot: SourceSnapshot,
    ranges: Collection[Range],
    pauses: Pauses,
    settings: PlanSettings,
    history: PlanHistory,
    *,
    fixes_starts: bool,
    always: bool,
) -> tuple[EpochPlan | None, PlanHistory]:
    """Return the plan that reads these ranges (None if it would do nothing), and what later plans need to know. With
    `fixes_starts` it says where partitions start that it does not read and no plan has read. If the state is over a
    limit that no reading can relieve, first tries one checkpoint, which merges segments and drops rows that are no
    longer needed. Raises LimitReached if that does not help."""
    inputs, bounds = state.inputs, snapshot.bounds
    all_bounds = (*bounds, *snapshot.waiting)
    now, reached = _input_times(state, snapshot, ranges, settings)
    horizons = state.horizons(now)
    closes = state.closes(now) or pauses.shrinks(horizons)
    stuck = None if closes else pauses.stuck_error(_input_activity(snapshot))
    checkpoint, history = _plan_checkpoint(history, snapshot.now_ms, settings.checkpoint_interval_ms, stuck)
    unplanned = _new_starts(bounds, ranges, inputs)
    starts = unplanned if fixes_starts else {}
    needed = ranges or checkpoint or closes or always or snapshot.deleted or _is_shared(starts, bounds)
    if not needed and not _has_news(state, snapshot, settings.checkpoint_interval_ms):
        return None, history
    plan = EpochPlan(
        epoch=state.epoch + 1,
        shards=settings.shards,
        ranges=tuple(ranges),
        watermarks={name: value.watermark for name, value in snapshot.progress.items()},
        idle={name: tuple(parts) for name, parts in snapshot.idle.items()},
        ended=snapshot.ended,
        checkpoint=checkpoint,
        fingerprint=settings.fingerprint,
        definition=settings.definition,
        lost={partition_id(bound.partition): bound.lost for bound in bounds if bound.lost},
        stops=_new_stops(all_bounds, inputs),
        topic_ids=_new_topic_ids([*all_bounds, *snapshot.deleted], inputs),
        horizons=horizons,
        highest={name: time.highest for name, time in now.items()},
        tables_read=tables_first_read(all_bounds, ranges, inputs, settings.tables, history.first_ends),
        max_future=settings.max_future,
        pace={
            name: (value.idle_from, value.idle_ms)
            for name, value in snapshot.progress.items()
            if value.idle_from is not None
        },
        co_partitions=common_partitions(bounds, inputs, state.co_partitions) if settings.co_partitioned else 0,
        starts=starts,
        unplanned=tuple(sorted({ref.input for ref in unplanned})),
        reached=reached,
        unread=snapshot.unread_streams(inputs, ranges, settings.tables),
        topic_numbers=_topic_numbers(bounds, ranges, inputs),
    )
    return plan, replace(history, unsaved=history.unsaved or bool(ranges))


def _input_times(
    state: JobState, snapshot: SourceSnapshot, ranges: Collection[Range], settings: PlanSettings
) -> tuple[dict[str, InputTime], dict[str, int]]:
    """Return the times of the inputs in an epoch that reads these ranges, and `InputTime.reached` of those that are
    behind."""
    inputs = state.inputs
    # The current watermarks, and the event times that the rows read so far have reached.
    now = {name: InputTime(value.watermark, inputs[name].progress.newest) for name, value in snapshot.progress.items()}
    reached = snapshot.reached_times(inputs, ranges, settings.tables, settings.delays)
    if settings.tables:
        # Rows that have only waited for their table are not joined yet: the table must keep their versions (A2).
        for name, due in state.due_from(now).items():
            reached[name] = min(due, reached.get(name, due))
    return {name: replace(time, reached=reached.get(name, END_OF_TIME)) for name, time in now.items()}, reached


def _plan_checkpoint(
    history: PlanHistory, now_ms: int, interval_ms: int, stuck: LimitReached | None
) -> tuple[bool, PlanHistory]:
    """Return whether the next epoch is a checkpoint, and the history with that. Raises `stuck`, the error of a state
    that is over its limit, when no checkpoint can shrink that state."""
    if stuck is not None and (history.tried_checkpoint or not history.unsaved):
        raise stuck
    since = now_ms if history.checkpointed_ms is None else history.checkpointed_ms
    history = replace(history, checkpointed_ms=since, tried_checkpoint=stuck is not None)
    if stuck is None and not (history.unsaved and now_ms - since >= interval_ms):
        return False, history
    return True, replace(history, checkpointed_ms=now_ms, unsaved=False)


def _has_news(state: JobState, snapshot: SourceSnapshot, checkpoint_interval_ms: int) -> bool:
    """Return whether a plan has to record something about the inputs even if it reads nothing: that one has begun
    without a partition yet, that one has ended, or for how long all of them have been idle."""
    inputs = state.inputs
    if _new_topic_ids(snapshot.waiting, inputs).keys() - {bound.partition.input for bound in snapshot.bounds}:
        return True
    if any(not inputs[name].progress.ended for name in snapshot.ended):
        return True
    # A restart continues from the committed part of the time that all inputs have been idle.
    unsaved_ms = max(
        (value.idle_ms - inputs[name].progress.idle_ms for name, value in snapshot.progress.items()), default=0
    )
    return unsaved_ms >= max(1, checkpoint_interval_ms) and bool(state.remaining)


def common_partitions(bounds: Iterable[Bounds], inputs: Collection[str], earlier: int) -> int:
    """Return how many partitions co-partitioned inputs have in common: the greatest common divisor of their topics'
    partition counts, or the number `earlier` of an earlier plan (0: none); 0 while an input has no partition. Raises
    SourceError if the divisor is 1, or if `earlier` does not divide the present count of a topic."""
    counts = Counter((bound.partition.input, bound.partition.topic) for bound in bounds)
    if not earlier and {name for name, _ in counts} != set(inputs):
        return 0
    common = earlier or math.gcd(*counts.values())
    facts = ", ".join(f"topic {topic} of input {name} has {n}" for (name, topic), n in sorted(counts.items()))
    if any(n % common for n in counts.values()):
        raise SourceError(
            "coPartitioned: a topic's number of partitions has changed",
            facts=f"rows are in the state by {common} partitions, which must divide the number of each topic: {facts}",
            todo=f"Add partitions until each topic has a multiple of {common}, or start the job with new state "
            "(joinery state migrate --anew)",
        )
    if not earlier and common == 1 and max(counts.values(), default=1) > 1:
        raise SourceError(
            "coPartitioned: the topics' numbers of partitions have no divisor in common",
            facts=f"equal keys are in no partitions that belong together: {facts}",
            todo="Give the topics the same number of partitions, or one a multiple of the other's, or leave "
            "coPartitioned out",
        )
    return common


def _input_activity(snapshot: SourceSnapshot) -> InputActivity:
    return InputActivity(
        unread=[name for name, records in snapshot.backlog.items() if records],
        idle=[name for name, value in snapshot.progress.items() if all_idle({name: value}, snapshot.idle)],
        ended=snapshot.ended,
        watermarks={name: value.watermark for name, value in snapshot.progress.items()},
    )


def _new_starts(bounds: Iterable[Bounds], ranges: Iterable[Range], inputs: Inputs) -> dict[PartitionRef, int]:
    """Where partitions start that neither an earlier plan nor these ranges have."""
    planned = {planned.partition for planned in ranges}
    return {
        bound.partition: bound.start
        for bound in bounds
        if bound.partition not in planned and bound.partition not in inputs[bound.partition.input].positions
    }


def _topic_numbers(bounds: Iterable[Bounds], ranges: Iterable[Range], inputs: Inputs) -> dict[str, dict[str, int]]:
    """Return the numbers of the topics that these ranges read, and those that the topics of these bounds get now; only
    of inputs that have one other than 0."""
    by_input: dict[str, dict[str, int]] = {}
    for name, state in inputs.items():
        stored = state.topic_numbers
        read = {ref.topic for ref in state.positions}
        input_bounds = (bound for bound in bounds if bound.partition.input == name)
        topics = {planned.partition.topic for planned in ranges if planned.partition.input == name}
        numbers = {topic: number for topic, number in stored.by_topic.items() if topic in topics}
        numbers |= stored.of_new(input_bounds, read, state.topic_ids)
        if any(numbers.values()):
            by_input[name] = numbers
    return by_input


def _is_shared(starts: Iterable[PartitionRef], bounds: Collection[Bounds]) -> bool:
    """Return whether one of these partitions belongs to an input of which this job has some partitions and other
    members have the rest. At the start the group first gives a job none, which is no reason for an epoch without
    rows."""
    own, foreign = ({b.partition.input for b in bounds if b.is_assigned is assigned} for assigned in (True, False))
    return any(ref.input in own & foreign for ref in starts)


def _new_stops(bounds: Iterable[Bounds], inputs: Inputs) -> dict[PartitionRef, int]:
    stored = {name: state.stops for name, state in inputs.items()}
    return {
        bound.partition: bound.stop
        for bound in bounds
        if bound.stop is not None and stored[bound.partition.input].get(bound.partition) != bound.stop
    }


def _new_topic_ids(bounds: Iterable[Bounds], inputs: Inputs) -> dict[str, dict[str, str]]:
    """Return the topic ids that the inputs do not know yet, by input and topic; "" for a deleted topic."""
    new_ids: dict[str, dict[str, str]] = {}
    for bound in bounds:
        ref = bound.partition
        if bound.deleted or (bound.topic_id and inputs[ref.input].topic_ids.get(ref.topic) != bound.topic_id):
            new_ids.setdefault(ref.input, {})[ref.topic] = bound.topic_id
    return new_ids
