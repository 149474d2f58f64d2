"""Decides which job is reconciled next.

One worker at a time has a key. However often a key is added while it waits, it runs once; if it is added while it runs,
it runs once more. Keys run in the order in which they were added. The clock is passed in; only `WorkQueueFeed` waits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_BACKOFF = 0.5
_LAST_BACKOFF = 120.0


class WorkQueue(Generic[K]):
    """The order of runs, without waiting; times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._ready: dict[K, None] = {}
        self._running: dict[K, float] = {}
        self._rerun: set[K] = set()
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._number = count()
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Queue a run for as soon as a worker is free."""
        if key in self._running:
            self._rerun.add(key)
        else:
            self._ready.setdefault(key)

    def add_at(self, key: K, when: float) -> None:
        """Schedule a run at that time, in place of an earlier scheduled run."""
        self._due[key] = when
        heapq.heappush(self._timers, (when, next(self._number), key))

    def take(self, now: float) -> K | None:
        """Take the next key, which counts as running from now on; None when no key is due."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, timed = heapq.heappop(self._timers)
            del self._due[timed]
            self.add(timed)
        key = next(iter(self._ready), None)
        if key is not None:
            del self._ready[key]
            self._running[key] = now
        return key

    def finish(self, key: K, now: float, again_after: float | None = None) -> None:
        """End a successful run. The next one is due after `again_after` seconds, or when something happens."""
        self._failures.pop(key, None)
        self._due.pop(key, None)
        if again_after is not None:
            self.add_at(key, now + again_after)
        self._release_key(key)

    def retry(self, key: K, now: float, again_after: float | None = None) -> float:
        """End a failed run, and schedule a retry with a doubling delay, or after `again_after` seconds if that is
        sooner. Returns the delay in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay: float = min(_FIRST_BACKOFF * 2 ** min(failures - 1, 20), _LAST_BACKOFF)
        if again_after is not None:
            delay = min(delay, again_after)
        self.add_at(key, now + delay)
        self._release_key(key)
        return delay

    def next_due(self) -> float | None:
        """When the next scheduled run is due; None if there is none."""
        while self._timers and self._due.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def waiting(self) -> int:
        return len(self._ready)

    def running(self) -> dict[K, float]:
        """Return the keys that workers have, and since when."""
        return dict(self._running)

    def _release_key(self, key: K) -> None:
        self._running.pop(key, None)
        if key in self._rerun:
            self._rerun.discard(key)
            self._ready.setdefault(key)


class WorkQueueFeed(Generic[K]):
    """`WorkQueue` for asyncio, in which workers wait for the next key. `clock` is in seconds, like the event loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.queue: WorkQueue[K] = WorkQueue()
        self._clock = clock
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, key: K) -> None:
        self.queue.add(key)
        self._changed.set()

    def finish(self, key: K, again_after: float | None = None) -> None:
        self.queue.finish(key, self._clock(), again_after)
        self._changed.set()

    def retry(self, key: K, again_after: float | None = None) -> float:
        delay = self.queue.retry(key, self._clock(), again_after)
        self._changed.set()
        return delay

    def close(self) -> None:
        """Give out no more keys."""
        self._closed = True
        self._changed.set()

    async def take(self) -> K | None:
        """Wait for a key; None when the feed is closed."""
        while not self._closed:
            if (key := self.queue.take(self._clock())) is not None:
                return key
            self._changed.clear()
            due = self.queue.next_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                    await self._changed.wait()
        return None
