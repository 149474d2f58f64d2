"""The driver's end of a series with tasks that are threads or processes of the test. On Spark:
tests/hosts/test_epoch_series_on_spark.py."""

from __future__ import annotations

import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from hosts.stand_ins import PATIENCE_S
from joinery_runtime.hosts import epoch_series
from joinery_runtime.hosts.epoch_series import (
    Series,
    SeriesAddress,
    SeriesBroken,
    SeriesEndpoint,
    SeriesTask,
    SmallEpochs,
    TasksMissing,
)
from joinery_runtime.hosts.spark_security import LOOPBACK
from joinery_runtime.hosts.spark_tasks import PeerTask

Task = Callable[[SeriesAddress, int], None]


def double(address: SeriesAddress, peer: int) -> None:
    """A task that answers n with its peer and 2 n."""
    address.serve(peer, 0, lambda n: [(peer, 2 * n)])


@dataclass
class FakeSpark:
    """Runs each task of a series in a thread."""

    task: Task = double
    count: int = 2
    endpoint: SeriesEndpoint | None = None
    now: float = 0.0
    cancelled: Event = field(default_factory=Event)
    ended: Event = field(default_factory=Event)
    address: SeriesAddress | None = None
    errors: list[Exception] = field(default_factory=list)

    def run(self, address: SeriesAddress) -> None:
        self.address = address
        tasks = [threading.Thread(target=self._run_task, args=(address, peer)) for peer in range(self.count)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        self.ended.set()

    def _run_task(self, address: SeriesAddress, peer: int) -> None:
        try:
            self.task(address, peer)
        except Exception as error:
            self.errors.append(error)

    def series(self, count: int = 2) -> Series:
        return Series(count, self.run, self.cancelled.set, self.endpoint, lambda: self.now)


@pytest.fixture(params=["on this machine", "elsewhere"])
def spark(request: pytest.FixtureRequest) -> FakeSpark:
    return FakeSpark(endpoint=None if request.param == "on this machine" else SeriesEndpoint(LOOPBACK, LOOPBACK, 0))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tasks_run_one_epoch_after_the_other(spark: FakeSpark) -> None:
    series = spark.series()
    for n in range(50):
        assert series.run(pickle.dumps(n)) == [(0, 2 * n), (1, 2 * n)], "the results are in the order of the peers"
    assert not spark.ended.is_set()
    series.end()
    assert spark.ended.is_set()
    assert not spark.errors
    assert not spark.cancelled.is_set()
    assert spark.address is not None
    with pytest.raises(OSError, match=r"refused|No such file"):
        spark.address.connect()


def test_work_and_results_may_be_large(spark: FakeSpark) -> None:
    spark.task = lambda address, peer: address.serve(peer, 0, lambda work: [work])
    series, work = spark.series(), bytes(3_000_000)
    assert series.run(pickle.dumps(work)) == [work, work]
    series.end()


def test_nobody_else_is_admitted(spark: FakeSpark) -> None:
    """Neither is what a stranger sends unpickled."""
    series = spark.series()
    series.run(pickle.dumps(0))
    assert spark.address is not None
    unpickled = b"\0" * 32 + pickle.dumps((0, 0))
    nearly = spark.address.token[:-1] + bytes([spark.address.token[-1] ^ 1])
    for says in (b"", unpickled, nearly + pickle.dumps((1, 7))):
        with spark.address.connect() as stranger, suppress(ConnectionError):
            stranger.sendall(says)
            stranger.settimeout(PATIENCE_S)
            assert stranger.recv(1) == b"", "the driver hangs up"
    assert series.run(pickle.dumps(4)) == [(0, 8), (1, 8)]
    series.end()


def test_only_the_user_of_the_job_finds_the_socket_of_this_machine() -> None:
    spark = FakeSpark()
    series = spark.series()
    series.run(pickle.dumps(0))
    assert spark.address is not None
    assert Path(str(spark.address.endpoint)).parent.stat().st_mode & 0o777 == 0o700
    series.end()


def test_a_connection_between_machines_is_encrypted_for_this_series_alone() -> None:
    spark, other = (FakeSpark(endpoint=SeriesEndpoint(LOOPBACK, LOOPBACK, 0)) for _ in range(2))
    series, others = spark.series(), other.series()
    series.run(pickle.dumps(0))
    others.run(pickle.dumps(0))
    assert spark.address is not None
    assert other.address is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        replace(spark.address, endpoint=other.address.endpoint).connect()
    assert isinstance(spark.address.endpoint, tuple)
    with socket.create_connection(spark.address.endpoint) as plain:
        plain.sendall(spark.address.token + pickle.dumps((1, 7)))
        plain.settimeout(PATIENCE_S)
        with suppress(ConnectionError):
            while plain.recv(1_000):  # an alert
                pass
    assert series.run(pickle.dumps(4)) == [(0, 8), (1, 8)]
    series.end()
    others.end()


def test_a_task_that_fails_ends_the_series(spark: FakeSpark) -> None:
    def fail(n: int) -> list[int]:
        raise OSError("the machine is on fire")

    spark.task = lambda address, peer: address.serve(peer, 0, fail if peer else lambda n: [n])
    series = spark.series()
    with pytest.raises(SeriesBroken):
        series.run(pickle.dumps(1))
    assert series.is_over
    series.end()
    assert [str(error) for error in spark.errors] == ["the machine is on fire"], "the other task just returns"


def test_an_attempt_that_spark_repeats_ends_the_series(spark: FakeSpark) -> None:
    """The connection of a machine that is cut off stays open; Spark knows that its task is lost."""
    hangs = Event()

    def cut_off(address: SeriesAddress, peer: int) -> None:
        def hang(n: int) -> list[int]:
            hangs.set()
            return [n] if spark.ended.wait(PATIENCE_S) else []

        if peer == 0:
            threading.Thread(target=address.serve, args=(peer, 0, hang), daemon=True).start()
            assert hangs.wait(PATIENCE_S)
            address.serve(peer, 1, hang)
        else:
            address.serve(peer, 0, lambda n: [n])

    spark.task = cut_off
    series = spark.series()
    with pytest.raises(SeriesBroken):
        series.run(pickle.dumps(1))
    series.end()
    assert spark.ended.is_set()


def test_a_job_that_ends_before_its_tasks_connect_is_not_waited_for(spark: FakeSpark) -> None:
    """Its tasks found nobody at the address: a host that is not known there, or a port that rejects them."""
    series = Series(2, lambda _: None, spark.cancelled.set)
    with pytest.raises(TasksMissing, match="0 of 2 tasks have connected"):
        series.run(pickle.dumps(1))
    series.end()


def test_a_wait_for_tasks_is_no_pause(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_series, "_POLL_S", 0.01)
    looks = Event()
    accept = socket.socket.accept

    def look(listener: socket.socket) -> Any:
        if spark.now:
            looks.set()  # after the driver has looked at the clock again
        return accept(listener)

    def connect_late(address: SeriesAddress, peer: int) -> None:
        spark.now = 6.0
        assert looks.wait(PATIENCE_S)
        double(address, peer)

    monkeypatch.setattr(socket.socket, "accept", look)
    spark.task = connect_late
    series = spark.series()
    assert series.run(pickle.dumps(4)) == [(0, 8), (1, 8)]
    series.end()


def test_strangers_that_say_nothing_keep_no_task_out(spark: FakeSpark) -> None:
    with ExitStack() as strangers:

        def connect_behind_strangers(address: SeriesAddress, peer: int) -> None:
            for _ in range(20):
                if isinstance(address.endpoint, str):
                    stranger = strangers.enter_context(socket.socket(socket.AF_UNIX))
                    stranger.connect(address.endpoint)
                else:
                    strangers.enter_context(socket.create_connection(address.endpoint))
            double(address, peer)

        spark.task = connect_behind_strangers
        series = spark.series()
        assert series.run(pickle.dumps(4)) == [(0, 8), (1, 8)]
        series.end()
    assert spark.ended.is_set()
    assert not spark.cancelled.is_set()


def test_an_epoch_without_an_end_ends_the_series(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost task may wait for the core of another one of the series, which waits for work."""
    monkeypatch.setattr(epoch_series, "_LONGEST_EPOCH_S", 0.1)

    def hang(n: int) -> list[int]:
        spark.cancelled.wait(PATIENCE_S)
        return [n]

    spark.task = lambda address, peer: address.serve(peer, 0, hang if peer else lambda n: [n])
    monkeypatch.setattr(epoch_series, "_ENDING_S", 0.1)
    series = spark.series()
    with pytest.raises(SeriesBroken, match="timed out"):
        series.run(pickle.dumps(1))
    series.end()
    assert spark.ended.wait(PATIENCE_S)


def test_tasks_that_do_not_connect_are_cancelled(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_series, "_CONNECTING_S", 0.01)
    monkeypatch.setattr(epoch_series, "_ENDING_S", 0.01)

    def wait(address: SeriesAddress, peer: int) -> None:
        spark.cancelled.wait(PATIENCE_S)

    spark.task = wait
    series = spark.series()
    with pytest.raises(TasksMissing, match="0 of 2 tasks have connected"):
        series.run(pickle.dumps(1))
    series.end()
    assert spark.ended.wait(PATIENCE_S)


def test_a_series_ends_after_a_pause(spark: FakeSpark) -> None:
    series = spark.series()
    spark.now = 4.0
    series.run(pickle.dumps(1))
    spark.now = 8.0
    assert not spark.ended.wait(1.0), "four seconds are no pause, and the driver looks twice a second"
    spark.now = 10.0
    assert spark.ended.wait(PATIENCE_S)
    assert series.is_over
    series.end()


def test_a_series_takes_no_epoch_after_a_minute(spark: FakeSpark) -> None:
    series = spark.series()
    series.run(pickle.dumps(1))
    assert not series.is_over
    spark.now = 61.0
    assert series.is_over
    series.end()


def test_an_interrupted_epoch_ends_the_series(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next epoch would take its results."""
    series = spark.series()
    series.run(pickle.dumps(1))

    load = pickle.load

    def interrupt(channel: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return load(channel)

    with monkeypatch.context() as patch:
        patch.setattr(epoch_series.pickle, "load", interrupt)
        with pytest.raises(KeyboardInterrupt):
            series.run(pickle.dumps(2))
    assert series.is_over
    series.end()


DRIVER = """
import pickle, sys, threading, time
from joinery_runtime.hosts.epoch_series import Series
def print_address(address):
    print(address.endpoint, address.token.hex(), flush=True)
    threading.Event().wait()
series = Series(1, print_address, lambda: None)
print(series.run(pickle.dumps(20)), flush=True)
time.sleep(600)
"""


def test_the_drivers_end_ends_the_tasks() -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            path, token = driver.stdout.readline().split()
            address = SeriesAddress(path, bytes.fromhex(token))
            task = threading.Thread(target=address.serve, args=(0, 0, lambda n: [n + 1]), daemon=True)
            task.start()
            assert driver.stdout.readline() == "[21]\n"
        finally:
            driver.kill()
    task.join(PATIENCE_S)
    assert not task.is_alive()


# --- which epochs -----------------------------------------------------------------------------------------------------


class FakeEpochs:
    """A host's small epochs, whose tasks answer with the epoch."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.preferred: list[Sequence[str]] = []
        self.warned: list[str] = []
        self.answers = self.connects = True
        self.cancelled = Event()
        self.epochs = SmallEpochs(self._run_job, self.cancelled.set, self.warned.append)

    def _run_job(self, task: SeriesTask, first: PeerTask, executors: Sequence[str]) -> None:
        self.begun.append(first.work.plan.epoch)
        self.preferred.append(executors)
        if not self.connects:
            self.cancelled.wait(PATIENCE_S)
            self.cancelled.clear()
        elif self.answers:
            FakeSpark(lambda address, peer: address.serve(peer, 0, lambda work: [work[0].plan.epoch])).run(task.address)

    def run(self, *epochs: int, executors: Sequence[str] = ("a", "b")) -> list[object]:
        return [self.epochs.run(_peer_task(epoch), executors) for epoch in epochs]


def _peer_task(epoch: int) -> Any:
    """Of two peers."""
    work = SimpleNamespace(plan=SimpleNamespace(epoch=epoch))
    return SimpleNamespace(work=work, peers=SimpleNamespace(count=2), setup=SimpleNamespace(collects_letters=False))


@pytest.fixture
def small() -> Iterator[FakeEpochs]:
    small = FakeEpochs()
    yield small
    small.epochs.end()


def test_the_second_small_epoch_in_a_row_begins_a_series(small: FakeEpochs) -> None:
    assert small.run(7, 8, 9) == [None, [8, 8], [9, 9]]
    assert small.begun == [8]
    small.epochs.end()  # for a large epoch, the tenth
    assert small.run(11, 12) == [None, [12, 12]]
    assert small.begun == [8, 12]


def test_tasks_elsewhere_are_another_series(small: FakeEpochs) -> None:
    small.run(7, 8)
    assert small.run(9, 10, executors=("a", "c")) == [[9, 9], [10, 10]]
    assert small.begun == [8, 9]
    assert small.preferred == [("a", "b"), ("a", "c")]


def test_after_a_series_that_broke_ten_epochs_are_jobs(small: FakeEpochs) -> None:
    small.answers = False
    assert small.run(7, 8) == [None, None]
    small.answers = True
    assert small.run(*range(9, 18)) == [None] * 9
    assert small.run(18) == [[18, 18]]
    assert small.warned == [], "the job of the epoch says what is wrong, if it still is"


def test_whoever_runs_the_job_hears_once_that_tasks_do_not_connect(
    small: FakeEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the third time in a row: an executor may just have ended."""
    monkeypatch.setattr(epoch_series, "_JOBS_AFTER_BREAK", 1)
    monkeypatch.setattr(epoch_series, "_ENDING_S", 0.01)
    small.connects = False
    with monkeypatch.context() as impatient:
        impatient.setattr(epoch_series, "_CONNECTING_S", 0.01)
        assert small.run(7, 8, 9) == [None] * 3
    small.connects = True
    assert small.run(10) == [[10, 10]], "two series in a row have been without tasks"
    assert small.warned == []
    small.epochs.end()
    small.connects = False
    monkeypatch.setattr(epoch_series, "_CONNECTING_S", 0.01)
    assert small.run(11, 12, 13, 14, 15) == [None] * 5
    assert small.begun == [8, 9, 10, 11, 12, 13]
    (warning,) = small.warned
    assert "Small epochs are Spark jobs of their own" in warning
    assert "0 of 2 tasks have connected to " in warning


def test_without_a_socket_all_epochs_are_jobs(
    small: FakeEpochs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The path of a socket has 107 characters at most."""
    (tmp_path / ("d" * 120)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("d" * 120)))
    assert small.run(7, 8, 9) == [None] * 3
    (warning,) = small.warned
    assert "AF_UNIX path too long" in warning
