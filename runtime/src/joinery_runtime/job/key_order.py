"""Which shard makes a job's rows, and so whether records of one key in a topic are in the order of rule J2 within an
epoch: shards write side by side, and only a shard's own records are in a defined order."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.model.outputs import NamedOutput
from joinery_runtime.job.model.references import SESSION_ID, Reference, parse_reference
from joinery_runtime.job.model.resource import Job
from joinery_runtime.job.model.wording import listed


def routing_columns(job: Job) -> tuple[str, ...]:
    """Return the columns of the job's rows by which rows go to the shard that writes them, for topics with `keyOrder`.
    Empty: a shard writes the rows that it makes."""
    ordered = [output for output in job.outputs if output.kafka is not None and output.kafka.key_order]
    if all(makes_keys_in_one_shard(job, output) for output in ordered):
        return ()
    first, *others = (key_columns(output) for output in ordered)
    return tuple(column for column in first if all(column in key for key in others))


def orders_keys(job: Job, output: NamedOutput) -> bool:
    """Say whether one shard writes all records of a key of this output, and so puts them in order. Rows of a projection
    are in the order of their partition as they come (rule P3)."""
    if output.kafka is None or not output.kafka.key:
        return False
    routing = routing_columns(job)
    if routing:
        return set(routing) <= {*key_columns(output)}
    return not _is_projection(job) and makes_keys_in_one_shard(job, output)


def order_warnings(job: Job) -> Iterator[str]:
    """Warns of a topic whose records of one key come from several shards, each with a producer of its own."""
    routing = routing_columns(job)
    for output in job.outputs:
        kafka = output.kafka
        if kafka is None or not kafka.key or orders_keys(job, output):
            continue
        if routing:
            lacks = f"{listed(routing)}, by which keyOrder of another output has rows written"
        else:
            lacks = missing_shard_columns(job, output, kafka.key)
        if lacks:
            yield (
                f"NO ORDER WITHIN AN EPOCH of records with one key ({', '.join(kafka.key)}) in {kafka.topic}: the key "
                f"does not have {lacks}, so several shards write its records. A compacted topic, or "
                "a consumer that keeps the last value of a key, may have any of the epoch's values, though never one "
                "of an earlier epoch. For the last one by rule J2, set keyOrder: true under output.kafka, or write to "
                "a table: output.postgres with upsertKey"
            )


def makes_keys_in_one_shard(job: Job, output: NamedOutput) -> bool:
    """Say whether one shard makes all rows of a key of this output, which is a topic with a key."""
    assert output.kafka is not None, "the caller has looked"
    if _is_projection(job):
        return not output.kafka.key_order  # by its partition, a record has a shard
    return not missing_shard_columns(job, output, output.kafka.key)


def key_columns(output: NamedOutput) -> tuple[str, ...]:
    """Return the columns of the job's rows that make the key of this output, which is a topic."""
    assert output.kafka is not None, "the caller has looked"
    in_rows = {item.as_ or item.column: item.column for item in output.select or ()}
    return tuple(in_rows.get(name, name) for name in output.kafka.key)


def missing_shard_columns(job: Job, output: NamedOutput, key: Collection[str]) -> str:
    """Say in words which columns the key of a topic lacks so that one shard makes all rows of a key; empty: none."""
    columns = [column for column in job.columns_of(output) if column.name in key]
    groups = _groups(job)
    if groups is not None:
        written = [column.step_column for column in columns if column.step_column is not None]
        if SESSION_ID in written:  # it is made of the group and the start (rule S6)
            return ""
        in_groups = {*written, *(name.rpartition(".")[2] for name in written)}  # `topN` writes orders.id as id
        return listed(missing) if (missing := [group for group in groups if group not in in_groups]) else ""
    assert isinstance(job, StreamJoin), "other jobs have groups"
    if _is_projection(job):
        return ""
    in_key = {column.source for column in columns}
    sides: list[tuple[tuple[Reference, ...], ...]]
    if job.rankings:
        sides = [((ref,),) for name in job.rankings[-1].keys if (ref := parse_reference(name)) is not None]
    else:
        sides = [(pair.left.reads, pair.right.reads) for pair in job.keys_of(job.joins[-1])]
    one_shard = sides and all(any({*reads} <= in_key for reads in pair) for pair in sides)
    return "" if one_shard else "the columns of the last key"


def _is_projection(job: Job) -> bool:
    return isinstance(job, StreamJoin) and _groups(job) is None and not job.joins and not job.rankings


def _groups(job: Job) -> tuple[str, ...] | None:
    """The columns by which the rows of an aggregate, or of those that `topN` ranks, have their shard; None: the job
    emits no such rows."""
    if isinstance(job, SessionWindow):
        return job.sessions.group_by
    if not isinstance(job, StreamJoin) or job.last_aggregation is None:
        return None
    return job.last_aggregation.group_by if job.top_of_windows is None else job.top_of_windows.keys
