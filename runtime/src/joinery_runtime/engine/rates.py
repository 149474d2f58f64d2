"""Rows per second over a sliding window; times are seconds of the caller's clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping


class Rates:
    """Counts the epochs that ended in the last `window_s` seconds, from `since` on."""

    def __init__(self, since: float, window_s: float) -> None:
        self._since, self._window = since, window_s
        self._epochs: deque[tuple[float, float, Mapping[str, int]]] = deque()  # start, end, rows

    def add(self, now: float, seconds: float, rows: Mapping[str, int]) -> None:
        """An epoch that has just ended after `seconds`."""
        self._epochs.append((now - seconds, now, rows))
        self._forget(now)

    def per_second(self, now: float) -> dict[str, float]:
        """By the names that `add` was given; a name that is missing had no epoch."""
        self._forget(now)
        if not self._epochs:
            return {}
        # Waiting counts as time too, and so does the whole of an epoch that began before the window.
        span = now - min(self._epochs[0][0], max(now - self._window, self._since))
        totals: Counter[str] = Counter()
        for _, _, rows in self._epochs:
            totals.update(rows)
        return {name: count / max(span, 0.001) for name, count in totals.items()}

    def _forget(self, now: float) -> None:
        while self._epochs and self._epochs[0][1] < now - self._window:
            self._epochs.popleft()
