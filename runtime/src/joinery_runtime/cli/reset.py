"""`joinery state reset`: sets the offsets of one Kafka input anew, and says what that does to the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from confluent_kafka.admin import OffsetSpec

from joinery_runtime.cli.reset_target import BrokerOffsets, Change, PartitionOffsets, Reset, Target, ToTime, plan_reset
from joinery_runtime.cli.state import durable, known
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine.plan import EpochPlan, InputState
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.stores import open_store
from joinery_runtime.job import Job, KafkaInput
from joinery_runtime.sources.history import of_files
from joinery_runtime.sources.kafka_admin import KafkaAdmin
from joinery_runtime.sources.kafka_client import Cluster
from joinery_runtime.state.store import JobRecord

DONE = "Done. A driver that was running has been fenced: it ends. Start the job to go on from here."


def reset_command(
    job: Job, name: str, target: Target, *, dry_run: bool, drop_planned: bool, say: Callable[[str], None]
) -> None:
    """Says what changes per partition, and changes it unless `dry_run`. Raises JoineryError; then nothing changed."""
    job = durable(job)
    kafka = _kafka_input(job, name)
    with open_store(job, say) as opened:
        broker = _on_broker(
            name, kafka, _input_state(known(job, opened.store), name, drop_planned=drop_planned), target
        )
        # Read again: a driver may have committed while the broker was asked.
        record = known(job, opened.store)
        state = _input_state(record, name, drop_planned=drop_planned)
        reset = plan_reset(state, target, broker)
        for line in report(name, reset):
            say(line)
        if record.plan is not None and not drop_planned:
            raise planned_refusal(record)
        if record.plan is not None:
            say(_plan_dropped(record))
        elif reset.state == state:
            say("Nothing to change.")
            return
        if dry_run:
            say("Dry run: nothing was changed.")
        else:
            states = {name: reset.state.to_bytes()}
            opened.store.reset_offsets(record.job, states, expected=record.standing, drop_plan=drop_planned)
            say(DONE)


def drop_plan_command(job: Job, *, dry_run: bool, say: Callable[[str], None]) -> None:
    """Drops the pending plan and changes nothing else, unless `dry_run`. Raises JoineryError."""
    job = durable(job)
    with open_store(job, say) as opened:
        record = known(job, opened.store)
        if record.plan is None:
            say("Nothing to change: no epoch is planned.")
            return
        say(_plan_dropped(record))
        if dry_run:
            say("Dry run: nothing was changed.")
            return
        opened.store.reset_offsets(record.job, {}, expected=record.standing, drop_plan=True)
        say(DONE)


def _kafka_input(job: Job, name: str) -> KafkaInput:
    inputs = {side.name: side for side in job.inputs}
    if name not in inputs:
        raise JoineryError(
            f"Job {job.name} has no input {name}", facts=f"it has {', '.join(inputs)}", todo="Name one of these"
        )
    kafka = inputs[name].kafka
    if kafka is None:
        raise JoineryError(
            f"Input {name} of job {job.name} is a file",
            facts="only the offsets of Kafka inputs can be reset",
            todo="To read it again, start the job with new state. To give a planned epoch up, write --drop-planned "
            "without --input",
        )
    return kafka


def _on_broker(name: str, kafka: KafkaInput, state: InputState, target: Target) -> BrokerOffsets:
    """Of an input with a pattern: the topics that it has read. Raises SourceError when there is no topic or broker."""
    cluster = Cluster.of(name, kafka)
    admin = KafkaAdmin(cluster)
    read = {ref.topic for ref in state.positions if not of_files(ref)}
    if kafka.topic is None and not read:
        facts = "it has read files of its history, and no topic yet"
        raise cluster.problem("it has no topic's offsets", facts, "Reset it once its history has been read")
    topics = admin.topics(read if kafka.topic is None else {kafka.topic})
    if not topics:
        raise cluster.problem(f"{kafka.topics} cannot be read", "the broker has no such topic", "Create it first")
    partitions = [ref for topic in topics.values() for ref in topic.partitions]
    asked = [admin.ask(partitions, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())]
    at_time = admin.ask(partitions, OffsetSpec.for_timestamp(target.timestamp)) if isinstance(target, ToTime) else {}
    earliest, end, found = (admin.answers(answers) for answers in (*asked, at_time))
    offsets = {
        # Kafka answers -1 where no record is as late as the time.
        ref: PartitionOffsets(earliest[ref], end[ref], found[ref] if found.get(ref, -1) >= 0 else None)
        for ref in partitions
    }
    return BrokerOffsets(offsets, {topic.name: topic.id for topic in topics.values()})


def _input_state(record: JobRecord, name: str, *, drop_planned: bool) -> InputState:
    """What is stored of the input; before the first commit, where the plan that is to be dropped begins to read."""
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


def planned_refusal(record: JobRecord) -> JoineryError:
    return JoineryError(
        f"Epoch {record.epoch + 1} of job {record.job} is planned and not committed",
        facts="its offsets are fixed and some of its output may have gone out; nothing was changed",
        todo="Start the job and stop it with SIGTERM, which finishes the epoch and leaves no plan behind. Or give "
        "--drop-planned: then rows of that epoch may repeat in a Kafka output",
    )


def report(name: str, reset: Reset) -> Iterator[str]:
    """A line per partition, and what the change means."""
    yield from _aligned([("partition", "stored", "new", "records", "broker has"), *map(_row, reset.changes)])
    for ref in reset.missing:
        yield f"{ref.topic}-{ref.partition} is not on the broker and keeps its offset."
    for topic in reset.recreated:
        yield f"Topic {topic} was recreated: the stored offsets were of the topic before it, and are forgotten."
    yield from _consequences(name, reset)


def _row(change: Change) -> tuple[str, ...]:
    return (
        f"{change.partition.topic}-{change.partition.partition}",
        "-" if change.stored is None else str(change.stored),
        str(change.new),
        _effect(change),
        f"{change.available.earliest} to {change.available.end}",
    )


def _effect(change: Change) -> str:
    if change.stored is None:
        return "never read"
    if change.delta == 0:
        return "the same" if change.stored == change.new else "stored offset is gone"
    return f"{change.delta} skipped" if change.delta > 0 else f"{-change.delta} read again"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _consequences(name: str, reset: Reset) -> Iterator[str]:
    if any(change.delta < 0 for change in reset.changes):
        watermark = reset.state.progress.watermark
        if watermark == END_OF_TIME:
            yield f"Input {name} has ended (stopAt): nothing of it is read again, whatever its offsets are."
        elif watermark is not None:
            yield f"The watermark of {name} does not go back ({_moment(watermark)}): rows read again may be late."
        yield "Rows that are still in the state join again with rows that are read again: output repeats."
    if any(change.delta > 0 for change in reset.changes):
        yield "Records that are skipped are not read: what they would have joined with stays without them."


def _moment(watermark: int) -> str:
    try:
        return datetime.fromtimestamp(watermark / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{watermark} ms"
