"""Which shard makes a job's rows, and so whether records of one key in a topic are in the order of rule J2 within an
epoch: shards write side by side, and only a shard's own records are in a defined order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.model.expression_tree import parse_tree, split_ands
from joinery_runtime.job.model.outputs import NamedOutput
from joinery_runtime.job.model.references import SESSION_ID, ComputedKey, Reference, inputs_of, parse_reference
from joinery_runtime.job.model.resource import Job, OutputField
from joinery_runtime.job.model.wording import listed

_NO_LAST_KEY = "the key does not have the columns of the last key"


def routing_columns(job: Job) -> tuple[str, ...]:
    """Return the columns of the job's rows by which rows go to the shard that writes them, for topics with `keyOrder`.
    Empty: a shard writes the rows that it makes."""
    ordered = [output for output in job.outputs if output.kafka is not None and output.kafka.key_order]
    if all(makes_keys_in_one_shard(job, output) for output in ordered):
        return ()
    first, *later = (key_columns(output) for output in ordered)
    return tuple(column for column in first if all(column in key for key in later))


def orders_keys(job: Job, output: NamedOutput) -> bool:
    """Say whether one shard writes all records of a key of this output, and so puts them in order. Rows of a projection
    are in the order of their partition as they come (rule P3)."""
    if output.kafka is None or not output.kafka.key:
        return False
    routing = routing_columns(job)
    if routing:
        return set(routing) <= {*key_columns(output)}
    return not _is_projection(job) and makes_keys_in_one_shard(job, output)


def lacks_order_of_nulls(job: Job, output: NamedOutput) -> bool:
    """Say whether records of one key are in order, but not those whose join key has a NULL or NaN (rule O2)."""
    return orders_keys(job, output) and not routing_columns(job) and _spreads_nulls(job, output)


def order_warnings(job: Job) -> Iterator[str]:
    """Warn of a topic whose records of one key come from several shards, each with a producer of its own."""
    routing = routing_columns(job)
    for output in job.outputs:
        kafka = output.kafka
        if kafka is None or not kafka.key or orders_keys(job, output):
            continue
        if routing:
            reason = f"the key does not have {listed(routing)}, by which keyOrder of another output has rows written"
        else:
            reason = why_several_shards(job, output)
        if reason:
            yield (
                f"NO ORDER WITHIN AN EPOCH of records with one key ({', '.join(kafka.key)}) in {kafka.topic}: "
                f"{reason}, so several shards write the records of a key. A compacted topic, or a consumer that keeps "
                "the last value of a key, may have any of the epoch's values, though never one of an earlier epoch. "
                "For the last one by rule J2, set keyOrder: true under output.kafka, or write to a table: "
                "output.postgres with upsertKey"
            )


def makes_keys_in_one_shard(job: Job, output: NamedOutput) -> bool:
    """Say whether one shard makes all rows of a key of this output, which is a topic with a key. With `keyOrder` that
    includes rows whose join key has a NULL, which a preserved side spreads; without it, rule J2 excepts them."""
    assert output.kafka is not None, "the caller has looked"
    if _is_projection(job):
        return not output.kafka.key_order  # by its partition, a record has a shard
    return not why_several_shards(job, output) and not (output.kafka.key_order and _spreads_nulls(job, output))


def key_columns(output: NamedOutput) -> tuple[str, ...]:
    """Return the columns of the job's rows that make the key of this output, which is a topic."""
    assert output.kafka is not None, "the caller has looked"
    in_rows = {item.as_ or item.column: item.column for item in output.select or ()}
    return tuple(in_rows.get(name, name) for name in output.kafka.key)


def why_several_shards(job: Job, output: NamedOutput) -> str:
    """Say in words why several shards make rows of one key of this output, which is a topic; empty: one shard does,
    but for rows whose join key has a NULL."""
    columns = _key_fields(job, output)
    groups = _group_columns(job)
    if groups is not None:
        written = [column.step_column for column in columns if column.step_column is not None]
        if SESSION_ID in written:  # it is made of the group and the start (rule S6)
            return ""
        in_groups = {*written, *(name.rpartition(".")[2] for name in written)}  # `topN` writes orders.id as id
        missing = [group for group in groups if group not in in_groups]
        return f"the key does not have {listed(missing)}" if missing else ""
    assert isinstance(job, StreamJoin), "other jobs have groups"
    if _is_projection(job):
        return ""
    if not job.rankings:
        return _why_a_join_spreads(job, columns)
    in_key = {column.source for column in columns}
    ranked_by = [ref for name in job.rankings[-1].keys if (ref := parse_reference(name)) is not None]
    return "" if ranked_by and in_key.issuperset(ranked_by) else _NO_LAST_KEY


def _why_a_join_spreads(job: StreamJoin, columns: Sequence[OutputField]) -> str:
    """Say in words why the last join makes rows of one key, which has these columns, in several shards. Of a preserved
    side, rows that cannot match (rule J4) are emitted, and any shard gets them."""
    step, pairs = job.joins[-1], job.keys_of(job.joins[-1])
    in_key = {column.source for column in columns}
    sides = [[pair.left for pair in pairs], [pair.right for pair in pairs]]
    if not pairs or not all(any(in_key.issuperset(ref.reads) for ref in (pair.left, pair.right)) for pair in pairs):
        return _NO_LAST_KEY
    inputs = (job.left_inputs(len(job.joins) - 1), (step.right,))
    conditions = list(split_ands(parse_tree(step.where))) if step.where is not None else []
    for of_side, refs, preserved in zip(inputs, sides, step.preserved, strict=True):
        if not preserved:
            continue
        emitted = f"the last join emits rows of {listed(of_side)}"
        own = [part.sql() for part in conditions if (read := inputs_of(part)) and {*read} <= {*of_side}]
        if own:
            return f"{emitted} also if {' AND '.join(own)} is not true, in any shard"
        missing = [str(column) for ref in refs for column in ref.reads if column not in in_key]
        if missing and not _is_one_text(columns):
            return f"{emitted} without a match, and the key does not have {listed(missing)}"
    if step.preserved[0] and (nulls := _padded_columns(job, [] if _is_one_text(columns) else sides[0])):
        return f"a join before pads {listed(nulls)} with NULL, and the last join emits such rows in any shard"
    return ""


def _padded_columns(job: StreamJoin, keys: Sequence[Reference]) -> list[str]:
    """Say which of these left keys of the last join, and of the time of its left rows, are NULL in some rows because a
    join before has padded them."""
    *before, step = job.joins
    padded: set[str] = set()
    for number, earlier in enumerate(before):
        if not earlier.preserved[0]:  # rows without a key are dropped
            padded -= {pair.left.input for pair in job.keys_of(earlier)}
        padded |= {earlier.right} if earlier.preserved[0] else set()
        padded |= {*job.left_inputs(number)} if earlier.preserved[1] else set()
    windowing = next((earlier for earlier in before if earlier.matching.windowed), step)
    counted = windowing if step.matching.windowed else step  # later windows are those of the first (rule W5)
    time = job.input(counted.matching.counted_from or job.inputs[0].name)
    times = [Reference(time.name, time.event_time)] if before else []
    return list(dict.fromkeys(str(ref) for ref in (*keys, *times) if ref.input in padded))


def _spreads_nulls(job: Job, output: NamedOutput) -> bool:
    """Say whether rows of one key whose join key has a NULL come from several shards. A record without its only text
    column has no key."""
    if (
        not isinstance(job, StreamJoin)
        or _group_columns(job) is not None
        or job.rankings
        or not any(job.joins[-1].preserved)
    ):
        return False
    computed = any(
        isinstance(ref, ComputedKey) for pair in job.keys_of(job.joins[-1]) for ref in (pair.left, pair.right)
    )
    return computed or not _is_one_text(_key_fields(job, output))


def _key_fields(job: Job, output: NamedOutput) -> list[OutputField]:
    assert output.kafka is not None, "the caller has looked"
    return [column for column in job.columns_of(output) if column.name in output.kafka.key]


def _is_one_text(columns: Sequence[OutputField]) -> bool:
    """Say whether these columns of a key are one of text, without which a record has no key."""
    return [column.type and column.type.name for column in columns] == ["string"]


def _is_projection(job: Job) -> bool:
    return isinstance(job, StreamJoin) and _group_columns(job) is None and not job.joins and not job.rankings


def _group_columns(job: Job) -> tuple[str, ...] | None:
    """Return the columns by which the rows of an aggregate, or of those that `topN` ranks, have their shard; None: the
    job emits no such rows."""
    if isinstance(job, SessionWindow):
        return job.sessions.group_by
    if not isinstance(job, StreamJoin) or job.last_aggregation is None:
        return None
    return job.last_aggregation.group_by if job.top_of_windows is None else job.top_of_windows.keys
