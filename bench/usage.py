"""What this process's descendants use: CPU time of all of them, memory of those that are an engine's.

An engine may leave its parents (Postgres does): this process adopts such orphans, so that they still count.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_LIST_EVERY_SECONDS = 1.0


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process (Linux)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def cpu_seconds() -> float:
    """CPU seconds of every descendant so far, those that ended included, this process not."""
    return CpuMeter().seconds()


class CpuMeter:
    """`cpu_seconds`, again and again. Lists processes often at first, when an engine starts its own, later once a
    second: to list those of the whole machine takes CPU from the engine that is measured."""

    def __init__(self) -> None:
        self._known: list[psutil.Process] = []
        self._list_at = self._began = time.monotonic()

    def seconds(self) -> float:
        if (now := time.monotonic()) >= self._list_at:
            self._known = psutil.Process().children(recursive=True)
            self._list_at = now + min(_LIST_EVERY_SECONDS, (now - self._began) / 4)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime + sum(map(_cpu_seconds_of, self._known))


def _cpu_seconds_of(process: psutil.Process) -> float:
    """With those of its children that it has waited for."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def memory_bytes(without: Collection[int]) -> int:
    """Proportional memory (pages that n processes share count 1/n each) of the descendants that are not below
    `without`."""
    return sum(map(_memory_of, descendants(without)))


def _memory_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def descendants(without: Collection[int]) -> list[psutil.Process]:
    """All but the processes `without` and what is below them."""
    found = []
    for child in psutil.Process().children():
        if child.pid not in without:
            try:
                found += [child, *child.children(recursive=True)]
            except psutil.Error:
                continue
    return found


def end_all(without: Collection[int], grace_seconds: float = 10.0) -> None:
    """Waits for what an engine that was stopped leaves behind, kills what is still there after `grace_seconds`, and
    reaps the orphans, so that their CPU time counts."""
    deadline = time.monotonic() + grace_seconds
    while left := descendants(without):
        for process in left:
            _reap(process)
        if time.monotonic() > deadline:
            for process in left:
                _kill(process)
        time.sleep(0.05)


def _reap(process: psutil.Process) -> None:
    with suppress(ChildProcessError):  # a grandchild, or reaped by its owner
        os.waitpid(process.pid, os.WNOHANG)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.send_signal(signal.SIGKILL)
