"""Runs a driver until a stop is requested or all inputs have ended; waits while outside systems are unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Literal, TypeVar

from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.engine.source_snapshot import SourceStatus
from joinery_runtime.errors import (
    JoineryError,
    LimitReached,
    PartitionsLost,
    PlanTooLarge,
    StoreUnavailable,
    Unavailable,
)
from joinery_runtime.job.model.wording import counted

# An idle job asks its sources for new records at growing distance: quick answers first, no CPU burned after.
POLL_FIRST_S, POLL_LAST_S = 0.01, 0.25
# A try is one connection: cheap enough for a job to continue within seconds when a system is back.
RECOVER_FIRST_S, RECOVER_LAST_S = 0.5, 4.0
ASK_AFTER_S = 2.0  # a step that takes longer may wait for a system that is unavailable
WAITING_NOTICE = 40  # polls at POLL_LAST_S until a plan that waits for its partitions is worth a word


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """A committed epoch and the `seconds` that it took from plan to commit: `ran` for its tasks, `committing` for the
    commit and the plan of the next epoch."""

    report: EpochReport
    seconds: float
    ran: float = 0.0
    committing: float = 0.0


@dataclass(frozen=True, slots=True)
class Outage:
    """An outside system, unreachable since `since` (seconds since 1970). The next try is after `pause` seconds."""

    error: Unavailable
    since: float
    pause: float


ScalingCause = Literal["asked", "bounds", "load"]


@dataclass(frozen=True, slots=True)
class Scaling:
    """How wide the next epochs are: their shards, and the executors that were asked for (None: Spark decides). `reason`
    is for people; `cause` counts: the resource `asked` for it, the `bounds` of `autoscale` changed, or the `load`."""

    shards: int
    executors: int | None
    reason: str
    cause: ScalingCause


@dataclass(frozen=True, slots=True)
class JobListener:
    """What the loop calls, from its own thread. `waiting` and `recovered` may also come from another thread while the
    loop's thread waits."""

    started: Callable[[Driver], None]  # after recovery
    committed: Callable[[CommittedEpoch], None]
    retrying: Callable[[JoineryError, float], None]  # partitions are unavailable; seconds until the next try
    polled: Callable[[Driver], None] = lambda _: None  # after each call of `Driver.plan`
    warned: Callable[[str], None] = lambda _: None  # a sentence: of hot keys, of inputs that are paused, ...
    waiting: Callable[[Outage], None] = lambda _: None  # before each pause of an outage
    recovered: Callable[[Outage], None] = lambda _: None  # the outage is over
    scaled: Callable[[Scaling], None] = lambda _: None  # from the next epoch on


Result = TypeVar("Result")
MakeDriver = Callable[[], Driver]


class Outages:
    """Waits for outside systems, with back-off and without a limit; `wall` is a clock in seconds since 1970."""

    def __init__(self, listener: JobListener, stop: Event, wall: Callable[[], float] = time.time) -> None:
        self._listener, self._stop, self._wall = listener, stop, wall
        self._pauses = Backoff(RECOVER_FIRST_S, RECOVER_LAST_S)
        self._outage: Outage | None = None

    def wait(self, error: Unavailable) -> None:
        """Pause once; a stop of the job ends the pause early."""
        self._stop.wait(self._record_outage(error).pause)

    def _record_outage(self, error: Unavailable) -> Outage:
        same_system = self._outage is not None and self._outage.error.system == error.system
        since = self._outage.since if same_system and self._outage is not None else self._wall()
        self._outage = Outage(error, since, self._pauses.next())
        self._listener.waiting(self._outage)
        return self._outage

    @contextmanager
    def watching(self, ask: Callable[[], Unavailable | None]) -> Iterator[None]:
        """Report outages during a step that itself waits for outside systems, for minutes: within seconds of their
        start, and when they are over. Another thread calls `ask`, which returns what does not answer."""
        over = Event()
        thread = Thread(target=self._watch_until, args=(ask, over), name="joinery-outages", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch_until(self, ask: Callable[[], Unavailable | None], over: Event) -> None:
        pause, reported = ASK_AFTER_S, False
        while not over.wait(pause):
            error = ask()
            if over.is_set():
                return  # the outcome of the step says more
            if error is not None:
                pause, reported = self._record_outage(error).pause, True
            elif reported:
                self._pauses.reset()
                self._report_recovery()
                pause, reported = ASK_AFTER_S, False

    def over(self) -> None:
        """End the outage: all systems have answered."""
        self._pauses.reset()
        self._report_recovery()

    def recovered(self) -> None:
        """Note that the store has answered; the state of the other systems is unknown."""
        if self._outage is not None and isinstance(self._outage.error, StoreUnavailable):
            self._report_recovery()

    def _report_recovery(self) -> None:
        if self._outage is not None:
            self._listener.recovered(self._outage)
            self._outage = None

    def retry_until_available(self, action: Callable[[], Result]) -> Result | None:
        """Repeat the action until the systems it needs answer, and return its result; None if the stop came first."""
        while not self._stop.is_set():
            try:
                return action()
            except Unavailable as error:
                if self._stop.is_set():
                    raise
                self.wait(error)
        return None


def run_until_stopped(
    make_driver: MakeDriver,
    stop: Event,
    listener: JobListener,
    outages: Outages,
    *,
    settle: bool = False,
) -> None:
    """Return after the epoch during which `stop` was set, or when every input has ended; with `settle`, as soon as no
    plan is pending. After an Unavailable, a new driver recovers as after a crash, however long that takes, unless
    another process has taken the job over meanwhile. Once `stop` is set, nothing is waited for, and an Unavailable is
    raised."""
    first: int | None = None
    previous: int | None = None
    sources = SourceStatus()
    while True:
        driver = make_driver()
        driver.sources = sources  # a driver that replays a plan does not ask the inputs
        try:
            with outages.watching(driver.unavailability):
                driver.recover(previous, first)
            outages.recovered()
            return _DriverLoop(driver, stop, listener, outages).go(settle=settle)
        except PlanTooLarge as error:
            previous, sources = driver.generation, driver.sources
            first = first or previous
            listener.warned(str(error))
        except Unavailable as error:
            previous, sources = driver.generation or None, driver.sources
            first = first or previous
            if stop.is_set():
                raise
            outages.wait(error)


class _DriverLoop:
    """Runs the epochs of one driver, which has recovered."""

    def __init__(self, driver: Driver, stop: Event, listener: JobListener, outages: Outages) -> None:
        self._driver, self._stop, self._listener = driver, stop, listener
        self._outages = outages
        self._polls = Backoff(POLL_FIRST_S, POLL_LAST_S)
        self._paused: frozenset[str] = frozenset()
        self._beyond_end: frozenset[str] = frozenset()  # inputs that were warned of

    def go(self, *, settle: bool) -> None:
        self._listener.started(self._driver)
        while not self._stop.is_set() and not (settle and not self._driver.pending):
            committed = self._run_epoch(settle=settle)
            if committed or not self._driver.pending:  # a plan that was already pending asks no input
                self._outages.over()
            if committed:
                self._polls.reset()
            elif self._driver.sources.finished and not self._driver.pending:
                break
            else:
                self._wait_for_records()
        if self._stop.is_set() and self._driver.pending:
            self._run_epoch(settle=True)  # the stop came during planning; no plan remains
        self._publish_buffered()

    def _publish_buffered(self) -> None:
        """Publish the rows that the outputs hold, by an epoch that reads nothing: nobody knows when the next run will
        be. After a stop that epoch has to succeed at once."""
        while self._driver.unpublished_rows and not self._driver.pending:
            rows, stopped = self._driver.unpublished_rows, self._stop.is_set()
            try:
                if self._run_epoch(settle=True, reads=False):
                    return
            except (Unavailable, LimitReached) as error:
                if not stopped:
                    raise
                self._listener.warned(f"{counted(rows, 'row', 'stay')} held until the job runs again: {error}")
                return
            if stopped:
                return
            self._wait_for_records()

    def _run_epoch(self, *, settle: bool, reads: bool = True) -> bool:
        """Plan and run an epoch if there is work, and return whether one was committed."""
        started = time.monotonic()
        try:
            with self._outages.watching(self._driver.unavailability):
                plan = self._driver.plan(reads=reads)
            self._note_poll()
            if plan is None:
                return False
            planned = time.monotonic()
            with self._outages.watching(self._driver.unavailability):
                outcome = self._driver.run(plan)
                ran = time.monotonic()
                report = self._driver.commit(plan, outcome, last=settle or self._stop.is_set())
                ended = time.monotonic()
        except PartitionsLost as error:
            self._listener.retrying(error, POLL_LAST_S)
            return False
        self._listener.committed(CommittedEpoch(report, ended - started, ran - planned, ended - ran))
        for words in report.warnings:
            self._listener.warned(words)
        return True

    def _note_poll(self) -> None:
        self._listener.polled(self._driver)
        paused = self._driver.paused
        for name in sorted(paused.keys() - self._paused):
            self._listener.warned(f"Input {name} is paused, no more of it is read for now: {paused[name]}")
        for name in sorted(self._paused - paused.keys()):
            self._listener.warned(f"Input {name} is read again")
        self._paused = frozenset(paused)
        for name in sorted(self._driver.beyond_end.keys() - self._beyond_end):
            self._listener.warned(self._driver.beyond_end[name])
        self._beyond_end |= self._driver.beyond_end.keys()

    def _wait_for_records(self) -> None:
        pause = self._polls.next()
        if self._driver.waiting and self._polls.count % WAITING_NOTICE == 0:
            names = ", ".join(sorted({f"{ref.topic}-{ref.partition}" for ref in self._driver.waiting}))
            error = PartitionsLost(
                f"Epoch {self._driver.epoch + 1} waits for partitions",
                facts=f"another member of the consumer group has some of {names}, or the group is rebalancing",
                todo="Find that member with kafka-consumer-groups --describe --members. The epoch runs once the "
                "partitions are assigned to this driver again",
            )
            self._listener.retrying(error, pause)
        self._stop.wait(pause)


class Backoff:
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
