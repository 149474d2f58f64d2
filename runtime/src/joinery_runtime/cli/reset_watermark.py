"""`joinery state reset --watermark`: brings watermarks down that an event time has driven too far ahead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from joinery_runtime.cli.reset import planned_refusal
from joinery_runtime.cli.reset_target import parse_time
from joinery_runtime.cli.state import durable, known
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import InputTime
from joinery_runtime.engine.job_state import HORIZONS, live_segments, stored_floors
from joinery_runtime.engine.plan import InputState, input_states
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.stores import open_store
from joinery_runtime.job import Job, format_time
from joinery_runtime.state.store import JobRecord, Standing


@dataclass(frozen=True, slots=True)
class LoweredState:
    """What the store gets: `inputs` with their new progress, and how far each part of the state counts as closed."""

    inputs: Mapping[str, InputState]
    floors: Mapping[str, int]

    def offsets(self, record: JobRecord) -> dict[str, bytes]:
        found = {name: state.to_bytes() for name, state in self.inputs.items()}
        if HORIZONS in record.offsets:
            closed = {**json.loads(record.offsets[HORIZONS]), "horizons": dict(self.floors)}
            found[HORIZONS] = json.dumps(closed).encode()
        return found


def reset_watermark_command(
    job: Job, target: str, *, dry_run: bool, drop_planned: bool, say: Callable[[str], None]
) -> None:
    """`target` is [INPUT=]TIME. Says what changes, and changes it unless `dry_run`. Raises JoineryError; then nothing
    changed."""
    job = durable(job)
    wanted = _wanted(job, target)
    with open_store(job, say) as opened:
        record = known(job, opened.store)
        if record.plan is not None and not drop_planned:
            raise planned_refusal(record)
        if not record.offsets:
            raise JoineryError(f"Job {job.name} has committed no epoch", todo="It has no watermark that could go back")
        lowered = lower_watermarks(job, compile_job(job), record, wanted)
        for line in _report(job, record, lowered):
            say(line)
        if dry_run:
            say("Dry run: nothing was changed.")
            return
        expected = Standing(record.generation, record.epoch, None if record.plan is None else record.epoch + 1)
        opened.store.reset_offsets(record.job, lowered.offsets(record), expected=expected, drop_plan=drop_planned)
        say("Done. A driver that was running has been fenced: it ends. Start the job to go on from here.")


def _wanted(job: Job, target: str) -> dict[str, int]:
    """By input, the watermark that it is brought down to."""
    name, named, text = target.rpartition("=")
    inputs = [side.name for side in job.inputs]
    if named and name not in inputs:
        raise JoineryError(
            f"Job {job.name} has no input {name}", facts=f"it has {', '.join(inputs)}", todo="Name one of these"
        )
    at = parse_time("--watermark", text)
    return dict.fromkeys([name] if named else inputs, at)


def lower_watermarks(job: Job, pipeline: Pipeline, record: JobRecord, wanted: Mapping[str, int]) -> LoweredState:
    """Raises JoineryError where rows that have gone out when they were closed would go out once more."""
    states = input_states((side.name for side in job.inputs), record)
    delays = {side.name: side.watermark.delay for side in job.inputs}
    inputs = {name: _lowered(name, states[name], at, delays[name]) for name, at in wanted.items()}
    floors = stored_floors(record)
    now = {name: _time_of(state) for name, state in {**states, **inputs}.items()}
    implied = times.horizons(pipeline, now, {})
    lowered = {part: min(floor, at) for part, floor in floors.items() if (at := implied[part].now) is not None}
    for meta in live_segments(record):
        step, side = pipeline.side(meta.part)
        spec = step.sides[side]
        part = spec.complete if spec.complete in floors else spec.part
        moved = Horizon(lowered.get(part), floors.get(part))
        if moved.now is None or moved.now == moved.before or meta.part == spec.marks_part:
            continue
        if step.kind.closes(step, side, meta, moved):
            raise JoineryError(
                f"The watermark of job {job.name} cannot be brought down to {format_time(max(wanted.values()))}",
                facts=f"a segment of {step.kind.side_text(step, side)} holds rows that were closed and may have gone "
                f"out (event times {format_time(meta.ts_min)} to {format_time(meta.ts_max)}): they would go out again",
                todo="Restore a savepoint from before it went ahead, or start anew: joinery state migrate --anew",
            )
    return LoweredState(inputs, lowered)


def _lowered(name: str, state: InputState, at: int, delay: int) -> InputState:
    progress = state.progress
    if progress.ended:
        raise JoineryError(
            f"Input {name} has ended", facts="nothing of it is read again", todo="Start the job with new state"
        )
    highest = {partition: None if ts is None else min(ts, at + delay) for partition, ts in progress.highest.items()}
    watermark = None if progress.watermark is None else min(progress.watermark, at)
    return replace(state, progress=replace(progress, highest=highest, watermark=watermark, idle_from=None, idle_ms=0))


def _time_of(state: InputState) -> InputTime:
    seen = [ts for ts in state.progress.highest.values() if ts is not None]
    return InputTime(state.progress.watermark, max(seen, default=None))


def _report(job: Job, record: JobRecord, lowered: LoweredState) -> Iterator[str]:
    before = input_states(lowered.inputs, record)
    for name, state in lowered.inputs.items():
        old, new = before[name].progress.watermark, state.progress.watermark
        yield f"watermark of {name}: {format_time(old)} -> {format_time(new)}"
    yield "What was evicted stays gone: rows that come from now on meet only what is still in the state."
    if len(lowered.inputs) < len(job.inputs):
        yield "Other inputs keep theirs: an input that was idle may have been given the same watermark (T5)."
