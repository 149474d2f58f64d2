"""Lowers the watermarks of a stopped job without emitting anything twice.

A watermark that was too high has closed too much: rows were padded, and windows and sessions were emitted. Only the
horizon records which. Segments are dropped whole, so closed rows may still be stored, and a lower horizon would count
them as open. So segments that hold such rows are rewritten without them, and then the horizons may fall as far as the
lower watermarks say (docs/decisions/0027). What was emitted stays so: a row that arrives from now on matches only what
is still stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon, StateRun, with_flags
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.core.table.blob import to_blob
from joinery_runtime.core.table.segment import SegmentMeta, describe, first_key
from joinery_runtime.engine.assembly import input_clocks
from joinery_runtime.engine.job_state import HORIZONS, live_segments, stored_co_partitions, stored_floors
from joinery_runtime.engine.plan import InputState, input_states
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Job, format_time
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state.migrations import decode_run, flagged_rows
from joinery_runtime.state.store import JobRecord, StateReader


@dataclass(frozen=True, slots=True)
class LoweredState:
    """What to write to the store: `inputs` with their new progress, `floors` up to which each part of the state counts
    as closed, the keys of `replaced` segments, and the segments `written` in their place."""

    inputs: Mapping[str, InputState]
    floors: Mapping[str, int]
    replaced: tuple[str, ...] = ()
    written: tuple[tuple[SegmentMeta, bytes], ...] = ()

    def offsets(self, record: JobRecord) -> dict[str, bytes]:
        offsets = {name: state.to_bytes() for name, state in self.inputs.items()}
        if HORIZONS in record.offsets:
            closed = {**json.loads(record.offsets[HORIZONS]), "horizons": dict(self.floors)}
            replaced_keys = set(map(first_key, self.replaced))
            if "left" in closed:
                closed["left"] = {key: count for key, count in closed["left"].items() if key not in replaced_keys}
            offsets[HORIZONS] = json.dumps(closed).encode()
        return offsets


def lower_watermarks(
    job: Job, pipeline: Pipeline, record: JobRecord, store: StateReader, watermarks: Mapping[str, int]
) -> LoweredState:
    """Compute the state under these `watermarks` (by input, in ms). Reads the segments that need a rewrite, one
    at a time. Raises JoineryError if an input has ended, or if a row is both in windows that were emitted and in
    windows that were not."""
    states = input_states((side.name for side in job.inputs), record)
    clocks = input_clocks(job)
    inputs = {name: _lower_input(name, states[name], at, clocks[name]) for name, at in watermarks.items()}
    floors = stored_floors(record)
    now = {name: state.progress.time for name, state in {**states, **inputs}.items()}
    implied = times.horizons(pipeline, now, {})
    # Those of early results stay until the watermark passes them once more: what was emitted shows by them alone.
    early = {side.early for side in pipeline.parts().values()}
    lowered = {part: floor for part, floor in floors.items() if part in early}
    for part in floors.keys() - early:
        at = implied[part].current
        if at is not None:
            lowered[part] = min(floors[part], at)
    rewriting = _Rewriting(job, pipeline, record, store, floors)
    # What was emitted may be emitted again when the horizons rise once more to where they are.
    risen = {part: Horizon(lowered.get(part), floor) for part, floor in floors.items()}
    affected = [
        meta
        for meta in live_segments(record)
        if times.closes(pipeline, meta, risen) or _lost_flags(pipeline, meta, floors)
    ]
    written = [segment for number, meta in enumerate(affected) for segment in rewriting.of(meta, number)]
    return LoweredState(inputs, lowered, tuple(meta.key for meta in affected), tuple(written))


def _lost_flags(pipeline: Pipeline, meta: SegmentMeta, floors: Mapping[str, int]) -> bool:
    """Return whether the segment may hold left rows of a semi join that were evicted, and whose flags, which say that
    they were emitted, went with them."""
    step, side = pipeline.side(meta.part)
    spec = step.sides[side]
    emitted_at_match = step.emits == "matched" and spec.flags and meta.part == spec.part
    return emitted_at_match and meta.part in floors and meta.ts_min < floors[meta.part]


def _lower_input(name: str, state: InputState, at: int, clock: InputClock) -> InputState:
    progress = state.progress
    if progress.ended:
        raise JoineryError(
            f"Input {name} has ended", facts="nothing of it is read again", todo="Start the job with new state"
        )
    highest = {
        partition: None if ts is None else min(ts, at + clock.delay_of(partition))
        for partition, ts in progress.highest.items()
    }
    watermark = None if progress.watermark is None else min(progress.watermark, at)
    return replace(state, progress=replace(progress, highest=highest, watermark=watermark, idle_from=None, idle_ms=0))


class _Rewriting:
    """Rewrites segments without the rows that were emitted."""

    def __init__(
        self, job: Job, pipeline: Pipeline, record: JobRecord, store: StateReader, floors: Mapping[str, int]
    ) -> None:
        self._job, self._pipeline, self._record, self._store, self._floors = job, pipeline, record, store, floors
        self._flags: dict[str, list[pa.RecordBatch]] = {}

    def of(self, meta: SegmentMeta, number: int) -> Iterable[tuple[SegmentMeta, bytes]]:
        """Yield the segment without the rows that were emitted; nothing if no row is live."""
        step, side = self._pipeline.side(meta.part)
        spec = step.sides[side]
        state_run = self._read_run(meta, spec.flags_part if spec.flags else None)
        floor = self._floors[spec.part]
        half = step.kind.half_closed(side, state_run.run.ts, floor)
        if half.any():
            times_of = state_run.run.ts[half]
            raise JoineryError(
                f"The watermark of job {self._job.name} cannot be brought down",
                facts=f"{counted(int(half.sum()), 'row')} of {step.side_name(side)} (event times "
                f"{format_time(int(times_of.min()))} to {format_time(int(times_of.max()))}) would be emitted again in "
                "windows that were emitted, beside windows that were not",
                todo="Restore a savepoint from before the watermark went ahead (joinery state restore), or start from "
                "the beginning: joinery state migrate --anew. Once a regular watermark has passed these times, it "
                "needs no reset",
            )
        live = step.kind.without_emitted(step, side, state_run, Horizon(floor, floor), self._floors.get(spec.complete))
        if not len(live.run):
            return
        run = live.run if live.flagged is None else with_flags(live.run, live.flagged)
        key = f"{meta.part}/lowered-{self._record.generation}/{number}"
        blob = to_blob(run.batch, spec.hashed_by, stored_co_partitions(self._record))
        yield describe(run, key=key, part=meta.part, epoch=meta.epoch, blob=blob), blob

    def _read_run(self, meta: SegmentMeta, flags_part: str | None) -> StateRun:
        run = decode_run(meta, self._store.read_segments(self._record.job, [meta.key])[meta.key])
        if flags_part is None:
            return StateRun(meta.key, run)
        if flags_part not in self._flags:
            metas = {meta.key: meta for meta in self._record.segments if meta.part == flags_part}
            blobs = self._store.read_segments(self._record.job, metas)
            self._flags[flags_part] = [decode_run(metas[key], blob).batch for key, blob in blobs.items()]
        return StateRun(meta.key, run, 0, flagged_rows(run.batch, meta.key, self._flags[flags_part]))
