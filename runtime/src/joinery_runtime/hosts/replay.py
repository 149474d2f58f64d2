"""Committed epochs, run once more: the job's own core over the ranges, watermarks and horizons of the epoch log.

A plan fixes all that decides an epoch's rows (rule T9). So what went out can be computed again from the log and the
inputs alone, in this process, with an empty state in memory at the start. Nothing of the job is touched: no store, no
output, no consumer group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.assembly import fingerprint, identity, input_clocks
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.plan import EpochPlan, input_states
from joinery_runtime.engine.report import result_json
from joinery_runtime.engine.worker import InputAccess, Worker, WorkerParts
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.local import LocalHost
from joinery_runtime.hosts.trace_environment import LocalCapture
from joinery_runtime.job import Job
from joinery_runtime.job.model.wording import counted
from joinery_runtime.sources.base import PartitionRef
from joinery_runtime.state.store import EpochRecord, JobReader, JobRecord, Standing

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class ReplayedEpoch:
    """What an epoch gave. `rows` are its output rows with ORDER_COLUMNS, `dead` its dead letters, `result` the document
    that the epoch log has of it, made anew."""

    plan: EpochPlan
    rows: Sequence[pa.Table]
    dead: Sequence[pa.Table]
    result: Mapping[str, Any]

    @property
    def epoch(self) -> int:
        return self.plan.epoch


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a store has of a job: the record, and the segments that it names, by key."""

    record: JobRecord
    blobs: Mapping[str, bytes]


class Replay:
    """The job's state, in memory, and what runs its next epoch: the state is empty at first, or as it is `stored`.
    `cache` is an empty directory."""

    def __init__(self, job: Job, inputs: InputAccess, cache: Path, stored: StoredState | None = None) -> None:
        self._pipeline, self._clocks = compile_job(job), input_clocks(job)
        self._output, self._dead = LocalCapture(), LocalCapture()
        self._segments = _Segments({} if stored is None else stored.blobs)
        parts = WorkerParts(
            job.name, self._pipeline, inputs, self._segments, self._output, self._dead, cache, ordered=True
        )
        self._host = LocalHost(Worker(parts))
        if stored is None:
            self._state = JobState(self._pipeline, input_states((side.name for side in job.inputs), None))
        else:
            self._state = JobState.of(self._pipeline, replace(stored.record, plan=None), None)

    def goes_on(self, plan: EpochPlan) -> bool:
        """Whether the plan reads on from where the state stands. Not after a restore or a reset."""
        there = {ref: offset for one in self._state.inputs.values() for ref, offset in one.positions.items()}
        return all(planned.start >= there.get(planned.partition, planned.start) for planned in plan.ranges)

    def closes(self, plan: EpochPlan) -> bool:
        """Whether the epoch may put rows out although nothing of it is read."""
        planned = self._after_what_was_left_out(plan)
        return any(times.closes(self._pipeline, meta, planned.horizons) for meta in self._state.remaining)

    def run(self, plan: EpochPlan) -> ReplayedEpoch:
        """The next epoch. Epochs between the last one and this may be left out if nothing is read in them and none
        `closes` anything."""
        plan = self._after_what_was_left_out(plan)
        work = EpochWork(generation=1, plan=plan, segments=self._state.needed_by(plan))
        outcome = self._host.run(work)
        self._go_on(plan, outcome)
        return ReplayedEpoch(
            plan, self._output.take(), self._dead.take(), result_json(plan, outcome, self._state.totals)
        )

    def _after_what_was_left_out(self, plan: EpochPlan) -> EpochPlan:
        floors = self._state.floors
        found = plan.horizons or times.horizons(self._pipeline, plan.times, floors)
        return replace(plan, horizons={part: Horizon(floors.get(part), at.now) for part, at in found.items()})

    def _go_on(self, plan: EpochPlan, outcome: EpochOutcome) -> None:
        dropped = self._state.dropped(plan, outcome)
        self._state = self._state.after(plan, outcome, self._clocks)
        self._segments.forget(dropped)


class _Segments:
    """The task's half of a state store, for one process that commits whatever it stages."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = dict(blobs)

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        self._blobs.update((meta.key, blob) for meta, blob in segments)

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: self._blobs[key] for key in keys}

    def claim(self, job: str, expected: Standing, name: str, owner: str, instead_of: str | None = None) -> str | None:
        return None

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._blobs.pop(key, None)


# --- which epochs can be replayed -------------------------------------------------------------------------------------


def replayable(job: Job, store: JobReader, first: int | None = None, last: int | None = None) -> list[EpochRecord]:
    """The log's entries from where the state was empty up to epoch `last` (None: the newest one). `first` has to be
    among them (None: whatever there is). Raises JoineryError that says why an epoch cannot be computed again."""
    entries = [entry for entry in _log(job.name, store) if last is None or entry.epoch <= last]
    if not entries or (first is not None and first > entries[-1].epoch):
        newest = f"the newest one is {entries[-1].epoch}" if entries else "the log is empty"
        raise JoineryError(f"The epoch log of job {job.name} has no such epoch", facts=newest)
    plans = {entry.epoch: EpochPlan.from_json(entry.plan) for entry in entries}
    goal = entries[-1].epoch if first is None else first
    empty = [number for number, plan in plans.items() if number <= goal and _state_is_empty(plan)]
    if not empty:
        raise JoineryError(
            f"The epochs of job {job.name} cannot be computed again",
            facts=f"the log begins with epoch {entries[0].epoch}, when the job already kept rows of earlier ones",
            todo="Keep the log longer: stateStore.postgres.epochLogRetention",
        )
    chosen = [entry for entry in entries if entry.epoch >= empty[-1]]
    _check(job, [plans[entry.epoch] for entry in chosen])
    return chosen


def _log(job: str, store: JobReader) -> Iterator[EpochRecord]:
    after = 0
    while page := store.epochs(job, after, _PAGE):
        yield from page
        after = page[-1].epoch


def _state_is_empty(plan: EpochPlan) -> bool:
    """Before this epoch no row with an event time had been read, and nothing had been closed: the job, or its life
    after `start_anew`, began with it."""
    unread = all(highest is None for highest in plan.highest.values()) and (bool(plan.highest) or plan.epoch == 1)
    return unread and all(horizon.before is None for horizon in plan.horizons.values())


def fingerprint_of(job: Job) -> str:
    """What plans that were made under the job as it is now have."""
    return fingerprint(identity(job, compile_job(job), lambda _: None).signature)


def _check(job: Job, plans: Sequence[EpochPlan]) -> None:
    """Raises JoineryError unless each epoch goes on where the one before ended, under the job as it is now."""
    today = fingerprint_of(job)
    ends: dict[PartitionRef, int] = {}
    floors: dict[str, int] = {}
    for plan in plans:
        if plan.fingerprint and plan.fingerprint != today:
            raise _not_again(job, plan, "it was made by the job before an edit, which the log does not keep")
        for planned in plan.ranges:
            if planned.start < ends.get(planned.partition, planned.start):
                place = f"{planned.partition.topic}/{planned.partition.partition}"
                raise _not_again(
                    job,
                    plan,
                    f"{place} went back from offset {ends[planned.partition]} to {planned.start}: a restore or a reset "
                    "took the job back",
                )
            ends[planned.partition] = planned.end_exclusive
        for part, horizon in plan.horizons.items():
            if horizon.before != floors.get(part):
                raise _not_again(
                    job, plan, f"part {part} of the state was closed up to {horizon.before}, the epochs before it "
                    f"closed it up to {floors.get(part)}: the state was restored, or a watermark was reset"
                )  # fmt: skip
        floors |= times.floors_after(plan.horizons)


def _not_again(job: Job, plan: EpochPlan, facts: str) -> JoineryError:
    return JoineryError(
        f"Epoch {plan.epoch} of job {job.name} cannot be computed again",
        facts=facts,
        todo="Name epochs before it, or after the next start with empty state",
    )


def wrong_counts(entry: EpochRecord, replayed: ReplayedEpoch) -> list[str]:
    """What the log counts otherwise than the replayed epoch does."""
    return [
        f"epoch {entry.epoch}: the log has {name} {entry.result[name]}, computed were {replayed.result[name]}"
        for name in ("rows_out", "dropped", "dead", "lost")
        if name in entry.result and entry.result[name] != replayed.result[name]
    ]


def check_records(entry: EpochRecord, there: Mapping[str, int]) -> None:
    """Raises JoineryError unless the inputs still have all records that the epoch read; it names the partition. `there`
    counts records by partition, named as in `rows_in` of the log."""
    for place, count in entry.result["rows_in"].items():
        if there.get(place, 0) != count:
            raise JoineryError(
                f"Epoch {entry.epoch} cannot be computed again",
                facts=f"it read {counted(count, 'record')} of {place}, of which {there.get(place, 0)} are there: "
                "retention or compaction has deleted them, or the file was changed",
                todo="Keep topics for as long as their epochs are to be explained (retention.ms)",
            )
