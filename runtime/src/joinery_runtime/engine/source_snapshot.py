"""What the inputs have at one moment, as planning sees it, and what of that the driver's users are told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from joinery_runtime.connectors.source import Bounds, Range
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputProgress
from joinery_runtime.engine.plan import Inputs, InputState, partition_id
from joinery_runtime.engine.table_order import reached_time, unread_partitions
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
        """The streams of which an epoch with these ranges leaves records unread. None at a table's first read, which
        does not wait for streams (A4)."""
        if not tables or not all(inputs[name].first_read for name in tables):
            return ()
        streams = sorted(inputs.keys() - tables)
        return tuple(name for name in streams if unread_partitions(self.of_input(name), ranges))

    def of_input(self, name: str) -> list[Bounds]:
        return [bound for bound in (*self.bounds, *self.waiting) if bound.partition.input == name]


def stop_at_end(bound: Bounds, state: InputState) -> Bounds:
    """Keeps an input that has ended at its end (T7): records added later would meet a watermark of +infinity."""
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


def with_released(idle: Mapping[str, Collection[str]], bounds: Iterable[Bounds]) -> dict[str, Collection[str]]:
    """The idle partitions by input, and those of branches that have ended, which hold nothing back either."""
    released: dict[str, list[str]] = {}
    for bound in bounds:
        if bound.released:
            released.setdefault(bound.partition.input, []).append(partition_id(bound.partition))
    return {
        name: tuple(sorted({*idle.get(name, ()), *released.get(name, ())})) if name in released else idle[name]
        for name in {**idle, **released}
    }


def ended_inputs(bounds: Iterable[Bounds], sources: Iterable[str]) -> tuple[str, ...]:
    """Inputs whose partitions have all been read to their final ends."""
    by_input: dict[str, list[bool]] = {name: [] for name in sources}
    for bound in bounds:
        by_input[bound.partition.input].append(bound.final and bound.start >= bound.end_exclusive)
    return tuple(name for name, done in by_input.items() if done and all(done))
