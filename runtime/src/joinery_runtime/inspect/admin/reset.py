"""`joinery state reset`: sets the offsets of one Kafka input, lowers watermarks that an event time has driven too far
ahead, or drops the plan of an epoch. Says what that does to the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from confluent_kafka.admin import OffsetSpec

from joinery_runtime.connectors.history import is_file_of_history
from joinery_runtime.connectors.kafka.metadata import KafkaMetadata
from joinery_runtime.connectors.kafka.settings import Cluster
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine.job_state import live_segments
from joinery_runtime.engine.lowering import lower_watermarks
from joinery_runtime.engine.plan import EpochPlan, InputState, input_states
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.stores import open_store
from joinery_runtime.inspect.admin.reset_target import (
    BrokerOffsets,
    PartitionOffsets,
    Reset,
    Target,
    ToTime,
    parse_time,
    plan_reset,
)
from joinery_runtime.inspect.stored_state import durable, record_of
from joinery_runtime.job import Input, Job, KafkaInput, format_time
from joinery_runtime.job.model.unions import UnionInput
from joinery_runtime.job.model.wording import counted, linked, listed
from joinery_runtime.state.store import JobRecord

DRY_RUN = "Dry run: nothing was changed."
DONE = "Done. A driver that was running has been fenced: it ends. Start the job to continue from here."


def reset_command(
    job: Job, name: str, target: Target, *, dry_run: bool, drop_planned: bool, say: Callable[[str], None]
) -> None:
    """Say what changes per partition, and change it unless `dry_run`. Raises JoineryError; then nothing changed."""
    job = durable(job)
    side = _find_input(job, name)
    kafka = side.kafka
    if isinstance(side, UnionInput):
        raise JoineryError(
            f"Input {name} of job {job.name} is a union of {listed(part.name for part in side.parts)}",
            facts="only the offsets of an input that is read by itself can be reset",
            todo="To read it again, start the job with new state, or restore a savepoint (joinery state restore)",
        )
    if kafka is None:
        raise JoineryError(
            f"Input {name} of job {job.name} is a file",
            facts="only the offsets of Kafka inputs can be reset",
            todo="To read it again, start the job with new state. To discard a planned epoch, write --drop-planned "
            "without --input",
        )
    with open_store(job, say) as opened:
        state = _input_state(record_of(job, opened.store), name, drop_planned=drop_planned)
        broker = _on_broker(name, kafka, state, target)
        # Reads the record again: a driver may have committed while the broker was asked.
        record = record_of(job, opened.store)
        state = _input_state(record, name, drop_planned=drop_planned)
        reset = plan_reset(state, target, broker)
        for line in offset_report(name, reset):
            say(line)
        if record.plan is not None and not drop_planned:
            raise _planned_refusal(record)
        if record.plan is not None:
            say(_plan_dropped(record))
        elif reset.state == state:
            say("Nothing to change.")
            return
        if dry_run:
            say(DRY_RUN)
        else:
            states = {name: reset.state.to_bytes()}
            opened.store.reset_offsets(record.job, states, expected=record.ownership, drop_plan=drop_planned)
            say(DONE)


def drop_plan_command(job: Job, *, dry_run: bool, say: Callable[[str], None]) -> None:
    """Drop the pending plan and change nothing else, unless `dry_run`. Raises JoineryError."""
    job = durable(job)
    with open_store(job, say) as opened:
        record = record_of(job, opened.store)
        if record.plan is None:
            say("Nothing to change: no epoch is planned.")
            return
        say(_plan_dropped(record))
        if dry_run:
            say(DRY_RUN)
            return
        opened.store.reset_offsets(record.job, {}, expected=record.ownership, drop_plan=True)
        say(DONE)


def reset_watermark_command(
    job: Job, target: str, *, dry_run: bool, drop_planned: bool, say: Callable[[str], None]
) -> None:
    """`target` is [INPUT=]TIME. Says what changes, and changes it unless `dry_run`. Raises JoineryError; then nothing
    changed."""
    job = durable(job)
    name, named, text = target.rpartition("=")
    inputs = [_find_input(job, name)] if named else job.inputs
    targets = dict.fromkeys((side.name for side in inputs), parse_time("--watermark", text))
    with open_store(job, say) as opened:
        record = record_of(job, opened.store)
        if record.plan is not None and not drop_planned:
            raise _planned_refusal(record)
        if not record.offsets:
            raise JoineryError(f"Job {job.name} has committed no epoch", todo="It has no watermark that could go back")
        lowered = lower_watermarks(job, compile_job(job), record, opened.store, targets)
        before = input_states(lowered.inputs, record)
        for input_name, state in lowered.inputs.items():
            old, new = before[input_name].progress.watermark, state.progress.watermark
            say(f"watermark of {input_name}: {format_time(old)} -> {format_time(new)}")
        if lowered.replaced:
            rows = sum(meta.rows for meta in live_segments(record) if meta.key in lowered.replaced)
            removed_rows = rows - sum(meta.rows for meta, _ in lowered.written)
            segments = counted(len(lowered.replaced), "segment")
            say(f"{counted(removed_rows, 'row', 'are')} removed that had been emitted already ({segments}).")
        say(
            "What was evicted does not return: rows that come from now on meet only what is still in the state. Windows"
        )
        say("and sessions that were emitted may be emitted once more with these rows alone.")
        if len(lowered.inputs) < len(job.inputs):
            say(
                linked(
                    "Other inputs keep theirs: an input that was idle may have been given the same watermark (rule T5)"
                )
            )
        if dry_run:
            say(DRY_RUN)
            return
        opened.store.reset_offsets(
            record.job,
            lowered.offsets(record),
            expected=record.ownership,
            drop_plan=drop_planned,
            replaced=lowered.replaced,
            by=lowered.written,
        )
        say(DONE)


def _find_input(job: Job, name: str) -> Input:
    """Return the input or union of that name; the union for one of its branches."""
    inputs = {side.name: side for side in job.inputs}
    of_branches = {part.name: side for side in job.inputs for part in side.parts}
    if name not in inputs and name in of_branches:
        return of_branches[name]
    if name not in inputs:
        raise JoineryError(
            f"Job {job.name} has no input {name}", facts=f"it has {', '.join(inputs)}", todo="Name one of these"
        )
    return inputs[name]


def _on_broker(name: str, kafka: KafkaInput, state: InputState, target: Target) -> BrokerOffsets:
    """Return the broker's offsets of the input's topics; for a topic pattern, of the topics that were read. Raises
    SourceError if there is no topic or no broker."""
    cluster = Cluster.of(name, kafka)
    admin = KafkaMetadata(cluster)
    read = {ref.topic for ref in state.positions if not is_file_of_history(ref)}
    if not kafka.named_topics and not read:
        facts, todo = "it has read no topic yet", "Where reading starts is up to startFrom in the job then"
        if state.positions:
            facts = "it has read files of its history, and no topic yet"
            todo = "Reset it once its history has been read"
        raise cluster.problem("it has no topic's offsets", facts, todo)
    topics = admin.topics(kafka.named_topics or read)
    if not topics:
        raise cluster.problem(f"{kafka.source_name} cannot be read", "the broker has no such topic", "Create it first")
    partitions = [ref for topic in topics.values() for ref in topic.partitions]
    requests = [admin.ask(partitions, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())]
    at_time = admin.ask(partitions, OffsetSpec.for_timestamp(target.timestamp)) if isinstance(target, ToTime) else {}
    earliest, end, at_or_after = (admin.answers(answers) for answers in (*requests, at_time))
    offsets = {
        # Kafka answers -1 if there is no record at or after the time.
        ref: PartitionOffsets(earliest[ref], end[ref], at_or_after[ref] if at_or_after.get(ref, -1) >= 0 else None)
        for ref in partitions
    }
    return BrokerOffsets(offsets, {topic.name: topic.id for topic in topics.values()})


def _input_state(record: JobRecord, name: str, *, drop_planned: bool) -> InputState:
    """Return the input's stored state or, before the first commit, the start positions of the plan that is to be
    dropped."""
    if name in record.offsets:
        return InputState.from_bytes(name, record.offsets[name])
    if record.plan is not None and drop_planned:
        plan = EpochPlan.from_json(record.plan)
        return InputState({r.partition: r.start for r in plan.ranges if r.partition.input == name})
    todo = "Where reading starts is up to startFrom in the job then"
    if record.plan is not None:
        todo += f"; --drop-planned gives the plan of epoch {record.epoch + 1} up"
    raise JoineryError(
        f"Job {record.job} has no stored offsets of input {name}",
        facts=f"its newest epoch is {record.epoch}",
        todo=todo,
    )


def _plan_dropped(record: JobRecord) -> str:
    return f"The plan of epoch {record.epoch + 1} is dropped: rows of it may repeat in a Kafka output."


def _planned_refusal(record: JobRecord) -> JoineryError:
    return JoineryError(
        f"Epoch {record.epoch + 1} of job {record.job} is planned and not committed",
        facts="its offsets are fixed and some of its output may be written; nothing was changed",
        todo="Start the job and stop it with SIGTERM, which finishes the epoch and leaves no plan behind. Or give "
        "--drop-planned: then rows of that epoch may repeat in a Kafka output",
    )


def offset_report(name: str, reset: Reset) -> Iterator[str]:
    """Yield a line per partition, and what the change means."""
    rows = [("partition", "stored", "new", "records", "broker has")]
    for change in reset.changes:
        if change.stored is None:
            effect = "never read"
        elif change.delta == 0:
            effect = "the same" if change.stored == change.new else "stored offset is gone"
        else:
            effect = f"{change.delta} skipped" if change.delta > 0 else f"{-change.delta} read again"
        name_of_partition = f"{change.partition.topic}-{change.partition.partition}"
        stored = "-" if change.stored is None else str(change.stored)
        available = f"{change.available.earliest} to {change.available.end}"
        rows.append((name_of_partition, stored, str(change.new), effect, available))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for ref in reset.missing:
        yield f"{ref.topic}-{ref.partition} is not on the broker and keeps its offset."
    for topic in reset.recreated:
        yield f"Topic {topic} was recreated: the stored offsets were of the topic before it, and are forgotten."
    if any(change.delta < 0 for change in reset.changes):
        watermark = reset.state.progress.watermark
        if watermark == END_OF_TIME:
            yield f"Input {name} has ended (stopAt): nothing of it is read again, whatever its offsets are."
        elif watermark is not None:
            yield f"The watermark of {name} does not go back ({format_time(watermark)}): rows read again may be late."
        yield "Rows that are still in the state join again with rows that are read again: output repeats."
    if any(change.delta > 0 for change in reset.changes):
        yield "Records that are skipped are not read: what they would have joined with stays without them."
