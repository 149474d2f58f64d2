"""What this process's descendants use: CPU time of all of them, by what they are; memory of those that are an engine's.

An engine may leave its parents (Postgres does): this process adopts such orphans, so that they still count.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from joinery_runtime.hosts.daemon_fork import PROCESS_NAME as DAEMON_NAME

_PR_SET_CHILD_SUBREAPER = 36
_LIST_EVERY_SECONDS = 1.0

JAVA, DRIVER, WORKERS, POSTGRES, BROKER = KINDS = ("java", "driver", "workers", "postgres", "broker")
_POSTGRES_PROGRAMS = ("postgres", "initdb", "pg_ctl")


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process (Linux)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def cpu_seconds() -> float:
    """CPU seconds of every descendant so far, those that ended included, this process not."""
    times = filter(None, map(_times_of, psutil.Process().children(recursive=True)))
    return _ended_children() + sum(process_times.own + process_times.ended_children for process_times in times)


def kind_of(name: str, words: Sequence[str]) -> str:
    """Return what a process is, by its name and its command line: the Java of a broker or of an engine, a Python worker
    of Spark's (or the daemon that forks them), Postgres, or else the driver, to which its helpers count."""
    if name == "java":
        return BROKER if "kafka.Kafka" in words else JAVA
    if name in _POSTGRES_PROGRAMS:
        return POSTGRES
    is_worker = name == DAEMON_NAME or any(
        word.endswith(("worker_daemon", "pyspark.daemon", "pyspark.worker")) for word in words
    )
    return WORKERS if is_worker else DRIVER


class ProcessTimes(NamedTuple):
    """CPU seconds of a process so far: its own, and those of its children that it has waited for, with theirs."""

    pid: int
    parent: int
    own: float
    ended_children: float


class CpuByKind:
    """Adds up CPU seconds by kind of process, look by look.

    A child that ends adds its time to the `ended_children` of the process that waits for it: its parent, or the root if
    the parent has ended. What was not seen of it while it lived, its last moments or all of a short life, counts as the
    kind of that process's other children.
    """

    def __init__(self, root: int) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._root = root
        self._times_by_pid: dict[int, ProcessTimes] = {}
        self._kind_of_children: dict[int, str] = {}
        # Seconds of processes that are gone, which were counted while they lived, and which come again in the
        # `ended_children` of another process. The kernel drops those of a child whose parent ignores its end.
        self._counted = 0.0

    def look(self, processes: Sequence[tuple[ProcessTimes, str]], root_ended_children: float) -> None:
        """Take all processes that there are now, with their kinds. The root's own time does not count."""
        root = ProcessTimes(self._root, 0, 0.0, root_ended_children)
        alive = {times.pid: (times, kind) for times, kind in [(root, DRIVER), *processes]}
        for pid in self._times_by_pid.keys() - alive.keys():
            ended_process = self._times_by_pid.pop(pid)
            self._counted += ended_process.own + ended_process.ended_children
        for times, kind in processes:
            self._kind_of_children[times.parent] = kind
        for times, kind in alive.values():
            before = self._times_by_pid.get(times.pid, ProcessTimes(times.pid, times.parent, 0.0, 0.0))
            self.seconds[kind] += times.own - before.own
            ended = times.ended_children - before.ended_children
            counted_before = min(ended, self._counted)
            self._counted -= counted_before
            self.seconds[self._kind_of_children.get(times.pid, kind)] += ended - counted_before
            self._times_by_pid[times.pid] = times


class CpuMeter:
    """CPU seconds of every descendant so far by kind of process, those that ended included, again and again. Lists
    processes often at first, when an engine starts its own, later once a second: to list those of the whole machine
    takes CPU from the engine that is measured."""

    def __init__(self) -> None:
        self._processes: list[psutil.Process] = []
        self._kinds: defaultdict[int, str] = defaultdict(lambda: DRIVER)  # by pid
        self._list_at = self._began = time.monotonic()
        self._cpu = CpuByKind(os.getpid())

    def seconds(self) -> dict[str, float]:
        if (now := time.monotonic()) >= self._list_at:
            # A list that is made while a parent ends may lack the child: what was known is looked at until it is gone.
            self._processes = list(dict.fromkeys([*self._processes, *psutil.Process().children(recursive=True)]))
            self._list_at = now + min(_LIST_EVERY_SECONDS, (now - self._began) / 4)
            for process in self._processes:
                with suppress(psutil.Error):
                    if words := process.cmdline():  # none: it has ended, and its parent has not waited for it
                        self._kinds[process.pid] = kind_of(process.name(), words)
        # Parents first, as psutil lists them: a child that ends in between must not be seen alive and count as ended.
        ended = _ended_children()
        looked_at = [(process, _times_of(process)) for process in self._processes]
        self._processes = [process for process, times in looked_at if times is not None]
        times = [process_times for _, process_times in looked_at if process_times is not None]
        self._cpu.look([(process_times, self._kinds[process_times.pid]) for process_times in times], ended)
        return dict(self._cpu.seconds)


def _ended_children() -> float:
    """CPU seconds of this process's children that it has waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _times_of(process: psutil.Process) -> ProcessTimes | None:
    try:
        with process.oneshot():
            times, parent = process.cpu_times(), process.ppid()
    except psutil.Error:
        return None
    return ProcessTimes(
        process.pid, parent, float(times.user + times.system), float(times.children_user + times.children_system)
    )


def memory_bytes(without: Collection[int]) -> int:
    """Proportional memory (pages that n processes share count 1/n each) of the descendants that are not below
    `without`."""
    total = 0
    for process in descendants(without):
        with suppress(psutil.Error):  # it has ended
            total += int(process.memory_full_info().pss)
    return total


def descendants(without: Collection[int]) -> list[psutil.Process]:
    """All but the processes `without` and what is below them."""
    processes = []
    for child in psutil.Process().children():
        if child.pid not in without:
            try:
                processes += [child, *child.children(recursive=True)]
            except psutil.Error:
                continue
    return processes


def end_all(without: Collection[int], grace_seconds: float = 10.0) -> None:
    """Wait for what an engine that was stopped leaves behind, kill what is still there after `grace_seconds`, and
    reap the orphans, so that their CPU time counts."""
    deadline = time.monotonic() + grace_seconds
    while left := descendants(without):
        for process in left:
            with suppress(ChildProcessError):  # a grandchild, or reaped by its owner
                os.waitpid(process.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            for process in left:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
        time.sleep(0.05)
