"""Runs all tasks of an epoch in this process: for epochs that the driver runs, traces, and tests of the engine."""

from __future__ import annotations

from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.tasks import Threads, run_epoch
from joinery_runtime.engine.worker import Worker


class LocalHost:
    """Implements `engine.driver.Host` with one worker. Attempts are numbered, so runs are repeatable. Without `threads`
    everything runs in the caller's thread, and an epoch has all of the job's shards."""

    def __init__(self, worker: Worker, threads: int | None = None) -> None:
        self._worker, self._threads = worker, Threads(threads or 1)
        self.cores = threads
        self._attempts = 0

    def run(self, work: EpochWork) -> EpochOutcome:
        self._attempts += 1
        return run_epoch(self._worker, work, f"local{self._attempts}", self._threads)

    def close(self) -> None:
        """Ends the host's threads."""
        self._threads.close()
