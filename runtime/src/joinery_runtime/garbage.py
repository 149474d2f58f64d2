"""When Python's garbage collector looks for cycles."""

from __future__ import annotations

import gc

_COLLECT_AFTER = 200_000


def collect_rarely() -> None:
    """By its own thresholds the collector goes over all objects again and again while hundreds of thousands come that
    stay, or that die together without it."""
    gc.set_threshold(_COLLECT_AFTER)
