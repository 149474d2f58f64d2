"""Runs a driver until it is told to stop or all inputs have ended; comes back from a state store that was away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.errors import StoreUnavailable

# An idle job asks its sources for new records at growing distance: quick answers first, no CPU burned after.
POLL_FIRST_S, POLL_LAST_S = 0.01, 0.25
RECOVER_FIRST_S, RECOVER_LAST_S, RECOVER_TRIES = 0.5, 30.0, 8


@dataclass(frozen=True, slots=True)
class Progress:
    """A committed epoch and how long it took, from plan to commit, in seconds."""

    report: EpochReport
    seconds: float


@dataclass(frozen=True, slots=True)
class Listener:
    """What a caller hears: `started(driver)` after recovery, `committed`, `trouble` when the store is away."""

    started: Callable[[Driver], None]
    committed: Callable[[Progress], None]
    trouble: Callable[[StoreUnavailable, float], None]


def run_until_stopped(make_driver: Callable[[], Driver], planner: Planner, stop: Event, listener: Listener) -> None:
    """Returns after the epoch during which `stop` was set, or when every input has ended. A StoreUnavailable makes a
    new driver that recovers as after a crash; it is raised after RECOVER_TRIES tries without a committed epoch."""
    waits = _Backoff(RECOVER_FIRST_S, RECOVER_LAST_S)
    while True:
        try:
            return _run(make_driver(), planner, stop, listener, waits)
        except StoreUnavailable as error:
            if waits.count >= RECOVER_TRIES or stop.is_set():
                raise
            pause = waits.next()
            listener.trouble(error, pause)
            stop.wait(pause)


def _run(driver: Driver, planner: Planner, stop: Event, listener: Listener, recoveries: _Backoff) -> None:
    driver.recover()
    listener.started(driver)
    polls = _Backoff(POLL_FIRST_S, POLL_LAST_S)
    while not stop.is_set():
        started = time.monotonic()
        plan = driver.plan()
        if plan is not None:
            report = driver.commit(plan, driver.run(plan))
            listener.committed(Progress(report, time.monotonic() - started))
            polls.reset()
            recoveries.reset()
        elif planner.finished:
            return
        else:
            stop.wait(polls.next())


class _Backoff:
    """Doubling waits in seconds; `count` says how many there have been since the last reset."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last, self.count = first, last, 0
        self._next = first

    def next(self) -> float:
        wait = self._next
        self.count += 1
        self._next = min(self._last, 2 * wait)
        return wait

    def reset(self) -> None:
        self.count, self._next = 0, self._first
