"""The epoch loop of one job: acquire, recover, then plan, run and commit one epoch after the other.

Each method is one step of the commit protocol (`engine.protocol`), so a test can stop between any two of them.
`JobState.after` computes the state after an epoch; this module calls the store, the host and the sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from joinery_runtime.connectors.sink import BufferedSink, Receipt, RecoveryContext, Sink
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.table.segment import STATE_VERSION
from joinery_runtime.engine.job_state import JobIdentity, JobState, compare_with_state, staged_segments
from joinery_runtime.engine.limits import reject_growth
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, FaultPoint
from joinery_runtime.engine.null_keys import key_parts
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.planner import REJOINS_MS, Planner
from joinery_runtime.engine.protocol import (
    Action,
    CommitResult,
    check_arrivals,
    next_action,
    reject_dead,
    resolve_commit,
)
from joinery_runtime.engine.report import EpochReport, result_json
from joinery_runtime.engine.reporter import EpochReporter
from joinery_runtime.engine.source_snapshot import SourceStatus
from joinery_runtime.errors import (
    DataLoss,
    DuplicateJobName,
    Fenced,
    LimitReached,
    MisreadInput,
    PartitionsLost,
    PlanTooLarge,
    SinkError,
    SourceError,
    StateError,
    StoreUnavailable,
    Unavailable,
)
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job import PeriodicSavepoints, definition_hash
from joinery_runtime.state.migrations import MIGRATIONS
from joinery_runtime.state.savepoints import save_if_due
from joinery_runtime.state.store import DriverStore, EpochCommit, EpochRecord, JobRecord, OwnershipToken
from joinery_runtime.state.upgrade import check_versions, migrate_pinned

REJOINS_OF_A_DUPLICATE = 5


class Host(Protocol):
    """The port between the engine and what runs its tasks: one process, or Spark."""

    def run(self, work: EpochWork) -> EpochOutcome:
        """Run all tasks of one epoch. Raises the JoineryError of a task; may rerun tasks, as Spark does."""
        ...

    @property
    def cores(self) -> int | None:
        """How many cores the tasks of the next epoch have. None: it runs as many shards at a time as there are."""
        ...

    @property
    def processes(self) -> int:
        """How many processes share the rows of the next epoch."""
        ...


@dataclass(frozen=True, slots=True)
class DriverParts:
    """What a driver works with. Without `dead_letters` a bad record fails the job (T8); without `savepoints` the driver
    makes none by itself. `row_limits` are those of the plans (`EpochPlan.row_limits`)."""

    store: DriverStore
    planner: Planner
    host: Host
    output: Sink
    dead_letters: Sink | None
    savepoints: PeriodicSavepoints | None = None
    row_limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """What a driver knows of the plan that it runs next, whether that is in its state already or still to be made."""

    is_old: bool = False  # its topics may have been replaced since it was made
    replaced_partitions: frozenset[PartitionRef] = frozenset()  # whose topic is another one now
    may_shrink: bool = True  # a smaller plan may replace it, since nothing of it is visible
    may_have_rival: bool = False  # another job of this name may have begun to write to the output


class Driver:
    """Runs epochs under one generation. After an error, make a new driver: recovery is the same as after a crash.

    `now_ms` is a clock that runs only while the job does (for idleness and checkpoints), never event time. `wall_ms` is
    the wall clock, which each plan records (T11); a trace may not have one. `generation`
    is 0 while it is not known, before and during recovery; `state` is of the newest committed epoch; `sources` is what
    the inputs had when they were last asked.
    """

    def __init__(
        self,
        identity: JobIdentity,
        pipeline: Pipeline,
        parts: DriverParts,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int | None],
    ) -> None:
        self._identity, self._pipeline, self._parts = identity, pipeline, parts
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._fault = FaultPoint.from_environment()
        self._int64_times = {
            source: column
            for spec in pipeline.inputs
            if pa.types.is_int64((intake := pipeline.intake(spec.name)).schema.field(intake.event_time).type)
            for source, column in (
                [(branch.name, branch.event_time) for branch in spec.branches] or [(spec.name, intake.event_time)]
            )
        }
        self._key_parts = key_parts(pipeline)
        planner = parts.planner
        self._reporter = EpochReporter(
            pipeline, self._int64_times, planner.limits.hot_keys, planner.clocks, planner.late_warnings, now_ms
        )
        self.generation = 0
        self._first_generation = 0  # of this process
        self.planned = False  # whether the newest call of `plan` returned a plan
        self.state = JobState(pipeline, inputs={})
        self.sources = SourceStatus()
        self._pending_plan = PendingPlan()

    @property
    def epoch(self) -> int:
        """The newest committed epoch; 0 before the first."""
        return self.state.epoch

    @property
    def pending(self) -> bool:
        """Whether an epoch is planned but not committed; a recovery replays it."""
        return self.state.pending is not None

    @property
    def waiting(self) -> tuple[PartitionRef, ...]:
        """Partitions to read that another group member may own: those of the pending plan, which needs all of them;
        without a pending plan, those that the newest call of `plan` found held by others."""
        pending = self.state.pending
        return self.sources.unassigned_partitions if pending is None else pending.partitions

    @property
    def paused(self) -> Mapping[str, str]:
        """Inputs that a limit holds back, and why, as of the newest call of `plan`."""
        return self.sources.paused

    @property
    def beyond_end(self) -> Mapping[str, str]:
        """By ended input, a warning of what was added after its end, as of the newest call of `plan`."""
        return self.sources.beyond_end

    @property
    def backlog(self) -> Mapping[str, int]:
        """Unread records per input, as of the newest call of `plan`."""
        return self.sources.backlog

    @property
    def unpublished_rows(self) -> int:
        """Rows of committed epochs that are not visible in the outputs yet."""
        return sum(sink.buffered_rows for _, sink in self._buffered_sinks())

    def unavailability(self) -> Unavailable | None:
        """Which input or output does not answer now. Any thread may ask while another method waits for it."""
        questions = (*(sink.unavailability for _, sink in self._sinks_by_name()), self._parts.planner.unavailability)
        return next((error for ask in questions if (error := ask()) is not None), None)

    # --- recover ----------------------------------------------------------------------------------------------------

    def recover(self, previous: int | None = None, first: int | None = None) -> None:
        """Take the next generation, and load everything that is committed. Raises IncompatibleState, StateError.

        `previous` is the generation of this process's driver before this one. If that generation is no longer the
        newest, another process runs the job, or the job was deleted: raises Fenced instead of taking the job back.
        `first` is the generation of this process's first driver, if that is another one.
        """
        store, name = self._parts.store, self._identity.name
        self.generation = previous or 0
        stored = store.record(name)
        if stored is not None:
            # An incompatible job or release must not fence the running one.
            compare_with_state(self._identity, stored)
            check_versions(stored, MIGRATIONS, STATE_VERSION)
        if previous is not None and (stored is None or stored.generation != previous):
            raise self._takeover_error()
        self.generation = 0  # until the store answers, the generation may be the new one or the old one
        record = store.acquire(name, self._identity.candidate)
        if stored is not None and stored.owner is not None and record.owner != stored.owner:
            self._identity.warn(f"The state of job {name} belonged to {stored.owner.owner} until now")
        for warning in compare_with_state(self._identity, record):
            self._identity.warn(warning)
        record = migrate_pinned(store, record, MIGRATIONS, STATE_VERSION, self._identity.warn)
        self.generation = record.generation
        self._first_generation = first or record.generation
        if next_action(record) is Action.REPLAY and not self._identity.defines(record):
            raise StateError(
                f"epoch {record.epoch + 1} of job {name} was planned by a job that says something else",
                facts="it was edited while this driver started",
                todo="Start it again",
            )
        self._parts.planner.unpin({})
        store.sweep(name, record.generation)
        newest = store.newest_epoch(name)
        self.state = JobState.of(self._pipeline, record, newest)
        self._pending_plan = PendingPlan(is_old=self.pending, may_shrink=not self._recover_sinks(record, newest))
        self._shrink_plan(record)

    def _recover_sinks(self, record: JobRecord, newest: EpochRecord | None) -> bool:
        """Recover the sinks. Returns whether rows of the pending epoch are visible."""
        visible = False
        store = self._parts.store
        recovery = takeover_of(record, newest, store.claims(record.job), store.identity(), self._identity.warn)
        for sink, receipts in self._receipts_by_sink(newest.result if newest else {}):
            # Output of an earlier definition of the job has been published under that definition (`hosts.run`). Without
            # a signature the job was started from the beginning, and what it wrote before is no longer its own.
            if newest is not None and record.signature is not None and self._identity.defines(record):
                sink.publish(newest.epoch, receipts)
            with self._prefer_fenced():
                visible |= sink.recover(recovery)
        if recovery.claims:
            store.release_claims(record.job, record.generation)
        return visible

    def _shrink_plan(self, record: JobRecord) -> None:
        """Replace a pending plan that is over the present limits by a smaller one for the same epoch: a plan that ran
        out of memory would do so for ever, and so would one whose rows its topic does not take any more. All older
        attempts are fenced by now, and what they staged is swept."""
        pending = self.state.pending
        if pending is None or not self._pending_plan.may_shrink:
            return
        smaller = self._parts.planner.shrunk_plan(pending)
        limits = {**pending.row_limits, **self._parts.row_limits}
        if limits != pending.row_limits:
            smaller = replace(smaller or pending, row_limits=limits)
        if smaller is not None:
            under = record.definition if record.definition is not None else self._identity.definition
            self._parts.store.write_plan(
                record.job, record.generation, smaller.to_json(), dict(under), replacing=record.plan
            )
            self.state = self.state.planned(smaller)

    def _receipts_by_sink(self, result: Mapping[str, Any]) -> list[tuple[Sink, list[Receipt]]]:
        return [(sink, list(result.get(kind, []))) for kind, sink in self._sinks_by_name()]

    def _sinks_by_name(self) -> Iterator[tuple[str, Sink]]:
        """Yield the sinks, each with the key of its receipts in an epoch's result."""
        yield "output", self._parts.output
        if self._parts.dead_letters is not None:
            yield "dead_letters", self._parts.dead_letters

    def _buffered_sinks(self) -> Iterator[tuple[str, BufferedSink]]:
        return ((kind, sink) for kind, sink in self._sinks_by_name() if isinstance(sink, BufferedSink))

    # --- plan -------------------------------------------------------------------------------------------------------

    def plan(self, *, always: bool = False, reads: bool = True) -> EpochPlan | None:
        """Return the pending plan, or a new one, written to the store before anything runs. None: there is nothing to
        do, or other members of a consumer group hold what is to be read (`waiting`). Without `reads` a new plan reads
        nothing, and is made only while rows are held. Raises PartitionsLost when the driver has to rejoin its groups,
        DuplicateJobName when a job of the same name with another store writes to the same output."""
        if self._pending_plan.may_have_rival:
            self._pending_plan = replace(self._pending_plan, may_have_rival=False)
            other = self._parts.output.other_store()
            # Each job has its own markers and transactions, so nothing is lost, but a reader of the output gets the
            # rows of both.
            if other is not None:
                self._require_ownership()
                raise self._duplicate_name(other, "began to write to this one's output topic after it")
        with self._rejoining_groups():
            plan = self._pinned_plan(always=always, reads=reads)
        self.planned = plan is not None
        return plan

    def _pinned_plan(self, *, always: bool, reads: bool) -> EpochPlan | None:
        planner = self._parts.planner
        if self.state.pending is None:
            plan = self._new_plan(self.state, always=always) if reads else None
            if plan is None and any(sink.due(last=not reads) for _, sink in self._buffered_sinks()):
                plan = self._new_plan(self.state, always=True, reads=False)
            if plan is None:
                return None
            self._parts.store.write_plan(
                self._identity.name, self.generation, plan.to_json(), dict(self._identity.definition)
            )
            self.state = self.state.planned(plan)
        else:
            plan = self.state.pending
            if self._pending_plan.is_old:
                replaced = planner.replaced_partitions(plan, self.state.inputs)
                self._pending_plan = replace(self._pending_plan, replaced_partitions=replaced)
        if not planner.pin(ref for ref in plan.partitions if ref not in self._pending_plan.replaced_partitions):
            self._pending_plan = replace(self._pending_plan, is_old=True)
            return None
        self.failpoint("planned", plan)
        return plan

    def _new_plan(self, state: JobState, *, always: bool = False, reads: bool = True) -> EpochPlan | None:
        host = self._parts.host
        result = self._parts.planner.plan(
            state,
            self._now_ms(),
            clock_ms=self._wall_ms(),
            cores=host.cores,
            processes=host.processes,
            always=always,
            reads=reads,
        )
        self.sources = result.status
        if result.plan is None:
            return None
        return replace(result.plan, generation=self.generation, row_limits=self._parts.row_limits)

    @contextmanager
    def _rejoining_groups(self) -> Iterator[None]:
        """Rejoin the consumer groups if this driver was fenced in one: the last to join under a driver's name owns it,
        even if that is an older driver that slept."""
        try:
            yield
        except Fenced as error:
            self._require_ownership()
            if self._parts.planner.rejoin(self._now_ms()) >= REJOINS_OF_A_DUPLICATE:
                raise self._duplicate_name(
                    self._parts.planner.other_store(self._parts.store.identity()),
                    f"took this one's place in its consumer groups {REJOINS_OF_A_DUPLICATE} times within "
                    f"{REJOINS_MS // 60_000} minutes",
                ) from error
            raise PartitionsLost(
                f"An older driver of job {self._identity.name} has joined its consumer group",
                facts=str(error),
                todo="This driver is the newest: it rejoins the group, and the older driver ends",
            ) from error

    def _duplicate_name(self, other: StoreIdentity | None, did: str) -> DuplicateJobName:
        """Return the error about a second job of this name. An older driver of this job ends when it asks this store,
        so one that keeps coming back uses another store."""
        seen = f"the other one's is {other}" if other is not None else "the other one has not told its own"
        return DuplicateJobName(
            f"Two jobs have the name {self._identity.name} on one Kafka, with different state stores",
            facts=f"this one's store is {self._parts.store.identity()}, {seen}; the other one {did}",
            todo="Rename one of the two (metadata.name, or the namespace): groups and transactional ids are made of "
            "the name. kafka-consumer-groups --describe --members tells where the members of a group run",
        )

    def _takeover_error(self) -> Fenced:
        name = self._identity.name
        return Fenced(
            f"another driver has taken over job {name}, or it was deleted",
            facts=f"this one has generation {self.generation}",
            todo="This one stops: a job has one driver, the one that was started last. Another job needs another "
            "metadata.name",
        )

    @contextmanager
    def _prefer_fenced(self) -> Iterator[None]:
        """Raise Fenced instead of a SinkError if another driver has taken over: one that slept may take what a newer
        driver has written or published for an error."""
        try:
            yield
        except SinkError:
            self._require_ownership()
            raise

    def _require_ownership(self) -> None:
        ownership = self._parts.store.ownership(self._identity.name)
        if ownership is None or ownership.generation != self.generation:
            raise self._takeover_error()

    # --- run --------------------------------------------------------------------------------------------------------

    def run(self, plan: EpochPlan) -> EpochOutcome:
        """Run all tasks of the epoch. Raises RecordError for a bad record when there is no dead-letter output, and
        PlanTooLarge when the next recovery has to make the plan smaller. After MisreadInput the next driver plans
        again."""
        work = self._epoch_work(plan)
        try:
            with self._prefer_fenced():
                outcome = self._parts.host.run(work)
        except PlanTooLarge as error:
            name, topic, partition, records, size = error.read
            self._parts.planner.learn_size(PartitionRef(name, topic, partition), records, size)
            raise
        except MisreadInput:
            # Nothing of the plan is visible, and its replay would read the same records again, whatever has come since.
            # This takes the next generation, so this driver is fenced.
            self._require_ownership()
            planned = OwnershipToken(self.generation, plan.epoch - 1, plan.epoch)
            self._parts.store.reset_offsets(self._identity.name, {}, expected=planned, drop_plan=True)
            raise
        check_arrivals(outcome)
        if self._parts.dead_letters is None:
            reject_dead(outcome)
        return outcome

    def failpoint(self, point: str, plan: EpochPlan) -> None:
        """Kill this process if the kill tests want that at this point."""
        if self._fault is not None:
            self._fault.strike(point, plan.epoch)

    def _epoch_work(self, plan: EpochPlan) -> EpochWork:
        state, pending = self.state, self._pending_plan
        new = self._new_sources(plan)
        return EpochWork(
            generation=self.generation,
            plan=plan,
            segments=state.needed_by(plan),
            fault=self._fault,
            incarnation=state.incarnation,
            replaced_partitions=pending.replaced_partitions,
            allowed=self._parts.planner.allowed_bytes(plan) if pending.may_shrink else {},
            merge_all=self._parts.planner.limits.capped,
            # A record may have ended processes. Drivers that this process has made after an error do not count.
            careful=pending.may_shrink and plan.is_deadly(self._first_generation),
            is_small=self._parts.planner.is_small(plan),
            int64_times={name: self._int64_times[name] for name in new if name in self._int64_times},
            keys_to_check={name: self._key_parts[name] for name in new if name in self._key_parts},
        )

    def _new_sources(self, plan: EpochPlan) -> list[str]:
        """List the inputs and the branches of unions that the plan reads and of which nothing is committed. Rows of a
        plan that an earlier release has run may be visible: such a plan is ended, whatever it holds."""
        if not self._pending_plan.may_shrink:
            return []
        new = list[str]()
        for name in {planned.partition.input for planned in plan.ranges}:
            sources_read = {name}
            if self._pipeline.input(name).branches:
                read = {ref.topic for ref in (planned.partition for planned in plan.ranges) if ref.input == name}
                sources_read = {self._pipeline.source(name, topic) for topic in read}
            # An input may have thousands of partitions, of which the first most often ends this.
            for partition, highest in self.state.inputs[name].progress.highest.items():
                if highest is not None:
                    sources_read.discard(self._pipeline.source(name, partition))
                    if not sources_read:
                        break
            new += sources_read
        return sorted(new)

    # --- commit -----------------------------------------------------------------------------------------------------

    def commit(self, plan: EpochPlan, outcome: EpochOutcome, *, last: bool = False) -> EpochReport:
        """Make the epoch durable and its output visible, together with the plan of the next epoch if there is work
        already and this is not the `last`. Raises PartitionsLost when a rebalance has taken partitions that it read,
        LimitReached when the state would exceed a limit that stops the job; then the plan stays, to be replayed."""
        self._check_partitions(plan)
        planner, before = self._parts.planner, self.state
        after = before.after(plan, outcome, planner.clocks)
        sizes = after.part_sizes
        reject_growth(planner.limits, self._pipeline, before.part_sizes, sizes, plan.epoch)
        planner.learn(plan, outcome, before.inputs)
        if not last:
            # This epoch's work is done and commits; the next `plan` call meets the error again.
            with suppress(SourceError, Fenced, LimitReached):
                after = after.planned(self._new_plan(after))
        result = self._sealed_result(plan, outcome, after, last=last)
        self.failpoint("before-commit", plan)
        self._write_commit(plan, outcome, after, result)
        planner.unpin(after.inputs)
        self.failpoint("after-commit", plan)
        with self._prefer_fenced():
            for sink, receipts in self._receipts_by_sink(result):
                sink.publish(plan.epoch, receipts)
        self.state, self._pending_plan = after, PendingPlan(may_have_rival=plan.checkpoint)
        if plan.checkpoint:
            with suppress(StoreUnavailable):  # the epoch is done, and the next checkpoint sweeps instead
                self._sweep_and_save()
        return self._reporter.report(
            plan,
            outcome,
            before.inputs,
            sizes,
            after.totals,
            backlog=self.sources.backlog,
            unpublished_rows=self.unpublished_rows,
        )

    def _sealed_result(self, plan: EpochPlan, outcome: EpochOutcome, after: JobState, *, last: bool) -> dict[str, Any]:
        """Return the epoch's result document, after sinks that buffer rows have sealed those that it publishes."""
        result = result_json(plan, outcome, after.totals)
        # Once for each change: `joinery verify` runs earlier epochs again under the definition that made them.
        if plan.definition != self.state.definition and plan.definition == definition_hash(self._identity.definition):
            result["definition"] = dict(self._identity.definition)
        with self._prefer_fenced():
            for kind, buffered in self._buffered_sinks():
                sealed = buffered.seal(self.generation, plan.epoch, result[kind], last=last)
                result[kind] = [*result[kind], *sealed]
        return result

    def _sweep_and_save(self) -> None:
        """Sweep the store, and make a savepoint if one is due. Commits only retire segments: without a sweep they would
        fill the store of a job that runs for weeks."""
        schedule, store, name = self._parts.savepoints, self._parts.store, self._identity.name
        store.sweep(name, self.generation)
        newest = None if schedule is None else store.newest_epoch(name)
        if schedule is not None and newest is not None:
            save_if_due(store, name, newest.epoch, newest.committed_at, every_ms=schedule.every, keep=schedule.keep)

    def _write_commit(self, plan: EpochPlan, outcome: EpochOutcome, after: JobState, result: Mapping[str, Any]) -> None:
        store, name = self._parts.store, self._identity.name
        commit = EpochCommit(
            epoch=plan.epoch,
            plan=plan.to_json(),
            result=result,
            upserts=list(staged_segments(outcome)),
            deletes=sorted(self.state.dropped(plan, outcome)),
            offsets=after.offsets(),
            signature=dict(self._identity.signature),
            definition=dict(self._identity.definition),
            next_plan=after.pending.to_json() if after.pending is not None else None,
            effects=[
                partial(sink.in_transaction, epoch=plan.epoch, receipts=receipts)
                for sink, receipts in self._receipts_by_sink(result)
            ],
        )
        try:
            store.commit(name, self.generation, commit)
        except StoreUnavailable:
            resolved = resolve_commit(store.record(name), self.generation, commit.epoch)
            if resolved is CommitResult.FENCED:
                raise self._takeover_error() from None
            if resolved is CommitResult.NOT_COMMITTED:
                raise

    def _check_partitions(self, plan: EpochPlan) -> None:
        """Raise PartitionsLost unless this driver still holds the plan's partitions, and they are still the planned
        ones: only then may the input be committed."""
        planner = self._parts.planner
        with self._rejoining_groups():
            replaced = self._pending_plan.replaced_partitions
            try:
                now_replaced = planner.replaced_partitions(plan, self.state.inputs)
            except DataLoss:
                raise
            except SourceError:
                now_replaced = replaced  # the broker no longer answers, but this epoch's work is done
            if now_replaced == replaced and planner.is_pinned():
                return
        planner.unpin({})
        self._pending_plan = replace(self._pending_plan, is_old=True)
        raise PartitionsLost(
            f"Epoch {plan.epoch} has lost partitions that it reads",
            facts="another member of the consumer group took them, or their topic was recreated",
            todo="Nothing of the epoch was committed. It runs again once the partitions are assigned to this driver",
        )


def takeover_of(
    record: JobRecord,
    newest: EpochRecord | None,
    claims: Mapping[str, str],
    store: StoreIdentity,
    warn: Callable[[str], None],
) -> RecoveryContext:
    """Return what a driver that begins with this record tells its sinks; `newest` is its newest committed epoch."""
    pending = record.plan if next_action(record) is Action.REPLAY else None
    return RecoveryContext(
        generation=record.generation,
        committed_epoch=record.epoch,
        store=store,
        incarnation=record.incarnation,
        claims=claims,
        shards=newest.plan["shards"] if newest is not None else 0,
        pending=pending["epoch"] if pending is not None else None,
        pending_shards=pending["shards"] if pending is not None else 0,
        pending_for_ms=record.planned_for_ms,
        warn=warn,
    )
