"""The epoch loop of one job: acquire, recover, then plan, run and commit one epoch after the other.

Each method is one step of the commit protocol (`engine.protocol`), so a test can stop between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from joinery_runtime.core.segment import STATE_VERSION, SegmentMeta
from joinery_runtime.core.spec import PARTS, JoinSpec
from joinery_runtime.engine.host import Host
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, FaultPoint
from joinery_runtime.engine.plan import EpochPlan, InputState, partition_id
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.protocol import Action, Outcome, next_action, resolve_commit
from joinery_runtime.engine.report import EpochReport, epoch_report, result_json
from joinery_runtime.errors import Fenced, IncompatibleState, RecordError, SourceError, StoreUnavailable
from joinery_runtime.job import compare
from joinery_runtime.sinks.base import Receipt, Sink
from joinery_runtime.state.migrations import MIGRATIONS
from joinery_runtime.state.store import EpochCommit, JobRecord, StateStore


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Who the job is to the state store: its name and the signature that its state must fit (rule M2)."""

    name: str
    signature: Mapping[str, Any]
    stateful_warning: Callable[[str], None] = field(default=lambda _: None)


def compare_with_state(identity: JobIdentity, record: JobRecord) -> tuple[str, ...]:
    """Warnings about a job that goes on with the state of another; raises IncompatibleState if it cannot (M2)."""
    if record.signature is None:
        return ()
    comparison = compare(record.signature, identity.signature)
    if comparison.refused:
        raise IncompatibleState(
            f"the state of job {identity.name} does not fit the job as it is now",
            facts="; ".join(comparison.refused),
            todo="Undo the change, or give the job another name to start anew",
        )
    return comparison.warnings


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

    def __init__(self, identity: JobIdentity, spec: JoinSpec, parts: Parts, now_ms: Callable[[], int]) -> None:
        self._identity, self._spec, self._parts, self._now_ms = identity, spec, parts, now_ms
        self._fault = FaultPoint.from_environment()
        self._generation = 0
        self._epoch = 0
        self._pending: EpochPlan | None = None
        self._segments: dict[str, SegmentMeta] = {}
        self.inputs: dict[str, InputState] = {}
        self.replays = False

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def epoch(self) -> int:
        """The newest committed epoch, 0 before the first."""
        return self._epoch

    # --- recover ----------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Takes the next generation and everything that is committed. Raises IncompatibleState, StateError."""
        store, name = self._parts.store, self._identity.name
        known = store.record(name)
        if known is not None:
            compare_with_state(self._identity, known)  # a job that does not fit must not fence the one that runs
        record = store.acquire(name)
        for warning in compare_with_state(self._identity, record):
            self._identity.stateful_warning(warning)
        if any(s.state_version != STATE_VERSION for s in record.segments):
            store.migrate(name, record.generation, MIGRATIONS, STATE_VERSION)
            record = store.record(name) or record
        self._generation, self._epoch = record.generation, record.epoch
        self._segments = {s.key: s for s in record.segments}
        self.inputs = {s.input: _input_state(s.input, record.offsets) for s in self._spec.sides}
        self.replays = next_action(record) is Action.REPLAY
        self._pending = EpochPlan.from_json(record.plan) if self.replays and record.plan else None
        if self._pending is not None and set(self._pending.watermarks) != set(self.inputs):
            raise IncompatibleState(
                f"epoch {self._pending.epoch} of job {name} was planned with other inputs",
                facts=f"its inputs were {sorted(self._pending.watermarks)}, they are {sorted(self.inputs)} now",
                todo="Undo the change, or give the job another name to start anew",
            )
        store.sweep(name, record.generation)
        self._recover_sinks()

    def _recover_sinks(self) -> None:
        committed = self._parts.store.epochs(self._identity.name, after=self._epoch - 1, limit=1)
        for sink, receipts in self._receipts(committed[0].result if committed else {}):
            sink.publish(self._epoch, receipts)
            sink.recover(self._generation, self._epoch)

    def _receipts(self, result: Mapping[str, Any]) -> list[tuple[Sink, list[Receipt]]]:
        pairs = [(self._parts.output, list(result.get("output", [])))]
        if self._parts.dead_letters is not None:
            pairs.append((self._parts.dead_letters, list(result.get("dead_letters", []))))
        return pairs

    # --- plan -------------------------------------------------------------------------------------------------------

    def plan(self, *, always: bool = False) -> EpochPlan | None:
        """The pending plan, or a new one written to the store before anything runs; None: nothing to do."""
        if self._pending is None:
            plan = self._parts.planner.plan(self._epoch + 1, self.inputs, self._now_ms(), always=always)
            if plan is None:
                return None
            self._parts.store.write_plan(self._identity.name, self._generation, plan.to_json())
            self._pending = plan
        self._work(self._pending).reach("planned")
        return self._pending

    # --- run --------------------------------------------------------------------------------------------------------

    def run(self, plan: EpochPlan) -> EpochOutcome:
        """All tasks of the epoch. Raises RecordError for a bad record when there is no dead-letter output."""
        outcome = self._parts.host.run(self._work(plan))
        _check_arrivals(outcome)
        if self._parts.dead_letters is None:
            _refuse_dead(outcome)
        return outcome

    def _work(self, plan: EpochPlan) -> EpochWork:
        expired = self._expired(plan)
        segments = tuple(s for s in self._segments.values() if s.key not in expired)
        return EpochWork(self._generation, plan, segments, self._fault)

    def _expired(self, plan: EpochPlan) -> set[str]:
        """Segments of which no row is kept any more under the plan's watermarks (J3): dropped without being read."""
        watermarks = self._spec.watermarks(plan.watermarks)
        keep_from = {part: self._spec.keep_from(side, watermarks) for side, part in enumerate(PARTS)}
        return {s.key for s in self._segments.values() if (since := keep_from[s.part]) is not None and s.ts_max < since}

    # --- commit -----------------------------------------------------------------------------------------------------

    def commit(self, plan: EpochPlan, outcome: EpochOutcome) -> EpochReport:
        """Makes the epoch durable and its output visible, with the plan of the next one if there is work already."""
        work = self._work(plan)
        staged = {meta.key: meta for summary in outcome.shards.values() for meta in summary.staged}
        gone = self._expired(plan) | {key for summary in outcome.shards.values() for key in summary.replaced}
        inputs = self._inputs_after(plan, outcome)
        self._parts.planner.learn(outcome.read.partitions, self.inputs)
        next_plan = self._next_plan(plan.epoch + 1, inputs)
        result = result_json(outcome)
        commit = EpochCommit(
            epoch=plan.epoch,
            plan=plan.to_json(),
            result=result,
            upserts=list(staged),
            deletes=sorted(gone),
            offsets={name: state.to_bytes() for name, state in inputs.items()},
            signature=dict(self._identity.signature),
            next_plan=next_plan.to_json() if next_plan is not None else None,
            effects=[_effect(sink, plan.epoch, receipts) for sink, receipts in self._receipts(result)],
        )
        work.reach("before-commit")
        self._commit(commit)
        work.reach("after-commit")
        for sink, receipts in self._receipts(result):
            sink.publish(plan.epoch, receipts)
        self._segments = {k: s for k, s in (self._segments | staged).items() if k not in gone}
        self._epoch, self.inputs, self._pending = plan.epoch, inputs, next_plan
        if plan.checkpoint:
            self._sweep()
        return epoch_report(plan, outcome, self._segments.values(), self._parts.planner)

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

    def _next_plan(self, epoch: int, inputs: Mapping[str, InputState]) -> EpochPlan | None:
        try:
            return self._parts.planner.plan(epoch, inputs, self._now_ms())
        except SourceError:
            return None  # this epoch's work is done and commits; the next `plan` call meets the error again

    def _commit(self, commit: EpochCommit) -> None:
        store, name = self._parts.store, self._identity.name
        try:
            store.commit(name, self._generation, commit)
        except StoreUnavailable:
            outcome = resolve_commit(store.record(name), self._generation, commit.epoch)
            if outcome is Outcome.FENCED:
                raise Fenced(f"another driver has taken over job {name}", todo="This one stops") from None
            if outcome is Outcome.NOT_COMMITTED:
                raise


def _effect(sink: Sink, epoch: int, receipts: list[Receipt]) -> Callable[[Any], None]:
    return lambda connection: sink.in_transaction(connection, epoch, receipts)


def _input_state(name: str, offsets: Mapping[str, bytes]) -> InputState:
    return InputState.from_bytes(name, offsets[name]) if name in offsets else InputState()


def _check_arrivals(outcome: EpochOutcome) -> None:
    """What was read is what the shards got: a read task that ran twice must have given the same both times."""
    read = sum(r.rows for r in outcome.read.partitions)
    joined = sum(s.rows_in for s in outcome.shards.values())
    if read != joined:
        raise SourceError(
            "A range of an input gave other records when it was read again",
            facts=f"{read} rows were read, the shards got {joined}; nothing of the epoch was committed",
            todo="Start the job again; if it stays so, records of the planned ranges have been deleted meanwhile",
        )


def _refuse_dead(outcome: EpochOutcome) -> None:
    for read in outcome.read.partitions:
        if read.dead:
            raise RecordError(
                f"input {read.partition.input} has records that cannot be used",
                facts=f"the first is {read.first_dead} ({read.dead} in this epoch); nothing of the epoch was committed",
                todo="Name an output for such records under spec.deadLetter and start the job again",
            )
