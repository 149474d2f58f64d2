"""What the inputs have at one moment, for planning and for the driver's reports: also which partitions are idle, and up
to which time each table has been read.

A partition is idle (rule T4) when it has been read to its end, and has stayed there for `idleTimeout` of the job's
running time. The end is the high watermark: records of an open transaction count as unread, however long the
transaction takes.

A stream's row takes the version of its table that is valid at its time, so it must not be joined before the table was
read up to that time (rule A4). Until a table was first read to its end, no stream is read. From then on, a table that
an epoch does not read to its end has been read up to the lowest time of the partitions that have more records. Rows of
the stream beyond that wait in the state, and a stream that is ahead of its table is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from joinery_runtime.connectors.source import Bounds, Range
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME, InputClock, InputProgress
from joinery_runtime.engine.plan import EpochPlan, Inputs, InputState, partition_id
from joinery_runtime.formats.batch import PartitionRef


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What the inputs had when an epoch was last planned."""

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
        """Return the status for a run that reads up to where the inputs ended at its start. It is finished only once
        each partition's position is committed, or the next run would apply `startFrom` again. A paused input does not
        count: it waits for rows that this run does not read."""
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

    def reached_times(
        self, inputs: Inputs, ranges: Collection[Range], tables: Collection[str], delays: Mapping[str, int]
    ) -> dict[str, int]:
        """`InputTime.reached` of the inputs that are behind, in an epoch that reads these ranges.

        A table is behind if the epoch leaves records of it unread. A stream is behind if the epoch before did: what has
        arrived since then is no backlog."""
        reached: dict[str, int] = {}
        for name, state in inputs.items() if tables else ():
            delay = delays.get(name, 0)
            bounds = self.of_input(name)
            if name in tables:
                reached[name] = reached_time(state, unread_partitions(bounds, ranges), delay)
            elif state.behind:
                # What waits for other partitions has later times than they have.
                reached[name] = reached_time(state, unread_partitions(b for b in bounds if not b.waits), delay)
        return {name: at for name, at in reached.items() if at != END_OF_TIME}

    def unread_streams(self, inputs: Inputs, ranges: Collection[Range], tables: Collection[str]) -> tuple[str, ...]:
        """Return the streams of which an epoch with these ranges leaves records unread. None at a table's first read,
        which does not wait for streams (A4)."""
        if not tables or not all(inputs[name].first_read for name in tables):
            return ()
        streams = sorted(inputs.keys() - tables)
        return tuple(name for name in streams if unread_partitions(self.of_input(name), ranges))

    def of_input(self, name: str) -> list[Bounds]:
        return [bound for bound in (*self.bounds, *self.waiting) if bound.partition.input == name]


def stop_at_end(bound: Bounds, state: InputState) -> Bounds:
    """Keep an input that has ended at its end (T7): records added later would meet a watermark of +infinity."""
    return replace(bound, end_exclusive=bound.start, final=True) if state.progress.ended else bound


def beyond_end_warnings(bounds: Iterable[Bounds], inputs: Inputs) -> dict[str, str]:
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


def with_partitions(inputs: Inputs, bounds: Iterable[Bounds]) -> dict[str, InputState]:
    """Fit each input's progress to the partitions that exist. A partition holds its input's watermark back from the
    start, not only from its first record. One that no longer exists (the job may name another topic now) must not hold
    it back for ever."""
    highest: dict[str, dict[str, int | None]] = {name: {} for name in inputs}
    for bound in bounds:
        name, partition = bound.partition.input, partition_id(bound.partition)
        highest[name][partition] = inputs[name].progress.highest.get(partition)
    return {
        name: replace(state, progress=replace(state.progress, highest=highest[name])) for name, state in inputs.items()
    }


def with_released(idle: Mapping[str, Collection[str]], bounds: Iterable[Bounds]) -> dict[str, Collection[str]]:
    """Return the idle partitions by input, and those of branches that have ended, which hold nothing back either."""
    released: dict[str, list[str]] = {}
    for bound in bounds:
        if bound.released:
            released.setdefault(bound.partition.input, []).append(partition_id(bound.partition))
    return {
        name: tuple(sorted({*idle.get(name, ()), *released.get(name, ())})) if name in released else idle[name]
        for name in {**idle, **released}
    }


def ended_inputs(bounds: Iterable[Bounds], sources: Iterable[str]) -> tuple[str, ...]:
    """Return inputs whose partitions have all been read to their final ends."""
    by_input: dict[str, list[bool]] = {name: [] for name in sources}
    for bound in bounds:
        by_input[bound.partition.input].append(bound.final and bound.start >= bound.end_exclusive)
    return tuple(name for name, done in by_input.items() if done and all(done))


# --- the first read of a table ----------------------------------------------------------------------------------------


def streams_waiting_for_tables(
    bounds: Iterable[Bounds], inputs: Inputs, tables: Collection[str], first_ends: Mapping[PartitionRef, int]
) -> Collection[str]:
    """Every stream, until each table has been read to where it ended when first seen. What is added to a table
    meanwhile does not count, or a busy table would hold up its stream for ever."""
    reached = {bound.partition: bound.start for bound in bounds}
    unread = [name for name in tables if not _first_read(name, reached, inputs, first_ends)]
    return inputs.keys() - tables if unread else ()


def tables_first_read(
    bounds: Iterable[Bounds],
    ranges: Iterable[Range],
    inputs: Inputs,
    tables: Iterable[str],
    first_ends: Mapping[PartitionRef, int],
) -> tuple[str, ...]:
    """Return tables whose first read is complete with these ranges."""
    reached = {bound.partition: bound.start for bound in bounds} | {r.partition: r.end_exclusive for r in ranges}
    unread = (name for name in tables if not inputs[name].first_read)
    return tuple(sorted(name for name in unread if _first_read(name, reached, inputs, first_ends)))


def _first_read(
    name: str, reached: Mapping[PartitionRef, int], inputs: Inputs, first_ends: Mapping[PartitionRef, int]
) -> bool:
    ends = {ref: end for ref, end in first_ends.items() if ref.input == name}
    return inputs[name].first_read or all(reached.get(ref, end) >= end for ref, end in ends.items())


# --- every later plan -------------------------------------------------------------------------------------------------


def unread_partitions(bounds: Iterable[Bounds], ranges: Iterable[Range] = ()) -> list[PartitionRef]:
    """Return the partitions that have records which these ranges leave unread."""
    read_to = {r.partition: r.end_exclusive for r in ranges}
    return [bound.partition for bound in bounds if read_to.get(bound.partition, bound.start) < bound.end_exclusive]


def reached_time(state: InputState, unread: Iterable[PartitionRef], delay_ms: int) -> int:
    """Up to which event time an input was read whose `unread` partitions have more records (`InputTime.reached`)."""
    highest = {ref: state.progress.highest.get(ref) for ref in map(partition_id, unread)}
    if not highest:
        return END_OF_TIME
    at = InputProgress(highest).implied(InputClock(delay_ms))
    return BEGIN_OF_TIME if at is None else at - 1  # more rows of that time may follow


def reads_ahead_of_tables(
    inputs: Inputs, ranges: Iterable[Range], tables: Collection[str], reached: Mapping[str, int]
) -> bool:
    """Return whether these ranges hold records of a stream that has been read further than its table will be after
    them. Such records would only wait in the state."""
    streams = inputs.keys() - tables
    reads = any(r.partition.input in streams and r.start < r.end_exclusive for r in ranges)
    table = min((reached.get(name, END_OF_TIME) for name in tables), default=END_OF_TIME)
    newest = max((at for name in streams if (at := inputs[name].progress.newest) is not None), default=BEGIN_OF_TIME)
    return reads and (table == BEGIN_OF_TIME or newest > table)


def without_overtaking(smaller: EpochPlan, plan: EpochPlan, tables: Collection[str]) -> EpochPlan:
    """Return the shortened form of a plan. If it reads less of a table, it joins nothing: the plan was to reach times
    with the table that it does not reach any more."""
    shortened = [new for new, old in zip(smaller.ranges, plan.ranges, strict=True) if new != old]
    streams = {planned.partition.input for planned in shortened} - set(tables)
    if len(streams) < len({planned.partition.input for planned in shortened}):
        streams = {ref.input for ref in plan.partitions} - set(tables)
        smaller = replace(
            smaller,
            ranges=tuple(
                r if r.partition.input in tables else replace(r, end_exclusive=r.start) for r in smaller.ranges
            ),
            horizons={part: Horizon(at.previous, at.previous) for part, at in smaller.horizons.items()},
            reached={**smaller.reached, **dict.fromkeys(tables, BEGIN_OF_TIME)},
        )
    return replace(smaller, unread=tuple(sorted({*smaller.unread, *streams})))


# --- idle partitions --------------------------------------------------------------------------------------------------

# At most this much of the time between two observations counts. In a longer gap the driver was stopped, or the broker
# could not be reached, so what the partitions held meanwhile is unknown.
LONGEST_STEP_MS = 5_000
# Watermarks that advance by the clock (T6) may close rows at every step: a step per observation would keep an idle job
# busy.
PACE_MS = 1_000


class Idleness(Protocol):
    """Says which partitions are idle: `IdleClock` does so for running jobs, and the steps of a trace for that trace."""

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None: ...

    def idle(self) -> dict[str, Collection[str]]: ...

    def idle_for_ms(self, all_idle: bool, now_ms: int, committed_ms: int) -> int: ...


class IdleClock:
    """Adds up how long each partition has been seen at its end. The caller passes times in, in milliseconds of a clock
    that runs only while the job does. A timeout of 0 switches idleness off for the input."""

    def __init__(self, timeouts_ms: Mapping[str, int]) -> None:
        self._timeouts = timeouts_ms
        self._at_end_for: dict[PartitionRef, int] = {}
        self._observed_ms: int | None = None
        self._all_idle_for = 0
        self._all_idle_at_ms: int | None = None

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None:
        """Take what can be read now. A partition with unread records is not at its end, even if they belong to an open
        transaction, and neither is a partition that is not held. A partition missing from `bounds`, because it was
        deleted, is forgotten."""
        step = _elapsed_ms(self._observed_ms, now_ms)
        at_end = [bound.partition for bound in bounds if bound.is_assigned and bound.at_end]
        before = self._at_end_for
        self._at_end_for = {ref: before[ref] + step if ref in before else 0 for ref in at_end}
        self._observed_ms = now_ms

    def idle(self) -> dict[str, Collection[str]]:
        """Idle partitions per input, by `partition_id`, as of the newest observation."""
        idle_ids: dict[str, list[str]] = {}
        for ref, quiet in sorted(self._at_end_for.items()):
            timeout = self._timeouts[ref.input]
            if timeout and quiet >= timeout:
                idle_ids.setdefault(ref.input, []).append(partition_id(ref))
        return {name: tuple(parts) for name, parts in idle_ids.items()}

    def idle_for_ms(self, all_idle: bool, now_ms: int, committed_ms: int) -> int:
        """Return how long all inputs have been idle (T6), rounded down to PACE_MS. `all_idle` says whether they are
        idle now; `committed_ms` is the time counted so far, by this process or an earlier one, that is committed."""
        if not all_idle:
            self._all_idle_at_ms = None
            return 0
        first = self._all_idle_at_ms is None
        self._all_idle_for = committed_ms if first else self._all_idle_for + _elapsed_ms(self._all_idle_at_ms, now_ms)
        self._all_idle_at_ms = now_ms
        return self._all_idle_for // PACE_MS * PACE_MS


def _elapsed_ms(observed_ms: int | None, now_ms: int) -> int:
    return 0 if observed_ms is None else min(LONGEST_STEP_MS, now_ms - observed_ms)
