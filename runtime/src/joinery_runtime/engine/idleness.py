"""Decides when a partition is idle (rule T4): when it has been read to its end, and has stayed there for `idleTimeout`
of the job's running time.

The end is the high watermark: records of an open transaction count as unread, however long the transaction takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from joinery_runtime.connectors.source import Bounds
from joinery_runtime.engine.plan import partition_id
from joinery_runtime.formats.batch import PartitionRef

# At most this much of the time between two observations counts. In a longer gap the driver was stopped, or the broker
# could not be reached, so what the partitions held meanwhile is unknown.
LONGEST_STEP_MS = 5_000
# Watermarks that advance by the clock (T6) may close rows at every step: a step per observation would keep an idle job
# busy.
PACE_MS = 1_000


class Idleness(Protocol):
    """Says which partitions are idle: `IdleClock` does so for running jobs, and the steps of a trace for that trace."""

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None: ...

    def idle(self) -> dict[str, Collection[str]]: ...

    def idle_for_ms(self, all_idle: bool, now_ms: int, committed_ms: int) -> int: ...


class IdleClock:
    """Adds up how long each partition has been seen at its end. The caller passes times in, in milliseconds of a clock
    that runs only while the job does. A timeout of 0 switches idleness off for the input."""

    def __init__(self, timeouts_ms: Mapping[str, int]) -> None:
        self._timeouts = timeouts_ms
        self._at_end_for: dict[PartitionRef, int] = {}
        self._observed_ms: int | None = None
        self._all_idle_for = 0
        self._all_idle_at_ms: int | None = None

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None:
        """Takes what can be read now. A partition with unread records is not at its end, even if they belong to an open
        transaction, and neither is a partition that is not held. A partition missing from `bounds`, because it was
        deleted, is forgotten."""
        step = _elapsed_ms(self._observed_ms, now_ms)
        at_end = [bound.partition for bound in bounds if bound.is_assigned and bound.at_end]
        before = self._at_end_for
        self._at_end_for = {ref: before[ref] + step if ref in before else 0 for ref in at_end}
        self._observed_ms = now_ms

    def idle(self) -> dict[str, Collection[str]]:
        """Idle partitions per input, by `partition_id`, as of the newest observation."""
        idle_ids: dict[str, list[str]] = {}
        for ref, quiet in sorted(self._at_end_for.items()):
            timeout = self._timeouts[ref.input]
            if timeout and quiet >= timeout:
                idle_ids.setdefault(ref.input, []).append(partition_id(ref))
        return {name: tuple(parts) for name, parts in idle_ids.items()}

    def idle_for_ms(self, all_idle: bool, now_ms: int, committed_ms: int) -> int:
        """How long all inputs have been idle (T6), rounded down to PACE_MS. `all_idle` says whether they are idle now;
        `committed_ms` is the time counted so far, by this process or an earlier one, that is committed."""
        if not all_idle:
            self._all_idle_at_ms = None
            return 0
        first = self._all_idle_at_ms is None
        self._all_idle_for = committed_ms if first else self._all_idle_for + _elapsed_ms(self._all_idle_at_ms, now_ms)
        self._all_idle_at_ms = now_ms
        return self._all_idle_for // PACE_MS * PACE_MS


def _elapsed_ms(observed_ms: int | None, now_ms: int) -> int:
    return 0 if observed_ms is None else min(LONGEST_STEP_MS, now_ms - observed_ms)
