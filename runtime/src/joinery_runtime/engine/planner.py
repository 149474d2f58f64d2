"""Makes epoch plans: what can be read, how much of it, and the watermarks in force."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.times import Floors
from joinery_runtime.core.pipeline.watermark import InputClock, InputProgress, InputTime, Times, advance, all_idle
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.alignment import Backlog, Densities, allocate
from joinery_runtime.engine.limits import Pauses, Reading, StateLimits
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.engine.plan import EpochPlan, InputState, partition_id
from joinery_runtime.errors import LimitReached
from joinery_runtime.sources.base import Bounds, PartitionRef, Range, SourcePlanner


class Idleness(Protocol):
    """Says which partitions are idle; `IdleClock` for running jobs, told by the steps in a trace."""

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None: ...

    def idle(self) -> dict[str, Collection[str]]: ...

    def idle_for_ms(self, all_idle: bool, now_ms: int) -> int: ...


@dataclass(frozen=True, slots=True)
class PlanSettings:
    shards: int
    max_records: int
    checkpoint_interval_ms: int
    fingerprint: str
    tables: frozenset[str] = frozenset()  # inputs that are changelogs
    limits: StateLimits = field(default_factory=StateLimits)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is committed of a job's state, as far as a plan depends on it."""

    pipeline: Pipeline
    floors: Floors
    segments: Collection[SegmentMeta]

    def horizons(self, now: Times) -> dict[str, Horizon]:
        return times.horizons(self.pipeline, now, self.floors)

    def closes(self, now: Times) -> bool:
        """Whether an epoch with these times, or one that follows it at once, would emit something without any arrival
        (T3)."""
        reached = times.settled(self.pipeline, now, self.floors)
        return any(times.closes(self.pipeline, meta, reached) for meta in self.segments)


class Planner:
    """Plans one job's epochs. `backlog`, `finished`, `not_held` (partitions with records that others have) and `paused`
    (inputs that are not read because of a limit, and why) describe what the newest `plan` call saw."""

    def __init__(
        self,
        settings: PlanSettings,
        sources: Mapping[str, SourcePlanner],
        clocks: Mapping[str, InputClock],
        idleness: Idleness,
    ) -> None:
        self._settings, self._sources, self.clocks, self._idleness = settings, sources, clocks, idleness
        self._densities: Densities[PartitionRef] = Densities()
        self._first_ends: dict[PartitionRef, int] = {}  # as of the first look
        self._checkpointed_ms: int | None = None
        self._dirty = False
        self._tried = False  # a checkpoint, against a state that cannot shrink otherwise
        self.backlog: dict[str, int] = {}
        self.not_held: tuple[PartitionRef, ...] = ()
        self.paused: Mapping[str, str] = {}
        self.finished = False

    @property
    def limits(self) -> StateLimits:
        return self._settings.limits

    def plan(
        self, epoch: int, inputs: Mapping[str, InputState], kept: Kept, now_ms: int, *, always: bool = False
    ) -> EpochPlan | None:
        """The next epoch, or None when there is nothing to do. Raises SourceError, and LimitReached when records wait
        that no later plan could read either.

        `always` makes a plan also without rows (a trace's step). So does a partition that was never planned, which
        fixes where it starts, and what `kept` lets out (T3).
        """
        bounds = [bound for name, source in self._sources.items() for bound in source.bounds(inputs[name].known)]
        deleted = [bound for bound in bounds if bound.deleted]
        bounds = [_settled(bound, inputs[bound.partition.input]) for bound in bounds if not bound.deleted]
        self._idleness.observe(bounds, now_ms)
        self._note(bounds)
        pauses = Pauses(self.limits, kept.pipeline, kept.segments)
        self.paused = pauses.inputs()
        ranges = self._ranges(bounds, inputs)
        idle = self._idleness.idle()
        ended = _ended(bounds, self._sources)
        progress = self.watermarks(_with_partitions(inputs, bounds), idle, ended, now_ms)
        now = _times(inputs, progress)
        closes = kept.closes(now) or pauses.shrinks(kept.horizons(now))
        last_try = self._last_try(None if closes else pauses.stuck(self._reading(progress, idle, ended)))
        checkpoint = self._checkpoint_due(now_ms) or last_try
        if not (ranges or checkpoint or deleted or always or closes):
            return None
        if checkpoint:
            self._checkpointed_ms, self._dirty = now_ms, False
        self._dirty |= bool(ranges)
        return EpochPlan(
            epoch=epoch,
            shards=self._settings.shards,
            ranges=tuple(ranges),
            watermarks={name: value.watermark for name, value in progress.items()},
            idle={name: tuple(parts) for name, parts in idle.items()},
            ended=ended,
            checkpoint=checkpoint,
            fingerprint=self._settings.fingerprint,
            lost={partition_id(bound.partition): bound.lost for bound in bounds if bound.lost},
            stops=_new_stops(bounds, inputs),
            topic_ids=_new_topic_ids([*bounds, *deleted], inputs),
            horizons=kept.horizons(now),
            highest={name: time.highest for name, time in now.items()},
            tables_read=self._tables_read(bounds, ranges, inputs),
        )

    def look(self, inputs: Mapping[str, InputState]) -> None:
        """A first look: a missing topic or lost records show, and consumer groups are joined, while other things
        start. Raises SourceError."""
        for name, source in self._sources.items():
            source.bounds(inputs[name].known)

    def watermarks(
        self,
        inputs: Mapping[str, InputState],
        idle: Mapping[str, Collection[str]],
        ended: Collection[str],
        now_ms: int,
    ) -> dict[str, InputProgress]:
        """What the rows read so far imply (T3), with idleness and ends applied."""
        progress = {name: state.progress for name, state in inputs.items()}
        idle_for = self._idleness.idle_for_ms(all_idle(progress, idle), now_ms)
        return advance(progress, self.clocks, idle=idle, ended=ended, idle_for_ms=idle_for)

    # --- partitions that are shared out -------------------------------------------------------------------------------

    def gone(self, plan: EpochPlan, inputs: Mapping[str, InputState]) -> frozenset[PartitionRef]:
        """Partitions of the plan whose topic is no more the one that it was made for. Raises DataLoss for them, unless
        the job allows it."""
        ids = {name: {**inputs[name].topic_ids, **plan.topic_ids.get(name, {})} for name in self._sources}
        found = [source.gone(refs, ids[name]) for name, source, refs in self._by_source(plan.partitions)]
        return frozenset().union(*found)

    def hold(self, partitions: Iterable[PartitionRef]) -> bool:
        """Keeps these partitions until `release`; False if one is not ours (then none is kept)."""
        held = all(source.hold(refs) for _, source, refs in self._by_source(partitions))
        if not held:
            self.release({})
        return held

    def still_held(self) -> bool:
        return all(source.still_held() for source in self._sources.values())

    def release(self, inputs: Mapping[str, InputState]) -> None:
        """Ends the hold; `inputs` are their states if the epoch was committed, else nothing."""
        for name, source in self._sources.items():
            source.release(inputs[name].positions if name in inputs else {})

    def rejoin(self) -> None:
        for source in self._sources.values():
            source.rejoin()

    def _by_source(self, partitions: Iterable[PartitionRef]) -> list[tuple[str, SourcePlanner, list[PartitionRef]]]:
        listed = list(partitions)
        return [(n, source, [ref for ref in listed if ref.input == n]) for n, source in self._sources.items()]

    def learn(self, reads: Iterable[PartitionRead], before: Mapping[str, InputState]) -> None:
        """Takes the record densities of a finished epoch; `before` is the inputs' state at its start."""
        for read in reads:
            known = before[read.partition.input].progress.highest.get(partition_id(read.partition))
            self._densities.observe(read.partition, read.records, known, read.lowest, read.highest)

    def rescale(self, shards: int) -> None:
        """From the next plan on, epochs run with this many shards."""
        self._settings = replace(self._settings, shards=shards)

    def _note(self, bounds: Iterable[Bounds]) -> None:
        listed = list(bounds)
        self.backlog = dict.fromkeys(self._sources, 0)
        for bound in listed:
            self.backlog[bound.partition.input] += bound.end_exclusive - bound.start
        self.not_held = tuple(b.partition for b in listed if not b.held and b.start < b.end_exclusive)
        done = all(bound.final and bound.start >= bound.end_exclusive for bound in listed)
        self.finished = done and {bound.partition.input for bound in listed} == self._sources.keys()

    def _last_try(self, stuck: LimitReached | None) -> bool:
        """Whether a checkpoint may help, which merges segments and drops rows of them that are not kept any more; it is
        tried once."""
        if stuck is not None and (self._tried or not self._dirty):
            raise stuck
        self._tried = stuck is not None
        return self._tried

    def _reading(
        self, progress: Mapping[str, InputProgress], idle: Mapping[str, Collection[str]], ended: Collection[str]
    ) -> Reading:
        return Reading(
            unread=[name for name, records in self.backlog.items() if records],
            idle=[name for name, value in progress.items() if all_idle({name: value}, idle)],
            ended=ended,
            watermarks={name: value.watermark for name, value in progress.items()},
        )

    def _ranges(self, bounds: Collection[Bounds], inputs: Mapping[str, InputState]) -> list[Range]:
        """What is read; of a partition that was never planned at least where it starts."""
        if _starved(bound for bound in bounds if bound.partition.input not in self.paused):
            return []
        listed = [bound for bound in bounds if bound.held]
        for bound in bounds:  # a topic may be recreated, and shorter
            self._first_ends[bound.partition] = min(
                bound.end_exclusive, self._first_ends.get(bound.partition, bound.end_exclusive)
            )
        waiting = self._wait_for_tables(bounds, inputs)
        backlogs = [self._backlog(b, inputs[b.partition.input]) for b in listed if b.partition.input not in waiting]
        share = allocate(backlogs, self._settings.max_records)
        ranges = []
        for bound in listed:
            name, count = bound.partition.input, share.get(bound.partition, 0)
            if count:
                ranges.append(self._sources[name].cut(bound, count))
            elif inputs[name].positions.get(bound.partition) != bound.start:
                ranges.append(Range(bound.partition, bound.start, bound.start))
        return ranges

    def _wait_for_tables(self, bounds: Iterable[Bounds], inputs: Mapping[str, InputState]) -> Collection[str]:
        """A4: inputs of which nothing is read yet: those that are no tables, until every table has been read to where
        it ended at the first look. What is added to it meanwhile does not count, or a busy table would keep its stream
        out for ever."""
        reached = {bound.partition: bound.start for bound in bounds}
        unread = [name for name in self._settings.tables if not self._first_read(name, reached, inputs)]
        return inputs.keys() - self._settings.tables if unread else ()

    def _first_read(self, name: str, reached: Mapping[PartitionRef, int], inputs: Mapping[str, InputState]) -> bool:
        ends = {ref: end for ref, end in self._first_ends.items() if ref.input == name}
        return inputs[name].first_read or all(reached.get(ref, end) >= end for ref, end in ends.items())

    def _tables_read(
        self, bounds: Iterable[Bounds], ranges: Iterable[Range], inputs: Mapping[str, InputState]
    ) -> tuple[str, ...]:
        """Tables whose first read these ranges end."""
        reached = {bound.partition: bound.start for bound in bounds} | {r.partition: r.end_exclusive for r in ranges}
        tables = (name for name in self._settings.tables if not inputs[name].first_read)
        return tuple(sorted(name for name in tables if self._first_read(name, reached, inputs)))

    def _backlog(self, bound: Bounds, state: InputState) -> Backlog[PartitionRef]:
        return Backlog(
            partition=bound.partition,
            records=0 if bound.partition.input in self.paused else bound.end_exclusive - bound.start,
            highest=state.progress.highest.get(partition_id(bound.partition)),
            density=self._densities.get(bound.partition),
        )

    def _checkpoint_due(self, now_ms: int) -> bool:
        if self._checkpointed_ms is None:
            self._checkpointed_ms = now_ms
        return self._dirty and now_ms - self._checkpointed_ms >= self._settings.checkpoint_interval_ms


def _times(inputs: Mapping[str, InputState], progress: Mapping[str, InputProgress]) -> dict[str, InputTime]:
    """The watermarks in force, and what the rows read so far have reached."""
    seen = {name: [ts for ts in state.progress.highest.values() if ts is not None] for name, state in inputs.items()}
    return {name: InputTime(value.watermark, max(seen[name], default=None)) for name, value in progress.items()}


def _starved(bounds: Iterable[Bounds]) -> bool:
    """Whether an input has records, all of them in partitions that we do not hold: the others wait for it, or their
    rows would only fill the state."""
    unread = [bound for bound in bounds if bound.start < bound.end_exclusive]
    return {bound.partition.input for bound in unread} != {bound.partition.input for bound in unread if bound.held}


def _settled(bound: Bounds, state: InputState) -> Bounds:
    """An input that has ended stays ended (T7): what was added to it after that would meet a watermark of +infinity."""
    return replace(bound, end_exclusive=bound.start, final=True) if state.progress.ended else bound


def _with_partitions(inputs: Mapping[str, InputState], bounds: Iterable[Bounds]) -> dict[str, InputState]:
    """A partition that exists holds its input's watermark back from the start, not from its first record; one that
    is no more (another topic was named, say) does not hold it back for ever."""
    known: dict[str, dict[str, int | None]] = {name: {} for name in inputs}
    for bound in bounds:
        name, partition = bound.partition.input, partition_id(bound.partition)
        known[name][partition] = inputs[name].progress.highest.get(partition)
    return {
        name: replace(state, progress=replace(state.progress, highest=known[name])) for name, state in inputs.items()
    }


def _ended(bounds: Iterable[Bounds], sources: Iterable[str]) -> tuple[str, ...]:
    """Inputs whose every partition has been read to its final end."""
    by_input: dict[str, list[bool]] = {name: [] for name in sources}
    for bound in bounds:
        by_input[bound.partition.input].append(bound.final and bound.start >= bound.end_exclusive)
    return tuple(name for name, done in by_input.items() if done and all(done))


def _new_stops(bounds: Iterable[Bounds], inputs: Mapping[str, InputState]) -> dict[PartitionRef, int]:
    known = {name: state.stops for name, state in inputs.items()}
    return {
        bound.partition: bound.stop
        for bound in bounds
        if bound.stop is not None and known[bound.partition.input].get(bound.partition) != bound.stop
    }


def _new_topic_ids(bounds: Iterable[Bounds], inputs: Mapping[str, InputState]) -> dict[str, dict[str, str]]:
    """By input and topic; "" for a topic that is no more."""
    found: dict[str, dict[str, str]] = {}
    for bound in bounds:
        ref = bound.partition
        if bound.deleted or (bound.topic_id and inputs[ref.input].topic_ids.get(ref.topic) != bound.topic_id):
            found.setdefault(ref.input, {})[ref.topic] = bound.topic_id
    return found
