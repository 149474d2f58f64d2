"""How wide an autoscaled job becomes: a job of known cost under a load, second by second."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import pytest

from budget import rest_in_search
from joinery_runtime.engine.autoscale import Autoscaler
from joinery_runtime.job.model.pods import Autoscale

WISH = Autoscale(min_instances=1, max_instances=8)
COST = 1 / 10_000  # executor-seconds per record


@dataclass
class Job:
    """One that reads all that waits with each epoch, `limit` records at most."""

    wish: Autoscale = WISH
    beside: float = 0.1  # seconds of an epoch, beside those of its records
    noise: float = 0.0  # of that time: from none to so many times as much comes on top
    limit: int = 500_000
    start_seconds: float = 10.0  # until executors that were asked for run
    now: float = 0.0
    waiting: float = 0.0
    running: int = 1
    coming: list[tuple[float, int]] = field(default_factory=list)
    decisions: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scaler = Autoscaler(self.running)
        self.chance = random.Random(1)

    def under(self, rate: float, seconds: float) -> list[int]:
        """The numbers of executors that it asked for in that time."""
        until, before = self.now + seconds, len(self.decisions)
        while self.now < until:
            self.turn(rate)
        return [executors for _, executors in self.decisions[before:]]

    def turn(self, rate: float) -> None:
        while self.coming and self.coming[0][0] <= self.now:
            self.running = self.coming.pop(0)[1]
        before = self.scaler.executors
        self.scaler.waits(int(self.waiting))
        self.scaler.decide(self.now, self.running, self.wish)
        if self.scaler.executors != before:
            self.decisions.append((self.now, self.scaler.executors))
            wider = self.scaler.executors > self.running
            self.coming.append((self.now + self.start_seconds if wider else self.now, self.scaler.executors))
        records = min(int(self.waiting), self.limit)
        beside = self.beside * (1 + self.noise * self.chance.random())
        took = beside + records * COST / self.running if records else 0.25
        self.now += took
        self.waiting += rate * took - records
        if records:
            self.scaler.epoch(records, took, self.running)


def test_it_becomes_as_wide_as_the_load_and_narrow_again() -> None:
    job = Job()
    assert job.under(2_000, 600) == []
    assert job.under(25_000, 900)[-1] == 4  # 2.5 busy executors, at 70 percent
    assert job.waiting < 25_000
    assert job.under(2_000, 900)[-1] == 1


@pytest.mark.parametrize(
    ("busy", "rate"), [(70, 6_900), (70, 7_300), (70, 28_100), (95, 10_300), (100, 10_700), (100, 31_000)]
)
def test_a_steady_load_is_decided_on_once(busy: int, rate: int) -> None:
    """No flapping, also at the edge between two numbers, and where executors are to be busy nearly all of the time."""
    job = Job(wish=Autoscale(min_instances=1, max_instances=8, target_busy=busy))
    job.under(rate, 1_200)
    assert job.under(rate, 3_600) == []


def test_a_job_that_is_too_wide_becomes_as_narrow_as_one_that_grew() -> None:
    """2.14 executors at 70 percent of their time are two, within the tolerance, from whichever side."""
    for executors in (1, 4, 8):
        job = Job(running=executors)
        job.under(15_000, 1_800)
        assert job.scaler.executors == 2


def test_what_epochs_cost_beside_their_records_makes_no_job_wider() -> None:
    """Epochs follow each other without a pause, and read little."""
    job = Job(beside=2.0)
    assert job.under(500, 1_800) == []
    job = Job(beside=2.0, running=4)
    assert job.under(500, 1_800) == [1]


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("rate", rest_in_search([5, 50, 500], (50,)))
def test_epochs_that_are_not_alike_keep_no_job_wide(noise: float, rate: int) -> None:
    """With next to no records, their times say nothing of what a record costs, and executors do not shorten them."""
    job = Job(noise=noise, running=8)
    job.under(rate, 1_500)
    assert job.scaler.executors == 1
    job = Job(noise=noise)
    job.under(30_000, 900)
    assert job.scaler.executors >= 4
    job.under(rate, 1_800)
    assert job.scaler.executors == 1
    assert job.under(rate, 900) == []


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 3.0])
def test_a_load_is_met_whether_epochs_are_alike_or_not(noise: float) -> None:
    job = Job(noise=noise)
    job.under(30_000, 1_800)
    assert job.scaler.executors in {4, 5}  # 3 busy executors, at 70 percent
    assert job.waiting < 60_000
    assert len(job.under(30_000, 3_600)) <= 1


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 1.0])
def test_a_heavy_load_that_begins_wide_is_halved_at_most_while_its_cost_is_not_known(noise: float) -> None:
    """Its epochs are alike, as those of an idle job are. Those of half as many executors tell them apart."""
    job = Job(noise=noise, running=8)
    job.under(50_000, 1_800)
    assert min(job.decisions, default=(0.0, 8), key=lambda decision: decision[1])[1] >= 4
    assert job.scaler.executors in {7, 8}  # 5 busy executors, at 70 percent
    assert job.waiting < 100_000


def test_one_record_is_work_for_one_executor() -> None:
    scaler = Autoscaler(8)
    scaler.waits(10)
    scaler.decide(0.0, 8, WISH)
    scaler.epoch(1, 0.5, 8)
    assert scaler.load(8).cost == 0.5


def test_a_backlog_is_read_within_the_target() -> None:
    job = Job(waiting=3_000_000)
    executor_counts = job.under(5_000, 240)
    assert executor_counts == [5]  # after an epoch of 500,000 on one executor: 5,000 + 2,750,000 / 60 records a second
    assert job.waiting < 50_000


def test_it_stays_within_its_bounds_and_follows_them() -> None:
    job = Job(wish=Autoscale(min_instances=2, max_instances=3))
    assert job.under(100, 10) == [2]
    assert job.under(200_000, 300) == [3]
    job.wish = Autoscale(min_instances=5, max_instances=6)
    assert job.under(100, 10) == [5]


def after(up: str, down: str) -> Autoscale:
    """Return WISH with these windows."""
    return Autoscale.model_validate({"minInstances": 1, "maxInstances": 8, "upAfter": up, "downAfter": down})


def test_it_waits_for_a_whole_window() -> None:
    job = Job(wish=after(up="1m", down="10m"))
    job.under(2_000, 100)
    began = job.now
    job.under(25_000, 120)
    assert job.decisions[0][0] - began >= 60
    began = job.now
    job.under(25_000, 1_500)
    ended = job.now
    job.under(2_000, 1_200)
    assert next(at for at, _ in job.decisions if at > ended) - ended >= 600 - 30  # seconds over which arrivals count


def test_a_window_may_be_shorter_than_a_second() -> None:
    job = Job(wish=after(up="1ms", down="1ms"))
    assert job.under(25_000, 120)[-1] == 4
    assert job.under(2_000, 120)[-1] == 1


def test_a_slow_epoch_now_and_then_changes_nothing() -> None:
    job = Job(running=2)
    for _ in range(20):
        job.under(9_000, 60)
        job.beside = 5.0
        job.turn(9_000)
        job.beside = 0.1
    assert job.decisions == []


def test_an_idle_job_becomes_as_narrow_as_it_may() -> None:
    job = Job(running=4)
    job.under(10_000, 10)
    assert job.under(0, 400) == [1]


@pytest.mark.parametrize("records", [0, 10])
def test_nothing_is_decided_while_no_executor_runs(records: int) -> None:
    scaler = Autoscaler(1)
    for second in range(400):
        scaler.waits(10_000 * second)
        scaler.decide(second, 0, WISH)
        scaler.epoch(records, 1.0, 0)
    assert scaler.executors == 1


def test_a_decision_says_why() -> None:
    job = Job()
    job.under(25_000, 120)
    match = re.fullmatch(r"25,\d+ records/s arrive and [\d,]+ wait; an executor can read ([\d,]+)/s", job.scaler.reason)
    assert match is not None, job.scaler.reason
    assert 8_000 < int(match[1].replace(",", "")) < 12_000
