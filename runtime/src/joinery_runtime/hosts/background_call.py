"""Calls that other threads make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def run_at_once(threads: Executor, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Implement `engine.planner.RunCalls`: this thread runs the first call, `threads` run the others meanwhile."""
    futures = [threads.submit(call) for call in calls[1:]]
    try:
        first = [call() for call in calls[:1]]
    finally:
        wait(futures)
    return [*first, *(future.result() for future in futures)]


class BackgroundCall(Generic[T_co]):
    """Runs a call in a daemon thread of this name, starting at once.

    `result` waits, and raises whatever the call raised; `join` and `done` do not raise it. An error is lost if nobody
    asks for the result. A signal may cut short the main thread's wait, but never the call."""

    def __init__(self, call: Callable[[], T_co], name: str) -> None:
        self._future: Future[T_co] = Future()
        self._thread = threading.Thread(target=self._run_call, args=(call,), name=name, daemon=True)
        self._thread.start()

    def _run_call(self, call: Callable[[], T_co]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:
            self._future.set_exception(error)

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> T_co:
        """Wait for the call and return its result, or raise what it raised."""
        return self._future.result()

    def join(self, seconds: float | None = None) -> None:
        """Wait, for that long at most, until the call has ended, with a result or an error."""
        self._thread.join(seconds)
