"""Decides how many executors a job needs, by the arrival rate, the backlog, and the recent cost of a record.

The load is the number of executors that would be busy all of the time: records per second times the executor-seconds
that a record costs. The records per second are the arrival rate, plus the rate that works off the backlog within
`targetLag`. Flink's autoscaler has the same two terms (target utilisation, catch-up duration), per vertex.

Each epoch also takes a time that does not depend on its records. That time says nothing about the load, varies, and
does not shrink with more executors; in an epoch of few records it is nearly all of the time. So an epoch that reads the
whole backlog gives only two bounds for the cost of its records. The upper bound is the time of the epoch. The lower
bound is the time by which it exceeds the slowest epoch with at most half as many records; it is unknown if all epochs
are of one size. The estimate changes only when it is outside of these bounds. An epoch that leaves records behind is as
large as an epoch may be, and its time counts in full.

As with Kubernetes' HorizontalPodAutoscaler, a job scales up when every moment of a window asked for more executors, and
down to the highest number that any moment of a longer window asked for.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median_high

from joinery_runtime.job.model.pods import Autoscale

_RATE_SECONDS = 30.0  # over which arrivals are counted
_EPOCHS = 5  # of whose lower bounds the median counts, so that one slow epoch changes nothing
_BEHIND = 0.1  # of its records, so many still waited after an epoch that could have read more
_SMALLER = 10  # epochs with fewer records; the slowest of them tells what an epoch may take beside its records
_DOUBT = 3.0  # where one smaller epoch is known, another may take longer by so many times what it took beside records
_TOLERANCE = 0.1  # of the load, above what executors can do: as wide from below as from above


@dataclass(frozen=True, slots=True)
class Load:
    """Records per second that arrive, records that wait, executor-seconds per record, and how busy the executors that
    run are with what arrives (1: all of the time). None: not known yet."""

    arriving: float
    waiting: int
    cost: float | None
    busy: float | None

    def __str__(self) -> str:
        words = f"{self.arriving:,.0f} records/s arrive and {self.waiting:,} wait"
        return words if not self.cost else f"{words}; an executor can read {1 / self.cost:,.0f}/s"


@dataclass(slots=True)
class _Second:
    """The least and the most executors that were needed from `at` to `until`, a second at most. Small epochs
    follow each other many times a second, and each looks through the windows, of minutes."""

    at: float
    until: float
    least: int
    most: int


class Autoscaler:
    """`executors` are to run, as decided last, because of `reason` (`by_load`, or else by bounds that have changed).
    Times are seconds of a clock that never goes back."""

    def __init__(self, executors: int) -> None:
        self.executors, self.reason, self.by_load = executors, "", True
        self._read = 0
        self._cost: float | None = None
        self._least: deque[float] = deque(maxlen=_EPOCHS)
        # The newest epochs by size, in powers of two: records of one executor, seconds.
        self._sizes: dict[int, deque[tuple[float, float]]] = {}
        self._arrived: deque[tuple[float, int]] = deque()  # time, records that had arrived by then
        self._demand: deque[_Second] = deque()
        self._waiting = 0

    def epoch(self, records: int, seconds: float, executors: int) -> None:
        """Note that an epoch was committed after so many seconds, on so many executors."""
        self._waiting = max(0, self._waiting - records)
        self._read += records
        if not records or not executors:
            return
        records_each = records / min(executors, records)  # a record is one executor's
        behind = self._waiting > _BEHIND * records
        least = seconds / records_each if behind else self._beyond_smaller(records_each, seconds)
        cost = self._cost or 0.0
        if least is not None:
            self._least.append(least)
            cost = max(cost, median_high(self._least))
        self._cost = min(cost, seconds / records_each)
        self._sizes.setdefault(math.frexp(records_each)[1], deque(maxlen=_SMALLER)).append((records_each, seconds))

    def _beyond_smaller(self, records: float, seconds: float) -> float | None:
        """Return the cost of a record by how much longer an epoch took than the slowest of those that come next to half
        of its size; None if no such epoch is known. The fewer are known, the slower yet another one may be."""
        smaller: list[tuple[float, float]] = []
        for size in sorted(self._sizes, reverse=True):
            smaller += (epoch for epoch in self._sizes[size] if epoch[0] <= records / 2)
            if len(smaller) >= _SMALLER:
                break
        if not smaller:
            return None
        smaller.sort(key=lambda epoch: epoch[1])
        enough = len(smaller) >= _SMALLER
        other_records, other_seconds = smaller[-2 if enough else -1]  # one that was slow hides nothing
        beside = min(max(duration - size * (self._cost or 0.0), 0.0) for size, duration in smaller)
        doubt = 0.0 if enough else beside * _DOUBT / len(smaller)
        return (seconds - other_seconds - doubt) / (records - other_records)

    def waits(self, records: int) -> None:
        """So many are there and not read, of inputs that may be read."""
        self._waiting = records

    def decide(self, now: float, executors: int, wish: Autoscale) -> None:
        """Now, while so many executors run."""
        self._arrived.append((now, self._read + self._waiting))
        while len(self._arrived) > 2 and self._arrived[1][0] <= now - _RATE_SECONDS:
            self._arrived.popleft()
        within = min(max(self.executors, wish.min_instances), wish.max_instances)
        load = self.load(executors)
        if within != self.executors:
            self._set_target(within, load, by_load=False)
            return
        if load.cost is None or not executors:
            return
        for_arrivals = load.arriving * load.cost / (wish.target_busy / 100)
        to_catch_up = (load.arriving + load.waiting * 1000 / wish.target_lag) * load.cost
        ideal = max(for_arrivals, to_catch_up) / (1 + _TOLERANCE)
        # Fewer than arrivals keep busy all of the time would fall behind: what waits then asks for more of them again.
        needed = math.ceil(max(ideal, load.arriving * load.cost))
        needed = min(max(needed, wish.min_instances), wish.max_instances)
        if self._demand and now - self._demand[-1].at < 1:
            newest = self._demand[-1]
            newest.until, newest.least, newest.most = now, min(newest.least, needed), max(newest.most, needed)
        else:
            self._demand.append(_Second(now, now, needed, needed))
        self._by_windows(now, load, wish.up_after / 1000, wish.down_after / 1000)

    def _by_windows(self, now: float, load: Load, up: float, down: float) -> None:
        since = self._demand[0].at
        while self._demand[0].until < now - max(up, down):
            self._demand.popleft()
        # Where a window begins within a second, all of that counts.
        least = min(second.least for second in self._demand if second.until >= now - up)
        most = max(second.most for second in self._demand if second.until >= now - down)
        if least > self.executors and now - since >= up:
            self._set_target(least, load, by_load=True)
        elif most < self.executors and now - since >= down:
            # Epochs that are all alike show no cost, of a heavy load neither: those of half as many executors may.
            fewest = 1 if self._least or not load.arriving else self.executors // 2
            self._set_target(max(most, fewest), load, by_load=True)

    def load(self, executors: int) -> Load:
        """Now, with so many executors that run."""
        (first, before), (last, after) = self._arrived[0], self._arrived[-1]
        arriving = (after - before) / (last - first) if last > first else 0.0
        cost = self._cost
        busy = None if cost is None or not executors else arriving * cost / executors
        return Load(arriving, self._waiting, cost, busy)

    def _set_target(self, executors: int, load: Load, *, by_load: bool) -> None:
        self.executors, self.reason, self.by_load = executors, str(load), by_load
        self._demand.clear()
