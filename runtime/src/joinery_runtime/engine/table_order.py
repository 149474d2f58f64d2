"""Decides how far a stream may be read and joined before the rest of its table (rule A4), from what is unread of each.

A stream's row takes the version that is valid at its time, so it must not be joined before its table was read up to
that time. Until a table was first read to its end, no stream is read. From then on, a table that an epoch does not read
to its end has been read up to the lowest time of the partitions that have more records. Rows of the stream beyond that
wait in the state, and a stream that is ahead of its table is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from joinery_runtime.connectors.source import Bounds, Range
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME, InputClock, InputProgress
from joinery_runtime.engine.plan import EpochPlan, Inputs, InputState, partition_id
from joinery_runtime.formats.batch import PartitionRef

# --- the first read of a table ----------------------------------------------------------------------------------------


def streams_waiting_for_tables(
    bounds: Iterable[Bounds], inputs: Inputs, tables: Collection[str], first_ends: Mapping[PartitionRef, int]
) -> Collection[str]:
    """Every stream, until each table has been read to where it ended when first seen. What is added to a table
    meanwhile does not count, or a busy table would hold up its stream for ever."""
    reached = {bound.partition: bound.start for bound in bounds}
    unread = [name for name in tables if not _first_read(name, reached, inputs, first_ends)]
    return inputs.keys() - tables if unread else ()


def tables_first_read(
    bounds: Iterable[Bounds],
    ranges: Iterable[Range],
    inputs: Inputs,
    tables: Iterable[str],
    first_ends: Mapping[PartitionRef, int],
) -> tuple[str, ...]:
    """Tables whose first read is complete with these ranges."""
    reached = {bound.partition: bound.start for bound in bounds} | {r.partition: r.end_exclusive for r in ranges}
    unread = (name for name in tables if not inputs[name].first_read)
    return tuple(sorted(name for name in unread if _first_read(name, reached, inputs, first_ends)))


def _first_read(
    name: str, reached: Mapping[PartitionRef, int], inputs: Inputs, first_ends: Mapping[PartitionRef, int]
) -> bool:
    ends = {ref: end for ref, end in first_ends.items() if ref.input == name}
    return inputs[name].first_read or all(reached.get(ref, end) >= end for ref, end in ends.items())


# --- every later plan -------------------------------------------------------------------------------------------------


def unread_partitions(bounds: Iterable[Bounds], ranges: Iterable[Range] = ()) -> list[PartitionRef]:
    """The partitions that have records which these ranges leave unread."""
    read_to = {r.partition: r.end_exclusive for r in ranges}
    return [bound.partition for bound in bounds if read_to.get(bound.partition, bound.start) < bound.end_exclusive]


def reached_time(state: InputState, unread: Iterable[PartitionRef], delay_ms: int) -> int:
    """Up to which event time an input was read whose `unread` partitions have more records (`InputTime.reached`)."""
    highest = {ref: state.progress.highest.get(ref) for ref in map(partition_id, unread)}
    if not highest:
        return END_OF_TIME
    at = InputProgress(highest).implied(InputClock(delay_ms))
    return BEGIN_OF_TIME if at is None else at - 1  # more rows of that time may follow


def reads_ahead_of_tables(
    inputs: Inputs, ranges: Iterable[Range], tables: Collection[str], reached: Mapping[str, int]
) -> bool:
    """Whether these ranges hold records of a stream that has been read further than its table will be after them. Such
    records would only wait in the state."""
    streams = inputs.keys() - tables
    reads = any(r.partition.input in streams and r.start < r.end_exclusive for r in ranges)
    table = min((reached.get(name, END_OF_TIME) for name in tables), default=END_OF_TIME)
    newest = max((at for name in streams if (at := inputs[name].progress.newest) is not None), default=BEGIN_OF_TIME)
    return reads and (table == BEGIN_OF_TIME or newest > table)


def without_overtaking(smaller: EpochPlan, plan: EpochPlan, tables: Collection[str]) -> EpochPlan:
    """Returns the shortened form of a plan. If it reads less of a table, it joins nothing: the plan was to reach times
    with the table that it does not reach any more."""
    shortened = [new for new, old in zip(smaller.ranges, plan.ranges, strict=True) if new != old]
    streams = {planned.partition.input for planned in shortened} - set(tables)
    if len(streams) < len({planned.partition.input for planned in shortened}):
        streams = {ref.input for ref in plan.partitions} - set(tables)
        smaller = replace(
            smaller,
            ranges=tuple(
                r if r.partition.input in tables else replace(r, end_exclusive=r.start) for r in smaller.ranges
            ),
            horizons={part: Horizon(at.previous, at.previous) for part, at in smaller.horizons.items()},
            reached={**smaller.reached, **dict.fromkeys(tables, BEGIN_OF_TIME)},
        )
    return replace(smaller, unread=tuple(sorted({*smaller.unread, *streams})))
