"""Makes epoch plans: asks the sources and the clock what can be read (`SourceSnapshot`), and remembers what later plans
need to know of earlier ones (`PlanHistory`). `read_shares` and `next_plan` decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from joinery_runtime.connectors.source import Bounds, Range, SourcePlanner, StoreIdentity
from joinery_runtime.core.pipeline.watermark import InputClock, InputProgress, advance, all_idle
from joinery_runtime.engine.epoch_budget import (
    UNKNOWN_BYTES,
    EventTimeRates,
    RecordSizes,
    RowSpread,
    allowed_bytes,
    is_small,
    smaller_plan,
)
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.limits import Pauses, StateLimits
from joinery_runtime.engine.messages import EpochOutcome
from joinery_runtime.engine.next_plan import PlanHistory, PlanSettings, next_plan, read_shares, shards_for_cores
from joinery_runtime.engine.plan import EpochPlan, Inputs, partition_id
from joinery_runtime.engine.source_snapshot import (
    Idleness,
    SourceSnapshot,
    SourceStatus,
    beyond_end_warnings,
    ended_inputs,
    reads_ahead_of_tables,
    stop_at_end,
    streams_waiting_for_tables,
    with_partitions,
    with_released,
    without_overtaking,
)
from joinery_runtime.errors import Unavailable
from joinery_runtime.formats.batch import PartitionRef

REJOINS_MS = 300_000

T = TypeVar("T")


class RunCalls(Protocol):
    """Runs calls, in turn or at once, and returns their results in order. Raises the error of the first call that has
    one, when none of the calls runs any more."""

    def __call__(self, calls: Sequence[Callable[[], T]]) -> list[T]: ...


def run_in_turn(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run the calls one after the other, up to the first error."""
    return [call() for call in calls]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The plan of the next epoch (None: there is nothing to do), and what the inputs had when it was made."""

    plan: EpochPlan | None
    status: SourceStatus


class Planner:
    """Plans one job's epochs. With `once`, every partition is read up to where it ended at the first call, which does
    not end the input."""

    def __init__(
        self,
        settings: PlanSettings,
        sources: Mapping[str, SourcePlanner],
        clocks: Mapping[str, InputClock],
        idleness: Idleness,
        *,
        once: bool = False,
        run_calls: RunCalls = run_in_turn,
    ) -> None:
        self._once, self._run_calls = once, run_calls
        self._ends_of_now: dict[PartitionRef, int] | None = None
        self._settings, self._sources, self.clocks, self._idleness = settings, sources, clocks, idleness
        self._rejoined_at: list[int] = []
        self._event_time_rates: EventTimeRates[PartitionRef] = EventTimeRates()
        self._sizes = RecordSizes()
        self._spread = RowSpread(settings.budget)
        self._budget = settings.budget.for_processes(1)
        self._history = PlanHistory()
        self._planned_at_ms: int | None = None
        self._newest_shards = 0  # of the newest plan of this process

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
        processes: int = 1,
        always: bool = False,
        reads: bool = True,
    ) -> PlanResult:
        """Plan the epoch after this state. Raises SourceError, and LimitReached when records wait that no later plan
        could read either.

        A plan without rows is made with `always` (a step of a trace), for a partition that was never planned, to fix
        where it starts, to store that an input has begun which has no partition yet, to store that an input has ended
        (T7), and when rows of the state are due (T3). A plan that reads also fixes where the partitions of
        other members start: `startFrom: latest` may mean another offset after a restart. Without `reads` the plan reads
        nothing. `clock_ms` is the wall clock that the plan records (T11). `cores` are those of the epoch's tasks; None:
        unknown, and the epoch has all shards. `processes` share its rows.
        """
        self._budget = self._settings.budget.for_processes(self._spread.filled_processes(processes))
        snapshot = self._observe_sources(state.inputs, now_ms)
        pauses = Pauses(self.limits, state.pipeline, state.remaining)
        status = SourceStatus.of(snapshot, pauses.inputs())
        if self._once:
            status = status.of_one_run(snapshot, state.inputs)
        if not (always or self._is_due(snapshot, status.paused)):
            return PlanResult(None, status)
        ranges: list[Range] = []
        readable = [b for b in snapshot.bounds if b.start < b.end_exclusive and b.partition.input not in status.paused]
        self._history = self._history.with_observed_ends((*snapshot.bounds, *snapshot.waiting))
        # The number of partitions that co-partitioned inputs have in common is unknown while an input's topic pattern
        # matches no topic.
        needs_partitions = self._settings.co_partitioned and not state.co_partitions
        lacks = needs_partitions and {b.partition.input for b in snapshot.bounds} != self._sources.keys()
        if lacks or not reads:
            snapshot = snapshot.without_reads(state.inputs if reads else None)
        elif {b.partition.input for b in readable} == {b.partition.input for b in readable if b.is_assigned}:
            # Otherwise all unread records of an input are in partitions that other members have. The other inputs wait
            # for it: their rows would only fill the state.
            ranges = self._choose_ranges(state.inputs, snapshot, status.paused)
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
        return PlanResult(plan, status)

    def _choose_ranges(self, inputs: Inputs, snapshot: SourceSnapshot, paused: Collection[str]) -> list[Range]:
        """Return what the next epoch reads. Nothing of a stream that would get ahead of its table (A4)."""
        tables, bounds = self._settings.tables, (*snapshot.bounds, *snapshot.waiting)
        waiting = streams_waiting_for_tables(bounds, inputs, tables, self._history.first_ends)
        ranges = self._cut_shares(inputs, snapshot, waiting, paused)
        reached = snapshot.reached_times(inputs, ranges, tables, self._settings.delays)
        if not waiting and reads_ahead_of_tables(inputs, ranges, tables, reached):
            ranges = self._cut_shares(inputs, snapshot, inputs.keys() - tables, paused)
        return ranges

    def _cut_shares(
        self, inputs: Inputs, snapshot: SourceSnapshot, waiting: Collection[str], paused: Collection[str]
    ) -> list[Range]:
        settings = replace(self._settings, budget=self._budget)
        shares = read_shares(inputs, snapshot, settings, waiting, paused, self._event_time_rates, self._sizes)
        return [
            self._sources[bound.partition.input].cut(bound, count)
            if count
            else Range(bound.partition, bound.start, bound.start)
            for bound, count in shares
        ]

    def _is_due(self, snapshot: SourceSnapshot, paused: Collection[str]) -> bool:
        """Return whether an epoch may begin: after the interval, or when waiting would not make it larger."""
        last, interval = self._planned_at_ms, self._settings.interval_ms
        if last is None or snapshot.now_ms - last >= interval or all(bound.final for bound in snapshot.bounds):
            return True
        waiting = [
            (bound.end_exclusive - bound.start, self._sizes.get(bound.partition) or UNKNOWN_BYTES)
            for bound in snapshot.bounds
            if bound.partition.input not in paused
        ]
        budget = self._budget
        records, size = sum(count for count, _ in waiting), sum(count * record_bytes for count, record_bytes in waiting)
        return self._once or records >= budget.records or size >= budget.bytes

    def _observe_sources(self, inputs: Inputs, now_ms: int) -> SourceSnapshot:
        bounds = [bound for source_bounds in self._ask_bounds(inputs) for bound in source_bounds]
        existing = tuple(stop_at_end(bound, inputs[bound.partition.input]) for bound in bounds if not bound.deleted)
        self._idleness.observe((bound for bound in existing if not bound.waits), now_ms)
        if self._once:
            # One run ends where the partitions ended at the first call. A partition that appears later waits for the
            # next run. An input that ended in an earlier run stays ended.
            if self._ends_of_now is None:
                self._ends_of_now = {bound.partition: bound.end_exclusive for bound in existing}
            ends = self._ends_of_now
            existing = tuple(
                replace(
                    bound,
                    end_exclusive=max(bound.start, min(bound.end_exclusive, ends.get(bound.partition, bound.start))),
                    final=inputs[bound.partition.input].progress.ended,
                    stop=None,
                )
                for bound in existing
            )
        ready = tuple(bound for bound in existing if not bound.waits)
        idle, ended = with_released(self._idleness.idle(), ready), ended_inputs(ready, self._sources)
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
            progress=self.watermarks(with_partitions(inputs, ready), idle, ended, now_ms),
            now_ms=now_ms,
            beyond_end=beyond_end_warnings(bounds, inputs),
        )

    def check_sources(self, inputs: Inputs) -> None:
        """Ask every source once, while other parts of the job start: this joins the consumer groups, and finds missing
        topics and lost records. Raises SourceError."""
        self._ask_bounds(inputs)

    def _ask_bounds(self, inputs: Inputs) -> list[list[Bounds]]:
        """Ask each source what can be read of it."""
        return self._run_calls(
            [partial(source.bounds, inputs[name].stored_offsets) for name, source in self._sources.items()]
        )

    def watermarks(
        self, inputs: Inputs, idle: Mapping[str, Collection[str]], ended: Collection[str], now_ms: int
    ) -> dict[str, InputProgress]:
        """Return the watermarks that the rows read so far imply (T3), with idleness and ends applied."""
        progress = {name: state.progress for name, state in inputs.items()}
        committed = max((value.idle_ms for value in progress.values()), default=0)
        idle_for = self._idleness.idle_for_ms(all_idle(progress, idle), now_ms, committed)
        return advance(progress, self.clocks, idle=idle, ended=ended, idle_for_ms=idle_for)

    # --- partitions that are shared out -------------------------------------------------------------------------------

    def replaced_partitions(self, plan: EpochPlan, inputs: Inputs) -> frozenset[PartitionRef]:
        """Return partitions of the plan whose topic is no longer the one that the plan was made for. Raises DataLoss if
        there are any, unless the job allows it."""
        ids = {name: {**inputs[name].topic_ids, **plan.topic_ids.get(name, {})} for name in self._sources}
        replaced = self._run_calls(
            [
                partial(source.find_replaced_partitions, refs, ids[name])
                for name, source, refs in self._by_source(plan.partitions)
            ]
        )
        return frozenset().union(*replaced)

    def pin(self, partitions: Iterable[PartitionRef]) -> bool:
        """Hold these partitions until `unpin`. Returns False if another member has one of them; then holds none."""
        pinned = all(source.pin(refs) for _, source, refs in self._by_source(partitions))
        if not pinned:
            self.unpin({})
        return pinned

    def is_pinned(self) -> bool:
        return all(source.is_pinned() for source in self._sources.values())

    def unpin(self, inputs: Inputs) -> None:
        """End the hold; `inputs` has the inputs' states if the epoch was committed, and is empty otherwise."""
        for name, source in self._sources.items():
            source.unpin(inputs[name].positions if name in inputs else {})

    def rejoin(self, now_ms: int) -> int:
        """Rejoin the consumer groups. Returns how often that happened within the last REJOINS_MS, this time
        included."""
        for source in self._sources.values():
            source.rejoin()
        self._rejoined_at = [at for at in self._rejoined_at if now_ms - at < REJOINS_MS] + [now_ms]
        return len(self._rejoined_at)

    def unavailability(self) -> Unavailable | None:
        """Return the source that does not answer now, if there is one."""
        return next(
            (error for source in self._sources.values() if (error := source.unavailability()) is not None), None
        )

    def other_store(self, own: StoreIdentity) -> StoreIdentity | None:
        """Return the store of the driver that last committed offsets to a group of this job, if it is not `own`."""
        stores = (source.committed_by() for source in self._sources.values())
        return next((store for store in stores if store is not None and store.id != own.id), None)

    def _by_source(self, partitions: Iterable[PartitionRef]) -> list[tuple[str, SourcePlanner, list[PartitionRef]]]:
        listed = list(partitions)
        return [(n, source, [ref for ref in listed if ref.input == n]) for n, source in self._sources.items()]

    def learn(self, plan: EpochPlan, outcome: EpochOutcome, before: Inputs) -> None:
        """Learn record densities, sizes and the spread of rows from a finished epoch; `before` is the inputs' state at
        its start."""
        reads = outcome.read.partitions
        rows = {task: shard.rows_in + shard.rows_taken for task, shard in outcome.shards.items()}
        records, size = sum(read.records for read in reads), sum(read.bytes for read in reads)
        self._spread.observe(records, size, sum(read.rows for read in reads), plan.shards, rows)
        for read in reads:
            highest = before[read.partition.input].progress.highest.get(partition_id(read.partition))
            self._event_time_rates.observe(read.partition, read.records, highest, read.lowest, read.highest)
            self._sizes.observe(read.partition, read.records, read.bytes)

    # --- how large a plan is ------------------------------------------------------------------------------------------

    def learn_size(self, partition: PartitionRef, records: int, size: int) -> None:
        """Learn record sizes from what an unfinished epoch has read of a partition."""
        self._sizes.observe(partition, records, size)

    def allowed_bytes(self, plan: EpochPlan) -> dict[PartitionRef, int]:
        """Return the most bytes that reading each range of the plan may yield. A range that is not named has no
        limit."""
        return allowed_bytes(plan.ranges, self._sizes, self._budget, self._estimate_records)

    def is_small(self, plan: EpochPlan) -> bool:
        """Say whether the plan reads so little that several processes may each read all of it. One that reads files
        does not."""
        return is_small(plan.ranges, self._sizes, self._estimate_records) and not any(
            planned.start < planned.end_exclusive
            and self._sources[planned.partition.input].reads_file(planned.partition)
            for planned in plan.ranges
        )

    def shrunk_plan(self, plan: EpochPlan) -> EpochPlan | None:
        """Return the same epoch cut to the present budget; None if the plan is within it."""

        def cut_range(planned: Range, records: int) -> Range:
            bounds = Bounds(planned.partition, planned.start, planned.end_exclusive)
            return self._sources[planned.partition.input].cut(bounds, records)

        smaller = smaller_plan(plan, self._sizes, self._budget, self._estimate_records, cut_range)
        tables = self._settings.tables
        return smaller if smaller is None or not tables else without_overtaking(smaller, plan, tables)

    def _estimate_records(self, planned: Range, record_bytes: float) -> int:
        return self._sources[planned.partition.input].records(planned, record_bytes)

    def rescale(self, shards: int) -> None:
        """Set the most shards of all epochs from the next plan on."""
        self._settings = replace(self._settings, shards=shards)
