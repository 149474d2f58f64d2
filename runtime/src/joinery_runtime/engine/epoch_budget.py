"""Decides how many records and bytes an epoch reads of each partition, over all inputs.

Without alignment, one topic's backlog fills the state while the rows that it waits for are still unread. So `allocate`
aims all partitions at one common event time: the highest one that the epoch's budget can pay for, given how many
records each partition holds per millisecond of event time (measured on the epochs before). A partition that is ahead of
the target waits.

Record sizes are learned from the epochs that have read an input. A plan fixes ranges before they are read, so it may
hold more bytes than estimated: a reader stops at `allowed_bytes`, and the next recovery takes a `smaller_plan`. Only
the plan depends on all this; rows and results never do (rule T9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.formats.batch import PartitionRef

# While the density of some partition is unknown, epochs stay small so that a wrong guess cannot fill the state.
PROBE_RECORDS = 20_000

UNKNOWN_BYTES = 1024.0
"""The assumed size of a record while no record of its input has been read."""

SMALL_RECORDS, SMALL_BYTES = 4_096, 1 << 20
"""What several processes may all read of a small epoch. Reading it takes each of them some milliseconds, and a stage of
Spark that exchanges its rows takes some tens."""

_TOO_LARGE = 1.25
"""A plan may exceed its budget by this factor: sizes change from epoch to epoch, and each new partition is read."""

P = TypeVar("P")
Count = Callable[[Range, float], int]
"""`SourcePlanner.records` of a range's input."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What an epoch may read from all inputs together: `records`, and `bytes` of undecoded records. What is
    `per_process` grows with the processes that share an epoch's rows; then `process_budget` is the budget of one, which
    no partition exceeds: the rows of a key are mostly in one partition, and the key may become hot in any epoch."""

    records: int
    bytes: int
    records_per_process: bool = False
    bytes_per_process: bool = False
    process_budget: Budget | None = None

    def for_processes(self, processes: float) -> Budget:
        """Return the budget of an epoch whose rows fill as many processes."""
        return replace(
            self,
            records=int(self.records * processes) if self.records_per_process else self.records,
            bytes=int(self.bytes * processes) if self.bytes_per_process else self.bytes,
            process_budget=self if processes > 1 else None,
        )

    @property
    def largest_part(self) -> Budget:
        """The most that an epoch may read of one partition."""
        return self.process_budget or self

    def allows(self, records: np.ndarray, sizes: np.ndarray) -> bool:
        """Return whether an epoch may read as many records of each partition; `sizes` are their bytes."""
        most = self.largest_part
        return bool(
            (records.sum() <= self.records and sizes.sum() <= self.bytes)
            and (records.max() <= most.records and sizes.max() <= most.bytes)
        )


class RowSpread:
    """How many processes the rows of the newest epochs filled.

    The memory that an epoch takes is that of the process with the most rows. So an epoch may read a budget for each
    process only as far as the processes share its rows: with one hot key, or in a join on time alone, whose rows go to
    every shard, more processes have no room for more rows. An epoch is evidence for one of at most twice its size, so
    the epoch after a quiet time reads one budget, however many keys its few rows had.
    """

    EPOCHS = 8  # of which the fullest process counts
    EVIDENCE = 0.25  # of a budget: the rows of a smaller epoch say nothing of how a large one is spread

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._newest = 0.0  # budgets that the newest epoch has read
        self._epochs: deque[tuple[int, list[list[int]]]] = deque(maxlen=self.EPOCHS)  # rows read; of each step by shard

    def observe(
        self, records: int, size: int, rows_read: int, shards: int, rows: Mapping[tuple[int, int], int]
    ) -> None:
        """Take an epoch that has read `records` of `size` bytes, and `rows_read` of them that are no dead letters;
        `rows` are those that each step had in each shard."""
        self._newest = max(records / self._budget.records, size / self._budget.bytes)
        if self._newest < self.EVIDENCE:
            return
        by_step: dict[int, list[int]] = {}
        for (step, shard), count in rows.items():
            by_step.setdefault(step, [0] * shards)[shard] += count
        self._epochs.append((rows_read, list(by_step.values())))

    def filled_processes(self, processes: int) -> float:
        """Return how many of the processes the next epoch's rows fill, from 1 to `processes`."""
        if processes == 1 or 2 * self._newest <= 1 or not self._epochs:
            return 1.0
        filled = list[float]()
        for rows_read, by_step in self._epochs:
            fullest = 0  # rows of the process that has the most of them; neighbouring shards share a process
            for rows in by_step:
                totals = [0] * processes
                for shard, count in enumerate(rows):
                    totals[shard * processes // len(rows)] += count
                fullest = max(fullest, *totals)
            filled.append(rows_read / (fullest or 1))
        return min(processes, *(max(1.0, number) for number in (*filled, 2 * self._newest)))


@dataclass(frozen=True, slots=True)
class Backlog(Generic[P]):
    """Unread records of one partition. `highest` is the highest event time read from it (ms), `density` its records
    per millisecond of event time; None: not known yet. `record_bytes` is the estimated size of a record."""

    partition: P
    records: int
    highest: int | None
    density: float | None
    record_bytes: float


def allocate(backlogs: Sequence[Backlog[P]], budget: Budget) -> dict[P, int]:
    """Return the records to take per partition: all of them if the budget allows, else aligned in event time. At least
    one partition with a backlog gets some.

    Partitions of unknown density share a probe, which is at most a quarter of the budget when others are known: a
    partition whose records cannot be read stays unknown for ever and must not hold up the others.
    """
    waiting = [b for b in backlogs if b.records > 0]
    records_waiting = np.array([b.records for b in waiting])
    sizes_waiting = np.array([b.records * b.record_bytes for b in waiting])
    if not waiting or (records_waiting.sum() <= PROBE_RECORDS and budget.allows(records_waiting, sizes_waiting)):
        return {b.partition: b.records for b in waiting}
    measured = [b for b in waiting if b.highest is not None and b.density is not None]
    unmeasured = [b for b in waiting if b.highest is None or b.density is None]
    shares = max(1, len(unmeasured)) * (4 if measured else 1)
    records = min(PROBE_RECORDS * (4 if measured else 1), budget.records) // shares
    size = min(budget.bytes / shares, budget.largest_part.bytes)
    probe = {b.partition: min(b.records, max(1, min(records, int(size / b.record_bytes)))) for b in unmeasured}
    probed = sum(probe[b.partition] * b.record_bytes for b in unmeasured)
    rest = replace(
        budget, records=max(1, budget.records - sum(probe.values())), bytes=max(1, int(budget.bytes - probed))
    )
    return probe | (_align_by_time(measured, rest) if measured else {})


def _align_by_time(backlogs: Sequence[Backlog[P]], budget: Budget) -> dict[P, int]:
    """Return records to read per partition, for partitions whose density is known."""
    records = np.array([b.records for b in backlogs])
    highest, density, size = np.array([(b.highest, b.density, b.record_bytes) for b in backlogs], dtype=float).T

    def records_until(ts: float) -> np.ndarray:
        """Return records up to this event time, by the measured densities."""
        expected = np.maximum(0, np.round((ts - highest) * density))
        return np.asarray(np.minimum(records, expected).astype(np.int64))

    low, high = highest.min(), (highest + records / density).max() + 1.0
    if budget.allows(records, records * size):
        return {b.partition: b.records for b in backlogs}
    for _ in range(64):
        middle = (low + high) / 2
        until_middle = records_until(middle)
        low, high = (middle, high) if budget.allows(until_middle, until_middle * size) else (low, middle)
    # Many partitions may have their next record at the same event time: take as many of these as the budget allows.
    chosen, next_chosen = records_until(low), records_until(high)
    for number in np.flatnonzero(next_chosen > chosen):
        before, chosen[number] = chosen[number], next_chosen[number]
        if not budget.allows(chosen, chosen * size):
            chosen[number] = before
    if not chosen.any():
        chosen[int(np.argmax(next_chosen > 0))] = 1
    return {b.partition: int(count) for b, count in zip(backlogs, chosen, strict=True) if count}


class EventTimeRates(Generic[P]):
    """Records per millisecond of event time, per partition, as a moving average over epochs."""

    SMOOTHING = 0.5
    LOWEST = 1e-6  # one record in about 12 days: keeps the arithmetic finite for a partition that hardly moves

    def __init__(self) -> None:
        self._rates: dict[P, float] = {}

    def get(self, partition: P) -> float | None:
        return self._rates.get(partition)

    def observe(self, partition: P, rows: int, before: int | None, lowest: int | None, highest: int | None) -> None:
        """Take an epoch that read `rows` records with these event times; `before` is the highest one known until
        then."""
        start = before if before is not None else lowest
        if start is None or highest is None or not rows:
            return
        density = max(self.LOWEST, rows / max(1, highest - start))
        old = self._rates.get(partition, density)
        self._rates[partition] = old + self.SMOOTHING * (density - old)


class RecordSizes:
    """Bytes per record, by partition: a mean over epochs that rises at once and falls slowly, because a plan that is
    too large costs more than one that is too small."""

    FALLING = 0.25

    def __init__(self) -> None:
        self._means: dict[PartitionRef, float] = {}

    def get(self, partition: PartitionRef) -> float | None:
        """Return the bytes per record of a partition. A partition that was not read yet gets the largest size of its
        input; None if nothing of the input was read."""
        mean = self._means.get(partition)
        if mean is not None:
            return mean
        return max((size for ref, size in self._means.items() if ref.input == partition.input), default=None)

    def observe(self, partition: PartitionRef, records: int, size: int) -> None:
        """Take a read of `records` that have `size` bytes in total."""
        if records:
            mean = size / records
            old = self._means.get(partition, mean)
            self._means[partition] = max(mean, old + self.FALLING * (mean - old))


def allowed_bytes(ranges: Sequence[Range], sizes: RecordSizes, budget: Budget, count: Count) -> dict[PartitionRef, int]:
    """Return how many bytes reading each range may yield: twice the budget in total, half of it shared out by the
    estimated sizes of the ranges, half of it evenly, and at most twice what a partition may give. A single record is
    never too large."""
    expected = {r.partition: _expected_size(r, sizes, count) for r in ranges if r.start < r.end_exclusive}
    if sum(records for records, _ in expected.values()) <= 1:
        return {}
    total = sum(size for _, size in expected.values())
    most = 2 * budget.largest_part.bytes
    return {
        ref: min(most, int(budget.bytes * (size / total + 1 / len(expected)))) for ref, (_, size) in expected.items()
    }


def is_small(ranges: Sequence[Range], sizes: RecordSizes, count: Count) -> bool:
    """Say whether reading these ranges costs so little that several processes may each read all of them."""
    expected = [_expected_size(planned, sizes, count) for planned in ranges]
    records, size = sum(number for number, _ in expected), sum(range_bytes for _, range_bytes in expected)
    return records <= SMALL_RECORDS and size <= SMALL_BYTES


def _expected_size(planned: Range, sizes: RecordSizes, count: Count) -> tuple[int, float]:
    size = sizes.get(planned.partition) or UNKNOWN_BYTES
    records = count(planned, size)
    return records, records * size


def smaller_plan(
    plan: EpochPlan, sizes: RecordSizes, budget: Budget, count: Count, cut: Callable[[Range, int], Range]
) -> EpochPlan | None:
    """Return the same epoch with shorter ranges, all shortened by the same factor; None if the plan is within the
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
    ranges = list[Range]()
    for planned in plan.ranges:
        limit = limits[planned.partition]
        if limit >= records[planned.partition]:
            ranges.append(planned)
        else:
            ranges.append(cut(planned, limit) if limit else replace(planned, end_exclusive=planned.start))
    shortened = {new.partition.input for new, old in zip(ranges, plan.ranges, strict=True) if new != old}
    if not shortened:
        return None
    # If this epoch no longer reads a table to its first end, the next ones continue with it (A4).
    return replace(plan, ranges=tuple(ranges), tables_read=tuple(t for t in plan.tables_read if t not in shortened))
