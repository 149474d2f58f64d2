"""Runs epochs in the driver's process: the first ones, while Spark starts, or all of them (`joinery run --local`).

The commit protocol is the same: such an epoch stages and claims what a task would, under an attempt's name of its own.
Spark's start begins with the job. Spark takes over between two epochs, once its processes have built their workers, and
runs all further epochs (docs/decisions/0064). `hosts.placement` decides which epochs run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from joinery_runtime.engine.driver import Host
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.tasks import LocalHost
from joinery_runtime.errors import JoineryError, Superseded, Unavailable
from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.java_process import JavaStart
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.hosts.worker_builder import TaskWiring, local_worker
from joinery_runtime.state.store import StateStore

if TYPE_CHECKING:
    from joinery_runtime.hosts.spark import SparkHost

_TRIES = 4  # of an epoch that other attempts take over, as ALONE says for a task of Spark


class SparkStart:
    """Spark's start, which another thread makes while the driver runs epochs. What is open here has to stay open until
    that thread has ended, so the stack of what is open calls `end`."""

    def __init__(
        self, open_host: Callable[[JavaStart], SparkHost], cancel_jobs: Callable[[], None], *, settle: bool
    ) -> None:
        self._open_host, self._cancel_jobs, self._settle = open_host, cancel_jobs, settle
        self._java, self._is_over = JavaStart(), Event()
        self.call: BackgroundCall[Host] = BackgroundCall(self._open_after_java, "joinery-spark-start")

    def _open_after_java(self) -> Host:
        host = self._open_host(self._java)
        if not self._is_over.is_set():
            host.warm()
        return host

    def end(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the start, but for a job that continues on this Spark: after an edit was settled, or an outage."""
        self._is_over.set()
        continues = self._settle or (kind is not None and issubclass(kind, Unavailable))
        if not self.call.done and not continues:
            self._java.give_up()
            self.call.join()
            self._java.forget()
            return
        self._cancel_jobs()
        self.call.join()


class DriverEpochs:
    """Implements `engine.driver.Host`. Runs epochs in this process until Spark has started, then on Spark.

    `open_local_host` opens the host of this process at the first epoch that needs it; that host is closed when Spark
    takes over. `drop_cache` removes its segments, once an epoch on Spark has taken over those that it needs. `spark` is
    Spark's start, and the next epoch raises an error of that start; None: all epochs run in this process. Both have
    `cores`, so that plans do not change when Spark takes over.
    """

    def __init__(
        self,
        open_local_host: Callable[[], AbstractContextManager[Host]],
        spark: BackgroundCall[Host] | None,
        cores: int,
        drop_cache: Callable[[], object] = lambda: None,
    ) -> None:
        self._open_local_host, self._spark, self.cores = open_local_host, spark, cores
        self._drop_cache = drop_cache
        self._stack = ExitStack()
        self._local_host: Host | None = None
        self._spark_host: Host | None = None

    @property
    def processes(self) -> int:
        """One for epochs of this process; those of Spark's newest epoch, once Spark has run one."""
        return 1 if self._spark_host is None else self._spark_host.processes

    def run(self, work: EpochWork) -> EpochOutcome:
        spark = self._spark
        if spark is None:
            for _ in range(_TRIES - 1):
                with suppress(Superseded):
                    return self._run_locally(work)
            return self._run_locally(work)
        if not spark.done:
            with suppress(Superseded):  # Spark would retry the task; here Spark runs the whole epoch again
                return self._run_locally(work)
        self.close()
        self._spark_host = spark.result()
        outcome = self._spark_host.run(work)
        self._drop_cache()
        return outcome

    def _run_locally(self, work: EpochWork) -> EpochOutcome:
        if self._local_host is None:
            self._local_host = self._stack.enter_context(self._open_local_host())
        try:
            return self._local_host.run(work)
        except JoineryError:
            raise
        except Exception as error:
            raise JoineryError(
                f"Epoch {work.plan.epoch} failed in the driver",
                facts=f"{type(error).__name__}: {error}",
                todo="Nothing of it was committed; the next start replays it",
            ) from error

    def close(self) -> None:
        self._local_host = None
        self._stack.close()


@contextmanager
def local_host(
    tasks: TaskWiring, store: StateStore, address: PostgresStoreAddress | None, threads: int, cache: Path
) -> Iterator[Host]:
    """Yield a host in this process, whose segments are in the folder `cache`. Without an `address`, `store` is the
    driver's own, in memory."""
    with ExitStack() as stack:
        if address is not None:
            store = address.connect()
            stack.callback(store.close)
        host = LocalHost(stack.enter_context(local_worker(tasks, store, address, cache)), threads)
        stack.callback(host.close)
        yield host
