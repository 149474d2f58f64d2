"""`joinery run`: signals, progress, and the job."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from threading import Event
from types import FrameType

from joinery_runtime.cli.progress import open_progress
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.loop import Listener
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import StreamJoin


def run_command(job: StreamJoin, master: str | None) -> None:
    stop = Event()
    _stop_on_signals(stop)
    with open_progress(job, sys.stdout) as progress:
        listener = _listening_on(progress.listener, stop)
        run_job(job, listener, stop, master=master, warn=progress.warn)
        progress.ended(stopped=stop.is_set())


def _listening_on(listener: Listener, stop: Event) -> Listener:
    def started(driver: Driver) -> None:
        # Again: the Spark context has put a SIGINT handler of its own in place, which would end the epoch.
        _stop_on_signals(stop)
        listener.started(driver)

    return replace(listener, started=started)


def _stop_on_signals(stop: Event) -> None:
    """SIGTERM and Ctrl-C end the job after the running epoch; the second one ends it at once."""

    def on_signal(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
