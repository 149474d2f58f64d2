"""The loop around drivers, with scripted drivers and an event that never really waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count, repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from joinery_runtime.engine import loop as loop_module
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.loop import (
    POLL_FIRST_S,
    POLL_LAST_S,
    RECOVER_FIRST_S,
    RECOVER_LAST_S,
    WAITING_NOTICE,
    JobListener,
    Outage,
    Outages,
    run_until_stopped,
)
from joinery_runtime.engine.source_snapshot import SourceStatus
from joinery_runtime.errors import (
    Fenced,
    JoineryError,
    LimitReached,
    OutputUnavailable,
    PartitionsLost,
    SinkError,
    SourceUnavailable,
    StoreUnavailable,
    Unavailable,
)
from joinery_runtime.formats.batch import PartitionRef

AWAY = StoreUnavailable("the store is away")
SYSTEMS = [AWAY, SourceUnavailable("the input's brokers are away"), OutputUnavailable("the output's brokers are away")]
PLAN = object()
REPORT = SimpleNamespace(warnings=("hot",))


class Waits(threading.Event):
    """Keeps what it was asked to wait, in seconds, and returns at once; `at` waits it is set."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._at = at

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        if len(self.seconds) == self._at:
            self.set()
        return self.is_set()


@dataclass
class Scripted:
    """A driver whose `plan` calls do what the script says next: an epoch, nothing (with these inputs paused), or an
    error."""

    script: Iterator[object]
    on_commit: Callable[[], None] = lambda: None
    fails_to_recover: bool = False
    generation: int = 0
    waiting: tuple[PartitionRef, ...] = ()
    pending: bool = False
    epoch: int = 6
    committed: int = 0
    previous: int | None = None
    first: int | None = None
    unpublished_rows: int = 0
    last: list[bool] = field(default_factory=list)
    read: list[bool] = field(default_factory=list)
    paused: Mapping[str, str] = field(default_factory=dict)
    beyond_end: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    sources: SourceStatus = field(default_factory=SourceStatus)

    def unavailability(self) -> Unavailable | None:
        return None

    def recover(self, previous: int | None, first: int | None) -> None:
        self.previous, self.first = previous, first
        if self.fails_to_recover:
            raise AWAY

    def plan(self, *, reads: bool) -> object:
        self.read.append(reads)
        self.sources = SourceStatus(finished=self.finished)
        what = next(self.script)
        if isinstance(what, Exception):
            raise what
        if isinstance(what, dict):
            self.paused = what
            return None
        return what

    def run(self, plan: object) -> object:
        return "outcome"

    def commit(self, plan: object, outcome: object, *, last: bool) -> object:
        assert (plan, outcome) == (PLAN, "outcome")
        self.last.append(last)
        self.unpublished_rows = 0 if last else self.unpublished_rows
        self.on_commit()
        self.committed += 1
        return REPORT


@dataclass
class Heard:
    started: list[Any] = field(default_factory=list)
    committed: list[Any] = field(default_factory=list)
    trouble: list[tuple[JoineryError, float]] = field(default_factory=list)
    noticed: list[str] = field(default_factory=list)
    waiting: list[Outage] = field(default_factory=list)
    back: list[Outage] = field(default_factory=list)

    @property
    def listener(self) -> JobListener:
        return JobListener(
            self.started.append,
            self.committed.append,
            lambda *what: self.trouble.append(what),
            warned=self.noticed.append,
            waiting=self.waiting.append,
            recovered=self.back.append,
        )


def loop(
    drivers: list[Scripted],
    stop: threading.Event,
    *,
    finished: bool = False,
    settle: bool = False,
    wall: Callable[[], float] = lambda: 100.0,
) -> Heard:
    heard = Heard()
    for driver in drivers:
        driver.finished = finished
    supply = iter(drivers)
    make = cast(Callable[[], Driver], lambda: next(supply))
    run_until_stopped(
        make,
        stop,
        heard.listener,
        Outages(heard.listener, stop, wall),
        settle=settle,
    )
    return heard


def test_a_stop_lets_the_running_epoch_finish_and_starts_no_other() -> None:
    stop = Waits()
    driver = Scripted(iter([PLAN, PLAN]), on_commit=stop.set)
    heard = loop([driver], stop)
    assert driver.committed == 1
    assert [progress.report for progress in heard.committed] == [REPORT]
    assert heard.started == [driver]
    assert stop.seconds == []


def test_hot_keys_and_paused_inputs_are_told_once() -> None:
    script: list[object] = [PLAN, {"orders": "full"}, {"orders": "full"}, {"orders": "full", "payments": "too"}, {}]
    heard = loop([Scripted(iter(script))], Waits(at=4))
    assert heard.noticed == [
        "hot",
        "Input orders is paused, no more of it is read for now: full",
        "Input payments is paused, no more of it is read for now: too",
        "Input orders is read again",
        "Input payments is read again",
    ]


def test_what_was_added_to_an_input_that_has_ended_is_told_once() -> None:
    driver = Scripted(iter([None, None, None]), beyond_end={"orders": "more was added"})
    assert loop([driver], Waits(at=3)).noticed == ["more was added"]


def test_it_ends_when_there_is_nothing_to_do_and_all_inputs_have_ended() -> None:
    driver = Scripted(iter([PLAN, PLAN, None]))
    assert len(loop([driver], Waits(), finished=True).committed) == 2


def test_an_idle_job_asks_at_growing_distance_until_it_is_stopped() -> None:
    stop = Waits(at=8)
    loop([Scripted(iter([None] * 8))], stop)
    assert stop.seconds[:3] == [POLL_FIRST_S, 2 * POLL_FIRST_S, 4 * POLL_FIRST_S]
    assert stop.seconds[-1] == POLL_LAST_S


def test_an_idle_job_may_stay_idle_for_long() -> None:
    stop = Waits(at=5_000)
    loop([Scripted(iter([None] * 5_000))], stop)
    assert len(stop.seconds) == 5_000


def test_an_epoch_makes_the_polls_quick_again() -> None:
    stop = Waits(at=4)
    loop([Scripted(iter([None, None, PLAN, None, None]))], stop)
    assert stop.seconds == [POLL_FIRST_S, 2 * POLL_FIRST_S, POLL_FIRST_S, 2 * POLL_FIRST_S]


@pytest.mark.parametrize("unavailable", SYSTEMS)
def test_a_system_that_was_away_gets_a_new_driver_that_recovers(unavailable: Unavailable) -> None:
    stop = Waits()
    first, second = Scripted(iter([PLAN, unavailable])), Scripted(iter([PLAN, None]))
    heard = loop([first, second], stop, finished=True)
    assert heard.started == [first, second]
    assert heard.waiting == heard.back == [Outage(unavailable, 100.0, RECOVER_FIRST_S)]
    assert stop.seconds == [RECOVER_FIRST_S]
    assert (first.committed, second.committed) == (1, 1)


def test_a_driver_that_cannot_even_recover_is_tried_again() -> None:
    heard = loop([Scripted(iter([]), fails_to_recover=True), Scripted(iter([None]))], Waits(), finished=True)
    assert len(heard.waiting) == len(heard.started) == 1


@pytest.mark.parametrize("unavailable", SYSTEMS)
def test_it_waits_for_as_long_as_it_takes_at_growing_distance(unavailable: Unavailable) -> None:
    stop, clock = Waits(), iter(range(1_000))
    drivers = [Scripted(iter([unavailable]), fails_to_recover=unavailable is AWAY) for _ in range(200)]
    heard = loop([*drivers, Scripted(iter([None]))], stop, finished=True, wall=lambda: float(next(clock)))
    assert len(stop.seconds) == 200
    assert stop.seconds[:3] == [RECOVER_FIRST_S, 2 * RECOVER_FIRST_S, 4 * RECOVER_FIRST_S]
    assert stop.seconds[-1] == RECOVER_LAST_S
    assert {outage.since for outage in heard.waiting} == {0.0}
    assert len(heard.back) == 1


class Patient(Scripted):
    """Its epoch takes until the loop has said that the output is back, which is away at first. Questions before the
    epoch have no part in that."""

    def __init__(self, script: Iterator[object], answers: Iterator[Unavailable | None]) -> None:
        super().__init__(script)
        self.answers, self.heard, self.running = answers, Heard(), False

    def unavailability(self) -> Unavailable | None:
        return next(self.answers) if self.running else None

    def run(self, plan: object) -> object:
        self.running = True
        deadline = time.monotonic() + 60
        while not self.heard.back:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert not self.committed
        return super().run(plan)


def test_an_outage_that_an_epoch_waits_out_by_itself_is_told_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_AFTER_S", "RECOVER_FIRST_S", "RECOVER_LAST_S"):
        monkeypatch.setattr(loop_module, name, 0.001)
    unavailable, stop = SYSTEMS[-1], Waits()
    driver = Patient(iter([PLAN, None]), chain((None, unavailable, unavailable), repeat(None)))
    driver.finished = True
    listener, clock = driver.heard.listener, count(100)
    run_until_stopped(lambda: cast(Driver, driver), stop, listener, Outages(listener, stop, lambda: float(next(clock))))
    assert driver.heard.waiting == [Outage(unavailable, 100.0, 0.001)] * 2
    assert driver.heard.back == [Outage(unavailable, 100.0, 0.001)]
    assert driver.committed == 1
    assert not any(thread.name == "joinery-outages" for thread in threading.enumerate())


def test_systems_that_are_away_one_after_the_other_are_told_apart() -> None:
    clock = iter(range(1_000))
    heard = loop(
        [Scripted(iter([unavailable])) for unavailable in (*SYSTEMS, SYSTEMS[-1])] + [Scripted(iter([None]))],
        Waits(),
        finished=True,
        wall=lambda: float(next(clock)),
    )
    assert [(outage.error.system, outage.since) for outage in heard.waiting] == [
        ("store", 0.0),
        ("input", 1.0),
        ("output", 2.0),
        ("output", 2.0),
    ]


def test_a_recovery_ends_the_outage_of_the_store_and_says_nothing_of_others() -> None:
    """A pending plan asks no input: only its commit, or the next plan, tells that all are there."""
    back: list[tuple[str, int]] = []
    for unavailable in SYSTEMS:
        heard = Heard()
        drivers = iter(
            [Scripted(iter([unavailable])), pending := Scripted(iter([PLAN, None]), pending=True, finished=True)]
        )
        stop = Waits()
        listener = replace(heard.listener, recovered=lambda o: back.append((o.error.system, pending.committed)))
        pending.on_commit = lambda: setattr(pending, "pending", False)
        run_until_stopped(
            cast(Callable[[], Driver], lambda: next(drivers)),  # noqa: B023
            stop,
            listener,
            Outages(listener, stop),
        )
    assert back == [("store", 0), ("input", 1), ("output", 1)]


def test_an_error_that_no_waiting_mends_ends_the_job_at_once() -> None:
    stop = Waits()
    with pytest.raises(SinkError, match="too large"):
        loop([Scripted(iter([SinkError("too large")]))], stop)
    assert stop.seconds == []


def test_a_committed_epoch_starts_the_pauses_anew() -> None:
    stop = Waits()
    loop([*(Scripted(iter([PLAN, AWAY])) for _ in range(30)), Scripted(iter([None]))], stop, finished=True)
    assert stop.seconds == [RECOVER_FIRST_S] * 30


def test_what_is_away_at_the_start_is_waited_for_until_it_is_there_or_the_stop_comes() -> None:
    heard, stop = Heard(), Waits()
    tries = iter([*SYSTEMS, None])

    def begin() -> str:
        error = next(tries)
        if error is not None:
            raise error
        return "there"

    assert Outages(heard.listener, stop).retry_until_available(begin) == "there"
    assert len(heard.waiting) == len(stop.seconds) == 3
    stopped = Waits(at=2)
    tries = iter([AWAY, AWAY, AWAY])
    assert Outages(heard.listener, stopped).retry_until_available(begin) is None
    assert len(stopped.seconds) == 2


def test_a_stop_while_the_store_is_away_recovers_once_more_and_starts_no_epoch() -> None:
    second = Scripted(iter([PLAN]))
    heard = loop([Scripted(iter([AWAY])), second], Waits(at=1))
    assert (len(heard.started), second.committed) == (2, 0)


def test_a_store_that_goes_away_after_the_stop_is_not_waited_for() -> None:
    stop = Waits()

    def stop_and_fail() -> None:
        stop.set()
        raise AWAY

    with pytest.raises(StoreUnavailable):
        loop([Scripted(iter([PLAN]), on_commit=stop_and_fail)], stop)
    assert stop.seconds == []


def test_the_epoch_before_a_stop_leaves_no_plan_behind() -> None:
    stop = Waits()
    driver = Scripted(iter([PLAN, PLAN, PLAN]))
    driver.on_commit = lambda: stop.set() if driver.committed == 0 else None
    loop([driver], stop)
    assert driver.last == [False]

    stopping = Waits()
    late = Scripted(iter([PLAN, PLAN]))
    late.run = lambda _: (stopping.set(), "outcome")[1]  # type: ignore[method-assign]
    loop([late], stopping)
    assert late.last == [True]


def test_a_stop_that_comes_while_the_next_epoch_is_planned_leaves_no_plan_behind() -> None:
    stop = Waits()
    driver = Scripted(iter([PLAN, PLAN, PLAN]))

    def planned_meanwhile() -> None:
        stop.set()
        driver.pending = not driver.pending

    driver.on_commit = planned_meanwhile
    loop([driver], stop)
    assert driver.last == [False, True]


def test_a_new_driver_knows_the_generation_of_the_one_before_it() -> None:
    first, second, third = (
        Scripted(iter([PLAN, AWAY]), generation=5),
        Scripted(iter([]), generation=0, fails_to_recover=True),
        Scripted(iter([None]), generation=7),
    )
    loop([first, second, third], Waits(), finished=True)
    assert (first.previous, second.previous, third.previous) == (None, 5, None)
    assert (first.first, second.first, third.first) == (None, 5, 5)


def test_an_epoch_that_lost_its_partitions_is_run_again_by_the_same_driver() -> None:
    driver = Scripted(iter([PLAN, PLAN, None]))

    def lose_once() -> None:
        if not driver.pending:
            driver.pending = True
            raise PartitionsLost("taken")
        driver.pending = False

    driver.on_commit = lose_once
    heard = loop([driver], Waits(), finished=True)
    assert driver.committed == len(heard.committed) == 1
    assert [str(error) for error, _ in heard.trouble] == ["taken"]


def test_a_plan_that_waits_for_its_partitions_keeps_the_job_going_and_says_so() -> None:
    stop = Waits(at=WAITING_NOTICE + 1)
    driver = Scripted(iter([None] * (WAITING_NOTICE + 2)), pending=True, waiting=(PartitionRef("orders", "o", 3),))
    heard = loop([driver], stop, finished=True)
    assert len(heard.trouble) == 1
    assert "Epoch 7 waits for partitions: another member of the consumer group has some of o-3" in str(
        heard.trouble[0][0]
    )


def test_settling_runs_what_is_planned_and_nothing_else() -> None:
    driver = Scripted(iter([PLAN, PLAN]), pending=True)

    def committed() -> None:
        driver.pending = False

    driver.on_commit = committed
    loop([driver], Waits(), settle=True)
    assert driver.last == [True]
    idle = Scripted(iter([PLAN]))
    loop([idle], Waits(), settle=True)
    assert idle.committed == 0


def test_rows_that_are_held_are_shown_when_the_inputs_have_ended() -> None:
    driver = Scripted(iter([PLAN, None, PLAN]), unpublished_rows=3)
    loop([driver], Waits(), finished=True)
    assert (driver.read, driver.last, driver.unpublished_rows) == ([True, True, False], [False, True], 0)


def test_they_are_shown_after_a_stop_and_before_an_edited_job_goes_on() -> None:
    stop = Waits(at=1)
    idle = Scripted(iter([None, PLAN]), unpublished_rows=3)
    loop([idle], stop)
    assert (idle.read, idle.last) == ([True, False], [True])
    settled = Scripted(iter([PLAN]), unpublished_rows=3)
    loop([settled], Waits(), settle=True)
    assert (settled.read, settled.unpublished_rows) == ([False], 0)


def test_the_epoch_of_the_stop_shows_them_itself() -> None:
    stop = Waits()
    driver = Scripted(iter([PLAN]), unpublished_rows=3)
    driver.run = lambda _: (stop.set(), "outcome")[1]  # type: ignore[method-assign]
    loop([driver], stop)
    assert (driver.read, driver.last) == ([True], [True])


@pytest.mark.parametrize("unavailable", [*SYSTEMS, LimitReached("the left side is full")])
def test_what_is_away_at_the_stop_leaves_them_held_and_says_so(unavailable: JoineryError) -> None:
    heard = loop([Scripted(iter([None, unavailable]), unpublished_rows=1_200)], Waits(at=1))
    assert heard.noticed == [f"1,200 rows stay held until the job runs again: {unavailable}"]


def test_what_is_away_when_the_inputs_have_ended_is_waited_for() -> None:
    second = Scripted(iter([None, PLAN]), unpublished_rows=3)
    heard = loop([Scripted(iter([None, AWAY]), unpublished_rows=3), second], Waits(), finished=True)
    assert (second.unpublished_rows, len(heard.waiting)) == (0, 1)


def test_a_driver_that_lost_its_job_stops_for_good() -> None:
    with pytest.raises(Fenced):
        loop([Scripted(iter([PLAN, Fenced("a newer driver owns the job")]))], Waits())
