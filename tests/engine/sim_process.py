"""Processes of the simulated world, and what may befall each of their calls through a port."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from joinery_runtime.errors import JoineryError, StoreUnavailable

T = TypeVar("T")


class Fault(Enum):
    """What may happen to one call through a port."""

    NONE = "it works"
    CRASH_BEFORE = "the process dies before the call"
    CRASH_AFTER = "the process dies after the call took effect"
    FAIL_BEFORE = "the call fails and did nothing"
    FAIL_AFTER = "the call took effect and its answer is lost"
    DELAYED = "the caller gives up, the request takes effect at some later time"
    ABORT = "the last effect in a transaction fails"
    LOST_BEFORE = "the executor dies before the call"
    LOST_AFTER = "the executor dies after the call took effect"
    DUPLICATE = "another attempt of the task starts and goes on by itself"


CRASHES = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER})
FAILURES = CRASHES | {Fault.FAIL_BEFORE, Fault.FAIL_AFTER}
LOSSES = frozenset({Fault.LOST_BEFORE, Fault.LOST_AFTER})
IN_TASK = FAILURES | LOSSES


class Crash(BaseException):
    """A process was killed. Not an Exception, so that nothing handles it."""


class TaskLost(BaseException):
    """An executor was killed with the task that it ran."""


class Process:
    """A body that stops before every call through a port; `at` names that call and `faults` what may befall it."""

    ends_with: tuple[type[BaseException], ...] = (BaseException,)  # what faults explain

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name, self.at, self.faults = name, "start", CRASHES
        self.done = False
        self.error: BaseException | None = None
        self.injected: list[Fault] = []
        self._body, self._fault = body, Fault.NONE
        # Two locks that are handed to and fro: several times cheaper than semaphores or events.
        self._go, self._stopped = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._stopped.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, fault: Fault = Fault.NONE) -> None:
        """Lets the call `at` happen, with this fault, and returns when the process stops before the next one."""
        if fault is not Fault.NONE:
            self.injected.append(fault)
        self._fault = fault
        self._go.release()
        self._stopped.acquire()

    def kill(self) -> None:
        while not self.done:
            self.step(Fault.CRASH_BEFORE)
        self._thread.join()

    def pause(self, at: str, faults: frozenset[Fault]) -> Fault:
        self.at, self.faults = at, faults
        self._stopped.release()
        self._go.acquire()
        return self._fault

    def _run(self) -> None:
        _here.process = self
        try:
            self._go.acquire()
            if self._fault not in CRASHES:
                self._body()
        except BaseException as error:
            self.error = error
        self.done, self.at = True, "end"
        self._stopped.release()


_here = threading.local()


def call(
    at: str,
    faults: frozenset[Fault],
    action: Callable[[], T],
    failure: Callable[[], JoineryError] = lambda: StoreUnavailable("the simulated network failed"),
    aside: Callable[[Fault], None] = lambda _: None,
) -> T:
    """One call through a port: the process that makes it stops here first; the test itself does not. `aside` is told
    the fault, for those that are not about the call's own process."""
    process: Process | None = getattr(_here, "process", None)
    if process is None:
        return action()
    fault = process.pause(at, faults)
    if fault is Fault.CRASH_BEFORE:
        raise Crash
    if fault is Fault.LOST_BEFORE:
        raise TaskLost
    aside(fault)
    if fault in (Fault.FAIL_BEFORE, Fault.DELAYED):
        raise failure()
    result = action()
    if fault is Fault.CRASH_AFTER:
        raise Crash
    if fault is Fault.LOST_AFTER:
        raise TaskLost
    if fault is Fault.FAIL_AFTER:
        raise failure()
    return result
