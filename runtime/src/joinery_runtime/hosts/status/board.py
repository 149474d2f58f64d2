"""The board: what is known of a running job. The loop's thread writes it, and the threads that answer requests read it.
Neither ever waits here for the store, the broker or Spark."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from prometheus_client import Histogram

from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.loop import CommittedEpoch, JobListener, Outage, Scaling, ScalingCause
from joinery_runtime.engine.report import StateSize
from joinery_runtime.engine.reporter import Rates
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.status.history import MetricSamples
from joinery_runtime.hosts.status.snapshot import JobDescription, JobSnapshot
from joinery_runtime.state.store import StoredSavepoint

RATE_WINDOW_S = 30.0
REFRESH_EVERY_S = 1.0  # an idle loop turns four times a second
SAVEPOINTS_EVERY_S = 30.0
EPOCH_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

NO_DESCRIPTION = JobDescription()

Idle = Callable[[], Mapping[str, Collection[str]]]
Savepoints = Callable[[], Sequence[StoredSavepoint]]


class Liveness:
    """Whether a job's loop still makes progress. The loop's thread is the one that makes this object.

    Progress is a turn of the loop, a committed epoch, a problem that is reported and waited out (an outside system that
    does not answer, missing executors), a step of the start, and, while an epoch runs, a Spark task that ended or an
    executor that came or went. So an epoch may take as long as it needs, and so may an outage. A loop is not alive once
    its thread has ended, or once `stalled_after_s` have passed without progress. `running` is a monotonic clock in
    seconds.
    """

    def __init__(self, stalled_after_s: float, running: Callable[[], float] = time.monotonic) -> None:
        self._running, self._stalled_after = running, stalled_after_s
        self._thread = threading.current_thread()
        self._beat = running()

    def beat(self) -> None:
        self._beat = self._running()

    def problem(self) -> str | None:
        """Return why the loop is not alive; None while it is."""
        if not self._thread.is_alive():
            return "the loop's thread has ended"
        silent = self._running() - self._beat
        if silent > self._stalled_after:
            return f"nothing has moved for {silent:.0f} s"
        return None


class Board:
    """One job's board, with its history. `wall` is the wall clock, `running` a monotonic clock; both in seconds."""

    def __init__(
        self,
        job: str,
        inputs: Sequence[str],
        liveness: Liveness,
        wall: Callable[[], float] = time.time,
        running: Callable[[], float] = time.monotonic,
        description: JobDescription = NO_DESCRIPTION,
    ) -> None:
        self.job, self.inputs, self.description = job, tuple(inputs), description
        self.history = MetricSamples()
        self.liveness = liveness
        self.wall, self._running = wall, running
        self.started_at = wall()
        self.rescales: Counter[ScalingCause] = Counter()
        self.epoch_seconds = Histogram(
            "joinery_epoch_seconds", "Epochs from plan to commit.", buckets=EPOCH_BUCKETS_S, registry=None
        )
        self._lock = threading.Lock()
        self._snapshot = JobSnapshot()
        self._rates = Rates(running(), RATE_WINDOW_S)
        self._driver: Driver | None = None
        self._committed_tasks = 0

    # --- read -------------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> JobSnapshot:
        return self._snapshot

    def rows_per_second(self) -> dict[str, float]:
        """Return rows per second per input, over the last RATE_WINDOW_S."""
        with self._lock:
            rates = self._rates.per_second(self._running())
        return {name: rates.get(name, 0.0) for name in self.inputs}

    # --- write ------------------------------------------------------------------------------------------------------

    def recording_listener(
        self, listener: JobListener, *, idle: Idle, savepoints: Savepoints, settle: bool = False
    ) -> JobListener:
        """Return a listener for drivers that are about to recover. It updates this board and passes everything on.
        `idle` names idle partitions per input; `savepoints` asks the store, from the loop's thread. With `settle` the
        drivers finish what an earlier definition of the job planned. That proves nothing about the present one, so the
        job is not ready yet."""
        self._change_snapshot(recovered=False)
        refresh = _Throttle(REFRESH_EVERY_S, self._running)
        savepoints_due = _Throttle(SAVEPOINTS_EVERY_S, self._running)

        def started(driver: Driver) -> None:
            self._on_started(driver, recovered=not settle)
            listener.started(driver)

        def committed(epoch: CommittedEpoch) -> None:
            self._on_committed(epoch, own=not settle)
            listener.committed(epoch)

        def retrying(error: JoineryError, pause: float) -> None:
            self.note_trouble(error)
            listener.retrying(error, pause)

        def polled(driver: Driver) -> None:
            self.liveness.beat()
            if refresh.due() or driver.planned is not self._snapshot.planned:
                self._refresh_snapshot(driver, idle())
            if savepoints_due.due():
                self._change_snapshot(savepoint=max(savepoints(), key=lambda s: s.created_at, default=None))
            listener.polled(driver)

        def scaled(scaling: Scaling) -> None:
            at = self.wall()
            self.history.scaled(scaling, at)
            self.rescales[scaling.cause] += 1
            self._change_snapshot(scaling=(scaling, at))
            listener.scaled(scaling)

        return replace(listener, started=started, committed=committed, retrying=retrying, polled=polled, scaled=scaled)

    def outage_listener(self, listener: JobListener) -> JobListener:
        """Return a listener that notes on this board what the job waits for, even at its start, and passes everything
        on."""

        def waiting(outage: Outage) -> None:
            self.note_trouble(outage.error)
            self._change_snapshot(outage=outage)
            listener.waiting(outage)

        def recovered(outage: Outage) -> None:
            self._change_snapshot(outage=None, error=None)
            listener.recovered(outage)

        return replace(listener, waiting=waiting, recovered=recovered)

    def note_trouble(self, error: JoineryError) -> None:
        """Note a problem that the job waits out."""
        self.liveness.beat()
        with self._lock:
            self._snapshot = replace(self._snapshot, error=str(error), troubles=self._snapshot.troubles + 1)

    def note_executors(self, executors: int | None) -> None:
        """Note how many executors run; None: tasks run in the driver itself."""
        self._change_snapshot(executors=executors)

    def note_tasks(self, done: int) -> None:
        """Note how many tasks of the running epoch have ended."""
        self._change_snapshot(tasks=self._committed_tasks + done)

    def note_workers(self, *, ran: bool) -> None:
        """Note whether an executor has run a task of this driver."""
        self._change_snapshot(workers_ran=ran)

    def note_starvation(self, outage: Outage | None) -> None:
        """Note since when no executor runs; None: one does."""
        self._change_snapshot(starved=outage)

    def _on_started(self, driver: Driver, *, recovered: bool) -> None:
        state, at, outage = driver.state, driver.state.committed_at_ms, self._snapshot.outage
        self._driver = driver
        with self._lock:
            self._rates = Rates(self._running(), RATE_WINDOW_S)
        self._change_snapshot(
            recovered=recovered,
            planned=None,
            generation=driver.generation,
            epoch=state.epoch,
            committed_at=None if at is None else at / 1000,
            inputs=dict(state.inputs),
            totals=state.totals,
            state=state.size,
            sides=state.sides,
            parts=state.part_sizes,
            error=None if outage is None else str(outage.error),
        )

    def _on_committed(self, progress: CommittedEpoch, *, own: bool) -> None:
        report, driver = progress.report, self._driver
        assert driver is not None, "it has started"
        self._committed_tasks = self._snapshot.tasks or 0
        self.epoch_seconds.observe(progress.seconds)
        self.history.committed(progress, self.wall())
        if report.amplification is not None:
            self._change_snapshot(amplification=report.amplification)
        with self._lock:
            self._rates.add(self._running(), progress.seconds, report.rows_in)
        self._change_snapshot(
            epoch=report.epoch,
            committed=self._snapshot.committed + 1,
            own=self._snapshot.own + own,
            committed_at=self.wall(),
            inputs=dict(driver.state.inputs),
            backlog=dict(report.backlog),
            totals=report.totals,
            state=StateSize(report.segments, report.state_rows, report.state_bytes),
            parts=report.parts,
            hottest=report.hottest,
            too_hot=report.too_hot,
            input_warnings=report.input_warnings,
            late_warnings=report.late_warnings,
            unpublished_rows=report.unpublished_rows,
            runs_on=report.runs_on,
            error=None,
        )

    def _refresh_snapshot(self, driver: Driver, idle: Mapping[str, Collection[str]]) -> None:
        quiet = {}  # by input: whether all of its partitions are idle
        for name, state in driver.state.inputs.items():
            partitions, idle_ones = state.progress.highest, idle.get(name, ())
            all_idle = bool(partitions) and all(partition in idle_ones for partition in partitions)
            quiet[name] = all_idle and not state.progress.ended
        self._change_snapshot(
            planned=driver.planned,
            backlog=dict(driver.backlog),
            idle=quiet,
            idle_partitions=dict(idle),
            paused=dict(driver.paused),
        )

    def _change_snapshot(self, **changes: object) -> None:
        self.liveness.beat()
        with self._lock:
            self._snapshot = replace(self._snapshot, **changes)  # type: ignore[arg-type]
        self.history.watch(self._running(), self.wall(), self._snapshot)


class _Throttle:
    """Returns True at the first call, and then once every `every` seconds."""

    def __init__(self, every: float, running: Callable[[], float]) -> None:
        self._every, self._running = every, running
        self._last: float | None = None

    def due(self) -> bool:
        now = self._running()
        if self._last is not None and now - self._last < self._every:
            return False
        self._last = now
        return True
