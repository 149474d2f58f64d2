"""Watches Spark from a thread of its own while the loop waits for an epoch: how many executors run, and whether tasks
end. Says when a job waits for executors that do not come, and has them try a task before there are records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from py4j.protocol import Py4JError
from pyspark import SparkContext

from joinery_runtime.engine.loop import Outage
from joinery_runtime.errors import EnvironmentProblem, Unavailable
from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.spark import cause
from joinery_runtime.hosts.spark_internals import count_executors
from joinery_runtime.hosts.spark_security import is_local
from joinery_runtime.hosts.status.board import Board

POLL_EVERY_S = 5.0
PATIENCE_S = 60.0
STOP_PATIENCE_S = 5.0

_FACTS = "Spark has asked the cluster for executors, and none has come"
_TODO = "Look at the executor pods or the cluster manager: image, resources, quota, node selectors, rights"


class NoExecutors(Unavailable):
    """No executor of the job runs."""

    system = "executors"


@dataclass(frozen=True, slots=True)
class ExecutorSample:
    """Spark at one moment: the number of `executors` (None: tasks run in the driver), the running `jobs`, and how many
    of their tasks are `done`."""

    executors: int | None
    jobs: tuple[int, ...] = ()
    done: int = 0

    @property
    def starved(self) -> bool:
        """Whether no executor runs: a job asks for one at least, also while it has nothing to read."""
        return self.executors == 0


class Starvation:
    """How long a job has been without a single executor, in seconds."""

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

    def warning(self, sample: ExecutorSample, now: float) -> NoExecutors | None:
        """The warning to give now, if any: one after the patience, and one each time it has passed again."""
        waited = self.seconds(sample, now)
        if waited < self._patience or (self._warned_at is not None and now - self._warned_at < self._patience):
            return None
        self._warned_at = now
        return NoExecutors(f"No executor has run for {waited:.0f} s", facts=_FACTS, todo=_TODO)


class SparkWatch:
    """Watches Spark for a job. After `stop`, cancels an epoch that waits for executors, which would never end by
    itself; `gave_up` says that this happened. `try_task` runs a task that builds a worker on an executor; until one has
    done so, or an epoch is committed, the job is not ready."""

    def __init__(self, context: SparkContext, board: Board, stop: Event, say: Callable[[str], None]) -> None:
        self._context, self._board, self._stop, self._say = context, board, stop, say
        self._starvation = Starvation()
        self._last: ExecutorSample | None = None
        self._starved = False
        self._trial: BackgroundCall[None] | None = None
        self.try_task: Callable[[], None] | None = None
        self.gave_up = False
        if not is_local(context.master):
            board.spark(0)
            board.workers(ran=False)

    def poll(self, now: float) -> None:
        """Looks once. Raises Py4JError or ConnectionError when the Java process is gone."""
        sample = sample_executors(self._context)
        if sample != self._last:
            self._last = sample
            self._board.spark(sample.executors)
            if sample.starved != self._starved:
                self._starved = sample.starved
                error = NoExecutors("No executor runs", facts=_FACTS, todo=_TODO)
                self._board.starved(Outage(error, self._board.wall(), POLL_EVERY_S) if sample.starved else None)
        self._try_task(sample)
        warning = self._starvation.warning(sample, now)
        if warning is not None:
            self._board.trouble(warning)
            self._say(str(warning))
        if self._stop.is_set() and self._starvation.seconds(sample, now) >= STOP_PATIENCE_S:
            self.gave_up = True
            self._context.cancelAllJobs()

    def _try_task(self, sample: ExecutorSample) -> None:
        """Have an executor run a task while no epoch shows that it can. Tried again when it failed."""
        if self._trial is not None and self._trial.done:
            try:
                self._trial.result()
                self._board.workers(ran=True)
            except (Py4JError, ConnectionError) as error:
                self._board.trouble(EnvironmentProblem("An executor cannot run a task", facts=cause(error)))
            self._trial = None
        snapshot = self._board.snapshot
        idle = not sample.jobs and not snapshot.own
        if self._trial is None and idle and sample.executors and not snapshot.workers_ran and self.try_task is not None:
            self._trial = BackgroundCall(self.try_task, "joinery-first-task")

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
