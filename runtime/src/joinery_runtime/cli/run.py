"""`joinery run`: signals, progress, status, and the job."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import FrameType

from joinery_runtime.cli.ending import Outcome, Stopped
from joinery_runtime.cli.progress import THIS_PROCESS, open_progress
from joinery_runtime.engine.driver import Driver
from joinery_runtime.errors import JobError
from joinery_runtime.hosts import worker_daemon
from joinery_runtime.hosts.daemon_fork import daemon_fork
from joinery_runtime.hosts.java_process import kill_starts
from joinery_runtime.hosts.placement import master_of, runs_under_spark_submit, stop_with_spark_submit
from joinery_runtime.hosts.run import run_job
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.hosts.shared_memory import check_memory_store
from joinery_runtime.hosts.spark_security import is_local
from joinery_runtime.hosts.status.board import Board, Liveness
from joinery_runtime.hosts.status.server import serve_status
from joinery_runtime.hosts.status.snapshot import JobDescription
from joinery_runtime.hosts.worker_builder import load_kernels
from joinery_runtime.job import Job, located
from joinery_runtime.state.embedded import StartAhead

_SERVER_SECONDS = 5.0  # a new embedded Postgres takes two


def run_command(
    job: Job,
    master: str | None,
    status_port: int | None,
    status_host: str,
    stalled_after_ms: int,
    *,
    once: bool,
    local: bool = False,
    py_files: Sequence[Path] = (),
) -> Outcome:
    """Run the job. `status_port` None: the page is at a free port; 0: nothing is served."""
    gc.freeze()  # so that epochs in the driver do not wait for garbage collection of everything imported
    signals = Signals(Event(), (signal.SIGTERM, signal.SIGINT), _end_at_once)
    location = THIS_PROCESS if local else master_of(job.spec.spark.conf, master) or "the master of spark-submit"
    with (
        open_progress(job, sys.stdout, location) as progress,
        _serve_page(job, status_port, status_host, stalled_after_ms, progress.show_page) as board,
    ):
        listener = progress.listener

        def started(driver: Driver) -> None:
            signals.end_the_epoch()
            listener.started(driver)

        listening = replace(listener, started=started)
        with signals.end_a_start():
            if runs_under_spark_submit():
                stop_with_spark_submit()
            run_job(
                job,
                listening,
                signals.stop,
                master=master,
                warn=progress.warn,
                board=board,
                patient=bool(status_port),
                once=once,
                local=local,
                py_files=py_files,
            )
        stopped = signals.stop.is_set()
        progress.show_end("stopped" if stopped else "once" if once else "inputs")
    return "stopped" if stopped else "finished"


@contextmanager
def share_imports(job: Job, master: str | None, server: StartAhead | None) -> Iterator[None]:
    """Fork this process for Spark's workers, where these run on this machine and in Spark's driver, so that they need
    not import again what this process has imported. Nothing of the user's is imported yet. A `server` that does not
    settle in time has a thread that may hold anything, so then there is no fork."""
    if runs_under_spark_submit() or not is_local(master_of(job.spec.spark.conf, master)):
        yield
        return
    # What this process needs anyway, and mostly while the server starts.
    worker_daemon.load()
    load_kernels(job.inputs)
    if server is not None and not server.settled.wait(_SERVER_SECONDS):
        yield
        return
    with scratch_folder("daemon") as folder, daemon_fork(folder, None if server is None else server.thread):
        yield


def check_master(job: Job, job_file: Path, master: str | None) -> None:
    """Raise JobError, with its place in the file, if the job cannot run on its Spark master."""
    try:
        check_memory_store(job, master_of(job.spec.spark.conf, master))
    except JobError as error:
        if not job_file.is_file():  # from a pipe the text is gone
            raise
        raise located(error, job_file) from error


@contextmanager
def _serve_page(
    job: Job, port: int | None, host: str, stalled_after_ms: int, tell: Callable[[str], None]
) -> Iterator[Board | None]:
    if port == 0:
        yield None
        return
    liveness = Liveness(stalled_after_s=stalled_after_ms / 1000)
    board = Board(job.name, [side.name for side in job.inputs], liveness, description=JobDescription.of(job))
    with serve_status(board, port or 0, host) as opened:
        tell(opened.page)
        yield board


def _end_at_once(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


class Signals:
    """Handles the signals `numbers`. The first one sets `stop`: during the start it ends the command at once, because
    nothing has to be finished; later it ends the job after the running epoch. The next one calls
    `on_second_signal`, which ends the job at once."""

    def __init__(self, stop: Event, numbers: Sequence[int], on_second_signal: Callable[[int], None]) -> None:
        self.stop, self._numbers, self._on_second_signal = stop, numbers, on_second_signal
        self._starting = False

    @contextmanager
    def end_a_start(self) -> Iterator[None]:
        self._starting = True
        self._catch_signals()
        try:
            yield
        except (Stopped, KeyboardInterrupt):
            # Spark's own handler, which is active between Spark's start and ours, raises a KeyboardInterrupt.
            if not self._starting:
                raise
            self.stop.set()
        finally:
            self._starting = False

    def end_the_epoch(self) -> None:
        self._starting = False
        # Installs the handlers again: the Spark context has replaced the one for SIGINT, and its own would end the
        # epoch.
        self._catch_signals()

    def _catch_signals(self) -> None:
        for number in self._numbers:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        is_second = self.stop.is_set()
        if is_second or self._starting:
            kill_starts()
        if is_second:
            self._on_second_signal(number)
        self.stop.set()
        if self._starting:
            raise Stopped
