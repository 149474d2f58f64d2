"""Runs epochs in the driver's process: the first ones, and small ones, which would spend half of their time on the
overhead of a Spark job (docs/decisions/0024, 0045, 0047).

The commit protocol is the same: such an epoch stages and claims what a task would, under an attempt's name of its own.
Spark starts once epochs that are not small have occupied the driver for a while; a job that ends before that needs no
Spark. Spark takes over between two epochs, once its processes have built their workers, or at an epoch that is not
small. Spark on other machines runs every epoch, because the driver may lack what its executors have, above all memory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from joinery_runtime.engine.driver import Host
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.tasks import MAX_THREADS
from joinery_runtime.errors import EnvironmentProblem, JoineryError, Superseded
from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.local import LocalHost
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.hosts.spark_security import on_this_machine
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.hosts.worker_builder import worker_here
from joinery_runtime.job import Job
from joinery_runtime.sinks.kafka_producers import PRODUCERS
from joinery_runtime.state.store import StateStore

WAIT_FOR_SPARK = "JOINERY_WAIT_FOR_SPARK"
"""The environment variable that makes every epoch run on Spark when it is set."""

SPARK_AFTER = "JOINERY_SPARK_AFTER"
"""The environment variable for how many seconds of epochs in the driver Spark starts after; 60 by default."""

# An epoch is small if it plans few records (bytes, where an input is a file) and reads little state. With more, a
# second process and its cores are worth more than the 50 ms that a Spark job takes.
_SMALL_RANGES = 10_000
_SMALL_STATE = 32 << 20  # bytes: this process reads all of it again when epochs return from Spark
_SMALL_IN_A_ROW = 50  # small epochs in a row until they return

# Spark starts after this long a time of epochs that are not small. Its start and the move cost some 7 s of CPU
# (decision 47): on two cores 6 % of a minute, but half of a job of 8 s.
_SPARK_AFTER_S = 60.0


def may_run_here(master: str) -> bool:
    """Whether epochs may run in the driver with this Spark master."""
    return on_this_machine(master) and not os.environ.get(WAIT_FOR_SPARK)


def cores_of(master: str) -> int:
    """How many tasks a master on this machine runs at a time."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if many := re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", master):
        return int(many[1]) * int(many[2])
    one = re.match(r"local\[\s*(\d+|\*)", master)
    if one is None:
        return 1
    return here if one[1] == "*" else int(one[1])


def spark_starts_after(master: str) -> float:
    """After how many seconds of epochs that are not small Spark starts; 0 if there are more cores than the threads of
    one process can use. Raises EnvironmentProblem if the variable SPARK_AFTER holds no number."""
    text = os.environ.get(SPARK_AFTER)
    if text is None:
        return _SPARK_AFTER_S if cores_of(master) <= MAX_THREADS else 0.0
    try:
        return float(text)
    except ValueError:
        raise EnvironmentProblem(
            f"The environment variable {SPARK_AFTER} holds no number",
            facts=f"it is {text!r}",
            todo="Give seconds, as 60 or 0.5, or leave it out",
        ) from None


def is_small(work: EpochWork) -> bool:
    planned = sum(each.end_exclusive - each.start for each in work.plan.ranges)
    return planned <= _SMALL_RANGES and sum(meta.bytes for meta in work.segments) <= _SMALL_STATE


class DriverEpochs:
    """Implements `engine.driver.Host`. Runs epochs in this process until Spark has started, and again after many small
    epochs in a row; otherwise on Spark.

    `here` opens the host of this process at the first epoch that needs it; that host is closed when Spark takes over.
    `start` starts Spark in the background, once, after `start_after` seconds of epochs that are not small, by `clock`.
    The next epoch raises an error of that start.
    """

    def __init__(
        self,
        here: Callable[[], AbstractContextManager[Host]],
        start: Callable[[], BackgroundCall[Host]],
        start_after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_here, self._start, self._seconds_here, self._clock = here, start, start_after, clock
        self.spark: BackgroundCall[Host] | None = None
        """Spark's start, once it has begun."""
        self._stack = ExitStack()
        self._here: Host | None = None
        self._small = 0  # small epochs in a row

    def run(self, work: EpochWork) -> EpochOutcome:
        small = is_small(work)
        self._small = self._small + 1 if small else 0
        if self._seconds_here <= 0:
            self._starting()
        if self.spark is not None and self.spark.done:
            spark = self.spark.result()  # raises the error of a failed start
            if self._small < _SMALL_IN_A_ROW:
                self.close()
                return spark.run(work)
        began = self._clock()
        outcome = self._run_here(work)
        if not small:
            self._seconds_here -= self._clock() - began
        if outcome is None:
            self.close()
            outcome = self._starting().result().run(work)
        return outcome

    def _starting(self) -> BackgroundCall[Host]:
        if self.spark is None:
            self.spark = self._start()
        return self.spark

    def _run_here(self, work: EpochWork) -> EpochOutcome | None:
        """Runs the epoch in this process. Returns None if Spark has to run it."""
        if self._here is None:
            self._here = self._stack.enter_context(self._open_here())
        try:
            return self._here.run(work)
        except Superseded:
            # Spark would retry the task; here Spark runs the whole epoch again.
            self._small = 0
            return None
        except JoineryError:
            raise
        except Exception as error:
            raise JoineryError(
                f"Epoch {work.plan.epoch} failed in the driver",
                facts=f"{type(error).__name__}: {error}",
                todo="Nothing of it was committed; the next start replays it",
            ) from error

    def close(self) -> None:
        self._here = None
        self._stack.close()


@contextmanager
def host_here(job: Job, store: StateStore, address: PostgresStoreAddress | None, threads: int) -> Iterator[Host]:
    """Yields a host in this process for a job with its secrets filled in. Without an `address`, `store` is the driver's
    own, in memory."""
    with ExitStack() as stack:
        stack.callback(PRODUCERS.close_idle)
        if address is not None:
            store = address.connect()
            stack.callback(store.close)
        cache = stack.enter_context(scratch_folder("segments"))
        host = LocalHost(stack.enter_context(worker_here(job, store, address, cache)), threads)
        stack.callback(host.close)
        yield host
