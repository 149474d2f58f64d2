"""`joinery state reset --watermark`: brings watermarks down that an event time has driven too far ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from joinery_runtime.cli.reset import planned_refusal
from joinery_runtime.cli.reset_target import parse_time
from joinery_runtime.cli.state import durable, known
from joinery_runtime.core.compile import compile_job
from joinery_runtime.engine.job_state import live_segments
from joinery_runtime.engine.lowering import LoweredState, lower_watermarks
from joinery_runtime.engine.plan import input_states
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.stores import open_store
from joinery_runtime.job import Job, format_time
from joinery_runtime.state.store import JobRecord


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
        lowered = lower_watermarks(job, compile_job(job), record, opened.store, wanted)
        for line in _report(job, record, lowered):
            say(line)
        if dry_run:
            say("Dry run: nothing was changed.")
            return
        opened.store.reset_offsets(
            record.job,
            lowered.offsets(record),
            expected=record.standing,
            drop_plan=drop_planned,
            replaced=lowered.replaced,
            by=lowered.written,
        )
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


def _report(job: Job, record: JobRecord, lowered: LoweredState) -> Iterator[str]:
    before = input_states(lowered.inputs, record)
    for name, state in lowered.inputs.items():
        old, new = before[name].progress.watermark, state.progress.watermark
        yield f"watermark of {name}: {format_time(old)} -> {format_time(new)}"
    if lowered.replaced:
        rows = sum(meta.rows for meta in live_segments(record) if meta.key in lowered.replaced)
        gone = rows - sum(meta.rows for meta, _ in lowered.written)
        yield f"{gone:,} rows that have gone out, and are still stored, are removed ({len(lowered.replaced)} segments)."
    yield "What was evicted stays gone: rows that come from now on meet only what is still in the state. Windows and"
    yield "sessions that have gone out may go out once more with these rows alone."
    if len(lowered.inputs) < len(job.inputs):
        yield "Other inputs keep theirs: an input that was idle may have been given the same watermark (T5)."
