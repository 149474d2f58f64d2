"""Runs one step of one shard in one epoch: from stored rows and arrivals to segments and output rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import SideSpec, stored_rows
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StateRun, StepResult, StepRun, StepWork, with_flags
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.core.table import compaction
from joinery_runtime.core.table.columns import TS
from joinery_runtime.core.table.keyhash import HASH_SPACE, HashRange, shard_range
from joinery_runtime.core.table.segment import Run, SegmentMeta, merge
from joinery_runtime.engine.cache import FlagCache, SegmentCache, flags_of_live, flags_run
from joinery_runtime.engine.messages import EpochWork

_EVERYWHERE = HashRange(0, HASH_SPACE - 1)

SideBatches = tuple[pa.RecordBatch | None, ...]  # per side
Groups = list[list[SegmentMeta]]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step made: the kernel's result, the `runs` to stage with their part, and keys of segments that were merged
    (`replaced`) or `finished`. Runs are made on demand and only once, so that merged runs are not in memory together.
    `put_off`: there is more to merge.

    `after_eviction` counts, per side, rows that were accepted when some of their partners may be gone from the state
    (T10). `behind` is, per side with late rows, the most that a row was behind its input's watermark (ms).
    """

    result: StepResult
    runs: Iterable[tuple[str, Run]] = ()
    replaced: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    after_eviction: Mapping[int, int] = field(default_factory=dict)
    behind: Mapping[int, int] = field(default_factory=dict)
    put_off: bool = False


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Segments of a side that are rewritten into new ones, one for each of the `pieces`. `shared`: other shards rewrite
    their rows of the same segments in the same epoch."""

    side: int
    group: Sequence[SegmentMeta]
    pieces: tuple[HashRange, ...]
    shared: bool = False


class StepTask:
    """One step of one shard. Every shard sees all segments of a broadcast side; only the first shard writes them.
    `resume_compaction`: this epoch merges what the last checkpoint put off."""

    def __init__(
        self,
        pipeline: Pipeline,
        step: StepSpec,
        shard: int,
        work: EpochWork,
        cache: SegmentCache,
        flags: FlagCache,
        *,
        resume_compaction: bool = False,
    ) -> None:
        self._compact_eagerly = work.plan.checkpoint or resume_compaction
        self._pipeline, self._step, self._work, self._cache, self._flag_cache = pipeline, step, work, cache, flags
        self._side_numbers = range(len(step.sides))
        self._owned = shard_range(shard, work.plan.shards)
        self._is_first_shard = shard == 0
        self.segments = tuple(self._segments_of(side, side.part) for side in step.sides)
        self._flag_segments = tuple(
            self._segments_of(side, side.flags_part) if side.flags else [] for side in step.sides
        )
        self._horizons = tuple(work.plan.horizons.get(side.part, Horizon()) for side in step.sides)
        self._loaded: dict[str, StateRun] = {}

    def run(self, arrivals: SideBatches, *, ordered: bool) -> Generator[pa.RecordBatch, None, StepOutcome | None]:
        """Yield the rows that the kernel makes, then return the outcome. Returns None if nothing arrived, nothing
        leaves, and there is nothing to rewrite. A repeated call yields the same rows."""
        arrived = any(rows is not None for rows in arrivals)
        groups_by_side = {side: self._groups_to_merge(side) for side in self._side_numbers}
        to_merge = [group for groups in groups_by_side.values() for group in groups]
        # Without arrivals no row has to wait for a merge.
        merged_now = compaction.limit_to_one_epoch(to_merge) if arrived and not self._work.merge_all else to_merge
        rewrites = [
            rewrite
            for side, groups in groups_by_side.items()
            for rewrite in self._plan_rewrites(side, [group for group in groups if group in merged_now])
        ]
        flag_merges = {
            side: self._segments_to_merge(side, self._flag_segments[side], self._owned) for side in self._side_numbers
        }
        horizons = self._work.plan.horizons
        closing = any(times.closes(self._pipeline, meta, horizons) for side in self.segments for meta in side)
        idle = not closing and not arrived
        if idle and not any((rewrites, *flag_merges.values(), self._finished_flags())):
            return None
        result = StepResult.nothing(len(self._step.sides))
        if not idle:
            run = self._run_kernel(arrivals, closing, ordered=ordered)
            result = yield from (run if self._step.filter is None else _without_empty(run))
        merged = [group for groups in flag_merges.values() for group in groups]
        shared = {meta.key for rewrite in rewrites if rewrite.shared for meta in rewrite.group}
        added = [
            (side.part, run)
            for side, run in zip(self._step.sides, result.added, strict=True)
            if run is not None and (self._is_first_shard or not side.broadcast)
        ]
        after_eviction, behind = self._late_figures(arrivals, result)
        return StepOutcome(
            result,
            chain(
                added,
                self._rewritten_runs(result, rewrites),
                self._flag_runs(result, rewrites, flag_merges),
            ),
            tuple(s.key for g in (*(r.group for r in rewrites if not r.shared), *merged) for s in g),
            tuple(sorted(result.finished | shared | self._finished_flags())),
            after_eviction=after_eviction,
            behind=behind,
            put_off=len(merged_now) < len(to_merge),
        )

    # --- rows that come late ------------------------------------------------------------------------------------------

    def _late_figures(self, arrivals: SideBatches, result: StepResult) -> tuple[dict[int, int], dict[int, int]]:
        """Return `after_eviction` and `behind` of the outcome. Late rows are all older than the time from which the
        state is complete, so subtracting them from the older rows leaves the accepted ones. The watermark of an input
        is never behind the one that a join hands on (N3). No delay keeps joined rows of an input that has ended."""
        older_rows, behind = dict(result.after_eviction), dict[int, int]()
        for side, rows in enumerate(arrivals):
            if rows is None or not rows.num_rows:
                continue
            ts, late = rows.column(TS).to_numpy(), result.dropped[side].get("late", 0)
            complete = None
            if not self._step.sides[side].intake.chained:  # only records of inputs count (N2)
                complete = self._step.kind.complete_from(self._step, side, self._horizons)
            if complete is not None:
                older_rows[side] = int((ts < complete).sum()) - late
            watermark = self._work.plan.watermarks.get(self._step.sides[side].time)
            if watermark is not None and watermark < END_OF_TIME and late:
                behind[side] = watermark - int(ts.min())
        return {side: count for side, count in older_rows.items() if count > 0}, behind

    # --- what the kernel gets -----------------------------------------------------------------------------------------

    def _run_kernel(self, arrivals: SideBatches, closing: bool, *, ordered: bool) -> StepRun:
        arrived = tuple(rows is not None for rows in arrivals)
        state_runs = tuple(
            self.state_runs(side) if self._step.kind.needs_state(self._step, side, arrived, closing=closing) else []
            for side in self._side_numbers
        )
        plan = self._work.plan
        watermarks = times.watermarks_before(self._pipeline, self._step, plan.times, plan.horizons)
        accept_from = self._step.kind.accept_from(self._step, watermarks)
        complete = self._work.plan.horizons.get(self._step.sides[0].complete, Horizon())
        early = plan.horizons.get(self._step.sides[0].early, Horizon())
        reached = self._work.plan.reached.get(self._step.sides[-1].time, END_OF_TIME)
        work = StepWork(arrivals, state_runs, self._horizons, accept_from, complete, ordered, reached, early)
        return self._step.kind.run(self._step, work)

    def state_runs(self, side: int) -> list[StateRun]:
        return self._load_runs(side, self.segments[side])

    def _load_runs(self, side: int, segments: Sequence[SegmentMeta]) -> list[StateRun]:
        """Return the shard's own rows of these segments. Reads those that were not read yet."""
        spec, new = self._step.sides[side], [meta for meta in segments if meta.key not in self._loaded]
        for meta, segment_run in zip(new, self._cache.get(new), strict=True):
            rows = slice(0, len(segment_run)) if spec.broadcast else segment_run.rows_in(self._owned)
            flagged = (
                self._flag_cache.flagged(meta, segment_run, self._flag_segments[side])[rows] if spec.flags else None
            )
            batch = stored_rows(spec, segment_run.batch)
            run = Run.view(batch.slice(rows.start, rows.stop - rows.start), source=segment_run)
            self._loaded[meta.key] = StateRun(meta.key, run, rows.start, flagged)
        return [self._loaded[meta.key] for meta in segments]

    def _segments_of(self, side: SideSpec, part: str) -> list[SegmentMeta]:
        part_segments = [meta for meta in self._work.segments if meta.part == part]
        if side.broadcast:
            return part_segments
        return [meta for meta in part_segments if self._owned.overlaps(meta.hash_min, meta.hash_max)]

    # --- what is staged -----------------------------------------------------------------------------------------------

    def _groups_to_merge(self, side: int) -> Groups:
        spec = self._step.sides[side]
        if spec.broadcast and not self._is_first_shard:
            return []
        chosen = self._segments_to_merge(side, self.segments[side], self._merged_hashes(side))
        if self._lasts_forever(side):
            return chosen
        groups: Groups = []
        for group in chosen:
            decoded = [loaded.run.batch.nbytes for loaded in self._load_runs(side, group)]
            groups += compaction.split_to_fit(group, decoded)
        return groups

    def _merged_hashes(self, side: int) -> HashRange:
        """Return the hashes whose segments this shard merges."""
        return _EVERYWHERE if self._step.sides[side].broadcast else self._owned

    def _plan_rewrites(self, side: int, groups: Groups) -> list[_Rewrite]:
        owned = self._merged_hashes(side)
        rewrites = [_Rewrite(side, group, tuple(compaction.pieces(group, owned))) for group in groups]
        if not self._work.plan.checkpoint or not self._lasts_forever(side) or self._step.sides[side].broadcast:
            return rewrites
        # Segments that span several shards after a rescale, and that event time never expires. Each shard rewrites its
        # own rows, all shards in the same epoch.
        spanning = [meta for meta in self.segments[side] if not self._owned.contains(meta.hash_min, meta.hash_max)]
        return rewrites + [_Rewrite(side, [meta], (owned,), shared=True) for meta in spanning]

    def _lasts_forever(self, side: int) -> bool:
        """Return whether event time never expires the rows of this side."""
        return self._step.kind.retention[side].kept_for_ms is None

    def _segments_to_merge(self, side: int, segments: Sequence[SegmentMeta], owned: HashRange) -> Groups:
        kept_for = self._step.kind.retention[side].kept_for_ms
        return compaction.choose(segments, owned, kept_for_ms=kept_for, checkpoint=self._compact_eagerly)

    def _rewritten_runs(self, result: StepResult, rewrites: Sequence[_Rewrite]) -> Iterator[tuple[str, Run]]:
        kind = self._step.kind
        for rewrite in rewrites:
            old_runs = self._load_runs(rewrite.side, rewrite.group)
            runs = [_with_new_flags(state_run, result.flags[rewrite.side]) for state_run in old_runs]
            for piece in rewrite.pieces:
                in_piece = [state_run.within(piece) for state_run in runs]
                live = kind.survivors(self._step, rewrite.side, in_piece, self._horizons[rewrite.side])
                flagged = [rows.run if rows.flagged is None else with_flags(rows.run, rows.flagged) for rows in live]
                run = merge(flagged, by_offset=kind.sorts_by_offset(rewrite.side))
                del in_piece, live, flagged  # their rows are in the run now
                if len(run):
                    yield self._step.sides[rewrite.side].part, run
                del run  # before the next one is made

    def _flag_runs(
        self, result: StepResult, rewrites: Sequence[_Rewrite], flag_merges: Mapping[int, Groups]
    ) -> Iterator[tuple[str, Run]]:
        for side, spec in enumerate(self._step.sides):
            rewritten = {meta.key for rewrite in rewrites if rewrite.side == side for meta in rewrite.group}
            # No other shard has rows of these segments, and this shard no longer needs any.
            finished = {
                meta.key
                for meta in self.segments[side]
                if meta.key in result.finished and self._owned.contains(meta.hash_min, meta.hash_max)
            }
            dropped = rewritten | finished
            rest = {key: rows for key, rows in result.flags[side].items() if key not in dropped}
            run = flags_run(self._loaded.values(), rest)
            if run is not None:
                yield spec.flags_part, run
            for group in flag_merges[side]:
                live = {meta.key for meta in self.segments[side]} - rewritten
                merged = merge(flags_of_live(self._cache.get(group), live))
                if len(merged):
                    yield spec.flags_part, merged

    def _finished_flags(self) -> set[str]:
        """Flag segments whose flagged rows are all gone from the state; looked for at checkpoints only."""
        if not self._work.plan.checkpoint:
            return set()
        pairs = zip(self._flag_segments, ({meta.key for meta in side} for side in self.segments), strict=True)
        return set[str]().union(*(self._flag_cache.useless(flags, live) for flags, live in pairs))


def _without_empty(run: StepRun) -> StepRun:
    """Yield the same rows without the batches of which a filter left nothing."""
    while True:
        try:
            batch = next(run)
        except StopIteration as end:
            result: StepResult = end.value
            return result
        if batch.num_rows:
            yield batch


def _with_new_flags(state_run: StateRun, new_flags: Mapping[str, np.ndarray]) -> StateRun:
    """Return the rows, with this epoch's new flags applied."""
    if state_run.flagged is None or state_run.segment not in new_flags:
        return state_run
    flagged = state_run.flagged.copy()
    flagged[new_flags[state_run.segment] - state_run.first] = True
    return StateRun(state_run.segment, state_run.run, state_run.first, flagged)
