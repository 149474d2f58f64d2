"""What a task does: read and cut, join and stage, collect. One `Worker` lives per process and job.

read     ranges -> (shard, block) pairs; the block for shard number `shards` says what was read
join     one shard's blocks -> staged segments and output rows -> ShardSummary
collect  the read reports and dead letters -> ReadSummary
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from joinery_runtime.core import compaction
from joinery_runtime.core.join import JoinEpoch
from joinery_runtime.core.keyhash import KeyHash, key_hash
from joinery_runtime.core.prepare import Prepared, cut_by_shard, prepare, prepared_schema
from joinery_runtime.core.segment import Run, SegmentMeta, concat, decode, describe, encode, merge
from joinery_runtime.core.shards import HashRange, shard_range
from joinery_runtime.core.spec import LEFT, PARTS, RIGHT, JoinSpec
from joinery_runtime.engine.cache import SegmentCache
from joinery_runtime.engine.dead_letters import DeadLetters
from joinery_runtime.engine.hot_keys import KeptRun, KeyCounter, KeyRows
from joinery_runtime.engine.messages import EpochWork, PartitionRead, ReadSummary, ShardSummary
from joinery_runtime.sinks.base import Attempt, AttemptId, Receipt, SinkWriter
from joinery_runtime.sources import Decoder
from joinery_runtime.sources.base import Range, RawBatch, SourceReader
from joinery_runtime.state.store import Standing, StateStore

# Rows gathered before they are cut into shards: fewer, larger blocks.
CUT_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Prepared rows of one side for one shard, as an Arrow IPC file."""

    side: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What one range gave; `dead` holds its dead letters as an Arrow IPC file."""

    read: PartitionRead
    dead: bytes | None


Block = RowBlock | ReadReport


class InputAccess(Protocol):
    """Where a worker gets its records from: a reader and a decoder per input."""

    def reader(self, name: str) -> SourceReader: ...

    def decoder(self, name: str) -> Decoder: ...


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker works with. `cache` is a directory that it may share with other processes; `ordered` adds the
    order columns of traces to its output rows; `dead_letters` None: bad records are only reported."""

    job: str
    spec: JoinSpec
    inputs: InputAccess
    store: StateStore
    output: SinkWriter
    dead_letters: SinkWriter | None
    cache: Path
    ordered: bool = False
    hasher: KeyHash = key_hash


class Worker:
    def __init__(self, parts: WorkerParts) -> None:
        self._parts, self._spec = parts, parts.spec
        self._cache = SegmentCache(parts.cache, parts.store, parts.job)
        self._counter = KeyCounter(parts.spec)

    # --- read -------------------------------------------------------------------------------------------------------

    def read(self, work: EpochWork, ranges: Iterable[Range]) -> Iterator[tuple[int, Block]]:
        for planned in ranges:
            work.reach("reading")
            if planned.partition in work.gone:
                yield work.plan.shards, _Tally(planned).report(lost=planned.end_exclusive - planned.start)
            else:
                yield from self._read_range(planned, work.plan.shards)

    def _read_range(self, planned: Range, shards: int) -> Iterator[tuple[int, Block]]:
        name = planned.partition.input
        side = self._spec.side_of(name)
        reader, decoder = self._parts.inputs.reader(name), self._parts.inputs.decoder(name)
        tally = _Tally(planned)
        waiting: list[pa.RecordBatch] = []
        for raw in reader.read(planned):
            waiting.append(self._prepare(side, decoder, raw, tally))
            if sum(batch.num_rows for batch in waiting) >= CUT_ROWS:
                yield from _blocks(side, waiting, shards)
                waiting = []
        yield from _blocks(side, waiting, shards)
        yield shards, tally.report()

    def _prepare(self, side: int, decoder: Decoder, raw: RawBatch, tally: _Tally) -> pa.RecordBatch:
        decoded = decoder.decode(raw.values)
        offsets = raw.offsets[decoded.index]
        rows = _one_batch(decoded.rows)
        prepared = prepare(self._spec.sides[side], rows, raw.partition.partition, offsets, self._parts.hasher)
        bad_time = decoded.index[prepared.bad_time]
        dead = DeadLetters.of(raw, decoded.bad, bad_time, self._spec.sides[side].event_time)
        tally.add(raw, prepared, dead)
        return prepared.rows

    # --- join -------------------------------------------------------------------------------------------------------

    def join(self, work: EpochWork, shard: int, blocks: Iterable[RowBlock], attempt: str) -> ShardSummary:
        self._cache.retain({s.key for s in work.segments}, work.plan.epoch)
        owned = shard_range(shard, work.plan.shards)
        mine = [s for s in work.segments if owned.overlaps(s.hash_min, s.hash_max)]
        arrivals = _arrivals(blocks)
        watermarks = self._spec.watermarks(work.plan.watermarks)
        merges = self._merges(work, mine, owned)
        hottest = self._hottest(work, mine, owned) if work.plan.checkpoint else None
        if arrivals == (None, None) and not merges:
            return ShardSummary(shard, hottest=hottest)
        state = tuple(self._state(mine, part, owned) if arrivals[1 - side] else [] for side, part in enumerate(PARTS))
        epoch = JoinEpoch(self._spec, arrivals, (state[LEFT], state[RIGHT]), watermarks, ordered=self._parts.ordered)
        attempt_id = AttemptId(work.generation, work.plan.epoch, shard, attempt)
        staged = self._stage(attempt_id, [*zip(PARTS, epoch.kept, strict=True), *self._merged(merges, watermarks)])
        work.reach("staged")
        rows_out, receipt = self._write(self._attempt(work, attempt_id), epoch)
        work.reach("output-written")
        return ShardSummary(
            shard=shard,
            rows_in=sum(rows.num_rows for rows in arrivals if rows is not None),
            rows_out=rows_out,
            late={s.input: n for s, n in zip(self._spec.sides, epoch.late, strict=True) if n},
            staged=staged,
            replaced=tuple(s.key for group in merges for s in group),
            receipt=receipt,
            hottest=hottest,
        )

    def _hottest(self, work: EpochWork, mine: Sequence[SegmentMeta], owned: HashRange) -> tuple[KeyRows, ...]:
        self._counter.retain({s.key for s in work.segments})
        runs = zip(mine, self._cache.get(mine), strict=True)
        return self._counter.count([KeptRun(s.key, PARTS.index(s.part), run.within(owned)) for s, run in runs])

    def _state(self, segments: Sequence[SegmentMeta], part: str, owned: HashRange) -> list[Run]:
        return [run.within(owned) for run in self._cache.get([s for s in segments if s.part == part])]

    def _merges(self, work: EpochWork, segments: Sequence[SegmentMeta], owned: HashRange) -> list[list[SegmentMeta]]:
        groups = []
        for side, part in enumerate(PARTS):
            mine = [s for s in segments if s.part == part]
            kept_for = self._spec.kept_for_ms(side)
            groups += compaction.choose(mine, owned, kept_for_ms=kept_for, checkpoint=work.plan.checkpoint)
        return groups

    def _merged(
        self, groups: Iterable[Sequence[SegmentMeta]], watermarks: tuple[int | None, int | None]
    ) -> Iterator[tuple[str, Run]]:
        for group in groups:
            part = group[0].part
            keep_from = self._spec.keep_from(PARTS.index(part), watermarks)
            runs = self._cache.get(group)
            kept = runs if keep_from is None else [run.since(keep_from) for run in runs]
            # Segments written before the job was edited may hold columns that are not stored any more.
            names = prepared_schema(self._spec.sides[PARTS.index(part)]).names
            yield part, merge([Run.view(run.batch.select(names)) for run in kept])

    def _stage(self, attempt: AttemptId, runs: Iterable[tuple[str, Run | None]]) -> tuple[SegmentMeta, ...]:
        staged: list[tuple[SegmentMeta, bytes]] = []
        for part, run in runs:
            if run is not None and len(run):
                key = f"{part}/{attempt}/{len(staged)}"
                blob = encode(run.batch)
                self._cache.put(key, attempt.epoch, run.batch)
                staged.append((describe(run, key=key, part=part, epoch=attempt.epoch, blob=blob), blob))
        if staged:
            self._parts.store.stage(self._parts.job, staged)
        return tuple(meta for meta, _ in staged)

    def _attempt(self, work: EpochWork, attempt: AttemptId) -> Attempt:
        expected = Standing(work.generation, work.plan.epoch - 1, work.plan.epoch)
        store, job = self._parts.store, self._parts.job

        def claim(name: str, owner: str, instead_of: str | None) -> str | None:
            return store.claim(job, expected, name, owner, instead_of)

        return Attempt(attempt, work.lineage, claim, work.reach)

    def _write(self, attempt: Attempt, epoch: JoinEpoch) -> tuple[int, Receipt | None]:
        batches = list(epoch.output())
        if not batches:
            return 0, None
        rows = pa.Table.from_batches(batches)
        return rows.num_rows, self._parts.output.write(attempt, rows)

    # --- collect ----------------------------------------------------------------------------------------------------

    def collect(self, work: EpochWork, reports: Iterable[ReadReport], attempt: str) -> ReadSummary:
        listed = list(reports)
        reads = tuple(sorted((report.read for report in listed), key=lambda read: read.partition))
        dead = [decode(report.dead) for report in listed if report.dead is not None]
        if not dead or self._parts.dead_letters is None:
            return ReadSummary(reads)
        attempt_id = AttemptId(work.generation, work.plan.epoch, work.plan.shards, attempt)
        return ReadSummary(
            reads, self._parts.dead_letters.write(self._attempt(work, attempt_id), pa.Table.from_batches(dead))
        )


class _Tally:
    """Adds up what one range gives while it is read."""

    def __init__(self, planned: Range) -> None:
        self._partition = planned.partition
        self._records = self._rows = self._lost = 0
        self._lowest: int | None = None
        self._highest: int | None = None
        self._dropped: Counter[str] = Counter()
        self._dead: list[DeadLetters] = []

    def add(self, raw: RawBatch, prepared: Prepared, dead: DeadLetters) -> None:
        self._records += len(raw.offsets)
        self._lost += raw.lost
        self._rows += prepared.rows.num_rows
        self._dropped.update(prepared.dropped)
        if prepared.highest is not None and prepared.lowest is not None:
            self._highest = prepared.highest if self._highest is None else max(self._highest, prepared.highest)
            self._lowest = prepared.lowest if self._lowest is None else min(self._lowest, prepared.lowest)
        if dead.count:
            self._dead.append(dead)

    def report(self, lost: int = 0) -> ReadReport:
        read = PartitionRead(
            partition=self._partition,
            records=self._records,
            rows=self._rows,
            lowest=self._lowest,
            highest=self._highest,
            dropped=dict(self._dropped),
            dead=sum(dead.count for dead in self._dead),
            first_dead=self._dead[0].first if self._dead else "",
            lost=self._lost + lost,
        )
        return ReadReport(read, encode(concat([dead.rows for dead in self._dead])) if self._dead else None)


def _blocks(side: int, batches: Sequence[pa.RecordBatch], shards: int) -> Iterator[tuple[int, Block]]:
    filled = [batch for batch in batches if batch.num_rows]
    if filled:
        for shard, rows in cut_by_shard(concat(filled), shards):
            yield shard, RowBlock(side, encode(rows, compression=None))


def _arrivals(blocks: Iterable[RowBlock]) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
    sides: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    for block in blocks:
        sides[block.side].append(decode(block.rows))
    left, right = (concat(batches) if batches else None for batches in sides)
    return left, right


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
