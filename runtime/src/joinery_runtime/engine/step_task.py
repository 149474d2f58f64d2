"""One step of one shard in one epoch: what is kept and what arrives go in, segments and rows come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core import compaction, times
from joinery_runtime.core.kernels import needs_state, run_step, survivors
from joinery_runtime.core.segment import Run, SegmentMeta, merge
from joinery_runtime.core.shards import HASH_SPACE, HashRange, shard_range
from joinery_runtime.core.spec import LEFT, RIGHT, SIDES, AsOf, Pipeline, SideSpec, StepSpec
from joinery_runtime.core.step import Horizon, KeptRun, StepResult, StepWork, with_marks
from joinery_runtime.engine.cache import SegmentCache
from joinery_runtime.engine.marks import MarkBook, marks_of_live, marks_run
from joinery_runtime.engine.messages import EpochWork

_EVERYWHERE = HashRange(0, HASH_SPACE - 1)

Arrivals = tuple[pa.RecordBatch | None, pa.RecordBatch | None]
Groups = list[list[SegmentMeta]]


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did: the kernel's result, the runs to stage by part, merged and finished segments."""

    result: StepResult
    runs: Sequence[tuple[str, Run]] = ()
    replaced: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()


class StepTask:
    """A step and a shard. Segments of the broadcast side are seen whole by every shard and written by the first."""

    def __init__(
        self, pipeline: Pipeline, step: StepSpec, shard: int, work: EpochWork, cache: SegmentCache, book: MarkBook
    ) -> None:
        self._pipeline, self._step, self._work, self._cache, self._book = pipeline, step, work, cache, book
        self._owned = shard_range(shard, work.plan.shards)
        self._first = shard == 0
        self.sides = tuple(self._segments(side, side.part) for side in step.sides)
        self._marks = tuple(self._segments(side, side.marks_part) if side.marks else [] for side in step.sides)
        self._horizons = tuple(work.plan.horizons[side.part] for side in step.sides)
        self._loaded: dict[str, KeptRun] = {}

    def run(self, arrivals: Arrivals, *, ordered: bool) -> Done | None:
        """None: nothing arrived, nothing leaves, and there is nothing to merge."""
        merges = {side: self._merges(side) for side in SIDES}
        mark_merges = {side: self._mark_merges(side) for side in SIDES}
        closing = self._closing()
        idle = arrivals == (None, None) and not closing
        if idle and not any((*merges.values(), *mark_merges.values())):
            return None
        result = StepResult() if idle else run_step(self._step, self._step_work(arrivals, closing, ordered=ordered))
        return Done(
            result,
            [*self._kept(result), *self._merged(result, merges), *self._marked(result, merges, mark_merges)],
            tuple(s.key for groups in (merges, mark_merges) for g in groups.values() for group in g for s in group),
            tuple(sorted(result.finished | self._finished_marks())),
        )

    # --- what the kernel gets -----------------------------------------------------------------------------------------

    def _step_work(self, arrivals: Arrivals, closing: bool, *, ordered: bool) -> StepWork:
        arrived = (arrivals[LEFT] is not None, arrivals[RIGHT] is not None)
        kept = [
            self.kept_runs(side) if needs_state(self._step, side, arrived, closing=closing) else [] for side in SIDES
        ]
        accept_from = times.accept_from(self._step, self._work.plan.watermarks)
        horizons: tuple[Horizon, Horizon] = (self._horizons[LEFT], self._horizons[RIGHT])
        return StepWork(arrivals, (kept[LEFT], kept[RIGHT]), horizons, accept_from, ordered)

    def _closing(self) -> bool:
        horizons = self._work.plan.horizons
        return any(times.closes(self._pipeline, meta, horizons) for side in self.sides for meta in side)

    def kept_runs(self, side: int) -> list[KeptRun]:
        return [self._kept_run(side, meta) for meta in self.sides[side]]

    def _kept_run(self, side: int, meta: SegmentMeta) -> KeptRun:
        if meta.key not in self._loaded:
            self._loaded[meta.key] = self._load(side, meta)
        return self._loaded[meta.key]

    def _load(self, side: int, meta: SegmentMeta) -> KeptRun:
        (whole,) = self._cache.get([meta])
        spec = self._step.sides[side]
        rows = slice(0, len(whole)) if spec.broadcast else whole.rows_in(self._owned)
        marked = self._book.marked(meta, whole, self._marks[side])[rows] if spec.marks else None
        run = Run.view(whole.batch.slice(rows.start, rows.stop - rows.start))
        return KeptRun(meta.key, run, rows.start, marked)

    def _segments(self, side: SideSpec, part: str) -> list[SegmentMeta]:
        mine = [meta for meta in self._work.segments if meta.part == part]
        if side.broadcast:
            return mine
        return [meta for meta in mine if self._owned.overlaps(meta.hash_min, meta.hash_max)]

    # --- what is staged -----------------------------------------------------------------------------------------------

    def _kept(self, result: StepResult) -> Iterator[tuple[str, Run]]:
        for side, run in zip(self._step.sides, result.kept, strict=True):
            if run is not None and (self._first or not side.broadcast):
                yield side.part, run

    def _merges(self, side: int) -> Groups:
        spec = self._step.sides[side]
        if spec.broadcast and not self._first:
            return []
        return self._choose(side, self.sides[side], _EVERYWHERE if spec.broadcast else self._owned)

    def _mark_merges(self, side: int) -> Groups:
        return self._choose(side, self._marks[side], self._owned)

    def _choose(self, side: int, segments: Sequence[SegmentMeta], owned: HashRange) -> Groups:
        kept_for = times.kept_for_ms(self._step, side)
        return compaction.choose(segments, owned, kept_for_ms=kept_for, checkpoint=self._work.plan.checkpoint)

    def _merged(self, result: StepResult, merges: Mapping[int, Groups]) -> Iterator[tuple[str, Run]]:
        for side, groups in merges.items():
            for group in groups:
                run = self._merge(side, group, result.marks[side])
                if len(run):
                    yield self._step.sides[side].part, run

    def _merge(self, side: int, group: Sequence[SegmentMeta], found: Mapping[str, np.ndarray]) -> Run:
        spec = self._step.sides[side]
        runs = [_marked_too(self._kept_run(side, meta), found) for meta in group]
        kept = survivors(self._step, side, runs, self._horizons[side])
        # Segments written before the job was edited may hold columns that are not stored any more.
        names = spec.segment_schema().names
        batches = [_with_column(rows) for rows in kept]
        by_offset = isinstance(self._step.rule, AsOf) and side == RIGHT
        return merge([Run.view(run.batch.select(names)) for run in batches], by_offset=by_offset)

    def _marked(
        self, result: StepResult, merges: Mapping[int, Groups], mark_merges: Mapping[int, Groups]
    ) -> Iterator[tuple[str, Run]]:
        for side, spec in enumerate(self._step.sides):
            merged = {meta.key for group in merges[side] for meta in group}
            rest = {key: rows for key, rows in result.marks[side].items() if key not in merged}
            run = marks_run(self._loaded.values(), rest)
            if run is not None:
                yield spec.marks_part, run
            for group in mark_merges[side]:
                live = {meta.key for meta in self.sides[side]} - merged
                kept = merge(marks_of_live(self._cache.get(group), live))
                if len(kept):
                    yield spec.marks_part, kept

    def _finished_marks(self) -> set[str]:
        """Segments of marks about nothing that is there any more; looked for now and then."""
        if not self._work.plan.checkpoint:
            return set()
        live = [{meta.key for meta in side} for side in self.sides]
        return {meta.key for side in SIDES for meta in self._marks[side] if not self._book.refers_to(meta, live[side])}


def _marked_too(kept: KeptRun, found: Mapping[str, np.ndarray]) -> KeptRun:
    """With what this epoch has marked."""
    if kept.marked is None or kept.segment not in found:
        return kept
    marked = kept.marked.copy()
    marked[found[kept.segment] - kept.first] = True
    return KeptRun(kept.segment, kept.run, kept.first, marked)


def _with_column(kept: KeptRun) -> Run:
    return kept.run if kept.marked is None else with_marks(kept.run, kept.marked)
