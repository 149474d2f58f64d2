"""The `joinery` command."""

from __future__ import annotations

import gc
import signal
import threading

__all__ = ["main"]

# What a command imports are half a million objects that stay. By its own thresholds the collector would go over them
# again and again while they come: 0.2 s of 1.2.
_COLLECT_AFTER = 200_000


def main(tokens: list[str] | None = None) -> None:
    """The console script. Until its modules are loaded, Ctrl-C ends the process without a word, as it ends a program
    that is not Python."""
    gc.set_threshold(_COLLECT_AFTER)
    in_front = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if in_front else None
    from joinery_runtime.cli.app import main as run  # noqa: PLC0415

    if in_front:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    run(tokens)
