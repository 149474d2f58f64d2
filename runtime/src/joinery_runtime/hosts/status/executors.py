"""Watches Spark from a thread of its own while the loop waits for an epoch: how many executors run, and whether tasks
end. Warns when a job waits for executors that do not come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from py4j.protocol import Py4JError
from pyspark import SparkContext

from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.hosts.spark_internals import count_executors
from joinery_runtime.hosts.status.board import Board

POLL_EVERY_S = 5.0
PATIENCE_S = 60.0
STOP_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class ExecutorSample:
    """Spark at one moment: the number of `executors` (None: tasks run in the driver), the running `jobs`, and how many
    of their tasks are `done`."""

    executors: int | None
    jobs: tuple[int, ...] = ()
    done: int = 0

    @property
    def starved(self) -> bool:
        return self.executors == 0 and bool(self.jobs)


class Starvation:
    """How long a job has waited without a single executor, in seconds."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience = patience_s
        self._since: float | None = None
        self._warned_at: float | None = None

    def seconds(self, sample: ExecutorSample, now: float) -> float:
        if not sample.starved:
            self._since = self._warned_at = None
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since

    def warning(self, sample: ExecutorSample, now: float) -> JoineryError | None:
        """The warning to give now, if any: one after the patience, and one each time it has passed again."""
        waited = self.seconds(sample, now)
        if waited < self._patience or (self._warned_at is not None and now - self._warned_at < self._patience):
            return None
        self._warned_at = now
        return EnvironmentProblem(
            f"no executors yet: the epoch has waited for {waited:.0f} s",
            facts="Spark has asked the cluster for executors, and none runs",
            todo="Look at the executor pods or the cluster manager: image, resources, quota, node selectors, rights",
        )


class SparkWatch:
    """Watches Spark for a job. After `stop`, cancels an epoch that waits for executors, which would never end by
    itself; `gave_up` says that this happened."""

    def __init__(self, context: SparkContext, board: Board, stop: Event, say: Callable[[str], None]) -> None:
        self._context, self._board, self._stop, self._say = context, board, stop, say
        self._starvation = Starvation()
        self._last: ExecutorSample | None = None
        self.gave_up = False

    def poll(self, now: float) -> None:
        """Looks once. Raises Py4JError or ConnectionError when the Java process is gone."""
        sample = sample_executors(self._context)
        if sample != self._last:
            self._last = sample
            self._board.spark(sample.executors)
        warning = self._starvation.warning(sample, now)
        if warning is not None:
            self._board.trouble(warning)
            self._say(str(warning))
        if self._stop.is_set() and self._starvation.seconds(sample, now) >= STOP_PATIENCE_S:
            self.gave_up = True
            self._context.cancelAllJobs()

    def run(self, closed: Event) -> None:
        while not closed.is_set():
            try:
                self.poll(time.monotonic())
            except (Py4JError, ConnectionError):
                return  # the loop meets the same error, and reports it
            closed.wait(POLL_EVERY_S)


@contextmanager
def watched(watch: SparkWatch) -> Iterator[None]:
    closed = Event()
    thread = threading.Thread(target=watch.run, args=(closed,), name="joinery-spark-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join(POLL_EVERY_S)


def sample_executors(context: SparkContext) -> ExecutorSample:
    tracker = context.statusTracker()
    jobs = tuple(sorted(tracker.getActiveJobsIds()))
    infos = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
    stages = [stage for info in infos for at in info.stageIds if (stage := tracker.getStageInfo(at)) is not None]
    return ExecutorSample(count_executors(context), jobs, sum(stage.numCompletedTasks for stage in stages))
