"""How many executors a job needs, by what arrives, what waits, and what a record has cost lately.

The load is how many executors would be busy all of the time: the records of a second times the executor-seconds that a
record costs. A second's records are those that arrive, and as many of those that wait as bring the backlog down within
`targetLag`. Flink's autoscaler has the same two terms (target utilisation, catch-up duration), per vertex.

An epoch takes time beside its records, which says nothing of the load: with few records it is nearly all of it. So an
epoch that reads all that waits gives two bounds for the cost of a record: its time beyond that of the shortest epoch,
and all of its time. The cost stays as it is while it is between them. Epochs that leave records behind are as large
as they may be, and cost what they cost.

As with Kubernetes' HorizontalPodAutoscaler, a job becomes wider when all of a window asked for it, and narrower to the
most that any moment of a longer window asked for.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from joinery_runtime.job.model.pods import Autoscale

_RATE_SECONDS = 30.0  # over which arrivals are counted
_EPOCHS = 5  # of whose lower bounds the median counts, so that one slow epoch changes nothing
_LEFT = 0.1  # of its records, so many were left behind by an epoch that could have read more
_FORGETS = 1.001  # by so much the shortest epoch becomes longer with each one
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
    """`executors` are to run, as decided last, because of `why` (`by_load`, or else by bounds that have changed). Times
    are seconds of a clock that never goes back."""

    def __init__(self, executors: int) -> None:
        self.executors, self.why, self.by_load = executors, "", True
        self._read = 0
        self._cost: float | None = None
        self._least: deque[float] = deque(maxlen=_EPOCHS)
        self._shortest = math.inf  # epoch, in seconds
        self._arrived: deque[tuple[float, int]] = deque()  # time, records that had arrived by then
        self._wanted: deque[_Second] = deque()
        self._waiting = 0

    def epoch(self, records: int, seconds: float, executors: int) -> None:
        """An epoch was committed after so many seconds, on so many executors."""
        self._waiting = max(0, self._waiting - records)
        self._read += records
        if not records or not executors:
            return
        self._shortest = min(seconds, self._shortest * _FORGETS)
        each = executors / records
        beside = 0.0 if self._waiting > _LEFT * records else self._shortest
        self._least.append((seconds - beside) * each)
        self._cost = min(max(self._cost or 0.0, median(self._least)), seconds * each)

    def waits(self, records: int) -> None:
        """So many are there and not read, of inputs that may be read."""
        self._waiting = records

    def decide(self, now: float, executors: int, wish: Autoscale) -> None:
        """Now, while so many executors run."""
        self._remember(now)
        within = min(max(self.executors, wish.min_instances), wish.max_instances)
        load = self.load(executors)
        if within != self.executors:
            self._become(within, load, by_load=False)
        elif load.cost is not None and executors:
            self._want(now, self._needed(load, wish))
            self._by_windows(now, load, wish.up_after / 1000, wish.down_after / 1000)

    def _want(self, now: float, executors: int) -> None:
        if self._wanted and now - self._wanted[-1].at < 1:
            same = self._wanted[-1]
            same.until, same.least, same.most = now, min(same.least, executors), max(same.most, executors)
        else:
            self._wanted.append(_Second(now, now, executors, executors))

    def _by_windows(self, now: float, load: Load, up: float, down: float) -> None:
        since = self._wanted[0].at
        while self._wanted[0].until < now - max(up, down):
            self._wanted.popleft()
        # Where a window begins within a second, all of that counts.
        least = min(second.least for second in self._wanted if second.until >= now - up)
        most = max(second.most for second in self._wanted if second.until >= now - down)
        if least > self.executors and now - since >= up:
            self._become(least, load, by_load=True)
        elif most < self.executors and now - since >= down:
            self._become(most, load, by_load=True)

    def load(self, executors: int) -> Load:
        """Now, with so many executors that run."""
        (first, before), (last, after) = self._arrived[0], self._arrived[-1]
        arriving = (after - before) / (last - first) if last > first else 0.0
        cost = self._cost
        busy = None if cost is None or not executors else arriving * cost / executors
        return Load(arriving, self._waiting, cost, busy)

    def _remember(self, now: float) -> None:
        self._arrived.append((now, self._read + self._waiting))
        while len(self._arrived) > 2 and self._arrived[1][0] <= now - _RATE_SECONDS:
            self._arrived.popleft()

    def _needed(self, load: Load, wish: Autoscale) -> int:
        assert load.cost is not None, "it is known"
        for_arrivals = load.arriving * load.cost / (wish.target_busy / 100)
        to_catch_up = (load.arriving + load.waiting * 1000 / wish.target_lag) * load.cost
        wanted = max(for_arrivals, to_catch_up) / (1 + _TOLERANCE)
        # Fewer than arrivals keep busy all of the time would fall behind: what waits then asks for more of them again.
        needed = math.ceil(max(wanted, load.arriving * load.cost))
        return min(max(needed, wish.min_instances), wish.max_instances)

    def _become(self, executors: int, load: Load, *, by_load: bool) -> None:
        self.executors, self.why, self.by_load = executors, str(load), by_load
        self._wanted.clear()
