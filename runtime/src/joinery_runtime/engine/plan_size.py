"""Estimates how large a plan is, in records and bytes, and makes a smaller plan if it is too large.

Record sizes are learned from the epochs that have read an input. A plan fixes ranges before they are read, so it may
hold more bytes than estimated: a reader stops at `allowed_bytes`, and the next recovery shortens the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.alignment import Budget
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.formats.batch import PartitionRef

UNKNOWN_BYTES = 1024.0
"""The assumed size of a record while no record of its input has been read."""

_TOO_LARGE = 1.25
"""A plan may exceed its budget by this factor: sizes change from epoch to epoch, and each new partition is read."""


class RecordSizes:
    """Bytes per record, by partition: a mean over epochs that rises at once and falls slowly, because a plan that is
    too large costs more than one that is too small."""

    FALLING = 0.25

    def __init__(self) -> None:
        self._means: dict[PartitionRef, float] = {}

    def get(self, partition: PartitionRef) -> float | None:
        """The bytes per record of a partition. A partition that was not read yet gets the largest size of its input;
        None if nothing of the input was read."""
        mean = self._means.get(partition)
        if mean is not None:
            return mean
        return max((size for ref, size in self._means.items() if ref.input == partition.input), default=None)

    def observe(self, partition: PartitionRef, records: int, size: int) -> None:
        """Takes a read of `records` that have `size` bytes in total."""
        if records:
            mean = size / records
            old = self._means.get(partition, mean)
            self._means[partition] = max(mean, old + self.FALLING * (mean - old))


Count = Callable[[Range, float], int]
"""`SourcePlanner.records` of a range's input."""


def allowed_bytes(ranges: Sequence[Range], sizes: RecordSizes, budget: Budget, count: Count) -> dict[PartitionRef, int]:
    """How many bytes reading each range may yield: twice the budget in total, half of it shared out by the estimated
    sizes of the ranges, half of it evenly. A single record is never too large."""
    expected = {r.partition: _expected_size(r, sizes, count) for r in ranges if r.start < r.end_exclusive}
    if sum(records for records, _ in expected.values()) <= 1:
        return {}
    total = sum(size for _, size in expected.values())
    return {ref: int(budget.bytes * (size / total + 1 / len(expected))) for ref, (_, size) in expected.items()}


def _expected_size(planned: Range, sizes: RecordSizes, count: Count) -> tuple[int, float]:
    size = sizes.get(planned.partition) or UNKNOWN_BYTES
    records = count(planned, size)
    return records, records * size


def smaller_plan(
    plan: EpochPlan, sizes: RecordSizes, budget: Budget, count: Count, cut: Callable[[Range, int], Range]
) -> EpochPlan | None:
    """Returns the same epoch with shorter ranges, all shortened by the same factor; None if the plan is within the
    budget.

    `cut` shortens a range to about a number of records. A range of unknown record size counts by its records alone.
    """
    records = {r.partition: count(r, sizes.get(r.partition) or UNKNOWN_BYTES) for r in plan.ranges}
    weights = {ref: records[ref] * (sizes.get(ref) or 0.0) for ref in records}
    over = max(sum(records.values()) / budget.records, sum(weights.values()) / budget.bytes)
    if over <= _TOO_LARGE or sum(records.values()) <= 1:
        return None
    limits = {ref: int(number / over) for ref, number in records.items()}
    if not any(limits.values()):
        limits[next(ref for ref, number in records.items() if number)] = 1
    ranges = tuple(_cut_range(r, limits[r.partition], records[r.partition], cut) for r in plan.ranges)
    shortened = {new.partition.input for new, old in zip(ranges, plan.ranges, strict=True) if new != old}
    if not shortened:
        return None
    # If this epoch no longer reads a table to its first end, the next ones continue with it (A4).
    return replace(plan, ranges=ranges, tables_read=tuple(t for t in plan.tables_read if t not in shortened))


def _cut_range(planned: Range, limit: int, records: int, cut: Callable[[Range, int], Range]) -> Range:
    if limit >= records:
        return planned
    return cut(planned, limit) if limit else replace(planned, end_exclusive=planned.start)
