"""Whether the operator works, for the probes: what is wrong, in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from joinery_operator.shell.audit import Suspicions
from joinery_operator.shell.kinds import Key

# A look has at most a few calls, each bounded to about 90 s with all its tries.
HUNG_SECONDS = 600.0
DEAD_WATCH_SECONDS = 45.0


class Health:
    """`running` are the jobs that are looked at, and since when; `events` counts what each kind's watch delivered.
    `clock` counts seconds."""

    def __init__(
        self,
        suspicions: Suspicions,
        running: Callable[[], Mapping[Key, float]],
        events: Mapping[str, int],
        clock: Callable[[], float],
    ) -> None:
        self._suspicions = suspicions
        self._running = running
        self._events = events
        self._clock = clock
        self.synced = False
        self.ended: list[str] = []

    def live(self) -> Collection[str]:
        """What only a restart puts right."""
        now = self._clock()
        hung = [
            f"{key} has been looked at for {now - since:.0f} s"
            for key, since in self._running().items()
            if now - since > HUNG_SECONDS
        ]
        dead = [
            f"the watch of {finding.key.kind} has not told that {finding.key} {_happened(finding.version)}"
            for finding in self._suspicions.older_than(DEAD_WATCH_SECONDS, now, self._events)
        ]
        return [*hung, *dead, *self.ended]

    def ready(self) -> Collection[str]:
        return [] if self.synced else ["the objects of the cluster have not been read yet"]


def _happened(version: int | None) -> str:
    return "is gone" if version is None else f"has resourceVersion {version}"
