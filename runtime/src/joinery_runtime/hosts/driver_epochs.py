"""Epochs run in the driver's process: the first ones, while Spark starts on this machine, and small ones, of which a
Spark job would take half of the time (docs/decisions/0024, 0045).

The commit protocol is the same: such an epoch stages and claims what a task would, under an attempt's name of its own.
Between two epochs Spark takes over, once its processes have built their workers, or at an epoch that is not small.
Spark on other machines runs every epoch: what its executors have, memory first of all, the driver need not have.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from joinery_runtime.engine.driver import Host
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.errors import JoineryError, Superseded
from joinery_runtime.hosts.local import LocalHost
from joinery_runtime.hosts.spark_security import on_this_machine
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.hosts.worker_builder import worker_here
from joinery_runtime.job import Job
from joinery_runtime.sinks.kafka_producers import PRODUCERS
from joinery_runtime.state.store import StateStore

WAIT_FOR_SPARK = "JOINERY_WAIT_FOR_SPARK"
"""The environment variable that, when it is set, has every epoch run on Spark."""

# Small is an epoch that plans few records (bytes, where an input is a file) and meets little state: with more, a second
# process and its cores are worth more than the 50 ms that a Spark job takes.
_SMALL_RANGES = 10_000
_SMALL_STATE = 32 << 20  # bytes: what this process reads anew when epochs come back to it
_SMALL_IN_A_ROW = 50  # until they do

T_co = TypeVar("T_co", covariant=True)


def may_run_here(master: str) -> bool:
    """Whether epochs of a Spark with this master may run in the driver."""
    return on_this_machine(master) and not os.environ.get(WAIT_FOR_SPARK)


class Start(Generic[T_co]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T_co]) -> None:
        self._future: Future[T_co] = Future()
        self._thread = threading.Thread(target=self._run, args=(call,), name="joinery-spark-start", daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], T_co]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:
            self._future.set_exception(error)

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> T_co:
        """Waits for it. Raises what the call raised."""
        return self._future.result()

    def join(self) -> None:
        """Waits until it has ended, however."""
        self._thread.join()


def is_small(work: EpochWork) -> bool:
    planned = sum(each.end_exclusive - each.start for each in work.plan.ranges)
    return planned <= _SMALL_RANGES and sum(meta.bytes for meta in work.segments) <= _SMALL_STATE


class DriverEpochs:
    """Implements `engine.driver.Host`: in this process until Spark has started and after many small epochs in a row,
    else on Spark.

    `here` opens the host of this process, at the first epoch that needs it; what it has open is closed when Spark takes
    over. An error of Spark's start is raised by the next epoch.
    """

    def __init__(self, here: Callable[[], AbstractContextManager[Host]], spark: Start[Host]) -> None:
        self._open_here, self._spark = here, spark
        self._stack = ExitStack()
        self._here: Host | None = None
        self._small = 0  # epochs in a row

    def run(self, work: EpochWork) -> EpochOutcome:
        self._small = self._small + 1 if is_small(work) else 0
        if self._spark.done:
            spark = self._spark.result()  # raises what kept it from starting
            if self._small < _SMALL_IN_A_ROW:
                self.close()
                return spark.run(work)
        outcome = self._run_here(work)
        if outcome is None:
            self.close()
            outcome = self._spark.result().run(work)
        return outcome

    def _run_here(self, work: EpochWork) -> EpochOutcome | None:
        """None: Spark has to run it."""
        if self._here is None:
            self._here = self._stack.enter_context(self._open_here())
        try:
            return self._here.run(work)
        except Superseded:
            # Spark would try the task again; here the whole epoch is, by Spark.
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
def host_here(job: Job, store: StateStore, address: PostgresStoreAddress | None) -> Iterator[Host]:
    """A host of this process for a job that has its secrets. `address` None: `store` is the driver's, in memory."""
    with ExitStack() as stack:
        stack.callback(PRODUCERS.close_idle)
        if address is not None:
            store = address.connect()
            stack.callback(store.close)
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="joinery-segments-"))
        yield LocalHost(stack.enter_context(worker_here(job, store, address, Path(cache))))
