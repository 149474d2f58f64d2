"""How many records each partition gives to an epoch: event-time alignment of all partitions of all inputs.

Without it one topic's backlog fills the state while the rows that it waits for are still unread. The planner aims all
partitions at one common event time: the highest one that the epoch's budget can pay for, given how many records each
partition holds per millisecond of event time (measured on the epochs before). A partition that is ahead of the target
waits. Only the plan depends on this; rows and results never do (rule T9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

# While the density of some partition is not known yet, epochs stay small so that one guess cannot fill the state.
PROBE_RECORDS = 20_000

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Backlog(Generic[P]):
    """Unread records of one partition. `highest` is the highest event time read from it (ms), `density` its records
    per millisecond of event time; None: not known yet."""

    partition: P
    records: int
    highest: int | None
    density: float | None


def allocate(backlogs: Sequence[Backlog[P]], budget: int) -> dict[P, int]:
    """Records to take per partition: all of them if the budget allows, else aligned in event time; the sum may differ
    from the budget by rounding. At least one partition with a backlog gets some.

    Partitions of unknown density share a probe, at most a quarter of the budget when others are known: one whose
    records cannot be read stays unknown for ever and must not hold the others up.
    """
    waiting = [b for b in backlogs if b.records > 0]
    if sum(b.records for b in waiting) <= min(budget, PROBE_RECORDS):
        return {b.partition: b.records for b in waiting}
    known = [_MeasuredBacklog(b.partition, b.records, b.highest, b.density) for b in waiting
             if b.highest is not None and b.density is not None]  # fmt: skip
    unknown = [b for b in waiting if b.highest is None or b.density is None]
    probed = min(budget if not known else max(1, budget // 4), PROBE_RECORDS)
    share = max(1, probed // max(1, len(unknown)))
    probe = {b.partition: min(b.records, share) for b in unknown}
    rest = max(1, budget - sum(probe.values()))
    return probe | (_aligned(known, rest) if known else {})


@dataclass(frozen=True, slots=True)
class _MeasuredBacklog(Generic[P]):
    partition: P
    records: int
    highest: int
    density: float

    def until(self, ts: float) -> int:
        """Records up to the event time `ts`, by the measured density."""
        return min(self.records, max(0, round((ts - self.highest) * self.density)))


def _aligned(lines: Sequence[_MeasuredBacklog[P]], budget: int) -> dict[P, int]:
    low = float(min(line.highest for line in lines))
    high = max(line.highest + line.records / line.density for line in lines) + 1.0
    if sum(line.until(high) for line in lines) <= budget:
        return {line.partition: line.records for line in lines}
    for _ in range(64):
        middle = (low + high) / 2
        if sum(line.until(middle) for line in lines) > budget:
            high = middle
        else:
            low = middle
    taken = {line.partition: line.until(high) for line in lines}
    return {partition: count for partition, count in taken.items() if count}


class Densities(Generic[P]):
    """Records per millisecond of event time, per partition, as a moving average over epochs."""

    SMOOTHING = 0.5
    LOWEST = 1e-6  # one record in about 12 days: keeps the arithmetic finite for a partition that hardly moves

    def __init__(self) -> None:
        self._known: dict[P, float] = {}

    def get(self, partition: P) -> float | None:
        return self._known.get(partition)

    def observe(self, partition: P, rows: int, before: int | None, lowest: int | None, highest: int | None) -> None:
        """After an epoch that read `rows` records with these event times; `before` is the highest one known then."""
        start = before if before is not None else lowest
        if start is None or highest is None or not rows:
            return
        density = max(self.LOWEST, rows / max(1, highest - start))
        old = self._known.get(partition, density)
        self._known[partition] = old + self.SMOOTHING * (density - old)
