"""Whether a job's loop still gives signs of life.

A sign is: a turn of the loop, an epoch, a trouble that is told and waited out (a store that is away, missing
executors), a step of the start, and, while an epoch runs, a Spark task that ended or an executor that came or went. So
an epoch may take as long as it needs, and an outage too; what is not alive is a loop whose thread has ended, or that
has shown none of these for a long time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pulse:
    """Of the thread that makes it; `stalled_after_s` is how long a silence may be. `running` is a clock in seconds that
    never goes back."""

    def __init__(self, stalled_after_s: float, running: Callable[[], float] = time.monotonic) -> None:
        self._running, self._stalled_after = running, stalled_after_s
        self._thread = threading.current_thread()
        self._beat = running()

    def beat(self) -> None:
        self._beat = self._running()

    def problem(self) -> str | None:
        """Why it is not alive; None while it is."""
        if not self._thread.is_alive():
            return "the loop's thread has ended"
        silent = self._running() - self._beat
        if silent > self._stalled_after:
            return f"nothing has moved for {silent:.0f} s"
        return None
