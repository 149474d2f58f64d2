"""Makes Python's garbage collector look for cycles less often."""

from __future__ import annotations

import gc

_COLLECT_AFTER = 200_000


def collect_rarely() -> None:
    """Raises the collector's threshold. By default it visits all objects again and again while hundreds of thousands
    are created that stay, or that die together without it."""
    gc.set_threshold(_COLLECT_AFTER)
