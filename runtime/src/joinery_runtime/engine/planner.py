"""Makes epoch plans: what can be read, how much of it, and the current watermarks.

`Planner` asks the sources and the clock (`SourceSnapshot`), and keeps what later plans need to know of earlier ones
(`PlanHistory`). `read_shares` and `next_plan` decide from these and the job's state alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joinery_runtime.connectors.source import Bounds, Range, SourcePlanner
from joinery_runtime.connectors.store_identity import StoreIdentity
from joinery_runtime.core.pipeline.watermark import (
    END_OF_TIME,
    InputClock,
    InputProgress,
    InputTime,
    advance,
    all_idle,
)
from joinery_runtime.engine.alignment import Backlog, Budget, EventTimeRates, allocate
from joinery_runtime.engine.idleness import Idleness
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.limits import InputActivity, Pauses, StateLimits
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.engine.plan import EpochPlan, InputState, partition_id
from joinery_runtime.engine.plan_size import UNKNOWN_BYTES, RecordSizes, allowed_bytes, smaller_plan
from joinery_runtime.engine.table_order import (
    reached_time,
    reads_ahead_of_tables,
    streams_waiting_for_tables,
    tables_first_read,
    unread_partitions,
    without_overtaking,
)
from joinery_runtime.errors import SourceError, Unavailable
from joinery_runtime.formats.batch import PartitionRef

REJOINS_MS = 300_000

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


Inputs = Mapping[str, InputState]


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What a call of `Planner.plan` found."""

    backlog: Mapping[str, int] = field(default_factory=dict)  # by input: unread records
    unassigned_partitions: tuple[
        PartitionRef, ...
    ] = ()  # with unread records, held by other members of the consumer group
    paused: Mapping[str, str] = field(default_factory=dict)  # by input: which limit keeps it from being read
    beyond_end: Mapping[str, str] = field(default_factory=dict)  # by ended input: a warning of what came after its end
    finished: bool = False  # every input has been read to its final end, or to where this run ends

    @classmethod
    def of(cls, snapshot: SourceSnapshot, paused: Mapping[str, str]) -> SourceStatus:
        unassigned = tuple(b.partition for b in snapshot.bounds if not b.is_assigned and b.start < b.end_exclusive)
        done = all(bound.final and bound.start >= bound.end_exclusive for bound in snapshot.bounds)
        finished = done and {bound.partition.input for bound in snapshot.bounds} == snapshot.backlog.keys()
        return cls(snapshot.backlog, unassigned, paused, snapshot.beyond_end, finished)

    def of_one_run(self, snapshot: SourceSnapshot, inputs: Inputs) -> SourceStatus:
        """The status for a run that reads up to where the inputs ended at its start. It is finished only once each
        partition's position is committed, or the next run would apply `startFrom` again. A paused input does not count:
        it waits for rows that this run does not read."""
        finished = all(
            bound.partition.input in self.paused
            or bound.end_exclusive <= bound.start == inputs[bound.partition.input].positions.get(bound.partition)
            for bound in snapshot.bounds
        )
        return replace(self, finished=finished)


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """The inputs at one moment."""

    bounds: tuple[Bounds, ...]  # what can be read of each partition
    waiting: tuple[Bounds, ...]  # of partitions that wait for other partitions of their input
    deleted: tuple[Bounds, ...]
    backlog: Mapping[str, int]  # by input: unread records
    idle: Mapping[str, Collection[str]]  # by input: idle partitions
    ended: tuple[str, ...]  # inputs that have been read to their final end
    progress: Mapping[str, InputProgress]  # with idleness and ends applied
    now_ms: int
    beyond_end: Mapping[str, str] = field(default_factory=dict)  # as in SourceStatus

    def without_reads(self, initial_inputs: Inputs | None = None) -> SourceSnapshot:
        """Return the snapshot for a plan that reads nothing. Lost records and replaced topics wait for the next plan
        that reads. With `initial_inputs`, the plan fixes where partitions start that these inputs do not know."""

        def without_read(bound: Bounds) -> Bounds:
            new = (
                initial_inputs is not None
                and bound.partition.topic not in initial_inputs[bound.partition.input].topic_ids
            )
            return replace(bound, lost=0, topic_id=bound.topic_id if new else "")

        bounds, waiting = (tuple(map(without_read, bounds)) for bounds in (self.bounds, self.waiting))
        return replace(self, bounds=bounds, waiting=waiting, deleted=())

    def reached_times(self, inputs: Inputs, ranges: Collection[Range], settings: PlanSettings) -> dict[str, int]:
        """`InputTime.reached` of the inputs that are behind, in an epoch that reads these ranges.

        A table is behind if the epoch leaves records of it unread. A stream is behind if the epoch before did: what has
        arrived since then is no backlog."""
        reached: dict[str, int] = {}
        for name, state in inputs.items() if settings.tables else ():
            delay = settings.delays.get(name, 0)
            bounds = self.of_input(name)
            if name in settings.tables:
                reached[name] = reached_time(state, unread_partitions(bounds, ranges), delay)
            elif state.behind:
                # What waits for other partitions has later times than they have.
                reached[name] = reached_time(state, unread_partitions(b for b in bounds if not b.waits), delay)
        return {name: at for name, at in reached.items() if at != END_OF_TIME}

    def unread_streams(self, inputs: Inputs, ranges: Collection[Range], tables: Collection[str]) -> tuple[str, ...]:
        """The streams of which an epoch with these ranges leaves records unread. None at a table's first read, which
        does not wait for streams (A4)."""
        if not tables or not all(inputs[name].first_read for name in tables):
            return ()
        streams = sorted(inputs.keys() - tables)
        return tuple(name for name in streams if unread_partitions(self.of_input(name), ranges))

    def of_input(self, name: str) -> list[Bounds]:
        return [bound for bound in (*self.bounds, *self.waiting) if bound.partition.input == name]


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


class Planner:
    """Plans one job's epochs; `status` is what the newest `plan` call found. With `once`, every partition is read up to
    where it ended at the first call, which does not end the input."""

    def __init__(
        self,
        settings: PlanSettings,
        sources: Mapping[str, SourcePlanner],
        clocks: Mapping[str, InputClock],
        idleness: Idleness,
        *,
        once: bool = False,
    ) -> None:
        self._once = once
        self._ends_of_now: dict[PartitionRef, int] | None = None
        self._settings, self._sources, self.clocks, self._idleness = settings, sources, clocks, idleness
        self._rejoined_at: list[int] = []
        self._event_time_rates: EventTimeRates[PartitionRef] = EventTimeRates()
        self._sizes = RecordSizes()
        self._history = PlanHistory()
        self._planned_at_ms: int | None = None
        self._newest_shards = 0  # of the newest plan of this process
        self.status = SourceStatus()

    @property
    def limits(self) -> StateLimits:
        return self._settings.limits

    @property
    def late_warnings(self) -> Mapping[str, float | None]:
        return self._settings.late_warnings

    @property
    def shards(self) -> int:
        """The most shards that the next plan may have."""
        return self._settings.shards

    def plan(
        self,
        state: JobState,
        now_ms: int,
        *,
        clock_ms: int | None = None,
        cores: int | None = None,
        always: bool = False,
        reads: bool = True,
    ) -> EpochPlan | None:
        """Plans the epoch after this state; None when there is nothing to do. Raises SourceError, and LimitReached when
        records wait that no later plan could read either.

        A plan without rows is made with `always` (a step of a trace), for a partition that was never planned, to fix
        where it starts, to store that an input has begun which has no partition yet, to store that an input has ended
        (T7), and when rows of the state are due (T3). A plan that reads also fixes where the partitions of
        other members start: `startFrom: latest` may mean another offset after a restart. Without `reads` the plan reads
        nothing. `clock_ms` is the wall clock that the plan records (T11). `cores` are those of the epoch's tasks; None:
        unknown, and the epoch has all shards.
        """
        snapshot = self._observe(state.inputs, now_ms)
        pauses = Pauses(self.limits, state.pipeline, state.remaining)
        self.status = SourceStatus.of(snapshot, pauses.inputs())
        if self._once:
            self.status = self.status.of_one_run(snapshot, state.inputs)
        if not (always or self._is_due(snapshot)):
            return None
        ranges: list[Range] = []
        readable = [
            b for b in snapshot.bounds if b.start < b.end_exclusive and b.partition.input not in self.status.paused
        ]
        self._history = self._history.with_observed_ends((*snapshot.bounds, *snapshot.waiting))
        # While all unread records of an input are in partitions that others hold, the other inputs wait for it: their
        # rows would only fill the state.
        lacks = self._lacks_partitions(state, snapshot)
        if lacks or not reads:
            snapshot = snapshot.without_reads(state.inputs if reads else None)
        elif {b.partition.input for b in readable} == {b.partition.input for b in readable if b.is_assigned}:
            ranges = self._ranges(state.inputs, snapshot)
        shards = self._settings.shards
        if cores is not None and not self._settings.co_partitioned:
            shards = shards_for_cores(shards, cores, self._newest_shards)
        settings = replace(self._settings, shards=shards)
        plan, self._history = next_plan(
            state, snapshot, ranges, pauses, settings, self._history, fixes_starts=reads, always=always
        )
        if plan is not None:
            plan = replace(plan, clock=clock_ms)
            self._newest_shards = shards
            if reads:
                self._planned_at_ms = now_ms
        return plan

    def _ranges(self, inputs: Inputs, snapshot: SourceSnapshot) -> list[Range]:
        """What the next epoch reads. Nothing of a stream that would get ahead of its table (A4)."""
        tables, bounds = self._settings.tables, (*snapshot.bounds, *snapshot.waiting)
        waiting = streams_waiting_for_tables(bounds, inputs, tables, self._history.first_ends)
        ranges = self._cut_shares(inputs, snapshot, waiting)
        reached = snapshot.reached_times(inputs, ranges, self._settings)
        if not waiting and reads_ahead_of_tables(inputs, ranges, tables, reached):
            ranges = self._cut_shares(inputs, snapshot, inputs.keys() - tables)
        return ranges

    def _cut_shares(self, inputs: Inputs, snapshot: SourceSnapshot, waiting: Collection[str]) -> list[Range]:
        settings, paused = self._settings, self.status.paused
        shares = read_shares(inputs, snapshot, settings, waiting, paused, self._event_time_rates, self._sizes)
        return [
            self._sources[bound.partition.input].cut(bound, count)
            if count
            else Range(bound.partition, bound.start, bound.start)
            for bound, count in shares
        ]

    def _lacks_partitions(self, state: JobState, snapshot: SourceSnapshot) -> bool:
        """Whether the number of partitions that co-partitioned inputs have in common is still unknown, because an
        input's topic pattern matches no topic yet."""
        inputs = {bound.partition.input for bound in snapshot.bounds}
        return self._settings.co_partitioned and not state.co_partitions and inputs != self._sources.keys()

    def _is_due(self, snapshot: SourceSnapshot) -> bool:
        """Whether an epoch may begin: after the interval, or when waiting would not make it larger."""
        last, interval = self._planned_at_ms, self._settings.interval_ms
        if last is None or snapshot.now_ms - last >= interval or all(bound.final for bound in snapshot.bounds):
            return True
        waiting = [
            (bound.end_exclusive - bound.start, self._sizes.get(bound.partition) or UNKNOWN_BYTES)
            for bound in snapshot.bounds
            if bound.partition.input not in self.status.paused
        ]
        budget = self._settings.budget
        records, size = sum(count for count, _ in waiting), sum(count * record_bytes for count, record_bytes in waiting)
        return self._once or records >= budget.records or size >= budget.bytes

    def _observe(self, inputs: Inputs, now_ms: int) -> SourceSnapshot:
        bounds = [
            bound for name, source in self._sources.items() for bound in source.bounds(inputs[name].stored_offsets)
        ]
        existing = tuple(_stop_at_end(bound, inputs[bound.partition.input]) for bound in bounds if not bound.deleted)
        self._idleness.observe((bound for bound in existing if not bound.waits), now_ms)
        if self._once:
            existing = self._cut_to_first_ends(existing, inputs)
        ready = tuple(bound for bound in existing if not bound.waits)
        idle, ended = self._idleness.idle(), _ended_inputs(ready, self._sources)
        backlog = dict.fromkeys(self._sources, 0)
        for bound in existing:
            backlog[bound.partition.input] += bound.end_exclusive - bound.start
        return SourceSnapshot(
            bounds=ready,
            waiting=tuple(bound for bound in existing if bound.waits),
            deleted=tuple(bound for bound in bounds if bound.deleted),
            backlog=backlog,
            idle=idle,
            ended=ended,
            progress=self.watermarks(_with_partitions(inputs, ready), idle, ended, now_ms),
            now_ms=now_ms,
            beyond_end=_beyond_end_warnings(bounds, inputs),
        )

    def _cut_to_first_ends(self, bounds: tuple[Bounds, ...], inputs: Inputs) -> tuple[Bounds, ...]:
        """Cuts the bounds to where the partitions ended at the first call. A partition that appears later waits for
        the next run. An input that ended in an earlier run stays ended."""
        if self._ends_of_now is None:
            self._ends_of_now = {bound.partition: bound.end_exclusive for bound in bounds}
        ends = self._ends_of_now
        return tuple(
            replace(
                bound,
                end_exclusive=max(bound.start, min(bound.end_exclusive, ends.get(bound.partition, bound.start))),
                final=inputs[bound.partition.input].progress.ended,
                stop=None,
            )
            for bound in bounds
        )

    def check_sources(self, inputs: Inputs) -> None:
        """Asks every source once, while other parts of the job start: this joins the consumer groups, and finds missing
        topics and lost records. Raises SourceError."""
        for name, source in self._sources.items():
            source.bounds(inputs[name].stored_offsets)

    def watermarks(
        self, inputs: Inputs, idle: Mapping[str, Collection[str]], ended: Collection[str], now_ms: int
    ) -> dict[str, InputProgress]:
        """The watermarks that the rows read so far imply (T3), with idleness and ends applied."""
        progress = {name: state.progress for name, state in inputs.items()}
        committed = max((value.idle_ms for value in progress.values()), default=0)
        idle_for = self._idleness.idle_for_ms(all_idle(progress, idle), now_ms, committed)
        return advance(progress, self.clocks, idle=idle, ended=ended, idle_for_ms=idle_for)

    # --- partitions that are shared out -------------------------------------------------------------------------------

    def replaced_partitions(self, plan: EpochPlan, inputs: Inputs) -> frozenset[PartitionRef]:
        """Partitions of the plan whose topic is no longer the one that the plan was made for. Raises DataLoss if there
        are any, unless the job allows it."""
        ids = {name: {**inputs[name].topic_ids, **plan.topic_ids.get(name, {})} for name in self._sources}
        replaced = [
            source.find_replaced_partitions(refs, ids[name]) for name, source, refs in self._by_source(plan.partitions)
        ]
        return frozenset().union(*replaced)

    def pin(self, partitions: Iterable[PartitionRef]) -> bool:
        """Holds these partitions until `unpin`. Returns False if another member has one of them; then holds none."""
        pinned = all(source.pin(refs) for _, source, refs in self._by_source(partitions))
        if not pinned:
            self.unpin({})
        return pinned

    def is_pinned(self) -> bool:
        return all(source.is_pinned() for source in self._sources.values())

    def unpin(self, inputs: Inputs) -> None:
        """Ends the hold; `inputs` has the inputs' states if the epoch was committed, and is empty otherwise."""
        for name, source in self._sources.items():
            source.unpin(inputs[name].positions if name in inputs else {})

    def rejoin(self, now_ms: int) -> int:
        """Rejoins the consumer groups. Returns how often that happened within the last REJOINS_MS, this time
        included."""
        for source in self._sources.values():
            source.rejoin()
        self._rejoined_at = [at for at in self._rejoined_at if now_ms - at < REJOINS_MS] + [now_ms]
        return len(self._rejoined_at)

    def unavailability(self) -> Unavailable | None:
        """The source that does not answer now, if there is one."""
        return next(
            (error for source in self._sources.values() if (error := source.unavailability()) is not None), None
        )

    def other_store(self, own: StoreIdentity) -> StoreIdentity | None:
        """The store of the driver that last committed offsets to a group of this job, if it is not `own`."""
        stores = (source.committed_by() for source in self._sources.values())
        return next((store for store in stores if store is not None and store.id != own.id), None)

    def _by_source(self, partitions: Iterable[PartitionRef]) -> list[tuple[str, SourcePlanner, list[PartitionRef]]]:
        listed = list(partitions)
        return [(n, source, [ref for ref in listed if ref.input == n]) for n, source in self._sources.items()]

    def learn(self, reads: Iterable[PartitionRead], before: Inputs) -> None:
        """Learns record densities and sizes from a finished epoch; `before` is the inputs' state at its start."""
        for read in reads:
            highest = before[read.partition.input].progress.highest.get(partition_id(read.partition))
            self._event_time_rates.observe(read.partition, read.records, highest, read.lowest, read.highest)
            self._sizes.observe(read.partition, read.records, read.bytes)

    # --- how large a plan is ------------------------------------------------------------------------------------------

    def learn_size(self, partition: PartitionRef, records: int, size: int) -> None:
        """Learns record sizes from what an unfinished epoch has read of a partition."""
        self._sizes.observe(partition, records, size)

    def allowed_bytes(self, plan: EpochPlan) -> dict[PartitionRef, int]:
        """The most bytes that reading each range of the plan may yield. A range that is not named has no limit."""
        return allowed_bytes(plan.ranges, self._sizes, self._settings.budget, self._records)

    def smaller(self, plan: EpochPlan) -> EpochPlan | None:
        """Returns the same epoch cut to the present budget; None if the plan is within it."""
        smaller = smaller_plan(plan, self._sizes, self._settings.budget, self._records, self._cut)
        tables = self._settings.tables
        return smaller if smaller is None or not tables else without_overtaking(smaller, plan, tables)

    def _records(self, planned: Range, record_bytes: float) -> int:
        return self._sources[planned.partition.input].records(planned, record_bytes)

    def _cut(self, planned: Range, records: int) -> Range:
        bounds = Bounds(planned.partition, planned.start, planned.end_exclusive)
        return self._sources[planned.partition.input].cut(bounds, records)

    def rescale(self, shards: int) -> None:
        """Sets the most shards of all epochs from the next plan on."""
        self._settings = replace(self._settings, shards=shards)


# --- decisions --------------------------------------------------------------------------------------------------------


def shards_for_cores(most: int, cores: int, newest: int) -> int:
    """How many shards the next epoch has: SHARDS_PER_CORE for each core, or up to twice as many if that divides `most`.
    `newest` is the number of the plan before (0: none).

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
    """How many records the next epoch reads of each partition; none of inputs that are `waiting` or `paused`. 0 only
    fixes where a partition starts that was never planned."""
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
    if not waiting and not paused and _is_one_epoch(snapshot.bounds, sizes, settings.budget):
        share = {backlog.partition: backlog.records for backlog in backlogs}
    else:
        share = _allocate(backlogs, settings)
    counted = [(bound, share.get(bound.partition, 0)) for bound in assigned]
    return [
        (bound, count)
        for bound, count in counted
        if count or inputs[bound.partition.input].positions.get(bound.partition) != bound.start
    ]


def _allocate(backlogs: Sequence[Backlog[PartitionRef]], settings: PlanSettings) -> dict[PartitionRef, int]:
    """Reads tables to their ends before streams if they take at most half of the budget: then no row of a stream has to
    wait for them, and the other half is for the streams, however fast a table grows."""
    budget = settings.budget
    tables = [backlog for backlog in backlogs if backlog.partition.input in settings.tables]
    records, size = sum(table.records for table in tables), sum(table.records * table.record_bytes for table in tables)
    if not records or 2 * records > budget.records or 2 * size > budget.bytes:
        return allocate(backlogs, budget)
    streams = [backlog for backlog in backlogs if backlog.partition.input not in settings.tables]
    rest = Budget(budget.records - records, int(budget.bytes - size))
    return {table.partition: table.records for table in tables} | allocate(streams, rest)


def _is_one_epoch(bounds: Sequence[Bounds], sizes: RecordSizes, budget: Budget) -> bool:
    """Whether all records that there will ever be fit in one epoch. Then no row is late, however unsorted the inputs
    are: the first epoch has no watermark (T3)."""
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
    """Returns the plan that reads these ranges (None if it would do nothing), and what later plans need to know. With
    `fixes_starts` it says where partitions start that it does not read and no plan has read. If the state is over a
    limit that no reading can relieve, first tries one checkpoint, which merges segments and drops rows that are no
    longer needed. Raises LimitReached if that does not help."""
    inputs, bounds = state.inputs, snapshot.bounds
    all_bounds = (*bounds, *snapshot.waiting)
    # The current watermarks, and the event times that the rows read so far have reached.
    now = {name: InputTime(value.watermark, inputs[name].progress.newest) for name, value in snapshot.progress.items()}
    reached = snapshot.reached_times(inputs, ranges, settings)
    if settings.tables:
        # Rows that have only waited for their table are not joined yet: the table must keep their versions (A2).
        for name, due in state.due_from(now).items():
            reached[name] = min(due, reached.get(name, due))
    now = {name: replace(time, reached=reached.get(name, END_OF_TIME)) for name, time in now.items()}
    horizons = state.horizons(now)
    closes = state.closes(now) or pauses.shrinks(horizons)
    stuck = None if closes else pauses.stuck(_activity(snapshot))
    if stuck is not None and (history.tried_checkpoint or not history.unsaved):
        raise stuck
    since = snapshot.now_ms if history.checkpointed_ms is None else history.checkpointed_ms
    due = history.unsaved and snapshot.now_ms - since >= settings.checkpoint_interval_ms
    checkpoint = due or stuck is not None
    history = replace(history, checkpointed_ms=since, tried_checkpoint=stuck is not None)
    # A restart continues from the committed part of the time that all inputs have been idle.
    unsaved_ms = max(
        (value.idle_ms - inputs[name].progress.idle_ms for name, value in snapshot.progress.items()), default=0
    )
    saves = unsaved_ms >= max(1, settings.checkpoint_interval_ms) and bool(state.remaining)
    unplanned = _new_starts(bounds, ranges, inputs)
    starts = unplanned if fixes_starts else {}
    begins = _new_topic_ids(snapshot.waiting, inputs).keys() - {bound.partition.input for bound in bounds}
    ends = any(not inputs[name].progress.ended for name in snapshot.ended)
    reasons = (ranges, _is_shared(starts, bounds), begins, ends, checkpoint, snapshot.deleted, always, closes, saves)
    if not any(reasons):
        return None, history
    if checkpoint:
        history = replace(history, checkpointed_ms=snapshot.now_ms, unsaved=False)
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


def common_partitions(bounds: Iterable[Bounds], inputs: Collection[str], earlier: int) -> int:
    """How many partitions co-partitioned inputs have in common: the greatest common divisor of their topics' partition
    counts, or the number `earlier` of an earlier plan (0: none); 0 while an input has no partition. Raises SourceError
    if the divisor is 1, or if `earlier` does not divide the present count of a topic."""
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


def _activity(snapshot: SourceSnapshot) -> InputActivity:
    return InputActivity(
        unread=[name for name, records in snapshot.backlog.items() if records],
        idle=[name for name, value in snapshot.progress.items() if all_idle({name: value}, snapshot.idle)],
        ended=snapshot.ended,
        watermarks={name: value.watermark for name, value in snapshot.progress.items()},
    )


def _stop_at_end(bound: Bounds, state: InputState) -> Bounds:
    """Keeps an input that has ended at its end (T7): records added later would meet a watermark of +infinity."""
    return replace(bound, end_exclusive=bound.start, final=True) if state.progress.ended else bound


def _beyond_end_warnings(bounds: Iterable[Bounds], inputs: Inputs) -> dict[str, str]:
    """Return a warning for each input that has ended and has more than was read by then."""
    more: dict[str, list[str]] = {}
    for bound in bounds:
        name = bound.partition.input
        if inputs[name].progress.ended and bound.end_exclusive > bound.start:
            more.setdefault(name, []).append(bound.partition.topic)
    return {
        name: f"The end of input {name} is committed, and more was added since: to {topics[0]}"
        f"{f' and {len(topics) - 1} more' if len(topics) > 1 else ''}. It is not read. For files that are added while "
        "a job lives, use watch: true, or run the job with --once, which ends no input; to read this now, start the "
        "job with new state (joinery state delete)"
        for name, topics in more.items()
    }


def _with_partitions(inputs: Inputs, bounds: Iterable[Bounds]) -> dict[str, InputState]:
    """Fits each input's progress to the partitions that exist. A partition holds its input's watermark back from the
    start, not only from its first record. One that no longer exists (the job may name another topic now) must not hold
    it back for ever."""
    highest: dict[str, dict[str, int | None]] = {name: {} for name in inputs}
    for bound in bounds:
        name, partition = bound.partition.input, partition_id(bound.partition)
        highest[name][partition] = inputs[name].progress.highest.get(partition)
    return {
        name: replace(state, progress=replace(state.progress, highest=highest[name])) for name, state in inputs.items()
    }


def _ended_inputs(bounds: Iterable[Bounds], sources: Iterable[str]) -> tuple[str, ...]:
    """Inputs whose partitions have all been read to their final ends."""
    by_input: dict[str, list[bool]] = {name: [] for name in sources}
    for bound in bounds:
        by_input[bound.partition.input].append(bound.final and bound.start >= bound.end_exclusive)
    return tuple(name for name, done in by_input.items() if done and all(done))


def _new_starts(bounds: Iterable[Bounds], ranges: Iterable[Range], inputs: Inputs) -> dict[PartitionRef, int]:
    """Where partitions start that neither an earlier plan nor these ranges have."""
    planned = {planned.partition for planned in ranges}
    return {
        bound.partition: bound.start
        for bound in bounds
        if bound.partition not in planned and bound.partition not in inputs[bound.partition.input].positions
    }


def _topic_numbers(bounds: Iterable[Bounds], ranges: Iterable[Range], inputs: Inputs) -> dict[str, dict[str, int]]:
    """The numbers of the topics that these ranges read, and those that the topics of these bounds get now; only of
    inputs that have one other than 0."""
    by_input: dict[str, dict[str, int]] = {}
    for name, state in inputs.items():
        stored = state.topic_numbers
        read = {ref.topic for ref in state.positions}
        of_input = (bound for bound in bounds if bound.partition.input == name)
        topics = {planned.partition.topic for planned in ranges if planned.partition.input == name}
        numbers = {topic: number for topic, number in stored.by_topic.items() if topic in topics}
        numbers |= stored.of_new(of_input, read, state.topic_ids)
        if any(numbers.values()):
            by_input[name] = numbers
    return by_input


def _is_shared(starts: Iterable[PartitionRef], bounds: Collection[Bounds]) -> bool:
    """Whether one of these partitions belongs to an input of which this job has some partitions and other members have
    the rest. At the start the group first gives a job none, which is no reason for an epoch without rows."""
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
    """The topic ids that the inputs do not know yet, by input and topic; "" for a deleted topic."""
    new_ids: dict[str, dict[str, str]] = {}
    for bound in bounds:
        ref = bound.partition
        if bound.deleted or (bound.topic_id and inputs[ref.input].topic_ids.get(ref.topic) != bound.topic_id):
            new_ids.setdefault(ref.input, {})[ref.topic] = bound.topic_id
    return new_ids
