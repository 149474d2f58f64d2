"""What a task does: read and cut, run a step, collect. There is one `Worker` per process and job. Several threads may
use it at once, each for a lane or shard of its own.

read     ranges -> (shard, block) pairs; the blocks for shard number `shards` report what was read
step     one shard's blocks of a step -> staged segments, output rows or blocks for the next step, a ShardSummary;
         with a routing, a last step writes what the shards have made
collect  the read reports, and the dead letters of reading and of the steps -> ReadSummary
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.sink import Attempt, AttemptId, RowLimit, RowRouting, SinkWriter
from joinery_runtime.connectors.source import Range, SourceReader
from joinery_runtime.connectors.trial import read_carefully, with_trials
from joinery_runtime.core.pipeline.lateness import LateRows
from joinery_runtime.core.pipeline.prepare import DecodedRecords, RecordChecks, cut_by_shard, prepare, prepare_joined
from joinery_runtime.core.pipeline.sides import LEFT, Placement
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.pipeline.step import ARRIVED_OFFSET, ARRIVED_PARTITION, FILTERED_ROWS, StepResult
from joinery_runtime.core.table.blob import to_blob
from joinery_runtime.core.table.columns import TS, UNAVAILABLE
from joinery_runtime.core.table.keyhash import KeyHash, key_hash
from joinery_runtime.core.table.segment import Run, SegmentMeta, concat, decode, describe
from joinery_runtime.engine.cache import DEFAULT_MAX_BYTES, FlagCache, SegmentCache
from joinery_runtime.engine.function_calls import FunctionCalls, records_text, step_text
from joinery_runtime.engine.hot_keys import KeyCounter, KeyRows
from joinery_runtime.engine.input_warnings import reject_seconds
from joinery_runtime.engine.messages import EpochWork, PartCounts, ReadSummary, ShardSummary
from joinery_runtime.engine.null_keys import ENOUGH_RECORDS, ColumnsRead, reject_null_keys
from joinery_runtime.engine.output_limit import (
    OutputLimit,
    ReplayableBatches,
    in_chunks,
    reasons_of,
    slice_batches,
    unfit_rows,
    with_dead_letters,
)
from joinery_runtime.engine.plan import NAMED_BY_LIFE, EpochPlan
from joinery_runtime.engine.read_report import (
    DeadLetters,
    LateCandidates,
    ReadCounter,
    ReadReport,
    StepDeadLetters,
    read_summary,
)
from joinery_runtime.engine.step_task import SideBatches, StepOutcome, StepTask
from joinery_runtime.errors import PlanTooLarge
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.records import BadRecord, Decoder
from joinery_runtime.state.store import OwnershipToken, TaskStore

STAGED_BYTES = 16 << 20
"""Bytes of segment blobs that are staged together in one call of the store."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Prepared rows of one side of a step for one shard. `read`: they come from an input, not from a step. Blocks never
    leave their process: other processes get parcels (`engine.exchange`)."""

    step: int
    side: int
    rows: pa.RecordBatch
    read: bool = True


Block = RowBlock | LateCandidates | ColumnsRead | ReadReport | StepDeadLetters | ShardSummary
Sent = tuple[int, Block]  # a block and the shard that it goes to


class InputAccess(Protocol):
    """Where a worker gets its records from: a reader and a decoder per input and lane. One thread uses a lane at a
    time, and a lane reads the same partitions in every epoch, as far as possible."""

    def reader(self, name: str, lane: int) -> SourceReader: ...

    def decoder(self, name: str, lane: int) -> Decoder: ...


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker works with. `cache` is a directory of at most `cache_bytes` that it may share with other processes,
    `earlier_cache` that of the process that ran the job's epochs before, if it is on this machine.
    `ordered` adds ORDER_COLUMNS to output rows, for a writer that knows them; with a `routing`, the rows must have
    them, and go to the shard that writes them. Without `dead_letters` bad records are
    only reported; with them, output rows over the `row_limit` are dead letters, too. `paths_of` lists what a record
    has, for messages.
    """

    job: str
    pipeline: Pipeline
    inputs: InputAccess
    store: TaskStore
    output: SinkWriter
    dead_letters: SinkWriter | None
    cache: Path
    cache_bytes: int = DEFAULT_MAX_BYTES
    earlier_cache: Path | None = None
    ordered: bool = False
    row_limit: RowLimit | None = None
    routing: RowRouting | None = None
    hasher: KeyHash = key_hash
    paths_of: Callable[[str, bytes], tuple[str, ...]] | None = None


class Worker:
    """Runs the tasks of one job in this process. What its tasks yield is addressed to shards; shard number `shards`
    stands for the reports that go to `collect`."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts, self._pipeline = parts, parts.pipeline
        self._cache = SegmentCache(
            parts.cache, parts.store, parts.job, parts.cache_bytes, parts.hasher, parts.earlier_cache
        )
        self._flag_cache = FlagCache(self._cache)
        self._calls = FunctionCalls()
        self._counters = [KeyCounter(step) for step in parts.pipeline.steps]
        self._counted: set[tuple[int, int]] = set()  # steps and shards whose hot keys were counted
        self._compaction_pending: set[tuple[int, int]] = set()  # steps and shards with more to merge than one epoch did
        self._shards = 0  # of the newest epoch
        self._retain_lock = threading.Lock()
        self._evicted_in = (0, 0)  # generation and epoch

    @property
    def steps(self) -> int:
        """The number of steps, with the one that only writes rows of other shards."""
        return len(self._pipeline.steps) + (self._parts.routing is not None)

    def close(self) -> None:
        """End the processes that call functions."""
        self._calls.close()

    # --- read -------------------------------------------------------------------------------------------------------

    def read(self, work: EpochWork, ranges: Iterable[Range], lane: int = 0) -> Iterator[Sent]:
        """Read and prepare the ranges. Yields blocks for the shards, records that may be late, and a report of each
        range. `lane` is the caller's (`InputAccess`). Raises SourceError, and PlanTooLarge when a range has more bytes
        than `work.allowed`."""
        by_input: dict[str, list[Range]] = {}
        for planned in ranges:
            if planned.partition in work.replaced_partitions:
                yield work.plan.shards, ReadCounter(planned).report(lost=planned.end_exclusive - planned.start)
            else:
                by_input.setdefault(planned.partition.input, []).append(planned)
        for name, input_ranges in by_input.items():
            work.failpoint("reading")
            yield from self._read_input(work, name, input_ranges, lane)

    def _read_input(self, work: EpochWork, name: str, ranges: Sequence[Range], lane: int) -> Iterator[Sent]:
        """Read ranges of one input. Small ranges share blocks, so that hundreds of partitions make no more blocks than
        one."""
        plan = work.plan
        reader, decoder = self._parts.inputs.reader(name, lane), self._parts.inputs.decoder(name, lane)
        if work.careful:
            reader, decoder = read_carefully(reader), with_trials(decoder)
        spec, candidates = self._pipeline.input(name), list[Sent]()
        sources = {planned.partition: spec.source(planned.partition.topic) for planned in ranges}
        counters = {}
        for planned in ranges:
            source = sources[planned.partition]
            paths_of = None if self._parts.paths_of is None else partial(self._parts.paths_of, source)
            counters[planned.partition] = ReadCounter(planned, work.keys_to_check.get(source, ()), paths_of)
        late = LateRows.of(self._pipeline, name, plan.watermarks, plan.horizons)
        checks = {ref: RecordChecks(plan.future_check(name), late, plan.co_partitions) for ref in counters}

        def prepared() -> Generator[pa.RecordBatch, None, None]:
            for raw in reader.read(*ranges):
                ref, counter = raw.partition, counters[raw.partition]
                with self._calls.within(work, partial(records_text, raw)):
                    rows = self._prepare_batch(name, decoder, raw, plan.numbered(ref), counter, checks[ref])
                if counter.bytes > work.allowed.get(ref, math.inf):
                    raise _too_large(work, counter)
                if late is not None and not late.certain:
                    candidates.extend(self._late_candidates(name, raw, rows, late, plan.shards))
                candidates.extend(self._incomplete_candidates(name, raw, rows, plan.shards))
                if rows.num_rows:
                    yield rows

        for rows in in_chunks(prepared()):
            if self._pipeline.intake(name).placement is Placement.EVERYWHERE:
                block = RowBlock(spec.step, spec.side, rows)
                yield from ((shard, block) for shard in range(plan.shards))
            else:
                # No variable holds a cut while the next chunk is made.
                yield from (
                    (shard, RowBlock(spec.step, spec.side, cut)) for shard, cut in cut_by_shard(rows, plan.shards)
                )
        yield from candidates
        reports = [counter.report() for counter in counters.values()]
        if self._parts.dead_letters is None:  # then the counts end the job, and nobody collects the letters
            reports = [replace(report, dead=None) for report in reports]
        for source in sorted(set(sources.values()) & {*work.keys_to_check, *work.int64_times}):
            columns = ColumnsRead.of(
                source, [report.read for report in reports if sources[report.read.partition] == source]
            )
            yield from ((shard, columns) for shard in range(plan.shards))
        yield from ((plan.shards, report) for report in reports)

    def _prepare_batch(
        self, name: str, decoder: Decoder, raw: RawBatch, partition: int, counter: ReadCounter, checks: RecordChecks
    ) -> pa.RecordBatch:
        """Decode and prepare a batch of records. `partition` is what the rows get as PARTITION."""
        decoded = decoder.decode_batch(raw)
        offsets = raw.offsets[decoded.index]
        batches = decoded.rows.combine_chunks().to_batches()
        rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=decoded.rows.schema)
        timestamps_at = raw.timestamps
        timestamps = None if timestamps_at is None else lambda at: timestamps_at(decoded.index[at])
        records = DecodedRecords(rows, partition, offsets, decoded.deleted, timestamps, decoded.unavailable)
        prepared = prepare(self._pipeline.intake(name), records, checks, self._parts.hasher)
        unusable = [BadRecord(int(decoded.index[row]), reason) for row, reason in prepared.bad.items()]
        bad = [*decoded.bad, *unusable]
        reached: tuple[int, int] | tuple[None, None] = None, None
        if decoded.left_out is not None:
            times, index = decoded.left_out.times, decoded.left_out.index
            if checks.future is not None:  # what is too far ahead moves no watermark (T11)
                left_out_timestamps = None if timestamps_at is None else lambda at: timestamps_at(index[at])
                times = np.delete(times, list(checks.future.find(times, left_out_timestamps)))
            if len(times):
                reached = int(times.min()), int(times.max())
        counter.add(raw, decoded, prepared, DeadLetters.of(raw, bad) if bad else None, reached)
        return prepared.rows

    def _late_candidates(
        self, name: str, raw: RawBatch, rows: pa.RecordBatch, late: LateRows, shards: int
    ) -> Iterator[Sent]:
        spec, event_time = self._pipeline.input(name), self._pipeline.intake(name).event_time
        below = rows.filter(pa.array(rows.column(TS).to_numpy() < late.accept_from))
        for shard, cut in cut_by_shard(below, shards):
            yield shard, LateCandidates.of(spec, event_time, raw, cut, late)

    def _incomplete_candidates(self, name: str, raw: RawBatch, rows: pa.RecordBatch, shards: int) -> Iterator[Sent]:
        """Yield the records of a table that lack values, which an earlier version of their key may have."""
        if UNAVAILABLE not in rows.schema.names or rows.column(UNAVAILABLE).null_count == rows.num_rows:
            return
        spec = self._pipeline.input(name)
        for shard, cut in cut_by_shard(rows.filter(rows.column(UNAVAILABLE).is_valid()), shards):
            yield shard, LateCandidates.lacking_values(spec, raw, cut)

    # --- step -------------------------------------------------------------------------------------------------------

    def step(self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str) -> Iterator[Sent]:
        """Run step `number` of a shard. Yields what the next step needs, blocks of later steps unchanged, and last the
        step's summary, addressed to the reports. Raises MisreadInput in the first step, before anything is written."""
        if number == len(self._pipeline.steps):
            yield from self._write_routed(work, shard, blocks, attempt)
        else:
            yield from self._run_step(work, number, shard, blocks, attempt)

    def _run_step(
        self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str
    ) -> Iterator[Sent]:
        step = self._pipeline.steps[number]
        arrived = _Arrived(number, len(step.sides))
        for block in blocks:
            if not arrived.take(block):
                yield shard, block
        self._reject_misread(work, arrived.columns)
        arrivals = arrived.rows()
        self._evict_unneeded(work)
        resume = (number, shard) in self._compaction_pending
        task = StepTask(self._pipeline, step, shard, work, self._cache, self._flag_cache, resume_compaction=resume)
        last = step is self._pipeline.last
        hands_on = not last or self._parts.routing is not None
        attempt_id = AttemptId(work.generation, work.plan.epoch, shard, attempt)

        staged: list[tuple[SegmentMeta, ...]] = []
        output_limit = OutputLimit(self._row_limit(step, work.plan), step)

        def make() -> Generator[pa.RecordBatch, None, _StagedOutcome | None]:
            """Make the rows, and at the end of the first pass stages the segments. So they are staged once, and are
            durable before any output of the shard can be visible."""
            batches = task.run(arrivals, ordered=self._parts.ordered or not last)
            text = partial(step_text, step, shard, work)
            outcome = yield from output_limit.within(self._calls.during(work, text, batches))
            if outcome is None:
                return None
            if not staged:
                staged.append(self._stage_runs(attempt_id, outcome.runs, work.plan.co_partitions))
                work.failpoint("staged")
            return _StagedOutcome(outcome, staged[0])

        rows = ReplayableBatches(make)
        written, handed = None, 0
        if hands_on:
            handed = yield from self._hand_to_next_step(number + 1, rows, shard, work)
        elif rows.any():
            written = output_limit.write(self._parts.output, self._attempt_of(work, attempt_id), rows)
        completed = rows.result()
        self._note_pending_merges((number, shard), completed)
        hottest = self._count_hot_keys(work, step, shard, task)
        if completed is None:
            yield work.plan.shards, ShardSummary(number, shard, hottest=hottest)
            return
        summary = self._shard_summary(step, shard, arrived, completed, hottest)
        late = StepDeadLetters.select_late(arrived.late_candidates, completed.outcome.result.late)
        large = output_limit.dead_letters(work.plan, partial(task.run, arrivals, ordered=True))
        summary, letters = self._with_letters(summary, step, completed.outcome.result, late, large)
        yield from ((work.plan.shards, records) for records in letters)
        if hands_on:
            yield work.plan.shards, replace(summary, rows_handed=handed)
        else:
            work.failpoint("output-written")
            yield work.plan.shards, replace(summary, rows_out=rows.count, receipt=written)

    def _with_letters(
        self,
        summary: ShardSummary,
        step: StepSpec,
        result: StepResult,
        late: StepDeadLetters | None,
        large: StepDeadLetters | None,
    ) -> tuple[ShardSummary, Sequence[StepDeadLetters]]:
        """Return the summary with the counts of the step's dead letters, and these."""
        unfit = unfit_rows(step, result.unfit)
        counted = with_dead_letters(summary, step, late, large, unfit)
        if self._parts.dead_letters is not None:
            return counted, [records for records in (late, large, unfit) if records is not None]
        # The counts end the job, before the values of stored rows are lost for good.
        return (replace(counted, first_unfit=next(reasons_of(result.lost))) if result.lost else counted), []

    def _reject_misread(self, work: EpochWork, columns: Sequence[ColumnsRead]) -> None:
        reject_null_keys(columns, work.keys_to_check, self._pipeline)
        # One record must not end a job that has dead letters; the driver warns of fewer.
        enough = 1 if self._parts.dead_letters is None else ENOUGH_RECORDS
        reject_seconds(columns, work.int64_times, at_least=enough)

    def _row_limit(self, step: StepSpec, plan: EpochPlan) -> RowLimit | None:
        """Return how large a row of the step may be. Without dead letters there is no limit here: the writer names the
        row."""
        limit = self._parts.row_limit
        if limit is None or step is not self._pipeline.last or self._parts.dead_letters is None:
            return None
        return limit.at_most(plan.row_limits)

    def _evict_unneeded(self, work: EpochWork) -> None:
        """Drop cache entries that no epoch needs any more. This happens once per epoch, before any shard takes a
        segment: until the next epoch the caches only gain entries, which several threads may do at once."""
        with self._retain_lock:
            if self._evicted_in == (work.generation, work.plan.epoch):
                return
            live = {s.key for s in work.segments}
            self._cache.retain(live, work.plan.epoch)
            self._flag_cache.retain(live)
            for counter in self._counters:
                counter.retain(live)
            if self._shards != work.plan.shards:  # other shards have other rows
                self._shards = work.plan.shards
                self._counted.clear()
                self._compaction_pending.clear()
            self._evicted_in = (work.generation, work.plan.epoch)

    def _note_pending_merges(self, key: tuple[int, int], completed: _StagedOutcome | None) -> None:
        """Note whether merges were put off, so that the shard's next epochs resume them. A process that does not
        know of it leaves them to the next checkpoint."""
        if completed is not None and completed.outcome.put_off:
            self._compaction_pending.add(key)
        else:
            self._compaction_pending.discard(key)

    def _shard_summary(
        self,
        step: StepSpec,
        shard: int,
        arrived: _Arrived,
        completed: _StagedOutcome,
        hottest: tuple[KeyRows, ...] | None,
    ) -> ShardSummary:
        outcome, result = completed.outcome, completed.outcome.result
        # Every shard gets the rows of a broadcast side, but they are counted once.
        counted = [side for side, spec in enumerate(step.sides) if shard == 0 or not spec.broadcast]
        parts = {}
        for side, spec in step.stored_sides:
            added = result.added[side]
            # Arrivals of the other side that were looked up in this one; sessions look their own arrivals up.
            other = 1 - side if len(step.sides) > 1 else side
            parts[spec.part] = PartCounts(
                len(added) if added is not None and side in counted else 0,
                result.lookups[other] if other in counted else 0,
            )
        removed = {}
        if step.kind.flagged_rows_leave(step):  # other flags are on rows that stay
            removed = {segment: len(rows) for flags in result.flags for segment, rows in flags.items()}
        return ShardSummary(
            step=step.number,
            shard=shard,
            rows_in=sum(arrived.from_inputs[side] for side in counted),
            rows_taken=sum(arrived.from_steps[side] for side in counted),
            dropped=_dropped_rows(step, result, counted),
            staged=completed.staged,
            replaced=outcome.replaced,
            finished=outcome.finished,
            hottest=hottest,
            parts=parts,
            matches=result.matches,
            removed=removed,
            after_eviction={step.sides[side].time: n for side, n in outcome.after_eviction.items() if side in counted},
            behind={step.sides[side].time: ms for side, ms in outcome.behind.items()},
        )

    def _count_hot_keys(
        self, work: EpochWork, step: StepSpec, shard: int, task: StepTask
    ) -> tuple[KeyRows, ...] | None:
        """Count the hot keys at checkpoints, and once before, so that users need not wait for the first checkpoint.
        That earlier count needs all of the shard's segments in the cache: the first epoch after a recovery must not
        read segments only to count keys."""
        key = (step.number, shard)
        if not work.plan.checkpoint:
            segments = [meta for side_segments in task.segments for meta in side_segments]
            if key in self._counted or not segments or not all(self._cache.has(meta.key) for meta in segments):
                return None
        self._counted.add(key)
        return self._counters[step.number].count(
            [(side, state_run) for side in range(len(step.sides)) for state_run in task.state_runs(side)]
        )

    def _hand_to_next_step(
        self, number: int, rows: ReplayableBatches[Any], shard: int, work: EpochWork
    ) -> Generator[Sent, None, int]:
        """Yield blocks for step `number`, and return how many rows they hold. `shard` is the one that has made
        them."""
        handed, routing = 0, self._parts.routing
        step = self._pipeline.steps[number] if number < len(self._pipeline.steps) else None
        for batch in rows.to_batches():
            if step is not None:
                intake = step.sides[LEFT].intake
                partitions, offsets = (batch.column(n).to_numpy() for n in (ARRIVED_PARTITION, ARRIVED_OFFSET))
                columns = batch.select(intake.schema.names)
                with self._calls.within(work, partial(step_text, step, shard, work)):
                    cuts = cut_by_shard(
                        prepare_joined(intake, columns, partitions, offsets, self._parts.hasher), work.plan.shards
                    )
            else:
                assert routing is not None, "a step that only writes follows the last one"
                cuts = cut_by_shard(batch, work.plan.shards, routing.hashes(batch, self._parts.hasher))
            for receiver, cut in cuts:
                yield receiver, RowBlock(number, LEFT, cut, read=False)
                handed += cut.num_rows
        return handed

    def _write_routed(self, work: EpochWork, shard: int, blocks: Iterable[Block], attempt: str) -> Iterator[Sent]:
        """Write the rows that are routed to a shard, and yield its summary."""
        batches = [block.rows for block in blocks if isinstance(block, RowBlock)]
        number, count = len(self._pipeline.steps), sum(batch.num_rows for batch in batches)
        summary = ShardSummary(number, shard, rows_taken=count)
        if not batches:
            yield work.plan.shards, summary
            return
        step = self._pipeline.last
        output_limit = OutputLimit(self._row_limit(step, work.plan), step)
        # Never as one batch, in which a column of text has at most 2 GiB.
        rows = ReplayableBatches(lambda: output_limit.within(slice_batches(batches)))
        attempt_id = AttemptId(work.generation, work.plan.epoch, shard, attempt)
        written = output_limit.write(self._parts.output, self._attempt_of(work, attempt_id), rows)
        rows.result()
        large = output_limit.dead_letters(work.plan, lambda: slice_batches(batches))
        if large is not None:
            yield work.plan.shards, large
        work.failpoint("output-written")
        summary = replace(summary, rows_out=rows.count, receipt=written)
        yield work.plan.shards, with_dead_letters(summary, step, None, large)

    def _stage_runs(
        self, attempt: AttemptId, runs: Iterable[tuple[str, Run]], co_partitions: int
    ) -> tuple[SegmentMeta, ...]:
        """Stage the runs, with one call of the store for about each STAGED_BYTES of them."""
        staged: list[SegmentMeta] = []
        waiting: list[tuple[SegmentMeta, bytes]] = []
        sides = self._pipeline.parts()
        for part, run in runs:
            key = f"{part}/{attempt}/{len(staged)}"
            side = sides.get(part)  # None for flags
            blob = to_blob(run.batch, side.hashed_by if side is not None else (), co_partitions)
            self._cache.put(key, attempt.epoch, run.batch)
            staged.append(describe(run, key=key, part=part, epoch=attempt.epoch, blob=blob))
            waiting.append((staged[-1], blob))
            del run  # before the next one is made
            if sum(meta.bytes for meta, _ in waiting) >= STAGED_BYTES:
                self._parts.store.stage(self._parts.job, waiting)
                waiting = []
        if waiting:
            self._parts.store.stage(self._parts.job, waiting)
        return tuple(staged)

    def _attempt_of(self, work: EpochWork, attempt: AttemptId) -> Attempt:
        expected = OwnershipToken(work.generation, work.plan.epoch - 1, work.plan.epoch)
        store, job = self._parts.store, self._parts.job

        def claim(name: str, owner: str, replacing: str | None) -> str | None:
            return store.claim(job, expected, name, owner, replacing)

        return Attempt(attempt, work.incarnation, claim, work.failpoint, former_names=work.plan.format < NAMED_BY_LIFE)

    # --- collect ----------------------------------------------------------------------------------------------------

    def collect(self, work: EpochWork, reports: Iterable[ReadReport | StepDeadLetters], attempt: str) -> ReadSummary:
        """Write the dead letters of an epoch under the attempt's name, where the job has an output for them, and sum
        up what was read."""
        listed = list(reports)
        dead = [report.dead for report in listed if report.dead is not None]
        if not dead or self._parts.dead_letters is None:
            return read_summary(listed)
        attempt_id = AttemptId(work.generation, work.plan.epoch, work.plan.shards, attempt)
        rows = ReplayableBatches(lambda: slice_batches(map(decode, dead)))
        return read_summary(listed, self._parts.dead_letters.write(self._attempt_of(work, attempt_id), rows))


def _too_large(work: EpochWork, counter: ReadCounter) -> PlanTooLarge:
    planned, partition = counter.planned, counter.planned.partition
    return PlanTooLarge(
        f"Epoch {work.plan.epoch} holds more bytes than trigger.maxBytesPerEpoch allows",
        facts=f"{counter.records:,} records of input {partition.input} have {counter.bytes:,} bytes, and more is "
        f"planned: {partition.topic}-{partition.partition}, offsets "
        f"{planned.start} to {planned.end_exclusive} (exclusive)",
        todo="Its plan is made smaller, and run again",
        read=(partition.input, partition.topic, partition.partition, counter.records, counter.bytes),
    )


class _Arrived:
    """What has arrived for a step: by side the rows, and how many of them come from inputs and from the step before;
    records that the step may reject; and what was read of columns that a check looks at."""

    def __init__(self, step: int, sides: int) -> None:
        self.from_inputs, self.from_steps = [0] * sides, [0] * sides
        self.late_candidates: list[LateCandidates] = []
        self.columns: list[ColumnsRead] = []
        self._step = step
        self._batches: list[list[pa.RecordBatch]] = [[] for _ in range(sides)]

    def take(self, block: Block) -> bool:
        """Take a block. Returns False for a block of a later step, or a report."""
        if isinstance(block, RowBlock) and block.step == self._step:
            self._batches[block.side].append(block.rows)
            (self.from_inputs if block.read else self.from_steps)[block.side] += block.rows.num_rows
        elif isinstance(block, LateCandidates) and block.step == self._step:
            self.late_candidates.append(block)
        elif isinstance(block, ColumnsRead):
            self.columns.append(block)
        else:
            return False
        return True

    def rows(self) -> SideBatches:
        """Return all rows, and drop the blocks: otherwise a shard's arrivals would be in memory twice."""
        batches, self._batches = self._batches, []
        return tuple(concat(side_batches) if side_batches else None for side_batches in batches)


@dataclass(frozen=True, slots=True)
class _StagedOutcome:
    """The outcome of a step that has made all of its rows, and the segments that it has staged."""

    outcome: StepOutcome
    staged: tuple[SegmentMeta, ...]


def _dropped_rows(step: StepSpec, result: StepResult, counted: Sequence[int]) -> dict[str, Mapping[str, int]]:
    """Return dropped rows by input and reason. Rows of the step before count for the input whose event time they have
    (S8). `counted` are the sides whose rows this shard counts. Failed pairs, and rows that the step's filter left out,
    count for the right side, which is always an input; of an aggregate, for the input whose time counts."""
    dropped = {step.sides[side].time: result.dropped[side] for side in counted if result.dropped[side]}
    if result.failed:
        right = step.sides[-1].time
        dropped[right] = {**dropped.get(right, {}), "failed": result.failed}
    if result.filtered:
        right = step.sides[-1].time
        dropped[right] = {**dropped.get(right, {}), FILTERED_ROWS: result.filtered}
    return dropped
