"""Runs committed epochs again: the job's own core over the ranges, watermarks and horizons of the epoch log.

A plan fixes everything that decides an epoch's rows (rule T9). So the output can be computed again from the log and the
inputs, in this process. It starts with an empty state in memory or, if the log does not go back far enough, with the
state of a savepoint. Nothing of the job is touched: no store, no output, no consumer group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.times import Floors
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.engine.assembly import fingerprint, identity, input_clocks
from joinery_runtime.engine.job_state import JobState, compare_with_state
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan, input_states, partition_id
from joinery_runtime.engine.report import behind_watermark, result_json
from joinery_runtime.engine.tasks import LocalHost
from joinery_runtime.engine.worker import InputAccess, Worker, WorkerParts
from joinery_runtime.errors import IncompatibleState, JoineryError, StateError, StoreUnavailable
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.inspect.evidence import ReplayedEpoch
from joinery_runtime.inspect.stored_state import epochs_after
from joinery_runtime.inspect.trace_environment import LocalCapture
from joinery_runtime.job import Job, definition, definition_hash, reads_alike, under_definition
from joinery_runtime.state import migrations
from joinery_runtime.state.migrations import decode_run
from joinery_runtime.state.store import EpochRecord, JobRecord, OwnershipToken, SegmentReader, StateReader
from joinery_runtime.state.upgrade import outdated_segments


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a store has of a job: the record, and the segments that the record names, by key."""

    record: JobRecord
    blobs: Mapping[str, bytes]

    @classmethod
    def readable(cls, record: JobRecord, blobs: Mapping[str, bytes]) -> StoredState:
        """Return the stored state with its segments migrated to a version that this release can read."""
        target, chain = migrations.CURRENT_STATE_VERSION, migrations.MIGRATIONS
        old = {meta.key: meta for meta in outdated_segments(record, chain, target)}
        newer = {key: migrations.migrate(blobs[key], meta.state_version, target, chain) for key, meta in old.items()}
        segments = [
            replace(meta, state_version=target, bytes=len(newer[meta.key])) if meta.key in newer else meta
            for meta in record.segments
        ]
        return cls(replace(record, segments=tuple(segments)), {**blobs, **newer})


class Replay:
    """Keeps a job's state in memory and runs its next epochs. The state is empty at first, or as `stored`. `cache` is
    an empty directory. `pipeline` is the compiled job, if the caller has it."""

    def __init__(
        self,
        job: Job,
        inputs: InputAccess,
        cache: Path,
        stored: StoredState | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        self._pipeline, self._clocks = pipeline or compile_job(job), input_clocks(job)
        self._output, self._dead = LocalCapture(), LocalCapture()
        self._segments = _Segments({} if stored is None else stored.blobs)
        self._inputs, self._cache = inputs, cache
        self._worker = self._worker_of(job)
        self._host = LocalHost(self._worker)
        if stored is None:
            self._state = JobState(self._pipeline, input_states((side.name for side in job.inputs), None))
        else:
            self._state = JobState.of(self._pipeline, replace(stored.record, plan=None), None)

    def continues(self, plan: EpochPlan) -> bool:
        """Whether the plan continues to read where the state stands. After a restore or a reset it does not."""
        positions = _partition_offsets(self._state)
        return all(planned.start >= positions.get(planned.partition, planned.start) for planned in plan.ranges)

    def closes(self, plan: EpochPlan) -> bool:
        """Whether the epoch may emit rows even though it reads nothing."""
        planned = self._after_skipped(plan)
        return any(times.closes(self._pipeline, meta, planned.horizons) for meta in self._state.remaining)

    def run(self, plan: EpochPlan, *, careful: bool = False) -> ReplayedEpoch:
        """Run the next epoch. Epochs in between may be skipped if they read nothing and none of them `closes`
        anything. `careful`: one of the plan's records may end the process, so other processes decode and call functions
        (T8)."""
        plan = self._after_skipped(plan)
        work = EpochWork(generation=1, plan=plan, segments=self._state.needed_by(plan), careful=careful)
        try:
            outcome = self._host.run(work)
        finally:
            self._worker.close()  # its processes count by epoch the rows that end them
        dropped = self._state.dropped(plan, outcome)
        self._state = self._state.after(plan, outcome, self._clocks)
        self._segments.forget(dropped)
        result = result_json(plan, outcome, self._state.totals)
        return ReplayedEpoch(plan, self._output.take(), self._dead.take(), result, behind_watermark(plan, outcome))

    def live_runs(self, predicate: Callable[[SegmentMeta], bool]) -> list[tuple[SegmentMeta, Run]]:
        """Return the live segments that the `predicate` accepts, with their rows."""
        segments = self._state.segments.items()
        return [(meta, decode_run(meta, self._segments.blob(key))) for key, meta in segments if predicate(meta)]

    def continue_with(self, job: Job) -> None:
        """Continue with an edit of the job, whose signature and inputs are those of the job before."""
        self._pipeline, self._clocks = compile_job(job), input_clocks(job)
        self._state = replace(self._state, pipeline=self._pipeline)
        self._worker = self._worker_of(job)
        self._host = LocalHost(self._worker)

    def _worker_of(self, job: Job) -> Worker:
        parts = WorkerParts(
            job.name,
            self._pipeline,
            self._inputs,
            self._segments,
            self._output,
            self._dead,
            self._cache,
            ordered=True,
            row_limit=Outputs.of(job).row_limit(),
        )
        return Worker(parts)

    @property
    def floors(self) -> Floors:
        """Up to where each part of the state is closed."""
        return self._state.floors

    def _after_skipped(self, plan: EpochPlan) -> EpochPlan:
        floors = self._state.floors
        planned = plan.horizons or times.horizons(self._pipeline, plan.times, floors)
        return replace(plan, horizons={part: Horizon(floors.get(part), at.current) for part, at in planned.items()})


class _Segments:
    """The tasks' half of a state store, for one process that commits whatever it stages."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = dict(blobs)

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        self._blobs.update((meta.key, blob) for meta, blob in segments)

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: self._blobs[key] for key in keys}

    def blob(self, key: str) -> bytes:
        return self._blobs[key]

    def claim(
        self, job: str, expected: OwnershipToken, name: str, owner: str, replacing: str | None = None
    ) -> str | None:
        return None

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._blobs.pop(key, None)


# --- which epochs can be replayed -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayable:
    """Entries of the log that can be computed again, one after the other. They begin with an empty state, or with that
    of a savepoint: `savepoint` is its name, `record` what it keeps, of this job or of the job that it started from.
    """

    entries: Sequence[EpochRecord]
    savepoint: str = ""
    record: JobRecord | None = None
    jobs: Mapping[str, Job] = field(default_factory=dict)
    """The job as it was before edits, by the name of its definition in plans."""

    def initial_state(
        self, store: SegmentReader, predicate: Callable[[SegmentMeta], bool] = lambda _: True
    ) -> StoredState | None:
        """Return the state that the entries begin with, with only the segments that the `predicate` accepts; None if
        it is empty. Raises JoineryError if the savepoint was deleted meanwhile."""
        if self.record is None:
            return None
        segments = tuple(meta for meta in self.record.segments if predicate(meta))
        try:
            blobs = store.read_segments(self.record.job, [meta.key for meta in segments])
        except StoreUnavailable:
            raise
        except StateError as error:
            raise JoineryError(
                f"Savepoint {self.savepoint} of job {self.record.job} was deleted while it was read",
                facts=str(error),
                todo="Run the command again: it may find another savepoint",
            ) from error
        return StoredState.readable(replace(self.record, segments=segments), blobs)


def replayable(
    job: Job,
    store: StateReader,
    first: int | None = None,
    last: int | None = None,
    pipeline: Pipeline | None = None,
    *,
    edits: bool = False,
) -> Replayable:
    """Find the log's entries up to epoch `last` (None: the newest one) that can be computed again. They begin where
    the state was empty or, if the log does not go back that far, at a savepoint: the oldest one that fits, or the
    newest one before epoch `first`, which has to be among the entries. `pipeline` is the compiled job, if the caller
    has it. With `edits`, the entries begin after an edit that the log does not have; without, an edit that leaves the
    signature as it is counts as if it had always been there. Raises JoineryError, which says why an epoch cannot be
    computed again, and what would help."""
    log = list(epochs_after(store, job.name))
    # The first entry may be a copy from the job that this job started from: this job wrote nothing of that epoch. The
    # copy does not say what the epoch wrote, which tells it apart.
    own = log[1:] if log and "output" not in log[0].result else log
    entries = [entry for entry in own if last is None or entry.epoch <= last]
    if not entries or (first is not None and first > entries[-1].epoch):
        newest = f"the newest one is {entries[-1].epoch}" if entries else "the log is empty"
        raise JoineryError(f"The epoch log of job {job.name} has no such epoch", facts=newest)
    plans = [EpochPlan.from_json(entry.plan) for entry in entries]
    pipeline = pipeline or compile_job(job)
    jobs = _jobs_by_definition(job, log) if edits else {}
    course = _last_course(fingerprint_of(job, pipeline), plans, jobs if edits else None)
    usable_starts = [
        at for at, entry in enumerate(entries) if at >= course.begin and (first is None or entry.epoch <= first)
    ]
    if course.empty and usable_starts:
        return Replayable(entries[course.begin :], jobs=jobs)
    savepoint_starts = _find_starts(job, store, plans, course, begun=len(own) < len(log))
    starts = sorted((start for start in savepoint_starts if start.at >= course.begin), key=lambda start: start.at)
    early = [start for start in starts if start.at in usable_starts]
    late = [start for start in starts if start.at not in usable_starts]
    for start in [*(early if first is None else reversed(early)), *late]:
        record = store.pinned(start.job, start.savepoint)
        if _fits_state(job, pipeline, record, plans[start.at :]):
            if start in late:
                since = plans[start.at].epoch
                raise JoineryError(
                    f"Epochs before {since} of job {job.name} cannot be computed again",
                    facts=f"{course.break_reason}; savepoint {start.savepoint} is the first one that keeps the state "
                    "since then",
                    todo=f"Ask for epochs from {since} on: --epochs {since}..",
                )
            return Replayable(entries[start.at :], start.savepoint, record, jobs)
    raise _not_replayable(job, plans, course)


@dataclass(frozen=True, slots=True)
class _EpochSequence:
    """The newest plans that continue each other under the job as it is now, from the one at `begin`. `empty`: the state
    was empty before it; otherwise `break_reason` says what separates it from the plans before it."""

    begin: int
    empty: bool
    break_reason: str


def _jobs_by_definition(job: Job, log: Sequence[EpochRecord]) -> dict[str, Job]:
    """Return the job under each definition that the log has, by its name, if records are read as they are now; the log
    has a definition with the first epoch that was made under it."""
    today = definition(job)
    jobs = {"": job, definition_hash(today): job}
    for entry in log:
        stored, name = entry.result.get("definition"), entry.plan.get("definition", "")
        if stored is not None and name not in jobs and reads_alike(stored, today):
            jobs[name] = under_definition(job, stored)
    return jobs


def _last_course(today: str, plans: Sequence[EpochPlan], jobs: Mapping[str, Job] | None) -> _EpochSequence:
    """`jobs` has the job under the definitions that are known; None: an edit counts as if it had always been there."""
    break_reason = f"the log begins with epoch {plans[0].epoch}, when the job already kept rows of earlier ones"
    course = _EpochSequence(0, False, break_reason)
    ends: dict[PartitionRef, int] = {}
    floors: dict[str, int] = {}
    for at, plan in enumerate(plans):
        # The job, or its life after `start_anew`, began with this epoch if no row with an event time had been read
        # before it, and nothing had been closed.
        unread = all(highest is None for highest in plan.highest.values()) and (bool(plan.highest) or plan.epoch == 1)
        if plan.fingerprint and plan.fingerprint != today:
            break_reason = f"epoch {plan.epoch} was made by the job before an edit, which the log does not keep"
            course = _EpochSequence(at + 1, False, break_reason)
        elif jobs is not None and plan.definition not in jobs:
            break_reason = f"epoch {plan.epoch} was made by the job before an edit that the log does not keep"
            course = _EpochSequence(at + 1, False, break_reason)
        elif unread and all(horizon.previous is None for horizon in plan.horizons.values()):
            course = _EpochSequence(at, True, "")
        elif at > course.begin and (back := _find_discontinuity(plan, ends, floors)):
            course = _EpochSequence(at, False, f"in epoch {plan.epoch} {back}")
        if at <= course.begin:
            ends, floors = {}, {}
        ends |= {planned.partition: planned.end_exclusive for planned in plan.ranges}
        floors |= times.floors_after(plan.horizons)
    return course


def fingerprint_of(job: Job, pipeline: Pipeline) -> str:
    """Return the fingerprint in plans that were made under the job as it is now."""
    return fingerprint(identity(job, pipeline, lambda _: None).signature)


def _find_discontinuity(plan: EpochPlan, ends: Mapping[PartitionRef, int], floors: Mapping[str, int]) -> str:
    """Why the plan does not continue where the plans before it ended; empty if it does."""
    for planned in plan.ranges:
        if planned.start < ends.get(planned.partition, planned.start):
            partition_name = f"{planned.partition.topic}/{planned.partition.partition}"
            offsets = f"from offset {ends[planned.partition]} to {planned.start}"
            return f"{partition_name} went back {offsets}: a restore or a reset took the job back"
    for part, horizon in plan.horizons.items():
        if horizon.previous != floors.get(part):
            return (
                f"part {part} of the state was closed up to {horizon.previous}, the epochs before it closed it up to "
                f"{floors.get(part)}: the state was restored, or a watermark was reset"
            )
    return ""


@dataclass(frozen=True, slots=True)
class _Start:
    """A savepoint of `job` that the plan at `at` may continue from."""

    at: int
    job: str
    savepoint: str


def _find_starts(
    job: Job, store: StateReader, plans: Sequence[EpochPlan], course: _EpochSequence, *, begun: bool
) -> Iterator[_Start]:
    """Yield the savepoints that the plans may continue from, by epoch numbers only; whether the state fits is
    another question. `begun`: the first of the plans is the job's first one after it started from another job."""
    record = store.record(job.name)
    incarnation = None if record is None else record.incarnation
    for pin in store.savepoints(job.name):
        following = next((at for at, plan in enumerate(plans) if plan.epoch > pin.epoch), None)
        if following is None or pin.incarnation != incarnation:
            continue
        # The log has all epochs since the savepoint only if it has one from before it, or the one right after it.
        if following > 0 or plans[0].epoch == pin.epoch + 1:
            yield _Start(following, job.name, pin.name)
        if following < course.begin < len(plans):  # the job may have been taken back to this savepoint
            yield _Start(course.begin, job.name, pin.name)
    begin = job.spec.state_store.start_from
    if begin is not None:
        other = job.name_beside(begin.job)
        for pin in store.savepoints(other):
            if pin.name == begin.savepoint and (begun or plans[0].epoch == pin.committed + 1):
                yield _Start(0, other, pin.name)


def _fits_state(job: Job, pipeline: Pipeline, record: JobRecord, plans: Sequence[EpochPlan]) -> bool:
    """Whether the first of the plans was made on this state. Then the first plan that reads a partition begins where
    the state stands, and the state is closed, and has seen event times, up to where the first plan says."""
    try:
        compare_with_state(identity(job, pipeline, lambda _: None), record)
    except IncompatibleState:
        return False
    state, first = JobState.of(pipeline, record, None), plans[0]
    positions, lost = _partition_offsets(state), {partition_name for plan in plans for partition_name in plan.lost}
    for plan in plans:
        for planned in plan.ranges:
            ref, position = planned.partition, positions.pop(planned.partition, planned.start)
            if planned.start != position and not (planned.start > position and partition_id(ref) in lost):
                return False
    newest = {name: input_state.progress.newest for name, input_state in state.inputs.items()}
    closed = all(horizon.previous == state.floors.get(part) for part, horizon in first.horizons.items())
    return closed and all(newest.get(name) == highest for name, highest in first.highest.items())


def _partition_offsets(state: JobState) -> dict[PartitionRef, int]:
    return {ref: offset for input_state in state.inputs.values() for ref, offset in input_state.positions.items()}


def _not_replayable(job: Job, plans: Sequence[EpochPlan], course: _EpochSequence) -> JoineryError:
    if course.empty:
        since = plans[course.begin].epoch
        return JoineryError(
            f"Epochs before {since} of job {job.name} cannot be computed again together with later ones",
            facts=f"the job began with an empty state in epoch {since}",
            todo=f"Ask for epochs up to {since - 1}, or from {since} on",
        )
    alternative = f", or ask for epochs up to {plans[course.begin - 1].epoch}" if course.begin else ""
    return JoineryError(
        f"The epochs of job {job.name} cannot be computed again",
        facts=f"{course.break_reason}, and no savepoint keeps the state from there on",
        todo=f"Create a savepoint now (`joinery state savepoint JOB NAME`): epochs from {plans[-1].epoch + 1} on can "
        "then be computed again, as long as the savepoint and the epoch log since then are kept. stateStore.savepoints "
        f"creates savepoints regularly, stateStore.postgres.epochLogRetention keeps the log longer{alternative}",
    )
