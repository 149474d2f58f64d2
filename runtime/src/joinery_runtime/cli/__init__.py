"""The `joinery` command."""

from __future__ import annotations

import signal
import threading

__all__ = ["main"]


def main(tokens: list[str] | None = None) -> None:
    """The console script. Until its modules are loaded, Ctrl-C ends the process without a word, as it ends a program
    that is not Python."""
    if threading.current_thread() is not threading.main_thread():
        _run(tokens)
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from joinery_runtime.cli import app  # noqa: F401, PLC0415

    signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    _run(tokens)


def _run(tokens: list[str] | None) -> None:
    from joinery_runtime.cli.app import main as run  # noqa: PLC0415

    run(tokens)
