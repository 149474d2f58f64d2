"""The `joinery` command."""

from __future__ import annotations

import signal
import threading

__all__ = ["main"]


def main(tokens: list[str] | None = None) -> None:
    """The console script. Until its modules are loaded, Ctrl-C ends the process without a word, as it ends a program
    that is not Python."""
    in_front = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if in_front else None
    from joinery_runtime.cli.app import main as run  # noqa: PLC0415

    if in_front:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    run(tokens)
