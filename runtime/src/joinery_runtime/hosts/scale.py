"""A running job becomes wider or narrower: shards with the next plan, executors between two epochs.

State is addressed by ranges of the key's hash, so an epoch may have any number of shards, whatever the one before had
(docs/decisions/0040). What is asked for stands in a file that changes under the job: in a pod, the operator's
annotation, which the kubelet writes into a volume. With `autoscale`, the driver itself decides on executors
(`engine.autoscale`), and shards follow. An executor that goes has nothing that is not in the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pydantic import ValidationError

from joinery_runtime.engine.autoscale import Autoscaler
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.loop import CommittedEpoch, JobListener, Scaling, ScalingCause
from joinery_runtime.engine.next_plan import SHARDS_PER_CORE
from joinery_runtime.engine.planner import Planner
from joinery_runtime.hosts.spark_security import is_local
from joinery_runtime.job.crd import SCALE_FILE, Scale
from joinery_runtime.job.model.pods import Autoscale
from joinery_runtime.job.model.resource import MOST_SHARDS, JobSpec

if TYPE_CHECKING:
    from pyspark import SparkContext

_POLL_SECONDS = 1.0


class ScaleFile:
    """The file that JOINERY_SCALE_FILE names. Without it, `otherwise` is asked for. `say` hears of one that cannot be
    used, once."""

    def __init__(self, say: Callable[[str], None], otherwise: Scale) -> None:
        self._say = say
        self._text, self._requested = "", otherwise

    def read(self) -> Scale:
        """Return the newest that could be read."""
        path, text = os.environ.get(SCALE_FILE), ""
        if path:
            with suppress(OSError):  # it is being replaced, or not there yet
                text = Path(path).read_text(encoding="utf-8")
        if text.strip() and text != self._text:
            self._text = text
            try:
                self._requested = Scale.model_validate_json(text)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                self._say(f"{path} asks for no usable scale, and is not followed: {reason}: {text[:200]}")
        return self._requested


class Rescaler:
    """Follows the scale that is asked for, once a second. `spec` is the job's; `context` gives the Spark context once
    there is one; `end_tasks` ends those that wait for epochs; `clock` is in seconds and never goes back."""

    def __init__(
        self,
        spec: JobSpec,
        planner: Planner,
        context: Callable[[], SparkContext | None],
        listener: JobListener,
        end_tasks: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Without the operator, Spark's own settings say how many executors there are, but for an autoscaled job.
        self._file = ScaleFile(listener.warned, Scale(autoscale=spec.autoscale))
        self._cores = spec.spark.executor.cores
        self._planner, self._context, self._listener, self._clock = planner, context, listener, clock
        self._end_tasks = end_tasks
        self._polled_at = float("-inf")
        self._running = 0  # executors, when they were last looked at
        self._executors: int | None = None  # asked for
        self._autoscaler: Autoscaler | None = None
        # What is asked for at the start is no change of it.
        self._least = self._file.read().shards or planner.shards
        planner.rescale(self._least)

    def as_listener(self) -> JobListener:
        """Return the listener, which follows at each poll of the loop: then no task runs an epoch."""

        def polled(driver: Driver) -> None:
            self.follow(sum(count for name, count in driver.backlog.items() if name not in driver.paused))
            self._listener.polled(driver)

        def committed(progress: CommittedEpoch) -> None:
            if self._autoscaler is not None:
                self._autoscaler.epoch(sum(progress.report.rows_in.values()), progress.seconds, self._running)
            self._listener.committed(progress)

        return replace(self._listener, polled=polled, committed=committed)

    def follow(self, waiting: int) -> None:
        """Note `waiting`: records that are there and not read, of the inputs that may be read."""
        if self._autoscaler is not None:
            self._autoscaler.waits(waiting)
        if self._clock() - self._polled_at < _POLL_SECONDS:
            return
        self._polled_at = self._clock()
        requested = self._file.read()
        self._least = requested.shards or self._least
        executors, context = self._executors, self._context()
        # Waits for the next look when the Java process does not answer: the epoch says so if it is gone.
        with suppress(Py4JError, ConnectionError):
            if context is not None and not is_local(context.master):
                from joinery_runtime.hosts.executors import executor_ids, request_executors  # noqa: PLC0415

                self._running = len(executor_ids(context))
                executors = self._target_executors(context, requested)
                # One that was on its way when fewer were asked for comes all the same.
                if executors is not None and (executors != self._executors or executors < self._running):
                    if executors < self._running:
                        self._end_tasks()
                    request_executors(context, executors)
            self._apply_scale(executors, requested.autoscale)

    def _target_executors(self, context: SparkContext, requested: Scale) -> int | None:
        """Return executors; None: as many as there are."""
        if requested.autoscale is None:
            self._autoscaler = None
            return requested.instances or self._executors
        if self._autoscaler is None:
            at_start = self._executors or int(context.getConf().get("spark.executor.instances", "0")) or self._running
            if not at_start:
                return None  # none has come yet
            self._autoscaler = Autoscaler(at_start)
        self._autoscaler.decide(self._clock(), self._running, requested.autoscale)
        return self._autoscaler.executors

    def _apply_scale(self, executors: int | None, autoscale: Autoscale | None) -> None:
        shards, before = self._least, (self._planner.shards, self._executors)
        if autoscale is not None and executors is not None:
            # Each core of an executor gets as many. The number stays while it is enough, so that shards stay nested.
            shards_for_cores = SHARDS_PER_CORE * executors * self._cores
            shards = min(max(shards, shards_for_cores), MOST_SHARDS)
        self._planner.rescale(shards)
        self._executors = executors
        changes = [
            f"{new} {unit} instead of {old}"
            for unit, new, old in zip(("shards", "executors"), (shards, executors), before, strict=True)
            if new != old is not None
        ]
        if changes:
            # Shards alone change because the resource asks for others.
            decided = self._autoscaler if executors != before[1] else None
            explanation = f": {decided.reason}" if decided is not None and decided.reason else ""
            cause: ScalingCause = "asked" if decided is None else "load" if decided.by_load else "bounds"
            reason = f"{', '.join(changes)}{explanation}"
            self._listener.warned(f"Rescaled: {reason}")
            self._listener.scaled(Scaling(shards, executors, reason, cause))
