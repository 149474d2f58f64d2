"""When a partition is idle (rule T4): read to its end, and at its end for `idleTimeout` of the job's running time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from joinery_runtime.engine.plan import partition_id
from joinery_runtime.sources.base import Bounds, PartitionRef


class IdleClock:
    """Remembers since when each partition has been at its end. Times are milliseconds of a clock that runs only while
    the job does, passed in by the caller; a timeout of 0 switches idleness off for the input."""

    def __init__(self, timeouts_ms: Mapping[str, int]) -> None:
        self._timeouts = timeouts_ms
        self._at_end_since: dict[PartitionRef, int] = {}
        self._all_idle_since: int | None = None

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None:
        """Takes what can be read now; a partition with unread records is not at its end."""
        for bound in bounds:
            if bound.start < bound.end_exclusive:
                self._at_end_since.pop(bound.partition, None)
            else:
                self._at_end_since.setdefault(bound.partition, now_ms)

    def idle(self, now_ms: int) -> dict[str, Collection[str]]:
        """Idle partitions per input, by `partition_id`."""
        found: dict[str, list[str]] = {}
        for ref, since in sorted(self._at_end_since.items()):
            timeout = self._timeouts[ref.input]
            if timeout and now_ms - since >= timeout:
                found.setdefault(ref.input, []).append(partition_id(ref))
        return {name: tuple(parts) for name, parts in found.items()}

    def idle_for_ms(self, all_idle: bool, now_ms: int) -> int:
        """For how long all inputs have been idle (T6), given whether they are now."""
        if not all_idle:
            self._all_idle_since = None
            return 0
        if self._all_idle_since is None:
            self._all_idle_since = now_ms
        return now_ms - self._all_idle_since
