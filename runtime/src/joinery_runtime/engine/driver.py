"""The epoch loop of one job: acquire, recover, then plan, run and commit one epoch after the other.

Each method is one step of the commit protocol (`engine.protocol`), so a test can stop between any two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import SideSpec
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.table.keyhash import shard_range
from joinery_runtime.core.table.segment import STATE_VERSION, SegmentMeta, first_key
from joinery_runtime.engine.arrivals import check_arrivals, refuse_dead
from joinery_runtime.engine.host import Host
from joinery_runtime.engine.hot_keys import HottestKeys
from joinery_runtime.engine.identity import JobIdentity, compare_with_state
from joinery_runtime.engine.limits import refuse_growth
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, FaultPoint
from joinery_runtime.engine.plan import (
    HORIZONS,
    EpochPlan,
    InputState,
    floors_to_bytes,
    input_states,
    partition_id,
    stored_floors,
    stored_left,
    without_left,
)
from joinery_runtime.engine.planner import Kept, Planner
from joinery_runtime.engine.protocol import Action, Outcome, next_action, resolve_commit
from joinery_runtime.engine.report import EpochReport, Totals, epoch_report, result_json
from joinery_runtime.engine.state_size import StateSize
from joinery_runtime.errors import (
    DataLoss,
    Fenced,
    LimitReached,
    PartitionsLost,
    SinkError,
    SourceError,
    StateError,
    StoreUnavailable,
)
from joinery_runtime.sinks.base import Receipt, Sink, Takeover
from joinery_runtime.sources.base import PartitionRef
from joinery_runtime.state.migrations import MIGRATIONS
from joinery_runtime.state.store import EpochCommit, EpochRecord, JobRecord, StateStore
from joinery_runtime.state.upgrade import check_versions, migrate_pinned


@dataclass(frozen=True, slots=True)
class Parts:
    """What a driver works with; `dead_letters` None means that a bad record fails the job (T8)."""

    store: StateStore
    planner: Planner
    host: Host
    output: Sink
    dead_letters: Sink | None


class Driver:
    """Runs epochs under one generation. After an error, make a new driver: recovery is the same as after a crash.

    `now_ms` is a clock that runs only while the job does (for idleness and checkpoints), never event time.
    """

    def __init__(self, identity: JobIdentity, pipeline: Pipeline, parts: Parts, now_ms: Callable[[], int]) -> None:
        self._identity, self._pipeline, self._parts, self._now_ms = identity, pipeline, parts, now_ms
        self._fault = FaultPoint.from_environment()
        self._generation = 0
        self._epoch = 0
        self._pending: EpochPlan | None = None
        self._segments: dict[str, SegmentMeta] = {}
        self._floors: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._lineage = ""
        self._gone: frozenset[PartitionRef] = frozenset()
        self._again = False  # the pending plan may be old: what it names may be gone
        self._hottest = HottestKeys(parts.planner.limits.hot_keys)
        self.totals = Totals()
        self.committed_at_ms: int | None = None  # of the newest epoch that was there at recovery, by the store's clock
        self.inputs: dict[str, InputState] = {}
        self.replays = False

    @property
    def generation(self) -> int:
        """0 while it is not known, before and during recovery."""
        return self._generation

    @property
    def epoch(self) -> int:
        """The newest committed epoch, 0 before the first."""
        return self._epoch

    @property
    def state(self) -> StateSize:
        return StateSize.of(without_left(self._segments.values(), self._left))

    @property
    def parts(self) -> dict[str, StateSize]:
        """How much each part of the state holds."""
        return self._sizes(without_left(self._segments.values(), self._left))

    @property
    def sides(self) -> Mapping[str, SideSpec]:
        """The job's sides by part of the state."""
        return self._pipeline.parts()

    @property
    def paused(self) -> Mapping[str, str]:
        """Inputs that the newest look for work found not to be read because of a limit, and why."""
        return self._parts.planner.paused

    @property
    def kept(self) -> Kept:
        """What is committed of the state, as a plan needs it."""
        return Kept(self._pipeline, self._floors, without_left(self._segments.values(), self._left))

    @property
    def backlog(self) -> Mapping[str, int]:
        """Records per input that the newest look for work found unread."""
        return self._parts.planner.backlog

    # --- recover ----------------------------------------------------------------------------------------------------

    def recover(self, previous: int | None = None) -> None:
        """Takes the next generation and everything that is committed. Raises IncompatibleState, StateError.

        `previous` is the generation of the driver before it in this process: if that one has been fenced meanwhile,
        another process runs the job, or it was deleted, and it is Fenced here too instead of taking the job back.
        """
        store, name = self._parts.store, self._identity.name
        self._generation = previous or 0
        known = store.record(name)
        if known is not None:
            # A job or a release that does not fit must not fence the one that runs.
            compare_with_state(self._identity, known)
            check_versions(known, MIGRATIONS, STATE_VERSION)
        if previous is not None and (known is None or known.generation != previous):
            raise self._taken_over()
        self._generation = 0  # until there is an answer, it may be the new one or the old one
        record = store.acquire(name)
        for warning in compare_with_state(self._identity, record):
            self._identity.stateful_warning(warning)
        record = migrate_pinned(store, record, MIGRATIONS, STATE_VERSION, self._identity.stateful_warning)
        self._generation, self._epoch, self._lineage = record.generation, record.epoch, record.lineage
        self._segments = {s.key: s for s in record.segments}
        self._floors, self._left = stored_floors(record), stored_left(record)
        self.inputs = input_states((found.name for found in self._pipeline.inputs), record)
        self.replays = self._again = next_action(record) is Action.REPLAY
        self._pending = self._with_horizons(record.plan) if self.replays and record.plan else None
        if self._pending is not None and not self._identity.defines(record):
            raise StateError(
                f"epoch {self._pending.epoch} of job {name} was planned by a job that says something else",
                facts="it was edited while this driver started",
                todo="Start it again",
            )
        self._parts.planner.release({})
        store.sweep(name, record.generation)
        self._recover_sinks(record)

    def _with_horizons(self, document: Mapping[str, Any]) -> EpochPlan:
        """A pending plan; one of a release that stored no horizons is of an inner join, where watermarks imply them."""
        plan = EpochPlan.from_json(document)
        if plan.horizons:
            return plan
        return replace(plan, horizons=times.horizons(self._pipeline, plan.times, self._floors))

    def _recover_sinks(self, record: JobRecord) -> None:
        store = self._parts.store
        newest = store.newest_epoch(record.job)
        if newest is not None:
            self.totals, self.committed_at_ms = Totals.of(newest.result), newest.committed_at
        takeover = _takeover(record, self._pending, newest, store.claims(record.job))
        for sink, receipts in self._receipts(newest.result if newest else {}):
            # What an earlier definition of the job wrote has been published under that one (`hosts.run`). Without a
            # signature the job was started anew: what it wrote before is not its own any more.
            if newest is not None and record.signature is not None and self._identity.defines(record):
                sink.publish(newest.epoch, receipts)
            self._recover_sink(sink, takeover)
        if takeover.claims:
            store.release_claims(record.job, record.generation)

    def _recover_sink(self, sink: Sink, takeover: Takeover) -> None:
        try:
            sink.recover(takeover)
        except SinkError:
            self._require_ownership()  # to a driver that slept meanwhile, what a newer one wrote must look wrong
            raise

    def _receipts(self, result: Mapping[str, Any]) -> list[tuple[Sink, list[Receipt]]]:
        pairs = [(self._parts.output, list(result.get("output", [])))]
        if self._parts.dead_letters is not None:
            pairs.append((self._parts.dead_letters, list(result.get("dead_letters", []))))
        return pairs

    # --- plan -------------------------------------------------------------------------------------------------------

    def plan(self, *, always: bool = False) -> EpochPlan | None:
        """The pending plan, or a new one written to the store before anything runs; None: nothing to do, or other
        members of a consumer group have what is to be read (`waiting`). Raises PartitionsLost when it has to join its
        groups anew."""
        with self._in_its_groups():
            return self._held_plan(always=always)

    def _held_plan(self, *, always: bool) -> EpochPlan | None:
        planner = self._parts.planner
        if self._pending is None:
            plan = planner.plan(self._epoch + 1, self.inputs, self.kept, self._now_ms(), always=always)
            if plan is None:
                return None
            self._parts.store.write_plan(
                self._identity.name, self._generation, plan.to_json(), dict(self._identity.definition)
            )
            self._pending = plan
        elif self._again:
            self._gone = planner.gone(self._pending, self.inputs)
        if not planner.hold(ref for ref in self._pending.partitions if ref not in self._gone):
            self._again = True
            return None
        self._work(self._pending).reach("planned")
        return self._pending

    @contextmanager
    def _in_its_groups(self) -> Iterator[None]:
        """Fenced in a consumer group: who joins last under a driver's name has it, also an older driver that slept."""
        try:
            yield
        except Fenced as error:
            self._require_ownership()
            self._parts.planner.rejoin()
            raise PartitionsLost(
                f"An older driver of job {self._identity.name} has joined its consumer group",
                facts=str(error),
                todo="The newest driver is this one; it joins anew, and the other one ends",
            ) from error

    def _taken_over(self) -> Fenced:
        name = self._identity.name
        return Fenced(f"another driver has taken over job {name}, or it was deleted", todo="This one stops")

    def _require_ownership(self) -> None:
        standing = self._parts.store.standing(self._identity.name)
        if standing is None or standing.generation != self._generation:
            raise self._taken_over()

    @property
    def pending(self) -> bool:
        """Whether an epoch is planned and not committed."""
        return self._pending is not None

    @property
    def waiting(self) -> tuple[PartitionRef, ...]:
        """Partitions that are to be read and may be another member's: of the pending plan, which needs all of them, or
        else those that the newest look found not to be ours."""
        return self._pending.partitions if self._pending is not None else self._parts.planner.not_held

    # --- run --------------------------------------------------------------------------------------------------------

    def run(self, plan: EpochPlan) -> EpochOutcome:
        """All tasks of the epoch. Raises RecordError for a bad record when there is no dead-letter output."""
        outcome = self._parts.host.run(self._work(plan))
        check_arrivals(outcome)
        if self._parts.dead_letters is None:
            refuse_dead(outcome)
        return outcome

    def _work(self, plan: EpochPlan) -> EpochWork:
        live = self._segments.values()
        segments = tuple(s for s in live if times.needed(self._pipeline, s, plan.horizons))
        return EpochWork(self._generation, plan, segments, self._fault, self._lineage, self._gone)

    def _gone_after(self, plan: EpochPlan, outcome: EpochOutcome) -> set[str]:
        """Segments of which no row is kept after the epoch: expired, merged, or finished in every shard that has rows
        of them."""
        expired = {s.key for s in self._segments.values() if times.expired(self._pipeline, s, plan.horizons)}
        replaced = {key for summary in outcome.shards.values() for key in summary.replaced}
        told = Counter(key for summary in outcome.shards.values() for key in summary.finished)
        finished = {key for key, count in told.items() if count == _shards_of(self._segments[key], plan.shards)}
        return expired | replaced | finished

    # --- commit -----------------------------------------------------------------------------------------------------

    def commit(self, plan: EpochPlan, outcome: EpochOutcome, *, last: bool = False) -> EpochReport:
        """Makes the epoch durable and its output visible, with the plan of the next one if there is work already and
        this is not the last one. Raises PartitionsLost when a rebalance has taken what it read, LimitReached when the
        state would grow over a limit that stops the job: the plan stays, to be replayed."""
        self._check_partitions(plan)
        work = self._work(plan)
        staged = {meta.key: meta for summary in outcome.shards.values() for meta in summary.staged}
        gone = self._gone_after(plan, outcome)
        segments = {key: s for key, s in (self._segments | staged).items() if key not in gone}
        floors = self._floors | times.floors_after(plan.horizons)
        left = self._left_after(outcome, segments)
        there = without_left(segments.values(), left)
        sizes, before = self._sizes(there), self.parts
        refuse_growth(self._parts.planner.limits, self._pipeline, before, sizes, plan.epoch)
        inputs = self._inputs_after(plan, outcome)
        self._parts.planner.learn(outcome.read.partitions, self.inputs)
        kept = Kept(self._pipeline, floors, there)
        next_plan = None if last else self._next_plan(plan.epoch + 1, inputs, kept)
        totals = self.totals.after(
            plan, outcome, {part: (before[part].rows, size.rows) for part, size in sizes.items() if part in before}
        )
        result = result_json(plan, outcome, totals)
        closed = {HORIZONS: floors_to_bytes(floors, left)}
        commit = EpochCommit(
            epoch=plan.epoch,
            plan=plan.to_json(),
            result=result,
            upserts=list(staged),
            deletes=sorted(gone),
            offsets={name: state.to_bytes() for name, state in inputs.items()} | closed,
            signature=dict(self._identity.signature),
            definition=dict(self._identity.definition),
            next_plan=next_plan.to_json() if next_plan is not None else None,
            effects=[_effect(sink, plan.epoch, receipts) for sink, receipts in self._receipts(result)],
        )
        work.reach("before-commit")
        self._commit(commit)
        self._parts.planner.release(inputs)
        work.reach("after-commit")
        for sink, receipts in self._receipts(result):
            sink.publish(plan.epoch, receipts)
        self._segments, self._floors, self._left = segments, floors, left
        self._epoch, self.inputs, self._pending, self.totals = plan.epoch, inputs, next_plan, totals
        heat = self._hottest.learn(plan.shards, {task: summary.hottest for task, summary in outcome.shards.items()})
        self._gone, self._again = frozenset(), False
        if plan.checkpoint:
            self._sweep()
        return epoch_report(plan, outcome, parts=sizes, totals=totals, heat=heat, planner=self._parts.planner)

    def _check_partitions(self, plan: EpochPlan) -> None:
        """What was read is committed only while its partitions are ours, and still those that were planned."""
        planner = self._parts.planner
        with self._in_its_groups():
            if self._gone_now(plan) == self._gone and planner.still_held():
                return
        planner.release({})
        self._again = True
        raise PartitionsLost(
            f"Epoch {plan.epoch} has lost partitions that it reads",
            facts="another member of the consumer group took them, or their topic was recreated",
            todo="Nothing of it was committed; it is run again when they are back",
        )

    def _gone_now(self, plan: EpochPlan) -> frozenset[PartitionRef]:
        try:
            return self._parts.planner.gone(plan, self.inputs)
        except DataLoss:
            raise
        except SourceError:
            return self._gone  # the broker does not answer any more; this epoch's work is done

    def _sweep(self) -> None:
        """Replaced and expired segments would fill the store of a job that runs for weeks: commits only retire them."""
        with suppress(StoreUnavailable):  # the epoch is done, and the next checkpoint sweeps again
            self._parts.store.sweep(self._identity.name, self._generation)

    def _inputs_after(self, plan: EpochPlan, outcome: EpochOutcome) -> dict[str, InputState]:
        highest: dict[str, dict[str, int | None]] = {name: {} for name in self.inputs}
        for read in outcome.read.partitions:
            highest[read.partition.input][partition_id(read.partition)] = read.highest
        clocks = self._parts.planner.clocks
        return {name: state.after(plan, name, highest[name], clocks[name]) for name, state in self.inputs.items()}

    def _left_after(self, outcome: EpochOutcome, segments: Mapping[str, SegmentMeta]) -> dict[str, int]:
        """Rows that are no more part of the state, of the segments that go on."""
        left = Counter(self._left)
        for summary in outcome.shards.values():
            left.update({first_key(key): count for key, count in summary.left.items()})
        live = set(map(first_key, segments))
        return {key: count for key, count in left.items() if key in live}

    def _sizes(self, segments: Iterable[SegmentMeta]) -> dict[str, StateSize]:
        return StateSize.by_part(segments, self._pipeline.parts())

    def _next_plan(self, epoch: int, inputs: Mapping[str, InputState], kept: Kept) -> EpochPlan | None:
        try:
            return self._parts.planner.plan(epoch, inputs, kept, self._now_ms())
        except (SourceError, Fenced, LimitReached):
            return None  # this epoch's work is done and commits; the next `plan` call meets the error again

    def _commit(self, commit: EpochCommit) -> None:
        store, name = self._parts.store, self._identity.name
        try:
            store.commit(name, self._generation, commit)
        except StoreUnavailable:
            outcome = resolve_commit(store.record(name), self._generation, commit.epoch)
            if outcome is Outcome.FENCED:
                raise self._taken_over() from None
            if outcome is Outcome.NOT_COMMITTED:
                raise


def _takeover(
    record: JobRecord, pending: EpochPlan | None, newest: EpochRecord | None, claims: Mapping[str, str]
) -> Takeover:
    return Takeover(
        generation=record.generation,
        committed_epoch=record.epoch,
        lineage=record.lineage,
        claims=claims,
        shards=newest.plan["shards"] if newest is not None else 0,
        pending=pending.epoch if pending is not None else None,
        pending_shards=pending.shards if pending is not None else 0,
        pending_for_ms=record.planned_for_ms,
    )


def _effect(sink: Sink, epoch: int, receipts: list[Receipt]) -> Callable[[Any], None]:
    return lambda connection: sink.in_transaction(connection, epoch, receipts)


def _shards_of(segment: SegmentMeta, shards: int) -> int:
    """How many shards have rows of it."""
    return sum(shard_range(shard, shards).overlaps(segment.hash_min, segment.hash_max) for shard in range(shards))
