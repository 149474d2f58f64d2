"""Watches Spark from a thread of its own while the loop waits for an epoch: how many executors run, and whether tasks
end. Says when a job waits for executors that do not come, and has them try a task before there are records."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event

from py4j.protocol import Py4JError
from pyspark import SparkContext

from joinery_runtime.engine.loop import Outage
from joinery_runtime.errors import EnvironmentProblem, Unavailable
from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.spark import failure_cause
from joinery_runtime.hosts.spark_internals import count_executors, record_log_errors
from joinery_runtime.hosts.spark_security import is_local
from joinery_runtime.hosts.status.board import Board

POLL_EVERY_S = 5.0
PATIENCE_S = 60.0
STOP_PATIENCE_S = 5.0

_FACTS = "Spark has asked the cluster for executors, and none has come"
_REJECTED = "Kubernetes rejects the pods of executors"
_POD_LOGGER = "org.apache.spark.scheduler.cluster.k8s"
_REJECTION = re.compile(
    r'Failure executing: POST at: \S+ Message: (?:pods "[^"]*" is )?(.*?)\.(?: Received status: |\n)', re.DOTALL
)
"""The answer of the API server, as Spark's client for Kubernetes writes it. Each try has a pod of another name."""
_TODO = "Look at the executor pods or the cluster manager: image, resources, quota, node selectors, rights"


class NoExecutors(Unavailable):
    """No executor of the job runs."""

    system = "executors"


@dataclass(frozen=True, slots=True)
class ExecutorSample:
    """Spark at one moment: the number of `executors` (None: tasks run in the driver), the running `jobs`, and how many
    of their tasks are `done`. With `scales_to_zero`, Spark keeps no executor while no job runs."""

    executors: int | None
    jobs: tuple[int, ...] = ()
    done: int = 0
    scales_to_zero: bool = False

    @property
    def starved(self) -> bool:
        """Whether Spark lacks an executor that it has asked for. Unless it scales to zero, it asks for one at least,
        also while there is nothing to read."""
        return self.executors == 0 and (bool(self.jobs) or not self.scales_to_zero)


class Starvation:
    """How long a job has been without a single executor, in seconds."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self._since: float | None = None
        self._warned_at: float | None = None

    def seconds(self, sample: ExecutorSample, now: float) -> float:
        if not sample.starved:
            self._since = self._warned_at = None
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since

    def warning(self, sample: ExecutorSample, now: float, facts: str = _FACTS) -> NoExecutors | None:
        """Return the warning to give now, if any: one after the patience, and one each time it has passed again."""
        waited = self.seconds(sample, now)
        if waited < self.patience_s or (self._warned_at is not None and now - self._warned_at < self.patience_s):
            return None
        self._warned_at = now
        return NoExecutors(f"No executor has run for {waited:.0f} s", facts=facts, todo=_TODO)


class SparkWatch:
    """Watches Spark for a job. After `stop`, cancels an epoch that waits for executors, which would never end by
    itself; `gave_up` says that this happened. Until an executor has built a worker (`begin_trial`), or an epoch is
    committed, the job is not ready."""

    def __init__(self, context: SparkContext, board: Board, stop: Event, say: Callable[[str], None]) -> None:
        self._context, self._board, self._stop, self._say = context, board, stop, say
        self._starvation = Starvation()
        self._scales_to_zero = _scales_to_zero(context)
        self._last: ExecutorSample | None = None
        self._facts: str | None = None
        self._trial: BackgroundCall[None] | None = None
        self._task: Callable[[], None] | None = None
        self.gave_up = False
        is_kubernetes = context.master.startswith("k8s://")
        self._take_pod_errors = record_log_errors(context, _POD_LOGGER) if is_kubernetes else lambda: ""
        self._rejection = ""
        if not is_local(context.master):
            board.note_executors(0)
            board.note_workers(ran=False)

    def begin_trial(self, task: Callable[[], None] | None) -> None:
        """Begin with a new host of epochs, none of whose workers has run yet. While no epoch runs, `task` has an
        executor build one. None: the host's epochs say nothing about the job's present definition."""
        self._task, self._trial = task, None
        if not is_local(self._context.master):
            self._board.note_workers(ran=False)

    def poll(self, now: float) -> None:
        """Look once. Raises Py4JError or ConnectionError when the Java process is gone."""
        sample = replace(sample_executors(self._context), scales_to_zero=self._scales_to_zero)
        if sample != self._last:
            self._last = sample
            self._board.note_executors(sample.executors)
            self._board.note_tasks(sample.done)
        waited = self._starvation.seconds(sample, now)
        # If Spark scales to zero, every epoch after a pause begins without an executor.
        starved = sample.starved and (not sample.scales_to_zero or waited >= self._starvation.patience_s)
        rejections = _REJECTION.findall(self._take_pod_errors())
        if rejections:
            self._rejection = rejections[-1]
        elif not sample.starved:
            self._rejection = ""
        missing_facts = f"{_REJECTED}: {self._rejection}" if self._rejection else _FACTS
        facts = missing_facts if starved else None
        if facts != self._facts:
            self._facts = facts
            error = NoExecutors("No executor runs", facts=missing_facts, todo=_TODO)
            self._board.note_starvation(Outage(error, self._board.wall() - waited, POLL_EVERY_S) if starved else None)
        runs_epoch = len(sample.jobs) > (self._trial is not None)  # one job may be the trial
        self._try_task(sample)
        warning = self._starvation.warning(sample, now, missing_facts)
        if warning is not None:
            self._board.note_trouble(warning)
            self._say(str(warning))
        if self._stop.is_set() and runs_epoch and waited >= STOP_PATIENCE_S:
            self.gave_up = True
            self._context.cancelAllJobs()

    def _try_task(self, sample: ExecutorSample) -> None:
        """Have an executor run a task while no epoch shows that it can. Tried again when it failed. If Spark scales to
        zero, the task makes it ask for an executor."""
        trial, task = self._trial, self._task
        if trial is not None and trial.done:
            try:
                trial.result()
            except Exception as error:
                is_connection_error = isinstance(error, (Py4JError, ConnectionError))
                self._board.note_trouble(
                    EnvironmentProblem(
                        "An executor cannot run a task",
                        facts=failure_cause(error) if is_connection_error else f"{type(error).__name__}: {error}",
                    )
                )
            else:
                self._board.note_workers(ran=True)
            self._trial = trial = None
        snapshot = self._board.snapshot
        idle = not (sample.jobs or snapshot.own or self._stop.is_set())
        may_run = bool(sample.executors) or (sample.executors == 0 and sample.scales_to_zero)
        if trial is None and task is not None and idle and may_run and not snapshot.workers_ran:
            self._trial = BackgroundCall(task, "joinery-first-task")

    def run(self, closed: Event) -> None:
        while not closed.is_set():
            try:
                self.poll(time.monotonic())
            except (Py4JError, ConnectionError):
                return  # the loop meets the same error, and reports it
            closed.wait(POLL_EVERY_S)


def _scales_to_zero(context: SparkContext) -> bool:
    """Return whether Spark keeps no executor while no job runs."""
    conf = context.getConf()
    dynamic = (conf.get("spark.dynamicAllocation.enabled") or "false").strip().lower() == "true"
    return dynamic and int(conf.get("spark.dynamicAllocation.minExecutors") or 0) == 0


@contextmanager
def run_watch(watch: SparkWatch) -> Iterator[None]:
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
