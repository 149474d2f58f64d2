"""The Spark of a run, and the host that runs the epochs of a job there, in the driver, or in both one after the other.

PySpark is imported where Spark starts: many jobs end before that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, cast

from py4j.protocol import Py4JError

from joinery_runtime.engine.driver import Host
from joinery_runtime.hosts.driver_epochs import DriverEpochs, SparkStart, local_host
from joinery_runtime.hosts.java_process import JavaStart
from joinery_runtime.hosts.own_secrets import IN_A_POD, lacks_secrets, private_copy, without_secrets
from joinery_runtime.hosts.placement import EpochPlacement, require_java
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.hosts.shared_memory import MemoryStoreAddress, check_memory_store, serve
from joinery_runtime.hosts.spark_security import is_true
from joinery_runtime.hosts.status.board import Board
from joinery_runtime.hosts.stores import OpenStore
from joinery_runtime.hosts.wiring import Wiring
from joinery_runtime.hosts.worker_builder import WorkerBuilder
from joinery_runtime.job import Job, PostgresStoreSpec
from joinery_runtime.state.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark import SparkContext

    from joinery_runtime.hosts.spark import SparkHost
    from joinery_runtime.hosts.status.executors import SparkWatch


class RunSpark:
    """Starts Spark when epochs first need it, and keeps it over an edit of the job. `context` is None until then; one
    that the caller gave is the caller's to stop. `stack` is the run's: it closes what is opened for all definitions."""

    def __init__(
        self,
        opened: OpenStore,
        stack: ExitStack,
        master: str | None,
        stop: Event,
        warn: Callable[[str], None],
        board: Board | None,
        context: SparkContext | None = None,
        py_files: Sequence[Path] = (),
    ) -> None:
        self._py_files = py_files
        self._opened, self._stack, self._master, self._stop = opened, stack, master, stop
        self._warn, self._board, self.context = warn, board, context
        self._is_given = context is not None
        self._memory: MemoryStoreAddress | None = None
        self._watch: SparkWatch | None = None
        self._host: SparkHost | None = None  # of the newest definition

    @property
    def gave_up(self) -> bool:
        """Whether the running epoch was cancelled, because the job had no executors when it was stopped."""
        return self._watch is not None and self._watch.gave_up

    def end_waiting_tasks(self) -> None:
        """End the tasks that wait for epochs. The next small epochs start others."""
        if self._host is not None:
            self._host.close()

    def open_host(self, wiring: Wiring, placement: EpochPlacement, stack: ExitStack, *, settle: bool) -> Host:
        """Open what runs the epochs of one definition, until `stack` closes. With `settle` these are epochs that an
        earlier definition of the job has planned."""
        open_on_spark = partial(self._open_on_spark, wiring, stack, settle=settle)
        if not placement.begins_in_driver:
            return open_on_spark(JavaStart(), None)
        caches = stack.enter_context(ExitStack())
        cache = caches.enter_context(scratch_folder("segments"))
        start = None
        if placement.uses_spark:
            require_java()  # before the first epoch, so that nothing is committed without it
            start = SparkStart(lambda java: open_on_spark(java, cache), self._cancel_jobs, settle=settle)
            stack.push(start.end)
        store, address = self._opened.store, self._opened.address
        open_here = partial(local_host, wiring.tasks, store, address, placement.threads, cache)
        epochs = DriverEpochs(open_here, None if start is None else start.call, placement.cores, caches.close)
        stack.callback(epochs.close)
        return epochs

    def _open_on_spark(
        self, wiring: Wiring, stack: ExitStack, java: JavaStart, cache: Path | None, *, settle: bool
    ) -> SparkHost:
        from joinery_runtime.hosts.spark import SparkHost  # noqa: PLC0415
        from joinery_runtime.hosts.spark_tasks import WorkerSetup  # noqa: PLC0415

        context = self._started_context(wiring, java)
        build = replace(self.worker_builder(wiring.referring, context.master, stack), earlier_cache=cache)
        finds_late, routes = wiring.pipeline.finds_late_records, wiring.tasks.outputs.routing is not None
        setup = WorkerSetup(
            build.digest,
            build,
            wiring.tasks.steps,
            finds_late,
            routes_rows=routes,
            reads_once=wiring.reads_once,
            repeats_rows=wiring.repeats_rows,
        )
        # Tasks that stay hold cores, which in a given session others need too. Spark speculates on none of them.
        has_series = not (self._is_given or is_true(context.getConf().get("spark.speculation") or ""))
        host = SparkHost(context, setup, wiring.name, self._warn, wiring.step_titles, has_series=has_series)
        stack.callback(host.close)
        self._host = host
        if self._watch is not None:
            self._watch.begin_trial(None if settle else host.try_task)
        return host

    def worker_builder(self, job: Job, master: str, stack: ExitStack) -> WorkerBuilder:
        """Return the worker builder that is sent to workers. It has no secrets, only the places where they are."""
        address = self._opened.address
        if address is None and self._memory is None:
            check_memory_store(job, master)  # of spark-submit, which is known from here on
            serving = serve(cast(MemoryStore, self._opened.store))
            self._memory = self._stack.enter_context(serving)
        store = job.spec.state_store
        if address is not None and store.postgres is None:  # the embedded store, whose address the job does not name
            named = PostgresStoreSpec(dsn=address.dsn, schema_name=address.schema)
            spec = job.spec.model_copy(update={"state_store": store.model_copy(update={"postgres": named})})
            job = job.model_copy(update={"spec": spec})
        sent = without_secrets(job)
        if not lacks_secrets(sent):
            return WorkerBuilder(sent, None, self._memory)
        in_pods = master.startswith("k8s://")
        return WorkerBuilder(sent, IN_A_POD if in_pods else stack.enter_context(private_copy(job)), self._memory)

    def _started_context(self, wiring: Wiring, java: JavaStart) -> SparkContext:
        if self.context is None:
            from joinery_runtime.hosts.spark import start_context, stop_context  # noqa: PLC0415
            from joinery_runtime.hosts.status.executors import SparkWatch, run_watch  # noqa: PLC0415

            conf = dict(wiring.spec.spark.conf)
            if wiring.spec.functions:  # then the error about a process that a function ended names the function
                conf.setdefault("spark.python.worker.faulthandler.enabled", "true")
            self.context = start_context(f"joinery {wiring.name}", conf, self._master, java, self._warn)
            self._stack.callback(stop_context, self.context)
            for path in self._py_files:
                self.context.addPyFile(str(path))
            if self._board is not None:
                self._watch = SparkWatch(self.context, self._board, self._stop, self._warn)
                self._stack.enter_context(run_watch(self._watch))
        return self.context

    def _cancel_jobs(self) -> None:
        if self.context is not None:
            with suppress(Py4JError, ConnectionError):
                self.context.cancelAllJobs()
